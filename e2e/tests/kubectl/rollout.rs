//! `rollout`, under load.

use crate::kubectl::{Kubectl, applied};
use anyhow::{Result, ensure};
use onehop_e2e::{
    scenario::Rollout,
    world::{Cluster, ServiceManifest},
};

/// Waits for the end of a rollout as people do.
async fn done(kubectl: &Kubectl) -> Result<()> {
    let status = kubectl
        .ok("rollout status deployment/web --timeout=60s")
        .await?;
    let last = status.lines().last();
    ensure!(
        last == Some("deployment \"web\" successfully rolled out"),
        "{status}"
    );
    Ok(())
}

/// The numbers of the revisions that are kept.
async fn revisions(kubectl: &Kubectl) -> Result<Vec<String>> {
    let history = kubectl.ok("rollout history deployment/web").await?;
    let lines = history.lines().skip(2);
    let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
    Ok(lines.filter_map(first).collect())
}

pub(crate) async fn restart_undo_and_resume_lose_no_connection(on: Cluster) -> Result<()> {
    let service = ServiceManifest::load_balancer("web", "web").pod_mode();
    let at = applied(on, 4, service).await?;
    let kubectl = &at.kubectl;
    let rollout = Rollout {
        world: &at.world,
        address: at.address,
    };
    let report = rollout
        .during(async || {
            let said = kubectl.ok("rollout restart deployment/web").await?;
            ensure!(said == "deployment.apps/web restarted", "{said}");
            done(kubectl).await?;
            ensure!(revisions(kubectl).await? == ["1", "2"]);
            let said = kubectl.ok("rollout undo deployment/web").await?;
            ensure!(said == "deployment.apps/web rolled back", "{said}");
            done(kubectl).await?;
            // The first template again, under a new number.
            ensure!(revisions(kubectl).await? == ["2", "3"]);

            kubectl.ok("rollout pause deployment/web").await?;
            let said = kubectl.ok("set env deployment/web COLOUR=red").await?;
            ensure!(said == "deployment.apps/web env updated", "{said}");
            let status = kubectl
                .ok("rollout status deployment/web --watch=false")
                .await?;
            ensure!(
                status
                    == "Waiting for deployment \"web\" rollout to finish: 0 out of 4 new replicas have been updated...",
                "{status}"
            );
            let paused = kubectl.refused("rollout restart deployment/web").await?;
            ensure!(paused.contains("can't restart paused deployment"), "{paused}");
            kubectl.ok("rollout resume deployment/web").await?;
            done(kubectl).await?;
            ensure!(revisions(kubectl).await? == ["2", "3", "4"]);
            let template = kubectl
                .ok("rollout history deployment/web --revision=4")
                .await?;
            ensure!(template.contains("COLOUR:\tred"), "{template}");
            Ok(())
        })
        .await?;
    ensure!(report.failed == 0, "{:#?}", report.failures);
    ensure!(
        report.syn_retx == 0,
        "{} SYN segments again",
        report.syn_retx
    );
    at.world.end().await
}
