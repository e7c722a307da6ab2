//! Which element a Service puts where (S-226, S-231): the whole table of policies and lists, from
//! objects to elements, with the verdicts of section 4.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail the test"
)]

mod common;

use std::collections::BTreeSet;
use std::net::SocketAddr;

use common::*;
use onehop_core::id::Protocol as ApiProtocol;
use onehop_core::service::{IpMode, ServiceKind, ServiceSpec, TrafficPolicy};
use onehop_node_agent::args::Mode;
use onehop_node_agent::compile::choices::{Choices, LocalEmpty, UnlistedFamily};
use onehop_node_agent::planner::{Notice, Planner};
use onehop_node_agent::table::element::{
    ClassKind, Data, Elements, Family, Frontend, Key, LOCAL_SCOPE, Protocol, SetId, Verdict,
};

const NODE_PORT: u16 = 30_001;

/// What the kernel shall hold for one Service and its endpoints.
fn elements(service: ServiceSpec, endpoints: &[Ep]) -> Held {
    chosen(Choices::default(), service, endpoints).0
}

/// The same where the administrator chose this, and what people are told.
fn chosen(choices: Choices, service: ServiceSpec, endpoints: &[Ep]) -> (Held, Vec<Notice>) {
    let mut state = synced(Mode::Beside).with_choices(choices);
    state.apply(put_slice("e0", &service.key.name.clone(), endpoints));
    state.apply(put(service));
    let batch = Planner::new(Elements::new()).plan(&mut state, &[addr("10.0.1.1")], usize::MAX);
    let told = batch.notices.into_iter().flat_map(|(_, notices)| notices);
    (Held(batch.change.add), told.collect())
}

struct Held(Elements);

/// A kind of frontend, as a client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    ClusterIp,
    Vip,
    NodePort,
}

impl At {
    fn key(self) -> Key {
        let protocol = Protocol::Tcp;
        let vip = |text| {
            Key::Frontend(Frontend {
                address: addr(text),
                protocol,
                port: 80,
            })
        };
        match self {
            Self::ClusterIp => vip("10.96.0.1"),
            Self::Vip => vip("198.51.100.1"),
            Self::NodePort => Key::NodePort {
                protocol,
                port: NODE_PORT,
            },
        }
    }

    fn pick<T>(self, frontend: T, node_port: T) -> T {
        if self == Self::NodePort {
            node_port
        } else {
            frontend
        }
    }
}

impl Held {
    fn has(&self, set: SetId, key: Key) -> bool {
        self.0.contains_key(&(Family::V4, set, key))
    }

    fn verdict(&self, set: SetId, at: At) -> Option<Verdict> {
        match self.0.get(&(Family::V4, set, at.key()))? {
            Some(Data::Verdict(verdict)) => Some(*verdict),
            other => panic!("{set:?} holds {other:?}"),
        }
    }

    fn masqueraded(&self, at: At) -> bool {
        self.has(
            at.pick(SetId::MasqFrontends, SetId::MasqNodePorts),
            at.key(),
        )
    }

    fn etp_local(&self, at: At) -> bool {
        self.has(at.pick(SetId::EtpLocal, SetId::EtpLocalNodePorts), at.key())
    }

    fn none(&self, at: At) -> Option<Verdict> {
        self.verdict(
            at.pick(SetId::NoEndpointServices, SetId::NoEndpointNodePorts),
            at,
        )
    }

    /// Last bytes of the addresses in a list, after the check that its verdict fits.
    fn list(&self, at: At, scope: u32) -> BTreeSet<u8> {
        let (set, class) = match scope {
            0 => (
                at.pick(SetId::ServiceIps, SetId::ServiceNodePorts),
                at.pick(ClassKind::N, ClassKind::Np),
            ),
            _ => (
                at.pick(SetId::ServiceIpsLocal, SetId::ServiceNodePortsLocal),
                at.pick(ClassKind::L, ClassKind::Npl),
            ),
        };
        let in_list = |slot: u32| slot / LOCAL_SCOPE == scope / LOCAL_SCOPE;
        let targets: BTreeSet<SocketAddr> = self
            .0
            .iter()
            .filter(|((_, _, key), _)| match (*key, at.key()) {
                (Key::FrontendSlot(front, slot), Key::Frontend(this)) => {
                    front == this && in_list(slot)
                }
                (Key::NodePortSlot { port, slot, .. }, Key::NodePort { port: this, .. }) => {
                    port == this && in_list(slot)
                }
                _ => false,
            })
            .filter_map(|(_, data)| match data {
                Some(Data::Target(target)) => Some(*target),
                _ => None,
            })
            .collect();
        let wanted = u16::try_from(targets.len()).expect("short");
        let verdict = self.verdict(set, at);
        assert_eq!(
            verdict,
            (wanted > 0).then_some(Verdict::Class(class, wanted)),
            "{at:?} {scope}"
        );
        targets
            .iter()
            .map(|target| match target {
                SocketAddr::V4(target) => target.ip().octets()[3],
                SocketAddr::V6(_) => panic!("no IPv6 here"),
            })
            .collect()
    }

    fn cluster(&self, at: At) -> BTreeSet<u8> {
        self.list(at, 0)
    }

    fn local(&self, at: At) -> BTreeSet<u8> {
        self.list(at, LOCAL_SCOPE)
    }
}

/// A LoadBalancer with all three kinds of frontend.
fn full(internal: TrafficPolicy, external: TrafficPolicy) -> ServiceSpec {
    let mut service = local_lb("s0", 1);
    service.internal_policy = internal;
    service.external_policy = external;
    service.ports = vec![port(ApiProtocol::Tcp, 80, Some(NODE_PORT))];
    service
}

const EXTERNAL: [At; 2] = [At::Vip, At::NodePort];
const EVERYWHERE: [At; 3] = [At::ClusterIp, At::Vip, At::NodePort];
use TrafficPolicy::{Cluster, Local};

fn st(ep: Ep) -> Ep {
    Ep {
        stands: Stands::ServingTerminating,
        ..ep
    }
}

fn not_ready(ep: Ep) -> Ep {
    Ep {
        stands: Stands::NotReady,
        ..ep
    }
}

#[test]
fn s226_policy_cluster_fills_scope_0_and_masquerades_what_is_external() {
    let held = elements(full(Cluster, Cluster), &[local(1), ep(2)]);
    for at in EVERYWHERE {
        assert_eq!(held.cluster(at), [1, 2].into(), "{at:?}");
        assert!(held.local(at).is_empty(), "{at:?}");
        assert_eq!(held.none(at), None, "{at:?}");
        assert!(!held.etp_local(at), "{at:?}");
        // S-62: the external path with policy Cluster, and nothing else (S-60).
        assert_eq!(held.masqueraded(at), at != At::ClusterIp, "{at:?}");
    }
}

#[test]
fn s226_external_policy_local_fills_both_scopes() {
    // E-31
    let held = elements(full(Cluster, Local), &[local(1), ep(2)]);
    for at in EXTERNAL {
        assert_eq!(held.cluster(at), [1, 2].into(), "{at:?}");
        assert_eq!(held.local(at), [1].into(), "{at:?}");
        assert!(held.etp_local(at) && !held.masqueraded(at), "{at:?}");
        assert_eq!(held.none(at), None, "{at:?}");
    }
    assert_eq!(held.cluster(At::ClusterIp), [1, 2].into());
    assert!(!held.etp_local(At::ClusterIp));
}

#[test]
fn s226_internal_policy_local_puts_the_local_list_into_scope_0() {
    // E-28
    let held = elements(full(Local, Cluster), &[local(1), ep(2)]);
    assert_eq!(held.cluster(At::ClusterIp), [1].into());
    assert!(held.local(At::ClusterIp).is_empty());
    assert_eq!(held.cluster(At::Vip), [1, 2].into());
}

#[test]
fn s48_nobody_anywhere_is_refused_everywhere() {
    // E-01, E-04, E-38
    for endpoints in [vec![], vec![not_ready(local(1)), not_ready(ep(2))]] {
        for (internal, external) in [(Cluster, Cluster), (Local, Local), (Cluster, Local)] {
            let held = elements(full(internal, external), &endpoints);
            for at in EVERYWHERE {
                assert_eq!(
                    held.none(at),
                    Some(Verdict::Reject),
                    "{internal:?} {external:?} {at:?}"
                );
                assert!(
                    held.cluster(at).is_empty() && held.local(at).is_empty(),
                    "{at:?}"
                );
            }
        }
    }
}

#[test]
fn s49_s55_local_without_local_endpoint_is_dropped() {
    // E-26, E-33
    let held = elements(full(Local, Local), &[ep(1), ep(2)]);
    for at in EVERYWHERE {
        // S-51, DI-25
        assert_eq!(held.none(at), Some(Verdict::Drop), "{at:?}");
        assert!(held.local(at).is_empty());
    }
    // S-231: pods and node processes are still served from the Cluster list.
    for at in EXTERNAL {
        assert_eq!(held.cluster(at), [1, 2].into(), "{at:?}");
    }
    // S-49: the ClusterIP with policy Local is not.
    assert!(held.cluster(At::ClusterIp).is_empty());
    let held = elements(full(Local, Cluster), &[ep(1)]);
    assert_eq!(held.none(At::ClusterIp), Some(Verdict::Drop));
    assert_eq!(held.none(At::Vip), None);
}

#[test]
fn s54_local_without_local_endpoint_is_refused_where_that_is_chosen() {
    let refuse = Choices {
        local_empty: LocalEmpty::Reject,
        ..Choices::default()
    };
    let (held, _) = chosen(refuse, full(Local, Local), &[ep(1)]);
    for at in EVERYWHERE {
        assert_eq!(held.none(at), Some(Verdict::Reject), "S-54: {at:?}");
    }
    // Pods and node processes are served as before.
    assert_eq!(held.cluster(At::Vip), [1].into());
}

#[test]
fn s47_terminating_endpoints_are_used_when_nothing_is_ready() {
    // E-05, E-34, E-36, E-39
    let held = elements(full(Cluster, Local), &[st(local(1)), st(ep(2))]);
    assert_eq!(held.cluster(At::ClusterIp), [1, 2].into());
    assert_eq!(held.local(At::Vip), [1].into());
    let held = elements(full(Cluster, Local), &[local(1), st(local(2)), st(ep(3))]);
    for at in EVERYWHERE {
        assert_eq!(held.cluster(at), [1].into(), "{at:?}");
    }
    assert_eq!(held.local(At::NodePort), [1].into());
    let held = elements(full(Cluster, Local), &[ep(1), st(local(2))]);
    assert_eq!(held.cluster(At::Vip), [1].into());
    assert_eq!(
        held.local(At::Vip),
        [2].into(),
        "the Local list is chosen apart"
    );
}

#[test]
fn s212_s222_cluster_ips_and_hairpin_pairs() {
    let held = elements(full(Cluster, Local), &[local(1), ep(2), not_ready(ep(3))]);
    assert!(held.has(SetId::ClusterIps, Key::Addr(addr("10.96.0.1"))));
    let pair = |text| Key::Pair(addr(text), addr(text));
    assert!(held.has(SetId::Hairpin, pair("10.244.0.1")));
    assert!(held.has(SetId::Hairpin, pair("10.244.0.2")));
    assert!(!held.has(SetId::Hairpin, pair("10.244.0.3")));
}

#[test]
fn s23_proxy_mode_addresses_are_left_alone() {
    let mut service = full(Cluster, Cluster);
    service.ingress[0].mode = IpMode::Proxy;
    let held = elements(service, &[ep(1)]);
    // DI-57
    assert!(held.0.keys().all(|(_, _, key)| *key != At::Vip.key()));
}

#[test]
fn a_service_without_node_ports_is_in_no_node_port_map() {
    let mut service = full(Cluster, Local);
    service.ports = vec![port(ApiProtocol::Tcp, 80, None)];
    for endpoints in [vec![local(1)], vec![]] {
        let held = elements(service.clone(), &endpoints);
        let node_port = |key: &Key| matches!(key, Key::NodePort { .. } | Key::NodePortSlot { .. });
        assert!(!held.0.keys().any(|(_, _, key)| node_port(key)));
    }
}

#[test]
fn s01_s02_what_is_not_ours_leaves_no_element() {
    let ours = || full(Cluster, Cluster);
    let external_name = ServiceSpec {
        kind: ServiceKind::ExternalName,
        ..ours()
    };
    let unlabelled = ServiceSpec {
        labels: [].into(),
        ..ours()
    };
    let headless = ServiceSpec {
        cluster_ips: vec![],
        headless: true,
        ..ours()
    };
    for service in [external_name, unlabelled, headless] {
        let held = elements(service, &[ep(1)]);
        assert!(
            held.0.keys().all(|(_, set, _)| *set == SetId::NodePortIps),
            "{:?}",
            held.0
        );
    }
}

#[test]
fn s31_protocols_of_one_port_number_are_apart() {
    let mut service = service("s0", 1);
    service.ports = vec![
        port(ApiProtocol::Tcp, 53, None),
        port(ApiProtocol::Udp, 53, None),
    ];
    let held = elements(service, &[ep(1)]);
    let key = |protocol| {
        Key::Frontend(Frontend {
            address: addr("10.96.0.1"),
            protocol,
            port: 53,
        })
    };
    assert!(held.has(SetId::ServiceIps, key(Protocol::Tcp)));
    // The slice has no UDP port.
    assert!(held.has(SetId::NoEndpointServices, key(Protocol::Udp)));
}

fn allowed(held: &Held, at: At) -> Option<Vec<String>> {
    let Key::Frontend(this) = at.key() else {
        panic!("no frontend")
    };
    let ranges = held.0.keys().filter_map(|(_, _, key)| match key {
        Key::Range(front, range) if *front == this => Some(range.to_string()),
        _ => None,
    });
    held.has(SetId::SourceGuarded, at.key())
        .then(|| ranges.collect())
}

#[test]
fn s70_source_ranges_guard_load_balancer_addresses_only() {
    let mut service = full(Cluster, Cluster);
    service.source_ranges.allowed = ["10.1.0.0/16", "10.1.2.0/24", "fd00::/8"]
        .iter()
        .map(|text| text.parse().expect("range"))
        .collect();
    let held = elements(service.clone(), &[ep(1)]);
    assert_eq!(
        allowed(&held, At::Vip),
        Some(vec!["10.1.0.0/16".to_owned()]),
        "S-228: as few elements as can be: overlaps are one"
    );
    // DI-36: by specification only load balancer addresses are guarded.
    assert_eq!(allowed(&held, At::ClusterIp), None);
    // S-72: this node is allowed, so it may come from the address itself.
    service
        .source_ranges
        .allowed
        .push("10.0.1.0/24".parse().expect("range"));
    let held = elements(service.clone(), &[ep(1)]);
    let wanted = ["10.0.1.0/24", "10.1.0.0/16", "198.51.100.1/32"];
    assert_eq!(
        allowed(&held, At::Vip),
        Some(wanted.map(str::to_owned).to_vec())
    );
    // S-73: no range of this family leaves it open, and that is told; or closes it where that is chosen.
    service.source_ranges.allowed = vec!["fd00::/8".parse().expect("range")];
    let of = |choices| chosen(choices, service.clone(), &[ep(1)]);
    let (held, told) = of(Choices::default());
    assert_eq!(allowed(&held, At::Vip), None, "S-73");
    let family = Family::V4;
    assert_eq!(told, [Notice::Unrestricted { family }], "S-73");
    let (held, told) = of(Choices {
        unlisted_family: UnlistedFamily::Closed,
        ..Choices::default()
    });
    assert_eq!((allowed(&held, At::Vip), told), (Some(vec![]), vec![]));
    // S-74: nothing readable closes it.
    service.source_ranges.allowed.clear();
    service.source_ranges.has_bad = true;
    assert_eq!(allowed(&elements(service, &[ep(1)]), At::Vip), Some(vec![]));
}

#[test]
fn s208_a_list_longer_than_the_slots_is_cut_and_told() {
    let mut service = service("s0", 1);
    service.ports = vec![port(ApiProtocol::Tcp, 80, None)];
    let mut state = synced(Mode::Beside);
    // 66 slices of 1000 endpoints: 65536 is one more than there are slots.
    for slice in 0..66_u32 {
        let addresses = (0..1000).map(|n| slice * 1000 + n).filter(|n| *n < 65_536);
        state.apply(put_addresses(&format!("e{slice}"), "s0", addresses));
    }
    state.apply(put(service));
    let batch = Planner::new(Elements::new()).plan(&mut state, &[], usize::MAX);
    let slots = batch
        .change
        .add
        .keys()
        .filter(|key| key.1 == SetId::Endpoints);
    assert_eq!(slots.count(), 65_535, "S-208");
    let told: Vec<_> = batch
        .notices
        .iter()
        .flat_map(|(_, notices)| notices)
        .collect();
    assert!(
        matches!(told[..], [Notice::Cut { left_out: 1, .. }]),
        "S-208: {told:?}"
    );
}

#[test]
fn s52_s11_what_finds_no_local_endpoint_and_what_is_programmed_is_counted() {
    let mut state = synced(Mode::Beside);
    let mut planner = Planner::new(Elements::new());
    let mut counted = |state: &mut onehop_node_agent::state::State| {
        planner.plan(state, &[addr("10.0.1.1")], usize::MAX);
        (planner.no_local(), planner.frontends().programmed)
    };
    state.apply(put(full(Local, Local)));
    assert_eq!(
        counted(&mut state).0,
        (0, 0),
        "S-52: nobody anywhere is no such case"
    );
    state.apply(put_slice("e0", "s0", &[ep(1)]));
    assert_eq!(
        counted(&mut state),
        ((1, 1), 3),
        "S-52, S-11: three frontends"
    );
    state.apply(put_slice("e0", "s0", &[local(1)]));
    assert_eq!(counted(&mut state), ((0, 0), 3), "S-52");
    state.apply(remove("s0"));
    assert_eq!(counted(&mut state), ((0, 0), 0), "S-11");
}
