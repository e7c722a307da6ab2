//! Readiness probes: what is asked, how answers add up, and the asking itself, from the node's namespace.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e_fabric::Netns;
use onehop_runtime::clock::Clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// What a probe asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProbeAction {
    Http {
        host: Option<String>,
        port: u16,
        path: String,
        headers: Vec<(String, String)>,
    },
    Tcp {
        host: Option<String>,
        port: u16,
    },
    Exec {
        command: Vec<String>,
    },
}

/// A probe with its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProbePlan {
    pub(crate) action: ProbeAction,
    pub(crate) delay: Duration,
    pub(crate) period: Duration,
    pub(crate) timeout: Duration,
    pub(crate) success: u32,
    pub(crate) failure: u32,
}

/// Results in a row, turned into a verdict.
#[derive(Clone, Debug, Default)]
pub(crate) struct Verdict {
    ready: bool,
    // How many results in a row were of the last kind.
    last: Option<bool>,
    row: u32,
}

impl Verdict {
    /// Takes one result. `Some`: the verdict changed to this.
    pub(crate) fn take(&mut self, good: bool, plan: &ProbePlan) -> Option<bool> {
        self.row = if self.last == Some(good) {
            self.row.saturating_add(1)
        } else {
            1
        };
        self.last = Some(good);
        let needed = if good { plan.success } else { plan.failure };
        if self.row < needed || self.ready == good {
            return None;
        }
        self.ready = good;
        Some(good)
    }
}

/// Where probes are sent from and to.
#[derive(Clone)]
pub(crate) struct ProbeTarget {
    /// The node's namespace: HTTP and TCP probes start here.
    pub(crate) node: Netns,
    /// The pod's address.
    pub(crate) address: IpAddr,
    pub(crate) clock: Clock,
}

impl ProbeTarget {
    /// The answer, if it comes within the probe's time.
    pub(crate) async fn in_time(
        &self,
        plan: &ProbePlan,
        answer: impl Future<Output = bool>,
    ) -> bool {
        tokio::select! {
            good = answer => good,
            () = self.clock.sleep(plan.timeout) => false,
        }
    }

    /// Asks once over the network; commands are the container's to run.
    pub(crate) async fn ask(&self, plan: &ProbePlan) -> bool {
        let answer = async {
            match &plan.action {
                ProbeAction::Tcp { host, port } => {
                    self.connect(host.as_deref(), *port).await.is_some()
                }
                ProbeAction::Http {
                    host,
                    port,
                    path,
                    headers,
                } => self
                    .http(host.as_deref(), *port, path, headers)
                    .await
                    .is_some_and(|s| (200..400).contains(&s)),
                ProbeAction::Exec { .. } => false,
            }
        };
        self.in_time(plan, answer).await
    }

    async fn connect(&self, host: Option<&str>, port: u16) -> Option<tokio::net::TcpStream> {
        let address = host.map_or(Some(self.address), |h| h.parse().ok())?;
        self.node
            .tcp_stream(SocketAddr::new(address, port))
            .await
            .ok()
    }

    async fn http(
        &self,
        host: Option<&str>,
        port: u16,
        path: &str,
        headers: &[(String, String)],
    ) -> Option<u16> {
        let mut stream = self.connect(host, port).await?;
        let mut request =
            format!("GET {path} HTTP/1.1\r\nConnection: close\r\nUser-Agent: kube-probe\r\n");
        if !headers
            .iter()
            .any(|(name, _)| name.eq_ignore_ascii_case("host"))
        {
            let _ = write!(request, "Host: {}:{port}\r\n", self.address);
        }
        for (name, value) in headers {
            let _ = write!(request, "{name}: {value}\r\n");
        }
        request.push_str("\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.ok()?;
        // "HTTP/1.1 200"
        std::str::from_utf8(&head)
            .ok()?
            .split_once(' ')?
            .1
            .parse()
            .ok()
    }
}

/// Runs a command to its end; `true` if it succeeded.
pub(crate) async fn exec(ns: &Netns, mut command: Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    match ns.spawn(command) {
        Ok(mut child) => child.wait().await.is_ok_and(|status| status.success()),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_needs_its_threshold_of_results_in_a_row() {
        let second = Duration::from_secs(1);
        let plan = ProbePlan {
            action: ProbeAction::Tcp {
                host: None,
                port: 80,
            },
            delay: Duration::ZERO,
            period: second,
            timeout: second,
            success: 2,
            failure: 3,
        };
        let mut verdict = Verdict::default();
        let results = [
            true, false, true, true, false, false, true, false, false, false, false,
        ];
        let changes: Vec<_> = results
            .into_iter()
            .map(|r| verdict.take(r, &plan))
            .collect();
        let mut expected = vec![None; 11];
        expected[3] = Some(true);
        expected[9] = Some(false);
        assert_eq!(changes, expected);
    }
}
