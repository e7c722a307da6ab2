use onehop_core::id::PortKey;
use onehop_core::service::{PROXY_NAME_LABEL, ServicePort};
use serde_json::json;

mod all_ports;

use super::super::testkit::*;
use super::*;

#[test]
fn za01_az130_a_tcp_port_with_floating_ip() {
    let part = part(&service(&[80]));
    let rule = made(&part.rules[0]);
    let place = settings().place;
    assert_eq!(
        rule,
        json!({"name": "atest1-TCP-80", "properties": {
            "frontendIPConfiguration": {"id": place.child_id(Kind::External, FRONTENDS, "atest1")},
            "backendAddressPool": {"id": place.child_id(Kind::External, POOLS, "kubernetes")},
            "probe": {"id": place.child_id(Kind::External, PROBES, "atest1-TCP-80")},
            "protocol": "Tcp", "frontendPort": 80, "backendPort": 80,
            "enableFloatingIP": true, "idleTimeoutInMinutes": 4, "enableTcpReset": true,
            "loadDistribution": "Default", "disableOutboundSnat": false,
        }}),
        "ZA-01"
    );
    assert_eq!(probe(&part, "atest1-TCP-80"), "Tcp 10080 - 5x2", "ZA-01");
    let frontend = json!({"name": "atest1", "properties": {"publicIPAddress": {"id": place.public_ip_id(None, "kubernetes-atest1")}}});
    assert_eq!(made(&part.frontends[0]), frontend);
}

#[test]
fn za02_the_second_half_of_a_dual_stack_service() {
    let mut spec = resolved(&service(&[80]));
    spec.families = vec![IpFamily::V4, IpFamily::V6];
    let part = part_of(&spec);
    assert_eq!(
        rule(&part, "atest1-TCP-80-IPv6"),
        "Tcp 80->80 floating=true pool=kubernetes-IPv6 probe=atest1-TCP-80-IPv6"
    );
    assert_eq!(part.frontends[1].name, "atest1-IPv6");
    assert_eq!(part.pools.len(), 2);
}

#[test]
fn za06_az135_internal_ipv6_has_no_floating_ip() {
    let mut six = annotated(service(&[80]), &[("azure-load-balancer-internal", "true")]);
    six.families = vec![IpFamily::V6];
    let part = part(&six);
    assert_eq!(
        rule(&part, "atest1-TCP-80"),
        "Tcp 80->10080 floating=false pool=kubernetes-IPv6 probe=atest1-TCP-80",
        "ZA-06"
    );
    assert_eq!(probe(&part, "atest1-TCP-80"), "Tcp 10080 - 5x2");
    assert_eq!(part.frontends[0].name, "atest1", "AZ-314");
}

#[test]
fn za07_az055_floating_ip_switched_off() {
    let part = part(&annotated(
        service(&[80]),
        &[("azure-disable-load-balancer-floating-ip", "True")],
    ));
    assert_eq!(
        rule(&part, "atest1-TCP-80"),
        "Tcp 80->10080 floating=false pool=kubernetes probe=atest1-TCP-80"
    );
    assert_eq!(probe(&part, "atest1-TCP-80"), "Tcp 10080 - 5x2");
}

#[test]
fn za08_za18_az057_az058_reset_and_idle_time() {
    let of = |annotations: &[(&str, &str)]| {
        made(&part(&annotated(service(&[80]), annotations)).rules[0])["properties"].clone()
    };
    assert_eq!(
        of(&[("azure-load-balancer-disable-tcp-reset", "true")])["enableTcpReset"],
        json!(false),
        "ZA-08"
    );
    let all = [
        ("azure-load-balancer-tcp-idle-timeout", "5"),
        ("azure-load-balancer-health-probe-interval", "10"),
        ("azure-load-balancer-health-probe-num-of-probe", "10"),
    ];
    assert_eq!(of(&all)["idleTimeoutInMinutes"], json!(5), "ZA-18");
    let part = part(&annotated(service(&[80]), &all));
    assert_eq!(probe(&part, "atest1-TCP-80"), "Tcp 10080 - 10x10", "ZA-18");
}

/// ZA-09 to ZA-15: what is set, and the probe.
#[test]
fn za09_za11_za12_za13_za15_az059_az060_az144_az145_protocol_and_path_of_a_probe() {
    const PATH: (&str, &str) = ("azure-load-balancer-health-probe-request-path", "/healthy");
    /// Row, `appProtocol`, annotations, probe.
    type Row = (
        &'static str,
        Option<&'static str>,
        &'static [(&'static str, &'static str)],
        &'static str,
    );
    let rows: [Row; 8] = [
        ("ZA-09", Some("Http"), &[PATH], "Http 10080 /healthy 5x2"),
        ("ZA-10", Some("Https"), &[], "Https 10080 / 5x2"),
        ("ZA-11", Some("Mongodb"), &[PATH], "Tcp 10080 - 5x2"),
        ("ZA-11", Some("TCP1"), &[PATH], "Tcp 10080 - 5x2"),
        (
            "ZA-12",
            Some("Mongodb"),
            &[("port_80_health-probe_protocol", "HtTp")],
            "Http 10080 / 5x2",
        ),
        (
            "ZA-13",
            None,
            &[
                ("port_80_health-probe_protocol", "HtTpS"),
                ("azure-load-balancer-health-probe-protocol", "TcP"),
            ],
            "Https 10080 / 5x2",
        ),
        (
            "ZA-15",
            Some("Https"),
            &[
                ("azure-load-balancer-health-probe-request-path", "/healthy1"),
                ("port_80_health-probe_request-path", "/healthy2"),
            ],
            "Https 10080 /healthy2 5x2",
        ),
        (
            "ZA-16",
            None,
            &[
                ("azure-load-balancer-health-probe-interval", "20"),
                ("azure-load-balancer-health-probe-num-of-probe", "5"),
            ],
            "Tcp 10080 - 20x5",
        ),
    ];
    for (row, app, annotations, expected) in rows {
        let mut service = annotated(service(&[80]), annotations);
        service.ports[0].app_protocol = app.map(str::to_owned);
        assert_eq!(probe(&part(&service), "atest1-TCP-80"), expected, "{row}");
    }
}

#[test]
fn za20_za21_ports_of_probes_and_rules_without_one() {
    let other = part(&annotated(
        service(&[80, 8000]),
        &[("port_8000_health-probe_port", "5080")],
    ));
    assert_eq!(probe(&other, "atest1-TCP-8000"), "Tcp 5080 - 5x2", "ZA-20");
    let named = part(&annotated(
        service(&[80, 8000]),
        &[("port_8000_health-probe_port", "p80")],
    ));
    assert_eq!(
        probe(&named, "atest1-TCP-8000"),
        "Tcp 10080 - 5x2",
        "AZ-066"
    );
    let without = part(&annotated(
        service(&[80, 8000]),
        &[("port_8000_no_probe_rule", "true")],
    ));
    assert_eq!(
        rule(&without, "atest1-TCP-8000"),
        "Tcp 8000->8000 floating=true pool=kubernetes probe=-",
        "ZA-21"
    );
    assert_eq!(without.probes.len(), 1, "ZA-21");
    let no_rule = part(&annotated(
        service(&[80, 8000]),
        &[("port_8000_no_lb_rule", "true")],
    ));
    assert_eq!(
        (no_rule.rules.len(), no_rule.probes.len()),
        (1, 1),
        "AZ-063"
    );
}

#[test]
fn za23_az088_policy_local_has_one_probe_for_all_ports() {
    let annotations = [
        ("port_80_health-probe_protocol", "https"),
        ("azure-load-balancer-health-probe-request-path", "/broken"),
        ("port_443_health-probe_interval", "7"),
    ];
    let part = part(&annotated(
        local(service(&[80, 443, 421]), 34567),
        &annotations,
    ));
    assert_eq!(part.probes.len(), 1, "ZA-23");
    assert_eq!(
        probe(&part, "atest1-TCP-34567"),
        "Http 34567 /healthz 5x2",
        "ZA-23"
    );
    for port in [80, 443, 421] {
        let expected =
            format!("Tcp {port}->{port} floating=true pool=kubernetes probe=atest1-TCP-34567");
        assert_eq!(rule(&part, &format!("atest1-TCP-{port}")), expected);
    }
}

#[test]
fn za28_udp_of_the_peers_class_is_probed_under_local_only() {
    let mut udp = service(&[53]);
    udp.ports[0].key = PortKey::new("dns", Protocol::Udp);
    let cluster = part(&udp);
    assert_eq!(
        rule(&cluster, "atest1-UDP-53"),
        "Udp 53->53 floating=true pool=kubernetes probe=-",
        "ZA-28"
    );
    assert!(
        made(&cluster.rules[0])["properties"]
            .get("enableTcpReset")
            .is_none(),
        "AZ-155"
    );
    let local = part(&local(udp, 34567));
    assert_eq!(
        rule(&local, "atest1-UDP-53"),
        "Udp 53->53 floating=true pool=kubernetes probe=atest1-TCP-34567",
        "ZA-28"
    );
}

#[test]
fn za111_az142_our_class_asks_for_the_health_of_whoever_is_the_nodes_proxy() {
    let names = |port| names::node_probe(&settings().install, port);
    let plain = part(&own(&[80]));
    assert_eq!(
        probe(&plain, &names(10256)),
        "Http 10256 /healthz 5x2",
        "ZA-111, L-46"
    );
    let expected = format!(
        "Tcp 80->80 floating=true pool=demo-azure probe={}",
        names(10256)
    );
    assert_eq!(rule(&plain, "atest1-TCP-80"), expected, "AZ-099");
    let mut ours = own(&[80]);
    ours.labels
        .insert(PROXY_NAME_LABEL.to_owned(), "onehop".to_owned());
    ours.allocates_node_ports = false;
    ours.ports[0].node_port = None;
    let vip = annotated(ours, &[("onehop.dev/target", "vip")]);
    assert_eq!(
        probe(&part(&vip), &names(10356)),
        "Http 10356 /healthz 5x2",
        "ZA-111: no NodePort read"
    );
    let mut app = own(&[80]);
    app.ports[0].app_protocol = Some("http".to_owned());
    assert_eq!(
        probe(&part(&app), &names(10256)),
        "Http 10256 /healthz 5x2",
        "ZI-01, AZ-146"
    );
}

#[test]
fn az131_az262_pods_and_two_ports_with_one_target_port() {
    let mut pods = annotated(own(&[80, 81]), &[("onehop.dev/target", "pod")]);
    for port in &mut pods.ports {
        port.target = onehop_core::service::TargetPort::Number(8080);
    }
    let part = part(&pods);
    assert_eq!(
        rule(&part, "atest1-TCP-80"),
        "Tcp 80->8080 floating=false pool=atest1-pods-1 probe=atest1-TCP-80"
    );
    assert_eq!(
        rule(&part, "atest1-TCP-81"),
        "Tcp 81->8080 floating=false pool=atest1-pods-1-TCP-81 probe=atest1-TCP-81"
    );
    assert_eq!(
        made(&part.rules[0])["properties"]["disableOutboundSnat"],
        json!(true),
        "AZ-131"
    );
    assert_eq!(probe(&part, "atest1-TCP-80"), "Tcp 8080 - 5x2");
}

#[test]
fn az294_udp_pods_are_probed_at_a_tcp_port_of_theirs() {
    let mut pods = annotated(own(&[53, 80]), &[("onehop.dev/target", "pod")]);
    pods.ports[0].key = PortKey::new("dns", Protocol::Udp);
    let part = part(&pods);
    assert_eq!(
        rule(&part, "atest1-UDP-53"),
        "Udp 53->8053 floating=false pool=atest1-pods-1 probe=atest1-UDP-53"
    );
    assert_eq!(probe(&part, "atest1-UDP-53"), "Tcp 8080 - 5x2");
}

#[test]
fn az041_az086_a_subnet_is_part_of_the_names() {
    let annotations = [
        ("azure-load-balancer-internal", "true"),
        ("azure-load-balancer-internal-subnet", "apps"),
    ];
    let part = part(&annotated(service(&[80]), &annotations));
    assert_eq!(part.kind, Kind::Internal);
    assert_eq!(
        (part.frontends[0].name.as_str(), part.rules[0].name.as_str()),
        ("atest1-apps", "atest1-apps-TCP-80")
    );
    let subnet = &made(&part.frontends[0])["properties"]["subnet"]["id"];
    assert_eq!(subnet, &json!(settings().place.subnet_id(Some("apps"))));
}

#[test]
fn az136_affinity_is_the_hash_of_two() {
    let mut sticky = service(&[80]);
    sticky.affinity = Some(std::time::Duration::from_secs(10));
    assert_eq!(
        made(&part(&sticky).rules[0])["properties"]["loadDistribution"],
        json!("SourceIP")
    );
}

#[test]
fn ports_of_one_number_are_told_apart_by_protocol() {
    let mut both = service(&[53]);
    let udp = ServicePort {
        key: PortKey::new("udp", Protocol::Udp),
        ..both.ports[0].clone()
    };
    both.ports.push(udp);
    let part = part(&both);
    let names: Vec<_> = part.rules.iter().map(|rule| rule.name.as_str()).collect();
    assert_eq!(names, ["atest1-TCP-53", "atest1-UDP-53"], "ZA-60");
}

#[test]
fn az132_vip_that_stands_in_for_pods_has_a_pool_of_its_own_for_all_its_ports() {
    let mut spec = resolved(&annotated(own(&[80, 81]), &[("onehop.dev/target", "vip")]));
    spec.families = vec![IpFamily::V4, IpFamily::V6];
    let key = super::super::annotations::keys::SPEC_OWN_POOLS.to_owned();
    spec.options.push(onehop_core::crd::ProviderOption {
        name: key.clone(),
        value: "TCP-80,TCP-81".to_owned(),
        from: key,
    });
    let part = part_of(&spec);
    let probe = names::node_probe(&settings().install, 10256);
    for port in [80, 81] {
        let expected =
            format!("Tcp {port}->{port} floating=true pool=atest1-nodes-1 probe={probe}");
        assert_eq!(rule(&part, &format!("atest1-TCP-{port}")), expected);
    }
    let pools: Vec<_> = part.pools.iter().map(|pool| pool.name.as_str()).collect();
    assert_eq!(pools, ["atest1-nodes-1", "atest1-nodes-1-IPv6"], "AZ-095");
}
