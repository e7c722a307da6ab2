//! The acceptance rows of section 19: Services in, complete models out, names byte for byte.

use onehop_core::crd::Scheme;
use onehop_core::id::IpFamily;
use onehop_core::service::{ServiceKind, ServiceSpec, TrafficPolicy};

use super::*;
use crate::cloud::aws::model::CheckProtocol;
use crate::cloud::aws::settings::Gate;
use crate::cloud::aws::testkit::{
    UID_A, UID_B, annotated, live, network, service, settings, stack_of, tcp, udp,
};

const TYPE: &str = "aws-load-balancer-type";
const TARGET: &str = "aws-load-balancer-nlb-target-type";

/// Of the SG-less rows.
fn gate_off() -> Settings {
    let mut settings = settings();
    settings.gates.security_groups = Gate::Off;
    settings
}

fn with_backend(id: &str) -> Settings {
    let mut settings = settings();
    settings.backend = super::super::settings::BackendGroup::Given(id.to_owned());
    settings
}

fn tls_service() -> ServiceSpec {
    let service = service(("default", "nlb-ip-svc-tls"), UID_A, &[(80, 80, 0)]);
    annotated(service, &[(TYPE, "nlb-ip"), (TARGET, "ip")])
}

fn traffic_local() -> ServiceSpec {
    let mut service = service(("app", "traffic-local"), UID_B, &[(80, 80, 31223)]);
    service.external_policy = TrafficPolicy::Local;
    service.health_check_node_port = Some(29123);
    let ranges = ["10.20.0.0/16", "1.2.3.4/19"].map(|range| range.parse().unwrap());
    service.source_ranges.allowed = ranges.to_vec();
    annotated(service, &[(TARGET, "instance")])
}

fn one() -> Network {
    network(&["192.168.0.0/19"])
}

fn three() -> Network {
    network(&["192.168.0.0/19", "192.168.32.0/19", "192.168.64.0/19"])
}

fn built(settings: &Settings, service: &ServiceSpec) -> Stack {
    stack_of(settings, service, &one(), None).unwrap_or_else(|e| panic!("refused: {e:?}"))
}

fn refused(settings: &Settings, service: &ServiceSpec, network: &Network) -> String {
    let refusals = stack_of(settings, service, network, None).expect_err("refused");
    let texts: Vec<_> = refusals.iter().map(|r| r.message.as_str()).collect();
    texts.join("; ")
}

/// Rules on targets in short: protocol, port, source.
fn rules(stack: &Stack) -> Vec<String> {
    let text = |rule: &TargetRule| {
        let source = match &rule.source {
            TargetSource::Backend => "backend".to_owned(),
            TargetSource::Range(RuleSource::Cidr(range)) => range.to_string(),
            TargetSource::Range(other) => format!("{other:?}"),
        };
        if rule.from == rule.to {
            format!("{} {} {source}", rule.protocol, rule.from)
        } else {
            format!("{} {}-{} {source}", rule.protocol, rule.from, rule.to)
        }
    };
    stack.target_rules.iter().map(text).collect()
}

fn frontend(stack: &Stack) -> Vec<String> {
    let managed = stack.managed.as_ref().unwrap();
    managed.rules.iter().map(ToString::to_string).collect()
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
    all_ports.rules = super::super::settings::RulePorts::All;
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
fn aa06_tls_on_the_named_port_and_attributes_of_old_keys() {
    let mut service = tls_service();
    service.ports.push(tcp(83, 83, 0));
    let service = annotated(
        service,
        &[
            ("aws-load-balancer-internal", "false"),
            ("aws-load-balancer-ssl-cert", "a,b"),
            ("aws-load-balancer-ssl-ports", "83"),
            ("aws-load-balancer-access-log-enabled", "true"),
            ("aws-load-balancer-access-log-s3-bucket-name", "nlb-bucket"),
            ("aws-load-balancer-access-log-s3-bucket-prefix", "bkt-pfx"),
            (
                "aws-load-balancer-cross-zone-load-balancing-enabled",
                "true",
            ),
        ],
    );
    let stack = built(&settings(), &service);
    assert_eq!(
        stack.balancer.scheme,
        Scheme::InternetFacing,
        "AA-06, AWS-044"
    );
    let expected = [
        ("access_logs.s3.enabled", "true"),
        ("access_logs.s3.bucket", "nlb-bucket"),
        ("access_logs.s3.prefix", "bkt-pfx"),
        ("load_balancing.cross_zone.enabled", "true"),
    ];
    let expected = expected.map(|(k, v)| (k.to_owned(), v.to_owned()));
    assert_eq!(
        stack.balancer.attributes,
        expected.into(),
        "AA-06, AWS-053, AWS-054"
    );
    let [(plain, _), (tls, group)] = stack.listeners.as_slice() else {
        panic!("two listeners")
    };
    assert_eq!(
        (plain.protocol, plain.certificates.len()),
        (GroupProtocol::Tcp, 0)
    );
    assert_eq!(
        (tls.protocol, tls.certificates.len()),
        (GroupProtocol::Tls, 2),
        "AWS-064"
    );
    assert_eq!(
        tls.policy.as_deref(),
        Some("ELBSecurityPolicy-2016-08"),
        "AWS-066"
    );
    assert_eq!(
        group.protocol,
        GroupProtocol::Tcp,
        "AA-06: towards targets without TLS"
    );
    let to_targets = annotated(service, &[("aws-load-balancer-backend-protocol", "ssl")]);
    let stack = built(&settings(), &to_targets);
    assert_eq!(stack.listeners[1].1.protocol, GroupProtocol::Tls, "AWS-067");
}

#[test]
fn aa07_node_ports_and_the_vpc_as_source() {
    let mut service = service(
        ("default", "instance"),
        UID_A,
        &[(80, 80, 31223), (83, 83, 32323)],
    );
    service.external_policy = TrafficPolicy::Cluster;
    let stack = built(&gate_off(), &annotated(service, &[(TARGET, "instance")]));
    let groups = stack
        .listeners
        .iter()
        .map(|(_, group)| (group.port, group.target));
    let expected = [(31223, TargetType::Instance), (32323, TargetType::Instance)];
    assert_eq!(groups.collect::<Vec<_>>(), expected, "AA-07, AWS-105");
    let check = &stack.listeners[0].1.check;
    assert_eq!((check.protocol, check.port), (CheckProtocol::Tcp, None));
    let expected = ["tcp 31223 192.168.0.0/16", "tcp 32323 192.168.0.0/16"];
    assert_eq!(rules(&stack), expected, "AA-07");
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

fn both_on_80() -> ServiceSpec {
    let mut service = service(("app", "traffic-local"), UID_B, &[]);
    service.ports = vec![tcp(80, 80, 31223), udp(80, 80, 31223), tcp(83, 83, 32323)];
    annotated(service, &[(TARGET, "instance")])
}

#[test]
fn aa11_tcp_and_udp_on_one_port_are_one_listener_when_asked_for() {
    let service = annotated(
        both_on_80(),
        &[("aws-load-balancer-enable-tcp-udp-listener", "true")],
    );
    let stack = built(&settings(), &service);
    let [(first, group), (second, other)] = stack.listeners.as_slice() else {
        panic!("two listeners")
    };
    assert_eq!(
        (first.protocol, group.protocol),
        (GroupProtocol::TcpUdp, GroupProtocol::TcpUdp)
    );
    assert!(group.name.ends_with("-2213a0d759"), "AA-11: {}", group.name);
    assert_eq!(
        (second.protocol, other.protocol),
        (GroupProtocol::Tcp, GroupProtocol::Tcp)
    );
    let on_80: Vec<_> = rules(&stack)
        .into_iter()
        .filter(|r| r.contains("31223"))
        .collect();
    assert_eq!(on_80, ["tcp 31223 backend", "udp 31223 backend"], "AA-11");
}

#[test]
fn aa12_without_it_the_second_one_is_dropped_and_said_to_be() {
    let stack = built(&settings(), &both_on_80());
    let protocols: Vec<_> = stack
        .listeners
        .iter()
        .map(|(l, _)| (l.port, l.protocol))
        .collect();
    assert_eq!(
        protocols,
        [(80, GroupProtocol::Tcp), (83, GroupProtocol::Tcp)],
        "AA-12"
    );
    let resolution = super::super::resolve::resolve(&settings(), &both_on_80(), None);
    let reasons: Vec<_> = resolution.notices.iter().map(|n| n.reason).collect();
    assert_eq!(reasons, ["PortDropped"], "AA-12, AI-53");
    assert!(
        resolution.notices[0]
            .message
            .contains("enable-tcp-udp-listener")
    );
}

#[test]
fn aa13_more_than_a_pair_cannot_be_merged() {
    for extra in [tcp(80, 80, 31223), udp(80, 80, 31223)] {
        let mut service = annotated(
            both_on_80(),
            &[("aws-load-balancer-enable-tcp-udp-listener", "true")],
        );
        service.ports.insert(2, extra);
        assert!(
            refused(&settings(), &service, &one()).contains("one TCP and one UDP"),
            "AA-13"
        );
    }
    let mut twice = annotated(
        both_on_80(),
        &[("aws-load-balancer-enable-tcp-udp-listener", "true")],
    );
    twice.ports = vec![tcp(80, 80, 31223), tcp(80, 81, 31224)];
    assert!(
        refused(&settings(), &twice, &one()).contains("one TCP and one UDP"),
        "AA-13"
    );
}

#[test]
fn ai_h05_a_merged_pair_has_one_target_port_and_one_node_port() {
    for (other, what) in [
        (udp(80, 81, 31223), "targetPort"),
        (udp(80, 80, 31224), "nodePort"),
    ] {
        let mut service = annotated(
            both_on_80(),
            &[("aws-load-balancer-enable-tcp-udp-listener", "true")],
        );
        service.ports = vec![tcp(80, 80, 31223), other];
        assert!(
            refused(&settings(), &service, &one()).contains(what),
            "AWS-606"
        );
    }
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
fn aa15_aa16_the_class_alone_gives_node_ports_or_the_installs_default() {
    let plain = service(("default", "web"), UID_A, &[(80, 8080, 32110)]);
    let stack = built(&settings(), &plain);
    let group = &stack.listeners[0].1;
    assert_eq!(
        (group.target, group.port),
        (TargetType::Instance, 32110),
        "AA-15"
    );
    let mut by_default = settings();
    by_default.mode = TargetMode::Pod;
    let stack = built(&by_default, &plain);
    let group = &stack.listeners[0].1;
    assert_eq!((group.target, group.port), (TargetType::Ip, 8080), "AA-16");
}

#[test]
fn aa17_aa19_ipv6_needs_a_dualstack_load_balancer() {
    let mut six = tls_service();
    six.families = vec![IpFamily::V6];
    assert!(
        refused(&settings(), &six, &one()).contains("dualstack"),
        "AA-17, AWS-222"
    );
    let mut preferred = tls_service();
    preferred.families = vec![IpFamily::V4, IpFamily::V6];
    assert_eq!(
        built(&settings(), &preferred).listeners[0].1.ip_type,
        IpType::Ipv4,
        "AWS-222"
    );
    let range = annotated(
        tls_service(),
        &[("load-balancer-source-ranges", "2001:db8::/32")],
    );
    assert!(
        refused(&settings(), &range, &one()).contains("2001:db8::/32"),
        "AA-19, AWS-061"
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
fn aa28_aa29_aa30_impossible_modes_are_refused() {
    let mut no_ip = settings();
    no_ip.gates.ip_targets = Gate::Off;
    assert!(
        refused(&no_ip, &tls_service(), &one()).contains("EnableIPTargetType"),
        "AA-28"
    );
    let mut without = service(("default", "web"), UID_A, &[(80, 8080, 0)]);
    without.allocates_node_ports = false;
    let without = annotated(without, &[(TARGET, "instance")]);
    assert!(
        refused(&settings(), &without, &one()).contains("nodePort"),
        "AA-29, AWS-041"
    );
    let mut with = without;
    with.ports[0].node_port = Some(32110);
    assert_eq!(
        built(&settings(), &with).listeners[0].1.port,
        32110,
        "AA-29: fine"
    );
    let mut cluster = with;
    cluster.kind = ServiceKind::ClusterIp;
    assert!(
        refused(&settings(), &cluster, &one()).contains("nodePort"),
        "AA-30"
    );
}

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
fn aa35_aa36_proxy_protocol_everywhere_or_on_some_ports() {
    let attribute = "aws-load-balancer-target-group-attributes";
    let key = "aws-load-balancer-proxy-protocol";
    let off = (attribute, "proxy_protocol_v2.enabled=false");
    let stack = built(&settings(), &annotated(tls_service(), &[(key, "*"), off]));
    assert_eq!(
        stack.listeners[0].1.attributes["proxy_protocol_v2.enabled"], "true",
        "AA-35, AWS-069"
    );
    let other = annotated(tls_service(), &[(key, "80")]);
    assert!(
        refused(&settings(), &other, &one()).contains("one of *"),
        "AA-35"
    );
    let mut two = tls_service();
    two.ports.push(tcp(22, 22, 0));
    let some = annotated(
        two,
        &[(
            "aws-load-balancer-proxy-protocol-per-target-group",
            "80, 443",
        )],
    );
    let stack = built(&settings(), &some);
    let of =
        |index: usize| stack.listeners[index].1.attributes["proxy_protocol_v2.enabled"].as_str();
    assert_eq!((of(0), of(1)), ("true", "false"), "AA-36");
}

#[test]
fn aa38_aa39_what_is_no_boolean_and_what_names_no_port() {
    let key = "aws-load-balancer-target-group-attributes";
    let foo = annotated(tls_service(), &[(key, "preserve_client_ip.enabled=foo")]);
    assert!(
        refused(&settings(), &foo, &one()).contains("true or false"),
        "AA-38, AWS-071"
    );
    let ports = annotated(
        tls_service(),
        &[
            ("aws-load-balancer-ssl-cert", "a"),
            ("aws-load-balancer-ssl-ports", "80,443,https"),
        ],
    );
    let text = refused(&settings(), &ports, &one());
    assert!(
        text.contains("443, https") && !text.contains("80,"),
        "AA-39, AWS-065: {text}"
    );
}

fn udp_808() -> ServiceSpec {
    let mut service = tls_service();
    service.ports = vec![udp(80, 80, 0)];
    annotated(service, &[("aws-load-balancer-healthcheck-port", "808")])
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
fn aa44_addresses_that_do_not_fit_are_four_errors() {
    let eips = ("aws-load-balancer-eip-allocations", "eipalloc-1");
    let internal = annotated(tls_service(), &[eips]);
    assert!(
        refused(&settings(), &internal, &one()).contains("internet-facing"),
        "AA-44, AWS-046"
    );
    let scheme = ("aws-load-balancer-scheme", "internet-facing");
    let two = ("aws-load-balancer-eip-allocations", "eipalloc-1,eipalloc-2");
    let counts = annotated(tls_service(), &[scheme, two]);
    assert!(
        refused(&settings(), &counts, &one()).contains("2 entries for 1 subnets"),
        "AA-44"
    );
    let outside = annotated(
        tls_service(),
        &[("aws-load-balancer-private-ipv4-addresses", "10.0.0.1")],
    );
    assert!(
        refused(&settings(), &outside, &one()).contains("in none of the subnets"),
        "AA-44, AWS-047"
    );
    let inside = annotated(
        tls_service(),
        &[("aws-load-balancer-private-ipv4-addresses", "192.168.0.9")],
    );
    let mapping = &built(&settings(), &inside).balancer.subnets[0];
    assert_eq!(
        mapping.private_ipv4.as_deref(),
        Some("192.168.0.9"),
        "AWS-220"
    );
}

#[test]
fn aa46_default_tags_win_unless_the_gate_says_otherwise() {
    let mut defaults = settings();
    defaults.default_tags = [("team".to_owned(), "default".to_owned())].into();
    let key = "aws-load-balancer-additional-resource-tags";
    let service = annotated(tls_service(), &[(key, "team=own,env=prod")]);
    let tag = |settings: &Settings| built(settings, &service).balancer.tags["team"].clone();
    assert_eq!(tag(&defaults), "default", "AA-46, AWS-056");
    defaults.gates.default_tags_low = Gate::On;
    assert_eq!(tag(&defaults), "own", "AA-46");
    defaults.external_tags.insert("env".to_owned());
    assert!(
        refused(&defaults, &service, &one()).contains("external-managed-tags"),
        "AA-46"
    );
    let tracking = annotated(tls_service(), &[(key, "onehop.dev/install=x")]);
    let tags = built(&settings(), &tracking).balancer.tags;
    assert_eq!(
        tags[names::INSTALL],
        "my-install",
        "AWS-056: tracking tags always win"
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
fn aws200_aws201_aws202_aws203_subnets_are_discovered_and_refused_with_reasons() {
    let mut net = three();
    let tags = |net: &mut Network, id: &str, pairs: &[(&str, &str)]| {
        let subnet = net.subnets.get_mut(id).unwrap();
        subnet.tags = pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
    };
    let role = ("kubernetes.io/role/internal-elb", "");
    tags(
        &mut net,
        "subnet-1",
        &[role, ("kubernetes.io/cluster/other", "owned")],
    );
    tags(&mut net, "subnet-2", &[role]);
    net.subnets.get_mut("subnet-2").unwrap().free = 7;
    tags(&mut net, "subnet-3", &[]);
    let text = refused(&settings(), &tls_service(), &net);
    for part in [
        "subnet-1: tagged for cluster other",
        "subnet-2: 7 free",
        "subnet-3: no tag",
    ] {
        assert!(text.contains(part), "AWS-203, AI-50: {text}");
    }
    // Two in one zone: our cluster's own comes first, then the lowest id (AWS-202).
    net.subnets.get_mut("subnet-2").unwrap().free = 100;
    tags(
        &mut net,
        "subnet-3",
        &[role, ("kubernetes.io/cluster/my-cluster", "shared")],
    );
    net.subnets.get_mut("subnet-3").unwrap().zone = "zone-2".to_owned();
    let stack = stack_of(&settings(), &tls_service(), &net, None).unwrap();
    let ids: Vec<_> = stack
        .balancer
        .subnets
        .iter()
        .map(|m| m.subnet.as_str())
        .collect();
    assert_eq!(ids, ["subnet-3"], "AWS-202, AWS-208: one zone is enough");
}

#[test]
fn ai51_dualstack_takes_only_subnets_with_ipv6() {
    let mut net = three();
    net.subnets
        .get_mut("subnet-2")
        .unwrap()
        .ipv6
        .push("2001:db8::/64".parse().unwrap());
    let service = annotated(
        tls_service(),
        &[("aws-load-balancer-ip-address-type", "dualstack")],
    );
    let stack = stack_of(&settings(), &service, &net, None).unwrap();
    let ids: Vec<_> = stack
        .balancer
        .subnets
        .iter()
        .map(|m| m.subnet.as_str())
        .collect();
    assert_eq!(ids, ["subnet-2"], "AI-51, AWS-201");
}

#[test]
fn aws045_aws204_named_subnets_in_their_order_and_a_live_one_keeps_its_own() {
    let mut net = three();
    net.subnets
        .get_mut("subnet-2")
        .unwrap()
        .tags
        .insert("Name".to_owned(), "blue".to_owned());
    let named = annotated(
        tls_service(),
        &[("aws-load-balancer-subnets", "subnet-3,blue")],
    );
    let stack = stack_of(&settings(), &named, &net, None).unwrap();
    let ids: Vec<_> = stack
        .balancer
        .subnets
        .iter()
        .map(|m| m.subnet.as_str())
        .collect();
    assert_eq!(ids, ["subnet-3", "subnet-2"], "AWS-045");
    net.subnets.get_mut("subnet-2").unwrap().zone = "zone-3".to_owned();
    assert!(
        refused(&settings(), &named, &net).contains("one subnet a zone"),
        "AWS-045"
    );
    let there = live(Scheme::Internal, &["sg-1"], &["subnet-1"]);
    let stack = stack_of(&settings(), &tls_service(), &net, Some(&there)).unwrap();
    let ids: Vec<_> = stack
        .balancer
        .subnets
        .iter()
        .map(|m| m.subnet.as_str())
        .collect();
    assert_eq!(ids, ["subnet-1"], "AWS-204");
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

#[test]
fn aws072_aws073_attributes_of_one_group_and_of_one_listener() {
    let service = annotated(
        tls_service(),
        &[
            (
                "aws-load-balancer-target-group-attributes",
                "stickiness.enabled=true,deregistration_delay.timeout_seconds=5",
            ),
            (
                "aws-load-balancer-target-group-attributes.80",
                "stickiness.enabled=,deregistration_delay.timeout_seconds=9",
            ),
            (
                "aws-load-balancer-listener-attributes.TCP-80",
                "tcp.idle_timeout.seconds=400",
            ),
            (
                "aws-load-balancer-listener-attributes.TCP-81",
                "tcp.idle_timeout.seconds=500",
            ),
        ],
    );
    let stack = built(&settings(), &service);
    let (listener, group) = &stack.listeners[0];
    assert_eq!(
        group.attributes["stickiness.enabled"], "true",
        "AWS-072: an empty value keeps it"
    );
    assert_eq!(
        group.attributes["deregistration_delay.timeout_seconds"], "9",
        "AWS-072"
    );
    let expected = [("tcp.idle_timeout.seconds".to_owned(), "400".to_owned())];
    assert_eq!(listener.attributes, expected.into(), "AWS-073");
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
        let stack = build(&settings(), &intent, &one(), Live { balancer: None });
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

#[test]
fn zd14_flows_come_from_the_subnets_of_the_services_own_load_balancers() {
    use crate::cloud::aws::{listed::sources, model::Observed, resolve::resolve, testkit};
    let service = tls_service();
    let resolution = resolve(&settings(), &service, None);
    let intent = testkit::intent(&service, resolution, &[]);
    let balancer = |uid: &str, subnets: &[&str]| {
        let mut balancer = live(Scheme::Internal, &[], subnets);
        let tag = (names::SERVICE_UID.to_owned(), uid.to_owned());
        balancer.tags.extend([tag]);
        balancer
    };
    let seen = Observed {
        balancers: vec![
            balancer(UID_A, &["subnet-1", "subnet-2"]),
            balancer(UID_B, &["subnet-3"]),
        ],
        network: std::sync::Arc::new(three()),
        ..Observed::default()
    };
    let expected = ["192.168.0.0/18".parse().unwrap()];
    assert_eq!(sources(&intent, &seen), expected, "ZD-14");
}
