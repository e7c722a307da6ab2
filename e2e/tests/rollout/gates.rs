//! Readiness gates with agents that answer for pods: a pod that waits for its gate has to pass the check that the gate
//! waits for, and a rollout waits for the load balancer (AWS-412, AWS-506, ZD-90).

use crate::support::WITHIN;
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt, api::ListParams};
use onehop_controller::plan::gates;
use onehop_core::{
    crd::{HealthBy, INSTALL_LABEL, LoadBalancer},
    id::{PortKey, Protocol, ServiceKey},
};
use onehop_e2e::{
    scenario::Rollout,
    world::{OnTerm, ServiceManifest, World, WorldConfig, deployment, first_answer},
};
use serde_json::json;
use std::net::SocketAddr;

#[tokio::test(flavor = "multi_thread")]
async fn aws412_aws506_zd90_pods_get_ready_when_the_load_balancer_has_them_and_rollouts_wait()
-> Result<()> {
    let world = World::start(WorldConfig::default()).await?;
    let service = ServiceManifest::load_balancer("web", "web").pod_mode();
    world.objects.apply(service.json()).await?;
    let address = SocketAddr::from((world.lb_address("web").await?, 80));
    let object = world.objects.api::<LoadBalancer>().get("web").await?;
    let by = |by| {
        object
            .spec
            .ports
            .iter()
            .all(|p| p.health.as_ref().is_some_and(|h| h.by == by))
    };
    ensure!(by(HealthBy::Agent), "K-24: {:?}", object.spec.ports);
    let install = object.labels().get(INSTALL_LABEL).context("an install")?;
    let gate = gates::name(
        &install.as_str().into(),
        &ServiceKey::new("default", "web"),
        80,
        &PortKey::new(object.spec.ports[0].name.clone(), Protocol::Tcp),
    );
    let mut pods = deployment("web", 4, OnTerm::Exit);
    pods["spec"]["template"]["spec"]["readinessGates"] = json!([{ "conditionType": gate }]);
    world.objects.apply(pods).await?;
    world.objects.rolled_out("web", WITHIN).await?;
    first_answer(&world, address).await?;
    let report = Rollout {
        world: &world,
        address,
    }
    .during(async || {
        world.objects.restart("web").await?;
        world.objects.rolled_out("web", WITHIN).await
    })
    .await?;
    assert_eq!(report.failed, 0, "ZD-90: {:#?}", report.failures);
    // Every pod's gate was opened by its target's health.
    let all = world
        .objects
        .api::<Pod>()
        .list(&ListParams::default().labels("app=web"))
        .await?;
    for pod in all {
        let conditions = pod
            .status
            .iter()
            .flat_map(|s| s.conditions.iter().flatten());
        let mut of_gate = conditions.filter(|c| c.type_ == gate);
        let said = of_gate.next().and_then(|c| c.reason.clone());
        assert_eq!(
            said.as_deref(),
            Some("Healthy"),
            "AWS-506: {}",
            pod.name_any()
        );
    }
    world.end().await
}
