//! `apply`, both kinds of it, and `diff`.

use crate::kubectl::{Kubectl, applied, has_lines};
use anyhow::{Result, ensure};
use onehop_e2e::{
    traffic::ask_tcp,
    world::{
        Cluster, OnTerm, POD_PORT, ServiceManifest, World, WorldConfig, deployment, eventually,
        first_answer,
    },
};
use serde_json::{Value, json};
use std::{net::SocketAddr, time::Duration};

const WITHIN: Duration = Duration::from_secs(20);

fn port(name: &str, port: u16) -> Value {
    json!({"name": name, "port": port, "protocol": "TCP", "targetPort": POD_PORT})
}

/// A Service with these TCP ports.
fn web(ports: &[Value]) -> ServiceManifest {
    ServiceManifest::load_balancer("web", "web").with("ports", json!(ports))
}

async fn empty(on: Cluster) -> Result<(World, Kubectl)> {
    let config = WorldConfig {
        cluster: on,
        ..WorldConfig::default()
    };
    let world = World::start(config).await?;
    let kubectl = Kubectl::of(&world)?;
    Ok((world, kubectl))
}

pub(crate) async fn applied_again_without_a_port_and_an_annotation_they_are_gone_and_the_rest_serves(
    on: Cluster,
) -> Result<()> {
    let first = web(&[port("tcp", 80), port("more", 81)]).annotated("example.com/team", "red");
    let at = applied(on, 2, first.clone()).await?;
    let kubectl = &at.kubectl;
    let more = SocketAddr::new(at.address.ip(), 81);
    first_answer(&at.world, more).await?;
    let again = kubectl.with("apply", &first.json()).await?.ok()?;
    ensure!(again == "service/web unchanged", "{again}");
    // Somebody else's annotation is none of what was applied.
    kubectl
        .ok("annotate service web example.com/other=kept")
        .await?;

    let second = web(&[port("tcp", 80)]).json();
    let diff = kubectl.with("diff", &second).await?;
    ensure!(diff.status == Some(1), "C-73: {diff:?}");
    for gone in ["-  - name: more", "-    example.com/team: red"] {
        ensure!(diff.out.lines().any(|l| l == gone), "{gone}: {diff:#?}");
    }
    let dry = kubectl
        .with("apply --dry-run=server", &second)
        .await?
        .ok()?;
    ensure!(dry == "service/web configured (server dry run)", "{dry}");
    first_answer(&at.world, more).await?;
    let done = kubectl.with("apply", &second).await?.ok()?;
    ensure!(done == "service/web configured", "{done}");
    let none = kubectl.with("diff", &second).await?;
    ensure!(none.status == Some(0) && none.out.is_empty(), "{none:?}");
    let annotations = kubectl.ok("annotate service web --list").await?;
    ensure!(
        !annotations.contains("example.com/team=")
            && annotations.contains("example.com/other=kept"),
        "{annotations}"
    );
    eventually(
        &at.world.clock,
        "port 81 is closed",
        WITHIN,
        async || match ask_tcp(&at.world.sockets, more).await {
            Err(_) => Ok(()),
            Ok(answer) => Err(format!("{answer:?}")),
        },
    )
    .await?;
    first_answer(&at.world, at.address).await?;
    at.world.end().await
}

/// Who has fields of an object: manager, operation and subresource of each.
async fn managers(kubectl: &Kubectl, object: &str) -> Result<Vec<String>> {
    let text = kubectl
        .ok(&format!("get {object} --show-managed-fields -o json"))
        .await?;
    let object: Value = serde_json::from_str(&text)?;
    let entries = object["metadata"]["managedFields"].as_array();
    let words = |entry: &Value| {
        let words = ["manager", "operation", "subresource"];
        let words = words.iter().filter_map(|word| entry[word].as_str());
        words.collect::<Vec<_>>().join(" ")
    };
    Ok(entries.into_iter().flatten().map(words).collect())
}

/// A Deployment with so many replicas.
fn replicas(count: u32) -> Value {
    deployment("web", count, OnTerm::Exit)
}

pub(crate) async fn server_side_apply_names_who_has_a_field_and_takes_it_by_force(
    on: Cluster,
) -> Result<()> {
    let (world, kubectl) = empty(on).await?;
    let alice = "apply --server-side --field-manager=alice";
    let bob = "apply --server-side --field-manager=bob";
    let said = kubectl.with(alice, &replicas(1)).await?.ok()?;
    ensure!(said == "deployment.apps/web serverside-applied", "{said}");
    // The same value is no conflict: both have it then.
    kubectl.with(bob, &replicas(1)).await?.ok()?;
    let conflict = kubectl.with(bob, &replicas(2)).await?.refused()?;
    has_lines(
        &conflict,
        &[
            "error: Apply failed with 1 conflict: conflict with \"alice\": .spec.replicas",
            "* If you intend to manage all of these fields, please re-run the apply",
        ],
    )?;
    let replicas_now = "get deployment web -o jsonpath={.spec.replicas}";
    ensure!(kubectl.ok(replicas_now).await? == "1");
    let forced = format!("{bob} --force-conflicts");
    kubectl.with(&forced, &replicas(2)).await?.ok()?;
    ensure!(kubectl.ok(replicas_now).await? == "2");
    let back = kubectl.with(alice, &replicas(1)).await?.refused()?;
    ensure!(back.contains("conflict with \"bob\""), "{back}");
    // `scale` is a manager of its own, whom an apply does not overrule either.
    kubectl.ok("scale deployment web --replicas=3").await?;
    let scaled = kubectl.with(bob, &replicas(2)).await?.refused()?;
    ensure!(scaled.contains(".spec.replicas"), "{scaled}");
    let managers = managers(&kubectl, "deployment web").await?;
    for wanted in ["alice Apply", "bob Apply"] {
        ensure!(managers.iter().any(|m| m == wanted), "{managers:?}");
    }
    let scaled = |manager: &String| manager.ends_with(" Update scale");
    ensure!(managers.iter().any(scaled), "{managers:?}");
    world.end().await
}

pub(crate) async fn client_side_apply_can_be_followed_by_server_side_apply(
    on: Cluster,
) -> Result<()> {
    let (world, kubectl) = empty(on).await?;
    let service =
        |ports: &[Value]| ServiceManifest::cluster_ip("web", "web").with("ports", json!(ports));
    let both = [port("tcp", 80), port("more", 81)];
    kubectl.with("apply", &service(&both).json()).await?.ok()?;
    let said = kubectl
        .with("apply --server-side", &service(&both[..1]).json())
        .await?
        .ok()?;
    ensure!(said == "service/web serverside-applied", "{said}");
    // What client-side apply had is server-side apply's now, which takes away what it no longer names.
    let ports = "get service web -o jsonpath={.spec.ports[*].port}";
    ensure!(kubectl.ok(ports).await? == "80");
    // The second is of the annotation that keeps what was applied last.
    let mut managers = managers(&kubectl, "service web").await?;
    managers.sort();
    ensure!(
        managers == ["kubectl Apply", "kubectl-last-applied Apply"],
        "{managers:?}"
    );
    world.end().await
}

pub(crate) async fn what_is_not_valid_is_refused_in_the_same_words(on: Cluster) -> Result<()> {
    let (world, kubectl) = empty(on).await?;
    let web = ServiceManifest::load_balancer("web", "web");
    let policy = web.clone().with("externalTrafficPolicy", json!("Nearby"));
    let said = kubectl.with("apply", &policy.json()).await?.refused()?;
    ensure!(
        said == "The Service \"web\" is invalid: spec.externalTrafficPolicy: Unsupported value: \"Nearby\": supported values: \"Cluster\", \"Local\"",
        "{said}"
    );
    let unknown = web.with("portz", json!([]));
    let said = kubectl.with("apply", &unknown.json()).await?.refused()?;
    ensure!(
        said.contains("strict decoding error: unknown field \"spec.portz\""),
        "{said}"
    );
    let pool = json!({
        "apiVersion": "onehop.dev/v1alpha1", "kind": "AddressPool", "metadata": {"name": "bad"},
        "spec": {"addresses": "198.51.100.0/24"},
    });
    let said = kubectl.with("apply", &pool).await?.refused()?;
    ensure!(
        said.contains("The AddressPool \"bad\" is invalid: spec.addresses: Invalid value: \"string\": spec.addresses in body must be of type array: \"string\""),
        "{said}"
    );
    let none = kubectl
        .ok("get services -l service.kubernetes.io/service-proxy-name -o name")
        .await?;
    ensure!(none.is_empty(), "{none}");
    world.end().await
}
