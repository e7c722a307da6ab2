//! Headers of the PROXY protocol, version 2, as a load balancer writes them (FC-66).

use std::net::{IpAddr, SocketAddr};

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// Before a probe: the connection is the LB node's own.
pub(super) const LOCAL: [u8; 16] = {
    let mut header = [0; 16];
    let mut at = 0;
    while at < SIGNATURE.len() {
        header[at] = SIGNATURE[at];
        at += 1;
    }
    header[12] = 0x20;
    header
};

/// Before a flow of TCP: who asks, and where.
pub(super) fn of(client: SocketAddr, front: SocketAddr) -> Vec<u8> {
    let (family, addresses) = match (client.ip(), front.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => (0x11, [from.octets(), to.octets()].concat()),
        (from, to) => {
            let six = |address: IpAddr| match address {
                IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                IpAddr::V6(address) => address.octets(),
            };
            (0x21, [six(from), six(to)].concat())
        }
    };
    // Two ports follow: at most 36 bytes.
    let length = u8::try_from(addresses.len() + 4).unwrap_or(u8::MAX);
    let mut header = SIGNATURE.to_vec();
    header.extend([0x21, family, 0, length]);
    header.extend(addresses);
    for end in [client, front] {
        header.extend(end.port().to_be_bytes());
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fc66_headers_are_those_of_the_protocols_text() {
        let at = |text: &str| text.parse().expect("an address");
        let v4 = of(at("203.0.113.11:4000"), at("198.51.100.7:80"));
        let wanted = [
            &b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..],
            &[203, 0, 113, 11, 198, 51, 100, 7, 0x0f, 0xa0, 0, 80],
        ];
        assert_eq!(v4, wanted.concat());
        let v6 = of(at("[2001:db8::1]:4000"), at("[2001:db8::2]:80"));
        assert_eq!((v6.len(), &v6[12..16]), (52, &[0x21, 0x21, 0, 36][..]));
        assert_eq!(LOCAL, *b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0");
    }
}
