//! Load balancer nodes in two zones: which zone's targets get a flow, whom its server sees, and what becomes of the
//! flows of a zone that has no target (FC-29, FC-31, FC-61). The load balancer is made by hand over the cloud's own
//! API, as any user of that cloud would, with a frontend address in each zone; nodes `a` and `b` stand in one each.

use anyhow::{Context, Result};
use e2e_cloud::engine::{Edit, Mode, Profile};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use onehop_e2e::{
    traffic::{Answer, Failure, FailureKind, Transport, ask_tcp, ask_udp},
    world::{
        Cluster, OnTerm, POD_PORT, ServiceManifest, World, WorldConfig, eventually, first_answer,
        pod,
    },
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use crate::{lab::WITHIN, support::READY_WITHIN};

const ZONES: [&str; 2] = ["zone-a", "zone-b"];
const PODS: [&str; 2] = ["web-a", "web-b"];
/// Addresses of the load balancer, the n-th in the n-th zone.
const FRONTS: [Ipv4Addr; 2] = [
    Ipv4Addr::new(198, 51, 100, 200),
    Ipv4Addr::new(198, 51, 100, 201),
];
/// Enough that of two targets each is chosen but for once in many million runs.
const FLOWS: usize = 24;

/// Two zones with a node and a pod `web-…` each, and a load balancer over them.
struct Zones {
    world: World,
    lb: String,
    // TCP and UDP.
    groups: [String; 2],
}

/// Knobs of the load balancer.
#[derive(Clone, Copy, Debug)]
struct Knobs {
    cross_zone: bool,
    preserve_client_ip: bool,
}

const NEAR: Knobs = Knobs {
    cross_zone: false,
    preserve_client_ip: true,
};
const FAR: Knobs = Knobs {
    cross_zone: true,
    preserve_client_ip: true,
};

async fn two_zones(on: Cluster) -> Result<World> {
    two_zones_of(on, Profile::local()).await
}

async fn two_zones_of(on: Cluster, profile: Profile) -> Result<World> {
    let config = WorldConfig {
        cluster: on,
        zones: ZONES.to_vec(),
        profile: Some(profile),
        ..WorldConfig::default()
    };
    let world = World::start(config).await?;
    for (name, node) in PODS.iter().zip(["a", "b"]) {
        world
            .objects
            .create(pod(name, "web", node, OnTerm::Exit))
            .await?;
    }
    for name in PODS {
        world
            .objects
            .pod_ready("default", name, READY_WITHIN)
            .await?;
    }
    Ok(world)
}

impl Zones {
    /// A load balancer whose targets are `at`, the n-th in the n-th zone; `tcp` and `udp` are their ports.
    async fn start(
        world: World,
        mode: &str,
        at: [Ipv4Addr; 2],
        (tcp, udp): (u16, u16),
    ) -> Result<Self> {
        let lb = body("by-hand", NEAR);
        let lb = text(&world.cloud_call("POST /v1/loadbalancers", &lb)?, "id")?;
        let mut groups = Vec::new();
        for (protocol, port) in [("TCP", tcp), ("UDP", udp)] {
            let mut group = json!({"name": protocol, "protocol": protocol, "mode": mode});
            if mode == "vip" && protocol == "TCP" {
                group["health"] = json!({"protocol": "HTTP", "port": world.cluster.proxy.health_port(), "path": "/healthz"});
            }
            let group = text(&world.cloud_call("POST /v1/groups", &group)?, "id")?;
            let listener = format!("PUT /v1/loadbalancers/{lb}/listeners/80-{protocol}");
            world.cloud_call(&listener, &json!({"group": group}))?;
            let target = |(address, zone)| json!({"address": address, "port": port, "zone": zone});
            let targets: Vec<Value> = at.iter().zip(ZONES).map(target).collect();
            let register = format!("POST /v1/groups/{group}/targets");
            world.cloud_call(&register, &json!({"targets": targets}))?;
            groups.push(group);
        }
        let zones = Self {
            world,
            lb,
            groups: groups
                .try_into()
                .map_err(|_| anyhow::anyhow!("two groups"))?,
        };
        for group in &zones.groups {
            zones.states(group, ["healthy", "healthy"]).await?;
        }
        zones.world.cloud_settled().await;
        Ok(zones)
    }

    /// Waits until the targets of both zones are in these states.
    async fn states(&self, group: &str, wanted: [&str; 2]) -> Result<()> {
        let what = format!("targets of {group} are {wanted:?}");
        eventually(&self.world.clock, &what, WITHIN, async || {
            let get = format!("GET /v1/groups/{group}/targets");
            let answer = self.world.cloud_call(&get, &Value::Null);
            let answer = answer.map_err(|e| e.to_string())?;
            let state = |zone: &str| {
                let targets = answer["targets"].as_array().into_iter().flatten();
                let mut of = targets.filter(|t| t["zone"] == zone);
                of.next().and_then(|t| t["state"].as_str()).unwrap_or("")
            };
            if ZONES.map(state) == wanted {
                Ok(())
            } else {
                Err(answer.to_string())
            }
        })
        .await
    }

    async fn turn(&self, knobs: Knobs) -> Result<()> {
        let put = format!("PUT /v1/loadbalancers/{}", self.lb);
        self.world.cloud_call(&put, &body("by-hand", knobs))?;
        self.world.cloud_settled().await;
        Ok(())
    }

    async fn ask(
        &self,
        zone: usize,
        transport: Transport,
    ) -> Result<(Answer, SocketAddr), Failure> {
        let to = SocketAddr::from((FRONTS[zone], 80));
        match transport {
            Transport::Tcp => ask_tcp(&self.world.sockets, to).await,
            Transport::Udp => ask_udp(&self.world.sockets, to).await,
        }
    }

    /// Who answered new flows to the address of a zone, and whom they saw.
    async fn flows(
        &self,
        zone: usize,
        transport: Transport,
    ) -> Result<(BTreeSet<String>, BTreeSet<IpAddr>)> {
        let (mut pods, mut peers) = (BTreeSet::new(), BTreeSet::new());
        for _ in 0..FLOWS {
            let (answer, _) = self
                .ask(zone, transport)
                .await
                .map_err(|f| anyhow::anyhow!("{} over {transport:?}: {f:?}", ZONES[zone]))?;
            pods.insert(answer.pod);
            peers.insert(answer.peer.ip());
        }
        Ok((pods, peers))
    }

    /// New flows to the address of each zone reach what `pods` says, and their servers see what `peers` says.
    async fn expect(&self, what: &str, pods: [&[&str]; 2], peers: [&[IpAddr]; 2]) -> Result<()> {
        for zone in 0..ZONES.len() {
            for transport in [Transport::Tcp, Transport::Udp] {
                let (who, whom) = self.flows(zone, transport).await.context(what.to_owned())?;
                let place = format!("{what}: {} over {transport:?}", ZONES[zone]);
                let wanted: BTreeSet<String> = pods[zone].iter().map(ToString::to_string).collect();
                assert_eq!(who, wanted, "{place}");
                assert_eq!(whom, peers[zone].iter().copied().collect(), "{place}");
            }
        }
        Ok(())
    }

    /// Nothing comes back from the address of a zone.
    async fn silent(&self, what: &str, zone: usize) {
        for transport in [Transport::Tcp, Transport::Udp] {
            let asked = self.ask(zone, transport).await;
            let silence = matches!(
                &asked,
                Err(f) if matches!(f.kind, FailureKind::TimeoutConnect | FailureKind::TimeoutResponse)
            );
            assert!(
                silence,
                "{what}: {} over {transport:?}: {asked:?}",
                ZONES[zone]
            );
        }
    }

    fn client(&self) -> IpAddr {
        self.world.client.address().into()
    }

    fn lb_addresses(&self) -> [IpAddr; 2] {
        let of = |zone: usize| self.world.lb_nodes()[zone].address().into();
        [of(0), of(1)]
    }

    async fn end(self) -> Result<()> {
        self.world.cloud_call(
            &format!("DELETE /v1/loadbalancers/{}", self.lb),
            &Value::Null,
        )?;
        for group in &self.groups {
            self.world
                .cloud_call(&format!("DELETE /v1/groups/{group}"), &Value::Null)?;
        }
        self.world.end().await
    }
}

fn body(name: &str, knobs: Knobs) -> Value {
    json!({
        "name": name, "addresses": FRONTS, "zones": ZONES,
        "crossZone": knobs.cross_zone, "preserveClientIP": knobs.preserve_client_ip,
    })
}

fn text(answer: &Value, field: &str) -> Result<String> {
    let found = answer[field].as_str().map(str::to_owned);
    found.with_context(|| format!("no {field} in {answer}"))
}

async fn pod_targets(world: &World) -> Result<[Ipv4Addr; 2]> {
    Ok([
        world.pod_place(PODS[0]).await?.1,
        world.pod_place(PODS[1]).await?.1,
    ])
}

pub(crate) async fn fc29_fc31_fc61_pods_get_the_flows_of_their_zone_and_see_the_client_or_that_zones_lb_node(
    on: Cluster,
) -> Result<()> {
    let world = two_zones(on).await?;
    let at = pod_targets(&world).await?;
    let zones = Zones::start(world, "pod", at, (POD_PORT, POD_PORT)).await?;
    let (client, [lb_a, lb_b]) = (zones.client(), zones.lb_addresses());
    assert_ne!(lb_a, lb_b, "FC-61: an LB node per zone");
    let near: [&[&str]; 2] = [&PODS[..1], &PODS[1..]];
    for cross_zone in [false, true] {
        for preserve_client_ip in [true, false] {
            let knobs = Knobs {
                cross_zone,
                preserve_client_ip,
            };
            zones.turn(knobs).await?;
            // FC-31
            let pods = if cross_zone {
                [&PODS[..], &PODS[..]]
            } else {
                near
            };
            // FC-29: the LB node's address in its zone's subnet, also for a target of the other zone.
            let peers: [&[IpAddr]; 2] = if preserve_client_ip {
                [&[client], &[client]]
            } else {
                [&[lb_a], &[lb_b]]
            };
            zones.expect(&format!("{knobs:?}"), pods, peers).await?;
        }
    }
    zones.end().await
}

pub(crate) async fn fc31_a_zone_without_a_target_is_silent_unless_it_may_use_the_other_zones(
    on: Cluster,
) -> Result<()> {
    let world = two_zones(on).await?;
    let at = pod_targets(&world).await?;
    let zones = Zones::start(world, "pod", at, (POD_PORT, POD_PORT)).await?;
    let client = zones.client();
    let only_a = [&PODS[..1], &PODS[..1]];
    let peers: [&[IpAddr]; 2] = [&[client], &[client]];
    // No target registered in zone b.
    let target = json!({"targets": [{"address": at[1], "port": POD_PORT}]});
    let each = |verb: &str| {
        let groups = zones.groups.iter();
        groups
            .map(|group| format!("{verb} /v1/groups/{group}/targets"))
            .collect::<Vec<_>>()
    };
    for deregister in each("DELETE") {
        zones.world.cloud_call(&deregister, &target)?;
    }
    zones.world.cloud_settled().await;
    zones.silent("FC-31: no target", 1).await;
    assert_eq!(zones.flows(0, Transport::Tcp).await?.0.len(), 1);
    zones.turn(FAR).await?;
    zones
        .expect("FC-31: targets of zone a", only_a, peers)
        .await?;

    // It comes back; then it is there and not healthy, while zone a has one that is (FC-31a).
    let target = json!({"targets": [{"address": at[1], "port": POD_PORT, "zone": ZONES[1]}]});
    for register in each("POST") {
        zones.world.cloud_call(&register, &target)?;
    }
    zones
        .states(&zones.groups[0], ["healthy", "healthy"])
        .await?;
    zones.turn(NEAR).await?;
    assert_eq!(
        zones.flows(1, Transport::Tcp).await?.0,
        BTreeSet::from([PODS[1].to_owned()])
    );
    let pods = zones.world.objects.api::<k8s_openapi::api::core::v1::Pod>();
    pods.delete(PODS[1], &kube::api::DeleteParams::default())
        .await?;
    zones
        .states(&zones.groups[0], ["healthy", "unhealthy"])
        .await?;
    zones.world.cloud_settled().await;
    let asked = zones.ask(1, Transport::Tcp).await;
    assert!(
        matches!(&asked, Err(f) if f.kind == FailureKind::TimeoutConnect),
        "FC-31a: {asked:?}"
    );
    zones.turn(FAR).await?;
    let (who, _) = zones.flows(1, Transport::Tcp).await?;
    assert_eq!(who, BTreeSet::from([PODS[0].to_owned()]), "FC-31a");
    zones.end().await
}

/// Node ports of `web`, TCP and UDP.
async fn node_ports(world: &World) -> Result<(u16, u16)> {
    let spec = world.objects.service("web").await?.spec.context("a spec")?;
    let port = |protocol: &str| {
        let mut ports = spec.ports.iter().flatten();
        let port = ports.find(|p| p.protocol.as_deref() == Some(protocol));
        let port = port.and_then(|p| p.node_port).context("a node port")?;
        anyhow::Ok(u16::try_from(port)?)
    };
    Ok((port("TCP")?, port("UDP")?))
}

fn node_targets(world: &World) -> [Ipv4Addr; 2] {
    [0, 1].map(|node: usize| world.kubelets[node].node().address())
}

pub(crate) async fn s63_fc29_through_node_ports_of_a_local_service_pods_see_the_client_or_that_zones_lb_node(
    on: Cluster,
) -> Result<()> {
    let world = two_zones(on).await?;
    let service = ServiceManifest::cluster_ip("web", "web")
        .with("type", json!("NodePort"))
        .with("externalTrafficPolicy", json!("Local"));
    world.objects.apply(service.json()).await?;
    let (at, ports) = (node_targets(&world), node_ports(&world).await?);
    let zones = Zones::start(world, "node", at, ports).await?;
    let (client, [lb_a, lb_b]) = (zones.client(), zones.lb_addresses());
    let near = [&PODS[..1], &PODS[1..]];
    zones
        .expect("S-63, client kept", near, [&[client], &[client]])
        .await?;
    let hidden = Knobs {
        preserve_client_ip: false,
        ..NEAR
    };
    zones.turn(hidden).await?;
    zones
        .expect("FC-29, client hidden", near, [&[lb_a], &[lb_b]])
        .await?;
    let hidden = Knobs {
        preserve_client_ip: false,
        ..FAR
    };
    zones.turn(hidden).await?;
    let all = [&PODS[..], &PODS[..]];
    zones
        .expect("FC-29 over zones", all, [&[lb_a], &[lb_b]])
        .await?;
    zones.end().await
}

pub(crate) async fn fc29b_fc31_a_kept_frontend_address_reaches_the_nodes_of_its_zone(
    on: Cluster,
) -> Result<()> {
    let world = two_zones(on).await?;
    // The agents know the addresses as external ones of the Service.
    let service = ServiceManifest::cluster_ip("web", "web")
        .with("type", json!("NodePort"))
        .with("externalTrafficPolicy", json!("Local"))
        .with("externalIPs", json!(FRONTS));
    world.objects.apply(service.json()).await?;
    for front in FRONTS {
        world.captured(front.into()).await?;
    }
    let at = node_targets(&world);
    let zones = Zones::start(world, "vip", at, (80, 80)).await?;
    // A proxy may know the addresses before it knows the pods, and refuses until then.
    for front in FRONTS {
        first_answer(&zones.world, (front, 80).into()).await?;
    }
    let client = zones.client();
    let peers: [&[IpAddr]; 2] = [&[client], &[client]];
    let near = [&PODS[..1], &PODS[1..]];
    zones.expect("FC-29b, near", near, peers).await?;
    zones.turn(FAR).await?;
    let all = [&PODS[..], &PODS[..]];
    zones.expect("FC-29b, over zones", all, peers).await?;
    zones.end().await
}

/// Zones of the registered targets in groups of this mode, by address.
fn target_zones(world: &World, mode: Mode) -> BTreeMap<IpAddr, Option<String>> {
    let inventory = world.cloud.look(e2e_cloud::engine::Engine::inventory);
    let groups = inventory.groups.into_iter();
    let groups = groups.filter(|(group, _)| group.spec.mode == mode);
    let targets = groups.flat_map(|(_, targets)| targets);
    targets.map(|t| (t.target.ip(), t.zone)).collect()
}

async fn label_zone(world: &World, node: &str, zone: &str) -> Result<()> {
    let patch = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": zone}}});
    let nodes: Api<Node> = Api::all(world.kube());
    nodes
        .patch(node, &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(())
}

/// What the controller registers, and not a person: each target in the zone of its node, so that a cloud that keeps
/// zones apart sends a client of an address to the pods of that address's zone.
pub(crate) async fn fc31_the_controller_registers_targets_in_the_zone_of_their_node(
    on: Cluster,
) -> Result<()> {
    let apart = Profile {
        cross_zone: false,
        ..Profile::local()
    };
    let world = two_zones_of(on, apart).await?;
    let pods = pod_targets(&world).await?;
    let nodes = node_targets(&world);
    let web = ServiceManifest::load_balancer("web", "web");
    world.objects.apply(web.clone().pod_mode().json()).await?;
    // One address, served in the first zone.
    let front: SocketAddr = (world.lb_address("web").await?, 80).into();
    first_answer(&world, front).await?;
    let in_zones = |of: [Ipv4Addr; 2]| {
        let zones = ZONES.map(|zone| Some(zone.to_owned()));
        let of = of.map(IpAddr::from);
        of.into_iter().zip(zones).collect::<BTreeMap<_, _>>()
    };
    assert_eq!(target_zones(&world, Mode::Pod), in_zones(pods), "FC-31");
    let answering = async || {
        let mut pods = BTreeSet::new();
        for _ in 0..FLOWS {
            let asked = ask_tcp(&world.sockets, front).await;
            pods.insert(asked.map_err(|f| anyhow::anyhow!("{f:?}"))?.0.pod);
        }
        anyhow::Ok(pods)
    };
    assert_eq!(
        answering().await?,
        BTreeSet::from([PODS[0].to_owned()]),
        "FC-31"
    );
    // A node whose zone the cloud knows nothing of: its pods are near for everybody, and nobody writes on and on.
    label_zone(&world, "b", "elsewhere").await?;
    let told = BTreeMap::from([
        (IpAddr::from(pods[0]), Some(ZONES[0].to_owned())),
        (IpAddr::from(pods[1]), Some("elsewhere".to_owned())),
    ]);
    eventually(&world.clock, "FC-31: told", WITHIN, async || {
        let zones = target_zones(&world, Mode::Pod);
        (zones == told)
            .then_some(())
            .ok_or_else(|| format!("{zones:?}"))
    })
    .await?;
    // Registered anew it is asked for its health first.
    eventually(&world.clock, "FC-31: both answer", WITHIN, async || {
        let pods = answering().await.map_err(|e| e.to_string())?;
        (pods == PODS.map(str::to_owned).into())
            .then_some(())
            .ok_or_else(|| format!("{pods:?}"))
    })
    .await?;
    label_zone(&world, "b", ZONES[1]).await?;
    eventually(&world.clock, "FC-31: near no more", WITHIN, async || {
        let zones = target_zones(&world, Mode::Pod);
        (zones == in_zones(pods))
            .then_some(())
            .ok_or_else(|| format!("{zones:?}"))
    })
    .await?;
    world.cloud_settled().await;
    assert_eq!(
        answering().await?,
        BTreeSet::from([PODS[0].to_owned()]),
        "FC-31"
    );
    // The same Service over a cloud that lets zones mix.
    let id = world
        .cloud
        .look(|engine| engine.inventory().load_balancers[0].id.clone());
    let mix = Edit::ChangeLoadBalancer {
        id,
        addresses: None,
        cross_zone: Some(true),
        preserve_client_ip: None,
    };
    world.cloud.with(|engine, now| engine.edit(now, &mix))?;
    world.cloud_settled().await;
    assert_eq!(answering().await?, PODS.map(str::to_owned).into(), "FC-31");
    // Nodes as targets are in their own zone.
    world.objects.apply(web.vip_mode().json()).await?;
    eventually(&world.clock, "nodes are targets", WITHIN, async || {
        let zones = target_zones(&world, Mode::Vip);
        if zones == in_zones(nodes) {
            Ok(())
        } else {
            Err(format!("{zones:?}"))
        }
    })
    .await?;
    world.end().await
}
