//! Which addresses are captured at all, and how new connections are spread behind one.

use crate::{
    lab::{Want, selectorless},
    support::{Place, world_with_pod_on_a},
};
use anyhow::Result;
use k8s_openapi::api::core::v1::Service;
use kube::api::{Patch, PatchParams};
use onehop_e2e::{traffic::Transport, world::Cluster};
use serde_json::json;
use std::{
    collections::BTreeMap,
    io::Write,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// A load balancer that terminates TLS, or writes PROXY headers, is never passed by. Here it is a server outside with an
/// address of its own, which a Service publishes.
pub(crate) async fn s23_an_address_with_ip_mode_proxy_is_left_to_its_load_balancer(
    on: Cluster,
) -> Result<()> {
    const PORT: u16 = 80;
    let world = world_with_pod_on_a(on).await?;
    let (netns, address) = world.place(Place::Outside);
    let to = SocketAddr::new(address, PORT);
    let listener = netns.tcp_listener(to)?;
    let reached = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&reached);
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            counter.fetch_add(1, Ordering::SeqCst);
            let _ = stream.write_all(b"a load balancer\n");
        }
    });
    // Of a class that is nobody's here: its status is written by the scenario.
    let manifest = selectorless("proxied")
        .with("type", json!("LoadBalancer"))
        .with("loadBalancerClass", json!("example.com/other"))
        .with("allocateLoadBalancerNodePorts", json!(false));
    let cluster = world.expose(manifest).await?.cluster(PORT);
    world.serve_by("proxied", &["web"]).await?;
    let services = world.objects.api::<Service>();
    let publish = async |mode: &str| -> Result<()> {
        let ingress = json!([{"ip": address.to_string(), "ipMode": mode}]);
        let patch = Patch::Merge(json!({"status": {"loadBalancer": {"ingress": ingress}}}));
        services
            .patch_status("proxied", &PatchParams::default(), &patch)
            .await?;
        Ok(())
    };
    let inside = [Place::PodOnA, Place::PodOnB, Place::NodeA, Place::NodeB];
    let web = Want::From(&["web"]);
    // S-22: with mode VIP the nodes take it.
    publish("VIP").await?;
    for place in inside {
        world.becomes(place, Transport::Tcp, to, web).await?;
    }
    // Before the nodes knew it, it was where the network leads.
    let before = reached.load(Ordering::SeqCst);
    for place in inside {
        world.gets(place, Transport::Tcp, to, web).await?;
    }
    assert_eq!(reached.load(Ordering::SeqCst), before, "S-22");
    // S-23: with mode Proxy nothing is captured; its other frontends stay.
    publish("Proxy").await?;
    for node in ["a", "b"] {
        let what = format!("node {node} lets the address go");
        onehop_e2e::world::eventually(&world.clock, &what, crate::lab::WITHIN, async || {
            let rules = world.ruleset(node).map_err(|e| e.to_string())?;
            if rules.contains(&address.to_string()) {
                Err("it is still in the rules".to_owned())
            } else {
                Ok(())
            }
        })
        .await?;
    }
    for (asked, place) in (before + 1..).zip(inside) {
        // Whoever answers is no pod, so the answer is none of a pod's.
        let got = world.ask_from(place, Transport::Tcp, to).await;
        assert!(got.is_err(), "S-23 from {place:?}: {got:?}");
        assert_eq!(reached.load(Ordering::SeqCst), asked, "S-23: {place:?}");
    }
    world
        .gets(Place::PodOnB, Transport::Tcp, cluster, web)
        .await?;
    world.end().await
}

/// Every connection chooses anew, and no endpoint gets much more or less than its share.
pub(crate) async fn s43_new_connections_are_spread_evenly(on: Cluster) -> Result<()> {
    const EACH: usize = 60;
    // Six standard deviations of 180 choices among three: a fair one is outside of it once in half a billion runs.
    const AWAY: usize = 38;
    let world = world_with_pod_on_a(on).await?;
    let to = world.expose(selectorless("spread")).await?.cluster(80);
    let pods = ["web", "ask-a", "ask-b"];
    world.serve_by("spread", &pods).await?;
    for place in [Place::PodOnA, Place::NodeB] {
        world.served_by(place, to, &pods).await?;
        let mut shares = BTreeMap::<String, usize>::new();
        for _ in 0..EACH * pods.len() {
            let got = world.ask_from(place, Transport::Tcp, to).await;
            let (answer, _) = got.map_err(|f| anyhow::anyhow!("{f:?}"))?;
            *shares.entry(answer.pod).or_default() += 1;
        }
        let fair = EACH - AWAY..=EACH + AWAY;
        assert!(
            shares.len() == pods.len() && shares.values().all(|share| fair.contains(share)),
            "S-43 from {place:?}: {shares:?}"
        );
    }
    world.end().await
}
