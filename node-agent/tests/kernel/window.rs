//! The Local window in the kernel (zero-drop.md section 5f): late flows of policy Local go to another node for a time.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use onehop_core::crd::{ClusterFacts, LateFlows, LocalPort, NodeInstall, ServiceRef, TargetState};
use onehop_core::id::{PortName, Protocol};
use onehop_core::service::{ServiceSpec, SourceRanges, TrafficPolicy};
use onehop_core::time::Time;
use onehop_nft::Socket;
use onehop_node_agent::state::Change;
use onehop_node_agent::table::affinity::List;
use onehop_node_agent::table::counts::{self, Counted};
use onehop_node_agent::table::element::{Dataplane, Elements, Family, SetId};

use crate::affinity::known;
use crate::common::{Stands, put, told};
use crate::lab::{At, Lab, Plan, Proxy, both, eventually, everywhere, ready};
use crate::place::Talk;
use crate::world::options;

const NODE_PORT: u16 = 30_080;

pub(crate) fn web(protocol: Protocol) -> ServiceSpec {
    ServiceSpec {
        external_policy: TrafficPolicy::Local,
        ..everywhere("web", 1, protocol, NODE_PORT)
    }
}

/// What a controller says of the node port of `web`; without a state it says nothing.
pub(crate) fn said(
    protocol: Protocol,
    state: Option<TargetState>,
    late_flows: LateFlows,
    tail_max_seconds: u32,
) -> Change {
    let port = |state| LocalPort {
        service: ServiceRef::new(&web(protocol).key, &web(protocol).uid),
        port_name: PortName::default(),
        protocol,
        node_port: Some(NODE_PORT),
        health_check_node_port: None,
        state,
        since: Time::EPOCH,
        late_flows,
    };
    let install = NodeInstall {
        local: state.into_iter().map(port).collect(),
        cluster: ClusterFacts {
            tail_max_seconds,
            hold_max_seconds: 600,
            ..ClusterFacts::default()
        },
        ..NodeInstall::default()
    };
    told(install)
}

fn endpoints(proxy: &mut Proxy, protocol: Protocol, of: impl Fn(Plan) -> Vec<At>) {
    proxy.apply(both("web", protocol, of));
}

fn ends(address: IpAddr) -> At {
    At {
        stands: Stands::ServingTerminating,
        ..ready(address)
    }
}

/// By which a load balancer sends: the node port, and the address that it leaves in the packet.
pub(crate) fn entrances(plan: Plan) -> [SocketAddr; 2] {
    [
        SocketAddr::new(plan.node(), NODE_PORT),
        SocketAddr::new(plan.vip(1), 80),
    ]
}

fn windows(elements: &Elements) -> usize {
    let of = |set| matches!(set, SetId::Window | SetId::WindowNodePorts);
    elements.keys().filter(|(_, set, _)| of(*set)).count()
}

/// The kernel holds what the planner believes; what is left of a life time is never quite what was reckoned.
fn in_step(proxy: &mut Proxy) {
    let held = proxy.kernel.read_back().unwrap().unwrap();
    let wanted = proxy.planner.elements();
    assert!(held.keys().eq(wanted.keys()), "{held:?}\n{wanted:?}");
}

fn silent(lab: &Lab) {
    for plan in Plan::BOTH {
        for to in entrances(plan) {
            let seen = lab.world.silence(plan.client(1), to);
            assert_eq!(seen, Err(ErrorKind::TimedOut), "ZD-65, S-55: {to}");
        }
    }
}

#[test]
fn zd60_zd61_zd62_late_flows_go_to_another_node_when_nobody_here_serves_any_more() {
    let lab = Lab::new();
    let mut proxy = lab.proxy(&options());
    let tcp = Protocol::Tcp;
    let active = Some(TargetState::Active);
    proxy.apply([put(web(tcp)), said(tcp, active, LateFlows::Forward, 180)]);
    endpoints(&mut proxy, tcp, |plan| {
        vec![ready(plan.pod(1)), ready(plan.remote_pod(1))]
    });
    proxy.pass(Duration::from_hours(1));
    // ZD-61: as long as the last one here still serves, it gets them.
    endpoints(&mut proxy, tcp, |plan| {
        vec![ends(plan.pod(1)), ready(plan.remote_pod(1))]
    });
    for plan in Plan::BOTH {
        for to in entrances(plan) {
            let seen = lab.world.call(plan.client(1), to);
            let own = Ok((plan.pod(1), plan.client(1)));
            assert_eq!(seen, own, "ZD-61: {to}");
        }
    }
    assert_eq!(windows(&proxy.planner.elements()), 0, "ZD-61");
    endpoints(&mut proxy, tcp, |plan| vec![ready(plan.remote_pod(1))]);
    for plan in Plan::BOTH {
        for to in entrances(plan) {
            let (server, seen) = lab.world.call(plan.client(1), to).unwrap();
            assert_eq!(server, plan.remote_pod(1), "ZD-60: {to}");
            assert_eq!(seen, plan.node(), "ZD-62: by an address of this node: {to}");
        }
    }
    assert_eq!(windows(&proxy.planner.elements()), 4, "S-415");
    let counts = lab.node.run(|| counts::read(&mut Socket::open().unwrap()));
    let counts = counts.unwrap();
    let forwarded = counts.get(&(Counted::Window, tcp)).copied();
    assert_eq!(forwarded, Some(4), "ZD-122: one a flow: {counts:?}");
    in_step(&mut proxy);
    // ZD-62: who may come in is looked at first.
    let [v4, v6] = Plan::BOTH.map(|plan| plan.client(1));
    let ranges = [format!("{v4}/32"), format!("{v6}/128")];
    let restricted = ServiceSpec {
        source_ranges: SourceRanges {
            allowed: ranges.iter().map(|range| range.parse().unwrap()).collect(),
            has_bad: false,
        },
        ..web(tcp)
    };
    proxy.apply([put(restricted)]);
    for plan in Plan::BOTH {
        let [_, vip] = entrances(plan);
        assert!(lab.world.call(plan.client(1), vip).is_ok(), "S-70: {vip}");
        let other = lab.world.silence(plan.client(2), vip);
        assert_eq!(other, Err(ErrorKind::TimedOut), "ZD-62, S-70: {vip}");
    }
    // The first endpoint that comes back ends it.
    endpoints(&mut proxy, tcp, |plan| {
        vec![ready(plan.pod(2)), ready(plan.remote_pod(1))]
    });
    for plan in Plan::BOTH {
        let [node_port, _] = entrances(plan);
        let seen = lab.world.call(plan.client(1), node_port);
        assert_eq!(seen, Ok((plan.pod(2), plan.client(1))), "ZD-60");
    }
    assert_eq!(windows(&proxy.planner.elements()), 0, "ZD-60");
    in_step(&mut proxy);
}

#[test]
fn zd65_zd54_the_kernel_ends_a_window_also_when_the_agent_is_dead() {
    let lab = Lab::new();
    let mut proxy = lab.proxy(&options());
    let tcp = Protocol::Tcp;
    let active = Some(TargetState::Active);
    proxy.apply([put(web(tcp)), said(tcp, active, LateFlows::Forward, 1)]);
    endpoints(&mut proxy, tcp, |plan| vec![ready(plan.pod(1))]);
    endpoints(&mut proxy, tcp, |plan| vec![ready(plan.remote_pod(1))]);
    let mut flows: Vec<_> = Plan::BOTH
        .into_iter()
        .map(|plan| lab.world.open(plan.client(1), entrances(plan)[0]).unwrap())
        .collect();
    // Nothing is planned or committed from here on.
    let mut kernel = proxy.kernel;
    eventually("ZD-65: the kernel takes the elements out", || {
        windows(&kernel.read_back().unwrap().unwrap()) == 0
    });
    silent(&lab);
    // A flow that was forwarded stays.
    assert!(flows.iter_mut().all(Talk::goes_on), "ZD-60");
}

#[test]
fn zd60_a_window_is_not_opened_where_it_is_not_wanted_or_over() {
    let tcp = Protocol::Tcp;
    for (state, late_flows) in [
        (Some(TargetState::Active), LateFlows::Drop),
        (Some(TargetState::Released), LateFlows::Forward),
        (None, LateFlows::Forward),
    ] {
        let lab = Lab::new();
        let mut proxy = lab.proxy(&options());
        proxy.apply([put(web(tcp)), said(tcp, state, late_flows, 180)]);
        endpoints(&mut proxy, tcp, |plan| vec![ready(plan.pod(1))]);
        endpoints(&mut proxy, tcp, |plan| vec![ready(plan.remote_pod(1))]);
        silent(&lab);
        // ZD-62, S-63: those inside are served all the same.
        for plan in Plan::BOTH {
            let seen = lab.pod(1).call(plan.pod(1), entrances(plan)[1]);
            assert_eq!(seen, Ok((plan.remote_pod(1), plan.pod(1))), "S-64");
        }
    }
}

#[test]
fn zd60_datagrams_are_forwarded_too() {
    let lab = Lab::new();
    let mut proxy = lab.proxy(&options());
    let udp = Protocol::Udp;
    let active = Some(TargetState::Active);
    proxy.apply([put(web(udp)), said(udp, active, LateFlows::Forward, 180)]);
    endpoints(&mut proxy, udp, |plan| vec![ready(plan.pod(1))]);
    endpoints(&mut proxy, udp, |plan| vec![ready(plan.remote_pod(1))]);
    for plan in Plan::BOTH {
        for to in entrances(plan) {
            let flow = lab.world.datagrams(plan.client(1), to);
            assert_eq!(flow.server(), Some(plan.remote_pod(1)), "ZD-60: {to}");
        }
    }
}

/// S-238, S-416: flows of the window are recorded where they were served from, so that a client is not sent away from the
/// endpoint that comes back.
#[test]
fn s416_who_came_late_sticks_to_nobody_of_another_node() {
    let lab = Lab::new();
    let mut proxy = lab.proxy(&options());
    let tcp = Protocol::Tcp;
    let sticky = ServiceSpec {
        affinity: Some(Duration::from_hours(3)),
        ..web(tcp)
    };
    let active = Some(TargetState::Active);
    proxy.apply([put(sticky), said(tcp, active, LateFlows::Forward, 180)]);
    endpoints(&mut proxy, tcp, |plan| vec![ready(plan.pod(1))]);
    endpoints(&mut proxy, tcp, |plan| vec![ready(plan.remote_pod(1))]);
    for plan in Plan::BOTH {
        for to in entrances(plan) {
            let seen = lab.world.call(plan.client(1), to);
            assert_eq!(seen, Ok((plan.remote_pod(1), plan.node())), "ZD-60: {to}");
            let family = Family::of(plan.node());
            let local = known(&lab, family, List::Local);
            assert_eq!(local, BTreeMap::new(), "S-416: {to}");
        }
    }
    endpoints(&mut proxy, tcp, |plan| {
        vec![ready(plan.pod(2)), ready(plan.remote_pod(1))]
    });
    for plan in Plan::BOTH {
        for to in entrances(plan) {
            let seen = lab.world.call(plan.client(1), to);
            assert_eq!(seen, Ok((plan.pod(2), plan.client(1))), "S-416: {to}");
        }
        let family = Family::of(plan.node());
        let local = known(&lab, family, List::Local);
        let pinned = [(plan.client(1), plan.pod(2))].into();
        assert_eq!(local, pinned, "S-238");
    }
}
