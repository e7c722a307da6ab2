//! The windows as a pure machine: what controllers say, who serves, and time go in; ends come out.

use std::net::IpAddr;
use std::time::Duration;

use onehop_core::crd::{ClusterFacts, LateFlows, LocalPort, ServiceRef, TargetState};
use onehop_core::id::{Frontend, PortName, Protocol};
use onehop_core::service::{ServicePort, TargetPort, TrafficPolicy};

use super::*;
use crate::table::element::{ClassKind, Key, Verdict};

const NOW: Time = Time::from_millis(1_800_000_000_000);
const TAIL: Duration = Duration::from_mins(3);
const HOLD: Duration = Duration::from_mins(10);
const NODE_PORT: u16 = 30_080;
const VIP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 1));

const HERE: Serving = Serving {
    here: true,
    elsewhere: true,
};
const ELSEWHERE: Serving = Serving {
    here: false,
    elsewhere: true,
};
const NOBODY: Serving = Serving {
    here: false,
    elsewhere: false,
};

fn web() -> ServiceSpec {
    ServiceSpec {
        key: ServiceKey::new("default", "web"),
        uid: "u1".into(),
        external_policy: TrafficPolicy::Local,
        cluster_ips: vec![[10, 96, 0, 1].into()],
        ports: vec![ServicePort {
            key: port(),
            port: 80,
            target: TargetPort::Number(8080),
            node_port: Some(NODE_PORT),
            app_protocol: None,
        }],
        ..ServiceSpec::default()
    }
}

fn port() -> PortKey {
    PortKey::new(PortName::default(), Protocol::Tcp)
}

fn node_port() -> Front {
    Front::NodePort(IpFamily::V4, Protocol::Tcp, NODE_PORT)
}

/// Entries in these states since then.
fn said(entries: &[(TargetState, Time)]) -> BTreeMap<InstallId, NodeInstall> {
    let entry = |(state, since): &(TargetState, Time)| LocalPort {
        service: ServiceRef::new(&web().key, &web().uid),
        port_name: PortName::default(),
        protocol: Protocol::Tcp,
        node_port: Some(NODE_PORT),
        health_check_node_port: None,
        state: *state,
        since: *since,
        late_flows: LateFlows::Forward,
    };
    let install = NodeInstall {
        local: entries.iter().map(entry).collect(),
        cluster: ClusterFacts {
            tail_max_seconds: 180,
            hold_max_seconds: 600,
            ..ClusterFacts::default()
        },
        ..NodeInstall::default()
    };
    [("e2e".into(), install)].into()
}

/// Long registered.
fn active() -> BTreeMap<InstallId, NodeInstall> {
    said(&[(TargetState::Active, Time::EPOCH)])
}

struct World {
    windows: Windows,
    serving: Serving,
    now: Time,
}

impl World {
    fn new(serving: Serving, installs: &BTreeMap<InstallId, NodeInstall>) -> Self {
        let mut windows = Windows::default();
        windows.targets(installs);
        let mut world = Self {
            windows,
            serving,
            now: NOW,
        };
        world.look();
        world
    }

    fn look(&mut self) {
        let beyond = Beyond {
            vips: [VIP].into(),
            ..Beyond::default()
        };
        self.windows
            .settle(&web(), &beyond, |_, _| self.serving, self.now);
    }

    /// How long the window of the node port is still open after this.
    fn then(&mut self, pass: Duration, serving: Serving) -> Option<Duration> {
        self.now += pass;
        self.serving = serving;
        self.look();
        self.left()
    }

    /// The same after controllers said something.
    fn told(&mut self, installs: &BTreeMap<InstallId, NodeInstall>) -> Option<Duration> {
        self.windows.targets(installs);
        self.look();
        self.left()
    }

    fn left(&self) -> Option<Duration> {
        let at = (&node_port(), Reach::External);
        let until = self.windows.until(&web().key, &port(), at)?;
        Some(until.since(self.now))
    }
}

const AT_ONCE: Duration = Duration::ZERO;
const MINUTE: Duration = Duration::from_mins(1);

#[test]
fn zd60_a_window_lasts_one_tail_from_when_the_last_local_endpoint_left() {
    let mut world = World::new(HERE, &active());
    assert_eq!(world.left(), None);
    assert_eq!(world.then(MINUTE, ELSEWHERE), Some(TAIL), "ZD-60");
    assert_eq!(world.then(MINUTE, ELSEWHERE), Some(2 * MINUTE));
    let end = world.windows.next_end();
    assert_eq!(end, Some(NOW + MINUTE + TAIL));
    assert_eq!(world.windows.pass(NOW + MINUTE), BTreeSet::new());
    let over = world.windows.pass(NOW + MINUTE + TAIL);
    assert_eq!(over, BTreeSet::from([web().key]), "ZD-65");
    assert_eq!(world.then(TAIL, ELSEWHERE), None, "ZD-65: strict again");
    assert_eq!(world.windows.next_end(), None);
    // The next one begins anew.
    assert_eq!(world.then(MINUTE, HERE), None);
    assert_eq!(world.then(MINUTE, ELSEWHERE), Some(TAIL));
}

#[test]
fn zd60_it_covers_what_the_load_balancer_sends_to_and_nothing_else() {
    let mut world = World::new(HERE, &active());
    world.then(AT_ONCE, ELSEWHERE);
    let vip = Front::Vip(Frontend {
        address: VIP,
        protocol: Protocol::Tcp,
        port: 80,
    });
    let until = |front: &Front, reach| world.windows.until(&web().key, &port(), (front, reach));
    assert!(until(&node_port(), Reach::External).is_some());
    assert!(until(&vip, Reach::LoadBalancer).is_some());
    assert_eq!(until(&vip, Reach::External), None, "an external IP");
    let other = Front::NodePort(IpFamily::V4, Protocol::Tcp, 30_081);
    assert_eq!(until(&other, Reach::External), None);
}

#[test]
fn zd60_it_is_longer_while_the_entry_is_held_and_ends_when_it_is_released() {
    let mut world = World::new(HERE, &active());
    world.then(AT_ONCE, ELSEWHERE);
    let held = world.told(&said(&[(TargetState::Held, NOW)]));
    assert_eq!(held, Some(HOLD + TAIL), "ZD-60");
    world.now += 5 * MINUTE;
    let draining = said(&[(TargetState::Draining, NOW + 5 * MINUTE)]);
    assert_eq!(world.told(&draining), Some(TAIL), "one tail more");
    // The bound holds, whatever is said.
    world.now += 7 * MINUTE;
    let again = said(&[(TargetState::Active, NOW + 12 * MINUTE)]);
    assert_eq!(world.told(&again), Some(MINUTE));
    let released = said(&[(TargetState::Released, NOW + 12 * MINUTE)]);
    assert_eq!(world.told(&released), None, "ZD-60");
}

#[test]
fn zd60_drop_and_no_entry_have_none_and_one_that_is_lost_runs_on() {
    let mut world = World::new(HERE, &BTreeMap::new());
    assert_eq!(world.then(AT_ONCE, ELSEWHERE), None, "without an entry");
    let mut drop = active();
    for port in drop.values_mut().flat_map(|install| &mut install.local) {
        port.late_flows = LateFlows::Drop;
    }
    let mut world = World::new(HERE, &drop);
    assert_eq!(world.then(AT_ONCE, ELSEWHERE), None, "drop");
    let mut world = World::new(HERE, &active());
    world.then(AT_ONCE, ELSEWHERE);
    let lost = world.told(&BTreeMap::new());
    assert_eq!(lost, Some(TAIL), "ZD-52: nothing was said");
    world.windows.pass(world.now);
    let forgotten = world.windows.pass(world.now + HOLD + TAIL);
    assert_eq!(forgotten, BTreeSet::from([web().key]));
    assert_eq!(world.then(AT_ONCE, ELSEWHERE), None);
}

#[test]
fn zd63_a_node_that_never_had_an_endpoint_forwards_for_one_tail_from_its_registration() {
    let new = said(&[(TargetState::Active, NOW)]);
    let mut world = World::new(ELSEWHERE, &new);
    assert_eq!(world.left(), Some(TAIL), "ZD-63");
    assert_eq!(world.then(TAIL, ELSEWHERE), None);
    let world = World::new(ELSEWHERE, &active());
    assert_eq!(world.left(), None, "registered long ago");
}

#[test]
fn zd66_without_an_endpoint_of_this_cluster_there_is_no_window() {
    let mut world = World::new(HERE, &active());
    assert_eq!(world.then(AT_ONCE, NOBODY), None, "ZD-66");
    // One that comes back elsewhere within the tail is served from here, too.
    assert_eq!(world.then(MINUTE, ELSEWHERE), Some(2 * MINUTE));
}

#[test]
fn zd37_a_restart_goes_on_with_what_the_kernel_holds() {
    let key = Key::NodePort {
        protocol: Protocol::Tcp,
        port: NODE_PORT,
    };
    let until = NOW + MINUTE;
    let verdict = Data::Timed(Verdict::Class(ClassKind::Npw, 1), until);
    let open: Elements = [((IpFamily::V4, SetId::WindowNodePorts, key), Some(verdict))].into();
    let restarted = |kernel: &Elements, installs: &BTreeMap<InstallId, NodeInstall>| {
        let mut windows = Windows::default();
        windows.inherit(kernel);
        windows.targets(installs);
        let mut world = World {
            windows,
            serving: ELSEWHERE,
            now: NOW,
        };
        world.look();
        world.left()
    };
    assert_eq!(restarted(&open, &active()), Some(MINUTE), "ZD-37, ZD-54");
    let held = said(&[(TargetState::Held, NOW - MINUTE)]);
    assert_eq!(restarted(&open, &held), Some(MINUTE), "ZD-54");
    let verdict = Data::Verdict(Verdict::Class(ClassKind::Npl, 1));
    let element = (IpFamily::V4, SetId::ServiceNodePortsLocal, key);
    let served: Elements = [(element, Some(verdict))].into();
    // The last endpoint left while no agent ran.
    assert_eq!(restarted(&served, &active()), Some(TAIL));
    assert_eq!(restarted(&Elements::new(), &active()), None);
}
