//! Rules for all ports (AZ-056, AZ-134).

use onehop_core::crd::TargetMode;

use super::*;
use crate::cloud::azure::resolve::resolve;

const HA: &str = "azure-load-balancer-enable-high-availability-ports";
const INTERNAL: (&str, &str) = ("azure-load-balancer-internal", "true");

fn of(
    mut service: onehop_core::service::ServiceSpec,
    protocols: &[Protocol],
) -> onehop_core::service::ServiceSpec {
    for (port, protocol) in service.ports.iter_mut().zip(protocols) {
        port.key = PortKey::new(format!("p{}", port.port).as_str(), *protocol);
    }
    annotated(service, &[INTERNAL, (HA, "True")])
}

#[test]
fn za04_az056_az087_az133_az134_one_rule_for_all_ports_has_the_name_and_the_probe_of_the_first() {
    use Protocol::{Sctp, Tcp, Udp};
    let rows = [
        // ZA-04.
        (
            of(service(&[80]), &[Sctp]),
            "atest1-SCTP-80",
            "-",
            "kubernetes",
        ),
        (
            of(service(&[80, 443]), &[Tcp, Udp]),
            "atest1-TCP-80",
            "atest1-TCP-80",
            "kubernetes",
        ),
        (
            of(service(&[53, 443]), &[Udp, Tcp]),
            "atest1-UDP-53",
            "-",
            "kubernetes",
        ),
        (
            of(local(service(&[80]), 34567), &[Sctp]),
            "atest1-SCTP-80",
            "atest1-TCP-34567",
            "kubernetes",
        ),
        // Our class asks for the nodes' health, whatever the protocol.
        (
            of(own(&[80, 90]), &[Tcp, Sctp]),
            "atest1-TCP-80",
            "onehop-1c1b0ae8-node-10256",
            "demo-azure",
        ),
    ];
    for (service, name, probe, pool) in rows {
        let part = part(&service);
        assert_eq!(part.rules.len(), 1, "AZ-134: {name}");
        let wanted = format!("All 0->0 floating=true pool={pool} probe={probe}");
        let there = rule(&part, name);
        let (there, wanted) = if probe.starts_with("onehop-") {
            let cut = |text: &str| text.rsplit_once(" probe=").map(|(head, _)| head.to_owned());
            (cut(&there).unwrap(), cut(&wanted).unwrap())
        } else {
            (there, wanted)
        };
        assert_eq!(there, wanted, "ZA-04, AZ-087");
        assert_eq!(
            made(&part.rules[0])["properties"]["enableTcpReset"],
            true,
            "AZ-134"
        );
        assert_eq!(
            part.probes.len(),
            usize::from(probe != "-"),
            "AZ-134: {name}"
        );
        assert_eq!(part.pools.len(), 1);
    }
    let quiet = annotated(
        of(service(&[80]), &[Tcp]),
        &[
            ("azure-load-balancer-disable-tcp-reset", "true"),
            ("azure-load-balancer-tcp-idle-timeout", "9"),
        ],
    );
    let rule = made(&part(&quiet).rules[0]);
    assert_eq!(rule["properties"]["enableTcpReset"], false, "AZ-058");
    assert_eq!(rule["properties"]["idleTimeoutInMinutes"], 9, "AZ-057");
}

#[test]
fn az056_az055_it_is_for_private_frontends_and_comes_before_floating_ip_off() {
    let hints = |service| {
        let resolution = resolve(&settings(), &service, None);
        assert_eq!(resolution.refusals, []);
        let notices = resolution.notices.into_iter();
        notices.map(|it| it.message).collect::<Vec<_>>()
    };
    let public = annotated(service(&[80, 81]), &[(HA, "true")]);
    assert_eq!(part(&public).rules.len(), 2, "AZ-056");
    let said = hints(public);
    assert!(
        said.len() == 1 && said[0].contains(HA) && said[0].contains("private"),
        "{said:?}"
    );
    let off = "azure-disable-load-balancer-floating-ip";
    let both = annotated(of(service(&[80]), &[Protocol::Tcp]), &[(off, "true")]);
    assert!(
        rule(&part(&both), "atest1-TCP-80").starts_with("All 0->0 floating=true"),
        "AZ-055"
    );
    let said = hints(both);
    assert!(said.len() == 1 && said[0].contains(off), "AZ-055: {said:?}");
}

#[test]
fn az134_k50_modes_that_change_the_port_are_refused_and_never_come_by_default() {
    let explicit = |mode| {
        let service = annotated(
            of(own(&[80]), &[Protocol::Tcp]),
            &[("onehop.dev/target", mode)],
        );
        let resolution = resolve(&settings(), &service, None);
        let reasons = resolution.refusals.into_iter().map(|it| it.reason);
        reasons.collect::<Vec<_>>()
    };
    assert_eq!(explicit("vip"), [""; 0]);
    for mode in ["pod", "node"] {
        assert_eq!(explicit(mode), ["TargetModeImpossible"], "K-50: {mode}");
    }
    let pods = Settings {
        mode: TargetMode::Pod,
        ..settings()
    };
    let asks = of(own(&[80]), &[Protocol::Tcp]);
    let new = resolve(&pods, &asks, None).spec.unwrap();
    assert_eq!(new.ports[0].mode, TargetMode::Vip, "K-50: a new one");
    // A live one keeps its mode, and so cannot have it: told, with what to do.
    let live = resolve(&pods, &own(&[80]), None).spec.unwrap();
    assert_eq!(live.ports[0].mode, TargetMode::Pod);
    let resolution = resolve(&pods, &asks, Some(&live));
    assert_eq!(resolution.spec, Some(live), "I10");
    let refusal = &resolution.refusals[0];
    assert_eq!(refusal.reason, "HighAvailabilityPortsUnsupported");
    assert!(
        refusal.message.contains("set onehop.dev/target to vip"),
        "{refusal:?}"
    );
    // Internal IPv6: of our class it cannot be, of the peer's it is as upstream makes it.
    let mut six = of(own(&[80]), &[Protocol::Tcp]);
    six.families = vec![IpFamily::V6];
    let refused = resolve(&settings(), &six, None).refusals;
    assert_eq!(refused[0].reason, "TargetModeImpossible", "AZ-134");
    six.class = None;
    assert!(
        rule(&part(&six), "atest1-TCP-80").starts_with("All 0->0 floating=false"),
        "AZ-134"
    );
}

#[test]
fn az436_az115_a_rule_for_all_ports_leaves_nothing_of_its_frontend_to_others() {
    use crate::cloud::azure::balancer::conflict;
    let part = part(&of(service(&[80]), &[Protocol::Tcp]));
    let other = |protocol: &str, port: u16, frontend: &str| {
        let id = settings()
            .place
            .child_id(Kind::Internal, FRONTENDS, frontend);
        json!({"properties": {"loadBalancingRules": [{"name": "aother-TCP-80", "properties": {
            "protocol": protocol, "frontendPort": port, "frontendIPConfiguration": {"id": id},
        }}]}})
    };
    for (there, clashes) in [
        (other("Tcp", 443, "atest1"), true),
        (other("All", 0, "atest1"), true),
        (other("All", 0, "aother"), false),
    ] {
        let why = conflict(&there, &part).map(|it| it.reason);
        assert_eq!(why, clashes.then_some("FrontendPortConflict"), "AZ-436");
    }
}
