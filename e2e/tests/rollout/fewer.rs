//! From ten pods to three.

use crate::{
    promise::no_new_connection_lost,
    support::{WITHIN, served_by},
    tails::slow_cloud,
};
use anyhow::Result;
use e2e_cloud::engine::{Operation, TargetState, What};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Patch, PatchParams};
use onehop_e2e::{
    scenario::Rollout,
    world::{OnTerm, ServiceManifest, World, deployment, eventually},
};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

/// Fewest healthy targets of any group after an event of the log, and how many deregistrations were asked for.
fn after(world: &World, seq: u64) -> (usize, usize) {
    let mut healthy: BTreeMap<String, BTreeSet<SocketAddr>> = BTreeMap::new();
    let (mut fewest, mut calls) = (usize::MAX, 0);
    for event in world.cloud.events_after(0, usize::MAX) {
        match &event.what {
            What::TargetState {
                group,
                target,
                state,
                ..
            } => {
                let of = healthy.entry(group.to_string()).or_default();
                if *state == TargetState::Healthy {
                    of.insert(*target);
                } else {
                    of.remove(target);
                }
                if event.seq > seq {
                    fewest = fewest.min(of.len());
                }
            }
            What::ApiCall {
                operation: Operation::DeregisterTargets,
                ..
            } if event.seq > seq => calls += 1,
            _ => {}
        }
    }
    (fewest, calls)
}

/// ZD-T26, W10: deregistrations come in few calls and never go below what is left to serve.
#[tokio::test(flavor = "multi_thread")]
async fn zd_t26_w10_from_ten_pods_to_three_nothing_is_lost_and_three_stay_healthy() -> Result<()> {
    let service = ServiceManifest::load_balancer("web", "web").pod_mode();
    let (world, address) = served_by(slow_cloud(), service, OnTerm::Exit).await?;
    world
        .objects
        .apply(deployment("web", 10, OnTerm::Exit))
        .await?;
    world.objects.rolled_out("web", WITHIN).await?;
    let healthy = |count: usize| {
        let world = &world;
        async move || {
            let inventory = world.cloud.look(e2e_cloud::engine::Engine::inventory);
            let of = |targets: &[e2e_cloud::engine::TargetStatus]| {
                let good = targets.iter().filter(|t| t.state == TargetState::Healthy);
                good.count()
            };
            let counts = inventory.groups.iter().map(|(_, targets)| of(targets));
            let counts: Vec<usize> = counts.collect();
            (counts.iter().all(|n| *n == count))
                .then_some(())
                .ok_or_else(|| format!("{counts:?}"))
        }
    };
    eventually(&world.clock, "ten are healthy", WITHIN, healthy(10)).await?;
    let before = world.cloud.look(|engine| engine.log().last());
    let report = Rollout {
        world: &world,
        address,
    }
    .during(async || {
        let fewer = Patch::Merge(json!({"spec": {"replicas": 3}}));
        let deployments = world.objects.api::<Deployment>();
        let params = PatchParams::default();
        deployments.patch("web", &params, &fewer).await?;
        world.objects.rolled_out("web", WITHIN).await?;
        eventually(&world.clock, "three are left", WITHIN, healthy(3)).await?;
        // The cloud's tail.
        world.clock.sleep(std::time::Duration::from_secs(6)).await;
        Ok(())
    })
    .await?;
    no_new_connection_lost(&report);
    let (fewest, calls) = after(&world, before);
    assert_eq!(fewest, 3, "ZD-T26");
    // A few for each of the two groups.
    assert!(calls <= 8, "ZD-T26: {calls} calls");
    world.end().await
}
