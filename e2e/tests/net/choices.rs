//! What an administrator may choose where kube-proxy's way is not the only right one.

use crate::{
    cells::Frontend,
    lab::Want,
    support::{Place, world_with},
};
use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use onehop_e2e::{
    traffic::Transport,
    world::{Cluster, Family, ServiceManifest, eventually},
};
use serde_json::{Value, json};
use std::net::SocketAddr;

use Place::{NodeA, NodeB, Outside, PodOnA as OnA, PodOnB as OnB};

/// S-54: where a Local policy finds no endpoint here, a refusal at once instead of silence. S-73: a family without any
/// source range is closed where the other one has some.
pub(crate) async fn s54_s73_empty_local_lists_refuse_and_unlisted_families_are_closed_by_choice(
    on: Cluster,
) -> Result<()> {
    let flags = vec!["--local-empty=reject", "--unlisted-family=closed"];
    let world = world_with(on, flags).await?;
    let web = Want::From(&["web"]);
    let local = ServiceManifest::load_balancer("web", "web")
        .with("externalTrafficPolicy", json!("Local"))
        .with("internalTrafficPolicy", json!("Local"));
    let served = world.serve(local.clone()).await?;
    for (place, to, want) in [
        (Outside, Frontend::NodePortB, Want::Refused),
        (Outside, Frontend::NodePortA, web),
        // Pods and processes of the node are served from the Cluster list, as ever.
        (NodeB, Frontend::NodePortB, web),
        (OnB, Frontend::ClusterIp, Want::Refused),
        (OnA, Frontend::ClusterIp, web),
    ] {
        let to = served.address(to, Transport::Tcp);
        world.gets(place, Transport::Tcp, to, want).await?;
    }
    let udp = served.address(Frontend::NodePortB, Transport::Udp);
    world
        .gets(Outside, Transport::Udp, udp, Want::Refused)
        .await?;

    let other_family = match on.family {
        Family::V4 => "2001:db8:dead::/48",
        Family::V6 => "192.0.2.0/24",
    };
    let closed = local.with("loadBalancerSourceRanges", json!([other_family]));
    world.objects.apply(closed.json()).await?;
    for place in [OnA, NodeB] {
        let lb = served.lb();
        world
            .becomes(place, Transport::Tcp, lb, Want::Silence)
            .await?;
    }
    world
        .gets(OnA, Transport::Tcp, served.cluster_ip(), web)
        .await?;
    world.end().await
}

/// S-114: with the stricter choice `/healthz` fails while the node has no pod network, and only with it.
pub(crate) async fn s114_healthz_heeds_a_missing_pod_network_by_choice(on: Cluster) -> Result<()> {
    for (flags, status) in [(vec!["--healthz-needs-network"], 503), (Vec::new(), 200)] {
        let world = world_with(on, flags).await?;
        let nodes: Api<Node> = Api::all(world.kube());
        let healthz: SocketAddr = (world.place(NodeA).1, 10356).into();
        let becomes = async |what: &str, wanted: u16| {
            eventually(&world.clock, what, crate::lab::WITHIN, async || match world
                .http_get(healthz, "/healthz")
            {
                Ok(answer) if answer.status == wanted => Ok(()),
                other => Err(format!("{other:?}")),
            })
            .await
        };
        becomes("/healthz before", 200).await?;
        let has = async |lacks: bool| -> Result<()> {
            let mut conditions: Vec<Value> = Vec::new();
            let status = nodes.get("a").await?.status;
            let others = status.and_then(|s| s.conditions).unwrap_or_default();
            for other in others.iter().filter(|c| c.type_ != "NetworkUnavailable") {
                conditions.push(serde_json::to_value(other)?);
            }
            let lacks = if lacks { "True" } else { "False" };
            conditions.push(json!({"type": "NetworkUnavailable", "status": lacks}));
            let patch = json!({"status": {"conditions": conditions}});
            let patch = Patch::Merge(patch);
            nodes
                .patch_status("a", &PatchParams::default(), &patch)
                .await?;
            Ok(())
        };
        let taint = async |taints: Value| {
            let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
            nodes.patch("a", &PatchParams::default(), &patch).await
        };
        has(true).await?;
        if status == 200 {
            // What was changed after it shows when the agent has seen it.
            let leaving =
                json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "PreferNoSchedule"}]);
            taint(leaving).await?;
            becomes("/healthz of a node that leaves", 503).await?;
            taint(json!(null)).await?;
        }
        becomes("/healthz without a network", status).await?;
        has(false).await?;
        becomes("/healthz after", 200).await?;
        world.end().await?;
    }
    Ok(())
}
