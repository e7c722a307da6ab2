//! `edit`, `annotate`, `label`, `patch` and `scale`.

use crate::kubectl::{Applied, applied};
use anyhow::{Result, ensure};
use onehop_e2e::{
    scenario::Rollout,
    traffic::ask_tcp,
    world::{Cluster, ServiceManifest, eventually},
};
use std::{collections::BTreeSet, time::Duration};

const WITHIN: Duration = Duration::from_secs(30);

/// C-08: of what people type while a Service serves, nothing costs it a connection, and a typo least of all.
pub(crate) async fn c08_edit_annotate_label_and_patch_change_a_service_that_serves(
    on: Cluster,
) -> Result<()> {
    let at = applied(on, 2, ServiceManifest::load_balancer("web", "web")).await?;
    let rollout = Rollout {
        world: &at.world,
        address: at.address,
    };
    let report = rollout
        .during(async || {
            edit(&at).await?;
            annotate(&at).await?;
            label(&at).await?;
            patch(&at).await
        })
        .await?;
    ensure!(report.failed == 0, "{:#?}", report.failures);
    at.world.end().await
}

async fn edit(at: &Applied) -> Result<()> {
    let kubectl = &at.kubectl;
    let script = "s/externalTrafficPolicy: Cluster/externalTrafficPolicy: Local/";
    let said = kubectl.edit("edit service web", script).await?.ok()?;
    ensure!(said == "service/web edited", "{said}");
    let policy = "get service web -o jsonpath={.spec.externalTrafficPolicy}";
    ensure!(kubectl.ok(policy).await? == "Local");
    let again = kubectl.edit("edit service web", script).await?;
    ensure!(
        again.err == "Edit cancelled, no changes made." && again.status == Some(0),
        "{again:?}"
    );
    let bad = "s/externalTrafficPolicy: Local/externalTrafficPolicy: Nearby/";
    let said = kubectl.edit("edit service web", bad).await?.refused()?;
    ensure!(
        said.contains("services \"web\" is invalid")
            && said.contains("no valid changes were saved"),
        "{said}"
    );
    ensure!(kubectl.ok(policy).await? == "Local");
    Ok(())
}

async fn annotate(at: &Applied) -> Result<()> {
    let kubectl = &at.kubectl;
    let said = kubectl
        .ok("annotate service web onehop.dev/target=pods")
        .await?;
    ensure!(said == "service/web annotated", "{said}");
    let told = "the typo is told";
    eventually(&at.world.clock, told, WITHIN, async || {
        let events = kubectl.ok("events --for service/web --types=Warning").await;
        let events = events.map_err(|e| e.to_string())?;
        let said = events.contains("AnnotationInvalid") && events.contains("onehop.dev/target");
        said.then_some(()).ok_or(events)
    })
    .await?;
    let kept = kubectl
        .refused("annotate service web onehop.dev/target=pod")
        .await?;
    ensure!(
        kept == "error: --overwrite is false but found the following declared annotation(s): 'onehop.dev/target' already has a value (pods)",
        "{kept}"
    );
    kubectl
        .ok("annotate service web onehop.dev/target=pod --overwrite")
        .await?;
    kubectl
        .ok("wait olb/web --for=jsonpath={.status.summary.mode}=pod --timeout=30s")
        .await?;
    kubectl
        .ok("annotate service web onehop.dev/target-")
        .await?;
    kubectl
        .ok("wait olb/web --for=jsonpath={.status.summary.mode}=node --timeout=30s")
        .await
        .map(drop)
}

async fn label(at: &Applied) -> Result<()> {
    let kubectl = &at.kubectl;
    ensure!(kubectl.ok("label service web tier=front").await? == "service/web labeled");
    let kept = kubectl.refused("label service web tier=back").await?;
    ensure!(
        kept == "error: 'tier' already has a value (front), and --overwrite is false",
        "{kept}"
    );
    kubectl
        .ok("label service web tier=back --overwrite")
        .await?;
    ensure!(kubectl.ok("get services -l tier=back -o name").await? == "service/web");
    ensure!(kubectl.ok("label service web tier-").await? == "service/web unlabeled");
    ensure!(kubectl.ok("label node a disk=fast").await? == "node/a labeled");
    ensure!(kubectl.ok("get nodes -l disk=fast -o name").await? == "node/a");
    kubectl.ok("label nodes --all disk-").await.map(drop)
}

async fn patch(at: &Applied) -> Result<()> {
    let kubectl = &at.kubectl;
    let policy = "get service web -o jsonpath={.spec.externalTrafficPolicy}";
    let cluster = r#"{"spec":{"externalTrafficPolicy":"Cluster"}}"#;
    let local = r#"[{"op":"replace","path":"/spec/externalTrafficPolicy","value":"Local"}]"#;
    for (kind, patch, now) in [
        ("strategic", cluster, "Cluster"),
        ("json", local, "Local"),
        ("merge", cluster, "Cluster"),
    ] {
        let said = kubectl
            .ok(&format!("patch service web --type={kind} -p {patch}"))
            .await?;
        ensure!(said == "service/web patched", "{said}");
        ensure!(kubectl.ok(policy).await? == now, "{kind}");
    }
    let same = kubectl
        .ok(&format!("patch service web -p {cluster}"))
        .await?;
    ensure!(same == "service/web patched (no change)", "{same}");
    Ok(())
}

pub(crate) async fn scale_says_what_it_expected(on: Cluster) -> Result<()> {
    let at = applied(
        on,
        1,
        ServiceManifest::load_balancer("web", "web").pod_mode(),
    )
    .await?;
    let kubectl = &at.kubectl;
    let said = kubectl
        .ok("scale deployment web --current-replicas=1 --replicas=3")
        .await?;
    ensure!(said == "deployment.apps/web scaled", "{said}");
    let not = kubectl
        .refused("scale deployment web --current-replicas=1 --replicas=2")
        .await?;
    ensure!(not == "error: Expected replicas to be 1, was 3", "{not}");
    kubectl
        .ok("rollout status deployment/web --timeout=60s")
        .await?;
    let what = "all three pods answer";
    let seen = std::sync::Mutex::new(BTreeSet::new());
    eventually(&at.world.clock, what, WITHIN, async || {
        let (answer, _) = ask_tcp(&at.world.sockets, at.address)
            .await
            .map_err(|f| format!("{f:?}"))?;
        let mut seen = seen.lock().map_err(|e| e.to_string())?;
        seen.insert(answer.pod);
        (seen.len() == 3).then_some(()).ok_or(format!("{seen:?}"))
    })
    .await?;
    at.world.end().await
}
