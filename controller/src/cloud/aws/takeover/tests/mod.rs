//! What a take-over is made of, where there is nothing to see on a wire.

use std::collections::BTreeMap;

use onehop_core::crd::Scheme;

use super::*;
use crate::cloud::aws::model::{Rule, RuleSource, SecurityGroup};
use crate::cloud::aws::resolve::resolve;
use crate::cloud::aws::settings::Selection;
use crate::cloud::aws::testkit::{NOW, UID_A, annotated, intent, live, network, service, settings};
use crate::plan::membership::State;

/// A load balancer of the peer's without security groups, whose machines' group has its rule and `more` others.
fn sg_less(more: i32) -> (ServiceSpec, Observed) {
    let mut service = annotated(
        service(("default", "web"), UID_A, &[(80, 8080, 30080)]),
        &[
            ("aws-load-balancer-nlb-target-type", "ip"),
            (
                "aws-load-balancer-target-group-attributes",
                "preserve_client_ip.enabled=true",
            ),
        ],
    );
    service.finalizers = vec![FINALIZER.to_owned()];
    let mut balancer = live(Scheme::Internal, &[], &["subnet-1"]);
    balancer.tags = Tags::from([
        (names::PEER_CLUSTER.to_owned(), "my-cluster".to_owned()),
        (names::PEER_STACK.to_owned(), "default/web".to_owned()),
        (
            names::PEER_RESOURCE.to_owned(),
            names::LOAD_BALANCER.to_owned(),
        ),
    ]);
    let rule = |port: i32, range: &str| Rule {
        protocol: "tcp",
        from: port,
        to: port,
        source: RuleSource::Cidr(range.parse().unwrap()),
    };
    let mut rules: BTreeMap<Rule, String> = (0..more)
        .map(|n| (rule(1000 + n, "10.0.0.0/8"), "of others".to_owned()))
        .collect();
    let theirs = "elbv2.k8s.aws/targetGroupBinding=shared".to_owned();
    rules.insert(rule(8080, "192.168.0.0/16"), theirs);
    let mut seen = Observed {
        network: network(&["192.168.0.0/19"]).into(),
        ..Observed::default()
    };
    seen.node_groups.push(SecurityGroup {
        id: "sg-nodes".to_owned(),
        name: "nodes".to_owned(),
        tags: Tags::new(),
        rules,
    });
    seen.peer.balancers.push(balancer);
    (service, seen)
}

fn taking() -> Settings {
    let mut settings = settings();
    let all = Selection::read(&["*".to_owned()]).unwrap();
    settings.take_over.peer = PeerServices::Off;
    settings.take_over.of = all.clone();
    settings.take_over.accepted = all;
    settings
}

fn report((service, seen): &(ServiceSpec, Observed)) -> Handover<AwsStep> {
    let settings = taking();
    let intent = intent(
        service,
        resolve(&settings, service, None),
        &[(1, State::Ready)],
    );
    let of = Situation {
        settings: &settings,
        service,
        intent: &intent,
        seen,
        now: NOW,
    };
    match custody(of, Release::Keep) {
        Custody::Theirs(handover) => *handover,
        Custody::Ours => panic!("the peer's finalizer is there"),
    }
}

#[test]
fn aws131_rules_of_ranges_are_written_in_halves_before_the_peer_revokes_its_own() {
    let Act::Cloud(plan) = report(&sg_less(0)).act else {
        panic!("there is something to do");
    };
    let rules = plan.steps().find_map(|step| match step {
        AwsStep::Authorize { rules, .. } => {
            Some(rules.iter().map(ToString::to_string).collect::<Vec<_>>())
        }
        _ => None,
    });
    let halves = [
        "tcp 8080 from 192.168.0.0/17",
        "tcp 8080 from 192.168.128.0/17",
    ];
    let rules = rules.unwrap();
    assert!(
        halves
            .iter()
            .all(|half| rules.iter().any(|rule| rule == half)),
        "AWS-131: {rules:?}"
    );
}

#[test]
fn aws131_without_room_for_the_halves_a_take_over_is_refused_with_the_counts() {
    let handover = report(&sg_less(58));
    assert!(matches!(handover.act, Act::Look), "AWS-131");
    let why = handover.report.blocked.join(" ");
    assert!(
        why.contains("sg-nodes has 59 rules of at most 60") && why.contains('2'),
        "AWS-131: {why}"
    );
}

#[test]
fn aws124_services_are_chosen_by_name_by_namespace_or_all() {
    let read = |entries: &[&str]| {
        Selection::read(&entries.iter().map(|e| (*e).to_owned()).collect::<Vec<_>>())
    };
    let has = |entries: &[&str], namespace: &str, name: &str| {
        let service = onehop_core::id::ServiceKey::new(namespace, name);
        read(entries).unwrap().has(&service)
    };
    assert!(
        has(&["*"], "a", "b") && has(&["a"], "a", "b") && has(&["a/b"], "a", "b"),
        "AWS-124"
    );
    assert!(
        !has(&[], "a", "b") && !has(&["a/c", "b"], "a", "b"),
        "AWS-124"
    );
    for wrong in ["", "/a", "a/", "a/b/c", "a b"] {
        assert_eq!(read(&[wrong]).unwrap_err(), wrong, "AWS-124");
    }
}
