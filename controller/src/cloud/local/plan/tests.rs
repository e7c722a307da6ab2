//! Golden plans, and a model of the cloud in which plans are cut short at every step.

use std::fmt::Write;
use std::net::IpAddr;

use onehop_core::crd::{
    HealthBy, HealthCheck, HealthProtocol, LoadBalancerSpec, Membership, ProviderKind, TargetMode,
};
use onehop_core::id::{Protocol, ServiceUid};
use proptest::prelude::*;

use super::super::model::BalancerState;
use super::super::outcome::outcome;
use super::super::wanted::next_look;
use super::*;
use crate::plan::membership::{CloudState, Guard, Member, Owner, Serving, TargetKey, View};
use crate::plan::{Lane, Members, PortMembers, Programmed};

const NOW: Time = Time::from_millis(1_000_000_000);
const TAIL: Duration = Duration::from_mins(2);

fn settings() -> Settings {
    Settings {
        install: "demo-local".into(),
        switch_tail: TAIL,
    }
}

fn service() -> ServiceKey {
    ServiceKey::new("shop", "web")
}

fn port(name: &str, protocol: Protocol, number: u16, mode: TargetMode) -> LoadBalancerPort {
    let check = |by, protocol, port, path: Option<&str>| HealthCheck {
        by,
        protocol,
        port,
        path: path.map(str::to_owned),
        interval_seconds: 2,
        timeout_seconds: 2,
        healthy: 1,
        unhealthy: 2,
    };
    let health = match (mode, protocol) {
        (TargetMode::Pod, Protocol::Udp) => None,
        (TargetMode::Pod, _) => Some(check(HealthBy::Traffic, HealthProtocol::Tcp, None, None)),
        _ => Some(check(
            HealthBy::Node,
            HealthProtocol::Http,
            Some(10256),
            Some("/healthz"),
        )),
    };
    LoadBalancerPort {
        name: name.into(),
        protocol,
        port: number,
        mode,
        health,
        ..LoadBalancerPort::default()
    }
}

fn member(address: [u8; 4], port: u16, state: State) -> Member {
    let key = TargetKey {
        address: IpAddr::from(address),
        port,
    };
    Member {
        key,
        owner: Owner::Unknown,
        state,
        guard: Guard::Absent,
        held_since: None,
    }
}

fn pod(n: u8, state: State) -> Member {
    member([10, 244, 1, n], 8080, state)
}

fn members(pods: Vec<Member>) -> PortMembers {
    let nodes = |port| {
        let node = |n| member([10, 0, 1, n], port, State::Ready);
        (1..=2).map(node).collect()
    };
    PortMembers {
        pods: Members {
            list: pods,
            at_most_healthy: None,
        },
        nodes: Members {
            list: nodes(30080),
            at_most_healthy: None,
        },
        vips: Members {
            list: nodes(80),
            at_most_healthy: None,
        },
    }
}

fn intent(ports: Vec<LoadBalancerPort>, pods: &[(u8, State)]) -> Intent {
    let list = || pods.iter().map(|(n, state)| pod(*n, *state)).collect();
    let uid = ServiceUid::from("u1");
    Intent {
        service: service(),
        uid: uid.clone(),
        addresses: vec![IpAddr::from([198, 51, 100, 1])],
        members: ports.iter().map(|p| (p.key(), members(list()))).collect(),
        departed: BTreeMap::new(),
        machines: std::sync::Arc::default(),
        view: View::Watched,
        spec: LoadBalancerSpec {
            provider: ProviderKind::Local,
            service_uid: uid,
            ports,
            membership: Membership {
                floor_percent: 100,
                hold_max_seconds: 600,
                ..Membership::default()
            },
            ..LoadBalancerSpec::default()
        },
    }
}

fn http(mode: TargetMode) -> LoadBalancerPort {
    port("http", Protocol::Tcp, 80, mode)
}

/// The cloud, as far as the planner can see it: every step does what its call does.
#[derive(Clone, Debug, Default)]
struct Cloud {
    seen: Observed,
    made: u32,
    writes: u32,
}

impl Cloud {
    fn execute(&mut self, step: &LocalStep) {
        self.writes += 1;
        match step {
            LocalStep::CreateBalancer(spec) => {
                assert!(self.balancer(&spec.name).is_none(), "made twice: {step}");
                let (id, state) = (self.next_id("lb"), BalancerState::Active);
                let uid = spec.tags[names::SERVICE_UID].as_str().into();
                let listeners = BTreeMap::new();
                self.seen.balancers.push(Balancer {
                    id,
                    uid,
                    state,
                    listeners,
                    spec: spec.clone(),
                });
            }
            LocalStep::CreateGroup(spec) => {
                let twice = self.seen.groups.iter().any(|g| g.spec.name == spec.name);
                assert!(!twice, "made twice: {step}");
                let id = self.next_id("group");
                let group = tagged(id, spec);
                self.seen.groups.push(group);
            }
            LocalStep::AdjustBalancer(spec) => {
                self.balancer(&spec.name).unwrap().spec = spec.clone();
            }
            LocalStep::AdjustGroup(spec) => {
                let group = self.group(&spec.name);
                let targets = std::mem::take(&mut group.targets);
                *group = Group {
                    targets,
                    ..tagged(group.id.clone(), spec)
                };
            }
            LocalStep::Register { group, targets } => {
                let group = self.group(group);
                group
                    .targets
                    .extend(targets.iter().map(|key| (*key, CloudState::Initial)));
            }
            LocalStep::Deregister { group, targets, .. } => {
                let group = self.group(group);
                group
                    .targets
                    .extend(targets.iter().map(|(key, _)| (*key, CloudState::Draining)));
            }
            LocalStep::PutListener {
                balancer,
                listener,
                group,
                ..
            } => {
                let id = self.group(group).id.clone();
                self.balancer(balancer)
                    .unwrap()
                    .listeners
                    .insert(*listener, id);
            }
            LocalStep::DeleteListener {
                balancer, listener, ..
            } => {
                self.balancer(balancer).unwrap().listeners.remove(listener);
            }
            LocalStep::DeleteBalancer { name } => {
                self.seen.balancers.retain(|b| b.spec.name != *name);
            }
            LocalStep::DeleteGroup { name } => {
                let used = self
                    .seen
                    .groups
                    .iter()
                    .any(|g| g.spec.name == *name && self.seen.in_use(g));
                assert!(!used, "deleted while in use: {step}");
                self.seen.groups.retain(|g| g.spec.name != *name);
            }
        }
    }

    fn next_id(&mut self, kind: &str) -> String {
        self.made += 1;
        format!("{kind}-{}", self.made)
    }

    fn balancer(&mut self, name: &str) -> Option<&mut Balancer> {
        self.seen.balancers.iter_mut().find(|b| b.spec.name == name)
    }

    fn group(&mut self, name: &str) -> &mut Group {
        self.seen
            .groups
            .iter_mut()
            .find(|g| g.spec.name == name)
            .unwrap()
    }

    /// Probes succeed, drains end.
    fn settle(&mut self) {
        for group in &mut self.seen.groups {
            group
                .targets
                .retain(|_, state| *state != CloudState::Draining);
            let judged = group.spec.probe.is_some();
            for state in group.targets.values_mut() {
                *state = if judged {
                    CloudState::Healthy
                } else {
                    CloudState::Unjudged
                };
            }
        }
    }

    /// Plans and carries out until nothing is left to do, as the reconciler does: lane by lane, each
    /// from a fresh look. Gives up after too many rounds.
    fn converge(&mut self, intent: Option<&Intent>, now: &mut Time) {
        for _ in 0..40 {
            let plan = plan(&settings(), &service(), intent, &self.seen, *now);
            if plan.is_empty() {
                let look = next_look(
                    &settings(),
                    intent.map_or(&[], std::slice::from_ref),
                    &self.seen,
                    *now,
                );
                let before = self.seen.clone();
                self.settle();
                // A held target is looked at again and again; nothing but its end changes that.
                let rests =
                    before == self.seen && before.groups.iter().all(|g| g.retired.is_none());
                let Some(look) = look.filter(|_| !rests) else {
                    return;
                };
                *now = look.max(*now + Duration::from_secs(30));
                continue;
            }
            for lane in Lane::ALL {
                for group in plan.runnable(lane) {
                    group.steps.iter().for_each(|step| self.execute(step));
                }
            }
        }
        panic!("does not come to rest: {:#?}", self.seen);
    }
}

fn tagged(id: String, spec: &GroupSpec) -> Group {
    Group {
        id,
        uid: spec.tags[names::SERVICE_UID].as_str().into(),
        port: names::port_from_tag(&spec.tags[names::PORT]).unwrap(),
        generation: spec.tags[names::GENERATION].parse().unwrap(),
        retired: spec
            .tags
            .get(names::RETIRED)
            .map(|since| since.parse().unwrap()),
        spec: spec.clone(),
        targets: BTreeMap::new(),
    }
}

fn converged(intent: &Intent) -> (Cloud, Time) {
    let (mut cloud, mut now) = (Cloud::default(), NOW);
    cloud.converge(Some(intent), &mut now);
    (cloud, now)
}

fn planned(intent: Option<&Intent>, cloud: &Cloud, now: Time) -> String {
    plan(&settings(), &service(), intent, &cloud.seen, now).to_string()
}

#[test]
fn golden_create() {
    let ports = vec![
        http(TargetMode::Pod),
        port("dns", Protocol::Udp, 53, TargetMode::Pod),
    ];
    let intent = intent(
        ports,
        &[(1, State::Ready), (2, State::Ready), (3, State::NotReady)],
    );
    insta::assert_snapshot!(planned(Some(&intent), &Cloud::default(), NOW));
}

#[test]
fn golden_one_endpoint_swapped() {
    let before = intent(
        vec![http(TargetMode::Pod)],
        &[(1, State::Ready), (2, State::Ready)],
    );
    let (mut cloud, now) = converged(&before);
    let dying = State::Terminating {
        serving: Serving::Yes,
        since: Some(now),
    };
    let pods = [(1, dying), (2, State::Ready), (3, State::Ready)];
    let after = intent(vec![http(TargetMode::Pod)], &pods);
    let mut text = planned(Some(&after), &cloud, now);
    // The same after the pod has gone, in the one pass in which both are news.
    let gone = intent(
        vec![http(TargetMode::Pod)],
        &[(1, State::Gone), (3, State::Ready)],
    );
    cloud.seen.groups[0]
        .targets
        .retain(|key, _| key.address == IpAddr::from([10, 244, 1, 1]));
    text += "--- the only one is gone\n";
    text += &planned(Some(&gone), &cloud, now);
    insta::assert_snapshot!(text);
}

/// The switch of mode, plan by plan, each carried out before the next is made.
#[test]
fn golden_group_replaced() {
    let node = intent(
        vec![http(TargetMode::Node)],
        &[(1, State::Ready), (2, State::Ready)],
    );
    let (mut cloud, mut now) = converged(&node);
    let pod = intent(
        vec![http(TargetMode::Pod)],
        &[(1, State::Ready), (2, State::Ready)],
    );
    let mut text = String::new();
    for _ in 0..12 {
        let plan = plan(&settings(), &service(), Some(&pod), &cloud.seen, now);
        if plan.is_empty() {
            let look = next_look(&settings(), std::slice::from_ref(&pod), &cloud.seen, now);
            let Some(look) = look else { break };
            writeln!(text, "--- looks again after {:?}", look.since(now)).unwrap();
            now = look;
            cloud.settle();
            continue;
        }
        text += &plan.to_string();
        for lane in Lane::ALL {
            for group in plan.runnable(lane) {
                writeln!(text, "=> runs: {}", group.id).unwrap();
                group.steps.iter().for_each(|step| cloud.execute(step));
            }
        }
    }
    insta::assert_snapshot!(text);
    let group = &cloud.seen.groups[0];
    assert_eq!(
        (cloud.seen.groups.len(), group.spec.mode),
        (1, TargetMode::Pod)
    );
}

#[test]
fn golden_delete() {
    let intent = intent(vec![http(TargetMode::Pod)], &[(1, State::Ready)]);
    let (mut cloud, mut now) = converged(&intent);
    insta::assert_snapshot!(planned(None, &cloud, now));
    cloud.converge(None, &mut now);
    assert!(cloud.seen.is_empty());
}

#[test]
fn i4_a_plan_for_what_is_already_so_is_empty() {
    for mode in [TargetMode::Node, TargetMode::Vip, TargetMode::Pod] {
        let intent = intent(vec![http(mode)], &[(1, State::Ready), (2, State::NotReady)]);
        let (cloud, now) = converged(&intent);
        assert_eq!(planned(Some(&intent), &cloud, now), "", "I4");
        assert_eq!(
            outcome(&intent, &cloud.seen, now).programmed,
            Programmed::Yes
        );
    }
    let gone = Cloud::default();
    assert_eq!(planned(None, &gone, NOW), "");
}

#[test]
fn c10_nothing_is_programmed_before_every_listener_is_there() {
    let intent = intent(vec![http(TargetMode::Pod)], &[(1, State::Ready)]);
    let mut cloud = Cloud::default();
    let waits = |cloud: &Cloud| {
        matches!(
            outcome(&intent, &cloud.seen, NOW).programmed,
            Programmed::Waiting(_)
        )
    };
    for _ in 0..3 {
        assert!(waits(&cloud), "C-10");
        let plan = plan(&settings(), &service(), Some(&intent), &cloud.seen, NOW);
        for lane in Lane::ALL {
            for group in plan.runnable(lane) {
                group.steps.iter().for_each(|step| cloud.execute(step));
            }
        }
    }
    assert!(!waits(&cloud));
}

#[test]
fn k40_probe_timing_is_edited_in_place_and_another_check_is_another_group() {
    let intent_with = |port: LoadBalancerPort| intent(vec![port], &[(1, State::Ready)]);
    let (cloud, now) = converged(&intent_with(http(TargetMode::Node)));
    let mut slower = http(TargetMode::Node);
    slower.health.as_mut().unwrap().interval_seconds = 5;
    let edited = planned(Some(&intent_with(slower)), &cloud, now);
    assert!(
        edited.contains("update-group") && !edited.contains("create-group"),
        "K-40: {edited}"
    );
    let mut other = http(TargetMode::Node);
    other.health.as_mut().unwrap().port = Some(10356);
    let replaced = planned(Some(&intent_with(other)), &cloud, now);
    assert!(
        replaced.contains("create-group") && !replaced.contains("put-listener"),
        "{replaced}"
    );
}

#[test]
fn what_another_uid_has_left_goes() {
    let old = intent(vec![http(TargetMode::Pod)], &[(1, State::Ready)]);
    let (mut cloud, mut now) = converged(&old);
    let mut new = old.clone();
    new.uid = "u2".into();
    cloud.converge(Some(&new), &mut now);
    assert!(cloud.seen.balancers.iter().all(|b| b.uid == new.uid));
    assert!(cloud.seen.groups.iter().all(|g| g.uid == new.uid));
    assert_eq!(planned(Some(&new), &cloud, now), "");
}

/// What the Service wants next.
fn wish() -> impl Strategy<Value = Option<Intent>> {
    let mode = prop_oneof![
        Just(TargetMode::Node),
        Just(TargetMode::Vip),
        Just(TargetMode::Pod)
    ];
    let state = prop_oneof![
        4 => Just(State::Ready),
        1 => Just(State::NotReady),
        1 => Just(State::Terminating { serving: Serving::Yes, since: Some(NOW) }),
        1 => Just(State::Gone),
    ];
    let pods = proptest::collection::btree_map(1..6u8, state, 0..5);
    let both = any::<bool>();
    proptest::option::weighted(
        0.9,
        (mode, pods, both).prop_map(|(mode, pods, both)| {
            let mut ports = vec![http(mode)];
            if both {
                ports.push(port("dns", Protocol::Udp, 53, mode));
            }
            let pods: Vec<_> = pods.into_iter().collect();
            intent(ports, &pods)
        }),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// I6: a crash after any number of steps leaves something from which the rest is found. The
    /// model panics when anything is made twice or deleted while in use.
    #[test]
    fn i6_a_plan_cut_short_anywhere_converges_without_duplicates(
        wishes in proptest::collection::vec((wish(), 0..8usize), 1..6)
    ) {
        let (mut cloud, mut now) = (Cloud::default(), NOW);
        for (wish, cut) in &wishes {
            let plan = plan(&settings(), &service(), wish.as_ref(), &cloud.seen, now);
            let steps: Vec<_> = Lane::ALL
                .into_iter()
                .flat_map(|lane| plan.runnable(lane))
                .flat_map(|group| group.steps)
                .collect();
            steps.iter().take(*cut).for_each(|step| cloud.execute(step));
            cloud.settle();
        }
        let last = wishes.last().and_then(|(wish, _)| wish.as_ref());
        cloud.converge(last, &mut now);
        let writes = cloud.writes;
        cloud.converge(last, &mut now);
        prop_assert_eq!(cloud.writes, writes, "I4: at rest nothing is written");
        match last {
            None => prop_assert!(cloud.seen.is_empty()),
            Some(intent) => {
                prop_assert_eq!(cloud.seen.balancers.len(), 1);
                prop_assert_eq!(cloud.seen.groups.len(), intent.spec.ports.len());
                let done = outcome(intent, &cloud.seen, now).programmed;
                prop_assert_eq!(done, Programmed::Yes);
            }
        }
    }

    /// I2: whatever is asked for next (another mode, another name of the port), at no step does a
    /// listener lose its last usable target while pods that were usable live on.
    #[test]
    fn i2_a_listener_is_never_left_without_a_target_that_serves(
        wishes in proptest::collection::vec((0..3usize, 0..2usize), 1..5)
    ) {
        let all = [TargetMode::Node, TargetMode::Vip, TargetMode::Pod];
        let pods = [(1, State::Ready), (2, State::Ready)];
        let first = intent(vec![http(TargetMode::Pod)], &pods);
        let (mut cloud, mut now) = converged(&first);
        for (mode, name) in wishes {
            let ports = vec![port(["http", "web"][name], Protocol::Tcp, 80, all[mode])];
            let next = intent(ports, &pods);
            for _ in 0..12 {
                let plan = plan(&settings(), &service(), Some(&next), &cloud.seen, now);
                for lane in Lane::ALL {
                    for group in plan.runnable(lane) {
                        for step in &group.steps {
                            cloud.execute(step);
                            let serves = cloud.seen.balancers.iter().all(|b| {
                                b.listeners.values().all(|id| {
                                    let group = cloud.seen.group(id).unwrap();
                                    group.targets.values().any(|s| s.usable())
                                })
                            });
                            prop_assert!(serves, "I2: after {}", step);
                        }
                    }
                }
                cloud.settle();
                now += Duration::from_secs(30);
            }
        }
    }
}
