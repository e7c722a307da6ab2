//! An engine in virtual time with a list of targets that are up: the whole cloud without a packet.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use e2e_cloud::engine::{
    Choice, Config, DataPathState, Engine, Frontend, FrontendPath, GroupId, GroupSpec, HealthCheck,
    LbId, LbSpec, ListenerKey, Mode, NodeId, Outcome, ProbeProtocol, Profile, Protocol, Reason,
    Tags, TargetSpec, TargetState, What,
};
use e2e_cloud::scale::Scale;
use onehop_core::time::Time;

/// When every virtual run begins.
pub const START: Time = Time::from_millis(1_800_000_000_000);

/// The frontend of the one load balancer that most tests need.
pub const FRONT: &str = "198.51.100.7";

/// A virtual run.
pub struct Sim {
    pub engine: Engine,
    pub now: Time,
    /// Targets whose probes succeed.
    pub up: BTreeSet<SocketAddr>,
    /// LB nodes that see a target down although it is up.
    pub blind: BTreeSet<(NodeId, SocketAddr)>,
    pub nodes: Vec<NodeId>,
}

impl Sim {
    /// A cloud with one LB node in each of `zones`.
    pub fn new(profile: Profile, seed: u64, zones: &[&str]) -> Self {
        let scale = Scale::new(START, 1);
        let config = Config {
            profile,
            seed,
            scale,
            ranges: vec![],
        };
        let mut engine = Engine::new(config, START);
        let node = |(at, zone): (usize, &&str)| {
            let address = IpAddr::from([10, 0, 9, u8::try_from(at).unwrap() + 1]);
            engine.add_node(zone, address, START)
        };
        let nodes = zones.iter().enumerate().map(node).collect();
        Self {
            engine,
            now: START,
            up: BTreeSet::new(),
            blind: BTreeSet::new(),
            nodes,
        }
    }

    pub fn local() -> Self {
        Self::new(Profile::local(), 1, &["a"])
    }

    /// A group, and a load balancer with a listener for it on port 80.
    pub fn balanced_group(&mut self, group: GroupSpec) -> (LbId, GroupId) {
        let key = ListenerKey {
            port: 80,
            protocol: group.protocol,
        };
        let group = self
            .engine
            .create_group(self.now, &group.name.clone(), group)
            .unwrap()
            .id;
        // One address per LB node (FC-61); `FRONT` is the first node's.
        let addresses: Vec<_> = (0..self.nodes.len())
            .map(|at| format!("198.51.100.{}", 7 + at))
            .collect();
        let addresses: Vec<_> = addresses.iter().map(String::as_str).collect();
        let lb = self
            .engine
            .create_lb(self.now, "lb", lb("svc", &addresses))
            .unwrap()
            .id;
        self.engine
            .put_listener(self.now, &lb, key, &group)
            .unwrap();
        (lb, group)
    }

    /// Lets time pass, answering each probe at the moment it starts.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.engine.advance(self.now);
            for probe in self.engine.take_probes() {
                let up =
                    self.up.contains(&probe.to) && !self.blind.contains(&(probe.node, probe.to));
                let outcome = if up { Outcome::Ok } else { Outcome::Refused };
                self.engine.probe_result(self.now, probe.id, outcome);
            }
            match self.engine.next_event().filter(|next| *next <= end) {
                Some(next) => self.now = self.now.max(next),
                None => break,
            }
        }
        self.now = end;
        self.engine.advance(end);
    }

    pub fn run_secs(&mut self, seconds: u64) {
        self.run_for(Duration::from_secs(seconds));
    }

    pub fn register(&mut self, group: &GroupId, targets: &[SocketAddr]) {
        let spec = |target: &SocketAddr| TargetSpec {
            target: *target,
            zone: None,
        };
        let targets = targets.iter().map(spec).collect();
        self.engine.register(self.now, group, targets).unwrap();
        self.run_for(Duration::ZERO);
    }

    pub fn deregister(&mut self, group: &GroupId, target: SocketAddr) {
        self.engine.deregister(self.now, group, &[target]).unwrap();
        self.run_for(Duration::ZERO);
    }

    pub fn state(&mut self, group: &GroupId, target: SocketAddr) -> (TargetState, Option<Reason>) {
        let found = self.engine.targets(self.now, group, &[target]).unwrap();
        (found[0].state, found[0].reason)
    }

    pub fn data_path(&self) -> DataPathState {
        self.engine.data_path(self.nodes[0])
    }

    /// The path of port 80 over TCP at the first LB node.
    pub fn front(&self) -> FrontendPath {
        self.front_at(self.nodes[0], Protocol::Tcp)
    }

    pub fn front_at(&self, node: NodeId, protocol: Protocol) -> FrontendPath {
        let path = self.engine.data_path(node);
        let wanted = |front: &Frontend| (front.protocol, front.port) == (protocol, 80);
        path.frontends
            .into_iter()
            .find(|(front, _)| wanted(front))
            .unwrap()
            .1
    }

    /// Seconds since `start` at which the target's reported state changed, with the new state.
    pub fn history(&self, target: SocketAddr) -> Vec<(u64, TargetState, Option<Reason>)> {
        let change = |event: &std::sync::Arc<e2e_cloud::engine::Event>| match &event.what {
            What::TargetState {
                target: of,
                state,
                reason,
                ..
            } if *of == target => Some((event.cloud_time.since(START).as_secs(), *state, *reason)),
            _ => None,
        };
        self.engine.log().after(0).filter_map(change).collect()
    }
}

pub fn target(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 244, 1, last], 8080))
}

pub fn lb(name: &str, addresses: &[&str]) -> LbSpec {
    LbSpec {
        name: name.to_owned(),
        tags: Tags::from([("owner".to_owned(), name.to_owned())]),
        addresses: addresses
            .iter()
            .map(|address| address.parse().unwrap())
            .collect(),
        zones: vec![],
        cross_zone: true,
        preserve_client_ip: true,
        sharing_key: None,
    }
}

/// A TCP probe of the target's port.
pub fn check(interval: u64, healthy: u32, unhealthy: u32) -> HealthCheck {
    HealthCheck {
        protocol: ProbeProtocol::Tcp,
        port: None,
        path: "/".to_owned(),
        interval: Duration::from_secs(interval),
        timeout: Duration::from_secs(1),
        healthy,
        unhealthy,
    }
}

/// A TCP group of pods with the local profile's probe.
pub fn tcp_group(name: &str) -> GroupSpec {
    GroupSpec {
        name: name.to_owned(),
        tags: Tags::new(),
        protocol: Protocol::Tcp,
        mode: Mode::Pod,
        health: Some(check(2, 1, 2)),
        drain: Duration::from_secs(10),
        preserve_client_ip: None,
        proxy_protocol: false,
        lost_flow: None,
        choice: Choice::FiveTuple,
    }
}
