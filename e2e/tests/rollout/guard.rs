//! The target guard, flow by flow: who gets the packets that a load balancer still sends to a pod that ends. The client
//! outside sends to the pod's own address, as a load balancer with preserved client addresses does; the controller is
//! stopped, so that the agents act on their own evidence (K-23, ZD-53).

use crate::support::WITHIN;
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use nix::sys::signal::Signal;
use onehop_core::crd::NodeTargets;
use onehop_e2e::{
    traffic::{Answer, Failure, FailureKind, LongFlow, Transport, ask_tcp, ask_udp},
    world::{
        Cluster, Family, OnTerm, POD_PORT, ServiceManifest, World, WorldConfig, eventually,
        first_answer, pod, sockets_of,
    },
};
use serde_json::json;
use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// Long enough that no pod ends by itself while the test looks.
const SERVES: OnTerm = OnTerm::ServeSeconds(25);
/// Flows that are looked at in each step.
const FLOWS: usize = 12;

struct Scene {
    world: World,
    old: SocketAddr,
}

impl Scene {
    /// Pods `old` and `near` on node a, `far` on node b, all of one Service in pod mode and listed; `other` is a pod of
    /// nothing on node b.
    async fn set(family: Family) -> Result<Self> {
        let cluster = Cluster::default().in_family(family);
        Self::set_in(WorldConfig {
            cluster,
            ..WorldConfig::default()
        })
        .await
    }

    async fn set_in(config: WorldConfig) -> Result<Self> {
        let world = World::start(config).await?;
        let pods = [
            ("old", "web", "a"),
            ("near", "web", "a"),
            ("far", "web", "b"),
            ("other", "none", "b"),
        ];
        let service = ServiceManifest::load_balancer("web", "web").pod_mode();
        Self::of(world, &pods, service, 3).await
    }

    /// These pods, of which so many are targets of this Service.
    async fn of(
        world: World,
        pods: &[(&str, &str, &str)],
        service: ServiceManifest,
        targets: usize,
    ) -> Result<Self> {
        let family = world.cluster.family;
        for (name, app, node) in pods {
            world.objects.create(pod(name, app, node, SERVES)).await?;
        }
        for (name, ..) in pods {
            world.objects.pod_ready("default", name, WITHIN).await?;
        }
        world.objects.apply(service.json()).await?;
        let address = SocketAddr::from((world.lb_address("web").await?, 80));
        first_answer(&world, address).await?;
        let told: Api<NodeTargets> = Api::all(world.kube());
        eventually(&world.clock, "all targets are listed", WITHIN, async || {
            let all = told.list(&ListParams::default()).await;
            let all = all.map_err(|e| e.to_string())?;
            let installs = all.items.iter().flat_map(|o| o.spec.installs.values());
            let listed = installs.map(|install| install.targets.len()).sum::<usize>();
            // TCP and UDP.
            (listed == 2 * targets)
                .then_some(())
                .ok_or(format!("{listed} listed"))
        })
        .await?;
        world.controller.signal(Signal::SIGSTOP)?;
        let (_, address) = world.pod_place("old").await?;
        let old = SocketAddr::from((family.of(address), POD_PORT));
        Ok(Self { world, old })
    }

    async fn delete(&self, pod: &str, params: &DeleteParams) -> Result<()> {
        let pods = self.world.objects.api::<Pod>();
        pods.delete(pod, params).await?;
        Ok(())
    }

    /// Who answers the client outside at the old pod's address, and whom it sees.
    async fn outside(&self, transport: Transport) -> Result<Answer, Failure> {
        let sockets = &self.world.sockets;
        let asked = match transport {
            Transport::Tcp => ask_tcp(sockets, self.old).await,
            Transport::Udp => ask_udp(sockets, self.old).await,
        };
        asked.map(|(answer, _)| answer)
    }

    /// Waits until new flows from outside are answered by this pod, then looks at several of each kind.
    async fn steered_to(&self, pod: &str) -> Result<BTreeSet<IpAddr>> {
        let what = format!("new flows to the old pod's address go to {pod}");
        eventually(&self.world.clock, &what, WITHIN, async || {
            match self.outside(Transport::Tcp).await {
                Ok(answer) if answer.pod == pod => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await?;
        let mut peers = BTreeSet::new();
        for _ in 0..FLOWS {
            for transport in [Transport::Tcp, Transport::Udp] {
                let answer = self.outside(transport).await;
                let answer = answer.map_err(|f| anyhow::anyhow!("{transport:?}: {f:?}"))?;
                ensure!(
                    answer.pod == pod,
                    "{transport:?} was answered by {answer:?}"
                );
                peers.insert(answer.peer.ip());
            }
        }
        Ok(peers)
    }

    /// A pod on another node, and a process of the node, still reach the old pod itself.
    async fn inside_reaches_the_old_pod(&self) -> Result<()> {
        let (other, other_address) = self.world.pod_place("other").await?;
        let node = self.world.kubelet("b")?.node();
        let places = [
            (sockets_of(&other, other_address), "a pod of another node"),
            (sockets_of(node.netns(), node.address()), "another node"),
        ];
        for (sockets, who) in places {
            for _ in 0..FLOWS {
                let asked = ask_tcp(&sockets, self.old).await;
                let (answer, _) = asked.map_err(|f| anyhow::anyhow!("{who}: {f:?}"))?;
                ensure!(answer.pod == "old", "{who} was answered by {answer:?}");
            }
        }
        Ok(())
    }

    /// ZD-T15: those whom nobody steers fail as they would without us, once the pod's processes have ended: that is a moment
    /// after its object is gone.
    async fn inside_reaches_nobody(&self) -> Result<()> {
        let (other, address) = self.world.pod_place("other").await?;
        let sockets = sockets_of(&other, address);
        let what = "ZD-T15: a pod of another node reaches nobody";
        eventually(&self.world.clock, what, WITHIN, async || {
            let asked = ask_tcp(&sockets, self.old).await;
            match &asked {
                Ok((answer, _)) if answer.pod != "old" => Ok(Err(format!("{answer:?}"))),
                Err(f) if matches!(f.kind, FailureKind::Refused | FailureKind::TimeoutConnect) => {
                    Ok(Ok(()))
                }
                _ => Err(format!("{asked:?}")),
            }
        })
        .await?
        .map_err(|steered| anyhow::anyhow!("ZD-T15: it was steered: {steered}"))
    }

    /// ZD-122, ZD-T16: each new flow that went to the other node lost its client's address, and is counted as such; those
    /// that stayed on the node are counted apart.
    fn counted_what_it_did(&self) -> Result<()> {
        let metrics = SocketAddr::from(([127, 0, 0, 1], 10349));
        let page = self.world.http_get_on_node("a", metrics, "/metrics")?.body;
        let count = |metric: &str| -> Option<usize> {
            let line = page.lines().find(|line| line.starts_with(metric))?;
            line.rsplit_once(' ')?.1.parse().ok()
        };
        for protocol in ["tcp", "udp"] {
            for to in ["same_node", "other_node"] {
                let metric = format!(
                    "onehop_node_steered_flows_total{{to=\"{to}\",protocol=\"{protocol}\"}}"
                );
                let steered = count(&metric).with_context(|| format!("no {metric} in {page}"))?;
                ensure!(steered >= FLOWS, "ZD-122: {metric} is {steered}");
            }
        }
        let lost = count("onehop_node_client_address_lost_total").context("no count")?;
        ensure!(lost >= 2 * FLOWS, "ZD-T16, ZD-109: {lost}");
        let guards = count("onehop_node_guards ").context("no gauge")?;
        ensure!(guards > 0, "ZD-122: {page}");
        Ok(())
    }

    fn client(&self) -> IpAddr {
        self.world.cluster.family.of(self.world.client.address())
    }

    fn node_address(&self, node: &str) -> Result<IpAddr> {
        let family = self.world.cluster.family;
        Ok(family.of(self.world.kubelet(node)?.node().address()))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn zd40_zd_t15_zd_t16_new_flows_to_a_pod_that_ends_go_elsewhere_and_old_ones_stay()
-> Result<()> {
    new_flows_go_elsewhere_and_old_ones_stay(Family::V4, false).await
}

/// S-406, ZD-T36: where reverse-path filters take marks into account.
#[tokio::test(flavor = "multi_thread")]
async fn zd47_s406_zd_t36_new_flows_go_elsewhere_where_source_validation_heeds_marks() -> Result<()>
{
    new_flows_go_elsewhere_and_old_ones_stay(Family::V4, true).await
}

#[tokio::test(flavor = "multi_thread")]
async fn zd40_new_flows_to_a_pod_that_ends_go_elsewhere_in_ipv6_too() -> Result<()> {
    new_flows_go_elsewhere_and_old_ones_stay(Family::V6, false).await
}

async fn new_flows_go_elsewhere_and_old_ones_stay(family: Family, by_mark: bool) -> Result<()> {
    let scene = Scene::set(family).await?;
    let world = &scene.world;
    if by_mark {
        let script = "echo 1 > /proc/sys/net/ipv4/conf/all/src_valid_mark";
        for node in ["a", "b"] {
            world.on_node(node, "sh", &["-c", script])?;
        }
    }
    let filter = "/proc/sys/net/ipv4/conf/eth1/rp_filter";
    let filter = world.on_node("a", "cat", &[filter])?;
    ensure!(filter.trim() == "2", "ZD-47: the filter is {filter}");
    let flow = LongFlow::open(
        &world.sockets,
        scene.old,
        Duration::from_millis(50),
        world.clock,
    );
    let flow = flow.await.map_err(|f| anyhow::anyhow!("{f:?}"))?;
    ensure!(flow.first.pod == "old", "nothing is steered yet");

    // ZD-40, ZD-41: the same node first, and the client's address stays (ZD-T16).
    scene.delete("old", &DeleteParams::default()).await?;
    let peers = scene.steered_to("near").await?;
    ensure!(peers == [scene.client()].into(), "ZD-T16: {peers:?}");
    // ZD-43, ZD-T15: never what comes from pods or nodes.
    scene.inside_reaches_the_old_pod().await?;

    // ZD-37, ZD-52: neither a killed agent nor a lost object ends the guard (ZD-T38).
    world.kill_agent("a")?;
    scene.steered_to("near").await?;
    world.agent_restarted("a", WITHIN).await?;
    scene.steered_to("near").await?;
    let targets: Api<NodeTargets> = Api::all(world.kube());
    let lost = targets.get("a").await?.metadata.uid;
    targets.delete("a", &DeleteParams::default()).await?;
    // The controller may have made another one at once.
    let what = "the node's object is gone";
    eventually(&world.clock, what, WITHIN, async || {
        let found = targets.get_opt("a").await.map_err(|e| e.to_string())?;
        match found.filter(|object| object.metadata.uid == lost) {
            Some(object) => Err(format!("{object:?}")),
            None => Ok(()),
        }
    })
    .await?;
    scene.steered_to("near").await?;

    // ZD-41, ZD-46: then another node; its replies come back by the interface of arrival, else the fabric drops them.
    scene.delete("near", &DeleteParams::default()).await?;
    let peers = scene.steered_to("far").await?;
    let node = scene.node_address("a")?;
    ensure!(peers == [node].into(), "ZD-109, ZD-T16: {peers:?}");
    scene.counted_what_it_did()?;

    // ZD-45: the pod's processes end; its flows are reset at once, and the guard goes on.
    let (now, ended) = (DeleteParams::default().grace_period(0), world.clock.now());
    scene.delete("old", &now).await?;
    let what = "the old pod is known to be gone";
    eventually(&world.clock, what, WITHIN, async || {
        let rules = world.ruleset("a").map_err(|e| e.to_string())?;
        let dead = format!("{} . tcp . {POD_PORT}", scene.old.ip());
        // One set in each family's table.
        let keys = rules.split("set dead-keys").skip(1);
        let mut keys = keys.map(|set| set.split("chain").next().unwrap_or_default());
        let found = keys.any(|keys| keys.contains(&dead));
        found.then_some(()).ok_or(format!("{dead} is in no set"))
    })
    .await?;
    scene.steered_to("far").await?;
    scene.inside_reaches_nobody().await?;
    let end = flow.end().await.context("the flow's task ended")?;
    let (at, cut) = end.cut.context("the flow ended with its pod")?;
    ensure!(at >= ended, "ZD-42: cut before the pod's own end: {cut:?}");
    ensure!(
        matches!(cut.kind, FailureKind::Rst | FailureKind::Eof),
        "ZD-45: {cut:?}"
    );

    // ZD-55: nobody serves any more: refused at once, no time-out.
    for pod in ["near", "far"] {
        scene.delete(pod, &now).await?;
    }
    let what = "new flows are refused at once";
    eventually(&world.clock, what, WITHIN, async || {
        for transport in [Transport::Tcp, Transport::Udp] {
            match scene.outside(transport).await {
                Err(failure) if failure.kind == FailureKind::Refused => {}
                other => return Err(format!("{transport:?}: {other:?}")),
            }
        }
        Ok(())
    })
    .await?;
    world.controller.signal(Signal::SIGCONT)?;
    world.objects.delete_service("web").await?;
    world.service_gone("web").await?;
    scene.world.end().await
}

/// ZD-50, ZD-85, ZD-T13: identity is pod UID and address. Whoever gets the address of a target that is guarded gets its flows,
/// and the controller takes the target out first.
#[tokio::test(flavor = "multi_thread")]
async fn zd50_zd85_zd_t13_an_address_that_is_another_pods_now_is_guarded_no_more() -> Result<()> {
    let scene = Scene::set_in(WorldConfig {
        keep_logs: false,
        ..WorldConfig::default()
    })
    .await?;
    let world = &scene.world;
    let IpAddr::V4(address) = scene.old.ip() else {
        anyhow::bail!("an IPv4 address");
    };
    let now = DeleteParams::default().grace_period(0);
    scene.delete("old", &now).await?;
    scene.steered_to("near").await?;
    let node = world.kubelet("a")?.node();
    let what = "the old pod's address is free";
    eventually(&world.clock, what, WITHIN, async || {
        node.set_next_pod_ip(address).map_err(|e| e.to_string())
    })
    .await?;
    world
        .objects
        .create(pod("new", "none", "a", SERVES))
        .await?;
    world.objects.pod_ready("default", "new", WITHIN).await?;
    ensure!(world.pod_place("new").await?.1 == address, "FC-77");
    scene.steered_to("new").await?;
    ensure!(
        world.registered_addresses().contains(&address),
        "it is a target still"
    );
    world.controller.signal(Signal::SIGCONT)?;
    let what = "the target that is another pod now is taken out";
    eventually(&world.clock, what, WITHIN, async || {
        let registered = world.registered_addresses();
        (!registered.contains(&address))
            .then_some(())
            .ok_or_else(|| format!("{registered:?}"))
    })
    .await?;
    // Flows that came in between are misdelivered by nature (ZD-105): the world's end would find the reuse.
    Ok(())
}

/// ZD-T34: the Service publishes pods that are not ready, and calls one that ends ready to its end.
#[tokio::test(flavor = "multi_thread")]
async fn zd_t34_zd41_of_published_pods_only_those_that_serve_take_the_flows_of_one_that_ends()
-> Result<()> {
    let world = World::start(WorldConfig::default()).await?;
    let mut late = pod("late", "web", "a", SERVES);
    // A port on which nobody ever listens.
    late["spec"]["containers"][0]["readinessProbe"]["tcpSocket"]["port"] = json!(1);
    world.objects.create(late).await?;
    let service = ServiceManifest::load_balancer("web", "web").pod_mode();
    let service = service.with("publishNotReadyAddresses", json!(true));
    let pods = [
        ("old", "web", "a"),
        ("far", "web", "b"),
        ("other", "none", "b"),
    ];
    let scene = Scene::of(world, &pods, service, 3).await?;
    let world = &scene.world;
    let before = scene.outside(Transport::Tcp).await;
    let before = before.map_err(|f| anyhow::anyhow!("{f:?}"))?;
    ensure!(before.pod == "old", "nothing is steered yet");
    scene.delete("old", &DeleteParams::default()).await?;
    // It is on the node itself, and yet the one that serves gets them all.
    scene.steered_to("far").await?;
    let slices = world
        .objects
        .api::<k8s_openapi::api::discovery::v1::EndpointSlice>();
    let slices = slices.list(&ListParams::default()).await?.items.into_iter();
    let endpoints = slices.flat_map(|slice| slice.endpoints);
    let ready = endpoints.filter(|e| e.conditions.as_ref().and_then(|c| c.ready) != Some(false));
    let ready: Vec<_> = ready.flat_map(|e| e.addresses).collect();
    ensure!(
        ready.contains(&scene.old.ip().to_string()),
        "ZD-T34: the endpoint stays ready: {ready:?}"
    );
    let now = DeleteParams::default().grace_period(0);
    scene.delete("old", &now).await?;
    scene.steered_to("far").await?;
    world.controller.signal(Signal::SIGCONT)?;
    for pod in ["late", "far"] {
        scene.delete(pod, &now).await?;
    }
    world.objects.delete_service("web").await?;
    world.service_gone("web").await?;
    scene.world.end().await
}

/// ZD-T40, ZD-80: neither the API server's absence nor the agent's death in it ends a guard.
#[tokio::test(flavor = "multi_thread")]
async fn zd_t40_zd80_a_guard_outlives_its_agent_while_the_api_server_is_away() -> Result<()> {
    let mut scene = Scene::set(Family::V4).await?;
    scene.delete("old", &DeleteParams::default()).await?;
    scene.steered_to("near").await?;
    scene.world.without_api_server()?;
    scene.world.kill_agent("a")?;
    let until = scene.world.clock.now() + Duration::from_secs(4);
    while scene.world.clock.now() < until {
        for transport in [Transport::Tcp, Transport::Udp] {
            let answer = scene.outside(transport).await;
            let answer = answer.map_err(|f| anyhow::anyhow!("ZD-T40: {transport:?}: {f:?}"))?;
            ensure!(answer.pod == "near", "ZD-T40: {answer:?}");
        }
    }
    scene.world.with_api_server()?;
    scene.world.agent_restarted("a", WITHIN).await?;
    scene.steered_to("near").await?;
    scene.world.controller.signal(Signal::SIGCONT)?;
    scene.world.end().await
}
