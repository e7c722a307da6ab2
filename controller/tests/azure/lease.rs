//! AKS writes the same documents, under its Lease (AZ-009).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::PostParams;
use onehop_controller::cloud::azure::settings::Settings;
use onehop_controller::snapshot::Classless;
use reqwest::Method;

use crate::world::World;
use crate::writers::{Foreign, theirs};

const NAME: &str = "aks-managed-resource-locker";
const PREVIOUS: &str = "aks-managed-resource-locker-previous-holder";
const TURNS: u32 = 6;

fn leases(world: &World) -> Api<Lease> {
    Api::namespaced(world.kube(), "kube-system")
}

/// Gives the Lease to somebody, or to nobody, if it is as it was read.
async fn hand(world: &World, mut lease: Lease, holder: Option<&str>) -> bool {
    let spec = lease.spec.get_or_insert_default();
    spec.holder_identity = holder.map(str::to_owned);
    spec.lease_duration_seconds = Some(900);
    if holder.is_none() {
        let notes = lease.metadata.annotations.get_or_insert_default();
        notes.insert(PREVIOUS.to_owned(), "aks-rp".to_owned());
    }
    let params = PostParams::default();
    let replaced = leases(world).replace(NAME, &params, &lease).await;
    replaced.is_ok()
}

async fn take(world: &World) -> Lease {
    loop {
        if let Some(lease) = leases(world).get_opt(NAME).await.unwrap() {
            let spec = lease.spec.as_ref();
            let holder = spec.and_then(|spec| spec.holder_identity.clone());
            let free = holder.is_none_or(|holder| holder.is_empty());
            if free && hand(world, lease, Some("aks-rp")).await {
                return leases(world).get(NAME).await.unwrap();
            }
        }
        world.quiet(Duration::from_millis(20)).await;
    }
}

fn in_node_group(settings: &mut Settings) {
    settings.place.node_resource_group = Some("RG".to_owned());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn az009_fc99c_nobody_writes_while_the_other_has_the_lease_and_nobody_loses_anything() {
    let world = World::start().await;
    let _controller = world
        .controller_with(Classless::Ignore, in_node_group)
        .await;
    world.vip("web").await;
    world.has_address("web").await;
    let balancer = world.balancer().unwrap()["id"].as_str().unwrap().to_owned();
    let foreign = Foreign::new(&world).await;
    let done = Arc::new(AtomicBool::new(false));
    let ours = async {
        let mut n = 0;
        while !done.load(Ordering::Relaxed) {
            world.vip(&format!("web-{n}")).await;
            world.has_address(&format!("web-{n}")).await;
            n += 1;
        }
        n
    };
    let aks = async {
        for n in 0..TURNS {
            let lease = take(&world).await;
            let writes = world.writes();
            // Without If-Match, and with time to be overtaken.
            let (_, mut document) = foreign.send(Method::GET, &balancer, None).await;
            let probes = document["properties"]["probes"].as_array_mut().unwrap();
            probes.push(theirs(n).0);
            document.as_object_mut().unwrap().remove("etag");
            world.quiet(Duration::from_millis(700)).await;
            assert_eq!(
                world.writes(),
                writes,
                "AZ-009: nothing of ours while it has the Lease"
            );
            let (status, said) = foreign.send(Method::PUT, &balancer, Some(&document)).await;
            assert!(status.is_success(), "{said}");
            world.quiet(Duration::from_millis(1200)).await;
            assert_eq!(world.writes(), writes + 1, "AZ-009");
            let last = lease.metadata.annotations.unwrap_or_default();
            let last = last.get(PREVIOUS).map(String::as_str);
            assert!(n == 0 || last == Some("onehop"), "AZ-009: {last:?}");
            let lease = leases(&world).get(NAME).await.unwrap();
            assert!(
                hand(&world, lease, None).await,
                "AZ-009: it is not taken from it"
            );
            // Until we have had a turn.
            let taken = async |w: &World| {
                let lease = leases(w).get(NAME).await.unwrap();
                let last = lease.metadata.annotations.unwrap_or_default();
                last.get(PREVIOUS).map(String::as_str) == Some("onehop")
            };
            world.eventually("we had a turn", taken).await;
        }
        done.store(true, Ordering::Relaxed);
    };
    let (made, ()) = tokio::join!(ours, aks);
    assert!(made > 1, "we had our turns: {made}");
    let probes = world.balancer().unwrap()["properties"]["probes"].to_string();
    for n in 0..TURNS {
        assert!(probes.contains(&format!("\"theirs-{n}\"")), "{n}: {probes}");
    }
    let statuses = world.write_statuses();
    assert!(
        !statuses.contains(&412),
        "AZ-009: what was read is dropped when somebody else had it: {statuses:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn az009_az016_what_is_in_a_group_of_the_users_needs_no_lease() {
    let world = World::start().await;
    let elsewhere = |settings: &mut Settings| {
        settings.place.node_resource_group = Some("mc_rg_demo".to_owned());
    };
    let _controller = world.controller_with(Classless::Ignore, elsewhere).await;
    world.vip("web").await;
    world.has_address("web").await;
    assert!(leases(&world).get_opt(NAME).await.unwrap().is_none());
}
