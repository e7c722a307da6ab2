//! Whole models with their names, and who may reach what: security groups, rules, source ranges.

use super::*;

fn udp_808() -> ServiceSpec {
    let mut service = tls_service();
    service.ports = vec![udp(80, 80, 0)];
    annotated(service, &[("aws-load-balancer-healthcheck-port", "808")])
}

#[test]
fn aa01_the_sg_less_model_of_an_ip_service() {
    let stack = built(&gate_off(), &tls_service());
    let lb = &stack.balancer;
    assert_eq!(lb.name, "k8s-default-nlbipsvc-6b0ba8ff70", "AA-01");
    assert_eq!((lb.scheme, lb.ip_type), (Scheme::Internal, IpType::Ipv4));
    assert_eq!(
        (lb.security_groups.len(), stack.managed.is_none()),
        (0, true)
    );
    let (listener, group) = &stack.listeners[0];
    assert_eq!((listener.port, listener.protocol), (80, GroupProtocol::Tcp));
    assert_eq!(group.name, "k8s-default-nlbipsvc-d4818dcd51", "AA-01");
    let kind = (group.target, group.protocol, group.port);
    assert_eq!(kind, (TargetType::Ip, GroupProtocol::Tcp, 80));
    assert_eq!(
        group.tags[names::PEER_RESOURCE],
        "default/nlb-ip-svc-tls:80",
        "AA-01"
    );
    let check = &group.check;
    let numbers = (
        check.interval,
        check.timeout,
        check.healthy,
        check.unhealthy,
    );
    assert_eq!(
        (check.protocol, check.port, numbers),
        (CheckProtocol::Tcp, None, (10, 10, 3, 3))
    );
    assert_eq!(
        rules(&stack),
        ["tcp 80 192.168.0.0/19"],
        "AA-01: from the subnet"
    );
    let expected = [("proxy_protocol_v2.enabled".to_owned(), "false".to_owned())];
    assert_eq!(group.attributes, expected.into(), "AWS-071: always sent");
}

#[test]
fn aa03_security_groups_and_rules_from_the_backend_group() {
    let stack = built(&with_backend("sg-backend"), &tls_service());
    let managed = stack.managed.as_ref().unwrap();
    assert_eq!(managed.name, "k8s-default-nlbipsvc-1da4b78715", "AA-03");
    assert_eq!(frontend(&stack), ["tcp 80 from 0.0.0.0/0"]);
    let groups = [
        GroupRef::Managed(managed.name.clone()),
        GroupRef::Given("sg-backend".to_owned()),
    ];
    assert_eq!(
        stack.balancer.security_groups, groups,
        "AA-03, AWS-300: in this order"
    );
    assert_eq!(rules(&stack), ["tcp 80 backend"]);
    let mut all_ports = with_backend("sg-backend");
    all_ports.rules = crate::cloud::aws::settings::RulePorts::All;
    assert_eq!(
        rules(&built(&all_ports, &tls_service())),
        ["tcp 0-65535 backend"],
        "AA-03"
    );
}

#[test]
fn aa04_dualstack_opens_both_families() {
    let mut net = one();
    for subnet in net.subnets.values_mut() {
        subnet.ipv6.push("2001:db8::/64".parse().unwrap());
    }
    let service = annotated(
        tls_service(),
        &[("aws-load-balancer-ip-address-type", "dualstack")],
    );
    let stack = stack_of(&with_backend("sg-backend"), &service, &net, None).unwrap();
    assert_eq!(
        frontend(&stack),
        ["tcp 80 from 0.0.0.0/0", "tcp 80 from ::/0"],
        "AA-04"
    );
    assert_eq!(stack.balancer.ip_type, IpType::Dualstack);
}

#[test]
fn aa08_policy_local_on_a_live_load_balancer_without_groups() {
    let there = live(
        Scheme::InternetFacing,
        &[],
        &["subnet-1", "subnet-2", "subnet-3"],
    );
    let stack = stack_of(&settings(), &traffic_local(), &three(), Some(&there)).unwrap();
    assert_eq!(
        stack.balancer.scheme,
        Scheme::InternetFacing,
        "AA-08: kept, AWS-043"
    );
    assert_eq!(stack.balancer.name, "k8s-app-trafficl-2af705447d", "AA-08");
    let group = &stack.listeners[0].1;
    assert_eq!(group.name, "k8s-app-trafficl-d2b8571b2f", "AA-08");
    let check = &group.check;
    let numbers = (
        check.interval,
        check.timeout,
        check.healthy,
        check.unhealthy,
    );
    assert_eq!(
        (check.protocol, check.port, numbers),
        (CheckProtocol::Http, Some(29123), (10, 6, 2, 2))
    );
    let (path, codes) = (check.path.as_deref(), check.codes.as_deref());
    assert_eq!((path, codes), (Some("/healthz"), Some("200-399")));
    let expected = [
        "tcp 29123 192.168.0.0/19",
        "tcp 29123 192.168.32.0/19",
        "tcp 29123 192.168.64.0/19",
        "tcp 31223 1.2.0.0/19",
        "tcp 31223 10.20.0.0/16",
    ];
    assert_eq!(rules(&stack), expected, "AA-08, AWS-304");
}

#[test]
fn aa09_the_same_with_security_groups() {
    let scheme = annotated(
        traffic_local(),
        &[("aws-load-balancer-scheme", "internet-facing")],
    );
    let stack = stack_of(&settings(), &scheme, &three(), None).unwrap();
    assert_eq!(
        stack.managed.as_ref().unwrap().name,
        "k8s-app-trafficl-7b81fc143c",
        "AA-09"
    );
    assert_eq!(
        frontend(&stack),
        ["tcp 80 from 1.2.0.0/19", "tcp 80 from 10.20.0.0/16"]
    );
    assert_eq!(
        rules(&stack),
        ["tcp 29123 backend", "tcp 31223 backend"],
        "AA-09, AWS-303"
    );
}

#[test]
fn aa14_a_kept_client_address_opens_the_vpc() {
    let key = "aws-load-balancer-target-group-attributes";
    let service = annotated(tls_service(), &[(key, "preserve_client_ip.enabled=true")]);
    let mut net = one();
    net.cidrs.push("10.1.0.0/16".parse().unwrap());
    let stack = stack_of(&gate_off(), &service, &net, None).unwrap();
    let attributes = &stack.listeners[0].1.attributes;
    assert_eq!(attributes["preserve_client_ip.enabled"], "true");
    assert_eq!(attributes["proxy_protocol_v2.enabled"], "false", "AA-14");
    assert_eq!(
        rules(&stack),
        ["tcp 80 10.1.0.0/16", "tcp 80 192.168.0.0/16"],
        "AA-14"
    );
}

#[test]
fn aa20_named_security_groups_and_no_rules_on_targets() {
    let key = "aws-load-balancer-security-groups";
    let service = annotated(tls_service(), &[(key, "name,sg-id2")]);
    let stack = built(&settings(), &service);
    let groups = ["sg-id1", "sg-id2"].map(|id| GroupRef::Given(id.to_owned()));
    assert_eq!(stack.balancer.security_groups, groups, "AA-20, AWS-057");
    assert!(
        stack.target_rules.is_empty() && stack.managed.is_none(),
        "AA-20"
    );
    let managed = annotated(
        service,
        &[(
            "aws-load-balancer-manage-backend-security-group-rules",
            "true",
        )],
    );
    let stack = built(&with_backend("sg-backend"), &managed);
    assert_eq!(stack.balancer.security_groups.len(), 3, "AWS-058");
    assert_eq!(rules(&stack), ["tcp 80 backend"], "AWS-058");
    let unknown = annotated(tls_service(), &[(key, "no-such-name")]);
    assert!(
        refused(&settings(), &unknown, &one()).contains("no-such-name"),
        "AWS-057"
    );
}

#[test]
fn aa22_groups_that_live_cannot_be_taken_away() {
    let there = live(Scheme::Internal, &["sg-1"], &["subnet-1"]);
    let refusals = stack_of(&gate_off(), &tls_service(), &one(), Some(&there)).unwrap_err();
    assert!(
        refusals[0].message.contains("conflicting"),
        "AA-22, AWS-059"
    );
}

#[test]
fn aws302_a_live_load_balancer_without_groups_stays_so_and_says_it() {
    let there = live(Scheme::Internal, &[], &["subnet-1"]);
    let stack = stack_of(&settings(), &tls_service(), &one(), Some(&there)).unwrap();
    assert!(stack.balancer.security_groups.is_empty(), "AWS-302, AI-47");
    assert!(
        stack.notices[0].message.contains("without security groups"),
        "AI-47"
    );
}

#[test]
fn aa23_disable_nlb_sg_gives_the_sg_less_model() {
    let service = annotated(
        tls_service(),
        &[("aws-load-balancer-disable-nlb-sg", "true")],
    );
    let stack = built(&settings(), &service);
    assert_eq!(
        stack.to_string(),
        built(&gate_off(), &tls_service()).to_string(),
        "AA-23"
    );
}

#[test]
fn aa24_sg_less_without_rules_on_targets() {
    let key = "aws-load-balancer-manage-backend-security-group-rules";
    let service = annotated(tls_service(), &[(key, "false")]);
    assert!(
        built(&gate_off(), &service).target_rules.is_empty(),
        "AA-24, AWS-058"
    );
}

#[test]
fn aa41_udp_with_its_own_check_port() {
    let stack = built(&settings(), &udp_808());
    assert_eq!(
        rules(&stack),
        ["tcp 808 backend", "udp 80 backend"],
        "AA-41, AWS-306"
    );
}

#[test]
fn aa42_the_same_sg_less_and_open() {
    let open = annotated(
        udp_808(),
        &[("aws-load-balancer-scheme", "internet-facing")],
    );
    let stack = built(&gate_off(), &open);
    assert_eq!(
        rules(&stack),
        ["tcp 808 192.168.0.0/19", "udp 80 0.0.0.0/0"],
        "AA-42"
    );
}

#[test]
fn aa47_prefix_lists_alone_open_nothing_else() {
    let key = "aws-load-balancer-security-group-prefix-lists";
    let stack = built(
        &settings(),
        &annotated(tls_service(), &[(key, "pl-1,pl-2")]),
    );
    assert_eq!(
        frontend(&stack),
        ["tcp 80 from pl-1", "tcp 80 from pl-2"],
        "AA-47, AWS-062"
    );
}

#[test]
fn ai41_aws305_explicit_ranges_hold_on_an_internal_sg_less_one() {
    let key = "aws-load-balancer-target-group-attributes";
    let kept = annotated(tls_service(), &[(key, "preserve_client_ip.enabled=true")]);
    let open = annotated(kept, &[("load-balancer-source-ranges", "0.0.0.0/0")]);
    assert_eq!(
        rules(&built(&gate_off(), &open)),
        ["tcp 80 0.0.0.0/0"],
        "AI-41, AWS-304: one is enough"
    );
}

#[test]
fn ai43_aws322_exact_ports_are_opened_and_nothing_between() {
    let mut service = tls_service();
    service.ports = vec![tcp(80, 80, 0), tcp(443, 443, 0)];
    assert_eq!(
        rules(&built(&settings(), &service)),
        ["tcp 80 backend", "tcp 443 backend"],
        "AI-43"
    );
}
