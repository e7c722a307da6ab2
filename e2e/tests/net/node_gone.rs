//! A node that is gone at once, without a word: power, kernel, network. Nothing tells anybody; only health checks do.

use crate::support::{READY_WITHIN, world_with_pod_on_a};
use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::Api;
use onehop_e2e::{
    traffic::{Endpoint, Load, Transport},
    world::{Cluster, ServiceManifest},
};
use std::time::Duration;

const PER_SECOND: u32 = 20;
/// Over this a fail-over counts as a bug.
const FAIL_OVER: Duration = Duration::from_secs(10);
/// Of the time after the crash; enough for the client's own time-outs.
const WATCHED: Duration = Duration::from_secs(15);

pub(crate) async fn c42_l11_new_connections_avoid_a_dark_node_within_seconds_whatever_the_cluster_says_of_it(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    // The pod is on a, and the load balancer sends to both nodes.
    let served = world
        .serve(ServiceManifest::load_balancer("web", "web"))
        .await?;
    let to = Endpoint {
        transport: Transport::Tcp,
        address: served.lb(),
    };
    let load = Load {
        to,
        per_second: PER_SECOND,
    };
    let load = load.start(world.sockets.clone(), world.clock);
    world.clock.sleep(Duration::from_secs(1)).await;
    let crash = world.clock.now();
    world.kubelet("b")?.node().go_dark()?;
    world.clock.sleep(WATCHED).await;
    let (ledger, _) = load.stop().await;
    let failed: Vec<_> = ledger
        .failures()
        .map(|(attempt, _)| attempt.begun)
        .collect();
    let last = failed
        .last()
        .context("C-42: no connection met the dark node")?;
    assert!(
        failed
            .iter()
            .all(|begun| *begun + Duration::from_millis(200) >= crash),
        "C-42: before the crash"
    );
    let took = last.since(crash);
    // FC-79a: a crash, all interfaces dark at once.
    assert!(took < FAIL_OVER, "C-42, L-11: {took:?}");
    // Nobody has taken the node out of the cluster meanwhile: this was not what it waited for.
    let nodes: Api<Node> = Api::all(world.kube());
    let conditions = nodes.get("b").await?.status.and_then(|s| s.conditions);
    let ready = |c: &NodeCondition| c.type_ == "Ready" && c.status == "True";
    assert!(
        conditions.iter().flatten().any(ready),
        "C-42: {conditions:?}"
    );
    world
        .objects
        .pod_ready("default", "web", READY_WITHIN)
        .await?;
    world.end().await
}
