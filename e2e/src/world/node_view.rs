//! What a node says for itself: its ruleset, its health ports, its ports at all. Asked as an administrator on the
//! node, or as a cloud's health checker, would.

use super::World;
use anyhow::{Context, Result, bail};
use e2e_fabric::Netns;
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{IpAddr, SocketAddr},
    process::Command,
    time::Duration,
};

/// An HTTP answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    /// Status code.
    pub status: u16,
    /// Headers, names in lower case.
    pub headers: BTreeMap<String, String>,
    /// Body.
    pub body: String,
}

impl World {
    /// What a program prints when it runs in a node's namespace.
    pub fn on_node(&self, node: &str, program: &str, args: &[&str]) -> Result<String> {
        run_in(self.node(node)?.netns(), program, args)
    }

    /// The node's whole ruleset, by the oldest `nft` that users have.
    pub fn ruleset(&self, node: &str) -> Result<String> {
        self.on_node(node, "nft", &["list", "ruleset"])
    }

    /// Asks an HTTP port from the load balancer node, where clouds probe from.
    pub fn http_get(&self, to: SocketAddr, path: &str) -> Result<HttpAnswer> {
        http_get(self.lb_node().netns(), to, path)
    }

    /// Asks an HTTP port from a node, loopback included.
    pub fn http_get_on_node(&self, node: &str, to: SocketAddr, path: &str) -> Result<HttpAnswer> {
        http_get(self.node(node)?.netns(), to, path)
    }

    /// Ports of a range on an address that accept a connection from the client outside.
    pub fn open_ports(&self, address: IpAddr, range: std::ops::RangeInclusive<u16>) -> Vec<u16> {
        let netns = self.client.netns();
        let open = |port: &u16| {
            netns
                .tcp_connect((address, *port).into(), Duration::from_secs(1))
                .is_ok()
        };
        range.filter(open).collect()
    }
}

/// Asks an HTTP port from a namespace.
pub fn http_get(netns: &Netns, to: SocketAddr, path: &str) -> Result<HttpAnswer> {
    http(netns, to, &format!("GET {path}"), &[], "")
}

/// One request, as `GET /path`, with headers and a body.
pub(super) fn http(
    netns: &Netns,
    to: SocketAddr,
    request: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Result<HttpAnswer> {
    let mut stream = netns.tcp_connect(to, Duration::from_secs(3))?;
    stream.set_read_timeout(Some(Duration::from_secs(3)))?;
    let length = body.len().to_string();
    let length = (!body.is_empty()).then_some(("Content-Length", length.as_str()));
    let mut text =
        format!("{request} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n").into_bytes();
    for (name, value) in headers.iter().copied().chain(length) {
        write!(text, "{name}: {value}\r\n")?;
    }
    write!(text, "\r\n{body}")?;
    stream.write_all(&text)?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    parse_http(&text).with_context(|| format!("answer of {to}: {text:?}"))
}

fn run_in(netns: &Netns, program: &str, args: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(args);
    let output = netns
        .run(move || command.output())
        .with_context(|| format!("run {program}"))?;
    if !output.status.success() {
        bail!(
            "{program} {args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn parse_http(text: &str) -> Option<HttpAnswer> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let status = lines.next()?.split_whitespace().nth(1)?.parse().ok()?;
    let header = |line: &str| {
        line.split_once(": ")
            .map(|(k, v)| (k.to_ascii_lowercase(), v.to_owned()))
    };
    Some(HttpAnswer {
        status,
        headers: lines.filter_map(header).collect(),
        body: body.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_http_answer_is_taken_apart() {
        let answer =
            parse_http("HTTP/1.1 503 Service Unavailable\r\nX-A: b\r\n\r\n{}").expect("an answer");
        assert_eq!(
            (
                answer.status,
                answer.headers["x-a"].as_str(),
                answer.body.as_str()
            ),
            (503, "b", "{}")
        );
    }
}
