//! The label that gives a Service to a proxy, changed while it is used.

use crate::{
    lab::{WITHIN, Want, selectorless},
    support::{Place, PodOnA, world_of, world_with_pod_on_a},
};
use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Service;
use kube::api::{Patch, PatchParams};
use onehop_core::time::Time;
use onehop_e2e::{
    traffic::{Endpoint, Load, LongFlow, Transport},
    world::{Cluster, ServiceManifest, WorldConfig, eventually},
};
use serde_json::json;
use std::time::Duration;

const LABEL: &str = "service.kubernetes.io/service-proxy-name";

pub(crate) async fn s02_a_service_comes_and_goes_with_its_label(on: Cluster) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let manifest = selectorless("mine").with("type", json!("NodePort"));
    let exposed = world.expose(manifest).await?;
    world.serve_by("mine", &["web"]).await?;
    let node = (world.place(Place::NodeA).1, exposed.node_port("tcp")?).into();
    let cluster = exposed.cluster(80);
    let web = Want::From(&["web"]);
    let services = world.objects.api::<Service>();
    for (proxy, served) in [
        (json!("onehop"), true),
        (json!("somebody-else"), false),
        (json!("onehop"), true),
        (json!(null), false),
        (json!("onehop"), true),
    ] {
        let patch = json!({"metadata": {"labels": {LABEL: proxy}}});
        services
            .patch("mine", &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        let (inside, outside) = if served {
            (web, web)
        } else {
            // No address of it is anybody's; on the node nothing listens.
            (Want::Silence, Want::Refused)
        };
        world
            .becomes(Place::Outside, Transport::Tcp, node, outside)
            .await?;
        world
            .becomes(Place::PodOnB, Transport::Tcp, cluster, inside)
            .await?;
    }
    world.end().await
}

/// Who listens on a port of node a.
fn holder(world: &PodOnA, port: u16) -> Result<String, String> {
    let of = format!("sport = :{port}");
    let listening = world.on_node("a", "ss", &["-Hlntp", &of]);
    listening.map_err(|e| e.to_string())
}

/// Waits until a port of node a is this program's, or not: when that was.
async fn holds(world: &PodOnA, port: u16, program: &str, wanted: bool) -> Result<Time> {
    let no = if wanted { "" } else { "not " };
    let what = format!("port {port} is {no}{program}'s");
    eventually(&world.clock, &what, WITHIN, async || {
        let holder = holder(world, port)?;
        if holder.contains(program) == wanted {
            Ok(world.clock.now())
        } else {
            Err(holder)
        }
    })
    .await
}

/// S-345, S-126, S-105: our agent and a kube-proxy live on every node. A Service is given to one, then to the other, while
/// it is used: no connection is refused and no flow cut, and the health port follows. Its load balancer is nobody's here:
/// whether it would miss an answer depends on how soon kube-proxy syncs.
pub(crate) async fn s345_s126_between_two_live_proxies_a_service_moves_with_its_label_and_its_health_port(
    on: Cluster,
) -> Result<()> {
    // As the kernel cuts its name.
    const AGENT: &str = "onehop-node-age";
    const KUBE_PROXY: &str = "kube-proxy";
    const SOON: Duration = Duration::from_secs(2);
    let world = world_of(WorldConfig {
        cluster: on,
        kube_proxy_too: true,
        ..WorldConfig::default()
    })
    .await?;
    let manifest = ServiceManifest::load_balancer("web", "web")
        .unlabelled()
        .with("loadBalancerClass", json!("example.com/nobodys"))
        .with("externalTrafficPolicy", json!("Local"));
    let exposed = world.expose(manifest).await?;
    let spec = world.objects.service("web").await?.spec;
    let port = spec.and_then(|s| s.health_check_node_port);
    let port = u16::try_from(port.context("a health port")?)?;
    let web = Want::From(&["web"]);
    let node = (world.place(Place::NodeA).1, exposed.node_port("tcp")?).into();
    world
        .becomes(Place::Outside, Transport::Tcp, node, web)
        .await?;
    holds(&world, port, KUBE_PROXY, true).await?;
    let load = Load {
        to: Endpoint {
            transport: Transport::Tcp,
            address: node,
        },
        per_second: 50,
    };
    let load = load.start(world.sockets.clone(), world.clock);
    let every = Duration::from_millis(100);
    let long = LongFlow::open(&world.sockets, node, every, world.clock).await;
    let long = long.map_err(|f| anyhow::anyhow!("{f:?}"))?;
    let services = world.objects.api::<Service>();
    for round in 0..3 {
        let label = json!({"metadata": {"labels": {LABEL: "onehop"}}});
        services
            .patch("web", &PatchParams::default(), &Patch::Merge(label))
            .await?;
        let free = holds(&world, port, KUBE_PROXY, false).await?;
        let ours = holds(&world, port, AGENT, true).await?;
        let took = ours.since(free);
        assert!(took < SOON, "S-345, S-105, round {round}: {took:?}");
        world
            .gets(Place::Outside, Transport::Tcp, node, web)
            .await?;

        let label = json!({"metadata": {"labels": {LABEL: null}}});
        services
            .patch("web", &PatchParams::default(), &Patch::Merge(label))
            .await?;
        holds(&world, port, AGENT, false).await?;
        // kube-proxy tries a port again only when it syncs, and syncs when something of its own changes.
        let nudge = selectorless(&format!("nudge-{round}")).unlabelled();
        world.objects.apply(nudge.json()).await?;
        holds(&world, port, KUBE_PROXY, true).await?;
        world
            .gets(Place::Outside, Transport::Tcp, node, web)
            .await?;
    }
    let (ledger, _) = load.stop().await;
    let failed: Vec<_> = ledger.failures().collect();
    assert!(failed.is_empty(), "S-345: {failed:?}");
    let end = long.end().await.context("the flow's end")?;
    assert!(end.cut.is_none(), "S-345: {end:?}");
    world.end().await
}
