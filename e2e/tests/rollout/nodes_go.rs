//! Nodes that are cordoned, announced to go, or gone at once, with pods as targets.

use crate::{
    promise::{failed_at, no_new_connection_lost},
    support::{SPEED, WITHIN, membership_changes, nlb, served_by, web_of_nlb},
};
use anyhow::{Context, Result};
use e2e_cloud::{assertions::writes_after, engine::Lag};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use onehop_e2e::{
    scenario::{FailureReport, Rollout, RolloutReport},
    traffic::Transport,
    world::{OnTerm, ServiceManifest, World, WorldConfig, eventually},
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, net::IpAddr, time::Duration};

async fn spec(world: &World, node: &str, spec: Value) -> Result<()> {
    let nodes: Api<Node> = Api::all(world.kube());
    let patch = Patch::Merge(json!({ "spec": spec }));
    nodes.patch(node, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Pods of `web` on a node, by name and address.
async fn pods_on(world: &World, node: &str) -> Result<Vec<(String, IpAddr)>> {
    let pods = world.objects.api::<Pod>();
    let of_it = ListParams::default()
        .labels("app=web")
        .fields(&format!("spec.nodeName={node}"));
    let pods = pods.list(&of_it).await?.items.into_iter();
    let place = |pod: Pod| {
        let address = pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()?;
        Some((pod.name_any(), address))
    };
    Ok(pods.filter_map(place).collect())
}

/// ZD-T20, ZD-71: a cordon is no reason for anything.
#[tokio::test(flavor = "multi_thread")]
async fn zd_t20_zd71_w5_cordons_of_every_node_in_turn_write_nothing_and_lose_nothing() -> Result<()>
{
    let service = ServiceManifest::load_balancer("web", "web").pod_mode();
    let (world, address) =
        served_by(WorldConfig::default(), service, OnTerm::ServeSeconds(5)).await?;
    let nodes = ServiceManifest::load_balancer("nodes", "web");
    world.objects.apply(nodes.json()).await?;
    world.lb_address("nodes").await?;
    world.at_rest(WITHIN).await?;
    let before = world.cloud.look(|engine| engine.log().last());
    let report = Rollout {
        world: &world,
        address,
    }
    .during(async || {
        for node in ["a", "b"] {
            for unschedulable in [json!(true), json!(null)] {
                spec(&world, node, json!({ "unschedulable": unschedulable })).await?;
                world.clock.sleep(Duration::from_millis(700)).await;
            }
        }
        Ok(())
    })
    .await?;
    assert_eq!(report.failed, 0, "ZD-T20: {:#?}", report.failures);
    assert_eq!(report.syn_retx, 0, "ZD-T20");
    let writes = writes_after(&world.cloud.events_after(before, usize::MAX), before);
    assert!(writes.is_empty(), "ZD-T20: {writes:?}");
    world.end().await
}

/// New connections that were lost, of those that began after this time.
fn lost(report: &RolloutReport) -> Vec<(onehop_core::time::Time, &FailureReport)> {
    let failed = failed_at(report).into_iter();
    let new = failed.filter(|(_, f)| f.transport == Transport::Tcp && !f.was_accepted());
    new.collect()
}

/// ZD-T29, ZD-100, W8: nothing can be saved on a node that is dark at once. Probes find out; others are not touched.
#[tokio::test(flavor = "multi_thread")]
async fn zd_t29_zd100_w8_a_node_that_crashes_costs_its_share_until_probes_have_found_out()
-> Result<()> {
    // Two probes, 2 s apart, of which each may take 2 s; the same again for the time of the verdict on packets.
    const FOUND_OUT: Duration = Duration::from_secs(8);
    let config = WorldConfig {
        nodes: vec!["a", "b", "c"],
        ..WorldConfig::default()
    };
    let service = ServiceManifest::load_balancer("web", "web").pod_mode();
    let (world, address) = served_by(config, service, OnTerm::Exit).await?;
    let on_it = pods_on(&world, "c").await?;
    let on_it: BTreeSet<IpAddr> = on_it.into_iter().map(|(_, address)| address).collect();
    assert!(!on_it.is_empty() && on_it.len() < 4, "ZD-T29: {on_it:?}");
    let mut crash = None;
    let report = Rollout {
        world: &world,
        address,
    }
    .during(async || {
        crash = Some(world.clock.now());
        world.kubelet("c")?.node().go_dark()?;
        world.clock.sleep(FOUND_OUT + Duration::from_secs(5)).await;
        Ok(())
    })
    .await?;
    let crash = crash.context("a crash")?;
    let lost = lost(&report);
    let late = lost.iter().filter(|(at, _)| *at > crash + FOUND_OUT);
    let late: Vec<_> = late.collect();
    assert!(late.is_empty(), "ZD-T29: {late:#?}");
    // Share of the node, a hundred a second; half as much again for how chance spreads flows.
    let bound = on_it.len() * 100 * usize::try_from(FOUND_OUT.as_secs())? / 4;
    assert!(lost.len() <= bound * 3 / 2, "ZD-100: {} lost", lost.len());
    let touched = membership_changes(&world).into_iter();
    let touched = touched.filter(|(target, (_, out))| *out > 0 && !on_it.contains(&target.ip()));
    let touched: Vec<_> = touched.collect();
    assert!(touched.is_empty(), "ZD-T29: {touched:?}");
    world.end().await
}

/// A node is announced to go and drained; what is lost when it is dark so long after.
async fn announced(lives: Duration) -> Result<(RolloutReport, f64)> {
    let config = WorldConfig {
        nodes: vec!["a", "b", "c"],
        keep_logs: false,
        ..nlb(Lag::secs(40))
    };
    let service = web_of_nlb();
    let key = "service.beta.kubernetes.io/aws-load-balancer-healthcheck";
    let service = service
        .annotated(&format!("{key}-interval"), "10")
        .annotated(&format!("{key}-unhealthy-threshold"), "3");
    let (world, address) = served_by(config, service, OnTerm::Exit).await?;
    let on_it = pods_on(&world, "c").await?;
    assert!(!on_it.is_empty(), "ZD-T19: no pod on the node");
    let share = f64::from(u32::try_from(on_it.len())?) / 4.0;
    let report = Rollout {
        world: &world,
        address,
    }
    .during(async || {
        let taint = json!({"key": "karpenter.sh/disrupted", "effect": "NoSchedule"});
        let going = json!({"taints": [taint], "unschedulable": true});
        spec(&world, "c", going).await?;
        let signal = world.clock.now();
        let pods = world.objects.api::<Pod>();
        for (name, _) in &on_it {
            pods.delete(name, &DeleteParams::default()).await?;
        }
        let what = "they are replaced elsewhere";
        eventually(&world.clock, what, WITHIN, async || {
            let left = pods_on(&world, "c").await.map_err(|e| e.to_string())?;
            let all = world.pod_addresses("web").await;
            let all = all.map_err(|e| e.to_string())?.len();
            (left.is_empty() && all == 4)
                .then_some(())
                .ok_or_else(|| format!("{left:?}, {all} pods"))
        })
        .await?;
        world.clock.sleep_until(signal + lives / SPEED).await;
        world.kubelet("c")?.node().go_dark()?;
        // To the end of every tail, and of clients' patience.
        world
            .clock
            .sleep(Duration::from_mins(2) / SPEED + Duration::from_secs(3))
            .await;
        Ok(())
    })
    .await?;
    world.end_early().await?;
    Ok((report, share))
}

#[tokio::test(flavor = "multi_thread")]
async fn zd_t19_w6_a_node_that_lives_150_s_after_its_taint_loses_nothing() -> Result<()> {
    let (report, _) = announced(Duration::from_secs(150)).await?;
    no_new_connection_lost(&report);
    Ok(())
}

/// ZD-101: three probes 10 s apart and 40 s of tail are 10 s more than it lives.
#[tokio::test(flavor = "multi_thread")]
async fn zd_t19_zd101_w7_a_node_that_lives_60_s_after_its_taint_loses_ten_seconds_of_its_share()
-> Result<()> {
    let (report, share) = announced(Duration::from_mins(1)).await?;
    let lost = lost(&report).len();
    // A hundred a second of the wall; what does not scale (clients' SYNs, probes under way) is another second.
    let bound = share * 100.0 * (10.0 / f64::from(SPEED) + 1.0);
    assert!(
        f64::from(u32::try_from(lost)?) <= bound,
        "ZD-T19: {lost} lost, {bound}"
    );
    Ok(())
}
