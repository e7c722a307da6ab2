//! The golden table row by row: node `n1` in zone `a` unless a row says otherwise.

use onehop_core::endpoint::{Endpoint, Endpoints};
use onehop_core::health::{HealthAnswer, Hold, ProxyHealth, count_local};
use onehop_core::id::{NodeName, ServiceKey};
use onehop_core::select::{Policies, Traffic, select};
use onehop_core::service::ServiceSpec;

use crate::support::{
    BOTH_LOCAL, DEFAULT, EXTERNAL_LOCAL, INTERNAL_LOCAL, INTERNAL_LOCAL_NODE_PORT, Service, here,
    merge, of_port, slice, word,
};

/// What a row expects: C, L and All as names, `-` for a list that is not used, `0` for an empty one.
type Row<'a> = (&'a str, &'a str, &'a str, Any);

#[derive(Debug, PartialEq)]
enum Any {
    Yes,
    No,
}
use Any::{No, Yes};

fn merged(endpoints: &[&str]) -> Endpoints {
    merge(&[slice("web-1", &["x"], endpoints)])
}

fn names(list: &[&Endpoint]) -> String {
    let name = |e: &&Endpoint| format!("e{}", e.address.to_string().rsplit('.').next().unwrap());
    if list.is_empty() {
        return "0".to_owned();
    }
    list.iter().map(name).collect::<Vec<_>>().join(" ")
}

fn check_in(zone: Option<&str>, service: &Service, endpoints: &[&str], expected: Row) {
    let merged = merged(endpoints);
    let selection = select(service.policies(), of_port(&merged), &here(zone));
    let shown = |list: &Option<Vec<&Endpoint>>| list.as_deref().map_or("-".to_owned(), names);
    let (cluster, local) = (shown(&selection.cluster), shown(&selection.local));
    let any = if selection.any { Yes } else { No };
    assert_eq!(
        (&*cluster, &*local, &*names(&selection.all()), any),
        expected
    );
}

fn check(service: &Service, endpoints: &[&str], expected: Row) {
    check_in(Some("a"), service, endpoints, expected);
}

fn verdict(service: &Service, endpoints: &[&str], traffic: Traffic) -> Option<&'static str> {
    let merged = merged(endpoints);
    select(service.policies(), of_port(&merged), &here(Some("a")))
        .verdict(traffic)
        .map(word)
}

fn health(endpoints: &Endpoints) -> HealthAnswer {
    HealthAnswer {
        service: ServiceKey::new("shop", "web"),
        local_endpoints: count_local(endpoints, &NodeName::new("n1")),
        proxy: ProxyHealth::Healthy,
        hold: Hold::None,
    }
}

#[test]
fn e01_no_endpoint() {
    check(&DEFAULT, &[], ("0", "-", "0", No));
    assert_eq!(verdict(&DEFAULT, &[], Traffic::Internal), Some("reject"));
}

#[test]
fn e02_two_ready() {
    check(&DEFAULT, &["e1 R", "e2 R"], ("e1 e2", "-", "e1 e2", Yes));
}

#[test]
fn e03_one_not_ready() {
    check(&DEFAULT, &["e1 !R", "e2 R"], ("e2", "-", "e2", Yes));
}

#[test]
fn e04_none_ready() {
    check(&DEFAULT, &["e1 !R", "e2 !R"], ("0", "-", "0", No));
}

#[test]
fn e05_s47_only_serving_terminating() {
    check(
        &DEFAULT,
        &["e1 ST L", "e2 ST"],
        ("e1 e2", "-", "e1 e2", Yes),
    );
}

#[test]
fn e06_ready_wins_over_terminating() {
    check(&DEFAULT, &["e1 R", "e2 ST"], ("e1", "-", "e1", Yes));
}

#[test]
fn e08_zone_hints_narrow_to_the_zone() {
    check(
        &DEFAULT,
        &["e1 z:a", "e2 z:b", "e3 z:c", "e4 z:a"],
        ("e1 e4", "-", "e1 e4", Yes),
    );
}

#[test]
fn e09_s46_node_without_zone_label_ignores_zone_hints() {
    check_in(None, &DEFAULT, &["e1 R z:a"], ("e1", "-", "e1", Yes));
}

#[test]
fn e11_no_endpoint_for_the_zone_turns_hints_off() {
    check_in(Some("b"), &DEFAULT, &["e1 R z:a"], ("e1", "-", "e1", Yes));
}

#[test]
fn e12_s46_one_ready_endpoint_without_hint_turns_hints_off() {
    let endpoints = ["e1 z:a", "e2 z:b", "e3", "e4 z:a"];
    check(
        &DEFAULT,
        &endpoints,
        ("e1 e2 e3 e4", "-", "e1 e2 e3 e4", Yes),
    );
}

#[test]
fn e13_s44_not_ready_endpoint_of_the_zone_is_not_used() {
    let endpoints = ["e1 R z:a", "e2 R z:b", "e3 R z:c", "e4 !R z:a"];
    check(&DEFAULT, &endpoints, ("e1", "-", "e1", Yes));
}

#[test]
fn e16_s44_not_ready_endpoint_without_hint_changes_nothing() {
    check(
        &DEFAULT,
        &["e1 R z:a", "e2 R z:b", "e3 !R"],
        ("e1", "-", "e1", Yes),
    );
}

#[test]
fn e17_s45_node_hints_go_before_zone_hints() {
    let endpoints = ["e1 R n:n1 z:a", "e2 R n:n2 z:a", "e3 R n:n3 z:b"];
    check(&DEFAULT, &endpoints, ("e1", "-", "e1", Yes));
}

#[test]
fn e18_s46_node_hints_for_others_fall_back_to_zone_hints() {
    check(
        &DEFAULT,
        &["e1 R n:n2 z:a", "e2 R n:n3 z:b"],
        ("e1", "-", "e1", Yes),
    );
}

#[test]
fn e20_node_hints_for_others_without_zone_hints_are_off() {
    check(
        &DEFAULT,
        &["e1 R n:n2", "e2 R n:n3"],
        ("e1 e2", "-", "e1 e2", Yes),
    );
}

const E22: [&str; 4] = ["e1 R L z:a", "e2 R L z:b", "e3 R z:c", "e4 R z:a"];

#[test]
fn e22_external_local_has_both_lists_and_hints_narrow_only_one() {
    check(&EXTERNAL_LOCAL, &E22, ("e1 e4", "e1 e2", "e1 e2 e4", Yes));
}

#[test]
fn e23_internal_local_with_node_port_has_both_lists() {
    check(
        &INTERNAL_LOCAL_NODE_PORT,
        &E22,
        ("e1 e4", "e1 e2", "e1 e2 e4", Yes),
    );
}

#[test]
fn e25_internal_local_without_endpoints_is_refused() {
    check(&INTERNAL_LOCAL, &[], ("-", "0", "0", No));
    assert_eq!(
        verdict(&INTERNAL_LOCAL, &[], Traffic::Internal),
        Some("reject")
    );
}

#[test]
fn e26_internal_local_with_only_remote_endpoints_is_dropped() {
    check(&INTERNAL_LOCAL, &["e1 R", "e2 R"], ("-", "0", "0", Yes));
    assert_eq!(
        verdict(&INTERNAL_LOCAL, &["e1 R", "e2 R"], Traffic::Internal),
        Some("drop")
    );
}

#[test]
fn e27_internal_local_all_local() {
    check(
        &INTERNAL_LOCAL,
        &["e1 R L", "e2 R L"],
        ("-", "e1 e2", "e1 e2", Yes),
    );
}

#[test]
fn e28_internal_local_one_local() {
    check(&INTERNAL_LOCAL, &["e1 R L", "e2 R"], ("-", "e1", "e1", Yes));
}

#[test]
fn e29_external_local_without_external_address_uses_the_cluster_list() {
    let service = Service {
        node_port: None,
        ..EXTERNAL_LOCAL
    };
    check(&service, &["e1 R", "e2 R L"], ("e1 e2", "-", "e1 e2", Yes));
}

#[test]
fn e31_external_local_one_local() {
    check(
        &EXTERNAL_LOCAL,
        &["e1 R L", "e2 R"],
        ("e1 e2", "e1", "e1 e2", Yes),
    );
}

#[test]
fn e32_both_local_one_local() {
    check(
        &BOTH_LOCAL,
        &["e1 R L", "e2 R"],
        ("e1 e2", "e1", "e1 e2", Yes),
    );
}

#[test]
fn e33_both_local_none_local() {
    check(&BOTH_LOCAL, &["e1 R", "e2 R"], ("e1 e2", "0", "e1 e2", Yes));
}

#[test]
fn e34_both_local_none_local_all_terminating() {
    check(
        &BOTH_LOCAL,
        &["e1 ST", "e2 ST"],
        ("e1 e2", "0", "e1 e2", Yes),
    );
}

#[test]
fn e36_local_terminating_is_not_used_beside_local_ready() {
    check(
        &EXTERNAL_LOCAL,
        &["e1 R L", "e2 ST L"],
        ("e1", "e1", "e1", Yes),
    );
}

#[test]
fn e38_both_local_with_nothing_usable_is_refused() {
    check(&BOTH_LOCAL, &["e1 !R L"], ("0", "0", "0", No));
    for traffic in Traffic::ALL {
        assert_eq!(
            verdict(&BOTH_LOCAL, &["e1 !R L"], traffic),
            Some("reject"),
            "{traffic:?}"
        );
    }
}

#[test]
fn e39_only_local_terminating_is_served_and_unhealthy() {
    check(&EXTERNAL_LOCAL, &["e1 ST L"], ("e1", "e1", "e1", Yes));
    let answer = health(&merged(&["e1 ST L"]));
    assert_eq!((answer.local_endpoints, answer.status()), (0, 503));
}

#[test]
fn e40_one_address_on_two_ports_counts_once() {
    check(&EXTERNAL_LOCAL, &["e1 R L"], ("e1", "e1", "e1", Yes));
    let answer = health(&merge(&[slice("web-1", &["x", "y"], &["e1 R L"])]));
    assert_eq!((answer.local_endpoints, answer.status()), (1, 200));
}

#[test]
fn s41_hints_alone_decide_whatever_the_service_says_about_topology() {
    let mut object = DEFAULT.object();
    object["spec"]["trafficDistribution"] = "PreferClose".into();
    object["metadata"]["annotations"] =
        serde_json::json!({ "service.kubernetes.io/topology-mode": "Auto" });
    let (asking, _) = ServiceSpec::read(&serde_json::from_value(object).unwrap()).unwrap();
    let policies = Policies::of(&asking, &asking.ports[0], false);
    assert_eq!(policies, DEFAULT.policies());
    let merged = merged(&["e1 R", "e2 R"]);
    let selection = select(policies, of_port(&merged), &here(Some("a")));
    assert_eq!(names(&selection.all()), "e1 e2");
}

#[test]
fn s48_no_endpoint_anywhere_is_refused_for_every_kind_of_traffic() {
    for traffic in Traffic::ALL {
        assert_eq!(
            verdict(&EXTERNAL_LOCAL, &["e1 !R L"], traffic),
            Some("reject"),
            "{traffic:?}"
        );
    }
}

#[test]
fn s49_internal_local_without_local_endpoint_drops_only_internal_traffic() {
    let service = INTERNAL_LOCAL_NODE_PORT;
    assert_eq!(
        verdict(&service, &["e1 R"], Traffic::Internal),
        Some("drop")
    );
    assert_eq!(
        verdict(&service, &["e1 R"], Traffic::ExternalFromOutside),
        Some("serve")
    );
}

#[test]
fn s55_external_local_without_local_endpoint_drops_only_clients_from_outside() {
    let remote = ["e1 R"];
    assert_eq!(
        verdict(&EXTERNAL_LOCAL, &remote, Traffic::ExternalFromOutside),
        Some("drop")
    );
    assert_eq!(
        verdict(&EXTERNAL_LOCAL, &remote, Traffic::ExternalFromInside),
        Some("serve")
    );
    assert_eq!(
        verdict(&EXTERNAL_LOCAL, &remote, Traffic::Internal),
        Some("serve")
    );
}

#[test]
fn a_port_that_cannot_be_reached_from_outside_has_no_external_verdict() {
    assert_eq!(
        verdict(&DEFAULT, &["e1 R"], Traffic::ExternalFromOutside),
        None
    );
    assert_eq!(
        verdict(&DEFAULT, &["e1 R"], Traffic::ExternalFromInside),
        None
    );
}
