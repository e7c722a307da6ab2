use std::collections::BTreeSet;

use onehop_core::crd::{LoadBalancerPort, TargetMode};
use onehop_core::id::{PortKey, Protocol};
use onehop_core::service::{Ingress, IpMode, ServiceKind};

use super::*;
use crate::plan::PortCount;

const NOW: Time = Time::from_millis(1_000_000_000);
const LATER: Time = Time::from_millis(1_000_100_000);

fn address() -> IpAddr {
    IpAddr::from([198, 51, 100, 1])
}

fn service(published: &[IpAddr]) -> ServiceSpec {
    let ingress = |address: &IpAddr| Ingress {
        ports: BTreeSet::new(),
        address: Some(*address),
        hostname: None,
        mode: IpMode::Vip,
    };
    ServiceSpec {
        uid: "u1".into(),
        kind: ServiceKind::LoadBalancer,
        ingress: published.iter().map(ingress).collect(),
        ..ServiceSpec::default()
    }
}

fn outcome(programmed: Programmed, healthy: u32) -> Outcome {
    let count = PortCount {
        registered: 2,
        healthy,
        ..PortCount::default()
    };
    Outcome {
        host: None,
        notices: Vec::new(),
        programmed,
        addresses: vec![address()],
        resources: vec![("loadBalancer", "lb-1".to_owned(), 1)],
        ports: [(PortKey::new("http", Protocol::Tcp), count)].into(),
        mass_removal: None,
    }
}

fn spec() -> LoadBalancerSpec {
    let port = LoadBalancerPort {
        mode: TargetMode::Pod,
        ..LoadBalancerPort::default()
    };
    LoadBalancerSpec {
        ports: vec![port],
        ..LoadBalancerSpec::default()
    }
}

fn facts<'a>(
    service: &'a ServiceSpec,
    spec: &'a LoadBalancerSpec,
    outcome: Option<&'a Outcome>,
) -> Facts<'a> {
    Facts {
        service,
        spec: Some(spec),
        refusals: &[],
        notices: &[],
        outcome,
        error: None,
        take_over: None,
        tail_seconds: None,
    }
}

#[test]
fn c10_an_address_is_published_once_usable_and_stays_while_something_is_being_changed() {
    let spec = spec();
    let waiting = outcome(Programmed::Waiting("listener".to_owned()), 0);
    let (new, live) = (service(&[]), service(&[address()]));
    assert!(
        facts(&new, &spec, Some(&waiting)).ingress().is_empty(),
        "C-10"
    );
    assert_eq!(
        facts(&live, &spec, Some(&waiting)).ingress(),
        [address()],
        "C-10"
    );
    assert_eq!(facts(&live, &spec, None).ingress(), [address()], "C-10");
    let usable = outcome(Programmed::Yes, 0);
    assert_eq!(facts(&new, &spec, Some(&usable)).ingress(), [address()]);
    let moved = Outcome {
        addresses: vec![],
        ..waiting
    };
    assert!(
        facts(&live, &spec, Some(&moved)).ingress().is_empty(),
        "status follows reality"
    );
}

#[test]
fn k10_counts_can_wait_and_conditions_cannot() {
    let (service, spec) = (service(&[address()]), spec());
    let status = |outcome: &Outcome, old: Option<&LoadBalancerStatus>, now| {
        facts(&service, &spec, Some(outcome)).balancer_status(old, now)
    };
    let first = status(&outcome(Programmed::Yes, 2), None, NOW);
    assert_eq!(difference(None, &first), Difference::Content);
    let same = status(&outcome(Programmed::Yes, 2), Some(&first), LATER);
    assert_eq!(
        difference(Some(&first), &same),
        Difference::None,
        "I4: times are no difference"
    );
    let fewer = status(&outcome(Programmed::Yes, 1), Some(&first), LATER);
    assert_eq!(difference(Some(&first), &fewer), Difference::Counts, "K-10");
    let dark = status(&outcome(Programmed::Yes, 0), Some(&first), LATER);
    assert_eq!(difference(Some(&first), &dark), Difference::Content, "K-10");
    assert_eq!(dark.summary.targets, "0/2");
}

#[test]
fn i4_a_service_status_that_says_so_already_is_not_written() {
    let (service, spec) = (service(&[address()]), spec());
    let usable = outcome(Programmed::Yes, 2);
    let facts = facts(&service, &spec, Some(&usable));
    let condition = facts.service_condition(&[], NOW);
    let body = service_status(&service, &[], &[address()], None, Some(condition.clone()));
    let body = body.unwrap();
    assert_eq!(
        body["status"]["loadBalancer"]["ingress"][0]["ipMode"], "VIP",
        "C-106"
    );
    assert_eq!(
        body["metadata"]["uid"], "u1",
        "C-04: the UID is a precondition"
    );
    let written = [condition];
    let again = facts.service_condition(&written, LATER);
    let body = service_status(&service, &written, &[address()], None, Some(again));
    assert_eq!(body, None, "I4");
    let taken_back = service_status(&service, &written, &[], None, None).unwrap();
    assert_eq!(
        taken_back["status"]["loadBalancer"]["ingress"],
        serde_json::json!([]),
        "C-04"
    );
    assert_eq!(taken_back["status"]["conditions"], serde_json::json!([]));
}

#[test]
fn c08_a_refusal_is_in_the_condition_with_what_is_kept() {
    let (service, spec) = (service(&[address()]), spec());
    let usable = outcome(Programmed::Yes, 2);
    let refusals = [Refusal {
        reason: "AnnotationInvalid",
        message: "key: bad".to_owned(),
    }];
    let facts = Facts {
        refusals: &refusals,
        ..facts(&service, &spec, Some(&usable))
    };
    let condition = facts.service_condition(&[], NOW);
    assert_eq!(
        (condition.status.as_str(), condition.reason.as_str()),
        ("False", "AnnotationInvalid")
    );
    assert_eq!(
        condition.message, "key: bad; the last good state is kept",
        "C-08"
    );
    assert_eq!(facts.ingress(), [address()], "C-08");
}

#[test]
fn aws800_aws802_a_host_name_is_published_with_its_ports_whatever_their_order() {
    let host = |ports: &[(u16, Protocol)]| HostName {
        name: "web.elb.example.com".to_owned(),
        ports: ports.iter().copied().collect(),
    };
    let two = host(&[(443, Protocol::Tcp), (80, Protocol::Tcp)]);
    let mut service = service(&[]);
    let body = service_status(&service, &[], &[], Some(&two), None).unwrap();
    let entry = json!({
        "hostname": "web.elb.example.com",
        "ports": [{ "port": 80, "protocol": "TCP" }, { "port": 443, "protocol": "TCP" }],
    });
    assert_eq!(
        body["status"]["loadBalancer"]["ingress"],
        json!([entry]),
        "AWS-800: no ip, no ipMode"
    );
    service.ingress.push(Ingress {
        address: None,
        hostname: Some(two.name.clone()),
        mode: IpMode::Vip,
        ports: two.ports.clone(),
    });
    assert_eq!(
        service_status(&service, &[], &[], Some(&two), None),
        None,
        "AA-52: no patch"
    );
    let other = host(&[(443, Protocol::Udp), (80, Protocol::Tcp)]);
    assert!(
        service_status(&service, &[], &[], Some(&other), None).is_some(),
        "AWS-802: the protocol counts"
    );
    let cleared = service_status(&service, &[], &[], None, None).unwrap();
    assert_eq!(
        cleared["status"]["loadBalancer"]["ingress"],
        json!([]),
        "AWS-803"
    );
}

#[test]
fn zd108_conditions_say_a_limit_of_what_was_asked_for_although_nothing_is_wrong() {
    let (service, spec) = (service(&[address()]), spec());
    let usable = outcome(Programmed::Yes, 2);
    let notices = [Notice {
        reason: LATE_FLOWS_DROPPED,
        message: "late flows are dropped".to_owned(),
        degrades: false,
    }];
    let facts = Facts {
        notices: &notices,
        ..facts(&service, &spec, Some(&usable))
    };
    let of_service = facts.service_condition(&[], NOW);
    assert_eq!(of_service.status, "True", "ZD-108: it serves");
    assert_eq!(of_service.message, "late flows are dropped", "ZD-108");
    let conditions = facts.balancer_status(None, NOW).conditions;
    let degraded = conditions.iter().find(|c| c.type_ == DEGRADED).unwrap();
    assert_eq!(
        (degraded.status.as_str(), degraded.reason.as_str()),
        ("False", "LateFlowsDropped"),
        "ZD-108"
    );
    assert_eq!(degraded.message, "late flows are dropped", "ZD-108");
}
