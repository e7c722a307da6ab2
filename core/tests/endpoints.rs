//! Reading and merging EndpointSlices.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use onehop_core::endpoint::{Conditions, Endpoints, Slice, SliceProblem};
use onehop_core::id::{IpFamily, NodeName, PortKey, Protocol, ServiceKey};
use onehop_core::service::ServiceSpec;
use serde_json::{Value, json};

fn slice(name: &str, endpoints: Value) -> Value {
    json!({
        "metadata": {
            "namespace": "shop", "name": name,
            "labels": { "kubernetes.io/service-name": "web" },
        },
        "addressType": "IPv4",
        "ports": [{ "name": "http", "port": 8080 }],
        "endpoints": endpoints,
    })
}

fn read(slice: Value) -> Result<(Slice, Vec<SliceProblem>), SliceProblem> {
    Slice::read(&serde_json::from_value(slice).unwrap())
}

fn merge(slices: &[Value]) -> Endpoints {
    let slices: Vec<_> = slices.iter().map(|s| read(s.clone()).unwrap().0).collect();
    Endpoints::merge(&slices)
}

fn http() -> PortKey {
    PortKey::new("http", Protocol::Tcp)
}

fn texts(problems: &[SliceProblem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn s03_headless_slices_are_told_by_their_own_label() {
    let mut object = slice("web-1", json!([]));
    assert!(!Slice::is_headless(
        &serde_json::from_value(object.clone()).unwrap()
    ));
    object["metadata"]["labels"]["service.kubernetes.io/headless"] = json!("");
    assert!(Slice::is_headless(&serde_json::from_value(object).unwrap()));
}

#[test]
fn s04_a_slice_made_by_hand_is_bound_by_its_label_and_is_nothing_without_it() {
    let mut object = slice("by-hand", json!([{ "addresses": ["192.0.2.1"] }]));
    let (read_slice, _) = read(object.clone()).unwrap();
    assert_eq!(read_slice.service, ServiceKey::new("shop", "web"));
    object["metadata"]["labels"] = json!({});
    let problem = read(object).unwrap_err().to_string();
    assert_eq!(
        problem,
        "EndpointSlice shop/by-hand: no label kubernetes.io/service-name: it was ignored"
    );
}

#[test]
fn s05_only_the_first_address_counts_and_bad_parts_are_left_out_with_a_problem() {
    let mut object = slice(
        "web-1",
        json!([
            { "addresses": ["10.244.0.1", "10.244.0.2"] },
            { "addresses": ["fd00::1"] },
            { "addresses": [] },
        ]),
    );
    object["ports"] = json!([
        { "name": "http", "port": 8080 },
        { "port": 1 },
        { "name": "none" },
        { "name": "zero", "port": 0 },
        { "name": "dns", "port": 53, "protocol": "UDP" },
    ]);
    let (read_slice, problems) = read(object).unwrap();
    assert_eq!(
        texts(&problems),
        [
            "EndpointSlice shop/web-1: port 1 has no name: it was ignored",
            "EndpointSlice shop/web-1: port 2 has no number: it was ignored",
            "EndpointSlice shop/web-1: port 3 has a number out of range: it was ignored",
            "EndpointSlice shop/web-1: \"fd00::1\" is not an IPv4 address: the endpoint was ignored",
            "EndpointSlice shop/web-1: \"\" is not an IPv4 address: the endpoint was ignored",
        ]
    );
    let merged = Endpoints::merge(&[read_slice]);
    let keys: Vec<_> = merged
        .ports(IpFamily::V4)
        .keys()
        .map(ToString::to_string)
        .collect();
    assert_eq!(keys, ["dns/UDP", "http/TCP"]);
    let addresses: Vec<_> = merged.iter().map(|(_, e)| e.address.to_string()).collect();
    assert_eq!(addresses, ["10.244.0.1", "10.244.0.1"]);
}

#[test]
fn s05_a_slice_of_another_address_type_is_a_problem() {
    let mut object = slice("names", json!([]));
    object["addressType"] = json!("FQDN");
    assert!(matches!(
        read(object),
        Err(SliceProblem::AddressType { .. })
    ));
}

fn copy(ready: bool, serving: bool, terminating: bool, node: Option<&str>, zone: &str) -> Value {
    json!([{
        "addresses": ["10.244.0.1"],
        "nodeName": node,
        "conditions": { "ready": ready, "serving": serving, "terminating": terminating },
        "hints": { "forZones": [{ "name": zone }] },
    }])
}

#[test]
fn s06_copies_of_an_endpoint_in_several_slices_are_one() {
    let first = slice("web-a", copy(false, true, true, Some("n1"), "a"));
    let second = slice("web-b", copy(true, false, false, Some("n2"), "b"));
    for slices in [[first.clone(), second.clone()], [second, first.clone()]] {
        let merged = merge(&slices);
        let [endpoint] = merged.port(IpFamily::V4, &http()) else {
            panic!("{merged:?}")
        };
        let either = Conditions {
            ready: true,
            serving: true,
            terminating: false,
        };
        assert_eq!(
            endpoint.conditions, either,
            "ready or, serving or, terminating and"
        );
        assert!(
            endpoint.is_local(&"n1".into()) && endpoint.is_local(&"n2".into()),
            "local or"
        );
        assert_eq!(
            endpoint.hints.zones[0].as_str(),
            "a",
            "hints of the first slice by name"
        );
    }
    // It stays until no slice has it.
    assert_eq!(merge(&[first, slice("web-b", json!([]))]).iter().count(), 1);
}

#[test]
fn s07_absent_conditions_mean_ready_serving_and_not_terminating() {
    let merged = merge(&[slice("web-1", json!([{ "addresses": ["10.244.0.1"] }]))]);
    assert_eq!(
        merged.port(IpFamily::V4, &http())[0].conditions,
        Conditions::READY
    );
}

#[test]
fn s08_an_empty_node_name_is_never_local() {
    let endpoints = json!([
        { "addresses": ["10.244.0.1"], "nodeName": "" },
        { "addresses": ["10.244.0.2"] },
        { "addresses": ["10.244.0.3"], "nodeName": "n1" },
    ]);
    let merged = merge(&[slice("web-1", endpoints)]);
    let local = |node: &str| {
        let node = NodeName::new(node);
        merged.iter().filter(|(_, e)| e.is_local(&node)).count()
    };
    assert_eq!((local(""), local("n1")), (0, 1));
}

#[test]
fn s10_families_are_kept_apart() {
    let mut second = slice("web-6", json!([{ "addresses": ["fd00::1"] }]));
    second["addressType"] = json!("IPv6");
    let merged = merge(&[
        slice("web-4", json!([{ "addresses": ["10.244.0.1"] }])),
        second,
    ]);
    for family in IpFamily::ALL {
        assert_eq!(merged.port(family, &http()).len(), 1, "{family}");
    }
}

#[test]
fn s32_the_port_is_the_slices_and_may_differ_between_endpoints() {
    let mut second = slice("web-2", json!([{ "addresses": ["10.244.0.2"] }]));
    second["ports"][0]["port"] = json!(9090);
    let merged = merge(&[
        slice("web-1", json!([{ "addresses": ["10.244.0.1"] }])),
        second,
    ]);
    let ports: Vec<_> = merged
        .port(IpFamily::V4, &http())
        .iter()
        .map(|e| e.port)
        .collect();
    assert_eq!(ports, [8080, 9090]);
}

#[test]
fn the_pod_behind_an_endpoint_is_known_by_its_uid() {
    let endpoints = json!([{
        "addresses": ["10.244.0.1"],
        "zone": "a",
        "targetRef": { "kind": "Pod", "name": "web-1", "uid": "p1" },
    }]);
    let merged = merge(&[slice("web-1", endpoints)]);
    let endpoint = &merged.port(IpFamily::V4, &http())[0];
    let pod = endpoint.pod.as_ref().unwrap();
    assert_eq!((pod.uid.as_str(), &*pod.name), ("p1", "web-1"));
    assert_eq!(endpoint.zone.as_ref().unwrap().as_str(), "a");
    let by_hand = json!([{
        "addresses": ["10.244.0.1"],
        "targetRef": { "kind": "Pod", "name": "web-1" },
    }]);
    let merged = merge(&[slice("web-1", by_hand)]);
    let endpoint = &merged.port(IpFamily::V4, &http())[0];
    assert_eq!(endpoint.pod, None, "K-21: a name is no identity");
}

/// A Service with a selector whose ports are these: name, port, targetPort.
fn service(selector: &Value, ports: &[(&str, u16, Value)]) -> ServiceSpec {
    let port = |(name, port, target): &(&str, u16, Value)| json!({ "name": name, "port": port, "targetPort": target });
    let ports: Vec<_> = ports.iter().map(port).collect();
    let object = json!({
        "metadata": { "name": "web", "namespace": "shop", "uid": "u1" },
        "spec": { "selector": selector, "ports": ports },
    });
    let service = serde_json::from_value(object).unwrap();
    ServiceSpec::read(&service).unwrap().0
}

/// Numbers of the endpoints of each port of the Service, in order.
fn served(service: &ServiceSpec, endpoints: &Endpoints) -> Vec<Vec<u16>> {
    let numbers = |port| {
        let list = endpoints.of(service, port, IpFamily::V4).iter();
        list.map(|e| e.port).collect()
    };
    service.ports.iter().map(numbers).collect()
}

#[test]
fn i2_a_renamed_port_keeps_its_endpoints_until_the_slices_follow() {
    let endpoints = merge(&[slice("a", json!([{ "addresses": ["10.0.0.1"] }]))]);
    let selector = json!({ "app": "web" });
    let renamed = service(&selector, &[("web", 80, json!(8080))]);
    assert_eq!(served(&renamed, &endpoints), [[8080]], "I2");
    let with_second = service(
        &selector,
        &[("web", 80, json!(8080)), ("admin", 81, json!(9090))],
    );
    assert_eq!(
        served(&with_second, &endpoints),
        [vec![8080], vec![]],
        "I2: a port that is really new gets no endpoint of another"
    );
    let beside = service(
        &selector,
        &[("http", 80, json!(8080)), ("more", 81, json!(8080))],
    );
    assert_eq!(
        served(&beside, &endpoints),
        [vec![8080], vec![]],
        "a name that the Service still has is taken by its own port"
    );
    let by_hand = service(&json!(null), &[("web", 80, json!(8080))]);
    assert_eq!(served(&by_hand, &endpoints), [[0_u16; 0]], "S-04");
}
