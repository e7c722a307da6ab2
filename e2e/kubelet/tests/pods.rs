//! Pods from birth to end, on real processes.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod common;

use std::time::Duration;

use common::{World, address, at, condition, server, world};
use e2e_kubelet::PodStep;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

#[tokio::test]
async fn the_node_is_registered_with_its_addresses_and_ready() {
    let world = world().await;
    let nodes: Api<Node> = Api::all(world.client.clone());
    let node = serde_json::to_value(nodes.get("a").await.unwrap()).unwrap();
    assert_eq!(node["spec"]["podCIDR"], "10.244.1.0/24");
    assert_eq!(
        node["status"]["addresses"][0],
        json!({"type": "InternalIP", "address": "10.0.1.11"})
    );
    assert_eq!(
        node["metadata"]["labels"]["topology.kubernetes.io/zone"],
        "zone-a"
    );
    let ready = node["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .find(|c| c["type"] == "Ready");
    assert_eq!(ready.unwrap()["status"], "True");
}

#[tokio::test]
async fn fc79c_a_pod_runs_answers_with_its_identity_and_is_ready_by_its_probe() {
    let world = world().await;
    world.create("web", server(&["--start-delay=0.5"])).await;
    let running = |p: Option<&Pod>| {
        p.is_some_and(|p| {
            p.status
                .as_ref()
                .is_some_and(|s| s.phase.as_deref() == Some("Running"))
        })
    };
    let pod = world.until("web", "running", running).await.unwrap();
    assert_eq!(condition(&pod, "Ready"), "False", "before its start delay");
    let pod = world.until_ready("web").await;
    let status = pod.status.as_ref().unwrap();
    assert_eq!(status.host_ip.as_deref(), Some("10.0.1.11"));
    assert_eq!(address(&pod).to_string(), "10.244.1.2");
    for kind in ["PodScheduled", "Initialized", "ContainersReady"] {
        assert_eq!(condition(&pod, kind), "True", "{kind}");
    }
    let identity = |answer: &Value| {
        assert_eq!(answer["pod"], "web", "FC-79c");
        assert_eq!(answer["uid"], json!(pod.metadata.uid), "FC-79c");
        assert_eq!(answer["node"], "a", "FC-79c");
        let peer = answer["peer"].as_str().unwrap();
        assert!(
            peer.starts_with(&world.caller.address().to_string()),
            "FC-79c: {peer}"
        );
    };
    let (greeting, mut stream) = world.tcp(at(address(&pod), 7000)).await.unwrap();
    identity(&greeting);
    stream.write_all(b"still there\n").await.unwrap();
    let mut line = String::new();
    stream.read_line(&mut line).await.unwrap();
    assert_eq!(line, "still there\n");
    let (code, body) = world.http(at(address(&pod), 8080), "/any").await.unwrap();
    assert_eq!(code, 200);
    identity(&serde_json::from_str(&body).unwrap());
    let socket = world
        .caller
        .netns()
        .udp_socket("0.0.0.0:0".parse().unwrap())
        .unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(2)))
        .unwrap();
    socket.send_to(b"ping", at(address(&pod), 7000)).unwrap();
    let mut buffer = [0; 1024];
    let length = socket.recv(&mut buffer).unwrap();
    let answer: Value = serde_json::from_slice(&buffer[..length]).unwrap();
    identity(&answer);
    assert_eq!(answer["data"], "ping");
}

/// Deletes the pod and returns its log from the deletion on, with times in ms since then.
async fn ended(world: &World, name: &str) -> Vec<(u128, PodStep)> {
    world.delete(name).await;
    world.until(name, "gone", |p| p.is_none()).await;
    let gone = |s: &PodStep| matches!(s, PodStep::Gone);
    world
        .eventually("gone from the node", async || {
            world.steps().iter().any(gone)
        })
        .await;
    let events = world.events();
    let marked = events
        .iter()
        .position(|e| matches!(e.step, PodStep::DeletionMarked { .. }))
        .unwrap();
    let since = events[marked].at;
    events[marked..]
        .iter()
        .map(|e| (e.at.since(since).as_millis(), e.step.clone()))
        .collect()
}

fn when(log: &[(u128, PodStep)], of: impl Fn(&PodStep) -> bool) -> u128 {
    log.iter()
        .find(|(_, step)| of(step))
        .unwrap_or_else(|| panic!("{log:?}"))
        .0
}

#[tokio::test]
async fn fc79c_a_pod_that_exits_at_once_is_gone_at_once() {
    let world = world().await;
    world.create("web", server(&[])).await;
    let pod = world.until_ready("web").await;
    let log = ended(&world, "web").await;
    let exited = |s: &PodStep| matches!(s, PodStep::Exited { code: 0, .. });
    assert!(when(&log, exited) < 5000, "FC-79c: {log:?}");
    assert!(
        !log.iter()
            .any(|(_, s)| matches!(s, PodStep::Sigkill { .. }))
    );
    assert_eq!(
        world.fabric.router().owner(address(&pod)),
        Some(world.node.secondary_port()),
        "FC-75"
    );
}

#[tokio::test]
async fn fc79c_a_pod_that_goes_on_serving_accepts_until_its_time_is_over_and_finishes_what_is_open()
{
    let world = world().await;
    world.create("web", server(&["--on-term=serve:2s"])).await;
    let pod = world.until_ready("web").await;
    let to = at(address(&pod), 7000);
    let (_, mut stream) = world.tcp(to).await.unwrap();
    world.delete("web").await;
    let sigterm = |s: &PodStep| matches!(s, PodStep::Sigterm { .. });
    world
        .eventually("SIGTERM", async || world.steps().iter().any(sigterm))
        .await;
    assert!(
        world.tcp(to).await.is_some(),
        "FC-79c: accepts after SIGTERM"
    );
    let unready = async || {
        world
            .http(at(address(&pod), 8080), "/ready")
            .await
            .is_some_and(|(code, _)| code == 503)
    };
    world.eventually("not ready", unready).await;
    world
        .eventually("closed", async || world.tcp(to).await.is_none())
        .await;
    stream.write_all(b"open\n").await.unwrap();
    let mut line = String::new();
    stream.read_line(&mut line).await.unwrap();
    assert_eq!(line, "open\n", "FC-79c: what is open goes on");
    drop(stream);
    world.until("web", "gone", |p| p.is_none()).await;
}

#[tokio::test]
async fn pre_stop_comes_before_sigterm_and_sigkill_at_the_end_of_the_grace() {
    let world = world().await;
    let mut spec = server(&["--on-term=ignore"]);
    spec["terminationGracePeriodSeconds"] = json!(2);
    spec["containers"][0]["lifecycle"] =
        json!({ "preStop": { "exec": { "command": ["sleep", "1"] } } });
    world.create("web", spec).await;
    world.until_ready("web").await;
    let log = ended(&world, "web").await;
    let sigterm = when(&log, |s| matches!(s, PodStep::Sigterm { .. }));
    let sigkill = when(&log, |s| matches!(s, PodStep::Sigkill { .. }));
    assert!(sigterm >= 1000, "{log:?}");
    assert!(
        sigkill >= sigterm + 2000,
        "two seconds at least after preStop: {log:?}"
    );
    assert!(
        when(&log, |s| matches!(s, PodStep::Exited { code: 137, .. })) >= sigkill,
        "{log:?}"
    );
}

#[tokio::test]
async fn a_killed_container_of_a_host_network_pod_is_restarted() {
    let world = world().await;
    let mut spec = server(&[]);
    spec["hostNetwork"] = json!(true);
    world.create("agent", spec).await;
    let pod = world.until_ready("agent").await;
    assert_eq!(address(&pod), world.node.address());
    let pid = world.kubelet.pids("default", "agent")["server"];
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pid.try_into().unwrap()),
        nix::sys::signal::SIGKILL,
    )
    .unwrap();
    let restarted = |p: Option<&Pod>| {
        let status = p.and_then(|p| p.status.as_ref()?.container_statuses.as_ref()?.first());
        status.is_some_and(|s| s.restart_count == 1 && s.ready)
    };
    let pod = world.until("agent", "restarted", restarted).await.unwrap();
    let status = serde_json::to_value(pod.status.unwrap()).unwrap();
    assert_eq!(
        status["containerStatuses"][0]["lastState"]["terminated"]["exitCode"],
        137
    );
    assert_ne!(world.kubelet.pids("default", "agent")["server"], pid);
    assert!(world.tcp(at(world.node.address(), 7000)).await.is_some());
}

#[tokio::test]
async fn a_pod_that_ends_by_itself_is_succeeded_or_failed() {
    let world = world().await;
    for (name, script, phase) in [("good", "exit 0", "Succeeded"), ("bad", "exit 3", "Failed")] {
        let container = json!({ "name": "job", "image": "sh", "args": [script] });
        world
            .create(
                name,
                json!({ "nodeName": "a", "restartPolicy": "Never", "containers": [container] }),
            )
            .await;
        let over = |p: Option<&Pod>| {
            p.is_some_and(|p| {
                p.status
                    .as_ref()
                    .is_some_and(|s| s.phase.as_deref() == Some(phase))
            })
        };
        world.until(name, phase, over).await;
        world.delete(name).await;
        world.until(name, "gone", |p| p.is_none()).await;
    }
}

#[tokio::test]
async fn a_readiness_gate_holds_the_pod_until_its_condition_is_true() {
    let world = world().await;
    let mut spec = server(&[]);
    spec["readinessGates"] = json!([{ "conditionType": "onehop.dev/gate" }]);
    world.create("web", spec).await;
    let contained = |p: Option<&Pod>| p.is_some_and(|p| condition(p, "ContainersReady") == "True");
    let pod = world.until("web", "contained", contained).await.unwrap();
    assert_eq!(condition(&pod, "Ready"), "False");
    let mut conditions = serde_json::to_value(pod.status.unwrap().conditions.unwrap()).unwrap();
    conditions
        .as_array_mut()
        .unwrap()
        .push(json!({ "type": "onehop.dev/gate", "status": "True" }));
    let patch = json!({ "status": { "conditions": conditions } });
    world
        .pods
        .patch_status("web", &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
    let pod = world.until_ready("web").await;
    assert_eq!(condition(&pod, "onehop.dev/gate"), "True");
}

#[tokio::test]
async fn fc77_the_next_pod_gets_the_address_that_the_driver_chose() {
    let world = world().await;
    let chosen = "10.244.1.77".parse().unwrap();
    world.node.set_next_pod_ip(chosen).unwrap();
    world.create("web", server(&[])).await;
    assert_eq!(address(&world.until_ready("web").await), chosen, "FC-77");
    world.create("next", server(&[])).await;
    assert_eq!(
        address(&world.until_ready("next").await).to_string(),
        "10.244.1.2"
    );
}

#[tokio::test]
async fn a_pod_that_was_deleted_by_force_ends_on_the_node_too() {
    let world = world().await;
    world.create("web", server(&["--on-term=ignore"])).await;
    let pod = world.until_ready("web").await;
    world
        .pods
        .delete("web", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    // A successor of the same name may come meanwhile; it gets its own network and processes.
    world.create("web", server(&[])).await;
    let successor = world.until_ready("web").await;
    assert_ne!(address(&successor), address(&pod));
    let gone = |w: &World| {
        w.events()
            .iter()
            .any(|e| Some(&e.pod.uid) == pod.metadata.uid.as_ref() && e.step == PodStep::Gone)
    };
    world
        .eventually("gone from the node", async || gone(&world))
        .await;
    assert!(world.tcp(at(address(&successor), 7000)).await.is_some());
    assert_eq!(
        world.get("web").await.unwrap().metadata.uid,
        successor.metadata.uid
    );
}

#[tokio::test]
async fn an_unknown_image_and_a_crash_loop_are_told_in_the_status() {
    let world = world().await;
    for (name, image, reason) in [
        ("unknown", "nobody/nothing:1", "ErrImagePull"),
        ("crashing", "sh", "CrashLoopBackOff"),
    ] {
        let container = json!({ "name": "c", "image": image, "args": ["exit 1"] });
        world
            .create(name, json!({ "nodeName": "a", "containers": [container] }))
            .await;
        let told =
            |p: Option<&Pod>| serde_json::to_string(&p).is_ok_and(|text| text.contains(reason));
        world.until(name, reason, told).await;
    }
    let crashing = world.get("crashing").await.unwrap().status.unwrap();
    let crashing = serde_json::to_value(&crashing.container_statuses.unwrap()[0]).unwrap();
    assert_eq!(crashing["lastState"]["terminated"]["exitCode"], 1);
    assert_eq!(crashing["restartCount"], 1, "the first restart is at once");
}
