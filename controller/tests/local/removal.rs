//! The end of an install: `kubectl onehop uninstall` as people run it, with a controller and after it, and what is cleaned
//! up last.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Service;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use onehop_controller::node_targets::RELEASED_FOR;
use onehop_controller::uninstall::{Removed, UninstallError, clean_up};
use onehop_core::crd::{LoadBalancer, NodeTargets, SERVICE_FINALIZER};
use onehop_core::id::InstallId;
use onehop_core::time::Time;
use onehop_runtime::clock::Clock;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::cluster::read;
use crate::support::{FIRST, POOL, SECOND, get, has_address, pod_mode};
use crate::world::World;

const INSTALL: &str = "demo-local";

/// What a run has said, and how it ended.
async fn uninstall(kubeconfig: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-onehop"));
    command
        .args(["uninstall", "--install-id", INSTALL])
        .args(arguments)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = command.output().await.unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    (output.status.code(), said)
}

fn all<K>(world: &World) -> Api<K>
where
    K: kube::Resource<DynamicType = (), Scope = kube::core::ClusterResourceScope>,
{
    Api::all(world.admin())
}

fn holds(service: &Service) -> bool {
    service.finalizers().iter().any(|f| f == SERVICE_FINALIZER)
}

/// Two Services with a load balancer each.
async fn two(world: &World) {
    world.endpoints("web", &[1], &[]).await;
    world.service("web", pod_mode()).await;
    has_address(world, "web", FIRST).await;
    world.endpoints("api", &[2], &[]).await;
    world.service("api", pod_mode()).await;
    has_address(world, "api", SECOND).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c80_c81_services_are_let_go_by_the_controller_that_runs() {
    let world = World::start(POOL).await;
    let (_serving, kubeconfig) = world.serve("onehop-removal");
    let controller = world.replica(INSTALL, "a").working().await;
    two(&world).await;

    // C-80: the same check as the hook's.
    let (code, said) = uninstall(&kubeconfig, &["-A"]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("default/api: held\n  1. holds "),
        "C-80: {said}"
    );
    assert!(said.contains("default/web: held\n"), "C-80: {said}");
    let (code, said) = uninstall(&kubeconfig, &["-A", "--yes"]).await;
    assert_eq!(code, Some(2), "what to do has to be said: {said}");
    assert!(said.contains("--how"), "{said}");

    // C-81, C-93: dry runs.
    for (how, step) in [
        ("delete", "delete it"),
        ("convert", "make it type ClusterIP"),
    ] {
        let (code, said) = uninstall(&kubeconfig, &["-A", "--how", how]).await;
        assert_eq!(code, Some(0), "{said}");
        let step = format!("default/web: ready\n  1. {step}: the controller removes");
        assert!(said.contains(&step), "C-81: {said}");
        assert!(
            said.ends_with("Nothing was done: give --yes to do it.\n"),
            "C-81: {said}"
        );
    }
    // It would put the finalizers back.
    let (code, said) = uninstall(&kubeconfig, &["-A", "--how", "keep", "--yes"]).await;
    assert_eq!(code, Some(1), "C-81: {said}");
    assert!(
        said.contains("stopped by: the controller of install demo-local runs (Lease default/onehop-controller-demo-local is held by a)"),
        "C-81: {said}"
    );
    for name in ["web", "api"] {
        assert!(holds(&get(&world, name).await), "C-81: {name}");
    }

    let (code, said) = uninstall(&kubeconfig, &["web", "--how", "convert", "--yes"]).await;
    assert_eq!(
        (code, said.as_str()),
        (Some(0), "default/web: let go\n"),
        "C-81"
    );
    let web = get(&world, "web").await;
    let kind = web.spec.as_ref().and_then(|spec| spec.type_.clone());
    assert_eq!(kind.as_deref(), Some("ClusterIP"), "C-81");
    assert!(!holds(&web), "C-81: {:?}", web.metadata);
    let (code, said) = uninstall(&kubeconfig, &["-A", "--how", "delete", "--yes"]).await;
    assert_eq!(
        (code, said.as_str()),
        (Some(0), "default/api: let go\n"),
        "C-81"
    );
    assert!(
        world
            .api::<Service>()
            .get_opt("api")
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(
        world.held(),
        [] as [std::net::IpAddr; 0],
        "C-81: the cloud has nothing left"
    );

    let (code, said) = uninstall(&kubeconfig, &["-A"]).await;
    assert_eq!(code, Some(0), "C-80");
    assert_eq!(
        said,
        "No Service holds a load balancer of install demo-local.\n"
    );
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c81_l37_after_the_controller_load_balancers_stay_for_one_that_comes_back() {
    let world = World::start(POOL).await;
    let (_serving, kubeconfig) = world.serve("onehop-strip");
    let controller = world.replica(INSTALL, "a").working().await;
    two(&world).await;
    // Its node goes at once with its pods, so that it never says good-bye.
    controller.kill().await;
    let made = world.all_writes();

    let (code, said) = uninstall(&kubeconfig, &["-A", "--how", "delete", "--yes"]).await;
    assert_eq!(code, Some(1), "C-81: nobody would remove anything: {said}");
    assert!(
        said.contains("stopped by: no controller of install demo-local runs"),
        "{said}"
    );
    assert_eq!(
        get(&world, "web").await.metadata.deletion_timestamp,
        None,
        "C-81"
    );

    let (code, said) = uninstall(&kubeconfig, &["-A", "--how", "keep"]).await;
    assert_eq!(code, Some(0), "{said}");
    for part in [
        "default/web: ready\n  1. take onehop.dev/load-balancer off\n  2. take onehop.dev/targets off its LoadBalancer\n",
        "leave in the cloud, with our tags: ",
        "Nothing was done: give --yes to do it.",
    ] {
        assert!(said.contains(part), "C-81: {part}: {said}");
    }
    assert!(holds(&get(&world, "web").await), "C-81: a dry run");

    let (code, said) = uninstall(&kubeconfig, &["-A", "--how", "keep", "--yes"]).await;
    assert_eq!(code, Some(0), "C-81: {said}");
    assert!(said.contains("default/web: let go"), "C-81: {said}");
    assert!(
        said.contains("Removed: 1 NodeTargets, the install's entry in 0 more, 1 Leases."),
        "C-82: {said}"
    );
    for name in ["web", "api"] {
        assert_eq!(
            get(&world, name).await.finalizers(),
            [] as [String; 0],
            "C-81"
        );
        assert!(world.address(name).await.is_some(), "C-10: it serves on");
    }
    assert_eq!(world.all_writes(), made, "C-81: the cloud's objects stay");
    let told = all::<NodeTargets>(&world)
        .list(&ListParams::default())
        .await
        .unwrap();
    assert_eq!(told.items, [], "C-82");
    let (code, said) = uninstall(&kubeconfig, &["-A"]).await;
    assert_eq!(code, Some(0), "C-81: {said}");

    // L-37: nothing hangs, neither the Service nor our object, which goes with it. The other one is taken up by who comes back.
    let object = world.api::<LoadBalancer>().get("api").await.unwrap();
    assert_eq!(object.finalizers(), [] as [String; 0], "C-81");
    let services = world.api::<Service>();
    services
        .delete("api", &DeleteParams::default())
        .await
        .unwrap();
    assert!(services.get_opt("api").await.unwrap().is_none(), "L-37");
    let created = world.held();
    let back = world.replica(INSTALL, "b").working().await;
    world
        .eventually("it is ours again", async |w| holds(&get(w, "web").await))
        .await;
    assert_eq!(world.address("web").await.as_deref(), Some(FIRST), "C-81");
    assert!(
        world.held().iter().all(|held| created.contains(held)),
        "C-81: it adopts"
    );
    back.stop().await;
}

/// An entry of a node with one released port.
fn released(since: Time) -> Value {
    let service = json!({ "namespace": "default", "name": "web", "uid": "u" });
    let port = json!({
        "service": service, "portName": "http", "protocol": "TCP", "nodePort": 30080,
        "state": "released", "since": since, "lateFlows": "forward",
    });
    json!({ "local": [port], "cluster": {} })
}

async fn told(world: &World, node: &str, installs: Value) {
    let object: NodeTargets = read(json!({
        "apiVersion": "onehop.dev/v1alpha1", "kind": "NodeTargets", "metadata": { "name": node },
        "spec": { "installs": installs },
    }));
    all(world)
        .create(&PostParams::default(), &object)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c82_k21_node_targets_go_with_the_last_install_that_has_an_entry() {
    let world = World::start(POOL).await;
    let clock = Clock::system();
    let (entry, almost) = (
        json!({ "cluster": {} }),
        clock.now() - RELEASED_FOR + Duration::from_secs(2),
    );
    told(&world, "ours", json!({ INSTALL: entry })).await;
    told(
        &world,
        "both",
        json!({ INSTALL: released(almost), "green": entry }),
    )
    .await;
    told(&world, "theirs", json!({ "green": entry })).await;
    let lease: Lease = read(json!({ "metadata": { "name": "onehop-controller-demo-local" } }));
    world
        .api::<Lease>()
        .create(&PostParams::default(), &lease)
        .await
        .unwrap();
    let leases = [(
        "default".to_owned(),
        "onehop-controller-demo-local".to_owned(),
    )];
    let client = world.admin();

    // Not as long as load balancers send to what is listed.
    let held = read(
        json!({ "metadata": { "name": "held", "finalizers": [SERVICE_FINALIZER] },
        "spec": { "type": "LoadBalancer", "loadBalancerClass": "onehop.dev/local", "ports": [{ "port": 80 }] } }),
    );
    world
        .api::<Service>()
        .create(&PostParams::default(), &held)
        .await
        .unwrap();
    let refused = clean_up(&client, &INSTALL.into(), &leases, clock).await;
    assert!(
        matches!(refused, Err(UninstallError::StillHeld(_))),
        "C-82: {refused:?}"
    );
    assert!(
        all::<NodeTargets>(&world)
            .get_opt("ours")
            .await
            .unwrap()
            .is_some(),
        "C-82"
    );
    let none = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    let params = PatchParams::default();
    world
        .api::<Service>()
        .patch("held", &params, &none)
        .await
        .unwrap();

    let removed = clean_up(&client, &INSTALL.into(), &leases, clock)
        .await
        .unwrap();
    let ended = clock.now();
    let wanted = Removed {
        objects: 1,
        entries: 1,
        leases: 1,
    };
    assert_eq!(removed, wanted, "C-82");
    assert!(
        ended >= almost + RELEASED_FOR,
        "K-21: an agent that stays has seen it"
    );
    let objects = all::<NodeTargets>(&world);
    assert!(objects.get_opt("ours").await.unwrap().is_none(), "C-82");
    for name in ["both", "theirs"] {
        let installs = objects.get(name).await.unwrap().spec.installs;
        let left: Vec<_> = installs.keys().map(InstallId::as_str).collect();
        assert_eq!(left, ["green"], "C-82: {name}");
    }
    assert!(
        world
            .api::<Lease>()
            .get_opt(&leases[0].1)
            .await
            .unwrap()
            .is_none(),
        "C-82"
    );

    // The other one is the last; what is gone already is none of its business.
    let removed = clean_up(&client, &"green".into(), &leases, clock)
        .await
        .unwrap();
    assert_eq!(
        removed,
        Removed {
            objects: 2,
            ..Removed::default()
        },
        "C-82"
    );
}
