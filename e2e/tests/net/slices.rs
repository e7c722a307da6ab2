//! What slices may hold: hand-made ones, several of one Service, named ports that differ, copies, conditions.

use crate::{
    lab::{Want, pod_ports, selectorless},
    support::{Place, PodOnA, world_with_pod_on_a},
};
use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Service;
use kube::api::{Patch, PatchParams};
use onehop_e2e::{
    traffic::Transport,
    world::{Cluster, POD_PORT, ServiceManifest},
};
use serde_json::{Value, json};
use std::net::{IpAddr, SocketAddr};

/// Another TCP port of the pod `second`.
const OTHER_PORT: u16 = 9090;

fn second() -> Value {
    let spec = onehop_e2e::world::pod("second", "second", "b", onehop_e2e::world::OnTerm::Exit);
    let mut pod = spec;
    pod["spec"]["containers"][0]["args"] = json!(["--tcp", OTHER_PORT.to_string()]);
    pod["spec"]["containers"][0]["ports"] = json!([{"name": "tcp", "containerPort": OTHER_PORT}]);
    pod["spec"]["containers"][0]["readinessProbe"]["tcpSocket"]["port"] = json!(OTHER_PORT);
    pod
}

/// A world with a Service without selector that nothing serves yet, and pods to name in slices of it by hand (S-04).
async fn hand_made(on: Cluster) -> Result<(PodOnA, SocketAddr)> {
    let world = world_with_pod_on_a(on).await?;
    world.objects.create(second()).await?;
    world
        .objects
        .pod_ready("default", "second", crate::support::READY_WITHIN)
        .await?;
    let to = world.expose(selectorless("hand")).await?.cluster(80);
    world
        .becomes(Place::PodOnA, Transport::Tcp, to, Want::Refused)
        .await?;
    Ok((world, to))
}

fn other_ports() -> Value {
    json!([{"name": "tcp", "protocol": "TCP", "port": OTHER_PORT}])
}

pub(crate) async fn s04_s05_s07_s32_slices_are_taken_as_they_say(on: Cluster) -> Result<()> {
    let (world, to) = hand_made(on).await?;
    let from = Place::PodOnA;
    // S-32: the same named port has another number on another endpoint; S-04: nobody but hands made the slices.
    let web = world.endpoint("web").await?;
    let mut other = world.endpoint("second").await?;
    other["nodeName"] = json!("b");
    world
        .slice("hand-1", "hand", vec![web.clone()], pod_ports())
        .await?;
    world
        .slice("hand-2", "hand", vec![other], other_ports())
        .await?;
    world.served_by(from, to, &["web", "second"]).await?;
    world.slice("hand-2", "hand", vec![], other_ports()).await?;
    world.served_by(from, to, &["web"]).await?;

    // S-07: conditions that are not stated mean ready.
    let mut bare = world.endpoint("ask-b").await?;
    bare["conditions"] = json!({});
    world
        .slice("hand-3", "hand", vec![bare], pod_ports())
        .await?;
    world.served_by(from, to, &["web", "ask-b"]).await?;

    // S-05: a port of another name is not the Service's.
    let unnamed = json!([{"name": "", "protocol": "TCP", "port": POD_PORT}]);
    world.slice("hand-3", "hand", vec![], pod_ports()).await?;
    world.slice("hand-1", "hand", vec![web], unnamed).await?;
    world
        .becomes(from, Transport::Tcp, to, Want::Refused)
        .await?;
    world.end().await
}

/// S-06: the endpoint stays until no slice has it, and is ready if any copy is.
pub(crate) async fn s06_copies_of_an_endpoint_in_several_slices_are_one(on: Cluster) -> Result<()> {
    let (world, to) = hand_made(on).await?;
    let from = Place::PodOnA;
    let web = world.endpoint("web").await?;
    let mut unready = web.clone();
    unready["conditions"] = json!({"ready": false, "serving": false});
    let mut other = world.endpoint("second").await?;
    other["nodeName"] = json!("b");
    // Another endpoint comes and goes with each step, so that it is seen when the step has arrived.
    let with_second = vec![other];
    world
        .slice("hand-1", "hand", vec![web.clone()], pod_ports())
        .await?;
    world
        .slice("hand-3", "hand", vec![unready], pod_ports())
        .await?;
    world
        .slice("hand-2", "hand", with_second, other_ports())
        .await?;
    world.served_by(from, to, &["web", "second"]).await?;
    world
        .slice("hand-3", "hand", vec![web], pod_ports())
        .await?;
    world.slice("hand-1", "hand", vec![], pod_ports()).await?;
    world.slice("hand-2", "hand", vec![], other_ports()).await?;
    world.served_by(from, to, &["web"]).await?;
    world.slice("hand-3", "hand", vec![], pod_ports()).await?;
    world
        .becomes(from, Transport::Tcp, to, Want::Refused)
        .await?;
    world.end().await
}

/// S-03: since 1.36 the label is on the slice; the same slice without it serves.
pub(crate) async fn s03_a_headless_slice_is_not_looked_at(on: Cluster) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let to = world.expose(selectorless("hand")).await?.cluster(80);
    let endpoints = vec![world.endpoint("web").await?];
    world.serve_by("hand", &["web"]).await?;
    world
        .becomes(Place::PodOnB, Transport::Tcp, to, Want::From(&["web"]))
        .await?;
    let labelled = |headless: bool| {
        let mut slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": "hand", "namespace": "default",
                "labels": {"kubernetes.io/service-name": "hand"},
            },
            "addressType": on.family.word(), "endpoints": endpoints.clone(), "ports": pod_ports(),
        });
        if headless {
            slice["metadata"]["labels"]["service.kubernetes.io/headless"] = json!("");
        }
        slice
    };
    world.objects.apply(labelled(true)).await?;
    world
        .becomes(Place::PodOnB, Transport::Tcp, to, Want::Refused)
        .await?;
    world.objects.apply(labelled(false)).await?;
    world
        .becomes(Place::PodOnB, Transport::Tcp, to, Want::From(&["web"]))
        .await?;
    world.end().await
}

/// Edits of a Service while it is used: ports come, go and change; the type changes, and comes back.
#[allow(
    clippy::too_many_lines,
    reason = "one Service, edited step by step; each step starts from the one before"
)]
pub(crate) async fn s01_s11_services_follow_edits_of_ports_and_type(on: Cluster) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let from = Place::PodOnB;
    let web = Want::From(&["web"]);
    let port = |name: &str, number: u16, protocol: &str| json!({"name": name, "port": number, "protocol": protocol, "targetPort": POD_PORT});
    let with =
        |ports: Vec<Value>| ServiceManifest::cluster_ip("edit", "web").with("ports", json!(ports));
    // Two ports, the second on the same number with another protocol (S-31).
    let exposed = world
        .expose(with(vec![port("t", 80, "TCP"), port("u", 80, "UDP")]))
        .await?;
    world
        .becomes(from, Transport::Tcp, exposed.cluster(80), web)
        .await?;
    world
        .becomes(from, Transport::Udp, exposed.cluster(80), web)
        .await?;
    // One of them goes, and only that one; a new one comes.
    world
        .expose(with(vec![port("t", 80, "TCP"), port("new", 81, "TCP")]))
        .await?;
    world
        .becomes(from, Transport::Udp, exposed.cluster(80), Want::Refused)
        .await?;
    world
        .becomes(from, Transport::Tcp, exposed.cluster(81), web)
        .await?;
    world
        .gets(from, Transport::Tcp, exposed.cluster(80), web)
        .await?;
    let found = kube::Api::<Service>::all(world.kube())
        .list(&kube::api::ListParams::default())
        .await?;
    let mine = |s: &Service| {
        s.metadata.name.as_deref() == Some("edit")
            && s.metadata.namespace.as_deref() == Some("default")
    };
    assert!(
        found.iter().any(mine),
        "found in the list of all namespaces"
    );
    // S-01: an ExternalName Service is none, whatever it was before and is afterwards.
    let services = world.objects.api::<Service>();
    let change = async |spec: Value| {
        let merge = Patch::Merge(json!({"spec": spec}));
        let changed = services
            .patch("edit", &PatchParams::default(), &merge)
            .await?;
        changed.spec.context("a spec")
    };
    let to_name = json!({
        "type": "ExternalName", "externalName": "example.com", "clusterIP": null, "clusterIPs": null,
        "ipFamilies": null, "ipFamilyPolicy": null, "internalTrafficPolicy": null, "externalTrafficPolicy": null,
    });
    let back = |kind: &str| {
        json!({
            "type": kind, "externalName": null, "ipFamilies": [on.family.word()],
            "ports": [port("t", 80, "TCP")],
        })
    };
    let mut last = exposed.cluster(80);
    let mut node_port = None;
    for kind in ["NodePort", "ClusterIP", "NodePort"] {
        change(to_name.clone()).await?;
        world
            .becomes(from, Transport::Tcp, last, Want::Silence)
            .await?;
        if let Some(to) = node_port.take() {
            world
                .becomes(Place::Outside, Transport::Tcp, to, Want::Refused)
                .await?;
        }
        let spec = change(back(kind)).await?;
        let cluster: IpAddr = spec.cluster_ip.context("a ClusterIP")?.parse()?;
        last = (cluster, 80).into();
        world.becomes(from, Transport::Tcp, last, web).await?;
        let number = spec.ports.iter().flatten().find_map(|p| p.node_port);
        if let Some(number) = number {
            let to = SocketAddr::new(world.place(Place::NodeB).1, u16::try_from(number)?);
            world
                .becomes(Place::Outside, Transport::Tcp, to, web)
                .await?;
            node_port = Some(to);
        }
    }
    // Made anew it has other numbers and serves.
    world.objects.delete_service("edit").await?;
    world.service_gone("edit").await?;
    let again = with(vec![port("t", 80, "TCP")]).with("type", json!("NodePort"));
    let exposed = world.expose(again).await?;
    world
        .becomes(from, Transport::Tcp, exposed.cluster(80), web)
        .await?;
    let node = (world.place(Place::NodeB).1, exposed.node_port("t")?).into();
    world
        .becomes(Place::Outside, Transport::Tcp, node, web)
        .await?;
    // The node port goes with the type.
    let plain = with(vec![port("t", 80, "TCP")]).with("type", json!("ClusterIP"));
    world.objects.apply(plain.json()).await?;
    world
        .becomes(Place::Outside, Transport::Tcp, node, Want::Refused)
        .await?;
    world
        .gets(from, Transport::Tcp, exposed.cluster(80), web)
        .await?;
    world.end().await
}
