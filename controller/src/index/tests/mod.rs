//! Which changes make whose members looked at again.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;

fn read<K: DeserializeOwned>(object: Value) -> K {
    serde_json::from_value(object).unwrap()
}

/// Whether what was touched has this Service.
fn web(touched: &Touched) -> bool {
    match touched {
        Touched::All => true,
        Touched::Services(services) => services.contains(&ServiceKey::new("shop", "web")),
    }
}

fn service(port: u16, annotations: &Value) -> Service {
    read(json!({
        "metadata": { "namespace": "shop", "name": "web", "uid": "u", "annotations": annotations },
        "spec": { "type": "LoadBalancer", "ports": [{ "name": "http", "port": port }] },
    }))
}

fn slice(address: &str, port: u16) -> EndpointSlice {
    read(json!({
        "metadata": {
            "namespace": "shop", "name": "web-1", "labels": { "kubernetes.io/service-name": "web" },
        },
        "addressType": "IPv4", "ports": [{ "name": "http", "port": port }],
        "endpoints": [{ "addresses": [address], "conditions": { "ready": true } }],
    }))
}

fn node(name: &str, ready: &str, labels: &Value, heartbeat: &str) -> Node {
    read(json!({
        "metadata": { "name": name, "uid": name, "labels": labels },
        "status": { "conditions": [
            { "type": "Ready", "status": ready, "lastHeartbeatTime": heartbeat },
        ] },
    }))
}

/// A pod at the address that the Service has a target at.
fn pod(edit: impl FnOnce(&mut Value)) -> Pod {
    let mut object = json!({
        "metadata": { "namespace": "shop", "name": "web-1", "uid": "p" },
        "spec": {
            "containers": [],
            "readinessGates": [{ "conditionType": "target-health.onehop.dev/shop-web-1" }],
        },
        "status": { "phase": "Running", "podIPs": [{ "ip": "10.0.0.1" }] },
    });
    edit(&mut object);
    read(object)
}

#[test]
fn aws437_aws009_whatever_concerns_a_services_members_makes_them_looked_at_and_nothing_else_does() {
    let mut index = Index::default();
    let key = ServiceKey::new("shop", "web");
    let one = ["10.0.0.1".parse().unwrap()].into();
    index.set_interest(&key, &BTreeSet::new(), &one);
    let none = json!({});
    let applied = |what: &str, wanted: bool, touched: Touched| {
        assert_eq!(
            web(&touched),
            wanted,
            "AWS-437, AWS-009: {what}: {touched:?}"
        );
    };
    let i = &mut index;
    let s = |service| Seen::Applied(service);
    applied("it came", true, i.on_service(s(service(80, &none))));
    applied("the same", false, i.on_service(s(service(80, &none))));
    applied("another port", true, i.on_service(s(service(81, &none))));
    let edited = service(81, &json!({ "key": "value" }));
    applied("an annotation", true, i.on_service(s(edited)));

    let s = |slice| Seen::Applied(slice);
    applied("endpoints", true, i.on_slice(s(slice("10.0.0.1", 80))));
    applied("the same", false, i.on_slice(s(slice("10.0.0.1", 80))));
    applied("an address", true, i.on_slice(s(slice("10.0.0.2", 80))));
    applied("a port", true, i.on_slice(s(slice("10.0.0.2", 81))));

    let (early, late) = ("2026-12-01T00:00:00Z", "2026-12-01T00:01:00Z");
    let s = |node| Seen::Applied(node);
    applied(
        "a node",
        true,
        i.on_node(s(node("a", "True", &none, early))),
    );
    applied(
        "a heartbeat",
        false,
        i.on_node(s(node("a", "True", &none, late))),
    );
    applied(
        "not ready",
        true,
        i.on_node(s(node("a", "Unknown", &none, late))),
    );
    let out = json!({ "node.kubernetes.io/exclude-from-external-load-balancers": "" });
    applied(
        "unsuitable",
        true,
        i.on_node(s(node("a", "Unknown", &out, late))),
    );
    let key = ObjectKey {
        namespace: String::new(),
        name: "a".to_owned(),
    };
    applied("it went", true, i.on_node(Seen::Deleted(key)));

    let s = |pod| Seen::Applied(pod);
    applied("a pod with a gate", true, i.on_pod(s(pod(|_| {}))));
    applied("the same", false, i.on_pod(s(pod(|_| {}))));
    let ready = |pod: &mut Value| {
        pod["status"]["conditions"] = json!([{
            "type": "ContainersReady", "status": "True", "lastTransitionTime": early,
        }]);
    };
    applied("its containers are ready", true, i.on_pod(s(pod(ready))));
    let deleted = |pod: &mut Value| {
        ready(pod);
        pod["metadata"]["deletionTimestamp"] = json!(late);
    };
    applied("its deletion", true, i.on_pod(s(pod(deleted))));
    let shut = |pod: &mut Value| {
        pod["status"]["phase"] = json!("Failed");
        pod["status"]["reason"] = json!("Terminated");
    };
    applied("its node shut down", true, i.on_pod(s(pod(shut))));
    let elsewhere = |pod: &mut Value| {
        pod["metadata"]["name"] = json!("other");
        pod["metadata"]["uid"] = json!("q");
        pod["status"]["podIPs"] = json!([{ "ip": "10.0.0.9" }]);
    };
    applied("another pod", false, i.on_pod(s(pod(elsewhere))));
}

/// The end of a kind's first list.
type List = fn(&mut Index) -> Touched;

#[test]
fn i1_aws640_nothing_is_known_before_every_kind_has_been_listed_once() {
    let mut index = Index::default();
    let mut lists: Vec<(&str, List)> = vec![
        ("services", |i| i.on_service(Seen::ListDone)),
        ("endpointslices", |i| i.on_slice(Seen::ListDone)),
        ("nodes", |i| i.on_node(Seen::ListDone)),
        ("pods", |i| i.on_pod(Seen::ListDone)),
        ("addresspools", |i| i.on_pool(Seen::ListDone)),
        ("namespaces", |i| i.on_namespace(Seen::ListDone)),
        ("loadbalancers", |i| i.on_balancer(Seen::ListDone)),
    ];
    while let Some((kind, list)) = lists.pop() {
        assert!(!index.is_synced(), "AWS-640: {kind} is not listed yet");
        let missing = index.missing();
        let named = missing.iter().any(|name| name.starts_with(kind));
        assert!(named, "AWS-640: {kind}: {missing:?}");
        list(&mut index);
    }
    assert!(index.is_synced(), "AWS-640: {:?}", index.missing());
}
