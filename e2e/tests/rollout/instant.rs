//! Pods that exit at once on SIGTERM, in pod mode: some connections are lost, and each is explained.

use crate::support::served;
use anyhow::Result;
use onehop_e2e::{
    scenario::Rollout,
    world::{OnTerm, ServiceManifest},
};

#[tokio::test(flavor = "multi_thread")]
async fn every_loss_of_an_instant_rollout_in_pod_mode_is_explained() -> Result<()> {
    let (world, address) = served(
        ServiceManifest::load_balancer("web", "web").pod_mode(),
        OnTerm::Exit,
    )
    .await?;
    let report = Rollout {
        world: &world,
        address,
    }
    .restart("web")
    .await?;
    for failure in &report.failures {
        assert!(
            !failure.pod_uid.contains("unknown"),
            "no pod known for {failure:?}"
        );
        assert!(
            !failure.target_state.contains("unknown"),
            "no target state known for {failure:?}"
        );
        assert!(
            failure.ms_since_sigterm.is_some(),
            "a loss without a SIGTERM: {failure:?}"
        );
    }
    assert!(
        report.kept_rate >= 0.95,
        "the load kept only {:.2} of its rate",
        report.kept_rate
    );
    world.end().await
}
