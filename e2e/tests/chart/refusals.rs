//! Values that must be refused, each with one sentence that names the value.

use crate::sets::{aws, overlay, with};
use anyhow::Result;
use onehop_e2e::chart::Chart;
use serde_json::{Value, json};

fn refused(values: &Value, naming: &str) -> Result<()> {
    let chart = Chart::of_this_build()?;
    let said = chart.template(values).err().map(|error| error.to_string());
    assert!(
        said.as_ref().is_some_and(|said| said.contains(naming)),
        "{values} should be refused naming {naming:?}, but: {said:?}"
    );
    Ok(())
}

/// C-51 and C-T03: what is needed is said at once.
#[test]
fn c51_ct03_required_values_are_named() -> Result<()> {
    refused(
        &json!({"local": {"endpoint": "http://x"}}),
        "clusterName is required: give the name of this cluster",
    )?;
    refused(
        &json!({"clusterName": "demo"}),
        "local.endpoint is required with provider local",
    )?;
    refused(
        &with(json!({"provider": "azure"})),
        "azure.subscriptionId is required with provider azure",
    )?;
    refused(
        &with(json!({"agent": {"mode": "replace"}})),
        "agent.apiServer.host is required with agent.mode replace",
    )?;
    refused(
        &with(json!({"serviceAccount": {"create": false}})),
        "serviceAccount.name is required",
    )?;
    refused(
        &with(json!({"agent": {"serviceAccount": {"create": false}}})),
        "agent.serviceAccount.name is required",
    )?;
    refused(
        &json!({"clusterName": "demo", "provider": "aws"}),
        "vpcId is required with provider aws",
    )?;
    let mut values = aws();
    overlay(&mut values, &json!({"takeOver": ["shop/web"]}));
    refused(
        &values,
        "lbcServiceControllerDisabled is required with takeOver",
    )?;
    refused(
        &with(json!({
            "provider": "azure", "takeOver": ["shop/web"], "azure": {"cloudConfigSecret": "config"},
        })),
        "azure.serviceControllerDisabled is required with takeOver",
    )?;
    refused(
        &with(json!({"agent": {"detectLocalMode": "BridgeInterface"}})),
        "agent.podBridgeInterface is required with agent.detectLocalMode BridgeInterface",
    )?;
    refused(
        &with(json!({"agent": {"detectLocalMode": "InterfaceNamePrefix"}})),
        "agent.podInterfaceNamePrefix is required with agent.detectLocalMode InterfaceNamePrefix",
    )?;
    refused(
        &with(json!({"prometheusRule": {"enabled": true}})),
        "serviceMonitor.enabled is required with prometheusRule.enabled",
    )?;
    refused(
        &with(json!({"prometheusRule": {"enabled": true}, "serviceMonitor": {"enabled": true}})),
        "agent.podMonitor.enabled is required with prometheusRule.enabled",
    )?;
    refused(
        &with(json!({"agent": {
            "podMonitor": {"enabled": true}, "metricsBindAddresses": ["127.0.0.1:10349"],
        }})),
        "agent.metricsBindAddresses has loopback only, which no Prometheus reaches",
    )
}

/// C-60 and C-T04: wrong types and misspelt keys.
#[test]
fn c60_ct04_the_schema_refuses_typos() -> Result<()> {
    let wrong = [
        (json!({"replicaCount": "two"}), "replicaCount"),
        (json!({"replicaCuont": 2}), "replicaCuont"),
        (json!({"agent": {"mdoe": "replace"}}), "mdoe"),
        (json!({"agent": {"mode": "instead"}}), "/agent/mode"),
        (json!({"provider": "gcp"}), "provider"),
        (
            json!({"local": {"endpoint": "10.0.0.1:9000"}}),
            "/local/endpoint",
        ),
        (json!({"image": {"repositroy": "x"}}), "repositroy"),
        (
            json!({"leaderElection": {"leaseDuration": "15"}}),
            "/leaderElection/leaseDuration",
        ),
        (
            json!({"loadBalancerClass": ["a,b"]}),
            "/loadBalancerClass/0",
        ),
        (
            json!({"agent": {"clusterCIDR": ["10.244.0.0"]}}),
            "/agent/clusterCIDR/0",
        ),
        (
            json!({"agent": {"masqueradeBit": 32}}),
            "/agent/masqueradeBit",
        ),
        (json!({"metricsPort": 70000}), "/metricsPort"),
        (json!({"podLabels": {"a": 1}}), "/podLabels/a"),
        (json!({"workers": 4}), "workers"),
        (json!({"crds": {"istall": false}}), "istall"),
        (json!({"vpcId": "0123"}), "/vpcId"),
        (json!({"defaultTags": {"a": "b,c"}}), "/defaultTags/a"),
        (
            json!({"policies": [{"addressPools": ["red"]}]}),
            "/policies/0",
        ),
        (
            json!({"policies": [{"name": "red", "adressPools": []}]}),
            "adressPools",
        ),
        (json!({"orphanGraceSeconds": -1}), "/orphanGraceSeconds"),
        // C-52.
        (json!({"floorPercent": 101}), "/floorPercent"),
        (json!({"holdMaxSeconds": 86_401}), "/holdMaxSeconds"),
        (json!({"holdMaxSeconds": "10m"}), "/holdMaxSeconds"),
        (
            json!({"tailMaxSeconds": {"local": -1}}),
            "/tailMaxSeconds/local",
        ),
        (json!({"tailMaxSeconds": 30}), "/tailMaxSeconds"),
        (json!({"tailFloorSeconds": -1}), "/tailFloorSeconds"),
        (json!({"lateFlows": "keep"}), "/lateFlows"),
        (json!({"tailMaxSeconds": {"gcp": 1}}), "gcp"),
        (json!({"membership": "never"}), "/membership"),
        (
            json!({"agent": {"podHealthPort": 70_000}}),
            "/agent/podHealthPort",
        ),
        (
            json!({"awsApiThrottle": {"members": "4"}}),
            "/awsApiThrottle/members",
        ),
        (json!({"awsApiThrottle": {"member": "4:20"}}), "member"),
        (
            json!({"azure": {"podSecurityGroup": "a/b"}}),
            "/azure/podSecurityGroup",
        ),
        (json!({"image": {"digest": "sha256:12"}}), "/image/digest"),
        (
            json!({"prometheusRule": {"alerts": {"orphans": {"threshold": "many"}}}}),
            "/prometheusRule/alerts/orphans/threshold",
        ),
        (
            json!({"prometheusRule": {"alerts": {"orphan": {}}}}),
            "orphan",
        ),
        (
            json!({"networkPolicy": {"apiServerPorts": []}}),
            "/networkPolicy/apiServerPorts",
        ),
    ];
    for (values, naming) in wrong {
        refused(&with(values), naming)?;
    }
    Ok(())
}
