//! Bytes as they lie in registers: keys, data and constants, at most 64 bytes, held inline.
//! Built field by field; in a concatenation each field is padded to four bytes, a single field is not.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Longest key or data: all sixteen registers.
pub const MAX_VALUE: usize = 64;
/// Length of an interface name in the kernel.
pub const IFNAME_LEN: usize = 16;

/// Up to 64 bytes. What does not fit makes the value [`Value::oversized`], which no batch sends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Value {
    bytes: [u8; MAX_VALUE],
    len: u8,
    fields: u8,
    oversized: bool,
}

impl Default for Value {
    fn default() -> Self {
        Self {
            bytes: [0; MAX_VALUE],
            len: 0,
            fields: 0,
            oversized: false,
        }
    }
}

impl Value {
    /// No field yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// One field of exactly these bytes.
    pub fn exact(bytes: &[u8]) -> Self {
        Self::new().field(bytes)
    }

    /// Adds a field.
    #[must_use]
    pub fn field(mut self, bytes: &[u8]) -> Self {
        let start = usize::from(self.len).next_multiple_of(4);
        match self.bytes.get_mut(start..start + bytes.len()) {
            Some(place) => {
                place.copy_from_slice(bytes);
                // At most 64 by the slice above.
                self.len = u8::try_from(start + bytes.len()).unwrap_or(u8::MAX);
                self.fields += 1;
            }
            None => self.oversized = true,
        }
        self
    }

    /// Adds an address, in network order.
    #[must_use]
    pub fn addr(self, addr: IpAddr) -> Self {
        match addr {
            IpAddr::V4(v4) => self.field(&v4.octets()),
            IpAddr::V6(v6) => self.field(&v6.octets()),
        }
    }

    /// Adds one byte, as of a protocol number.
    #[must_use]
    pub fn u8(self, value: u8) -> Self {
        self.field(&[value])
    }

    /// Adds a port, in network order.
    #[must_use]
    pub fn port(self, port: u16) -> Self {
        self.field(&port.to_be_bytes())
    }

    /// Adds a number in host order, as marks and slots are held.
    #[must_use]
    pub fn u32_host(self, value: u32) -> Self {
        self.field(&value.to_ne_bytes())
    }

    /// Adds an interface name, padded with zeros to sixteen bytes.
    #[must_use]
    pub fn ifname(mut self, name: &str) -> Self {
        let mut bytes = [0; IFNAME_LEN];
        let Some(place) = bytes
            .get_mut(..name.len())
            .filter(|place| place.len() < IFNAME_LEN)
        else {
            self.oversized = true;
            return self;
        };
        place.copy_from_slice(name.as_bytes());
        self.field(&bytes)
    }

    /// The bytes; padded to a multiple of four when there are several fields.
    pub fn as_slice(&self) -> &[u8] {
        let len = usize::from(self.len);
        let len = if self.fields > 1 {
            len.next_multiple_of(4)
        } else {
            len
        };
        &self.bytes[..len.min(MAX_VALUE)]
    }

    /// Whether something did not fit.
    pub fn oversized(&self) -> bool {
        self.oversized
    }

    /// Reads an IPv4 or IPv6 address at an offset.
    pub fn addr_at(&self, offset: usize, v6: bool) -> Option<IpAddr> {
        let bytes = self.as_slice().get(offset..)?;
        if v6 {
            let octets: [u8; 16] = bytes.get(..16)?.try_into().ok()?;
            Some(IpAddr::V6(Ipv6Addr::from(octets)))
        } else {
            let octets: [u8; 4] = bytes.get(..4)?.try_into().ok()?;
            Some(IpAddr::V4(Ipv4Addr::from(octets)))
        }
    }

    /// Reads a byte at an offset.
    pub fn u8_at(&self, offset: usize) -> Option<u8> {
        self.as_slice().get(offset).copied()
    }

    /// Reads a port at an offset.
    pub fn port_at(&self, offset: usize) -> Option<u16> {
        Some(u16::from_be_bytes(
            self.as_slice().get(offset..offset + 2)?.try_into().ok()?,
        ))
    }

    /// Reads a number in host order at an offset.
    pub fn u32_host_at(&self, offset: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(
            self.as_slice().get(offset..offset + 4)?.try_into().ok()?,
        ))
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        self.as_slice()
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_concatenation_are_padded_and_a_single_one_is_not() {
        assert_eq!(Value::new().port(80).as_slice(), [0, 80]);
        let key = Value::new()
            .addr(IpAddr::from([10, 96, 0, 1]))
            .u8(6)
            .port(80);
        assert_eq!(format!("{key:?}"), "0x0a6000010600000000500000");
    }

    #[test]
    fn too_long_names_and_keys_are_marked() {
        assert!(Value::new().ifname("abcdefghijklmnop").oversized());
        assert!(!Value::new().ifname("abcdefghijklmno").oversized());
        assert!(Value::exact(&[0; 65]).oversized());
    }
}
