use onehop_core::id::Protocol;

use super::*;
use crate::index::PodLife;
use crate::plan::membership::TargetKey;

const NOW: Time = Time::from_millis(1_800_000_000_000);
const MINUTE: Duration = Duration::from_mins(1);
const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 244, 1, 1));

fn port() -> PortKey {
    PortKey::new("http", Protocol::Tcp)
}

fn pod(gate: KnownGate, ready: Option<Time>) -> KnownPod {
    KnownPod {
        uid: "u".into(),
        addresses: vec![HERE],
        life: PodLife::Running,
        ready_agent_of: None,
        gates: vec![gate],
        containers_ready: ready,
        waits: ready.is_some(),
        grace: Duration::from_secs(30),
    }
}

fn gate(status: Option<&str>, reason: &str, since: Option<Time>) -> KnownGate {
    KnownGate {
        kind: "target-health.onehop.dev/shop-web-0123456789".to_owned(),
        status: status.map(str::to_owned),
        reason: status.map(|_| reason.to_owned()),
        since,
    }
}

fn listed(last: u8, seen: Option<CloudState>, state: TargetState) -> Listed {
    Listed {
        port: port(),
        mode: TargetMode::Pod,
        key: TargetKey {
            address: [10, 244, 1, last].into(),
            port: 8080,
        },
        state,
        seen,
        health_port: None,
        verdict: None,
    }
}

#[test]
fn ai10_aws503_a_gate_has_its_ports_name_for_as_long_as_the_port_has_it() {
    let service = ServiceKey::new("shop-eu-west", "web");
    let of = |install: &str, service: &ServiceKey, port, key: &PortKey| {
        name(&install.into(), service, port, key)
    };
    let one = of("demo", &service, 80, &port());
    assert!(
        one.starts_with("target-health.onehop.dev/shopeuwe-web-"),
        "AWS-503: {one}"
    );
    let hash = one.rsplit('-').next().unwrap();
    assert!(
        hash.len() == 10 && hash.chars().all(|c| c.is_ascii_hexdigit()),
        "AWS-503: {one}"
    );
    // A golden value: pods that wait for it outlive this program.
    assert_eq!(
        one, "target-health.onehop.dev/shopeuwe-web-ba8366772d",
        "AWS-503"
    );
    let renamed = PortKey::new("other", Protocol::Tcp);
    assert_eq!(
        of("demo", &service, 80, &renamed),
        one,
        "the port's number tells it apart"
    );
    let udp = PortKey::new("http", Protocol::Udp);
    let others = [
        of("other", &service, 80, &port()),
        of("demo", &service, 81, &port()),
        of("demo", &service, 80, &udp),
        of(
            "demo",
            &ServiceKey::new("shop-eu-west", "web2"),
            80,
            &port(),
        ),
    ];
    let mut all: BTreeSet<_> = others.into();
    all.insert(one);
    assert_eq!(all.len(), 5, "AWS-503");
}

#[test]
fn aws506_a_pod_stands_as_its_targets_do() {
    use CloudState as C;
    let pod = BTreeSet::from([HERE]);
    let (active, draining) = (TargetState::Active, TargetState::Draining);
    let rows = [
        (vec![], Standing::Unregistered),
        (vec![listed(1, None, active)], Standing::Unregistered),
        (vec![listed(1, Some(C::Initial), active)], Standing::Initial),
        (vec![listed(1, Some(C::Healthy), active)], Standing::Healthy),
        (
            vec![listed(1, Some(C::Unjudged), active)],
            Standing::Healthy,
        ),
        (
            vec![listed(1, Some(C::Unhealthy), active)],
            Standing::Unhealthy,
        ),
        (
            vec![listed(1, Some(C::Draining), draining)],
            Standing::Draining,
        ),
        // A group on its way out says nothing, beside one that stays.
        (vec![listed(1, None, draining)], Standing::Draining),
        (
            vec![
                listed(1, None, draining),
                listed(1, Some(C::Healthy), active),
            ],
            Standing::Healthy,
        ),
        (
            vec![listed(2, Some(C::Healthy), active)],
            Standing::Unregistered,
        ),
    ];
    for (listed, expected) in rows {
        let is = standing(&pod, &port(), TargetMode::Pod, &listed);
        assert_eq!(is, expected, "AWS-506: {listed:?}");
    }
    let other = PortKey::new("dns", Protocol::Udp);
    let healthy = [listed(1, Some(C::Healthy), active)];
    assert_eq!(
        standing(&pod, &other, TargetMode::Pod, &healthy),
        Standing::Unregistered
    );
    assert_eq!(
        standing(&pod, &port(), TargetMode::Node, &healthy),
        Standing::NoGroup
    );
}

#[test]
fn aws506_aws507_conditions_follow_and_are_written_once() {
    let limit = Some(10 * MINUTE);
    let rows = [
        (Standing::Healthy, "True"),
        (Standing::NoGroup, "True"),
        (Standing::Initial, "False"),
        (Standing::Unhealthy, "False"),
        (Standing::Draining, "False"),
        (Standing::Unregistered, "Unknown"),
        (Standing::OverLimit, "Unknown"),
    ];
    for (standing, status) in rows {
        let none = gate(None, "", None);
        let said = decide(
            &pod(none.clone(), Some(NOW)),
            &none,
            standing,
            NOW + MINUTE,
            limit,
        );
        let said = said.unwrap();
        assert_eq!(said.status, status, "AWS-506: {standing:?}");
        let kept = gate(Some(said.status), said.reason, Some(NOW));
        let again = decide(
            &pod(kept.clone(), Some(NOW)),
            &kept,
            standing,
            NOW + 2 * MINUTE,
            limit,
        );
        assert_eq!(again, None, "I4: {standing:?}");
    }
    let shut = gate(Some("False"), "Elb.RegistrationInProgress", Some(NOW));
    let opened = decide(
        &pod(shut.clone(), Some(NOW)),
        &shut,
        Standing::Healthy,
        NOW + MINUTE,
        limit,
    );
    assert!(opened.unwrap().message.ends_with("after 60 s"), "AWS-506");
    let open = gate(Some("True"), "Healthy", Some(NOW));
    let later = NOW + 60 * MINUTE;
    let closed = decide(
        &pod(open.clone(), Some(NOW)),
        &open,
        Standing::Unhealthy,
        later,
        limit,
    );
    assert_eq!(
        closed.unwrap().status,
        "False",
        "AWS-506: in either direction"
    );
}

#[test]
fn aws507_a_gate_that_waits_for_too_long_is_opened_and_stays_so() {
    let shut = gate(Some("False"), "Elb.RegistrationInProgress", Some(NOW));
    let of = |kept: &KnownGate, ready, at, limit| {
        decide(
            &pod(kept.clone(), ready),
            kept,
            Standing::Initial,
            at,
            limit,
        )
    };
    let limit = Some(10 * MINUTE);
    assert_eq!(of(&shut, Some(NOW), NOW + 9 * MINUTE, limit), None);
    let over = NOW + 10 * MINUTE;
    let said = of(&shut, Some(NOW), over, limit).unwrap();
    assert_eq!((said.status, said.reason), ("True", FAIL_SAFE), "AWS-507");
    assert_eq!(of(&shut, Some(NOW), over, None), None, "AWS-507: never");
    assert_eq!(
        of(&shut, None, over, limit),
        None,
        "its containers have not been ready yet"
    );
    let late = Some(NOW + 5 * MINUTE);
    assert_eq!(
        of(&shut, late, over, limit),
        None,
        "it waits since they are"
    );
    let open = gate(Some("True"), FAIL_SAFE, Some(over));
    for at in [over, over + 60 * MINUTE] {
        assert_eq!(
            of(&open, Some(NOW), at, limit),
            None,
            "it would come and go for ever"
        );
    }
    let healthy = decide(
        &pod(open.clone(), Some(NOW)),
        &open,
        Standing::Healthy,
        over,
        limit,
    );
    assert_eq!(
        healthy.unwrap().reason,
        "Healthy",
        "it has come true after all"
    );
}

#[test]
fn aws505_only_gates_of_nobody_are_orphans() {
    let pod = pod(gate(None, "", None), Some(NOW));
    let (own, others) = (BTreeSet::new(), BTreeSet::new());
    assert_eq!(orphans(&pod, &own, &others).len(), 1, "AWS-505");
    let ours = BTreeSet::from([pod.gates[0].kind.clone()]);
    assert!(orphans(&pod, &ours, &others).is_empty(), "a port of ours");
    let theirs = BTreeSet::from(["shop-web-".to_owned()]);
    assert!(
        orphans(&pod, &own, &theirs).is_empty(),
        "perhaps another install's"
    );
    let mut peers = pod.clone();
    peers.gates[0].kind = "target-health.elbv2.k8s.aws/k8s-shop-web-0123456789".to_owned();
    assert!(
        orphans(&peers, &own, &others).is_empty(),
        "AWS-504: the peer's"
    );
}
