//! Whose objects are, and which of several counts: by tags, never by names.

use super::*;
use crate::cloud::aws::names;
use crate::cloud::aws::testkit::UID_B;
use crate::plan::Step;

/// What a plan does, one word a step.
fn verbs(plan: &crate::plan::Plan<AwsStep>) -> Vec<&'static str> {
    plan.steps().map(Step::verb).collect()
}

#[test]
fn aws011_aws118_a_service_that_is_made_anew_takes_up_the_load_balancer_of_its_name() {
    let (mut model, _) = served(&web(), &READY);
    let before = model.seen.clone();
    let mut again = web();
    again.uid = UID_B.into();
    let intent = wanted(&again, &READY);
    let plan = planned(Some(&intent), &model, NOW);
    let tags = ["add-tags", "create-tags"];
    assert!(
        !plan.is_empty() && verbs(&plan).iter().all(|verb| tags.contains(verb)),
        "AWS-011: nothing is made and nothing goes: {plan}"
    );
    converge(&mut model, Some(&intent), NOW);
    let uids = model.seen.balancers.iter().map(Tagged::uid);
    let uids = uids.chain(model.seen.groups.iter().map(Tagged::uid));
    let mut uids = uids.chain(model.seen.security_groups.iter().map(Tagged::uid));
    assert!(uids.all(|uid| uid == Some(UID_B.into())), "AWS-110");
    let names = |seen: &Observed| {
        let groups = seen.groups.iter().map(|g| g.name.clone());
        let all = groups.chain(seen.balancers.iter().map(|b| b.name.clone()));
        all.collect::<Vec<_>>()
    };
    assert_eq!(
        names(&model.seen),
        names(&before),
        "AWS-011: old names stay"
    );
    assert_eq!(
        model.seen.groups[0].targets, before.groups[0].targets,
        "AWS-011: no target moves"
    );
}

#[test]
fn aws115_of_two_load_balancers_the_later_generation_wins_and_the_other_goes_its_ordinary_way() {
    let (mut model, intent) = served(&web(), &READY);
    // A replacement that ended half-way: the second one has no listener yet.
    let mut second = model.seen.balancers[0].clone();
    "arn:second".clone_into(&mut second.arn);
    "second".clone_into(&mut second.name);
    second.listeners = Some(std::collections::BTreeMap::new());
    second
        .tags
        .insert(names::GENERATION.to_owned(), "2".to_owned());
    let first = model.seen.balancers[0].name.clone();
    model.seen.balancers.push(second);
    let host = |model: &Model| {
        let said = outcome(&settings(), &intent, &model.seen, NOW);
        said.host.map(|host| host.name)
    };
    let serving = host(&model);
    for _ in 0..3 {
        converge(&mut model, Some(&intent), NOW);
        if model.seen.balancers[1].listeners.as_ref().unwrap()[&80]
            .groups
            .is_empty()
        {
            assert_eq!(
                host(&model),
                serving,
                "AWS-115: until the newer one is complete"
            );
        }
        model.settle();
    }
    let old = model
        .seen
        .balancers
        .iter()
        .find(|b| b.name == first)
        .unwrap();
    assert!(old.retired().is_some(), "AWS-115, AWS-630");
    let new = model.seen.balancers.iter().find(|b| b.name == "second");
    assert!(new.is_some_and(|b| b.retired().is_none()), "AWS-115");
}

#[test]
fn aws115_where_no_generation_tells_them_apart_neither_goes_and_all_are_named() {
    let (mut model, intent) = served(&web(), &READY);
    let mut second = model.seen.balancers[0].clone();
    "z-arn:of-another-program".clone_into(&mut second.arn);
    "by-hand".clone_into(&mut second.name);
    second.listeners = Some(std::collections::BTreeMap::new());
    let first = model.seen.balancers[0].arn.clone();
    model.seen.balancers.push(second);
    let plan = planned(Some(&intent), &model, NOW);
    assert!(plan.is_empty(), "AWS-115: {plan}");
    let said = outcome(&settings(), &intent, &model.seen, NOW).notices;
    let told = said
        .iter()
        .find(|n| n.reason == "OwnershipConflict")
        .unwrap();
    for arn in [first.as_str(), "z-arn:of-another-program"] {
        assert!(told.message.contains(arn), "AWS-115: {}", told.message);
    }
    assert!(told.degrades);
}

#[test]
fn aws126_a_group_that_is_gone_is_made_anew_and_the_listener_points_at_it() {
    let (mut model, intent) = served(&web(), &READY);
    let old = model.seen.groups[0].arn.clone();
    model.seen.groups.clear();
    converge(&mut model, Some(&intent), NOW);
    let listener = model.seen.balancers[0].listeners.as_ref().unwrap()[&80].clone();
    let new = model.seen.groups[0].arn.clone();
    assert_ne!(new, old);
    let pointed: Vec<_> = listener.groups.keys().cloned().collect();
    assert_eq!(pointed, [new], "AWS-126: never stuck on an old ARN");
    // One that is there under another ARN is found by its tags, and nothing is made.
    let mut model = served(&web(), &READY).0;
    "arn:moved".clone_into(&mut model.seen.groups[0].arn);
    model.seen.groups[0].used_by.clear();
    let plan = planned(Some(&intent), &model, NOW);
    assert_eq!(verbs(&plan), ["modify-listener"], "AWS-126: {plan}");
}

#[test]
fn aws602_aws605_changes_of_a_load_balancer_come_in_their_order_and_none_waits_for_another() {
    let (mut model, _) = served(&web(), &READY);
    let mut network = network(&["192.168.0.0/19", "192.168.32.0/19"]);
    for subnet in network.subnets.values_mut() {
        subnet.ipv6.push("fd00::/64".parse().unwrap());
    }
    model.seen.network = network.into();
    let changed = annotated(
        web(),
        &[
            ("aws-load-balancer-additional-resource-tags", "team=shop"),
            ("aws-load-balancer-security-groups", "sg-9"),
            ("aws-load-balancer-subnets", "subnet-1,subnet-2"),
            ("aws-load-balancer-ip-address-type", "dualstack"),
            (
                "aws-load-balancer-cross-zone-load-balancing-enabled",
                "true",
            ),
        ],
    );
    let plan = planned(Some(&wanted(&changed, &READY)), &model, NOW);
    let of_balancer = |group: &&crate::plan::Group<AwsStep>| {
        matches!(group.steps[0], AwsStep::AdjustBalancer { .. })
    };
    let shape = plan.runnable(Lane::Shape);
    let groups: Vec<_> = shape.iter().filter(of_balancer).collect();
    let order: Vec<_> = groups.iter().map(|group| group.steps[0].verb()).collect();
    let page = [
        "add-tags",
        "set-security-groups",
        "set-subnets",
        "set-ip-address-type",
        "modify-load-balancer-attributes",
    ];
    assert_eq!(order, page, "AWS-602");
    // One after the other, since their subject is one; a failure stops its own group and those after it, which are none.
    assert!(
        groups.iter().all(|g| g.subject == groups[0].subject),
        "AWS-602"
    );
    assert!(groups.iter().all(|group| group.after.is_empty()), "AWS-602");
}

#[test]
fn aws605_aws705_listeners_with_their_groups_wait_for_nothing_of_each_other() {
    let mut service = web();
    service.ports.push(tcp(81, 9090, 30081));
    let plan = planned(Some(&wanted(&service, &READY)), &empty(), NOW);
    let of_port = |port: u16| {
        let is = move |step: &AwsStep| matches!(step, AwsStep::CreateListener { listener, .. } if listener.port == port);
        plan.groups.iter().find(|g| g.steps.iter().any(is)).unwrap()
    };
    let after = |port| {
        let groups = of_port(port).after.iter().map(ToString::to_string);
        groups
            .filter(|id| !id.contains("balancer"))
            .collect::<Vec<_>>()
    };
    let (first, second) = (after(80), after(81));
    assert!(!first.is_empty() && !second.is_empty());
    assert!(
        first.iter().all(|id| !second.contains(id)),
        "AWS-605: {plan}"
    );
    assert_ne!(
        of_port(80).subject,
        of_port(81).subject,
        "AWS-705: side by side"
    );
}

#[test]
fn aws604_a_port_or_name_alone_replaces_no_group() {
    let (mut model, _) = served(&web(), &READY);
    let mut moved = web();
    moved.ports[0].target = onehop_core::service::TargetPort::Number(9090);
    let intent = wanted(&moved, &READY);
    converge(&mut model, Some(&intent), NOW);
    assert_eq!(model.seen.groups.len(), 1, "AWS-604");
    let registered = model.seen.groups[0].registered();
    let new = registered.filter(|(target, _)| target.port == 9090);
    assert_eq!(new.count(), 3, "AWS-604: targets follow");
}

#[test]
fn aws623_node_targets_of_a_service_that_has_no_node_ports_any_more_serve_until_pods_do() {
    let mut service = web();
    service.annotations.clear();
    let (mut model, _) = served(&service, &READY);
    let before = model.seen.groups[0].targets.clone();
    service.allocates_node_ports = false;
    service.ports[0].node_port = None;
    let service = annotated(service, &[("aws-load-balancer-nlb-target-type", "ip")]);
    let mut intent = wanted(&service, &READY);
    for port in intent.members.values_mut() {
        port.nodes.list.clear();
    }
    converge(&mut model, Some(&intent), NOW);
    let group = |model: &Model, target| {
        let mut groups = model.seen.groups.iter();
        groups.find(|g| g.target == target).cloned()
    };
    let (instance, ip) = (
        crate::cloud::aws::model::TargetType::Instance,
        crate::cloud::aws::model::TargetType::Ip,
    );
    assert_eq!(
        group(&model, instance).unwrap().targets,
        before,
        "AWS-623: frozen until the switch"
    );
    model.settle();
    converge(&mut model, Some(&intent), NOW);
    let pods = group(&model, ip).unwrap();
    assert!(model.seen.in_use(&pods), "AWS-623, AWS-620");
    let listed = super::super::super::listed::listed(&intent, &model.seen, NOW);
    assert!(!listed.is_empty());
}

#[test]
fn aws630_aws631_aws633_a_custom_name_stays_with_the_old_one_and_nothing_goes_before_the_new_serves()
 {
    let named = annotated(web(), &[("aws-load-balancer-name", "mine")]);
    let (mut model, _) = served(&named, &READY);
    assert_eq!(model.seen.balancers[0].name, "mine");
    let public = annotated(named, &[("aws-load-balancer-scheme", "internet-facing")]);
    let intent = wanted(&public, &READY);
    let plan = planned(Some(&intent), &model, NOW);
    let made = plan.steps().find_map(|step| match step {
        AwsStep::CreateBalancer(spec) => Some(spec.name.clone()),
        _ => None,
    });
    let made = made.unwrap();
    assert!(
        made.starts_with("oh-shop-web-"),
        "AWS-631: the computed one: {made}"
    );
    let delete = |step: &AwsStep| matches!(step, AwsStep::DeleteBalancer { .. });
    // However often the new one is refused, for want of quota say: the old one serves on.
    for hour in 0..3 {
        let later = NOW + std::time::Duration::from_hours(hour);
        let plan = planned(Some(&intent), &model, later);
        assert!(!plan.steps().any(delete), "AWS-633: never delete-first");
    }
    converge(&mut model, Some(&intent), NOW);
    model.settle();
    converge(&mut model, Some(&intent), NOW);
    let said = outcome(&settings(), &intent, &model.seen, NOW).notices;
    let told = said
        .iter()
        .find(|n| n.message.contains("\"mine\""))
        .unwrap();
    assert!(
        told.message.contains(&made),
        "AWS-631, AWS-042: {}",
        told.message
    );
}

#[test]
fn aws207_aws208_a_zone_changes_its_subnet_in_two_steps_while_another_one_stays() {
    let web = |subnets: &str| annotated(web(), &[("aws-load-balancer-subnets", subnets)]);
    let mut network = network(&["192.168.0.0/19", "192.168.32.0/19", "192.168.64.0/19"]);
    // The third one is in the zone of the second one.
    network.subnets.get_mut("subnet-3").unwrap().zone = "zone-2".to_owned();
    let mut model = empty();
    model.seen.network = network.into();
    let serve = |model: &mut Model, subnets: &str| {
        for _ in 0..3 {
            converge(model, Some(&wanted(&web(subnets), &READY)), NOW);
            model.settle();
        }
    };
    serve(&mut model, "subnet-1,subnet-2");
    let sets = |plan: &crate::plan::Plan<AwsStep>| {
        let sets = plan.steps().filter(|s| s.verb() == "set-subnets");
        sets.map(ToString::to_string).collect::<Vec<_>>()
    };
    let moved = wanted(&web("subnet-1,subnet-3"), &READY);
    let first = planned(Some(&moved), &model, NOW);
    let name = model.seen.balancers[0].name.clone();
    assert_eq!(
        sets(&first),
        [format!("set-subnets {name}  subnet-1")],
        "AWS-207, AWS-208"
    );
    first.steps().for_each(|step| model.execute(step));
    let second = sets(&planned(Some(&moved), &model, NOW));
    assert_eq!(
        second,
        [format!("set-subnets {name}  subnet-1 subnet-3")],
        "AWS-207"
    );
    // The only zone cannot.
    let mut alone = empty();
    alone.seen.network = std::sync::Arc::clone(&model.seen.network);
    serve(&mut alone, "subnet-2");
    let moved = wanted(&web("subnet-3"), &READY);
    assert!(planned(Some(&moved), &alone, NOW).is_empty(), "AWS-207");
    let said = outcome(&settings(), &moved, &alone.seen, NOW).notices;
    assert!(
        said.iter().any(|n| n.reason == "SubnetRejected"),
        "AWS-207: {said:?}"
    );
}

#[test]
fn aws611_aws612_aws413_of_a_selector_flip_under_compat_one_serves_until_a_new_one_is_healthy() {
    let mut peers = web();
    peers.class = Some(crate::cloud::aws::testkit::PEER.to_owned());
    let (mut model, _) = served(&peers, &READY);
    let flipped = wanted(
        &peers,
        &[
            (1, State::Withdrawn),
            (2, State::Withdrawn),
            (3, State::Withdrawn),
            (4, State::Ready),
        ],
    );
    let old = |model: &Model| {
        let targets = model.seen.groups[0].registered();
        targets.filter(|(t, _)| !t.id.ends_with(".4")).count()
    };
    converge(&mut model, Some(&flipped), NOW);
    assert!(old(&model) >= 1, "AWS-611, K-41");
    model.settle();
    converge(&mut model, Some(&flipped), NOW);
    model.settle();
    converge(&mut model, Some(&flipped), NOW);
    assert_eq!(old(&model), 0, "AWS-611");
    // AWS-413: the last one that still serves stays, although it terminates.
    let (mut model, _) = served(&peers, &READY[..1]);
    let last = State::Terminating {
        serving: Serving::Yes,
        since: Some(NOW),
    };
    let intent = wanted(&peers, &[(1, last)]);
    converge(&mut model, Some(&intent), NOW);
    assert_eq!(
        model.seen.groups[0].registered().count(),
        1,
        "AWS-413, AWS-612"
    );
}
