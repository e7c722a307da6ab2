//! What a pod's server says about itself and about the client that it saw.

use serde::Deserialize;
use std::net::SocketAddr;

/// One answer line of `pod-server`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Answer {
    /// Name of the answering pod.
    pub pod: String,
    /// UID of the answering pod.
    pub uid: String,
    /// Node of the answering pod.
    pub node: String,
    /// The client's address as the server's socket shows it.
    pub peer: SocketAddr,
    /// What a header of the PROXY protocol told the server, if it awaits one and there was one.
    #[serde(default)]
    pub proxy: Option<Preface>,
}

/// A header of the PROXY protocol. Neither address in it: a connection of the proxy's own.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Preface {
    /// Who asked.
    pub source: Option<SocketAddr>,
    /// What was asked.
    pub destination: Option<SocketAddr>,
}

impl Answer {
    /// Reads an answer line.
    pub fn parse(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line.trim_ascii()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_line_is_read_with_its_line_end() {
        let line =
            b"{\"pod\":\"web-1\",\"uid\":\"u\",\"node\":\"n1\",\"peer\":\"203.0.113.10:4000\"}\n";
        let answer = Answer::parse(line).expect("an answer");
        assert_eq!((answer.pod.as_str(), answer.peer.port()), ("web-1", 4000));
        assert_eq!(Answer::parse(b"not json\n"), None);
    }
}
