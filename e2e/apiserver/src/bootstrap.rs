//! What exists in every cluster from the start.

use std::net::SocketAddr;
use std::sync::Arc;

use onehop_core::time::Time;
use serde_json::{Value, json};

use crate::alloc::Family;
use crate::kind::Kind;
use crate::object;
use crate::state::{Call, Part, State};
use crate::verbs::strict::FieldValidation;

/// Creates the system namespaces, the ranges of Services and the Service `kubernetes`.
pub(crate) fn fill(state: &mut State, now: Time) {
    for namespace in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        let object = json!({"metadata": {"name": namespace}});
        create(state, now, ("", "v1", "namespaces"), "", object);
    }
    let cidrs: Vec<String> = state
        .allocations
        .cidrs
        .iter()
        .map(ToString::to_string)
        .collect();
    let ranges = json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": cidrs}});
    create(
        state,
        now,
        ("networking.k8s.io", "v1", "servicecidrs"),
        "",
        ranges,
    );
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

/// Writes the slice of the Service `kubernetes`, which the API server itself looks after.
pub(crate) fn publish(state: &mut State, now: Time, address: SocketAddr) {
    let family = Family::of(address.ip()).name();
    let slice = json!({
        "metadata": {
            "name": "kubernetes", "namespace": "default",
            "labels": {"kubernetes.io/service-name": "kubernetes"}
        },
        "addressType": family,
        "endpoints": [{"addresses": [address.ip().to_string()], "conditions": {"ready": true}}],
        "ports": [{"name": "https", "port": address.port(), "protocol": "TCP"}]
    });
    let kind = state
        .kinds
        .get("discovery.k8s.io", "v1", "endpointslices")
        .map(Arc::clone);
    let Some(kind) = kind else { return };
    let key = object::key("default", "kubernetes");
    let mut call = call(kind, "default", now);
    let outcome = if state.store.get(&call.kind.table, &key).is_some() {
        call.name = "kubernetes".into();
        state.replace(&call, slice).map(drop)
    } else {
        state.create(&call, slice).map(drop)
    };
    if let Err(error) = outcome {
        tracing::error!(%error, %address, "the server's address was not published");
    }
}

fn call(kind: Arc<Kind>, namespace: &str, now: Time) -> Call {
    Call {
        kind,
        namespace: namespace.to_owned(),
        name: String::new(),
        part: Part::Main,
        manager: "kube-apiserver".into(),
        dry_run: false,
        validation: FieldValidation::default(),
        now,
    }
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
    let call = call(kind, namespace, now);
    if let Err(error) = state.create(&call, object) {
        tracing::error!(%error, plural, "an object of every cluster could not be created");
    }
}
