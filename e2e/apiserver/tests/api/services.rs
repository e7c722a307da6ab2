//! Services: defaults, allocation, and validation in the API's own words.

use e2e_apiserver::{Config, Identity};
use kube::Client;
use serde_json::{Value, json};

use crate::support::{client, raw, raw_as, server_with};

const PATH: &str = "/api/v1/namespaces/default/services";
const MERGE: &str = "application/merge-patch+json";

async fn create(client: &Client, spec: Value) -> (u16, Value) {
    raw(
        client,
        "POST",
        PATH,
        &json!({"metadata": {"name": "a"}, "spec": spec}),
    )
    .await
}

async fn patch(client: &Client, spec: Value) -> (u16, Value) {
    raw_as(
        client,
        "PATCH",
        &format!("{PATH}/a"),
        MERGE,
        &json!({ "spec": spec }),
    )
    .await
}

#[tokio::test]
async fn defaults_are_those_of_the_real_server() {
    let (code, made) = create(
        &client(),
        json!({"type": "LoadBalancer", "ports": [{"port": 80}]}),
    )
    .await;
    assert_eq!(code, 201);
    let spec = &made["spec"];
    let expected = json!({
        "allocateLoadBalancerNodePorts": true,
        "clusterIP": spec["clusterIP"], "clusterIPs": [spec["clusterIP"]],
        "externalTrafficPolicy": "Cluster", "internalTrafficPolicy": "Cluster",
        "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
        "ports": [{"nodePort": spec["ports"][0]["nodePort"], "port": 80, "protocol": "TCP", "targetPort": 80}],
        "sessionAffinity": "None", "type": "LoadBalancer"
    });
    assert_eq!(spec, &expected);
    assert_eq!(made["status"], json!({"loadBalancer": {}}));
}

#[tokio::test]
async fn a_load_balancer_that_wants_no_node_ports_gets_none_unless_it_asks_for_one() {
    let client = client();
    let spec = json!({
        "type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "externalTrafficPolicy": "Local",
        "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81, "nodePort": 30080}]
    });
    let (_, made) = create(&client, spec).await;
    assert_eq!(made["spec"]["ports"][0]["nodePort"], Value::Null);
    assert_eq!(made["spec"]["ports"][1]["nodePort"], 30080);
    assert!(made["spec"]["healthCheckNodePort"].is_i64());
    // KEP-1864: turning allocation on gives the missing ones, turning it off keeps them.
    let (_, on) = patch(&client, json!({"allocateLoadBalancerNodePorts": true})).await;
    let given = on["spec"]["ports"][0]["nodePort"].clone();
    assert!(given.is_i64());
    let (_, off) = patch(&client, json!({"allocateLoadBalancerNodePorts": false})).await;
    assert_eq!(off["spec"]["ports"][0]["nodePort"], given);
}

#[tokio::test]
async fn numbers_stay_when_the_same_manifest_is_sent_again_and_are_freed_with_the_type() {
    let client = client();
    let spec =
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": [{"port": 80}]});
    let (_, made) = create(&client, spec.clone()).await;
    let again = json!({"metadata": {"name": "a"}, "spec": spec});
    let (code, same) = raw(&client, "PUT", &format!("{PATH}/a"), &again).await;
    assert_eq!((code, &same["spec"]), (200, &made["spec"]));
    let (_, plain) = patch(&client, json!({"type": "ClusterIP"})).await;
    assert_eq!(plain["spec"]["clusterIP"], made["spec"]["clusterIP"]);
    for field in [
        "healthCheckNodePort",
        "externalTrafficPolicy",
        "allocateLoadBalancerNodePorts",
    ] {
        assert_eq!(plain["spec"][field], Value::Null, "{field}");
    }
    assert_eq!(plain["spec"]["ports"][0]["nodePort"], Value::Null);
    // Both numbers are free again.
    for (name, port) in [
        ("b", &made["spec"]["ports"][0]["nodePort"]),
        ("c", &made["spec"]["healthCheckNodePort"]),
    ] {
        let other = json!({"metadata": {"name": name}, "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]}});
        assert_eq!(raw(&client, "POST", PATH, &other).await.0, 201);
    }
}

#[tokio::test]
async fn an_external_name_gives_its_address_back() {
    let client = client();
    let (_, made) = create(&client, json!({"ports": [{"port": 80}]})).await;
    let (code, named) = patch(
        &client,
        json!({"type": "ExternalName", "externalName": "example.com"}),
    )
    .await;
    assert_eq!(code, 200, "{named:#}");
    for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        assert_eq!(named["spec"][field], Value::Null, "{field}");
    }
    let wish = json!({"metadata": {"name": "b"}, "spec": {"clusterIP": made["spec"]["clusterIP"], "ports": [{"port": 80}]}});
    assert_eq!(raw(&client, "POST", PATH, &wish).await.0, 201);
}

#[tokio::test]
async fn tcp_and_udp_of_one_number_share_a_node_port() {
    let ports = json!([{"name": "t", "port": 53}, {"name": "u", "port": 53, "protocol": "UDP"}]);
    let (_, made) = create(&client(), json!({"type": "NodePort", "ports": ports})).await;
    assert_eq!(
        made["spec"]["ports"][0]["nodePort"],
        made["spec"]["ports"][1]["nodePort"]
    );
}

#[tokio::test]
async fn a_headless_service_has_no_address() {
    let (_, made) = create(
        &client(),
        json!({"clusterIP": "None", "selector": {"a": "b"}, "ports": [{"port": 80}]}),
    )
    .await;
    assert_eq!(made["spec"]["clusterIPs"], json!(["None"]));
    assert_eq!(made["spec"]["ipFamilies"], json!(["IPv4"]));
}

/// Error and where it is, for a creation that must be refused.
async fn refused(spec: Value) -> (String, String) {
    let (code, status) = create(&client(), spec.clone()).await;
    assert_eq!(code, 422, "{spec} gave {status:#}");
    assert_eq!(status["reason"], "Invalid");
    assert_eq!(status["details"]["kind"], "Service");
    let cause = &status["details"]["causes"][0];
    (
        cause["field"].as_str().unwrap().to_owned(),
        cause["message"].as_str().unwrap().to_owned(),
    )
}

#[tokio::test]
#[allow(clippy::too_many_lines, reason = "a table of cases")]
async fn wrong_services_are_refused_with_field_and_reason() {
    let cases = [
        (json!({}), "spec.ports", "Required value"),
        (
            json!({"type": "X", "ports": [{"port": 80}]}),
            "spec.type",
            "Unsupported value: \"X\": supported values: \"ClusterIP\", \"ExternalName\", \"LoadBalancer\", \"NodePort\"",
        ),
        (
            json!({"ports": [{"port": 0}]}),
            "spec.ports[0].port",
            "Invalid value: 0: must be between 1 and 65535, inclusive",
        ),
        (
            json!({"ports": [{"port": 80}, {"port": 81, "name": "b"}]}),
            "spec.ports[0].name",
            "Required value",
        ),
        (
            json!({"ports": [{"port": 80, "name": "a"}, {"port": 81, "name": "a"}]}),
            "spec.ports[1].name",
            "Duplicate value: \"a\"",
        ),
        (
            json!({"ports": [{"port": 80, "protocol": "ICMP"}]}),
            "spec.ports[0].protocol",
            "Unsupported value: \"ICMP\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
        ),
        (
            json!({"ports": [{"port": 80, "nodePort": 30000}]}),
            "spec.ports[0].nodePort",
            "Forbidden: may not be used when `type` is 'ClusterIP'",
        ),
        (
            json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 80}]}),
            "spec.ports[0].nodePort",
            "Invalid value: 80: provided port is not in the valid range. The range of valid ports is 30000-32767",
        ),
        (
            json!({"externalTrafficPolicy": "Local", "ports": [{"port": 80}]}),
            "spec.externalTrafficPolicy",
            "Invalid value: \"Local\": may only be set for externally-accessible services",
        ),
        (
            json!({"loadBalancerClass": "x.dev/y", "ports": [{"port": 80}]}),
            "spec.loadBalancerClass",
            "Forbidden: may only be used when `type` is 'LoadBalancer'",
        ),
        (
            json!({"allocateLoadBalancerNodePorts": true, "ports": [{"port": 80}]}),
            "spec.allocateLoadBalancerNodePorts",
            "Forbidden: may only be used when `type` is 'LoadBalancer'",
        ),
        (
            json!({"type": "NodePort", "healthCheckNodePort": 30000, "ports": [{"port": 80}]}),
            "spec.healthCheckNodePort",
            "Invalid value: 30000: may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
        ),
        (
            json!({"type": "LoadBalancer", "clusterIP": "None", "ports": [{"port": 80}]}),
            "spec.clusterIPs[0]",
            "Invalid value: \"None\": may not be set to 'None' for LoadBalancer services",
        ),
        (
            json!({"clusterIP": "10.0.0.1", "ports": [{"port": 80}]}),
            "spec.clusterIPs",
            "Invalid value: [\"10.0.0.1\"]: failed to allocate IP 10.0.0.1: the provided network does not match the current range",
        ),
        (
            json!({"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}),
            "spec.clusterIPs",
            "Invalid value: [\"10.96.0.1\"]: failed to allocate IP 10.96.0.1: provided IP is already allocated",
        ),
        (
            json!({"ipFamilyPolicy": "RequireDualStack", "ports": [{"port": 80}]}),
            "spec.ipFamilyPolicy",
            "Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services",
        ),
        (
            json!({"ipFamilies": ["IPv6"], "ports": [{"port": 80}]}),
            "spec.ipFamilies[0]",
            "Invalid value: \"IPv6\": not configured on this cluster",
        ),
        (
            json!({"sessionAffinity": "Cookie", "ports": [{"port": 80}]}),
            "spec.sessionAffinity",
            "Unsupported value: \"Cookie\": supported values: \"ClientIP\", \"None\"",
        ),
        (
            json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ["x"], "ports": [{"port": 80}]}),
            "spec.LoadBalancerSourceRanges[0]",
            "Invalid value: \"x\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
        ),
        (
            json!({"type": "LoadBalancer", "internalTrafficPolicy": "X", "ports": [{"port": 80}]}),
            "spec.internalTrafficPolicy",
            "Unsupported value: \"X\": supported values: \"Cluster\", \"Local\"",
        ),
    ];
    for (spec, field, message) in cases {
        assert_eq!(refused(spec).await, (field.to_owned(), message.to_owned()));
    }
}

#[tokio::test]
async fn az004_what_may_not_change_once_set_does_not() {
    let client = client();
    let spec = json!({
        "type": "LoadBalancer", "loadBalancerClass": "onehop.dev/local", "externalTrafficPolicy": "Local",
        "ports": [{"port": 80}]
    });
    let (_, made) = create(&client, spec).await;
    let cases = [
        (
            json!({"loadBalancerClass": "other.dev/x"}),
            "spec.loadBalancerClass",
            "Invalid value: \"other.dev/x\": may not change once set",
        ),
        (
            json!({"healthCheckNodePort": 32000}),
            "spec.healthCheckNodePort",
            "Forbidden: field is immutable",
        ),
    ];
    for (change, field, message) in cases {
        let (code, status) = patch(&client, change).await;
        assert_eq!(code, 422);
        let cause = &status["details"]["causes"][0];
        assert_eq!(
            (cause["field"].as_str(), cause["message"].as_str()),
            (Some(field), Some(message))
        );
    }
    let (code, status) = patch(
        &client,
        json!({"clusterIP": "10.96.7.7", "clusterIPs": ["10.96.7.7"]}),
    )
    .await;
    assert_eq!(code, 422);
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains(
            "spec.clusterIPs[0]: Invalid value: [\"10.96.7.7\"]: may not change once set"
        ),
        "{message}"
    );
    // AZ-004: the class goes with the type, and can be set when it comes back.
    let class = json!({"type": "ClusterIP"});
    let (code, plain) = patch(&client, class).await;
    assert_eq!(
        (code, &plain["spec"]["loadBalancerClass"]),
        (200, &Value::Null)
    );
    assert_eq!(plain["spec"]["clusterIP"], made["spec"]["clusterIP"]);
    let again = json!({"type": "LoadBalancer", "loadBalancerClass": "onehop.dev/azure"});
    let (code, moved) = patch(&client, again).await;
    assert_eq!(
        (code, &moved["spec"]["loadBalancerClass"]),
        (200, &json!("onehop.dev/azure")),
        "AZ-004"
    );
}

#[tokio::test]
async fn a_taken_node_port_is_refused() {
    let client = client();
    let node_port = |name: &str| {
        json!({
            "metadata": {"name": name}, "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 31000}]}
        })
    };
    assert_eq!(raw(&client, "POST", PATH, &node_port("a")).await.0, 201);
    let (code, status) = raw(&client, "POST", PATH, &node_port("b")).await;
    assert_eq!(code, 422);
    assert_eq!(
        status["message"],
        "Service \"b\" is invalid: spec.ports[0].nodePort: Invalid value: 31000: provided port is already allocated"
    );
}

#[tokio::test]
async fn dual_stack_adds_and_releases_the_second_address() {
    let cidrs = vec![
        "10.96.0.0/16".parse().unwrap(),
        "fd00::/108".parse().unwrap(),
    ];
    let server = server_with(Config {
        service_cidrs: cidrs,
        ..Config::default()
    });
    let client = server.client(&Identity::admin());
    let (_, made) = create(&client, json!({"ports": [{"port": 80}]})).await;
    assert_eq!(made["spec"]["ipFamilies"], json!(["IPv4"]));
    let (_, both) = patch(&client, json!({"ipFamilyPolicy": "PreferDualStack"})).await;
    assert_eq!(both["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
    assert_eq!(both["spec"]["clusterIPs"][0], made["spec"]["clusterIP"]);
    assert!(
        both["spec"]["clusterIPs"][1]
            .as_str()
            .unwrap()
            .starts_with("fd00::")
    );
    let (_, single) = patch(&client, json!({"ipFamilyPolicy": "SingleStack"})).await;
    assert_eq!(
        single["spec"]["clusterIPs"],
        json!([made["spec"]["clusterIP"]])
    );
}

#[tokio::test]
async fn status_is_written_through_its_subresource_only_and_checked() {
    let client = client();
    create(
        &client,
        json!({"type": "LoadBalancer", "ports": [{"port": 80}]}),
    )
    .await;
    let ingress = |ingress: Value| json!({"status": {"loadBalancer": {"ingress": ingress}}});
    let (_, main) = raw_as(
        &client,
        "PATCH",
        &format!("{PATH}/a"),
        MERGE,
        &ingress(json!([{"ip": "198.51.100.1"}])),
    )
    .await;
    assert_eq!(main["status"], json!({"loadBalancer": {}}));
    let status = format!("{PATH}/a/status");
    let (_, shown) = raw_as(
        &client,
        "PATCH",
        &status,
        MERGE,
        &ingress(json!([{"ip": "198.51.100.1"}])),
    )
    .await;
    assert_eq!(
        shown["status"]["loadBalancer"]["ingress"],
        json!([{"ip": "198.51.100.1", "ipMode": "VIP"}])
    );
    let (code, wrong) = raw_as(
        &client,
        "PATCH",
        &status,
        MERGE,
        &ingress(json!([{"hostname": "a.b", "ipMode": "VIP"}])),
    )
    .await;
    assert_eq!(code, 422);
    let cause = &wrong["details"]["causes"][0];
    assert_eq!(
        cause["message"],
        "Forbidden: may not be specified when `ip` is not set"
    );
    let (_, away) = patch(&client, json!({"type": "ClusterIP"})).await;
    assert_eq!(away["status"], json!({"loadBalancer": {}}));
}
