//! Health of pods that are targets, as the agent answers for them (ZD-30, ZD-31): paths, what was found out of each, and
//! the server. A load balancer asks at the pod's address; the node's rules bring the probe here, and the connection still
//! tells for whom it was meant.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;

use http::{HeaderValue, StatusCode, header};
use hyper::service::service_fn;
use nix::sys::socket::{getsockopt, sockopt};
use onehop_core::id::{Frontend, Protocol};
use onehop_runtime::backoff::Backoff;
use onehop_runtime::clock::Clock;
use onehop_runtime::http::{bind, converse, serve_until};
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::board::Board;
use crate::health::doors::Doors;
use crate::http::{SERVER, Tables, everywhere, response};
use crate::metrics::Metrics;
use crate::preface::without_preface;

/// What a path begins with (K-28).
const ROOT: &str = "/t/";
/// Which port of which Service is asked for; the address of the target is the connection's (K-28).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HealthPath {
    /// Install whose load balancer asks.
    pub install: String,
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub service: String,
    /// Name of its port, empty for the only one.
    pub port: String,
}

impl HealthPath {
    /// Reads the path of a request.
    pub fn parse(path: &str) -> Option<Self> {
        let mut parts = path.strip_prefix(ROOT)?.split('/').map(str::to_owned);
        let found = Self {
            install: parts.next()?,
            namespace: parts.next()?,
            service: parts.next()?,
            port: parts.next()?,
        };
        parts.next().is_none().then_some(found)
    }
}

impl fmt::Display for HealthPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            install,
            namespace,
            service,
            port,
        } = self;
        write!(f, "{ROOT}{install}/{namespace}/{service}/{port}")
    }
}

/// What is answered for one target: at each of its paths, whether it counts as healthy.
pub type Answers = BTreeMap<HealthPath, bool>;
/// Protocol and port of a target.
type TargetPort = (Protocol, u16);

/// One answer, as it is kept over a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodAnswer {
    /// Who is asked for.
    pub path: HealthPath,
    /// Address of the target.
    pub address: IpAddr,
    /// Whether it counts as healthy.
    pub healthy: bool,
}

/// What is known of every target.
#[derive(Debug, Default)]
pub struct PodAnswers {
    /// By address and port of the target.
    known: HashMap<IpAddr, BTreeMap<TargetPort, Answers>>,
    /// As an earlier process kept them (ZD-18).
    kept: HashMap<(IpAddr, HealthPath), bool>,
}

impl PodAnswers {
    /// Whether a target counts as healthy; one that is not known does not.
    pub fn healthy(&self, address: IpAddr, path: &HealthPath) -> bool {
        let ports = self.known.get(&address).into_iter().flatten();
        let mut found = ports.filter_map(|(_, paths)| paths.get(path)).peekable();
        if found.peek().is_some() {
            return found.any(|healthy| *healthy);
        }
        let kept = self.kept.get(&(address, path.clone()));
        kept.copied().unwrap_or(false)
    }

    /// The target's answers are these now: never raises one.
    pub fn lower(&mut self, key: &Frontend, now: &Answers) {
        let common = |path: &HealthPath, healthy: bool| healthy && self.healthy(key.address, path);
        let lowered = now
            .iter()
            .map(|(path, healthy)| (path.clone(), common(path, *healthy)));
        let lowered = lowered.collect();
        self.set(key, lowered);
    }

    /// What was compiled for the target is in the kernel.
    pub fn raise(&mut self, key: &Frontend, answers: Answers) {
        self.set(key, answers);
    }

    /// Gives these until something is known.
    pub fn adopt(&mut self, kept: &[PodAnswer]) {
        let kept = kept.iter();
        self.kept = kept
            .map(|answer| ((answer.address, answer.path.clone()), answer.healthy))
            .collect();
    }

    /// Everything is known: what was kept says nothing any more.
    pub fn forget_kept(&mut self) {
        self.kept.clear();
    }

    /// All of them.
    pub fn all(&self) -> Vec<PodAnswer> {
        let mut all = Vec::new();
        for (address, ports) in &self.known {
            for (path, healthy) in ports.values().flatten() {
                all.push(PodAnswer {
                    path: path.clone(),
                    address: *address,
                    healthy: *healthy,
                });
            }
        }
        // The same file for the same answers.
        all.sort_by(|a, b| (a.address, &a.path).cmp(&(b.address, &b.path)));
        all
    }

    fn set(&mut self, key: &Frontend, answers: Answers) {
        let ports = self.known.entry(key.address).or_default();
        if answers.is_empty() {
            ports.remove(&(key.protocol, key.port));
        } else {
            ports.insert((key.protocol, key.port), answers);
        }
        if ports.is_empty() {
            self.known.remove(&key.address);
        }
    }
}

/// The port on which the agent answers for pods.
pub struct PodPort {
    /// The port.
    pub port: u16,
    /// Where answers come from.
    pub board: Arc<Board>,
    /// Counts answers.
    pub metrics: Arc<Metrics>,
    /// Clock.
    pub clock: Clock,
    /// Pauses between tries to bind.
    pub backoff: Backoff,
    /// It opens once there are answers to give: before that none is better than a wrong one (ZD-37).
    pub answers: watch::Receiver<Tables>,
    /// Closes it once what was accepted is answered.
    pub closing: CancellationToken,
    /// Where it is counted.
    pub doors: Doors,
}

impl PodPort {
    /// Binds, trying again for as long as it takes, and serves until it is dropped.
    pub async fn run(mut self, failed: impl FnMut(&io::Error)) {
        let ours = |tables: &Tables| *tables == Tables::Ours;
        let any = everywhere(SocketAddr::from(([0, 0, 0, 0], self.port)));
        let bound = async {
            self.answers.wait_for(ours).await.ok().map(drop)?;
            Some(bind(any, &self.clock, self.backoff, failed).await)
        };
        let listener = tokio::select! {
            bound = bound => bound,
            () = self.closing.cancelled() => None,
        };
        let Some(listener) = listener else { return };
        let _open = self.doors.open();
        let (board, metrics, clock) = (self.board, self.metrics, self.clock);
        let talk = move |stream| talk(stream, board.clone(), metrics.clone(), clock);
        serve_until(listener, clock, talk, self.closing.cancelled()).await;
    }
}

async fn talk(stream: TcpStream, board: Arc<Board>, metrics: Arc<Metrics>, clock: Clock) {
    let Ok(asked) = asked_of(&stream) else {
        return;
    };
    let Some(stream) = without_preface(stream, clock).await else {
        return;
    };
    let answer = service_fn(move |request: http::Request<hyper::body::Incoming>| {
        let path = HealthPath::parse(request.uri().path());
        let healthy = path.is_some_and(|path| board.pod(asked, &path));
        let (status, text) = if healthy {
            (StatusCode::OK, "ok\n")
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, "not ready\n")
        };
        metrics.pod_health(status);
        let mut response = response(status, "text/plain", text);
        let name = HeaderValue::from_static(SERVER);
        response.headers_mut().insert(header::SERVER, name);
        async move { Ok::<_, Infallible>(response) }
    });
    converse(stream, answer).await;
}

/// The address that the client had asked for, before the node's rules brought the connection here.
fn asked_of(stream: &TcpStream) -> io::Result<IpAddr> {
    let local = stream.local_addr()?.ip().to_canonical();
    let fd = stream.as_fd();
    Ok(match local {
        IpAddr::V4(_) => getsockopt(&fd, sockopt::OriginalDst).map_or(local, |to| {
            IpAddr::from(u32::from_be(to.sin_addr.s_addr).to_be_bytes())
        }),
        IpAddr::V6(_) => getsockopt(&fd, sockopt::Ip6tOriginalDst)
            .map_or(local, |to| IpAddr::from(to.sin6_addr.s6_addr)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(service: &str) -> HealthPath {
        HealthPath::parse(&format!("/t/local/default/{service}/http")).expect("a path")
    }

    fn key(last: u8, port: u16) -> Frontend {
        Frontend {
            address: [10, 244, 1, last].into(),
            protocol: Protocol::Tcp,
            port,
        }
    }

    #[test]
    fn k28_a_path_names_install_service_and_port() {
        assert_eq!(path("web").to_string(), "/t/local/default/web/http");
        let unnamed = HealthPath::parse("/t/local/default/web/").expect("a path");
        assert_eq!(unnamed.port, "");
        for wrong in ["/", "/healthz", "/t/local/default/web", "/t/a/b/c/d/e"] {
            assert_eq!(HealthPath::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn i3_zd31_an_answer_rises_with_the_commit_only_and_an_unknown_one_is_no() {
        let (mut answers, web, one) = (PodAnswers::default(), path("web"), key(1, 80));
        let says = |healthy| BTreeMap::from([(path("web"), healthy)]);
        assert!(!answers.healthy(one.address, &web), "ZD-31");
        answers.lower(&one, &says(true));
        assert!(!answers.healthy(one.address, &web), "I3");
        answers.raise(&one, says(true));
        assert!(answers.healthy(one.address, &web));
        assert!(!answers.healthy(key(2, 80).address, &web), "another target");
        assert!(
            !answers.healthy(one.address, &path("api")),
            "another Service"
        );
        answers.lower(&one, &says(false));
        assert!(!answers.healthy(one.address, &web), "at once");
        answers.raise(&one, says(true));
        answers.lower(&one, &BTreeMap::new());
        assert!(!answers.healthy(one.address, &web), "it is no target");
    }

    #[test]
    fn zd18_what_was_kept_is_answered_until_something_is_known() {
        let (mut answers, web) = (PodAnswers::default(), path("web"));
        let kept = [1, 2].map(|last| PodAnswer {
            path: path("web"),
            address: key(last, 80).address,
            healthy: true,
        });
        answers.adopt(&kept);
        answers.lower(&key(1, 80), &BTreeMap::from([(path("web"), true)]));
        assert!(answers.healthy(key(1, 80).address, &web), "still so");
        answers.lower(&key(1, 80), &BTreeMap::from([(path("web"), false)]));
        assert!(!answers.healthy(key(1, 80).address, &web), "known better");
        assert!(answers.healthy(key(2, 80).address, &web), "ZD-18");
        answers.forget_kept();
        assert!(!answers.healthy(key(2, 80).address, &web));
    }
}
