//! Worlds and places that the packet tests share.

use crate::cells::Frontend;
use anyhow::{Context, Result};
use e2e_fabric::Netns;
use onehop_e2e::{
    traffic::{Answer, Failure, FailureKind, SocketSource, Transport, ask_tcp, ask_udp},
    world::{Cluster, OnTerm, ServiceManifest, World, WorldConfig, first_answer, pod, sockets_of},
};
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    ops::{Deref, DerefMut},
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// How long a pod may take to be ready.
pub(crate) const READY_WITHIN: Duration = Duration::from_secs(30);

/// Where a client sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Outside,
    PodOnA,
    PodOnB,
    NodeA,
    NodeB,
}

/// What a client gets, in the words of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Answered; the server saw the client's own address.
    Client,
    /// Answered; the server saw the address of node a.
    NodeAAddress,
    /// Answered; the server saw the address of node b.
    NodeBAddress,
    /// Answered; the server saw the address of node b's interface for pods.
    NodeBPodInterface,
    /// Answered; the server saw the address of whichever node the load balancer chose.
    LbChosenNode,
    /// Nothing came back at all.
    Dropped,
}

impl Seen {
    /// Whether an outcome is what this says.
    pub(crate) fn matches(
        self,
        outcome: &Result<(Answer, SocketAddr), Failure>,
        place: Place,
        world: &PodOnA,
    ) -> bool {
        match outcome {
            Ok((answer, _)) => self.sources(place, world).contains(&answer.peer.ip()),
            Err(failure) => {
                self == Self::Dropped
                    && matches!(
                        failure.kind,
                        FailureKind::TimeoutConnect | FailureKind::TimeoutResponse
                    )
            }
        }
    }

    fn sources(self, place: Place, world: &PodOnA) -> Vec<IpAddr> {
        let (a, b) = (world.place(Place::NodeA).1, world.place(Place::NodeB).1);
        match self {
            Self::Client => vec![world.place(place).1],
            Self::NodeAAddress => vec![a],
            Self::NodeBAddress => vec![b],
            Self::NodeBPodInterface => {
                let address = world.kubelets[1].node().secondary_address();
                vec![world.cluster.family.of(address)]
            }
            Self::LbChosenNode => vec![a, b],
            Self::Dropped => vec![],
        }
    }
}

/// A world with one serving pod `web`, on node `a`, and a pod to ask from on each node.
pub(crate) struct PodOnA {
    world: World,
    clients: [(Netns, Ipv4Addr); 2],
    // One source a place: no client port is used twice.
    sockets: Mutex<BTreeMap<Place, SocketSource>>,
}

impl Deref for PodOnA {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl DerefMut for PodOnA {
    fn deref_mut(&mut self) -> &mut World {
        &mut self.world
    }
}

impl PodOnA {
    /// Adds another pod that serves, `web-b` on node `b`.
    pub(crate) async fn add_pod_on_b(&self, on_term: OnTerm) -> Result<()> {
        let objects = &self.world.objects;
        objects.create(pod("web-b", "web", "b", on_term)).await?;
        let ready = objects.pod_ready("default", "web-b", READY_WITHIN);
        ready.await.map(drop)
    }
}

/// Makes the world.
pub(crate) async fn world_with_pod_on_a(on: Cluster) -> Result<PodOnA> {
    world_with(on, Vec::new()).await
}

/// The same with these flags of the agents.
pub(crate) async fn world_with(on: Cluster, agent_flags: Vec<&'static str>) -> Result<PodOnA> {
    world_of(WorldConfig {
        cluster: on,
        agent_flags,
        ..WorldConfig::default()
    })
    .await
}

/// The same in a world of one's own choice, with at least the nodes `a` and `b`.
pub(crate) async fn world_of(config: WorldConfig) -> Result<PodOnA> {
    let world = World::start(config).await?;
    let pods = [
        ("web", "web", "a"),
        ("ask-a", "ask", "a"),
        ("ask-b", "ask", "b"),
    ];
    for (name, app, node) in pods {
        world
            .objects
            .create(pod(name, app, node, OnTerm::Exit))
            .await?;
    }
    for (name, ..) in pods {
        world
            .objects
            .pod_ready("default", name, READY_WITHIN)
            .await?;
    }
    let clients = [
        world.pod_place("ask-a").await?,
        world.pod_place("ask-b").await?,
    ];
    Ok(PodOnA {
        world,
        clients,
        sockets: Mutex::default(),
    })
}

/// A Service that is served, and its addresses.
pub(crate) struct Served {
    cluster: IpAddr,
    lb: IpAddr,
    node_ports: [(Transport, u16); 2],
    nodes: [IpAddr; 2],
}

impl Served {
    /// The ClusterIP's frontend.
    pub(crate) fn cluster_ip(&self) -> SocketAddr {
        (self.cluster, 80).into()
    }

    /// The load balancer's frontend.
    pub(crate) fn lb(&self) -> SocketAddr {
        (self.lb, 80).into()
    }

    /// The nodes' addresses.
    pub(crate) fn nodes(&self) -> [IpAddr; 2] {
        self.nodes
    }

    /// Where a frontend is.
    pub(crate) fn address(&self, frontend: Frontend, transport: Transport) -> SocketAddr {
        let node_port = || {
            self.node_ports
                .iter()
                .find(|(t, _)| *t == transport)
                .map_or(0, |(_, port)| *port)
        };
        match frontend {
            Frontend::ClusterIp => (self.cluster, 80).into(),
            Frontend::NodePortA => (self.nodes[0], node_port()).into(),
            Frontend::NodePortB => (self.nodes[1], node_port()).into(),
            Frontend::LoadBalancer => (self.lb, 80).into(),
        }
    }
}

impl PodOnA {
    /// Applies a LoadBalancer Service and waits until a client outside gets an answer through it and every node has
    /// rules for its published address.
    pub(crate) async fn serve(&self, service: ServiceManifest) -> Result<Served> {
        let service = self.objects.apply(service.json()).await?;
        let name = service.metadata.name.context("a name")?;
        let lb = self.lb_address(&name).await?;
        first_answer(self, (lb, 80).into()).await?;
        self.captured(lb).await?;
        let spec = self.objects.service(&name).await?.spec.context("a spec")?;
        let port = |protocol: &str| {
            let ports = spec.ports.iter().flatten();
            let of = ports
                .filter(|p| p.protocol.as_deref() == Some(protocol))
                .find_map(|p| p.node_port);
            of.and_then(|p| u16::try_from(p).ok()).unwrap_or(0)
        };
        Ok(Served {
            cluster: spec.cluster_ip.clone().context("a ClusterIP")?.parse()?,
            lb,
            node_ports: [(Transport::Tcp, port("TCP")), (Transport::Udp, port("UDP"))],
            nodes: [self.place(Place::NodeA).1, self.place(Place::NodeB).1],
        })
    }

    /// Namespace of a place, and its address in the family of the world's Services.
    pub(crate) fn place(&self, place: Place) -> (Netns, IpAddr) {
        let (netns, address) = self.place4(place);
        (netns, self.cluster.family.of(address))
    }

    fn place4(&self, place: Place) -> (Netns, Ipv4Addr) {
        let node = |index: usize| {
            let node = self.kubelets[index].node();
            (node.netns().clone(), node.address())
        };
        match place {
            Place::Outside => (self.client.netns().clone(), self.client.address()),
            Place::PodOnA => self.clients[0].clone(),
            Place::PodOnB => self.clients[1].clone(),
            Place::NodeA => node(0),
            Place::NodeB => node(1),
        }
    }

    /// One request from a place.
    pub(crate) async fn ask_from(
        &self,
        place: Place,
        transport: Transport,
        to: SocketAddr,
    ) -> Result<(Answer, SocketAddr), Failure> {
        let sockets = self.sockets_of(place);
        match transport {
            Transport::Tcp => ask_tcp(&sockets, to).await,
            Transport::Udp => ask_udp(&sockets, to).await,
        }
    }

    /// Sockets of a place: one source, no port twice.
    pub(crate) fn sockets_of(&self, place: Place) -> SocketSource {
        if place == Place::Outside {
            // The world has asked from there already.
            return self.world.sockets.clone();
        }
        let mut known = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        // No bound address: the place's own routing chooses it, as any client's would.
        let make = || sockets_of(&self.place(place).0, Ipv4Addr::UNSPECIFIED);
        known.entry(place).or_insert_with(make).clone()
    }

    /// Ends the world in which a node was cut off: what it sent to the API server meanwhile went nowhere.
    pub(crate) async fn end_with_a_node_cut_off(self) -> Result<()> {
        let lost = |drop: &e2e_fabric::Drop| drop.destination == e2e_fabric::Fabric::MANAGEMENT;
        self.world.end_with_drops(lost).await
    }

    /// Ends the world, in which packets with a source of `foreign` were dropped by the fabric.
    pub(crate) async fn end_with_drops_of(self, foreign: IpAddr) -> Result<()> {
        self.world.end_with_drops(|d| d.source == foreign).await
    }

    /// Ends the world.
    pub(crate) async fn end(self) -> Result<()> {
        self.world.end().await
    }
}
