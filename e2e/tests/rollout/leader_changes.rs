//! Two controllers, and the leader goes in the middle of a graceful rollout in pod mode: killed, stopped for longer
//! than its Lease lasts, or asked to end. Nothing is lost, and it writes nothing after its successor's first write.

use crate::support::{WITHIN, rollout_reached_the_cloud, served_by, targets_are_the_new_pods};
use anyhow::Result;
use e2e_cloud::engine::What;
use nix::sys::signal::Signal;
use onehop_e2e::{
    scenario::Rollout,
    world::{OnTerm, Replicas, ServiceManifest, World, WorldConfig, eventually},
};

/// Pods accept for longer than a Lease lasts: a rollout is graceful only if somebody can follow it in time.
const SERVE_SECONDS: u32 = 10;

/// Who wrote to the cloud, each run of calls by one process once.
fn cloud_writers(world: &World) -> Vec<String> {
    let events = world.cloud.events_after(0, usize::MAX);
    let callers = events.iter().filter_map(|event| match &event.what {
        What::Observed {
            source,
            event,
            fields,
        } if source == "rest" && event == "write" => Some(fields["caller"].to_string()),
        _ => None,
    });
    let mut writers: Vec<String> = callers.collect();
    writers.dedup();
    writers
}

/// Waits until the leader is another one than `old` and has written to the cloud.
async fn succeeded(world: &World, old: &str) -> Result<()> {
    eventually(&world.clock, "a successor writes", WITHIN, async || {
        let (_, now) = world.leader().await?;
        let writers = cloud_writers(world);
        if now != old && writers.last().is_some_and(|w| w.contains(&now)) {
            Ok(())
        } else {
            Err(format!("{now} leads, writers {writers:?}"))
        }
    })
    .await
}

async fn leader_goes(how: Signal) -> Result<()> {
    let config = WorldConfig {
        replicas: Replicas::Two,
        ..WorldConfig::default()
    };
    let manifest = ServiceManifest::load_balancer("web", "web").pod_mode();
    let (world, address) = served_by(config, manifest, OnTerm::ServeSeconds(SERVE_SECONDS)).await?;
    let mut requests = world.audit()?;
    let report = Rollout {
        world: &world,
        address,
    }
    .during(async || {
        world.objects.restart("web").await?;
        rollout_reached_the_cloud(&world).await?;
        let what = "somebody leads";
        let leads = async || world.leader().await;
        let (old, identity) = eventually(&world.clock, what, WITHIN, leads).await?;
        let pid = old.pid();
        old.signal(how)?;
        succeeded(&world, &identity).await?;
        if how == Signal::SIGSTOP {
            old.signal(Signal::SIGCONT)?;
            eventually(&world.clock, "the old one ends", WITHIN, async || {
                if old.pid() == pid {
                    Err("it goes on".to_owned())
                } else {
                    Ok(())
                }
            })
            .await?;
        }
        world.objects.rolled_out("web", WITHIN).await
    })
    .await?;
    assert_eq!(report.failed, 0, "{:#?}", report.failures);
    targets_are_the_new_pods(&world).await?;
    let writers = cloud_writers(&world);
    assert_eq!(
        writers.len(),
        2,
        "one after the other, none comes back: {writers:?}"
    );
    let mut writes = requests.writes()?;
    writes.retain(|write| write.user.contains(":controller-") && write.resource != "leases");
    let mut users: Vec<String> = writes.into_iter().map(|write| write.user).collect();
    users.dedup();
    assert!(users.len() <= 2, "nor to the API server: {users:?}");
    assert_eq!(world.load_balancers(), 1, "no second load balancer");
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn i9_c36_a_killed_leader_is_followed_without_loss() -> Result<()> {
    leader_goes(Signal::SIGKILL).await
}

#[tokio::test(flavor = "multi_thread")]
async fn i9_c36_a_stopped_leader_writes_nothing_once_it_goes_on() -> Result<()> {
    leader_goes(Signal::SIGSTOP).await
}

#[tokio::test(flavor = "multi_thread")]
async fn i9_c36_a_leader_that_is_asked_to_end_hands_over_without_loss() -> Result<()> {
    leader_goes(Signal::SIGTERM).await
}
