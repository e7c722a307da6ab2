//! Problems that users of aws-load-balancer-controller have reported (section 18), as far as a plan shows them.

use super::*;
use crate::cloud::aws::names;

#[test]
fn ai26_aws421_eighteen_pods_that_come_together_are_one_call() {
    let (model, _) = served(&web(), &READY);
    let pods: Vec<_> = (1..=21).map(|n| (n, State::Ready)).collect();
    let plan = planned(Some(&wanted(&web(), &pods)), &model, NOW);
    let sizes: Vec<_> = plan
        .steps()
        .map(|step| match step {
            AwsStep::Register { targets, .. } => targets.len(),
            other => panic!("AI-26: {other}"),
        })
        .collect();
    assert_eq!(sizes, [18], "AI-26");
}

#[test]
fn ai06_ai11_aws415_a_pod_that_is_not_ready_for_a_while_stays_a_target() {
    let (mut model, _) = served(&web(), &READY);
    let flaps = [(1, State::NotReady), READY[1], READY[2]];
    let intent = wanted(&web(), &flaps);
    assert!(
        planned(Some(&intent), &model, NOW).is_empty(),
        "AI-06: its health check tells the load balancer"
    );
    // The peer's class takes it out, as the peer does.
    let mut peers = web();
    peers.class = Some(crate::cloud::aws::testkit::PEER.to_owned());
    let (of_peer, _) = served(&peers, &READY);
    let plan = planned(Some(&wanted(&peers, &flaps)), &of_peer, NOW);
    let out =
        |step: &AwsStep| matches!(step, AwsStep::Deregister { targets, .. } if targets.len() == 1);
    assert!(plan.steps().any(out), "AWS-415, K-31: {plan}");
    // A ready one that somebody has taken out comes back at once.
    let targets = model.seen.groups[0].targets.get_or_insert_default();
    targets.pop_first();
    let plan = planned(Some(&wanted(&web(), &READY)), &model, NOW);
    let verbs: Vec<_> = plan.steps().map(crate::plan::Step::verb).collect();
    assert_eq!(verbs, ["register"], "AI-11, AWS-422");
}

#[test]
fn ai34_aws118_no_mismatch_of_names_or_tags_replaces_anything() {
    let (mut model, intent) = served(&web(), &READY);
    "of-an-older-recipe".clone_into(&mut model.seen.balancers[0].name);
    "another".clone_into(&mut model.seen.groups[0].name);
    let tags = &mut model.seen.balancers[0].tags;
    tags.insert(names::CLUSTER.to_owned(), "another".to_owned());
    tags.insert("team".to_owned(), "shop".to_owned());
    let plan = planned(Some(&intent), &model, NOW);
    let verbs: Vec<_> = plan.steps().map(crate::plan::Step::verb).collect();
    assert_eq!(verbs, ["add-tags"], "AI-34, AWS-118: {plan}");
    converge(&mut model, Some(&intent), NOW);
    let tags = &model.seen.balancers[0].tags;
    assert_eq!(
        tags.get("team").map(String::as_str),
        Some("shop"),
        "AWS-113"
    );
}

#[test]
fn ai37_aws756_a_group_that_another_load_balancer_uses_is_left_to_it() {
    let (mut model, intent) = served(&web(), &READY);
    let group = &mut model.seen.groups[0];
    group.used_by = vec!["arn:of-another".to_owned()];
    let plan = planned(Some(&intent), &model, NOW);
    let made = plan.steps().find_map(|step| match step {
        AwsStep::CreateGroup(spec) => Some(spec),
        _ => None,
    });
    let made = made.unwrap_or_else(|| panic!("AI-37: {plan}"));
    assert_ne!(made.name, model.seen.groups[0].name, "AI-37, AWS-107");
    assert_eq!(made.generation, 2, "AWS-107");
}

#[test]
fn ai39_ai_h02_aws312_several_groups_of_targets_are_no_reason_not_to_register() {
    let mut model = empty();
    let second = SecurityGroup {
        id: "sg-other".to_owned(),
        name: "other".to_owned(),
        ..model.seen.node_groups[0].clone()
    };
    model.seen.node_groups.push(second);
    let intent = wanted(&web(), &READY);
    converge(&mut model, Some(&intent), NOW);
    let fourth = wanted(&web(), &[READY[0], READY[1], READY[2], (4, State::Ready)]);
    for group in &mut model.seen.node_groups {
        group.rules.clear();
    }
    let plan = planned(Some(&fourth), &model, NOW);
    let on: Vec<_> = plan
        .steps()
        .filter_map(|step| match step {
            AwsStep::Authorize { id, .. } => id.clone(),
            _ => None,
        })
        .collect();
    assert_eq!(
        on,
        ["sg-nodes", "sg-other"],
        "AI-39: on each that targets carry"
    );
    let members = plan.runnable(Lane::Members);
    assert_eq!(members.len(), 1, "AWS-312: it waits for no rule: {plan}");
    assert!(members[0].after.is_empty(), "AWS-312: {plan}");
}

#[test]
fn ai12_aws423_aws510_ai07_targets_at_rest_are_looked_at_each_minute_and_others_each_few_seconds() {
    let (mut model, intent) = served(&web(), &READY);
    let look = |model: &Model| {
        let look = wanted::next_look(&settings(), std::slice::from_ref(&intent), &model.seen, NOW);
        look.unwrap().since(NOW).as_secs()
    };
    assert_eq!(look(&model), 60, "AI-12, AWS-423");
    let targets = model.seen.groups[0].targets.get_or_insert_default();
    for state in targets.values_mut() {
        *state = health(HealthState::Initial, "Elb.InitialHealthChecking");
    }
    assert_eq!(look(&model), 5, "AI-07, AWS-510");
}

#[test]
fn aws712_the_fewer_targets_take_flows_the_more_urgent_is_a_registration() {
    let urgency = |healthy: usize, ready: u8| {
        let (mut model, _) = served(&web(), &READY);
        let targets = model.seen.groups[0].targets.get_or_insert_default();
        for state in targets.values_mut().skip(healthy) {
            *state = health(HealthState::Unhealthy, "Target.FailedHealthChecks");
        }
        let pods: Vec<_> = (1..=ready).map(|n| (n, State::Ready)).collect();
        let plan = planned(Some(&wanted(&web(), &pods)), &model, NOW);
        plan.steps().find_map(|step| match step {
            AwsStep::Register { healthy, .. } => Some(*healthy),
            _ => None,
        })
    };
    assert_eq!(urgency(3, 4), Some(75), "AWS-712");
    assert_eq!(urgency(1, 4), Some(25), "AWS-712");
    assert_eq!(urgency(0, 4), Some(0), "AWS-712");
    let plan = planned(Some(&wanted(&web(), &READY)), &empty(), NOW);
    let first = |step: &AwsStep| matches!(step, AwsStep::Register { healthy: 0, .. });
    assert!(plan.steps().any(first), "AWS-712: of a new group: {plan}");
}

#[test]
fn aws423_targets_at_rest_are_read_each_minute_whatever_else_is_looked_at_between() {
    use crate::cloud::aws::client::store::{Due, Store};
    let (mut model, intent) = served(&web(), &READY);
    let minute = std::time::Duration::from_mins(1);
    let (mut now, mut reads, mut sweep) = (NOW, 0, NOW);
    while now < NOW + minute * 10 {
        let group = &mut model.seen.groups[0];
        if Store::targets_due(group, std::time::Duration::from_secs(5), minute, now) != Due::No {
            reads += 1;
            group.read_at = Some(now);
        }
        // Sweeps come at times of their own, here each three quarters of a minute.
        if sweep <= now {
            sweep = now + minute * 3 / 4;
        }
        let wish = wanted::next_look(&settings(), std::slice::from_ref(&intent), &model.seen, now);
        now = wish.unwrap().min(sweep);
    }
    assert_eq!(
        reads, 9,
        "AWS-423: at each full minute after the first read"
    );
}
