//! The guard as a pure machine: evidence, what controllers say, and time go in; elements come out.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use onehop_core::crd::{
    ClientIp, ClusterFacts, NodeInstall, NodeTarget, ServiceRef, TargetHealth, TargetState,
};
use onehop_core::endpoint::{Conditions, Endpoint, Hints, PodRef};
use onehop_core::id::Protocol;

use super::pods::Life;
use super::*;
use crate::table::element::{ClassKind, Data, Verdict};

const NOW: Time = Time::from_millis(1_800_000_000_000);
const HEALTH: SocketAddr =
    SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 1, 11)), 10290);
const BOUND: Duration = Duration::from_mins(13);

/// Endpoints of each Service; the node is `a`.
struct World {
    node: NodeName,
    endpoints: BTreeMap<&'static str, Vec<Endpoint>>,
    guards: Guards,
    fate: Fate,
}

impl Cluster for World {
    fn here(&self) -> &NodeName {
        &self.node
    }

    fn endpoints(&self, service: &ServiceKey, _: &PortKey, _: IpFamily) -> Vec<Endpoint> {
        let all = self.endpoints.get(service.name.as_str());
        all.cloned().unwrap_or_default()
    }

    fn health_at(&self, _: IpFamily) -> Option<SocketAddr> {
        Some(HEALTH)
    }

    fn fate(&self) -> Fate {
        self.fate
    }
}

fn addr(last: u8) -> IpAddr {
    [10, 244, 1, last].into()
}

fn socket(last: u8) -> SocketAddr {
    SocketAddr::new(addr(last), 8080)
}

fn endpoint(last: u8, node: &str, conditions: Conditions) -> Endpoint {
    let name = format!("p{last}");
    Endpoint {
        address: addr(last),
        port: 8080,
        nodes: vec![node.into()],
        zone: None,
        hints: Hints::default(),
        conditions,
        pod: Some(PodRef {
            uid: name.as_str().into(),
            name,
        }),
    }
}

fn target(service: &str, last: u8, state: TargetState) -> NodeTarget {
    let name = format!("p{last}");
    NodeTarget {
        service: ServiceRef {
            namespace: "default".to_owned(),
            name: service.to_owned(),
            uid: service.into(),
        },
        port_name: "http".into(),
        protocol: Protocol::Tcp,
        address: addr(last),
        target_port: 8080,
        pod_uid: name.as_str().into(),
        pod_name: name,
        health: TargetHealth::None,
        sources: Vec::new(),
        any_outside: true,
        client_ip: ClientIp::Preserve,
        allowed: None,
        state,
        since: NOW,
    }
}

fn said(targets: Vec<NodeTarget>) -> BTreeMap<InstallId, NodeInstall> {
    let install = NodeInstall {
        targets,
        cluster: ClusterFacts {
            pod_cidrs: vec!["10.244.0.0/16".parse().unwrap()],
            node_cidrs: vec!["10.0.1.0/24".parse().unwrap()],
            tail_max_seconds: 180,
            hold_max_seconds: 600,
        },
        ..NodeInstall::default()
    };
    [("test".into(), install)].into()
}

impl World {
    /// Pods 1 and 2 here, 3 and 4 on node b, all of Service web; 1 is listed.
    fn new() -> Self {
        let nodes = [(1, "a"), (2, "a"), (3, "b"), (4, "b")];
        let all = nodes.map(|(last, node)| endpoint(last, node, Conditions::READY));
        let mut world = Self {
            node: "a".into(),
            endpoints: [("web", all.to_vec())].into(),
            guards: Guards::default(),
            fate: Fate::Stays,
        };
        world.guards.pod(Step::ListStarts);
        for last in [1, 2] {
            world.pod(last, Life::Lives);
        }
        world.guards.pod(Step::ListEnds);
        world.say(vec![target("web", 1, TargetState::Active)]);
        world
    }

    fn pod(&mut self, last: u8, life: Life) {
        self.pod_at(&format!("p{last}"), last, life);
    }

    fn pod_at(&mut self, name: &str, last: u8, life: Life) {
        let view = PodView {
            uid: name.into(),
            addresses: vec![addr(last)],
            life,
            waits: false,
        };
        self.guards.pod(Step::Apply(pod_key(name), view));
    }

    fn pod_gone(&mut self, last: u8) {
        self.guards.pod(Step::Delete(pod_key(&format!("p{last}"))));
    }

    fn say(&mut self, targets: Vec<NodeTarget>) {
        self.guards.targets(&said(targets));
    }

    fn only(&mut self, list: &[(u8, &str, Conditions)]) {
        let list = list.iter().map(|(last, node, c)| endpoint(*last, node, *c));
        self.endpoints.insert("web", list.collect());
        self.guards.service(&ServiceKey::new("default", "web"));
    }

    fn at(&mut self, now: Time) -> Vec<Compiled> {
        let mut guards = std::mem::take(&mut self.guards);
        guards.pass(now);
        let compiled = guards.compile(self, now);
        self.guards = guards;
        compiled
    }

    /// The guard of pod 1's key.
    fn guard(&mut self, now: Time) -> Compiled {
        self.guards.touch_all();
        let key = Frontend {
            address: addr(1),
            protocol: Protocol::Tcp,
            port: 8080,
        };
        let mut all = self.at(now).into_iter();
        all.find(|c| c.key == key)
            .unwrap_or_else(|| Compiled::nothing(key))
    }
}

fn pod_key(name: &str) -> ObjectKey {
    ObjectKey {
        namespace: "default".to_owned(),
        name: name.to_owned(),
    }
}

/// The verdict for new flows from outside, and where they go.
fn steered(compiled: &Compiled) -> Option<(ClassKind, Vec<SocketAddr>)> {
    let verdict = compiled
        .elements
        .iter()
        .find_map(|((_, set, _), data)| match data {
            Some(Data::Timed(Verdict::Class(kind, _), _)) if *set == SetId::GuardAny => Some(*kind),
            _ => None,
        });
    let slots = compiled
        .elements
        .iter()
        .filter_map(|((_, set, _), data)| match data {
            Some(Data::Target(target)) if *set == SetId::GuardEndpoints => Some(*target),
            _ => None,
        });
    verdict.map(|kind| (kind, slots.collect()))
}

/// Elements beside the mark of a listed target.
fn guarding(compiled: &Compiled) -> Elements {
    let mut elements = compiled.elements.clone();
    elements.retain(|(_, set, _), _| *set != SetId::Targets);
    elements
}

fn dead(compiled: &Compiled) -> Option<Verdict> {
    compiled
        .elements
        .iter()
        .find_map(|((_, set, _), data)| match data {
            Some(Data::Timed(verdict, _)) if *set == SetId::DeadAny => Some(*verdict),
            _ => None,
        })
}

fn terminating(serving: bool) -> Conditions {
    Conditions {
        ready: false,
        serving,
        terminating: true,
    }
}

#[test]
fn zd40_the_deletion_mark_alone_starts_the_guard() {
    let mut world = World::new();
    assert_eq!(guarding(&world.guard(NOW)), Elements::new(), "a ready pod");
    world.pod(1, Life::Deleted);
    let guard = world.guard(NOW);
    assert_eq!(
        steered(&guard),
        Some((ClassKind::Gl(0), vec![socket(2)])),
        "ZD-40, ZD-48, K-23; the same node first: ZD-41"
    );
    assert_eq!(dead(&guard), None, "established flows stay (ZD-42)");
}

#[test]
fn zd48_a_terminating_or_vanished_endpoint_and_an_ended_pod_are_evidence_too() {
    let mut world = World::new();
    world.only(&[(1, "a", terminating(true)), (2, "a", Conditions::READY)]);
    assert!(steered(&world.guard(NOW)).is_some(), "terminating endpoint");
    let mut world = World::new();
    world.guard(NOW);
    world.only(&[(2, "a", Conditions::READY)]);
    assert!(
        steered(&world.guard(NOW)).is_some(),
        "an endpoint that was there is gone"
    );
    let mut world = World::new();
    world.pod(1, Life::Ended);
    let guard = world.guard(NOW);
    assert_eq!(
        dead(&guard),
        Some(Verdict::DeadSteered),
        "containers ended (W22)"
    );
    let mut world = World::new();
    world.pod_gone(1);
    assert!(world.guard(NOW).gone, "no such pod on the node");
}

#[test]
fn zd41_others_on_other_nodes_come_second_and_not_those_that_only_claim_to_serve() {
    let mut world = World::new();
    world.pod(1, Life::Deleted);
    world.pod(2, Life::Deleted);
    let guard = world.guard(NOW);
    assert_eq!(
        steered(&guard),
        Some((ClassKind::Gr(0), vec![socket(3), socket(4)])),
        "pod 2 is known to end before its endpoint says so"
    );
    let claims = Conditions {
        serving: false,
        ..Conditions::READY
    };
    world.only(&[
        (1, "a", Conditions::READY),
        (3, "b", claims),
        (4, "b", Conditions::READY),
    ]);
    let guard = world.guard(NOW);
    assert_eq!(
        steered(&guard),
        Some((ClassKind::Gr(0), vec![socket(4)])),
        "ZD-T34: published although not ready"
    );
}

#[test]
fn s412_a_list_has_at_most_sixteen_targets() {
    let mut world = World::new();
    let many: Vec<_> = (10..60)
        .map(|last| (last, "b", Conditions::READY))
        .collect();
    world.only(&many);
    world.pod(1, Life::Deleted);
    let (_, list) = steered(&world.guard(NOW)).expect("a guard");
    assert_eq!(list.len(), 16, "S-412");
    let (_, again) = steered(&world.guard(NOW)).expect("a guard");
    assert_eq!(list, again, "a stable choice");
}

#[test]
fn zd42_zd55_without_another_endpoint_the_pod_serves_on_and_then_all_is_refused() {
    let mut world = World::new();
    world.only(&[(1, "a", terminating(true))]);
    world.pod(1, Life::Deleted);
    let alone = world.guard(NOW);
    assert_eq!(guarding(&alone), Elements::new(), "ZD-42");
    world.pod_gone(1);
    world.only(&[]);
    let refused = world.guard(NOW);
    assert_eq!(dead(&refused), Some(Verdict::DeadRefused), "ZD-55");
    assert_eq!(steered(&refused), None);
    world.only(&[(3, "b", Conditions::READY)]);
    let back = world.guard(NOW);
    assert_eq!(dead(&back), Some(Verdict::DeadSteered), "one is back");
    assert!(steered(&back).is_some());
}

#[test]
fn zd50_released_the_bound_and_a_new_owner_end_a_guard() {
    let guarded = || {
        let mut world = World::new();
        world.pod_gone(1);
        assert!(steered(&world.guard(NOW)).is_some());
        world
    };
    let mut world = guarded();
    world.say(vec![target("web", 1, TargetState::Released)]);
    assert_eq!(guarding(&world.guard(NOW)), Elements::new(), "ZD-50 (1)");
    let mut world = guarded();
    let last = NOW + BOUND;
    assert!(steered(&world.guard(last - Duration::from_secs(1))).is_some());
    assert_eq!(world.guards.next_end(), Some(last));
    let over = world.at(last);
    assert_eq!(guarding(&over[0]), Elements::new(), "ZD-50 (2), ZD-51");
    let mut world = guarded();
    world.pod_at("other", 1, Life::Lives);
    assert_eq!(
        guarding(&world.guard(NOW)),
        Elements::new(),
        "ZD-50 (3), ZD-85, S-417: nothing of the old one is left for the new one"
    );
}

#[test]
fn zd51_hold_and_drain_do_not_restart_the_clock() {
    let mut world = World::new();
    world.pod(1, Life::Deleted);
    let first = world.guard(NOW).ends;
    assert_eq!(first, Some(NOW + BOUND), "hold maximum and tail");
    world.say(vec![target("web", 1, TargetState::Held)]);
    world.pod_gone(1);
    assert_eq!(
        world.guard(NOW + Duration::from_mins(1)).ends,
        first,
        "ZD-51"
    );
}

#[test]
fn zd52_an_entry_that_vanishes_says_nothing() {
    let mut world = World::new();
    world.pod_gone(1);
    let before = world.guard(NOW);
    world.say(Vec::new());
    assert_eq!(world.guard(NOW), before, "the entry (ZD-T38)");
    world.guards.targets(&BTreeMap::new());
    assert_eq!(world.guard(NOW), before, "the whole object (K-21)");
    assert_eq!(
        guarding(&world.guard(NOW + BOUND)),
        Elements::new(),
        "to its bound"
    );
    // One that was released and then left out is done.
    let mut world = World::new();
    world.pod_gone(1);
    world.say(vec![target("web", 1, TargetState::Released)]);
    world.say(Vec::new());
    assert_eq!(guarding(&world.guard(NOW)), Elements::new());
}

#[test]
fn zd43_outside_is_not_known_without_the_ranges_of_pods_and_nodes() {
    let mut world = World::new();
    let mut installs = said(vec![target("web", 1, TargetState::Active)]);
    let install = installs
        .get_mut(&InstallId::from("test"))
        .expect("the install");
    install.cluster.node_cidrs.clear();
    world.guards.targets(&installs);
    world.pod(1, Life::Deleted);
    assert_eq!(
        guarding(&world.guard(NOW)),
        Elements::new(),
        "when in doubt, not"
    );
}

#[test]
fn s413_only_clients_that_are_let_in_are_steered() {
    let mut world = World::new();
    let mut listed = target("web", 1, TargetState::Active);
    listed.allowed = Some(vec![
        "203.0.113.0/24".parse().unwrap(),
        "10.244.0.0/15".parse().unwrap(),
    ]);
    world.say(vec![listed]);
    world.pod(1, Life::Deleted);
    let guard = world.guard(NOW);
    let ranges = guard.elements.keys().filter_map(|(_, set, key)| match key {
        Key::Range(_, net) if *set == SetId::GuardFrom => Some(net.to_string()),
        _ => None,
    });
    let ranges: Vec<String> = ranges.collect();
    assert_eq!(
        ranges,
        ["10.245.0.0/16", "203.0.113.0/24"],
        "S-413, ZD-49: minus inside"
    );
    assert!(
        guard
            .elements
            .keys()
            .all(|(_, set, _)| *set != SetId::GuardAny)
    );
}

fn sources(mut target: NodeTarget, ranges: &[&str]) -> NodeTarget {
    target.any_outside = false;
    target.sources = ranges.iter().map(|text| text.parse().unwrap()).collect();
    target
}

#[test]
fn zd_t37_two_services_on_one_pod_go_to_their_own_endpoints() {
    let mut world = World::new();
    world
        .endpoints
        .insert("web", vec![endpoint(2, "a", Conditions::READY)]);
    world
        .endpoints
        .insert("api", vec![endpoint(3, "b", Conditions::READY)]);
    let own = |service, range| sources(target(service, 1, TargetState::Active), &[range]);
    world.say(vec![own("web", "10.9.1.0/24"), own("api", "10.9.2.0/24")]);
    world.pod(1, Life::Deleted);
    let guard = world.guard(NOW);
    let mut verdicts: Vec<(String, ClassKind)> = Vec::new();
    for ((_, set, key), data) in &guard.elements {
        if let (
            SetId::GuardFrom,
            Key::Range(_, net),
            Some(Data::Timed(Verdict::Class(kind, 1), _)),
        ) = (set, key, data)
        {
            verdicts.push((net.to_string(), *kind));
        }
    }
    // Service api sorts first and so has scope 0.
    let wanted = [
        ("10.9.1.0/24".to_owned(), ClassKind::Gl(1)),
        ("10.9.2.0/24".to_owned(), ClassKind::Gr(0)),
    ];
    assert_eq!(verdicts, wanted, "ZD-T37, S-411");
    let slots: Vec<(u32, SocketAddr)> = guard
        .elements
        .iter()
        .filter_map(|((_, set, key), data)| match (set, key, data) {
            (SetId::GuardEndpoints, Key::FrontendSlot(_, slot), Some(Data::Target(to))) => {
                Some((*slot, *to))
            }
            _ => None,
        })
        .collect();
    assert_eq!(
        slots,
        [(0, socket(3)), (65_536, socket(2))],
        "S-288: scope x 65536 + index"
    );
}

/// What ends by itself, also when no agent runs, and what means nothing without it.
#[test]
fn s410_s419_verdicts_of_a_guard_have_its_bound_and_slots_have_none() {
    use SetId::{DeadAny, DeadKeys, GuardAny, GuardEndpoints};
    let mut world = World::new();
    world.pod(1, Life::Deleted);
    let alive = guarding(&world.guard(NOW));
    world.pod_gone(1);
    let gone = guarding(&world.guard(NOW));
    let sets = |elements: &Elements| -> Vec<SetId> {
        let mut sets: Vec<SetId> = elements.keys().map(|(_, set, _)| *set).collect();
        sets.dedup();
        sets
    };
    assert_eq!(
        sets(&alive),
        [GuardEndpoints, GuardAny],
        "S-410, ZD-59: elements of maps that are there, and no rule"
    );
    assert_eq!(
        sets(&gone),
        [GuardEndpoints, GuardAny, DeadAny, DeadKeys],
        "S-410, S-414: what is added when the pod is gone"
    );
    for ((_, set, _), data) in alive.iter().chain(&gone) {
        let until = match data {
            Some(Data::Timed(_, until) | Data::Until(until)) => Some(*until),
            _ => None,
        };
        let bound = (*set != GuardEndpoints).then_some(NOW + BOUND);
        assert_eq!(until, bound, "S-419: {set:?}");
    }
}

#[test]
fn zd56_services_that_cannot_be_told_apart_share_what_they_have_in_common() {
    let mut world = World::new();
    let both = || {
        vec![
            target("web", 1, TargetState::Active),
            target("api", 1, TargetState::Active),
        ]
    };
    world.say(both());
    let list = |lasts: &[u8]| -> Vec<Endpoint> {
        let one = |last: &u8| endpoint(*last, "b", Conditions::READY);
        lasts.iter().map(one).collect()
    };
    world.endpoints.insert("web", list(&[3, 4]));
    world.endpoints.insert("api", list(&[4, 5]));
    world.pod(1, Life::Deleted);
    let guard = world.guard(NOW);
    assert_eq!(
        steered(&guard),
        Some((ClassKind::Gr(0), vec![socket(4)])),
        "ZD-56"
    );
    world.endpoints.insert("api", list(&[5]));
    assert_eq!(
        guarding(&world.guard(NOW)),
        Elements::new(),
        "nothing in common: off"
    );
}

#[test]
fn zd37_a_restart_takes_over_the_bounds_that_run() {
    let mut world = World::new();
    world.pod_gone(1);
    let before = world.guard(NOW);
    let later = NOW + Duration::from_secs(100);
    // The new process knows the kernel before it knows anything else.
    let mut fresh = Guards::default();
    fresh.inherit(&before.elements);
    world.guards = fresh;
    assert_eq!(
        world.guard(later).elements,
        before.elements,
        "nothing known yet"
    );
    world.guards.pod(Step::ListStarts);
    world.pod(2, Life::Lives);
    world.guards.pod(Step::ListEnds);
    assert_eq!(
        world.guard(later).elements,
        before.elements,
        "no object (ZD-52)"
    );
    world.say(vec![target("web", 1, TargetState::Held)]);
    assert_eq!(
        world.guard(later).elements,
        before.elements,
        "ZD-37: the same bound"
    );
}

#[test]
fn k26_without_an_entry_there_is_no_guard() {
    let mut world = World::new();
    world.guards = Guards::default();
    world.guards.pod(Step::ListStarts);
    world.guards.pod(Step::ListEnds);
    assert!(world.at(NOW).is_empty(), "K-26, ZD-19");
    assert_eq!(world.guards.count(), 0);
}

#[test]
fn zd85_a_pod_that_follows_another_at_its_address_is_guarded_in_its_turn() {
    let mut world = World::new();
    world.pod_gone(1);
    world.pod_at("p9", 1, Life::Lives);
    let mut follower = target("web", 1, TargetState::Active);
    follower.pod_uid = "p9".into();
    world.say(vec![target("web", 1, TargetState::Draining), follower]);
    assert_eq!(steered(&world.guard(NOW)), None, "ZD-50: another pod's now");
    world.pod_at("p9", 1, Life::Deleted);
    assert!(steered(&world.guard(NOW)).is_some(), "ZD-40");
}

/// Probes come to the agent from the load balancer only, and its answers follow the pod (ZD-31, ZD-35).
#[test]
fn zd35_zd53_probes_and_answers_of_a_listed_target() {
    let mut world = World::new();
    let asked = |state, sources: &[&str]| {
        let mut target = target("web", 1, state);
        target.health = TargetHealth::Agent;
        target.sources = sources.iter().map(|s| s.parse().unwrap()).collect();
        vec![target]
    };
    let sets = |compiled: &Compiled| -> Vec<SetId> {
        let of_health =
            |set: &SetId| matches!(set, SetId::PodHealth | SetId::HealthFrom | SetId::HealthAny);
        let sets = compiled.elements.keys().map(|(_, set, _)| *set);
        sets.filter(of_health).collect()
    };
    let healthy = |compiled: &Compiled| {
        let answers = compiled.answers.clone().unwrap();
        answers.values().copied().collect::<Vec<_>>()
    };
    world.say(asked(TargetState::Active, &[]));
    let compiled = world.guard(NOW);
    assert_eq!(sets(&compiled), [SetId::PodHealth, SetId::HealthAny]);
    assert_eq!(healthy(&compiled), [true]);
    world.say(asked(TargetState::Active, &["10.0.9.7/32"]));
    let listed = world.guard(NOW);
    assert_eq!(
        sets(&listed),
        [SetId::PodHealth, SetId::HealthFrom],
        "ZD-35, S-421"
    );
    let to = listed.elements.iter().find_map(|((_, set, _), data)| {
        let to = data.filter(|_| *set == SetId::PodHealth);
        to.map(|to| to == Data::Target(HEALTH))
    });
    assert_eq!(to, Some(true), "S-407: to one address of the node");
    world.pod(1, Life::Deleted);
    assert_eq!(healthy(&world.guard(NOW)), [true], "ZD-110: undecided");
    let guard_ended = world.guard(NOW + Duration::from_hours(1));
    assert_eq!(healthy(&guard_ended), [false], "ZD-51");
    world.say(asked(TargetState::Draining, &[]));
    assert_eq!(healthy(&world.guard(NOW)), [false], "ZD-34");
    world.say(asked(TargetState::Held, &[]));
    assert_eq!(healthy(&world.guard(NOW)), [true], "ZD-31");
    world.fate = Fate::Out;
    assert_eq!(healthy(&world.guard(NOW)), [false], "ZD-78");
    world.fate = Fate::Stays;
    world.guards.targets(&BTreeMap::new());
    assert_eq!(
        healthy(&world.guard(NOW)),
        [true],
        "ZD-52: nothing was said"
    );
    world.say(asked(TargetState::Released, &[]));
    assert_eq!(healthy(&world.guard(NOW)), Vec::<bool>::new());
}

#[test]
fn zd122_zd50_a_guard_tells_why_it_ended_and_since_when_its_target_was_let_go() {
    let later = NOW + Duration::from_secs(30);
    let guarded = || {
        let mut world = World::new();
        world.guard(NOW);
        world.pod(1, Life::Deleted);
        world.guard(NOW);
        assert_eq!(world.guards.take_begun(), 1, "ZD-122");
        world
    };
    let ended = |world: &mut World, now| {
        world.guard(now);
        let ended = world.guards.take_ended();
        assert_eq!(world.guards.take_begun(), 0);
        ended
            .into_iter()
            .map(|ended| (ended.cause, ended.drained))
            .collect::<Vec<_>>()
    };
    let mut world = guarded();
    let drained = NodeTarget {
        since: later,
        ..target("web", 1, TargetState::Draining)
    };
    world.say(vec![drained]);
    assert_eq!(ended(&mut world, later), [], "it runs on");
    world.say(vec![target("web", 1, TargetState::Released)]);
    let web = target("web", 1, TargetState::Active).service;
    assert_eq!(
        ended(&mut world, later),
        [(End::Released, vec![(web, later)])],
        "ZD-122, ZD-83"
    );
    let mut world = guarded();
    assert_eq!(ended(&mut world, NOW + BOUND), [(End::Bound, vec![])]);
    let mut world = guarded();
    world.pod_gone(1);
    world.pod_at("another", 1, Life::Lives);
    assert_eq!(ended(&mut world, later), [(End::Reused, vec![])]);
    let mut world = guarded();
    world.pod(1, Life::Lives);
    assert_eq!(ended(&mut world, later), [(End::Serves, vec![])]);
}
