//! externalTrafficPolicy Local: which nodes answer, and what the cloud thinks of them.

use crate::{
    lab::{WITHIN, Want, pod_ports},
    support::{Place, PodOnA, world_of, world_with_pod_on_a},
};
use anyhow::Result;
use e2e_cloud::engine::{Engine, TargetState};
use kube::Api;
use onehop_core::crd::NodeTargets;
use onehop_e2e::{
    traffic::Transport,
    world::{Cluster, ServiceManifest, WorldConfig, eventually},
};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

/// What endpoints there are; who answers on node a and on node b; which nodes the cloud holds for healthy.
type Step<'a> = (&'a [(&'a str, Stands)], [&'a [&'a str]; 2], &'a [IpAddr]);

/// How an endpoint stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    Ready,
    /// Terminating, and still serving.
    Serves,
}

async fn endpoints(world: &PodOnA, of: &[(&str, Stands)]) -> Result<()> {
    let mut all = Vec::new();
    for (pod, stands) in of {
        let mut endpoint = world.endpoint(pod).await?;
        let ready = *stands == Stands::Ready;
        endpoint["conditions"] = json!({"ready": ready, "serving": true, "terminating": !ready});
        all.push(endpoint);
    }
    world.slice("web", "web", all, pod_ports()).await
}

/// Which addresses the cloud holds for healthy, in every group alike.
fn healthy(world: &PodOnA) -> BTreeSet<IpAddr> {
    let groups = world.cloud.look(Engine::inventory).groups;
    let targets = groups.iter().flat_map(|(_, targets)| targets);
    let mut by_address: BTreeMap<IpAddr, bool> = BTreeMap::new();
    for target in targets {
        let good = target.state == TargetState::Healthy;
        *by_address.entry(target.target.ip()).or_insert(true) &= good;
    }
    let good = by_address.into_iter().filter(|(_, good)| *good);
    good.map(|(address, _)| address).collect()
}

/// C-43, L-25, L-09: a node answers exactly while an endpoint on it can serve, ready or terminating. The cloud sends new
/// connections to those with a ready one, and what it is told and what packets meet agree all the time.
pub(crate) async fn c43_l25_l09_a_node_answers_while_an_endpoint_on_it_can_serve_and_no_longer(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let manifest = ServiceManifest::load_balancer("web", "nobody")
        .with("selector", json!(null))
        .with("externalTrafficPolicy", json!("Local"));
    endpoints(&world, &[("web", Stands::Ready)]).await?;
    let served = world.serve(manifest).await?;
    let node_port = world.exposed("web").await?.node_port("tcp")?;
    let [a, b] = served.nodes();
    let steps: [Step<'_>; 5] = [
        (&[("web", Stands::Ready)], [&["web"], &[]], &[a]),
        (
            &[("web", Stands::Ready), ("ask-b", Stands::Ready)],
            [&["web"], &["ask-b"]],
            &[a, b],
        ),
        // L-09: the last pod of a node ends and serves meanwhile.
        (
            &[("web", Stands::Serves), ("ask-b", Stands::Ready)],
            [&["web"], &["ask-b"]],
            &[b],
        ),
        (&[("ask-b", Stands::Ready)], [&[], &["ask-b"]], &[b]),
        // Both pods of a rollout on one node, the old one still serving.
        (
            &[("web", Stands::Serves), ("ask-a", Stands::Ready)],
            [&["ask-a"], &[]],
            &[a],
        ),
    ];
    for (at, answers, good) in steps {
        endpoints(&world, at).await?;
        for (node, pods) in [a, b].into_iter().zip(answers) {
            let to = SocketAddr::new(node, node_port);
            let want = match pods {
                [] => Want::Silence,
                pods => Want::From(pods),
            };
            world
                .becomes(Place::Outside, Transport::Tcp, to, want)
                .await?;
        }
        let good: BTreeSet<IpAddr> = good.iter().copied().collect();
        let what = format!("C-43: {good:?} are healthy with {at:?}");
        eventually(&world.clock, &what, WITHIN, async || {
            let seen = healthy(&world);
            (seen == good)
                .then_some(())
                .ok_or_else(|| format!("{seen:?}"))
        })
        .await?;
        world.cloud_settled().await;
        // L-25: and nobody else's node is ever chosen.
        let ready = at.iter().filter(|(_, stands)| *stands == Stands::Ready);
        let ready: Vec<&str> = ready.map(|(pod, _)| *pod).collect();
        let seen = world.answering(Place::Outside, served.lb(), 12).await?;
        assert!(
            seen.iter().all(|pod| ready.contains(&pod.as_str())),
            "C-43, L-25: {seen:?} with {at:?}"
        );
    }
    world.end().await
}

/// ZD-T17, ZD-60, ZD-62: the only endpoint of a node leaves. Whoever still comes to that node is served by another one, seen
/// as the node, for as long as a load balancer may send; by choice (`drop`) nobody is.
pub(crate) async fn zd_t17_zd60_late_flows_to_a_node_without_an_endpoint_are_forwarded_unless_dropped(
    on: Cluster,
) -> Result<()> {
    late_flows(on, "--late-flows=forward").await?;
    late_flows(on, "--late-flows=drop").await
}

/// How long the tail is, in seconds: until then late flows are forwarded.
const TAIL: &str = "--tail-max-seconds=12";

async fn late_flows(on: Cluster, policy: &'static str) -> Result<()> {
    let world = world_of(WorldConfig {
        cluster: on,
        controller_flags: vec![policy, TAIL],
        ..WorldConfig::default()
    })
    .await?;
    let manifest = ServiceManifest::load_balancer("web", "nobody")
        .with("selector", json!(null))
        .with("externalTrafficPolicy", json!("Local"));
    let both = [("web", Stands::Ready), ("ask-b", Stands::Ready)];
    endpoints(&world, &both).await?;
    let served = world.serve(manifest).await?;
    let node_port = world.exposed("web").await?.node_port("tcp")?;
    let late = SocketAddr::new(served.nodes()[0], node_port);
    let outside = Place::Outside;
    let becomes = async |want| world.becomes(outside, Transport::Tcp, late, want).await;
    becomes(Want::From(&["web"])).await?;
    told(&world, "a").await?;
    endpoints(&world, &both[1..]).await?;
    if policy == "--late-flows=drop" {
        becomes(Want::Silence).await?;
        return world.end().await;
    }
    let (answer, _) = world
        .answer_of(outside, Transport::Tcp, late, &["ask-b"])
        .await?;
    assert_eq!(answer.peer.ip(), late.ip(), "ZD-62: the node asks for it");
    // ZD-65: and when the tail is over, policy Local is strict again.
    becomes(Want::Silence).await?;
    world.end().await
}

/// Waits until a node was told that one of its ports is a target.
async fn told(world: &PodOnA, node: &str) -> Result<()> {
    let objects: Api<NodeTargets> = Api::all(world.kube());
    eventually(&world.clock, "the node is told", WITHIN, async || {
        let told = objects.get(node).await.map_err(|e| e.to_string())?;
        let mut installs = told.spec.installs.values();
        installs
            .any(|install| !install.local.is_empty())
            .then_some(())
            .ok_or_else(|| format!("{:?}", told.spec))
    })
    .await
}
