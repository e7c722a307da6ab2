//! Ports of the node that a Service had, and to which a load balancer still sends (ZD-68): pure.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail the test"
)]

mod common;

use std::collections::BTreeSet;

use onehop_core::crd::{ClusterFacts, LateFlows, LocalPort, NodeInstall, ServiceRef, TargetState};
use onehop_core::id::{PortName, Protocol};
use onehop_core::service::{ServiceKind, ServiceSpec, TrafficPolicy};
use onehop_core::time::Time;
use onehop_node_agent::args::Mode;
use onehop_node_agent::claims::Front;
use onehop_node_agent::planner::Planner;
use onehop_node_agent::state::{Change, State};
use onehop_node_agent::table::element::{Elements, Family};

use common::{addr, key, local, local_lb, port, put, put_slice, service, synced, told};

const OLD: u16 = 30_001;
const NEW: u16 = 30_090;
const HEALTH: u16 = 31_001;

struct Node {
    state: State,
    planner: Planner,
}

impl Node {
    /// `web` with policy Local, node port `OLD` and health port `HEALTH`, of which the controller says so.
    fn new(mode: Mode) -> Self {
        let mut node = Self {
            state: synced(mode),
            planner: Planner::new(Elements::new()),
        };
        node.apply(put_slice("web-1", "web", &[local(1)]));
        node.apply(put(local_lb("web", 1)));
        node.said(TargetState::Active);
        node
    }

    fn apply(&mut self, change: Change) {
        self.state.apply(change);
        self.state.settle_windows(Time::EPOCH);
        self.planner
            .plan(&mut self.state, &[addr("10.0.1.1")], usize::MAX);
    }

    fn said(&mut self, state: TargetState) {
        let web = local_lb("web", 1);
        let entry = LocalPort {
            service: ServiceRef::new(&web.key, &web.uid),
            port_name: PortName::default(),
            protocol: Protocol::Tcp,
            node_port: Some(OLD),
            health_check_node_port: Some(HEALTH),
            state,
            since: Time::EPOCH,
            late_flows: LateFlows::Forward,
        };
        let install = NodeInstall {
            local: vec![entry],
            cluster: ClusterFacts::default(),
            ..NodeInstall::default()
        };
        self.apply(told(install));
    }

    /// Whose a node port is.
    fn owner(&self, number: u16) -> Option<String> {
        let front = Front::NodePort(Family::V4, Protocol::Tcp, number);
        let owner = self.planner.owner(&front)?;
        let programmed = self.planner.fronts(owner).any(|f| f == front);
        programmed.then(|| owner.name.clone())
    }

    fn health_ports(&self) -> BTreeSet<u16> {
        self.state.health_ports(&key("web"))
    }
}

/// It leaves policy Local, and has another node port.
fn moved() -> ServiceSpec {
    ServiceSpec {
        external_policy: TrafficPolicy::Cluster,
        health_check_node_port: None,
        ports: vec![port(Protocol::Tcp, 80, Some(NEW))],
        ..local_lb("web", 1)
    }
}

#[test]
fn zd68_old_node_ports_and_health_ports_are_served_until_they_are_released() {
    let mut node = Node::new(Mode::Beside);
    let web = Some("web".to_owned());
    assert_eq!(node.owner(OLD), web);
    assert_eq!(node.health_ports(), [HEALTH].into());
    node.apply(put(moved()));
    assert_eq!(node.owner(NEW), web);
    assert_eq!(node.owner(OLD), web, "ZD-68: the old node port");
    assert_eq!(node.health_ports(), [HEALTH].into(), "ZD-68");
    node.said(TargetState::Draining);
    assert_eq!(node.owner(OLD), web, "ZD-68");
    // One without node ports, and one that is no load balancer any more.
    for kind in [ServiceKind::LoadBalancer, ServiceKind::ClusterIp] {
        let without = ServiceSpec {
            kind,
            ports: vec![port(Protocol::Tcp, 80, None)],
            ..moved()
        };
        node.apply(put(without));
        assert_eq!(node.owner(OLD), web, "ZD-68: {kind:?}");
        assert_eq!(node.owner(NEW), None);
        assert_eq!(node.health_ports(), [HEALTH].into(), "ZD-68: {kind:?}");
    }
    node.said(TargetState::Released);
    assert_eq!(node.owner(OLD), None, "ZD-68: released");
    assert_eq!(node.health_ports(), [].into(), "ZD-68: released");
}

#[test]
fn zd68_a_port_that_another_service_was_given_is_that_ones() {
    let mut node = Node::new(Mode::Beside);
    node.apply(put(moved()));
    // Another one of ours, younger or older than the first, is given the node port.
    for last in [9, 0] {
        let other = ServiceSpec {
            ports: vec![port(Protocol::Tcp, 80, Some(OLD))],
            kind: ServiceKind::NodePort,
            ..service("other", last)
        };
        node.apply(put_slice("other-1", "other", &[local(2)]));
        node.apply(put(other));
        assert_eq!(node.owner(OLD), Some("other".to_owned()), "ZD-68");
        assert_eq!(node.health_ports(), [HEALTH].into());
        node.apply(put(ServiceSpec {
            ports: vec![port(Protocol::Tcp, 80, None)],
            ..service("other", last)
        }));
    }
    // One that kube-proxy proxies is given the health port.
    let mut theirs = ServiceSpec {
        health_check_node_port: Some(HEALTH),
        ..local_lb("theirs", 9)
    };
    theirs.labels.clear();
    node.apply(put(theirs));
    assert_eq!(node.health_ports(), [].into(), "ZD-68");
}
