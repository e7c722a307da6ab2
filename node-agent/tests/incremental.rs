//! What the planner sends step by step leads where a compile of everything leads, and no element
//! is ever added twice or removed when it is not there: the kernel would refuse the whole batch.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail the test"
)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use common::*;
use onehop_core::id::Protocol;
use onehop_core::service::{ServiceSpec, TrafficPolicy};
use onehop_node_agent::args::Mode;
use onehop_node_agent::claims::Front;
use onehop_node_agent::collection::Step;
use onehop_node_agent::planner::{Batch, Planner, front_of};
use onehop_node_agent::state::{Change, State};
use onehop_node_agent::table::element::{
    ClassKind, Data, ElementChange, ElementKey, Elements, Key, LOCAL_SCOPE, SetId, Verdict,
};
use proptest::prelude::*;

const SERVICES: [&str; 4] = ["s0", "s1", "s2", "s3"];
const SLICES: [&str; 5] = ["e0", "e1", "e2", "e3", "e4"];

#[derive(Debug, Clone)]
enum Op {
    Put {
        service: usize,
        shape: Shape,
    },
    Remove(usize),
    PutSlice {
        slice: usize,
        service: usize,
        endpoints: Vec<Ep>,
    },
    RemoveSlice(usize),
    Zone(bool),
    Addresses(Vec<u8>),
    Plan,
    Restart,
    Relist,
}

#[derive(Debug, Clone)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is one field of the API"
)]
struct Shape {
    ours: bool,
    /// Address that other Services may claim too.
    external: Option<u8>,
    node_port: Option<u16>,
    itp_local: bool,
    etp_local: bool,
    udp: bool,
    affinity: Option<u64>,
    created: i64,
}

fn shape() -> impl Strategy<Value = Shape> {
    (
        proptest::bool::weighted(0.85),
        proptest::option::of(1_u8..3),
        proptest::option::of(30_000_u16..30_003),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        proptest::option::of(1_u64..3),
        0_i64..3,
    )
        .prop_map(
            |(ours, external, node_port, itp_local, etp_local, udp, affinity, created)| Shape {
                ours,
                external,
                node_port,
                itp_local,
                etp_local,
                udp,
                affinity,
                created,
            },
        )
}

fn endpoints() -> impl Strategy<Value = Vec<Ep>> {
    let stands = prop_oneof![
        4 => Just(Stands::Ready),
        1 => Just(Stands::NotReady),
        1 => Just(Stands::ServingTerminating),
    ];
    let one = (1_u8..9, any::<bool>(), stands);
    proptest::collection::vec(
        one.prop_map(|(last, local, stands)| Ep {
            last,
            local,
            stands,
        }),
        0..6,
    )
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..SERVICES.len(), shape()).prop_map(|(service, shape)| Op::Put { service, shape }),
        1 => (0..SERVICES.len()).prop_map(Op::Remove),
        5 => (0..SLICES.len(), 0..SERVICES.len(), endpoints())
            .prop_map(|(slice, service, endpoints)| Op::PutSlice { slice, service, endpoints }),
        1 => (0..SLICES.len()).prop_map(Op::RemoveSlice),
        1 => any::<bool>().prop_map(Op::Zone),
        1 => proptest::collection::vec(1_u8..4, 0..3).prop_map(Op::Addresses),
        6 => Just(Op::Plan),
        1 => Just(Op::Restart),
        1 => Just(Op::Relist),
    ]
}

fn build(index: usize, shape: &Shape) -> ServiceSpec {
    let last = u8::try_from(index + 1).expect("few Services");
    let policy = |local| {
        if local {
            TrafficPolicy::Local
        } else {
            TrafficPolicy::Cluster
        }
    };
    let protocol = if shape.udp {
        Protocol::Udp
    } else {
        Protocol::Tcp
    };
    let mut service = service(SERVICES[index], last);
    if !shape.ours {
        service.labels.clear();
    }
    service.created = onehop_core::time::Time::from_millis(shape.created);
    service.external_ips = shape
        .external
        .map(|last| IpAddr::from([10, 0, 1, last]))
        .into_iter()
        .collect();
    service.internal_policy = policy(shape.itp_local);
    service.external_policy = policy(shape.etp_local);
    service.ports = vec![port(protocol, 80, shape.node_port)];
    service.affinity = shape.affinity.map(Duration::from_secs);
    service
}

/// A kernel that refuses what the real one refuses.
#[derive(Default)]
struct Kernel(Elements);

impl Kernel {
    fn commit(&mut self, change: &ElementChange) {
        for key in &change.remove {
            assert!(
                self.0.remove(key).is_some(),
                "{key:?} is removed but not there"
            );
        }
        for (key, data) in &change.add {
            assert!(
                self.0.insert(*key, *data).is_none(),
                "{key:?} is added but there"
            );
        }
    }
}

/// Elements with slots taken as a set per list, and the proof that slots are 0 to N-1.
type Meaning = (
    BTreeMap<ElementKey, Option<Data>>,
    BTreeMap<String, BTreeSet<SocketAddr>>,
);

fn meaning(elements: &Elements) -> Meaning {
    let mut plain = BTreeMap::new();
    let mut lists: BTreeMap<String, BTreeMap<u32, SocketAddr>> = BTreeMap::new();
    for (key, data) in elements {
        let (list, slot) = match key.2 {
            Key::FrontendSlot(front, slot) => (format!("{front:?} {}", slot / LOCAL_SCOPE), slot),
            Key::NodePortSlot {
                protocol,
                port,
                slot,
            } => (
                format!("{:?} {protocol:?} {port} {}", key.0, slot / LOCAL_SCOPE),
                slot,
            ),
            _ => {
                plain.insert(*key, *data);
                continue;
            }
        };
        let Some(Data::Target(target)) = data else {
            panic!("slot without target")
        };
        lists
            .entry(list)
            .or_default()
            .insert(slot % LOCAL_SCOPE, *target);
    }
    let sets = lists
        .into_iter()
        .map(|(list, slots)| {
            let count = u32::try_from(slots.len()).expect("short lists");
            assert!(
                slots.keys().copied().eq(0..count),
                "{list}: slots {slots:?}"
            );
            let targets: BTreeSet<SocketAddr> = slots.values().copied().collect();
            assert_eq!(targets.len(), slots.len(), "{list}: a target twice");
            (list, targets)
        })
        .collect();
    (plain, sets)
}

/// Every class verdict names the length of its list, and every list has its verdict.
fn assert_verdicts_fit(elements: &Elements) {
    for ((family, set, key), data) in elements {
        let Some(Data::Verdict(Verdict::Class(kind, count))) = data else {
            continue;
        };
        let scope = if matches!(kind, ClassKind::L | ClassKind::Npl) {
            LOCAL_SCOPE
        } else {
            0
        };
        let slot_at = |slot| match *key {
            Key::Frontend(front) => (*family, SetId::Endpoints, Key::FrontendSlot(front, slot)),
            Key::NodePort { protocol, port } => (
                *family,
                SetId::NodePortEndpoints,
                Key::NodePortSlot {
                    protocol,
                    port,
                    slot,
                },
            ),
            _ => panic!("{set:?} has a class verdict under {key:?}"),
        };
        let last = scope + u32::from(*count) - 1;
        assert!(
            elements.contains_key(&slot_at(last)),
            "slot {last} of {key:?} is missing"
        );
        assert!(
            !elements.contains_key(&slot_at(last + 1)),
            "slot {} of {key:?} is left",
            last + 1
        );
    }
}

fn from_scratch(state: &mut State, addresses: &[IpAddr]) -> Elements {
    let mut planner = Planner::new(Elements::new());
    state.touch_all();
    let batch = planner.plan(state, addresses, usize::MAX);
    let mut kernel = Kernel::default();
    kernel.commit(&batch.change);
    kernel.0
}

fn apply(state: &mut State, op: &Op) {
    match op {
        Op::Put { service, shape } => drop(state.apply(put(build(*service, shape)))),
        Op::Remove(service) => drop(state.apply(remove(SERVICES[*service]))),
        Op::PutSlice {
            slice,
            service,
            endpoints,
        } => {
            let protocol = if slice % 2 == 0 { "TCP" } else { "UDP" };
            let name = SLICES[*slice];
            drop(state.apply(put_slice_of(name, SERVICES[*service], protocol, endpoints)));
        }
        Op::RemoveSlice(slice) => drop(state.apply(remove_slice(SLICES[*slice]))),
        Op::Zone(known) => {
            let node = node(known.then_some("a"));
            drop(state.apply(Change::Node(Step::Apply(node.name.clone(), node))));
        }
        Op::Relist => {
            // A list that names nothing: everything is gone, slices and Services alike.
            for change in lists(node(Some("a"))) {
                drop(state.apply(change));
            }
        }
        Op::Addresses(_) | Op::Plan | Op::Restart => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(400), ..ProptestConfig::default() })]

    #[test]
    fn s120_incremental_equals_a_compile_of_everything(ops in proptest::collection::vec(op(), 1..40)) {
        let mut state = synced(Mode::Beside);
        let mut addresses: Vec<IpAddr> = vec![addr("10.0.1.1")];
        let mut planner = Planner::new(Elements::new());
        let mut kernel = Kernel::default();
        for op in ops {
            apply(&mut state, &op);
            match op {
                Op::Addresses(lasts) => {
                    addresses = lasts.iter().map(|last| IpAddr::from([10, 0, 1, *last])).collect();
                }
                Op::Plan => {
                    kernel.commit(&planner.plan(&mut state, &addresses, usize::MAX).change);
                    prop_assert_eq!(&kernel.0, &planner.elements());
                    prop_assert_eq!(meaning(&kernel.0), meaning(&from_scratch(&mut state, &addresses)));
                    state.take_dirty();
                    assert_verdicts_fit(&kernel.0);
                }
                Op::Restart => {
                    kernel.commit(&planner.plan(&mut state, &addresses, usize::MAX).change);
                    planner = Planner::new(kernel.0.clone());
                    state.touch_all();
                    let change = planner.plan(&mut state, &addresses, usize::MAX).change;
                    // S-121, I4: what is as it should be is not sent again.
                    prop_assert!(change.writes_nothing(), "{:?}", change);
                }
                _ => {}
            }
        }
    }
}

/// What a table says of each frontend.
fn by_front(elements: &Elements) -> BTreeMap<Front, Meaning> {
    let mut fronts: BTreeMap<Front, Elements> = BTreeMap::new();
    for (key, data) in elements {
        // Its keys are the node's addresses, not the frontends that it is about.
        let of_one = key.1 != SetId::AffinityRecord;
        if let Some(front) = front_of(key).filter(|_| of_one) {
            fronts.entry(front).or_default().insert(*key, *data);
        }
    }
    let fronts = fronts.iter();
    fronts
        .map(|(front, elements)| (*front, meaning(elements)))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(400), ..ProptestConfig::default() })]

    #[test]
    fn s133_batches_of_few_services_show_no_half_frontend_and_lead_to_the_same(
        ops in proptest::collection::vec(op(), 1..40),
        limit in 1_usize..3,
    ) {
        let mut state = synced(Mode::Beside);
        let mut addresses: Vec<IpAddr> = vec![addr("10.0.1.1")];
        let mut planner = Planner::new(Elements::new());
        let mut kernel = Kernel::default();
        // All that each frontend was to be at some time.
        let mut whole: BTreeMap<Front, Vec<Meaning>> = BTreeMap::new();
        for op in ops {
            apply(&mut state, &op);
            match op {
                Op::Addresses(lasts) => {
                    addresses = lasts.iter().map(|last| IpAddr::from([10, 0, 1, *last])).collect();
                }
                Op::Plan => {
                    let dirty = state.take_dirty();
                    for (front, meant) in by_front(&from_scratch(&mut state, &addresses)) {
                        whole.entry(front).or_default().push(meant);
                    }
                    state.take_dirty();
                    for key in dirty {
                        state.touch(key);
                    }
                    kernel.commit(&planner.plan(&mut state, &addresses, limit).change);
                    prop_assert_eq!(&kernel.0, &planner.elements());
                    assert_verdicts_fit(&kernel.0);
                    for (front, meant) in by_front(&kernel.0) {
                        prop_assert!(whole[&front].contains(&meant), "{}: {:?}", front, meant);
                    }
                }
                _ => {}
            }
        }
        loop {
            let batch = planner.plan(&mut state, &addresses, limit);
            kernel.commit(&batch.change);
            if !batch.more {
                break;
            }
        }
        prop_assert_eq!(meaning(&kernel.0), meaning(&from_scratch(&mut state, &addresses)));
    }
}

#[test]
fn s120_a_change_on_its_own_does_not_wait_for_a_flood() {
    let (mut planner, mut state) = (Planner::new(Elements::new()), synced(Mode::Beside));
    for last in 1..=50 {
        let name = format!("s{last:02}");
        state.apply(put(service(&name, last)));
    }
    let names = |batch: &Batch| -> Vec<_> {
        let services = batch.services.iter();
        services.map(|(key, _)| key.name.clone()).collect()
    };
    let first = planner.plan(&mut state, &[], 10);
    assert!(first.more && first.services.len() == 10, "{first:?}");
    state.apply(put_slice("e0", "s50", &[ep(1)]));
    let next = planner.plan(&mut state, &[], 10);
    assert!(
        names(&next).contains(&"s50".to_owned()),
        "{:?}",
        names(&next)
    );
    assert!(
        next.more && next.services.len() == 10,
        "and the flood goes on"
    );
    let mut seen: BTreeSet<String> = [names(&first), names(&next)].concat().into_iter().collect();
    for _ in 0..3 {
        seen.extend(names(&planner.plan(&mut state, &[], 10)));
    }
    assert_eq!((seen.len(), planner.is_behind()), (50, false));
}

/// S-33, S-121: the Service that is compiled first after a restart is not the one that has the node port.
#[test]
fn s121_a_restart_beside_a_lost_claim_moves_no_slot() {
    let mut state = synced(Mode::Beside);
    let (mut older, mut newer) = (service("s2", 3), service("s1", 2));
    newer.created = onehop_core::time::Time::from_millis(9);
    for of_both in [&mut older, &mut newer] {
        of_both.ports = vec![port(Protocol::Tcp, 80, Some(30_002))];
    }
    for change in [
        put(older),
        put(newer),
        put_slice("e0", "s2", &[ep(1), ep(6)]),
        put_slice("e1", "s1", &[ep(6)]),
    ] {
        state.apply(change);
    }
    let (mut planner, mut kernel) = (Planner::new(Elements::new()), Kernel::default());
    commit(&mut planner, &mut state, &mut kernel);
    let mut planner = Planner::new(kernel.0.clone());
    state.touch_all();
    let change = planner
        .plan(&mut state, &[addr("10.0.1.1")], usize::MAX)
        .change;
    assert!(change.writes_nothing(), "S-121: {change:?}");
}

fn commit(planner: &mut Planner, state: &mut State, kernel: &mut Kernel) -> ElementChange {
    let change = planner.plan(state, &[addr("10.0.1.1")], usize::MAX).change;
    kernel.commit(&change);
    change
}

#[test]
fn s244_replaced_endpoint_costs_one_delete_and_one_add_per_frontend() {
    let mut state = synced(Mode::Beside);
    let (mut planner, mut kernel) = (Planner::new(Elements::new()), Kernel::default());
    state.apply(put(service("s0", 1)));
    state.apply(put_slice("e0", "s0", &[ep(1), ep(2), ep(3)]));
    commit(&mut planner, &mut state, &mut kernel);
    state.apply(put_slice("e0", "s0", &[ep(1), ep(9), ep(3)]));
    let change = commit(&mut planner, &mut state, &mut kernel);
    // The slot, and the hairpin pair.
    assert_eq!(
        (change.remove.len(), change.add.len()),
        (2, 2),
        "{change:?}"
    );
    state.apply(put_slice("e0", "s0", &[ep(9), ep(3)]));
    let change = commit(&mut planner, &mut state, &mut kernel);
    // Slot 0 takes the last one, slot 2 and a pair go, the verdict names the new count.
    assert_eq!(
        (change.remove.len(), change.add.len()),
        (4, 2),
        "{change:?}"
    );
}

#[test]
fn s02_the_label_moves_a_service_live() {
    let mut state = synced(Mode::Beside);
    let (mut planner, mut kernel) = (Planner::new(Elements::new()), Kernel::default());
    state.apply(put(service("s0", 1)));
    state.apply(put_slice("e0", "s0", &[ep(1)]));
    commit(&mut planner, &mut state, &mut kernel);
    let with_service = kernel.0.clone();
    let mut other = service("s0", 1);
    other.labels.clear();
    state.apply(put(other));
    commit(&mut planner, &mut state, &mut kernel);
    assert!(
        kernel
            .0
            .keys()
            .all(|(_, set, _)| *set == SetId::NodePortIps),
        "{:?}",
        kernel.0
    );
    state.apply(put(service("s0", 1)));
    commit(&mut planner, &mut state, &mut kernel);
    assert_eq!(kernel.0, with_service);
}

#[test]
fn s29_an_address_of_a_service_answers_no_node_port_unless_it_is_the_nodes_own() {
    let mut state = synced(Mode::Beside);
    let (mut planner, mut kernel) = (Planner::new(Elements::new()), Kernel::default());
    let interfaces = [addr("10.0.1.1"), addr("10.0.1.9")];
    let mut answering = |state: &mut State| {
        kernel.commit(&planner.plan(state, &interfaces, usize::MAX).change);
        let keys = kernel.0.keys().map(|(_, set, key)| (set, key));
        let of_set = keys.filter(|(set, _)| **set == SetId::NodePortIps);
        of_set.map(|(_, key)| *key).collect::<Vec<_>>()
    };
    let (own, other) = (Key::Addr(interfaces[0]), Key::Addr(interfaces[1]));
    assert_eq!(answering(&mut state), [own, other]);
    let mut claims = service("s0", 1);
    claims.external_ips = interfaces.to_vec();
    state.apply(put(claims));
    assert_eq!(
        answering(&mut state),
        [own],
        "S-29, and nobody takes a node's NodePorts away by naming its address"
    );
    state.apply(remove("s0"));
    assert_eq!(answering(&mut state), [own, other]);
}

#[test]
fn s124_a_refused_frontend_is_left_out_until_it_is_tried_again() {
    let mut state = synced(Mode::Beside);
    let (mut planner, mut kernel) = (Planner::new(Elements::new()), Kernel::default());
    state.apply(put(service("s0", 1)));
    state.apply(put(service("s1", 2)));
    state.apply(put_slice("e0", "s0", &[ep(1)]));
    let wanted = planner.plan(&mut state, &[], usize::MAX).change.add;
    let is_s0 = |key: &ElementKey| matches!(key.2, Key::Frontend(front) if front.address == addr("10.96.0.1"));
    let refused: BTreeSet<ElementKey> = wanted.keys().copied().filter(is_s0).collect();
    assert!(!refused.is_empty());
    planner.restart(Elements::new(), &refused);
    state.touch_all();
    commit(&mut planner, &mut state, &mut kernel);
    assert!(!kernel.0.keys().any(is_s0), "left out");
    assert_eq!(planner.retry_refused(), [key("s0")]);
    state.touch(key("s0"));
    commit(&mut planner, &mut state, &mut kernel);
    assert!(kernel.0.keys().any(is_s0), "tried again");
}
