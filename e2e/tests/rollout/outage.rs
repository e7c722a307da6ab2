//! A rollout that leaves nobody for a moment: all pods end at once, and their successors are not ready yet.

use crate::{
    promise::{ends, failed_at},
    support::{WITHIN, served_by},
    tails::slow_cloud,
};
use anyhow::{Context, Result};
use e2e_kubelet::PodStep;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Patch, PatchParams};
use onehop_core::time::Time;
use onehop_e2e::{
    scenario::Rollout,
    traffic::{FailureKind, Transport},
    world::{OnTerm, ServiceManifest, World, eventually},
};
use serde_json::json;
use std::time::Duration;

/// From a pod's readiness to every node's knowing of it.
const KNOWN_WITHIN: Duration = Duration::from_millis(700);

/// When the first pod of the new generation was ready.
fn first_ready(world: &World, after: Time) -> Option<Time> {
    let events = world.journal.events().into_iter();
    let mut ready = events.filter(|event| matches!(event.step, PodStep::Ready) && event.at > after);
    ready.next().map(|event| event.at)
}

/// Between the last end and the first readiness everything is refused at once; nothing is lost before or after, although
/// the cloud takes seconds to find the new targets healthy (ZD-22a, ZD-55, W11).
#[tokio::test(flavor = "multi_thread")]
async fn zd_t02_zd22a_zd55_w11_while_nobody_serves_all_is_refused_and_nothing_is_lost_around_it()
-> Result<()> {
    let service = ServiceManifest::load_balancer("web", "web").pod_mode();
    let (world, address) = served_by(slow_cloud(), service, OnTerm::Exit).await?;
    let all_at_once =
        json!({"spec": {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "100%"}}}});
    let deployments = world.objects.api::<Deployment>();
    let params = PatchParams::default();
    deployments
        .patch("web", &params, &Patch::Merge(all_at_once))
        .await?;
    let before = world.clock.now();
    let report = Rollout {
        world: &world,
        address,
    }
    .during(async || {
        world.objects.restart("web").await?;
        world.objects.rolled_out("web", WITHIN).await?;
        // The cloud goes on sending to the old targets until it has found the new ones healthy, and its tails are over.
        let pods = world.pod_addresses("web").await?;
        let what = "the targets are the new pods";
        eventually(&world.clock, what, WITHIN, async || {
            let targets = world.registered_addresses();
            (targets == pods)
                .then_some(())
                .ok_or_else(|| format!("targets {targets:?}, pods {pods:?}"))
        })
        .await?;
        world.clock.sleep(Duration::from_secs(6)).await;
        Ok(())
    })
    .await?;
    let last_exit = ends(&world, true).into_iter().filter(|at| *at > before);
    let last_exit = last_exit.max().context("an exit")?;
    let back = first_ready(&world, last_exit).context("a new pod")? + KNOWN_WITHIN;
    let mut refused = 0;
    for (at, failure) in failed_at(&report) {
        // What a pod had accepted ends with it (W4); a datagram in flight is nobody's.
        if failure.was_accepted() || failure.transport == Transport::Udp {
            continue;
        }
        assert_eq!(failure.kind, FailureKind::Refused, "ZD-55: {failure:?}");
        refused += 1;
        // One that waits for its second SYN began before.
        let second_syn = Duration::from_millis(1_500);
        assert!(
            at + second_syn >= last_exit && at < back,
            "ZD-T02: {failure:?} at {at}, nobody served from {last_exit} to {back}"
        );
    }
    assert!(refused > 0, "ZD-T02: nobody was away");
    world.end().await
}
