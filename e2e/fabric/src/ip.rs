//! `ip -batch -`: links, addresses, routes and rules, many in one process.
//!
//! iproute2 is part of the base system; one batch costs one process (about 3 ms) however many lines it has.

use std::fmt::Display;
use std::io::Write;
use std::net::IpAddr;
use std::process::{Command, Stdio};

use crate::netns::Netns;
use crate::{Error, Result, io};

/// Lines for one `ip -batch -`.
#[derive(Default)]
pub(crate) struct Batch {
    lines: String,
    v6: bool,
}

impl Batch {
    /// Lines about IPv6 addresses, routes and rules: a batch is of one family.
    pub(crate) fn v6() -> Self {
        Self {
            v6: true,
            ..Self::default()
        }
    }

    /// As [`Batch::v6`] or not, by the family of `address`.
    pub(crate) fn of(address: IpAddr) -> Self {
        Self {
            v6: address.is_ipv6(),
            ..Self::default()
        }
    }

    /// Adds one line, without the word `ip`.
    pub(crate) fn line(&mut self, line: impl Display) -> &mut Self {
        self.lines.push_str(&line.to_string());
        self.lines.push('\n');
        self
    }

    /// Waits until `interface` really sends. The end of a veth pair that was set up first begins to do so some time
    /// after its peer is up, and drops every packet until then; the kernel finishes that work before it answers a
    /// question about the link (6.8 and later).
    pub(crate) fn sends(&mut self, interface: &str) -> &mut Self {
        self.line(format!("link show dev {interface}"))
    }

    /// Runs the lines in `ns`; stops at the first that fails.
    pub(crate) fn run(&self, ns: &Netns) -> Result<()> {
        let lines = self.lines.clone();
        let name = ns.name().to_owned();
        let args: &[&str] = if self.v6 {
            &["-6", "-batch", "-"]
        } else {
            &["-batch", "-"]
        };
        ns.run(move || execute(&name, args, &lines))
    }

    /// Runs the lines where the harness is; only for `netns add` and `netns del`, which touch no interface.
    pub(crate) fn run_on_host(&self) -> Result<()> {
        execute("host", &["-batch", "-"], &self.lines)
    }

    /// As [`Batch::run_on_host`], but goes on after a line that fails, and tells of the failure in the end.
    pub(crate) fn run_on_host_through_errors(&self) -> Result<()> {
        execute("host", &["-force", "-batch", "-"], &self.lines)
    }
}

fn execute(namespace: &str, args: &[&str], lines: &str) -> Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    let mut child = Command::new("ip")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(io("start ip (iproute2)"))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin
            .write_all(lines.as_bytes())
            .map_err(io("write to ip"))?;
    }
    let out = child.wait_with_output().map_err(io("wait for ip"))?;
    if out.status.success() {
        return Ok(());
    }
    Err(Error::Ip {
        namespace: namespace.to_owned(),
        batch: lines.to_owned(),
        stderr: String::from_utf8_lossy(&out.stderr).trim().to_owned(),
    })
}
