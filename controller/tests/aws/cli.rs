//! `kubectl onehop` as people run it, against a controller that acts.

use std::path::Path;
use std::process::Stdio;

use kube::ResourceExt;
use onehop_core::crd::SERVICE_FINALIZER;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::peer::{FINALIZER, Peer, Targets, tags};
use crate::world::{Flags, OWN_CLASS, World};

/// What a run has said, and how it ended.
async fn onehop(kubeconfig: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-onehop"));
    let run = command.args(arguments).arg("--kubeconfig").arg(kubeconfig);
    let output = run
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.code(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

async fn json_of(kubeconfig: &Path, arguments: &[&str]) -> (Option<i32>, Value) {
    let (code, said) = onehop(kubeconfig, &[arguments, &["-o", "json"]].concat()).await;
    let value = serde_json::from_str(&said);
    (
        code,
        value.unwrap_or_else(|error| panic!("{error}: {said}")),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn aws124_aws130_preflight_tells_a_take_over_and_release_gives_it_back() {
    let world = World::start().await;
    let (_serving, kubeconfig) = world.serve("onehop-cli");
    let peer = Peer::serves(&world, "web", Targets::Pods).await;
    let (code, said) = onehop(&kubeconfig, &["preflight"]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("default/web: stopped") && said.contains("no install claims it"),
        "{said}"
    );

    peer.checks_every(&world.aws, 30);
    let looking = world.controller(Flags::default()).await;
    world
        .eventually("preflight names what differs", async |_| {
            let (code, all) = json_of(&kubeconfig, &["preflight", "-A"]).await;
            let differs = all[0]["differences"][0]
                .as_str()
                .is_some_and(|d| d.starts_with("modify-target-group"));
            code == Some(1) && all[0]["state"] == "Stopped" && differs
        })
        .await;
    looking.kill().await;
    peer.checks_every(&world.aws, 10);
    let looking = world.controller(Flags::default()).await;
    world
        .eventually("preflight finds it ready", async |_| {
            let (code, said) = onehop(&kubeconfig, &["preflight", "web"]).await;
            code == Some(0) && said.starts_with("default/web: ready\n  1. create-security-group")
        })
        .await;
    assert_eq!(world.aws.writes(), [""; 0], "AWS-124: it writes nothing");
    looking.kill().await;

    let _controller = world.controller(Flags::taking("*")).await;
    world
        .eventually("preflight finds it taken over", async |w| {
            let (code, all) = json_of(&kubeconfig, &["preflight", "web"]).await;
            let off = !peer.security_groups(&w.aws).contains(&peer.backend);
            code == Some(0) && all[0]["state"] == "TakenOver" && off
        })
        .await;
    let (code, said) = onehop(&kubeconfig, &["release", "web"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("default/web: ready") && said.contains(&peer.balancer),
        "AWS-124: {said}"
    );
    assert!(
        said.ends_with("Nothing was done: give --yes to do it.\n"),
        "AWS-124: {said}"
    );
    assert_eq!(
        world.get("web").await.finalizers(),
        [SERVICE_FINALIZER],
        "AWS-124"
    );

    let (code, all) = json_of(&kubeconfig, &["release", "-A", "--yes", "--timeout", "60"]).await;
    assert_eq!(
        (code, &all[0]["state"]),
        (Some(0), &json!("GivenBack")),
        "AWS-130: {all}"
    );
    assert_eq!(world.get("web").await.finalizers(), [FINALIZER], "AWS-130");
    let found = tags(&world.aws, &peer.balancer);
    assert!(
        found.keys().all(|key| !key.starts_with("onehop.dev/")),
        "AWS-130: {found:?}"
    );
    let (code, said) = onehop(&kubeconfig, &["release", "web", "--yes"]).await;
    assert_eq!(
        (code, said.contains("default/web: given back")),
        (Some(0), true),
        "again: {said}"
    );
    std::fs::remove_file(kubeconfig).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_given_back_or_told_is_said_with_an_exit_code() {
    let world = World::start().await;
    let (_serving, kubeconfig) = world.serve("onehop-cli-refusals");
    world.service("own", OWN_CLASS, json!({})).await;
    world.service("other", "example.com/else", json!({})).await;
    for (name, why) in [
        ("own", "its class is ours alone"),
        ("other", "it is not ours"),
    ] {
        let (code, said) = onehop(&kubeconfig, &["release", name, "--yes"]).await;
        assert_eq!(
            (code, said.contains(why)),
            (Some(1), true),
            "{name}: {said}"
        );
    }
    for (arguments, code, why) in [
        (
            &["release", "nobody"][..],
            2,
            "there is no Service default/nobody",
        ),
        (&["release", "own", "-A"], 2, "give -n instead of -A"),
        (&["preflight", "-A", "-n", "shop"], 2, "cannot be used with"),
        (&["release", "--timeout", "soon"], 2, "invalid value"),
        (
            &["preflight"],
            0,
            "No Service of aws-load-balancer-controller.",
        ),
        (&["release", "-A"], 0, "No Service that was taken over."),
        (&["release", "--help"], 0, "Only told without --yes"),
        (&["preflight", "--help"], 0, "what would stop it"),
    ] {
        let (ended, said) = onehop(&kubeconfig, arguments).await;
        assert_eq!(
            (ended, said.contains(why)),
            (Some(code), true),
            "{arguments:?}: {said}"
        );
    }
    let (code, said) = onehop(Path::new("/nonexistent"), &["preflight"]).await;
    assert_eq!(
        (code, said.contains("/nonexistent")),
        (Some(2), true),
        "{said}"
    );
    std::fs::remove_file(kubeconfig).unwrap();
}
