use onehop_core::id::PortKey;
use onehop_core::service::PROXY_NAME_LABEL;

use super::super::testkit::{annotated, local, own, resolved, service, settings};
use super::*;
use crate::plan::Bounds;
use onehop_core::crd::LateFlows;

fn refused(service: &ServiceSpec) -> Vec<&'static str> {
    let resolution = resolve(&settings(), service, None);
    assert_eq!(resolution.spec, None);
    resolution
        .refusals
        .iter()
        .map(|refusal| refusal.reason)
        .collect()
}

fn mode(service: &ServiceSpec) -> (TargetMode, Vec<&'static str>) {
    let resolution = resolve(&settings(), service, None);
    let reasons = resolution
        .notices
        .iter()
        .map(|notice| notice.reason)
        .collect();
    (resolution.spec.unwrap().ports[0].mode, reasons)
}

fn without_node_ports(mut service: ServiceSpec) -> ServiceSpec {
    service.allocates_node_ports = false;
    for port in &mut service.ports {
        port.node_port = None;
    }
    service
}

#[test]
fn za03_sctp_is_refused_and_nothing_is_made() {
    let mut sctp = service(&[80]);
    sctp.ports[0].key = PortKey::new("s", Protocol::Sctp);
    assert_eq!(refused(&sctp), ["ProtocolUnsupported"], "ZA-03");
}

#[test]
fn k51_za89_az140_az250_without_node_ports_pods_else_vip() {
    // Asked for, or the install's default.
    let asked = annotated(own(&[80]), &[("onehop.dev/target", "pod")]);
    assert_eq!(mode(&asked).0, TargetMode::Pod, "AZ-250");
    let by_default = Settings {
        mode: TargetMode::Pod,
        ..settings()
    };
    let spec = resolve(&by_default, &own(&[80]), None).spec.unwrap();
    assert_eq!(spec.ports[0].mode, TargetMode::Pod, "AZ-250");
    assert_eq!(mode(&own(&[80])).0, TargetMode::Vip);
    assert_eq!(
        mode(&without_node_ports(own(&[80]))).0,
        TargetMode::Pod,
        "ZA-89"
    );
    let mut named = without_node_ports(own(&[80]));
    named.ports[0].target = TargetPort::Name("http".to_owned());
    assert_eq!(
        mode(&named),
        (TargetMode::Vip, vec!["TargetModeFallback"]),
        "AZ-263"
    );
    let overlay = Settings {
        pod_prefixes: vec![],
        ..settings()
    };
    let resolution = resolve(&overlay, &without_node_ports(own(&[80])), None);
    assert_eq!(
        resolution.spec.unwrap().ports[0].mode,
        TargetMode::Vip,
        "ZA-113, C-136"
    );
    assert_eq!(resolution.notices[0].reason, "TargetModeFallback");
    let explicit = annotated(own(&[80]), &[("onehop.dev/target", "pod")]);
    let why = &resolve(&overlay, &explicit, None).refusals[0];
    assert_eq!(why.reason, "TargetModeImpossible", "ZA-113, C-136");
    let live = resolve(&overlay, &explicit, Some(&resolved(&explicit)));
    assert_eq!(
        live.spec.unwrap().ports[0].mode,
        TargetMode::Pod,
        "K-50: last good kept"
    );
}

#[test]
fn az055_az135_explicit_modes_that_are_impossible_are_refused() {
    let off = annotated(
        without_node_ports(own(&[80])),
        &[("azure-disable-load-balancer-floating-ip", "true")],
    );
    assert_eq!(refused(&off), ["TargetModeImpossible"], "AZ-055");
    let mut six = annotated(
        own(&[80]),
        &[
            ("azure-load-balancer-internal", "true"),
            ("onehop.dev/target", "vip"),
        ],
    );
    six.families = vec![IpFamily::V6];
    assert_eq!(refused(&six), ["TargetModeImpossible"], "AZ-135");
    six.annotations.remove("onehop.dev/target");
    assert_eq!(
        mode(&six),
        (TargetMode::Node, vec!["TargetModeFallback"]),
        "AZ-255"
    );
}

#[test]
fn za112_az257_k52_a_label_that_names_another_proxy_is_refused_before_any_write() {
    let mut other = without_node_ports(own(&[80]));
    other
        .labels
        .insert(PROXY_NAME_LABEL.to_owned(), "somebody".to_owned());
    let vip = annotated(other, &[("onehop.dev/target", "vip")]);
    let why = &resolve(&settings(), &vip, None).refusals[0];
    assert_eq!(why.reason, "TargetModeImpossible", "ZA-112");
    assert!(why.message.contains("somebody"), "{}", why.message);
}

#[test]
fn az140_the_peers_vip_without_node_ports_needs_policy_local() {
    let vip = without_node_ports(annotated(service(&[80]), &[("onehop.dev/target", "vip")]));
    assert_eq!(refused(&vip), ["ProbePortMissing"], "AZ-140");
    assert!(
        resolve(&settings(), &local(vip, 31000), None)
            .spec
            .is_some(),
        "AZ-140"
    );
}

#[test]
fn za114_az018_without_a_security_group_public_ones_are_refused_and_internal_ones_work() {
    let mut locked = settings();
    locked.place.security_group = None;
    let reasons = |service: &ServiceSpec| -> Vec<&str> {
        resolve(&locked, service, None)
            .refusals
            .iter()
            .map(|refusal| refusal.reason)
            .collect()
    };
    let internal = annotated(own(&[80]), &[("azure-load-balancer-internal", "true")]);
    assert_eq!(reasons(&own(&[80])), ["SecurityGroupLocked"], "ZA-114");
    assert_eq!(reasons(&internal), [""; 0], "ZA-114");
    assert_eq!(
        reasons(&annotated(
            internal,
            &[("azure-allowed-ip-ranges", "10.0.0.0/8")]
        )),
        ["SecurityGroupLocked"]
    );
}

#[test]
fn az148_ports_that_azure_does_not_probe_by_http() {
    let mail = [
        ("port_80_health-probe_protocol", "http"),
        ("port_80_health-probe_port", "25"),
    ];
    assert_eq!(refused(&annotated(own(&[80]), &mail)), ["ProbePortRefused"]);
    let unknown = [("port_80_health-probe_port", "metrics")];
    assert_eq!(
        refused(&annotated(own(&[80]), &unknown)),
        ["AnnotationInvalid"],
        "AZ-066"
    );
}

#[test]
fn az146_zi01_the_peers_probe_by_app_protocol_is_told() {
    let mut app = service(&[80]);
    app.ports[0].app_protocol = Some("http".to_owned());
    assert_eq!(mode(&app).1, ["ProbeByAppProtocol"], "AZ-146");
    app.class = Some(super::super::testkit::OWN.to_owned());
    assert_eq!(mode(&app).1, [""; 0]);
}

#[test]
fn za71_za105_everything_wrong_is_said_at_once_and_the_last_good_kept() {
    let good = resolved(&own(&[80]));
    let bad = annotated(
        own(&[80]),
        &[
            ("azure-load-balancer-health-probe-interval", "1"),
            ("azure-load-balancer-tcp-idle-timeout", "3"),
            ("azure-pls-create", "true"),
        ],
    );
    let resolution = resolve(&settings(), &bad, Some(&good));
    assert_eq!(resolution.spec, Some(good), "I10");
    assert_eq!(resolution.refusals.len(), 3, "ZA-105");
}

#[test]
fn c52_bounds_of_membership_are_the_installs() {
    let mut settings = settings();
    let membership = |settings: &Settings| {
        let resolution = resolve(settings, &own(&[80]), None);
        resolution.spec.unwrap().membership
    };
    assert_eq!(membership(&settings).tail_max_seconds, 30, "C-52");
    settings.bounds = Bounds {
        floor_percent: 50,
        hold_max_seconds: 60,
        tail_max_seconds: 7,
        late_flows: LateFlows::Drop,
    };
    let policy = membership(&settings).policy;
    assert_eq!(
        membership(&settings),
        settings.bounds.membership(policy),
        "C-52"
    );
}

#[test]
fn az269_zero_drop_for_our_class_and_compat_for_the_peers() {
    assert_eq!(
        resolved(&own(&[80])).membership.policy,
        MembershipPolicy::ZeroDrop
    );
    assert_eq!(
        resolved(&service(&[80])).membership.policy,
        MembershipPolicy::Compat
    );
    let switched = annotated(service(&[80]), &[("onehop.dev/membership", "zero-drop")]);
    assert_eq!(
        resolved(&switched).membership.policy,
        MembershipPolicy::ZeroDrop,
        "K-32"
    );
}

#[test]
fn az254_az132_k50_where_nodes_stand_in_for_pods_only_those_with_pods_are_asked_for() {
    let overlay = Settings {
        pod_prefixes: vec![],
        ..settings()
    };
    let own_pools = |resolution: &Resolution| {
        annotations::of_options(resolution.spec.as_ref().unwrap()).own_pools
    };
    let all = |ports: &[&str]| ports.iter().map(|port| (*port).to_owned()).collect();
    let asked = without_node_ports(own(&[80, 443]));
    let new = resolve(&overlay, &asked, None);
    assert_eq!(own_pools(&new), all(&["TCP-80", "TCP-443"]), "AZ-254");
    // A live one keeps what it has, whatever the network becomes, and at an edited port, too.
    let mut edited = asked.clone();
    edited.ports[0].port = 81;
    for settings in [&overlay, &settings()] {
        let live = resolve(settings, &edited, new.spec.as_ref());
        let spec = live.spec.as_ref().unwrap();
        let kept = spec.ports[0].mode == TargetMode::Vip;
        assert_eq!(kept, settings.pod_prefixes.is_empty(), "K-51: by the mode");
        let expected = if kept {
            all(&["TCP-81", "TCP-443"])
        } else {
            all(&[])
        };
        assert_eq!(own_pools(&live), expected, "K-50");
    }
    // Who asks for nodes gets all of them, and an annotation of that name asks for nothing.
    let vip = annotated(
        without_node_ports(own(&[80])),
        &[
            ("onehop.dev/target", "vip"),
            ("spec.ports.ownPool", "TCP-80"),
        ],
    );
    let shared = resolve(&overlay, &vip, None);
    assert_eq!(own_pools(&shared), all(&[]));
    // One that lives on the shared pool stays there.
    let mut implicit = vip.clone();
    implicit.annotations.clear();
    let stays = resolve(&overlay, &implicit, shared.spec.as_ref());
    assert_eq!(own_pools(&stays), all(&[]), "K-50");
}
