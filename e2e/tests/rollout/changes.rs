//! Changes of a Service under load, as users make them with `kubectl apply`: none loses a connection.

use crate::support::{WITHIN, served};
use anyhow::{Context, Result};
use e2e_cloud::engine::{Operation, What};
use onehop_core::time::Time;
use onehop_e2e::{
    scenario::Rollout,
    traffic::LongFlow,
    world::{OnTerm, POD_PORT, ServiceManifest, World, eventually},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, time::Duration};

/// Flows that are open all the time.
const FLOWS: usize = 10;
/// How long these worlds' controllers keep a group that was switched away from.
const SWITCH_TAIL: Duration = Duration::from_secs(5);
/// Listeners of the Service: TCP and UDP.
const LISTENERS: usize = 2;

fn web() -> ServiceManifest {
    ServiceManifest::load_balancer("web", "web")
}

/// The ports of [`web`] under other names, and one more: what adding a second port makes of the first.
fn renamed() -> Value {
    json!([
        {"name": "a", "port": 80, "protocol": "TCP", "targetPort": POD_PORT},
        {"name": "b", "port": 80, "protocol": "UDP", "targetPort": POD_PORT},
        {"name": "more", "port": 90, "protocol": "TCP", "targetPort": POD_PORT},
    ])
}

fn listeners_put(world: &World) -> usize {
    let events = world.cloud.events_after(0, usize::MAX);
    let put = |what: &What| {
        matches!(
            what,
            What::ApiAnswer {
                operation: Operation::PutListener,
                result: "ok",
                ..
            }
        )
    };
    events.iter().filter(|event| put(&event.what)).count()
}

/// Applies a change and waits until that many listeners were pointed to another group.
async fn switches(world: &World, listeners: usize, change: ServiceManifest) -> Result<()> {
    let before = listeners_put(world);
    world.objects.apply(change.json()).await?;
    eventually(
        &world.clock,
        &format!("{listeners} listeners have another group"),
        WITHIN,
        async || {
            let put = listeners_put(world) - before;
            if put == listeners {
                Ok(())
            } else {
                Err(format!("{put} were put"))
            }
        },
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn zd28_zd_t23_w13_i2_no_change_of_policy_mode_or_port_names_loses_a_connection() -> Result<()>
{
    let (world, address) = served(web(), OnTerm::ServeSeconds(5)).await?;
    let local = web().with("externalTrafficPolicy", json!("Local"));
    let mut flows = Vec::new();
    for _ in 0..FLOWS {
        let every = Duration::from_millis(200);
        let flow = LongFlow::open(&world.sockets, address, every, world.clock).await;
        flows.push(flow.map_err(|failure| anyhow::anyhow!("open a long flow: {failure:?}"))?);
    }
    let report = Rollout {
        world: &world,
        address,
    }
    .during(async || {
        switches(&world, LISTENERS, local).await?;
        switches(&world, LISTENERS, web()).await?;
        switches(&world, LISTENERS, web().pod_mode()).await?;
        switches(&world, LISTENERS, web().vip_mode()).await?;
        switches(&world, LISTENERS, web().pod_mode()).await?;
        switches(&world, LISTENERS, web().vip_mode()).await?;
        switches(&world, LISTENERS, web()).await?;
        switches(&world, LISTENERS + 1, web().with("ports", renamed())).await?;
        // I10: a typo changes nothing, a rollout goes on under it.
        let typo = web()
            .with("ports", renamed())
            .annotated("onehop.dev/target", "pods");
        world.objects.apply(typo.json()).await?;
        world.objects.restart("web").await?;
        world.objects.rolled_out("web", WITHIN).await?;
        switches(&world, LISTENERS, web()).await
    })
    .await?;
    assert_eq!(report.failed, 0, "{:#?}", report.failures);
    assert_eq!(report.syn_retx, 0, "SYN segments were sent again");
    let mut lived = 0;
    for flow in flows {
        let pod = flow.first.uid.clone();
        let end = flow.end().await.context("a flow's task ended")?;
        // All pods are replaced in the course of it: a flow may end with its own, and not before.
        let Some((at, failure)) = end.cut else {
            continue;
        };
        let told = world.journal.sigterm_of(&pod);
        let early = told.is_none_or(|told| at < told);
        assert!(!early, "ZD-T23: an established flow was cut: {failure:?}");
        lived += 1;
    }
    assert!(lived > 0, "ZD-T23: flows lived to the end of their pods");
    old_groups_serve_on(&world);
    world.end().await
}

/// ZD-28: no group is deleted sooner than its tail after a listener had left it.
fn old_groups_serve_on(world: &World) {
    let mut pointed: BTreeMap<String, String> = BTreeMap::new();
    let mut left: BTreeMap<String, Time> = BTreeMap::new();
    let mut deleted = 0;
    for event in world.cloud.events_after(0, usize::MAX) {
        match &event.what {
            What::ListenerSet {
                lb,
                listener,
                group,
            } => {
                let listener = format!("{lb} {listener}");
                let old = match group {
                    Some(group) => pointed.insert(listener, group.to_string()),
                    None => pointed.remove(&listener),
                };
                left.extend(old.map(|old| (old, event.wall_time)));
            }
            What::ApiCall {
                operation: Operation::DeleteGroup,
                subject,
            } => {
                let Some(since) = left.get(subject) else {
                    continue;
                };
                let took = event.wall_time.since(*since);
                assert!(took >= SWITCH_TAIL, "ZD-T23: {subject} after {took:?}");
                deleted += 1;
            }
            _ => {}
        }
    }
    assert!(deleted > 0, "ZD-T23: no old group was deleted");
}
