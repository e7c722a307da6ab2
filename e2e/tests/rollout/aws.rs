//! Rollouts behind a Network Load Balancer, whose health checks take longer to find a pod healthy than old pods go on.

use crate::{
    promise::no_new_connection_lost,
    support::{WITHIN, served_by, targets_are_the_new_pods},
};
use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use onehop_e2e::{
    scenario::{FailureReport, Rollout},
    world::{CloudKind, OnTerm, ServiceManifest, World, WorldConfig, deployment, eventually},
};
use std::time::Duration;

/// A world on AWS with four pods behind a Network Load Balancer, as ip targets.
async fn four_pods() -> Result<(World, std::net::SocketAddr)> {
    let config = WorldConfig {
        cloud: CloudKind::Aws,
        ..WorldConfig::default()
    };
    let service = ServiceManifest::load_balancer("web", "web").pod_mode();
    served_by(config, service.of_cloud(CloudKind::Aws), OnTerm::Exit).await
}

/// Waits until every pod of `web` is a target that was found healthy.
async fn all_healthy(world: &World) -> Result<()> {
    use e2e_cloud::engine::{Engine, TargetState};
    targets_are_the_new_pods(world).await?;
    let what = "every registered target is healthy";
    eventually(&world.clock, what, WITHIN, async || {
        let inventory = world.cloud.look(Engine::inventory);
        let targets = inventory.groups.iter().flat_map(|(_, targets)| targets);
        let waiting = targets.filter(|t| t.state == TargetState::Initial).count();
        if waiting == 0 {
            Ok(())
        } else {
            Err(format!("{waiting} are not judged yet"))
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn aws421_aws702_aws953_twenty_pods_replaced_one_by_one_cost_few_calls() -> Result<()> {
    const PODS: u32 = 20;
    let (world, _) = four_pods().await?;
    let scaled = deployment("web", PODS, OnTerm::Exit);
    world.objects.apply(scaled).await?;
    world.objects.rolled_out("web", WITHIN).await?;
    all_healthy(&world).await?;
    let before = world.cloud_calls();
    let pods = world.objects.api::<Pod>();
    let old = pods.list(&ListParams::default().labels("app=web")).await?;
    for pod in old {
        pods.delete(&pod.name_any(), &DeleteParams::default())
            .await?;
        world.clock.sleep(Duration::from_secs(1)).await;
    }
    world.objects.rolled_out("web", WITHIN).await?;
    all_healthy(&world).await?;
    let now = world.cloud_calls();
    let spent = |action: &str| {
        let name = format!("elasticloadbalancing:{action}");
        let count = |calls: &std::collections::BTreeMap<String, u64>| {
            calls.get(&name).copied().unwrap_or_default()
        };
        count(&now) - count(&before)
    };
    let members = spent("RegisterTargets") + spent("DeregisterTargets");
    let reads = spent("DescribeTargetHealth");
    // Measured of aws-load-balancer-controller: 40 and 41.
    assert!(members <= 40, "AWS-421: {members} calls for members");
    assert!(reads <= 25, "AWS-702: {reads} reads of health");
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn ai03_ai04_zd_t04_pods_that_exit_at_once_lose_no_new_connection_behind_a_network_load_balancer()
-> Result<()> {
    let (world, address) = four_pods().await?;
    let rollout = Rollout {
        world: &world,
        address,
    };
    let report = rollout.restart("web").await?;
    no_new_connection_lost(&report);
    let late = |f: &&FailureReport| f.ms_since_sigterm.is_none_or(|ms| ms >= 1_000);
    let late: Vec<&FailureReport> = report.failures.iter().filter(late).collect();
    // C-130: with guard and agents' health answers, as on EC2 with the VPC's own CNI.
    assert!(late.is_empty(), "lost long after the exit: {late:#?}");
    targets_are_the_new_pods(&world).await?;
    world.end().await
}
