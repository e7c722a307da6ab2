//! The fabric's own proof: worlds come up, packets cross, worlds go without a trace.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e_fabric::{Fabric, FabricConfig, Netns, NodeNet, PodNet, WorldTag};

const TIMEOUT: Duration = Duration::from_secs(2);

fn world() -> Fabric {
    Fabric::new(WorldTag::new().unwrap(), FabricConfig::default()).unwrap()
}

/// Serves one connection in `ns` and answers with the peer it saw.
fn serve_once(ns: &Netns, at: SocketAddr) -> std::thread::JoinHandle<SocketAddr> {
    let listener = ns.tcp_listener(at).unwrap();
    std::thread::spawn(move || {
        let (mut stream, peer) = listener.accept().unwrap();
        stream.write_all(peer.to_string().as_bytes()).unwrap();
        peer
    })
}

/// Connects and reads to the end.
fn call(from: &Netns, to: SocketAddr) -> String {
    let mut stream = from.tcp_connect(to, TIMEOUT).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn at(address: Ipv4Addr, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(address), port)
}

fn names() -> String {
    let out = Command::new("ip").args(["netns", "list"]).output().unwrap();
    String::from_utf8(out.stdout).unwrap()
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
    let client = fabric.add_client("outside", true).unwrap();
    let pairs: [(&Netns, Ipv4Addr, &PodNet); 6] = [
        (pod_a.netns(), pod_a.address(), &pod_b),
        (pod_a.netns(), pod_a.address(), &pod_a2),
        (a.netns(), a.address(), &pod_a),
        (a.netns(), a.address(), &pod_b),
        (client.netns(), client.address(), &pod_b),
        (client.netns(), client.address(), &pod_a),
    ];
    for (port, (from, source, to)) in (8000..).zip(pairs) {
        let server = serve_once(to.netns(), at(to.address(), port));
        call(from, at(to.address(), port));
        assert_eq!(
            server.join().unwrap().ip(),
            source,
            "FC-70 from {} to {}",
            from.name(),
            to.name()
        );
    }
    let host_server = serve_once(b.netns(), at(b.address(), 9000));
    call(pod_a.netns(), at(b.address(), 9000));
    assert_eq!(host_server.join().unwrap().ip(), pod_a.address());
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
    assert!(names().contains(tag_one.as_str()));
    drop(one);
    // Killed with the PID namespace's init, not by us.
    child.wait().await.unwrap();
    assert!(!names().contains(tag_one.as_str()));
    let server = serve_once(pod_two.netns(), at(pod_two.address(), 80));
    call(pod_two.netns(), at(pod_two.address(), 80));
    server.join().unwrap();
    drop((node_one, pod_one, pod_two, two));
    assert!(!names().contains(tag_two.as_str()));
}
