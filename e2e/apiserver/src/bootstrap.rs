//! What exists in every cluster from the start.

use std::sync::Arc;

use onehop_core::time::Time;
use serde_json::{Value, json};

use crate::state::{Call, Part, State};

/// Creates the system namespaces and the Service `kubernetes`.
pub(crate) fn fill(state: &mut State, now: Time) {
    for namespace in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        let object = json!({"metadata": {"name": namespace}});
        create(state, now, ("", "v1", "namespaces"), "", object);
    }
    let first = state
        .allocations
        .cidrs
        .first()
        .and_then(|cidr| cidr.hosts().next());
    let service = json!({
        "metadata": {
            "name": "kubernetes",
            "labels": {"component": "apiserver", "provider": "kubernetes"}
        },
        "spec": {
            "clusterIP": first.map(|address| address.to_string()),
            "ports": [{"name": "https", "port": 443, "targetPort": 6443, "protocol": "TCP"}]
        }
    });
    create(state, now, ("", "v1", "services"), "default", service);
}

fn create(
    state: &mut State,
    now: Time,
    (group, version, plural): (&str, &str, &str),
    namespace: &str,
    object: Value,
) {
    let Some(kind) = state.kinds.get(group, version, plural).map(Arc::clone) else {
        return;
    };
    let call = Call {
        kind,
        namespace: namespace.to_owned(),
        name: String::new(),
        part: Part::Main,
        manager: "kube-apiserver".into(),
        dry_run: false,
        now,
    };
    if let Err(error) = state.create(&call, object) {
        tracing::error!(%error, plural, "an object of every cluster could not be created");
    }
}
