//! Health checks.

use super::*;

#[test]
fn aa32_aa33_checks_of_the_peers_class() {
    let http = annotated(
        tls_service(),
        &[("aws-load-balancer-healthcheck-protocol", "HTTP")],
    );
    let check = built(&settings(), &http).listeners[0].1.check.clone();
    let numbers = (
        check.interval,
        check.timeout,
        check.healthy,
        check.unhealthy,
    );
    assert_eq!(
        (check.protocol, numbers),
        (CheckProtocol::Http, (10, 10, 3, 3)),
        "AA-32"
    );
    let (path, codes) = (check.path.as_deref(), check.codes.as_deref());
    assert_eq!(
        (path, codes),
        (Some("/"), Some("200-399")),
        "AA-32, AWS-076, AWS-079"
    );
    let mut local = tls_service();
    local.external_policy = TrafficPolicy::Local;
    local.health_check_node_port = Some(29123);
    let check = built(&settings(), &local).listeners[0].1.check.clone();
    assert_eq!(
        (check.protocol, check.port),
        (CheckProtocol::Tcp, None),
        "AA-33, AI-55"
    );
}

#[test]
fn aws092_aws093_checks_of_our_own_class() {
    let own = |mut service: ServiceSpec| {
        service.class = Some("onehop.dev/aws".to_owned());
        let stack = built(&settings(), &service);
        let check = stack.listeners[0].1.check.clone();
        let numbers = (
            check.interval,
            check.timeout,
            check.healthy,
            check.unhealthy,
        );
        (check.protocol, check.port, check.path, numbers)
    };
    let node = service(("default", "web"), UID_A, &[(80, 8080, 32110)]);
    let healthz = Some("/healthz".to_owned());
    let expected = (
        CheckProtocol::Http,
        Some(10256),
        healthz.clone(),
        (10, 6, 2, 2),
    );
    assert_eq!(
        own(node.clone()),
        expected,
        "AWS-092, ZD-67: kube-proxy's node health"
    );
    let mut labelled = node.clone();
    let label = onehop_core::service::PROXY_NAME_LABEL.to_owned();
    labelled.labels.insert(label, "onehop".to_owned());
    assert_eq!(own(labelled).1, Some(10356), "AWS-092, ZD-67: the agent's");
    let mut local = node.clone();
    local.external_policy = TrafficPolicy::Local;
    local.health_check_node_port = Some(29123);
    let expected = (CheckProtocol::Http, Some(29123), healthz, (10, 6, 2, 2));
    assert_eq!(own(local), expected, "AWS-092");
    let mut udp_node = node;
    udp_node.ports = vec![udp(53, 53, 32053)];
    assert_eq!(own(udp_node).1, Some(10256), "AI-54: something answers");
    let expected = (CheckProtocol::Tcp, None, None, (10, 10, 3, 3));
    assert_eq!(own(tls_service()), expected, "AWS-093");
}

#[test]
fn aws613_zd33_a_pod_that_agents_answer_for_keeps_its_flows_when_its_health_fails() {
    use crate::cloud::aws::{health, resolve::resolve, testkit};
    use crate::plan::{membership::State, pod_health::by_agent};
    const KEY: &str = "target_health_state.unhealthy.connection_termination.enabled";
    let group_of = |service: &ServiceSpec| {
        let resolution = resolve(&settings(), service, None);
        let mut intent = testkit::intent(service, resolution, &[(1, State::Ready)]);
        let port = &mut intent.spec.ports[0];
        let at = (&port.key(), 10290);
        let check = health::agent_check(service, port)?;
        let check = by_agent(&check, &"e2e".into(), &service.key, at);
        port.health = Some(check);
        let stack = build(&settings(), &intent, &one(), Live::default());
        Some(stack.unwrap().listeners[0].1.clone())
    };
    let mut service = tls_service();
    assert!(
        group_of(&service).is_none(),
        "the peer's class keeps its checks"
    );
    service.class = Some("onehop.dev/aws".to_owned());
    let group = group_of(&service).unwrap();
    assert_eq!(group.attributes[KEY], "false", "AWS-613, ZD-33");
    let path = format!("/t/e2e/default/{}/p80", service.key.name);
    assert_eq!(group.check.path, Some(path), "K-28");
    let check = (group.check.protocol, group.check.port);
    assert_eq!(check, (CheckProtocol::Http, Some(10290)));
    let attributes = "aws-load-balancer-target-group-attributes";
    let forced = annotated(service.clone(), &[(attributes, &format!("{KEY}=true"))]);
    assert_eq!(
        group_of(&forced).unwrap().attributes[KEY],
        "true",
        "the user's word"
    );
    let explicit = [("aws-load-balancer-healthcheck-port", "9000")];
    assert!(group_of(&annotated(service, &explicit)).is_none(), "ZD-32");
}
