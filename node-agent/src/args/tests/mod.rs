//! Flags and what they resolve to.

use onehop_core::id::NodeName;

use super::*;
use crate::compile::choices::Choices;
use crate::node::Eligibility;
use crate::table::layout::Detector;

fn parse(flags: &[&str]) -> Args {
    Args::try_parse_from(
        ["onehop-node-agent", "--node-name", "N1"]
            .iter()
            .chain(flags),
    )
    .expect("flags parse")
}

fn ports(binds: &[SocketAddr]) -> Vec<u16> {
    binds.iter().map(SocketAddr::port).collect()
}

#[test]
fn s129_ports_follow_the_way_to_run() {
    // S-311, S-310
    let beside = parse(&[]).resolve().expect("resolves");
    assert_eq!(
        (ports(&beside.health_binds), ports(&beside.metrics_binds)),
        (vec![10356], vec![10349])
    );
    let replace = parse(&["--mode", "replace"]).resolve().expect("resolves");
    assert_eq!(
        (ports(&replace.health_binds), ports(&replace.metrics_binds)),
        (vec![10356, 10256], vec![10249])
    );
}

#[test]
fn s300_metrics_always_answer_on_loopback_whatever_else_they_do() {
    let binds = |flags: &[&str]| {
        let config = parse(flags).resolve().expect("resolves");
        let binds = config.metrics_binds.iter().map(ToString::to_string);
        binds.collect::<Vec<_>>()
    };
    let any = "--metrics-bind-address=0.0.0.0:10349";
    assert_eq!(binds(&[any]), ["0.0.0.0:10349", "127.0.0.1:10349"], "S-300");
    let own = "--metrics-bind-address=127.0.0.1:9000,10.0.0.1:9001";
    assert_eq!(binds(&[own]), ["127.0.0.1:9000", "10.0.0.1:9001"], "S-300");
    assert_eq!(
        binds(&["--metrics-bind-address=[::1]:9000"]),
        ["[::1]:9000"]
    );
}

#[test]
fn s303_upstream_names_and_defaults() {
    let config = parse(&[
        "--cluster-cidr=10.244.0.0/16,fd00::/56",
        "--proxy-mode=nftables",
    ])
    .resolve()
    .expect("resolves");
    assert!(matches!(&config.detector, Detector::Ranges(ranges) if ranges.len() == 2));
    assert_eq!(config.masquerade_mark, 0x4000);
    assert!(!config.masquerade_all);
    assert_eq!(config.node, NodeName::from("n1"));
    assert_eq!(
        parse(&["--proxy-mode=nftables"]).unused.given(),
        ["--proxy-mode"]
    );
}

#[test]
fn s305_own_flags_have_defaults_and_what_is_wrong_is_named() {
    let config = parse(&[]).resolve().expect("resolves");
    assert_eq!(config.mode, Mode::Beside);
    assert_eq!(config.proxy_name, "onehop");
    assert!(!config.override_kube_proxy && config.node_file.is_none());
    assert_eq!(
        config.settings.reserved_ports,
        Some((30_000, 32_767)),
        "S-34: on by default"
    );
    let config = parse(&[
        "--service-proxy-name=other",
        "--override-kube-proxy",
        "--node-file=/var/lib/onehop/node.json",
        "--reserve-node-ports=",
        "--conntrack-tcp-be-liberal=true",
    ]);
    let config = config.resolve().expect("resolves");
    assert_eq!(config.proxy_name, "other");
    assert!(config.override_kube_proxy && config.node_file.is_some());
    assert_eq!(config.settings.reserved_ports, None);
    assert!(
        config.masquerade_ports.is_empty(),
        "S-34: turned off with it"
    );
    assert_eq!(config.settings.liberal, Liberal::On, "S-97");
    assert_eq!(
        config.choices,
        Choices::default(),
        "S-54, S-73: kube-proxy's"
    );
    assert_eq!(config.eligibility, Eligibility::default(), "S-111, S-114");
    let config = parse(&[
        "--local-empty=reject",
        "--unlisted-family=closed",
        "--leaving-taints=ToBeDeletedByClusterAutoscaler",
        "--healthz-needs-network",
    ]);
    let config = config.resolve().expect("resolves");
    assert_eq!(config.choices.local_empty, LocalEmpty::Reject, "S-54");
    assert_eq!(config.choices.unlisted_family, UnlistedFamily::Closed);
    assert_eq!(
        config.eligibility.taints,
        ["ToBeDeletedByClusterAutoscaler"]
    );
    assert!(config.eligibility.needs_network, "S-114");
    let wrong = parse(&["--reserve-node-ports=40000-30000"])
        .resolve()
        .unwrap_err();
    assert!(wrong.to_string().contains("40000-30000"), "{wrong}");
}

/// S-34: a rule can name one range of ports only; there is one for each side of what is reserved.
#[test]
fn s34_masquerade_takes_no_port_that_is_reserved() {
    let of = |reserved: &str| {
        let flag = format!("--reserve-node-ports={reserved}");
        let config = parse(&[&flag, "--pod-health-port=0"]).resolve();
        config.expect("resolves").masquerade_ports
    };
    let default = parse(&[]).resolve().expect("resolves").masquerade_ports;
    assert_eq!(
        default,
        [(32_768, 65_535), (1_024, 29_999)],
        "S-34: on by default"
    );
    assert_eq!(of("50000-60000"), [(1_024, 49_999), (60_001, 65_535)]);
    // A side of hardly any ports is left out.
    assert_eq!(of("50000-65000"), [(1_024, 49_999)]);
    assert_eq!(of("1-20000"), [(20_001, 65_535)]);
    assert_eq!(of("40000-65535"), [(1_024, 39_999)]);
    // Nothing worth having is left: better a node port than no port.
    assert!(of("1-65535").is_empty());
}

#[test]
fn s61_detectors_are_chosen_by_flag_and_need_what_they_look_for() {
    let of = |flags: &[&str]| parse(flags).resolve().map(|config| config.detector);
    let mode = |mode: &str| format!("--detect-local-mode={mode}");
    assert_eq!(
        of(&[&mode("NodeCIDR")]),
        Ok(Detector::NodeRanges(Vec::new()))
    );
    assert_eq!(
        of(&[&mode("BridgeInterface"), "--pod-bridge-interface=cni0"]),
        Ok(Detector::Bridge("cni0".to_owned()))
    );
    assert_eq!(
        of(&[
            &mode("InterfaceNamePrefix"),
            "--pod-interface-name-prefix=veth"
        ]),
        Ok(Detector::Prefix("veth".to_owned()))
    );
    for missing in ["BridgeInterface", "InterfaceNamePrefix"] {
        let error = of(&[&mode(missing)]).unwrap_err();
        assert!(error.to_string().contains("--pod-"), "{error}");
    }
}

#[test]
fn s27_nodeport_addresses() {
    let of = |flags: &[&str]| {
        parse(flags)
            .resolve()
            .map(|config| config.nodeport_addresses)
    };
    assert_eq!(of(&[]), Ok(NodePortAddresses::Primary));
    assert_eq!(
        of(&["--nodeport-addresses=all"]),
        Ok(NodePortAddresses::All)
    );
    let ranges = of(&["--nodeport-addresses=10.0.0.0/8,fd00::/8"]).expect("ranges");
    assert!(matches!(ranges, NodePortAddresses::Ranges(ranges) if ranges.len() == 2));
    assert_eq!(
        of(&["--nodeport-addresses=primary,10.0.0.0/8"]),
        Err(ArgsError::NodePortAddresses("primary".into()))
    );
}
