//! Pods that exit at once on SIGTERM, as most servers do, in pod mode: no new connection is lost. What such a pod had
//! accepted ends with it, and each of these is explained.

use crate::{
    promise::{all_released, no_new_connection_lost},
    support::served,
};
use anyhow::Result;
use onehop_e2e::{
    scenario::{FailureReport, Rollout},
    world::{OnTerm, ServiceManifest},
};

#[tokio::test(flavor = "multi_thread")]
async fn zd_t04_pods_that_exit_at_once_lose_no_new_connection_in_pod_mode() -> Result<()> {
    let (world, address) = served(
        ServiceManifest::load_balancer("web", "web").pod_mode(),
        OnTerm::Exit,
    )
    .await?;
    // ZD-03, ZD-40: plain pods, without gates, hooks or a change of any kind.
    let rollout = Rollout {
        world: &world,
        address,
    };
    let report = rollout.restart("web").await?;
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
    // ZD-T04, ZD-104: the time between exit and guard costs a client one more SYN, and no connection.
    no_new_connection_lost(&report);
    // ZD-T24: a datagram cannot be sent again by anybody but the client, but one sent a second later is answered.
    let late = |f: &&FailureReport| f.ms_since_sigterm.is_some_and(|ms| ms >= 1_000);
    let late: Vec<&FailureReport> = report.failures.iter().filter(late).collect();
    assert!(late.is_empty(), "lost long after the exit: {late:#?}");
    assert!(
        report.kept_rate >= 0.95,
        "the load kept only {:.2} of its rate",
        report.kept_rate
    );
    all_released(&world).await?;
    world.end().await
}
