//! What scenarios of the Service proxy alone need: Services with hand-made slices, and outcomes to wait for.
//!
//! The pods that ask are servers too: a slice may name any of `web` (node a), `ask-a` and `ask-b`.

use crate::support::{Place, PodOnA};
use anyhow::{Context, Result, ensure};
use e2e_fabric::Netns;
use k8s_openapi::api::core::v1::ServicePort;
use onehop_e2e::{
    traffic::{Answer, Failure, FailureKind, Transport},
    world::{POD_PORT, ServiceManifest, eventually},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// How long a change may take to reach the packets.
pub(crate) const WITHIN: Duration = Duration::from_mins(1);

/// What a client is meant to get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want<'a> {
    /// An answer of one of these pods.
    From(&'a [&'a str]),
    /// A refusal at once.
    Refused,
    /// Nothing at all.
    Silence,
}

/// What became of a request, with the address that the pod saw.
pub(crate) type Outcome = Result<(Answer, SocketAddr), Failure>;

impl Want<'_> {
    fn met(self, got: &Outcome) -> bool {
        match (self, got) {
            (Want::From(pods), Ok((answer, _))) => pods.contains(&answer.pod.as_str()),
            (Want::Refused, Err(f)) => f.kind == FailureKind::Refused,
            (Want::Silence, Err(f)) => matches!(
                f.kind,
                FailureKind::TimeoutConnect | FailureKind::TimeoutResponse
            ),
            _ => false,
        }
    }
}

/// A Service as the API server has it.
#[derive(Clone, Debug)]
pub(crate) struct Exposed {
    /// Its ClusterIP.
    pub(crate) cluster: IpAddr,
    ports: Vec<ServicePort>,
}

impl Exposed {
    /// A port of the ClusterIP.
    pub(crate) fn cluster(&self, port: u16) -> SocketAddr {
        (self.cluster, port).into()
    }

    /// The node port of the port with this name.
    pub(crate) fn node_port(&self, name: &str) -> Result<u16> {
        let ports = self.ports.iter();
        let found = ports
            .filter(|p| p.name.as_deref() == Some(name))
            .find_map(|p| p.node_port);
        Ok(u16::try_from(
            found.with_context(|| format!("no node port {name}"))?,
        )?)
    }
}

/// A Service without a selector, TCP 80 and UDP 80.
pub(crate) fn selectorless(name: &str) -> ServiceManifest {
    ServiceManifest::cluster_ip(name, "nobody").with("selector", json!(null))
}

/// The ports of a slice that go with [`selectorless`].
pub(crate) fn pod_ports() -> Value {
    json!([
        {"name": "tcp", "protocol": "TCP", "port": POD_PORT},
        {"name": "udp", "protocol": "UDP", "port": POD_PORT},
    ])
}

impl PodOnA {
    /// Applies a Service and reads it back.
    pub(crate) async fn expose(&self, manifest: ServiceManifest) -> Result<Exposed> {
        let service = self.objects.apply(manifest.json()).await?;
        let name = service.metadata.name.context("a name")?;
        self.exposed(&name).await
    }

    /// A Service as the API server has it now.
    pub(crate) async fn exposed(&self, name: &str) -> Result<Exposed> {
        let spec = self.objects.service(name).await?.spec.context("a spec")?;
        Ok(Exposed {
            cluster: spec.cluster_ip.context("a ClusterIP")?.parse()?,
            ports: spec.ports.unwrap_or_default(),
        })
    }

    /// A ready endpoint of a slice: this pod, on its node.
    pub(crate) async fn endpoint(&self, pod: &str) -> Result<Value> {
        let (_, address) = self.pod_place(pod).await?;
        let address = self.cluster.family.of(address);
        let node = if pod == "ask-b" { "b" } else { "a" };
        Ok(json!({
            "addresses": [address.to_string()], "nodeName": node,
            "conditions": {"ready": true, "serving": true, "terminating": false},
        }))
    }

    /// Applies a slice of a Service.
    pub(crate) async fn slice(
        &self,
        name: &str,
        service: &str,
        endpoints: Vec<Value>,
        ports: Value,
    ) -> Result<()> {
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": name, "namespace": "default",
                "labels": {"kubernetes.io/service-name": service},
            },
            "addressType": self.cluster.family.word(),
            "endpoints": endpoints, "ports": ports,
        });
        self.objects.apply(slice).await.map(drop)
    }

    /// A slice with these pods, all ready.
    pub(crate) async fn serve_by(&self, service: &str, pods: &[&str]) -> Result<()> {
        let mut endpoints = Vec::new();
        for pod in pods {
            endpoints.push(self.endpoint(pod).await?);
        }
        self.slice(service, service, endpoints, pod_ports()).await
    }

    /// Waits until a client gets this.
    pub(crate) async fn becomes(
        &self,
        place: Place,
        transport: Transport,
        to: SocketAddr,
        want: Want<'_>,
    ) -> Result<()> {
        self.outcome(place, transport, to, want).await.map(drop)
    }

    /// Waits until one of these pods answers: its answer, and the client's own address.
    pub(crate) async fn answer_of(
        &self,
        place: Place,
        transport: Transport,
        to: SocketAddr,
        pods: &[&str],
    ) -> Result<(Answer, SocketAddr)> {
        let got = self.outcome(place, transport, to, Want::From(pods)).await?;
        got.map_err(|f| anyhow::anyhow!("{to} from {place:?}: {f:?}"))
    }

    async fn outcome(
        &self,
        place: Place,
        transport: Transport,
        to: SocketAddr,
        want: Want<'_>,
    ) -> Result<Outcome> {
        let what = format!("{to} over {transport:?} from {place:?}: {want:?}");
        eventually(&self.clock, &what, WITHIN, async || {
            let got = self.ask_from(place, transport, to).await;
            if want.met(&got) {
                Ok(got)
            } else {
                Err(format!("{got:?}"))
            }
        })
        .await
    }

    /// Asks once; a client has to get this now.
    pub(crate) async fn gets(
        &self,
        place: Place,
        transport: Transport,
        to: SocketAddr,
        want: Want<'_>,
    ) -> Result<()> {
        let got = self.ask_from(place, transport, to).await;
        ensure!(
            want.met(&got),
            "{to} over {transport:?} from {place:?}: wanted {want:?}, got {got:?}"
        );
        Ok(())
    }

    /// The pods that answer so many requests.
    pub(crate) async fn answering(
        &self,
        place: Place,
        to: SocketAddr,
        times: usize,
    ) -> Result<BTreeSet<String>> {
        let mut pods = BTreeSet::new();
        for _ in 0..times {
            let got = self.ask_from(place, Transport::Tcp, to).await;
            let (answer, _) = got.map_err(|f| anyhow::anyhow!("{to} from {place:?}: {f:?}"))?;
            pods.insert(answer.pod);
        }
        Ok(pods)
    }

    /// Waits until exactly these pods answer: each is seen, and nobody else for some requests.
    pub(crate) async fn served_by(
        &self,
        place: Place,
        to: SocketAddr,
        pods: &[&str],
    ) -> Result<()> {
        let wanted: BTreeSet<String> = pods.iter().map(|&pod| pod.to_owned()).collect();
        let what = format!("{to} from {place:?} is served by {pods:?}");
        eventually(&self.clock, &what, WITHIN, async || {
            let seen = self.answering(place, to, 8 * pods.len().max(1)).await;
            match seen {
                Ok(seen) if seen == wanted => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }

    /// A socket of a place that keeps its port: one UDP flow.
    pub(crate) fn flow(&self, place: Place, to: SocketAddr) -> Result<UdpFlow> {
        let (netns, _) = self.place(place);
        UdpFlow::open(&netns, to)
    }
}

/// A UDP flow: requests from one port to one frontend.
pub(crate) struct UdpFlow {
    socket: tokio::net::UdpSocket,
}

impl UdpFlow {
    fn open(netns: &Netns, to: SocketAddr) -> Result<Self> {
        let any: IpAddr = if to.is_ipv4() {
            std::net::Ipv4Addr::UNSPECIFIED.into()
        } else {
            std::net::Ipv6Addr::UNSPECIFIED.into()
        };
        let socket = netns.udp_socket((any, 0).into())?;
        socket.set_nonblocking(true)?;
        socket.connect(to)?;
        Ok(Self {
            socket: tokio::net::UdpSocket::from_std(socket)?,
        })
    }

    /// One request; the answer, or what came instead.
    pub(crate) async fn ask(&self) -> Result<Answer, String> {
        // What is still there belongs to an earlier request.
        while self.socket.try_recv(&mut [0; 2048]).is_ok() {}
        let talk = async {
            self.socket.send(b"who\n").await?;
            let mut buffer = vec![0; 2048];
            let length = self.socket.recv(&mut buffer).await?;
            buffer.truncate(length);
            Ok::<_, std::io::Error>(buffer)
        };
        match tokio::time::timeout(Duration::from_millis(700), talk).await {
            Ok(Ok(line)) => {
                Answer::parse(&line).ok_or_else(|| String::from_utf8_lossy(&line).into())
            }
            Ok(Err(error)) => Err(format!("{:?}", error.kind())),
            Err(_) => Err("silence".to_owned()),
        }
    }

    /// Goes on asking until this pod answers.
    pub(crate) async fn until(&self, world: &PodOnA, pod: &str) -> Result<Answer> {
        let what = format!("the flow is answered by {pod}");
        eventually(&world.clock, &what, WITHIN, async || {
            match self.ask().await {
                Ok(answer) if answer.pod == pod => Ok(answer),
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }

    /// Goes on asking until the answer is this failure.
    pub(crate) async fn until_not(&self, world: &PodOnA, failure: &str) -> Result<()> {
        let what = format!("the flow ends: {failure}");
        eventually(&world.clock, &what, WITHIN, async || {
            match self.ask().await {
                Err(why) if why == failure => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }
}
