//! What a failure or a bad view keeps from nothing else, and what is left alone.

use super::*;
use crate::cloud::aws::model::{RefusedTarget, Rule, RuleSource};
use crate::cloud::aws::names;
use crate::cloud::aws::rules::{RuleBook, There};
use crate::plan::membership::View;
use crate::plan::{Act, Step};

/// Six pods, and one that is to come.
fn six() -> Vec<(u8, State)> {
    (1..=6).map(|n| (n, State::Ready)).collect()
}

#[test]
fn aws641_aws958_targets_that_vanish_without_a_reason_wait_for_a_fresh_list_and_a_deletion_does_not()
 {
    let (model, _) = served(&web(), &six());
    let mut intent = wanted(&web(), &six()[..1]);
    let plan = planned(Some(&intent), &model, NOW);
    let out = |step: &AwsStep| matches!(step, AwsStep::Deregister { .. });
    assert!(!plan.steps().any(out), "AWS-641: {plan}");
    let raised = outcome(&settings(), &intent, &model.seen, NOW).mass_removal;
    let raised = raised.unwrap();
    assert_eq!((raised.leaving, raised.registered), (5, 6), "AWS-641");
    intent.view = View::Confirmed;
    let plan = planned(Some(&intent), &model, NOW);
    assert!(
        plan.steps().any(out),
        "AWS-641: a fresh list says the same: {plan}"
    );
    // Two that go are no mass.
    let few = wanted(&web(), &six()[..4]);
    assert!(planned(Some(&few), &model, NOW).steps().any(out), "AWS-641");
    let gone = planned(None, &model, NOW);
    let deletes = |step: &AwsStep| matches!(step, AwsStep::DeleteBalancer { .. });
    assert!(gone.steps().any(deletes), "AWS-641: the Service's deletion");
}

#[test]
fn aws431_aws610_who_is_gone_leaves_whatever_becomes_of_the_registrations() {
    let (mut model, _) = served(&web(), &READY);
    let refused = RefusedTarget {
        until: NOW,
        no_room: true,
        why: "TooManyTargets: no room".to_owned(),
    };
    let pods = [
        (1, State::Ready),
        (2, State::Gone),
        (3, State::Withdrawn),
        (4, State::Ready),
    ];
    let intent = wanted(&web(), &pods);
    let plan = planned(Some(&intent), &model, NOW);
    let group = |act| {
        plan.groups
            .iter()
            .find(|g| g.steps[0].facts().act == act)
            .unwrap()
    };
    assert!(
        group(Act::Drop).after.is_empty(),
        "AWS-431, AWS-610: {plan}"
    );
    // What still serves waits for the registrations, as long as these fail (ZD-29).
    let fill = group(Act::Fill).id.clone();
    if let Some(empty) = plan
        .groups
        .iter()
        .find(|g| g.steps[0].facts().act == Act::Empty)
    {
        assert_eq!(empty.after, [fill], "AWS-610");
    }
    let target = crate::cloud::aws::model::TargetId {
        id: "192.168.9.4".to_owned(),
        port: 8080,
    };
    model.seen.groups[0].refused.insert(target, refused);
    let plan = planned(Some(&intent), &model, NOW);
    let drops = |step: &AwsStep| step.facts().act == Act::Drop;
    assert!(plan.steps().any(drops), "AWS-431: at its quota: {plan}");
}

#[test]
fn aws332_a_rule_of_somebody_else_with_the_same_reach_does_until_it_goes() {
    let service = annotated(web(), &[("aws-load-balancer-disable-nlb-sg", "true")]);
    let intent = wanted(&service, &READY);
    let mut model = empty();
    let range = "192.168.0.0/19".parse().unwrap();
    let theirs = Rule {
        protocol: "tcp",
        from: 8080,
        to: 8080,
        source: RuleSource::Cidr(range),
    };
    let nodes = &mut model.seen.node_groups[0];
    nodes.rules.insert(theirs.clone(), "by hand".to_owned());
    let authorizes = |model: &Model| {
        let plan = planned(Some(&intent), model, NOW);
        plan.steps()
            .any(|step| matches!(step, AwsStep::Authorize { rules, .. } if rules.contains(&theirs)))
    };
    assert!(!authorizes(&model), "AWS-332: it is covered");
    // Nor is it ever taken away.
    let mut book = RuleBook::default();
    book.note(&intent.service, std::collections::BTreeSet::new());
    let there = There {
        security_groups: vec![&model.seen.node_groups[0]],
        ..There::default()
    };
    let ours = names::rule_description(&settings().install);
    for minute in 0..3 {
        let now = NOW + std::time::Duration::from_mins(minute);
        assert!(
            book.surplus(&there, &ours, now).is_empty(),
            "AWS-332, AWS-331"
        );
    }
    model.seen.node_groups[0].rules.clear();
    assert!(authorizes(&model), "AWS-332: it has gone");
}

#[test]
fn aws323_aws322_another_port_is_authorised_by_the_plan_that_brings_it() {
    let mut service = web();
    service.annotations.clear();
    let (model, _) = served(&service, &READY);
    service.ports[0].node_port = Some(31000);
    let plan = planned(Some(&wanted(&service, &READY)), &model, NOW);
    let opened = plan.steps().find_map(|step| match step {
        AwsStep::Authorize {
            id: Some(_), rules, ..
        } => Some(rules.clone()),
        _ => None,
    });
    let opened = opened.unwrap_or_else(|| panic!("AWS-323: {plan}"));
    assert!(
        opened.iter().all(|r| (r.from, r.to) == (31000, 31000)),
        "AWS-322: {opened:?}"
    );
    let registers = |step: &AwsStep| matches!(step, AwsStep::Register { .. });
    assert!(plan.steps().any(registers), "AWS-323: in the same plan");
}
