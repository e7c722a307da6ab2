//! The label that gives a Service to a proxy, changed while it is used.

use crate::{
    lab::{Want, selectorless},
    support::{Place, world_with_pod_on_a},
};
use anyhow::Result;
use k8s_openapi::api::core::v1::Service;
use kube::api::{Patch, PatchParams};
use onehop_e2e::{traffic::Transport, world::Cluster};
use serde_json::json;

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
