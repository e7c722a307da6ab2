//! Golden plans, and a model of AWS in which plans are cut short at every step.

use onehop_core::service::ServiceSpec;
use proptest::prelude::*;

use super::*;
use crate::cloud::aws::model::{HealthState, SecurityGroup, Tagged};
use crate::cloud::aws::outcome::outcome;
use crate::cloud::aws::resolve::resolve;
use crate::cloud::aws::step::AwsStep;
use crate::cloud::aws::testkit::{
    Model, NOW, UID_A, annotated, health, intent, network, service, settings, tcp,
};
use crate::plan::membership::{Serving, State};
use crate::plan::{Lane, Programmed};

const READY: [(u8, State); 3] = [(1, State::Ready), (2, State::Ready), (3, State::Ready)];

fn web() -> ServiceSpec {
    let mut service = service(("shop", "web"), UID_A, &[(80, 8080, 30080)]);
    service.class = Some("onehop.dev/aws".to_owned());
    annotated(service, &[("aws-load-balancer-nlb-target-type", "ip")])
}

fn wanted(service: &ServiceSpec, pods: &[(u8, State)]) -> Intent {
    intent(service, resolve(&settings(), service, None), pods)
}

fn empty() -> Model {
    let mut model = Model::on(network(&["192.168.0.0/19"]));
    model.seen.node_groups.push(SecurityGroup {
        id: "sg-nodes".to_owned(),
        name: "nodes".to_owned(),
        tags: Tags::new(),
        rules: std::collections::BTreeMap::new(),
    });
    model
}

fn planned(intent: Option<&Intent>, model: &Model, now: Time) -> Plan<AwsStep> {
    plan(
        &settings(),
        &ServiceKey::new("shop", "web"),
        intent,
        &model.seen,
        now,
    )
}

/// Carries out plans until nothing is left to do; gives every plan in words.
fn converge(model: &mut Model, intent: Option<&Intent>, now: Time) -> Vec<String> {
    let mut plans = Vec::new();
    for _ in 0..20 {
        let plan = planned(intent, model, now);
        if plan.is_empty() {
            return plans;
        }
        plans.push(plan.to_string());
        for lane in Lane::ALL {
            for group in plan.runnable(lane) {
                group.steps.iter().for_each(|step| model.execute(step));
            }
        }
    }
    panic!("no end of plans: {}", plans.join("\n"));
}

fn served(service: &ServiceSpec, pods: &[(u8, State)]) -> (Model, Intent) {
    let (mut model, intent) = (empty(), wanted(service, pods));
    for _ in 0..3 {
        converge(&mut model, Some(&intent), NOW);
        model.settle();
    }
    (model, intent)
}

#[test]
fn aws601_creating_a_service_fills_before_it_listens() {
    let (mut model, intent) = (empty(), wanted(&web(), &READY));
    let plans = converge(&mut model, Some(&intent), NOW);
    insta::assert_snapshot!(plans.join("----\n"));
    assert_eq!(
        outcome(&settings(), &intent, &model.seen, NOW).programmed,
        Programmed::Yes
    );
    assert_eq!(model.node_rules(), ["tcp 8080 from backend"], "AWS-303");
}

#[test]
fn aws700_i4_nothing_is_left_to_do_when_nothing_changes() {
    let (model, intent) = served(&web(), &READY);
    assert!(planned(Some(&intent), &model, NOW).is_empty());
}

#[test]
fn aws645_everything_goes_and_children_first() {
    let (mut model, _) = served(&web(), &READY);
    let plans = converge(&mut model, None, NOW);
    insta::assert_snapshot!(plans.join("----\n"));
    assert!(model.seen.is_empty());
}

#[test]
fn aws610_ai02_register_before_deregister_and_the_old_hold_until_the_new_are_healthy() {
    let (mut model, _) = served(&web(), &READY);
    let flipped = wanted(
        &web(),
        &[
            (1, State::Withdrawn),
            (2, State::Withdrawn),
            (3, State::Withdrawn),
            (4, State::Ready),
            (5, State::Ready),
        ],
    );
    let first = planned(Some(&flipped), &model, NOW);
    let verbs: Vec<_> = first.steps().map(ToString::to_string).collect();
    assert_eq!(verbs.len(), 1, "AI-02: {verbs:?}");
    assert!(verbs[0].starts_with("register "), "AI-02");
    converge(&mut model, Some(&flipped), NOW);
    model.settle();
    let then = planned(Some(&flipped), &model, NOW);
    assert!(
        then.steps()
            .all(|step| matches!(step, AwsStep::Deregister { .. })),
        "AI-02"
    );
    assert_eq!(then.steps().count(), 1);
}

#[test]
fn aws434_a_draining_target_that_comes_back_is_registered_again() {
    let (mut model, intent) = served(&web(), &READY);
    let group = &mut model.seen.groups[0];
    let target = group
        .targets
        .as_ref()
        .unwrap()
        .keys()
        .next()
        .unwrap()
        .clone();
    let targets = group.targets.get_or_insert_default();
    targets.insert(
        target.clone(),
        health(HealthState::Draining, "Target.DeregistrationInProgress"),
    );
    let plan = planned(Some(&intent), &model, NOW);
    assert!(
        plan.steps().any(
            |step| matches!(step, AwsStep::Register { targets, .. } if targets[0].0 == target)
        )
    );
    let targets = model.seen.groups[0].targets.get_or_insert_default();
    targets.insert(target, health(HealthState::UnhealthyDraining, ""));
    assert!(
        planned(Some(&intent), &model, NOW).is_empty(),
        "registered and unhealthy"
    );
}

#[test]
fn aws421_aa50_at_most_200_targets_in_one_call() {
    let mut service = web();
    service.ports[0].target = onehop_core::service::TargetPort::Number(8080);
    let mut intent = wanted(&service, &[]);
    let members = intent.members.values_mut().next().unwrap();
    for n in 0..450_u16 {
        let [high, low] = n.to_be_bytes();
        members.pods.list.push(super::super::testkit::member(
            [192, 168, 10 + high, low],
            8080,
            State::Ready,
        ));
    }
    let mut model = empty();
    let plan = planned(Some(&intent), &model, NOW);
    let sizes: Vec<_> = plan
        .steps()
        .filter_map(|step| match step {
            AwsStep::Register { targets, .. } => Some(targets.len()),
            _ => None,
        })
        .collect();
    assert_eq!(sizes, [200, 200, 50], "AA-50");
    converge(&mut model, Some(&intent), NOW);
}

#[test]
fn aws427_one_address_on_two_ports_is_two_targets() {
    let mut service = web();
    service.ports.push(tcp(81, 9090, 30081));
    let (model, _) = served(&service, &READY);
    let targets: Vec<_> = model
        .seen
        .groups
        .iter()
        .flat_map(|g| g.targets.iter().flatten())
        .collect();
    assert_eq!(targets.len(), 6);
}

#[test]
fn aws403_ai_h01_a_node_without_an_instance_is_skipped_alone() {
    let mut service = web();
    service.annotations.clear();
    let mut intent = wanted(&service, &READY);
    let machines = std::sync::Arc::make_mut(&mut intent.machines);
    machines.values_mut().next().unwrap().provider_id = "gce://project/zone/name".to_owned();
    let mut model = empty();
    converge(&mut model, Some(&intent), NOW);
    let ids: Vec<_> = model.seen.groups[0]
        .targets
        .as_ref()
        .unwrap()
        .keys()
        .map(ToString::to_string)
        .collect();
    assert_eq!(ids, ["i-00000000000000002:30080"], "AWS-403, AI-H01");
}

#[test]
fn aws080_nodes_are_selected_by_their_labels() {
    let mut service = web();
    service.annotations.clear();
    let service = annotated(
        service,
        &[("aws-load-balancer-target-node-labels", "pool=2")],
    );
    let (model, _) = served(&service, &READY);
    let ids: Vec<_> = model.seen.groups[0]
        .targets
        .as_ref()
        .unwrap()
        .keys()
        .map(ToString::to_string)
        .collect();
    assert_eq!(ids, ["i-00000000000000002:30080"]);
}

#[test]
fn aws425_an_address_outside_the_vpc_is_registered_for_all_zones() {
    let mut intent = wanted(&web(), &READY);
    let pods = &mut intent.members.values_mut().next().unwrap().pods.list;
    pods[0].key.address = [100, 64, 0, 1].into();
    let plan = planned(Some(&intent), &empty(), NOW);
    let zones: Vec<_> = plan
        .steps()
        .filter_map(|step| match step {
            AwsStep::Register { targets, .. } => Some(targets.clone()),
            _ => None,
        })
        .flatten()
        .map(|(target, zone)| (target.id, zone))
        .collect();
    assert!(zones.contains(&("100.64.0.1".to_owned(), Some("all".to_owned()))));
    assert!(zones.contains(&("192.168.9.2".to_owned(), None)));
}

#[test]
fn aws620_aws621_ai25_a_group_is_replaced_while_the_old_one_serves() {
    let mut service = web();
    service.annotations.clear();
    let (mut model, _) = served(&service, &READY);
    let pods = wanted(
        &annotated(service, &[("aws-load-balancer-nlb-target-type", "ip")]),
        &READY,
    );
    let mut plans = converge(&mut model, Some(&pods), NOW);
    let of_traffic = |model: &Model| {
        let listener = &model.seen.balancers[0].listeners.as_ref().unwrap()[&80];
        let main = listener
            .groups
            .iter()
            .find(|(_, weight)| **weight > 0)
            .unwrap()
            .0;
        model.seen.group(main).unwrap().target.as_str()
    };
    assert_eq!(
        of_traffic(&model),
        "instance",
        "the new group is checked first (AWS-621)"
    );
    model.settle();
    plans.extend(converge(&mut model, Some(&pods), NOW));
    assert_eq!(of_traffic(&model), "ip");
    insta::assert_snapshot!(plans.join("----\n"));
    assert_eq!(
        model.seen.groups.len(),
        2,
        "AWS-622: the old one is kept for the tail"
    );
    let later = NOW + settings().switch_tail;
    converge(&mut model, Some(&pods), later);
    model.settle();
    converge(&mut model, Some(&pods), later);
    assert_eq!(
        model.seen.groups.len(),
        1,
        "AWS-620: then it drains and goes"
    );
}

#[test]
fn aws091_k40_numbers_change_in_place_and_another_check_is_another_group() {
    let (mut model, _) = served(&web(), &READY);
    let numbers = annotated(web(), &[("aws-load-balancer-healthcheck-timeout", "5")]);
    converge(&mut model, Some(&wanted(&numbers, &READY)), NOW);
    assert_eq!(
        (model.seen.groups.len(), model.seen.groups[0].check.timeout),
        (1, 5),
        "AWS-091"
    );
    let other = annotated(web(), &[("aws-load-balancer-healthcheck-protocol", "http")]);
    converge(&mut model, Some(&wanted(&other, &READY)), NOW);
    assert_eq!(model.seen.groups.len(), 2, "K-40");
}

#[test]
fn aws630_ai36_a_new_scheme_is_a_new_load_balancer_beside_the_old_one() {
    let (mut model, intent) = served(&web(), &READY);
    let old = outcome(&settings(), &intent, &model.seen, NOW)
        .host
        .unwrap()
        .name;
    assert_eq!(old, old.to_ascii_lowercase(), "AWS-800");
    let public = wanted(
        &annotated(web(), &[("aws-load-balancer-scheme", "internet-facing")]),
        &READY,
    );
    converge(&mut model, Some(&public), NOW);
    assert_eq!(model.seen.balancers.len(), 2, "AI-36");
    assert_eq!(
        model.seen.groups.len(),
        2,
        "AWS-632: with groups of its own"
    );
    let host = |model: &Model, now| {
        outcome(&settings(), &public, &model.seen, now)
            .host
            .unwrap()
            .name
    };
    assert_eq!(
        host(&model, NOW),
        old,
        "AWS-630: until the new one has healthy targets"
    );
    model.settle();
    converge(&mut model, Some(&public), NOW);
    let new = host(&model, NOW);
    assert_ne!(new, old, "AWS-630");
    assert_eq!(model.seen.balancers.len(), 2, "AWS-630: the DNS grace");
    let later = NOW + settings().dns_grace;
    for round in 0..4 {
        let at = later + settings().switch_tail * round;
        converge(&mut model, Some(&public), at);
        model.settle();
    }
    assert_eq!(
        (model.seen.balancers.len(), model.seen.groups.len()),
        (1, 1)
    );
    assert_eq!(host(&model, later), new);
}

#[test]
fn aws320_ai40_rules_are_authorised_before_others_are_revoked() {
    let (mut model, _) = served(&web(), &READY);
    let narrow = annotated(web(), &[("load-balancer-source-ranges", "10.0.0.0/8")]);
    let plan = planned(Some(&wanted(&narrow, &READY)), &model, NOW);
    let verbs: Vec<_> = plan
        .steps()
        .map(|step| crate::plan::Step::verb(step))
        .collect();
    assert_eq!(verbs, ["authorize", "revoke"], "AWS-320");
    converge(&mut model, Some(&wanted(&narrow, &READY)), NOW);
    assert_eq!(model.seen.security_groups[0].rules.len(), 1);
}

#[test]
fn aws331_a_rule_of_somebody_else_is_never_revoked() {
    let (mut model, intent) = served(&web(), &READY);
    let group = &mut model.seen.security_groups[0];
    let mut rule = group.rules.keys().next().unwrap().clone();
    rule.from = 22;
    group.rules.insert(rule, "by hand".to_owned());
    assert!(planned(Some(&intent), &model, NOW).is_empty(), "AWS-331");
}

#[test]
fn aws012_aws600_members_go_on_when_the_shape_cannot_be_built() {
    let (mut model, _) = served(&web(), &READY);
    let bad = annotated(web(), &[("aws-load-balancer-subnets", "no-such-subnet")]);
    let changed = wanted(
        &bad,
        &[(2, State::Ready), (3, State::Ready), (4, State::Ready)],
    );
    let plan = planned(Some(&changed), &model, NOW);
    let registers = plan
        .steps()
        .any(|step| matches!(step, AwsStep::Register { .. }));
    assert!(
        registers && plan.groups.iter().all(|g| g.lane == Lane::Members),
        "AWS-600: {plan}"
    );
    let said = outcome(&settings(), &changed, &model.seen, NOW);
    assert!(
        said.notices[0].message.contains("no-such-subnet"),
        "AWS-033"
    );
    assert!(
        said.notices[0].degrades && said.host.is_some(),
        "AWS-012: nothing is torn down"
    );
    converge(&mut model, Some(&changed), NOW);
}

#[test]
fn aws603_a_listener_that_nobody_wants_goes_and_another_port_is_another_listener() {
    let (mut model, _) = served(&web(), &READY);
    let mut moved = web();
    moved.ports[0].port = 8443;
    converge(&mut model, Some(&wanted(&moved, &READY)), NOW);
    let ports: Vec<_> = model.seen.balancers[0]
        .listeners
        .as_ref()
        .unwrap()
        .keys()
        .copied()
        .collect();
    assert_eq!(ports, [8443]);
}

#[test]
fn aws646_aa25_protection_that_is_still_asked_for_keeps_the_load_balancer() {
    let protected = annotated(
        web(),
        &[(
            "aws-load-balancer-attributes",
            "deletion_protection.enabled=true",
        )],
    );
    let (model, _) = served(&protected, &READY);
    let plan = planned(None, &model, NOW);
    assert!(
        !plan
            .steps()
            .any(|step| matches!(step, AwsStep::DeleteBalancer { .. })),
        "AWS-634 first"
    );
}

#[test]
fn aws433_a_cap_means_no_additions_and_never_fewer() {
    let mut capped = settings();
    capped.max_targets = 2;
    let intent = wanted(&web(), &READY);
    let plan = plan(
        &capped,
        &ServiceKey::new("shop", "web"),
        Some(&intent),
        &empty().seen,
        NOW,
    );
    let sizes: Vec<_> = plan
        .steps()
        .filter_map(|step| match step {
            AwsStep::Register { targets, .. } => Some(targets.len()),
            _ => None,
        })
        .collect();
    assert_eq!(sizes, [2], "AWS-433");
    let (model, _) = served(&web(), &READY);
    let more = wanted(&web(), &[READY[0], READY[1], READY[2], (4, State::Ready)]);
    let plan = super::plan(
        &capped,
        &ServiceKey::new("shop", "web"),
        Some(&more),
        &model.seen,
        NOW,
    );
    assert!(plan.is_empty(), "AWS-433: {plan}");
}

/// Something that happens to a Service.
#[derive(Clone, Debug)]
enum Event {
    Pod(u8, u8),
    Mode(bool),
    Check(bool),
    Public(bool),
    Ports(u8),
    Settle,
    Later,
    Deleted,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let one = prop_oneof![
        4 => (1..6_u8, 0..5_u8).prop_map(|(n, state)| Event::Pod(n, state)),
        1 => any::<bool>().prop_map(Event::Mode),
        1 => any::<bool>().prop_map(Event::Check),
        1 => any::<bool>().prop_map(Event::Public),
        1 => (1..4_u8).prop_map(Event::Ports),
        3 => Just(Event::Settle),
        1 => Just(Event::Later),
        1 => Just(Event::Deleted),
    ];
    prop::collection::vec((one, any::<prop::sample::Index>()), 1..25)
        .prop_map(|all| all.into_iter().map(|(event, _)| event).collect())
}

fn build(
    pods: &std::collections::BTreeMap<u8, State>,
    (ip, http, public, ports): (bool, bool, bool, u8),
) -> Intent {
    let list: Vec<_> = (0..ports)
        .map(|n| (80 + u16::from(n), 8080, 30080 + u16::from(n)))
        .collect();
    let mut service = service(("shop", "web"), UID_A, &list);
    service.class = Some("onehop.dev/aws".to_owned());
    let mut pairs = vec![(
        "aws-load-balancer-nlb-target-type",
        if ip { "ip" } else { "instance" },
    )];
    if http {
        pairs.push(("aws-load-balancer-healthcheck-protocol", "http"));
    }
    pairs.push((
        "aws-load-balancer-scheme",
        if public {
            "internet-facing"
        } else {
            "internal"
        },
    ));
    let pods: Vec<_> = pods.iter().map(|(n, state)| (*n, *state)).collect();
    wanted(&annotated(service, &pairs), &pods)
}

/// I2: a load balancer that is published has, for each listener, a group that can serve whenever the Service
/// has ready targets and the group had a healthy target before.
fn serving(
    model: &Model,
    pods: &std::collections::BTreeMap<u8, State>,
    now: Time,
) -> Vec<(String, bool)> {
    // A pod that is gone serves nobody, and one that ends is not waited for beyond the hold maximum (ZD-26).
    let hold = std::time::Duration::from_mins(10);
    let gone = |id: &str| {
        let pod = id.strip_prefix("192.168.9.").and_then(|n| n.parse().ok());
        match pod.and_then(|n: u8| pods.get(&n)) {
            Some(State::Terminating { since, .. }) => since.is_none_or(|since| since + hold <= now),
            Some(state) => *state == State::Gone,
            None => false,
        }
    };
    let listeners = model
        .seen
        .balancers
        .iter()
        .flat_map(|b| b.listeners.iter().flatten());
    listeners
        .map(|(_, listener)| {
            let main = listener
                .groups
                .iter()
                .find(|(_, weight)| **weight > 0)
                .unwrap()
                .0;
            let group = model.seen.group(main).expect("a listener's group is there");
            {
                let targets = group.targets.iter().flatten();
                let mut healthy =
                    targets.filter(|(_, health)| health.state == HealthState::Healthy);
                (
                    listener.arn.clone(),
                    healthy.any(|(target, _)| !gone(&target.id)),
                )
            }
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Any prefix of any plan may be the last thing that happens, and it still converges, with no duplicate and
    /// nothing left over; no step takes the last healthy target of a listener away while pods are ready.
    #[test]
    fn i2_i6_aws612_aws642_every_prefix_is_safe_and_plans_converge(events in events(), cuts in prop::collection::vec(0..9_usize, 60)) {
        let mut model = empty();
        let mut pods = std::collections::BTreeMap::from([(1, State::Ready)]);
        let mut shape = (true, false, false, 1);
        let (mut now, mut cuts) = (NOW, cuts.into_iter().cycle());
        let mut deleted = false;
        for event in events {
            match event {
                Event::Pod(n, state) => {
                    let state = match state {
                        0 | 1 => State::Ready,
                        2 => State::NotReady,
                        3 => State::Terminating { serving: Serving::Yes, since: Some(now) },
                        _ => State::Gone,
                    };
                    pods.insert(n, state);
                }
                Event::Mode(ip) => shape.0 = ip,
                Event::Check(http) => shape.1 = http,
                Event::Public(public) => shape.2 = public,
                Event::Ports(ports) => shape.3 = ports,
                Event::Settle => model.settle(),
                Event::Later => now += settings().dns_grace,
                Event::Deleted => deleted = !deleted,
            }
            let intent = build(&pods, shape);
            let intent = (!deleted).then_some(&intent);
            let plan = planned(intent, &model, now);
            let mut left = cuts.next().unwrap_or(0);
            let ready = pods.values().any(|state| *state == State::Ready) || !shape.0;
            'plan: for lane in Lane::ALL {
                for step in plan.runnable(lane).iter().flat_map(|group| &group.steps) {
                    if left == 0 {
                        break 'plan;
                    }
                    left -= 1;
                    let before = serving(&model, &pods, now);
                    model.execute(step);
                    let after: std::collections::BTreeMap<_, _> = serving(&model, &pods, now).into_iter().collect();
                    for (listener, was) in before {
                        let is = after.get(&listener).copied();
                        prop_assert!(!(was && ready && !deleted && is == Some(false)), "I2: {step} of\n{plan}");
                    }
                }
            }
        }
        let intent = build(&pods, shape);
        for _ in 0..8 {
            converge(&mut model, Some(&intent), now);
            model.settle();
            now += settings().dns_grace;
        }
        prop_assert!(planned(Some(&intent), &model, now).is_empty(), "I4");
        prop_assert_eq!(model.seen.balancers.len(), 1, "I6: no duplicate");
        prop_assert_eq!(model.seen.groups.len(), usize::from(shape.3), "I6: nothing left over");
        for _ in 0..4 {
            converge(&mut model, None, now);
            model.settle();
        }
        prop_assert!(model.seen.is_empty(), "AWS-645: {:?}", model.seen.groups.iter().map(Tagged::generation).collect::<Vec<_>>());
    }
}
