//! Reading Services and Nodes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::time::Duration;

use onehop_core::id::{IpFamily, PortKey, Protocol};
use onehop_core::node::{NodeReady, NodeView, PodNetwork};
use onehop_core::service::{
    DEFAULT_AFFINITY, IpMode, ServiceKind, ServiceProblem, ServiceSpec, TargetPort, TrafficPolicy,
};
use serde_json::{Value, json};

fn object(spec: Value) -> Value {
    json!({
        "metadata": { "namespace": "shop", "name": "web", "uid": "u1" },
        "spec": spec,
    })
}

fn read(object: Value) -> (ServiceSpec, Vec<ServiceProblem>) {
    ServiceSpec::read(&serde_json::from_value(object).unwrap()).unwrap()
}

fn view(spec: Value) -> ServiceSpec {
    let (view, problems) = read(object(spec));
    assert!(problems.is_empty(), "{problems:?}");
    view
}

#[test]
fn every_default_is_resolved() {
    let view = view(json!({ "clusterIP": "10.96.0.1", "ports": [{ "port": 80 }] }));
    assert_eq!(view.kind, ServiceKind::ClusterIp);
    assert_eq!(
        view.cluster_ip(IpFamily::V4),
        Some("10.96.0.1".parse().unwrap())
    );
    let port = &view.ports[0];
    assert_eq!(port.key, PortKey::new("", Protocol::Tcp));
    assert_eq!(
        (port.port, &port.target, port.node_port),
        (80, &TargetPort::Number(80), None)
    );
    let policies = (view.internal_policy, view.external_policy);
    assert_eq!(policies, (TrafficPolicy::Cluster, TrafficPolicy::Cluster));
    assert!(view.allocates_node_ports && view.source_ranges.is_open());
    assert_eq!(
        (
            view.affinity,
            view.class.as_deref(),
            view.health_check_node_port
        ),
        (None, None, None)
    );
}

#[test]
fn every_stated_field_is_read() {
    let view = view(json!({
        "type": "LoadBalancer",
        "clusterIP": "10.96.0.1",
        "clusterIPs": ["10.96.0.1", "fd00::1"],
        "ipFamilies": ["IPv4", "IPv6"],
        "ports": [{
            "name": "dns", "protocol": "UDP", "port": 53, "targetPort": "dns", "nodePort": 30053,
            "appProtocol": "example.com/dns",
        }],
        "internalTrafficPolicy": "Local",
        "externalTrafficPolicy": "Local",
        "healthCheckNodePort": 30500,
        "allocateLoadBalancerNodePorts": false,
        "loadBalancerClass": "onehop.dev/local",
        "loadBalancerIP": "198.51.100.9",
        "externalIPs": ["203.0.113.1"],
        "selector": { "app": "dns" },
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 60 } },
    }));
    assert_eq!((view.cluster_ips.len(), view.families.len()), (2, 2));
    assert_eq!(view.ports[0].target, TargetPort::Name("dns".to_owned()));
    assert_eq!(view.ports[0].node_port, Some(30_053));
    assert_eq!(
        view.ports[0].app_protocol.as_deref(),
        Some("example.com/dns")
    );
    assert_eq!(view.internal_policy, TrafficPolicy::Local);
    assert_eq!(view.external_policy, TrafficPolicy::Local);
    assert_eq!(view.health_check_node_port, Some(30_500));
    assert!(!view.allocates_node_ports);
    assert_eq!(view.class.as_deref(), Some("onehop.dev/local"));
    assert_eq!(view.requested_address.as_deref(), Some("198.51.100.9"));
    assert_eq!(view.affinity, Some(Duration::from_mins(1)));
    assert!(view.is_externally_accessible(&view.ports[0]));
}

#[test]
fn s01_no_proxy_serves_headless_external_name_or_addressless_services() {
    let headless = view(json!({ "clusterIP": "None", "clusterIPs": ["None"] }));
    let pending = view(json!({ "clusterIP": "" }));
    let alias = view(json!({ "type": "ExternalName", "clusterIP": "10.96.0.1" }));
    for view in [&headless, &pending, &alias] {
        assert!(!view.is_proxied(), "{view:?}");
    }
    assert!(headless.headless && !pending.headless);
    assert!(view(json!({ "clusterIP": "10.96.0.1" })).is_proxied());
}

#[test]
fn s02_the_label_names_the_proxy() {
    let mut named = object(json!({ "clusterIP": "10.96.0.1" }));
    named["metadata"]["labels"] = json!({ "service.kubernetes.io/service-proxy-name": "onehop" });
    assert_eq!(read(named).0.proxy_name(), Some("onehop"));
    assert_eq!(view(json!({ "clusterIP": "10.96.0.1" })).proxy_name(), None);
}

#[test]
fn s22_s23_only_vip_addresses_are_captured() {
    let mut object = object(
        json!({ "type": "LoadBalancer", "clusterIP": "10.96.0.1", "ports": [{ "port": 80 }] }),
    );
    object["status"] = json!({ "loadBalancer": { "ingress": [
        { "ip": "198.51.100.1" },
        { "ip": "198.51.100.2", "ipMode": "VIP" },
        { "ip": "198.51.100.3", "ipMode": "Proxy" },
        { "hostname": "lb.example.com" },
    ] } });
    let (view, _) = read(object.clone());
    let vips: Vec<_> = view.vips().map(|a| a.to_string()).collect();
    assert_eq!(vips, ["198.51.100.1", "198.51.100.2"]);
    assert_eq!(view.ingress[2].mode, IpMode::Proxy);
    // An address that was left in the status of a Service of another type is no VIP.
    object["spec"]["type"] = json!("ClusterIP");
    let (view, _) = read(object);
    assert_eq!(view.vips().count(), 0);
    assert!(!view.is_externally_accessible(&view.ports[0]));
}

#[test]
fn s33_one_bad_value_hides_nothing_else() {
    let (view, problems) = read(object(json!({
        "clusterIP": "10.96.0.1",
        "ports": [{ "port": 80 }, { "port": 99_999, "name": "big" }, { "port": 81, "name": "x", "protocol": "QUIC" }],
        "externalIPs": ["203.0.113.1", "nowhere"],
    })));
    let texts: Vec<_> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "Service shop/web: ports.port: \"99999\" was ignored: it is not a port number",
            "Service shop/web: ports.protocol: \"QUIC\" was ignored: it is not TCP, UDP or SCTP",
            "Service shop/web: externalIPs: \"nowhere\" was ignored: it is not an address",
        ]
    );
    assert_eq!((view.ports.len(), view.external_ips.len()), (1, 1));
}

#[test]
fn s73_source_ranges_are_trimmed() {
    let view = view(json!({ "loadBalancerSourceRanges": [" 10.0.0.0/8 ", "192.0.2.7/32"] }));
    let ranges: Vec<_> = view
        .source_ranges
        .allowed
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(ranges, ["10.0.0.0/8", "192.0.2.7/32"]);
}

#[test]
fn s74_i10_a_list_of_only_bad_ranges_is_closed_not_open() {
    let (view, problems) = read(object(json!({ "loadBalancerSourceRanges": ["everybody"] })));
    assert_eq!(problems.len(), 1);
    assert!(view.source_ranges.allowed.is_empty() && !view.source_ranges.is_open());
}

#[test]
fn s80_affinity_lasts_three_hours_unless_stated() {
    let affinity = |spec| view(spec).affinity;
    assert_eq!(
        affinity(json!({ "sessionAffinity": "ClientIP" })),
        Some(DEFAULT_AFFINITY)
    );
    assert_eq!(DEFAULT_AFFINITY, Duration::from_hours(3));
    assert_eq!(affinity(json!({ "sessionAffinity": "None" })), None);
}

#[test]
fn an_object_that_cannot_be_worked_with_is_refused() {
    let mut nameless = object(json!({}));
    nameless["metadata"]["uid"] = Value::Null;
    let problem = ServiceSpec::read(&serde_json::from_value(nameless).unwrap()).unwrap_err();
    assert_eq!(problem.to_string(), "Service shop/web has no uid");
}

fn node(labels: Value) -> Value {
    json!({
        "metadata": { "name": "n1", "uid": "x", "labels": labels },
        "spec": {
            "podCIDRs": ["10.244.1.0/24"], "providerID": "local:///n1",
            "taints": [{ "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule" }],
        },
        "status": {
            "addresses": [
                { "type": "Hostname", "address": "n1" },
                { "type": "ExternalIP", "address": "192.0.2.1" },
                { "type": "InternalIP", "address": "10.0.1.1" },
            ],
            "conditions": [{ "type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z" }],
        },
    })
}

fn node_view(object: Value) -> NodeView {
    NodeView::of(&serde_json::from_value(object).unwrap())
}

#[test]
fn s27_the_primary_address_of_a_node_is_its_first_internal_one() {
    let view = node_view(node(json!({})));
    assert_eq!(
        view.primary_address(IpFamily::V4),
        Some("10.0.1.1".parse().unwrap())
    );
    assert_eq!(view.primary_address(IpFamily::V6), None);
    assert_eq!(view.ready, NodeReady::Yes);
    assert!(view.has_taint("ToBeDeletedByClusterAutoscaler"));
}

#[test]
fn s114_a_node_has_a_pod_network_unless_its_object_says_otherwise() {
    let with = |conditions: Value| {
        let mut object = node(json!({}));
        object["status"]["conditions"] = conditions;
        node_view(object).pod_network == PodNetwork::Present
    };
    let ready = |status: &str, message: &str| json!([{ "type": "Ready", "status": status, "message": message }]);
    let no_plugin = "container runtime network not ready: NetworkReady=false \
                     reason:NetworkPluginNotReady message:cni plugin not initialized";
    assert!(with(json!([])));
    assert!(with(ready("True", "kubelet is posting ready status")));
    assert!(with(ready(
        "Unknown",
        "Kubelet stopped posting node status."
    )));
    assert!(!with(ready("False", no_plugin)), "S-114");
    for (status, has_network) in [("True", false), ("False", true)] {
        let conditions = json!([{ "type": "NetworkUnavailable", "status": status }]);
        assert_eq!(with(conditions), has_network, "S-114");
    }
}

#[test]
fn s42_only_what_concerns_us_makes_a_nodes_view_differ() {
    let before = node_view(node(json!({ "topology.kubernetes.io/zone": "a" })));
    let mut heartbeat = node(json!({ "topology.kubernetes.io/zone": "a" }));
    heartbeat["status"]["conditions"][0]["lastHeartbeatTime"] = json!("2026-01-01T00:00:10Z");
    assert_eq!(node_view(heartbeat), before);
    // Labels do: clouds choose nodes by them.
    let labelled = node(json!({ "topology.kubernetes.io/zone": "a", "pool": "blue" }));
    assert_ne!(node_view(labelled), before);
    assert_ne!(
        node_view(node(json!({ "topology.kubernetes.io/zone": "b" }))),
        before
    );
    assert_eq!(
        node_view(node(json!({ "topology.kubernetes.io/zone": "" }))).zone,
        None
    );
}
