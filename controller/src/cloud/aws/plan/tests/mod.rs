//! Golden plans and the order of shapes.

mod crash;
mod identity;
mod members;
mod reported;
mod spared;

use onehop_core::service::ServiceSpec;

use super::*;
use crate::cloud::aws::model::{HealthState, SecurityGroup, Tagged};
use crate::cloud::aws::outcome::outcome;
use crate::cloud::aws::resolve::resolve;
use crate::cloud::aws::step::AwsStep;
use crate::cloud::aws::testkit::{
    Model, NOW, UID_A, annotated, converge, health, intent, network, planned, service, settings,
    tcp,
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
fn aws645_aa26_everything_goes_and_children_first() {
    let (mut model, _) = served(&web(), &READY);
    let plans = converge(&mut model, None, NOW);
    insta::assert_snapshot!(plans.join("----\n"));
    assert!(model.seen.is_empty());
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
fn aws603_ai33_a_listener_that_nobody_wants_goes_and_another_port_is_another_listener() {
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
