//! Proxy protocol headers of version 2 before requests. Load balancers that put one before each flow put one before their
//! probes, too (ZD-31, AWS-776): whatever the agent answers, with such a header it answers the same.

use std::io;
use std::time::Duration;

use onehop_runtime::clock::Clock;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, join};

/// What a header begins with.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version, command, family and length follow it.
const REST: usize = 4;
/// Time in which the first bytes of a request must have come.
const HEAD: Duration = Duration::from_secs(5);

/// The stream without the header, if it begins with one. `None` for whoever says nothing in time, or goes away.
pub(crate) async fn without_preface<S>(
    stream: S,
    clock: Clock,
) -> Option<impl AsyncRead + AsyncWrite + Unpin + Send>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    clock.within(HEAD, take(stream)).await.ok()?.ok()
}

async fn take<S>(mut stream: S) -> io::Result<impl AsyncRead + AsyncWrite + Unpin + Send>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    // The shortest request is longer than this.
    let mut first = [0; SIGNATURE.len()];
    stream.read_exact(&mut first).await?;
    let mut kept = first.to_vec();
    if first == SIGNATURE {
        let mut rest = [0; REST];
        stream.read_exact(&mut rest).await?;
        let mut addresses = vec![0; usize::from(u16::from_be_bytes([rest[2], rest[3]]))];
        stream.read_exact(&mut addresses).await?;
        kept.clear();
    }
    let (reader, writer) = tokio::io::split(stream);
    Ok(join(io::Cursor::new(kept).chain(reader), writer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    async fn read(sent: &[u8]) -> String {
        let (mut client, server) = tokio::io::duplex(1024);
        client.write_all(sent).await.expect("sends");
        client.shutdown().await.expect("ends");
        let mut rest = String::new();
        let stream = without_preface(server, Clock::system()).await;
        let mut stream = stream.expect("a stream");
        stream.read_to_string(&mut rest).await.expect("text");
        rest
    }

    #[tokio::test]
    async fn zd31_a_proxy_protocol_header_before_a_probe_is_passed_over() {
        let request = "GET /t/local/default/web/http HTTP/1.1\r\n\r\n";
        assert_eq!(read(request.as_bytes()).await, request);
        for (kind, addresses) in [([0x21, 0x11], 12), ([0x21, 0x21], 36), ([0x20, 0], 0)] {
            let mut sent = SIGNATURE.to_vec();
            sent.extend([kind[0], kind[1], 0, addresses]);
            sent.resize(sent.len() + usize::from(addresses), 0);
            sent.extend(request.as_bytes());
            assert_eq!(read(&sent).await, request, "ZD-31");
        }
    }
}
