//! The answer on a healthCheckNodePort.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use onehop_core::endpoint::{Endpoints, Slice};
use onehop_core::health::{HealthAnswer, Hold, ProxyHealth, count_local};
use onehop_core::id::{NodeName, ServiceKey};
use serde_json::{Value, json};

fn answer(local_endpoints: usize) -> HealthAnswer {
    HealthAnswer {
        service: ServiceKey::new("shop", "web"),
        local_endpoints,
        proxy: ProxyHealth::Healthy,
        hold: Hold::None,
    }
}

fn count(slices: &[Value]) -> usize {
    let read = |s: &Value| {
        Slice::read(&serde_json::from_value(s.clone()).unwrap())
            .unwrap()
            .0
    };
    let slices: Vec<_> = slices.iter().map(read).collect();
    count_local(&Endpoints::merge(&slices), &NodeName::new("n1"))
}

fn slice(family: &str, endpoints: Value) -> Value {
    json!({
        "metadata": {
            "namespace": "shop", "name": format!("web-{family}"),
            "labels": { "kubernetes.io/service-name": "web" },
        },
        "addressType": family,
        "ports": [{ "name": "a", "port": 1 }, { "name": "b", "port": 2 }],
        "endpoints": endpoints,
    })
}

fn endpoint(address: &str, node: &str, conditions: Value) -> Value {
    json!({ "addresses": [address], "nodeName": node, "conditions": conditions })
}

#[test]
fn s101_counts_distinct_ready_local_addresses_over_all_ports() {
    let endpoints = json!([
        endpoint("10.244.0.1", "n1", json!({ "ready": true })),
        endpoint("10.244.0.2", "n1", json!({ "ready": true })),
        endpoint("10.244.0.3", "n1", json!({ "ready": false })),
        endpoint(
            "10.244.0.4",
            "n1",
            json!({ "ready": false, "serving": true, "terminating": true })
        ),
        endpoint(
            "10.244.0.5",
            "n1",
            json!({ "ready": true, "terminating": true })
        ),
        endpoint("10.244.0.6", "n2", json!({ "ready": true })),
    ]);
    assert_eq!(count(&[slice("IPv4", endpoints)]), 2);
}

#[test]
fn s101_a_dual_stack_pod_counts_once() {
    let v4 = slice("IPv4", json!([endpoint("10.244.0.1", "n1", json!({}))]));
    let v6 = slice("IPv6", json!([endpoint("fd00::1", "n1", json!({}))]));
    assert_eq!(count(&[v4, v6]), 1);
}

#[test]
fn s101_is_good_only_with_a_local_endpoint_and_a_healthy_proxy() {
    assert_eq!(answer(1).status(), 200);
    assert_eq!(answer(0).status(), 503);
    assert_eq!(
        HealthAnswer {
            proxy: ProxyHealth::Unhealthy,
            ..answer(1)
        }
        .status(),
        503
    );
}

#[test]
fn zd64_a_held_entry_answers_well_without_a_local_endpoint() {
    let held = HealthAnswer {
        hold: Hold::Held,
        ..answer(0)
    };
    assert_eq!(held.status(), 200);
    assert_eq!(
        HealthAnswer {
            proxy: ProxyHealth::Unhealthy,
            ..held
        }
        .status(),
        503
    );
}

#[test]
fn s102_headers_are_sent_with_either_code() {
    for local in [0, 3] {
        let headers = answer(local).headers();
        assert_eq!(
            headers,
            [
                ("Content-Type", "application/json".to_owned()),
                ("X-Content-Type-Options", "nosniff".to_owned()),
                ("X-Load-Balancing-Endpoint-Weight", local.to_string()),
            ]
        );
    }
}

#[test]
fn s103_the_body_is_tab_indented_in_this_order_without_a_newline_at_the_end() {
    let expected = "{\n\t\"service\": {\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}";
    assert_eq!(answer(2).body(), expected);
    let parsed: Value = serde_json::from_str(expected).unwrap();
    assert_eq!(
        parsed["service"],
        json!({ "namespace": "shop", "name": "web" })
    );
}
