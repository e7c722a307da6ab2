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
        "AWS-092: kube-proxy's node health"
    );
    let mut labelled = node.clone();
    let label = onehop_core::service::PROXY_NAME_LABEL.to_owned();
    labelled.labels.insert(label, "onehop".to_owned());
    assert_eq!(own(labelled).1, Some(10356), "AWS-092: the agent's");
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
