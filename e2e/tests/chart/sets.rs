//! The sets of values that the tests render.

use anyhow::Result;
use onehop_e2e::chart::minimal_values;
use serde_json::{Value, json};

/// A name and values.
pub(crate) struct Set {
    pub(crate) name: &'static str,
    pub(crate) values: Value,
}

/// Minimal values with more on top.
pub(crate) fn with(more: Value) -> Value {
    let mut values = minimal_values();
    if let (Some(values), Some(more)) = (values.as_object_mut(), more.as_object()) {
        values.extend(more.clone());
    }
    values
}

/// Sets that must render (C-68).
pub(crate) fn sets() -> Result<Vec<Set>> {
    let set = |name, values| Set { name, values };
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
            "aws",
            json!({
                "clusterName": "demo", "provider": "aws",
                "aws": {
                    "vpcId": "vpc-0123456789abcdef0", "region": "eu-central-1", "defaultTargetType": "ip",
                    "defaultTags": {"team": "edge", "cost centre": "42"},
                },
                "loadBalancerClass": ["service.k8s.aws/nlb"],
                "takeOver": {"lbcServiceControllerDisabled": true},
            }),
        ),
        set(
            "everything",
            serde_saphyr::from_str(include_str!("everything.yaml"))?,
        ),
    ])
}
