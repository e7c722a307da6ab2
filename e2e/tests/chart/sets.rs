//! The sets of values that the tests render.

use anyhow::{Context, Result};
use onehop_e2e::chart::{Chart, minimal_values};
use serde_json::{Value, json};

/// A name and values.
pub(crate) struct Set {
    pub(crate) name: String,
    pub(crate) values: Value,
}

/// Minimal values with more on top.
pub(crate) fn with(more: Value) -> Value {
    let mut values = minimal_values();
    overlay(&mut values, &more);
    values
}

/// Puts one set of values over another, as Helm does: maps key by key, everything else whole.
pub(crate) fn overlay(values: &mut Value, more: &Value) {
    match (values.as_object_mut(), more.as_object()) {
        (Some(values), Some(more)) => {
            for (key, value) in more {
                overlay(values.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        _ => *values = more.clone(),
    }
}

/// Sets whose renderings are golden (C-68).
pub(crate) fn golden() -> Result<Vec<Set>> {
    let set = |name: &str, values| Set {
        name: name.to_owned(),
        values,
    };
    Ok(vec![
        set("defaults", minimal_values()),
        set("agent_off", with(json!({"agent": {"enabled": false}}))),
        set(
            "replace",
            with(json!({"agent": {
                "mode": "replace", "apiServer": {"host": "api.example.net", "port": 443}, "clusterCIDR": ["10.244.0.0/16", "fd00::/56"],
            }})),
        ),
        set(
            "azure",
            with(json!({
                "provider": "azure", "local": {"endpoint": ""},
                "serviceAccount": {"create": true, "annotations": {"azure.workload.identity/client-id": "c"}},
                "azure": {
                    "subscriptionId": "s", "location": "westeurope", "resourceGroup": "onehop", "vnet": "v", "subnet": "n",
                    "securityGroup": "g", "podPrefixes": ["10.1.0.0/16"], "tags": {"team": "net"},
                    "tenantId": "t", "clientId": "c",
                },
            })),
        ),
        set(
            "azure_shared",
            with(json!({
                "provider": "azure", "local": {"endpoint": ""}, "claimClassless": true, "takeOver": ["shop", "default/web"],
                "azure": {
                    "cloudConfigSecret": "azure-cloud-provider", "loadBalancer": "kubernetes", "shareLoadBalancer": true,
                    "nodeResourceGroup": "mc_demo", "serviceControllerDisabled": true,
                },
            })),
        ),
        set(
            "everything",
            serde_saphyr::from_str(include_str!("everything.yaml"))?,
        ),
        set("webhook", with(json!({"webhook": {"enabled": true}}))),
        set("aws", aws()),
        set("monitoring", with(monitoring())),
        set(
            "network_policy",
            with(json!({"networkPolicy": {"enabled": true}})),
        ),
    ])
}

/// The least for provider aws.
pub(crate) fn aws() -> Value {
    json!({"clusterName": "demo", "provider": "aws", "vpcId": "vpc-0123456789abcdef0"})
}

/// Everything that is for a Prometheus and a Grafana.
pub(crate) fn monitoring() -> Value {
    json!({
        "serviceMonitor": {"enabled": true}, "prometheusRule": {"enabled": true}, "dashboards": {"enabled": true},
        "agent": {"podMonitor": {"enabled": true}},
    })
}

/// Sets that must render: the golden ones, what users combine, and every values file and example that the chart has.
pub(crate) fn sets() -> Result<Vec<Set>> {
    let more = [
        ("one_replica", with(json!({"replicaCount": 1}))),
        (
            "second_install",
            with(
                json!({"crds": {"install": false}, "agent": {"enabled": false}, "installId": "green"}),
            ),
        ),
        ("types_go_too", with(json!({"crds": {"keep": false}}))),
        (
            "take_over",
            with(json!({"claimClassless": true, "loadBalancerClass": "example.com/other"})),
        ),
        (
            "detector",
            with(
                json!({"agent": {"detectLocalMode": "InterfaceNamePrefix", "podInterfaceNamePrefix": "veth"}}),
            ),
        ),
        (
            "nothing_on_the_node",
            with(json!({"agent": {"kernelSettings": false, "nodeFolder": ""}})),
        ),
        (
            "no_check",
            with(json!({"uninstallCheck": {"enabled": false}, "podDisruptionBudget": null})),
        ),
        ("host_network", with(json!({"hostNetwork": true}))),
    ];
    let mut take_over = aws();
    let claims = json!({
        "claimClassless": true, "loadBalancerClass": "service.k8s.aws/nlb", "lbcServiceControllerDisabled": true,
        "takeOver": ["shop", "default/web"], "takeOverWithDifferences": ["shop/old"],
    });
    overlay(&mut take_over, &claims);
    let mut sets = golden()?;
    sets.push(Set {
        name: "take_over_from_a_peer".to_owned(),
        values: take_over,
    });
    sets.extend(more.map(|(name, values)| Set {
        name: name.to_owned(),
        values,
    }));
    sets.extend(files()?);
    Ok(sets)
}

/// Values files beside the chart's own, and those of the examples.
pub(crate) fn files() -> Result<Vec<Set>> {
    let folder = Chart::folder();
    let mut found = Vec::new();
    for place in std::iter::once(folder.to_owned()).chain(examples()?) {
        for entry in std::fs::read_dir(&place)? {
            let path = entry?.path();
            let file = path.file_name().and_then(|name| name.to_str());
            let file = file.context("a name of a file")?;
            if file.starts_with("values-") && path.extension().is_some_and(|is| is == "yaml") {
                let text = std::fs::read_to_string(&path)?;
                let within = path.strip_prefix(folder)?.display().to_string();
                found.push(Set {
                    name: within.clone(),
                    values: serde_saphyr::from_str(&text).with_context(|| within)?,
                });
            }
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

/// Folders of the examples.
pub(crate) fn examples() -> Result<Vec<std::path::PathBuf>> {
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(Chart::folder().join("examples"))? {
        let path = entry?.path();
        if path.is_dir() {
            folders.push(path);
        }
    }
    folders.sort();
    Ok(folders)
}
