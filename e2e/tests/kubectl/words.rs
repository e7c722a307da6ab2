//! What a cluster says about its kinds, and about what happened in it: `explain`, `api-resources`, `events`, `wait`.

use crate::kubectl::{Kubectl, applied, squeezed};
use anyhow::{Result, ensure};
use onehop_e2e::{
    controlplane::BackEnd,
    world::{Cluster, ServiceManifest, World, WorldConfig},
};

/// Kinds of the scenarios: plural, short names, group and version, whether in namespaces, kind.
const RESOURCES: [&str; 10] = [
    "services svc v1 true Service",
    "pods po v1 true Pod",
    "nodes no v1 false Node",
    "namespaces ns v1 false Namespace",
    "deployments deploy apps/v1 true Deployment",
    "replicasets rs apps/v1 true ReplicaSet",
    "endpointslices discovery.k8s.io/v1 true EndpointSlice",
    "addresspools onehop.dev/v1alpha1 false AddressPool",
    "loadbalancers olb onehop.dev/v1alpha1 true LoadBalancer",
    "nodetargets onehop.dev/v1alpha1 false NodeTargets",
];

pub(crate) async fn explain_and_api_resources_know_our_kinds(on: Cluster) -> Result<()> {
    let config = WorldConfig {
        cluster: on,
        ..WorldConfig::default()
    };
    let world = World::start(config).await?;
    let kubectl = Kubectl::of(&world)?;
    let known = squeezed(&kubectl.ok("api-resources").await?);
    for wanted in RESOURCES {
        ensure!(known.lines().any(|l| l == wanted), "{wanted}: {known}");
    }
    let ours = kubectl
        .ok("api-resources --api-group=onehop.dev -o name")
        .await?;
    ensure!(
        ours == "addresspools.onehop.dev\nloadbalancers.onehop.dev\nnodetargets.onehop.dev",
        "{ours}"
    );
    let versions = kubectl.ok("api-versions").await?;
    ensure!(
        versions.lines().any(|l| l == "onehop.dev/v1alpha1"),
        "{versions}"
    );

    let port = squeezed(&kubectl.ok("explain olb.spec.ports.mode").await?);
    for wanted in [
        "GROUP: onehop.dev",
        "FIELD: mode <string>",
        "ENUM:\nnode\nvip\npod",
        "Where traffic goes.",
    ] {
        ensure!(port.contains(wanted), "{wanted}: {port}");
    }
    let pool = squeezed(&kubectl.ok("explain addresspool --recursive").await?);
    for wanted in [
        "addresses <[]string> -required-",
        "metadata <ObjectMeta>",
        "finalizers <[]string>",
    ] {
        ensure!(pool.contains(wanted), "{wanted}: {pool}");
    }
    let unknown = kubectl.refused("explain olb.spec.nothing").await?;
    ensure!(
        unknown.contains("field \"nothing\" does not exist"),
        "{unknown}"
    );
    // The embedded server has no words for the kinds that it did not get as a definition.
    if on.back_end == BackEnd::Real {
        let policy = kubectl
            .ok("explain service.spec.externalTrafficPolicy")
            .await?;
        ensure!(
            policy.contains("externalTrafficPolicy <string>"),
            "{policy}"
        );
    }
    world.end().await
}

pub(crate) async fn events_and_waits_say_why_and_when(on: Cluster) -> Result<()> {
    let at = applied(on, 2, ServiceManifest::load_balancer("web", "web")).await?;
    let kubectl = &at.kubectl;
    for (line, said) in [
        (
            "wait deployment/web --for=condition=Available",
            "deployment.apps/web condition met",
        ),
        (
            "wait olb/web --for=condition=Programmed",
            "loadbalancer.onehop.dev/web condition met",
        ),
        (
            "wait olb --all --for=condition=TargetsReady",
            "loadbalancer.onehop.dev/web condition met",
        ),
        (
            "wait service/web --for=jsonpath={.spec.type}=LoadBalancer",
            "service/web condition met",
        ),
        (
            "wait node/a node/b --for=condition=Ready",
            "node/a condition met\nnode/b condition met",
        ),
        ("wait service/nobody --for=delete", ""),
    ] {
        let out = kubectl.ok(&format!("{line} --timeout=30s")).await?;
        ensure!(out == said, "{line}: {out}");
    }
    let never = "wait service/web --for=jsonpath={.spec.type}=ClusterIP --timeout=1s";
    let late = kubectl.refused(never).await?;
    ensure!(
        late == "error: timed out waiting for the condition on services/web",
        "{late}"
    );

    let headers = kubectl.headers("events --for service/web").await?;
    ensure!(
        headers == ["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"],
        "{headers:?}"
    );
    let events = kubectl.ok("events --for service/web --no-headers").await?;
    ensure!(
        events.contains("EnsuredLoadBalancer") && events.contains("Service/web"),
        "{events}"
    );
    // Kubernetes' own repair of addresses warns of a Service that was made while it looked: nothing that we say.
    let of_others = "ClusterIPNotAllocated";
    let warnings = kubectl
        .ok("events --for service/web --types=Warning --no-headers")
        .await?;
    let ours = warnings.lines().filter(|line| !line.contains(of_others));
    let ours: Vec<&str> = ours.collect();
    ensure!(ours.is_empty(), "{ours:?}");
    let selected = "get events --field-selector involvedObject.kind=Service,reason=IPAllocated";
    let selected = kubectl.rows(selected).await?;
    ensure!(
        selected.len() == 1 && selected[0][3] == "service/web",
        "{selected:?}"
    );
    at.world.end().await
}
