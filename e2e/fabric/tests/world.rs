//! The fabric's own proof: worlds come up, packets cross, worlds go without a trace.

mod common;

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{at, call_tcp, call_udp, namespaces, serve_once, world};
use e2e_fabric::{DropReason, Fabric, Netns, NodeNet, PodNet, both, clean};

#[tokio::test]
async fn fc70_who_knows_the_api_servers_place_reaches_it_while_nodes_join() {
    let fabric = world();
    let server = fabric.management();
    let first = fabric.add_node("n0").unwrap();
    for port in 6000..6010 {
        let to = at(Fabric::MANAGEMENT, port);
        let _servers = serve_once(server, to);
        call_tcp(first.netns(), to);
        call_udp(first.netns(), to);
        fabric.add_node(&format!("n{port}")).unwrap();
    }
}

#[tokio::test]
async fn fc70_pods_nodes_and_clients_reach_each_other_with_their_own_sources() {
    let fabric = world();
    let (a, b) = (fabric.add_node("a").unwrap(), fabric.add_node("b").unwrap());
    let (pod_a, pod_b) = (
        a.add_pod("web-1", None).unwrap(),
        b.add_pod("web-2", None).unwrap(),
    );
    let pod_a2 = a.add_pod("web-3", None).unwrap();
    let outside = fabric.add_client("outside", true).unwrap();
    let inside = fabric.add_client("inside", false).unwrap();
    let pairs: [(&Netns, Ipv4Addr, &Netns, Ipv4Addr); 8] = [
        (
            pod_a.netns(),
            pod_a.address(),
            pod_b.netns(),
            pod_b.address(),
        ),
        (
            pod_a.netns(),
            pod_a.address(),
            pod_a2.netns(),
            pod_a2.address(),
        ),
        (a.netns(), a.address(), pod_a.netns(), pod_a.address()),
        (a.netns(), a.address(), pod_b.netns(), pod_b.address()),
        (
            outside.netns(),
            outside.address(),
            pod_b.netns(),
            pod_b.address(),
        ),
        (
            inside.netns(),
            inside.address(),
            pod_a.netns(),
            pod_a.address(),
        ),
        (pod_a.netns(), pod_a.address(), b.netns(), b.address()),
        (pod_a.netns(), pod_a.address(), a.netns(), a.address()),
    ];
    let pairs = pairs.into_iter().flat_map(|(from, source, to, address)| {
        let families = both(source).into_iter().zip(both(address));
        families.map(move |(source, address)| (from, source, to, address))
    });
    for (port, (from, source, to, address)) in (8000..).zip(pairs) {
        let _servers = serve_once(to, at(address, port));
        let what = format!("FC-70 from {} to {}", from.name(), to.name());
        assert_eq!(call_tcp(from, at(address, port)).ip(), source, "tcp {what}");
        assert_eq!(call_udp(from, at(address, port)).ip(), source, "udp {what}");
    }
    for reason in [DropReason::SrcCheckDrop, DropReason::NoOwner] {
        assert_eq!(
            fabric.router().drop_count(reason).unwrap(),
            0,
            "{:?}",
            fabric.router().drops()
        );
    }
}

#[tokio::test]
async fn processes_and_names_go_with_the_world_and_parallel_worlds_do_not_meet() {
    let (one, two) = (world(), world());
    let node = |fabric: &Fabric| -> (NodeNet, PodNet) {
        let node = fabric.add_node("a").unwrap();
        let pod = node.add_pod("web", None).unwrap();
        (node, pod)
    };
    let ((node_one, pod_one), (_node_two, pod_two)) = (node(&one), node(&two));
    assert_eq!(pod_one.address(), pod_two.address());
    let mut command = Command::new("sleep");
    command.arg("600").stdin(Stdio::null());
    let mut child = pod_one.netns().spawn(command).unwrap();
    let (tag_one, tag_two) = (one.tag().clone(), two.tag().clone());
    assert!(namespaces().contains(tag_one.as_str()));
    drop(one);
    // Killed with the PID namespace's init, not by us.
    child.wait().await.unwrap();
    assert!(!namespaces().contains(tag_one.as_str()));
    let _servers = serve_once(pod_two.netns(), at(pod_two.address(), 80));
    call_tcp(pod_two.netns(), at(pod_two.address(), 80));
    drop((node_one, pod_one, pod_two, two));
    assert!(!namespaces().contains(tag_two.as_str()));
}

#[test]
fn a_killed_run_leaves_no_process_and_the_cleaner_removes_its_namespaces_only() {
    // This test's own binary plays the run that is killed.
    let me = std::env::current_exe().unwrap();
    let mut run = Command::new(me)
        .args([
            "--exact",
            "helper_that_waits_to_be_killed",
            "--ignored",
            "--nocapture",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(run.stdout.take().unwrap()));
    let line = lines
        .find_map(|line| {
            line.unwrap()
                .split_once("WORLD ")
                .map(|(_, w)| w.to_owned())
        })
        .unwrap();
    let (tag, pid) = line.split_once(' ').unwrap();
    assert!(
        clean(true).unwrap().alive.iter().any(|t| t == tag),
        "a live world"
    );
    run.kill().unwrap();
    run.wait().unwrap();
    common::eventually("the pod's process is gone", || {
        !std::path::Path::new("/proc").join(pid).exists()
    });
    let removed = clean(false).unwrap();
    assert!(
        removed.namespaces.iter().any(|n| n.starts_with(tag)),
        "{removed:?}"
    );
    assert!(!namespaces().contains(tag));
    assert!(
        !clean(true)
            .unwrap()
            .namespaces
            .iter()
            .any(|n| n.starts_with(tag))
    );
}

#[tokio::test]
#[ignore = "started as a process by the test above, which kills it"]
async fn helper_that_waits_to_be_killed() {
    let fabric = world();
    let pod = fabric.add_node("a").unwrap().add_pod("web", None).unwrap();
    let mut command = Command::new("sleep");
    command.arg("60").stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = pod.netns().spawn(command).unwrap();
    println!("WORLD {} {}", fabric.tag().as_str(), child.id().unwrap());
    child.wait().await.unwrap();
}

#[tokio::test]
async fn what_is_made_answers_the_first_packet() {
    let fabric = world();
    let node = fabric.add_node("a").unwrap();
    let client = fabric.add_client("outside", true).unwrap();
    for index in 0..40 {
        let pod = node.add_pod(&format!("web-{index}"), None).unwrap();
        let inside = fabric.add_client(&format!("c{index}"), false).unwrap();
        let pod_at = pod.addresses().map(|ip| (pod.netns(), ip));
        let inside_at = inside.addresses().map(|ip| (inside.netns(), ip));
        for (ns, ip) in pod_at.into_iter().chain(inside_at) {
            let _listener = ns.tcp_listener(at(ip, 80)).unwrap();
            // Less than the second after which a lost SYN is sent again.
            let connected = client
                .netns()
                .tcp_connect(at(ip, 80), Duration::from_millis(800));
            connected.unwrap_or_else(|error| panic!("{index}: {ip}: {error}"));
        }
    }
}
