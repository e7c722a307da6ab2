//! `delete`, with finalizers and dependents.

use crate::kubectl::{Kubectl, applied};
use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use onehop_e2e::{
    traffic::ask_tcp,
    world::{Cluster, ServiceManifest, eventually, first_answer},
};
use serde_json::json;
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(20);

/// K-03: our finalizer holds a Service until what was made for it is gone; so does anybody else's hold their object.
pub(crate) async fn k03_a_service_goes_only_when_its_load_balancer_is_gone(
    on: Cluster,
) -> Result<()> {
    let at = applied(on, 2, ServiceManifest::load_balancer("web", "web")).await?;
    let kubectl = &at.kubectl;
    at.world.controller.signal(Signal::SIGSTOP)?;
    let late = kubectl.refused("delete service web --timeout=1s").await?;
    // Its log may have a line before it, of the watch that ended with the second.
    ensure!(
        late.lines().last() == Some("error: timed out waiting for the condition on services/web"),
        "{late}"
    );
    let held =
        "get service web -o jsonpath={.metadata.finalizers[0]}/{.metadata.deletionTimestamp}";
    let held = kubectl.ok(held).await?;
    ensure!(
        held.starts_with("onehop.dev/load-balancer/2") && at.world.load_balancers() == 1,
        "{held}"
    );
    // Its clients are served as long as somebody has yet to take it down.
    first_answer(&at.world, at.address).await?;
    at.world.controller.signal(Signal::SIGCONT)?;
    kubectl
        .ok("wait service/web --for=delete --timeout=30s")
        .await?;
    ensure!(at.world.load_balancers() == 0, "a load balancer is left");
    let olb = kubectl.run("get olb").await?;
    ensure!(
        olb.err == "No resources found in default namespace.",
        "{olb:?}"
    );
    eventually(
        &at.world.clock,
        "nothing answers",
        WITHIN,
        async || match ask_tcp(&at.world.sockets, at.address).await {
            Err(_) => Ok(()),
            Ok(answer) => Err(format!("{answer:?}")),
        },
    )
    .await?;
    foreign_finalizer(kubectl).await?;
    at.world.end().await
}

async fn foreign_finalizer(kubectl: &Kubectl) -> Result<()> {
    let held = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "held", "finalizers": ["example.com/hold"]}, "data": {"a": "1"},
    });
    kubectl.with("apply", &held).await?.ok()?;
    let said = kubectl.run("delete configmap held --timeout=1s").await?;
    ensure!(
        said.out.starts_with("configmap \"held\" deleted")
            && said.err == "error: timed out waiting for the condition on configmaps/held",
        "{said:?}"
    );
    let again = kubectl.ok("delete configmap held --wait=false").await?;
    ensure!(again.starts_with("configmap \"held\" deleted"), "{again}");
    let more = kubectl
        .refused(r#"patch configmap held --type=merge -p {"metadata":{"finalizers":["example.com/hold","example.com/more"]}}"#)
        .await?;
    ensure!(
        more.contains("no new finalizers can be added if the object is being deleted"),
        "{more}"
    );
    kubectl
        .ok(r#"patch configmap held --type=merge -p {"metadata":{"finalizers":null}}"#)
        .await?;
    let gone = kubectl.refused("get configmap held").await?;
    ensure!(
        gone == "Error from server (NotFound): configmaps \"held\" not found",
        "{gone}"
    );
    ensure!(
        kubectl
            .ok("delete configmap held --ignore-not-found")
            .await?
            .is_empty()
    );
    Ok(())
}

pub(crate) async fn dependents_go_as_the_cascade_says(on: Cluster) -> Result<()> {
    let at = applied(on, 2, ServiceManifest::load_balancer("web", "web")).await?;
    let kubectl = &at.kubectl;
    let of_web = "get replicasets,pods -l app=web -o name";
    kubectl.ok("delete deployment web --cascade=orphan").await?;
    let orphans = kubectl.ok(of_web).await?;
    ensure!(orphans.lines().count() == 3, "{orphans}");
    // Their Service goes on.
    first_answer(&at.world, at.address).await?;
    // A pod of theirs is made again.
    let pods = kubectl
        .ok("get pods -l app=web -o jsonpath={.items[*].metadata.name}")
        .await?;
    let pod = pods.split(' ').next().unwrap_or_default();
    kubectl
        .ok(&format!("delete pod {pod} --grace-period=1 --timeout=30s"))
        .await?;
    let replicas =
        "wait replicaset -l app=web --for=jsonpath={.status.readyReplicas}=2 --timeout=30s";
    kubectl.ok(replicas).await?;
    // In the foreground the command ends when the pods are gone.
    kubectl
        .ok("delete replicaset -l app=web --cascade=foreground --timeout=60s")
        .await?;
    let left = kubectl.run(of_web).await?;
    ensure!(left.status == Some(0) && left.out.is_empty(), "{left:?}");

    // With a namespace goes all that is in it, its load balancer too.
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}});
    kubectl.with("apply", &namespace).await?.ok()?;
    let mut service = ServiceManifest::load_balancer("shop", "shop").json();
    service["metadata"]["namespace"] = json!("shop");
    kubectl.with("apply", &service).await?.ok()?;
    // It is made a moment after its Service.
    for what in ["create", "condition=Programmed"] {
        let wait = format!("wait olb/shop -n shop --for={what} --timeout=30s");
        kubectl.ok(&wait).await?;
    }
    ensure!(at.world.load_balancers() == 2);
    let said = kubectl.ok("delete namespace shop --timeout=60s").await?;
    ensure!(said == "namespace \"shop\" deleted", "{said}");
    ensure!(
        at.world.load_balancers() == 1,
        "the load balancer of shop is left"
    );
    at.world.end().await
}
