//! The table of built-in kinds, and the registry of everything that is served now.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api;
use serde_json::Value;

use crate::error::FieldError;
use crate::hooks::{config, crd, event, namespace, node, pod, service, slice, workload};
use crate::kind::Trait::{
    ConditionalUpdate, CreateOnUpdate, Generation, Graceful, KeepsStatusOnCreate, LabelName,
    NoDependents, PathName, ReturnsDeleted, Scale, Status,
};
use crate::kind::{Hooks, Kind, Row};
use crate::object::map_mut;

/// Reads a value as a typed object and writes it again: what is missing then is unknown to the type.
pub(crate) fn typed<T: serde::de::DeserializeOwned + serde::Serialize>(
    value: &Value,
) -> Result<Option<Value>, serde_json::Error> {
    // Deserializing from a reference needs no copy of the object.
    serde_json::to_value(T::deserialize(value)?).map(Some)
}

macro_rules! plain {
    ($name:ident, $type:ty) => {
        static $name: Hooks = Hooks {
            decode: typed::<$type>,
            ..Hooks::PLAIN
        };
    };
}

plain!(SERVICE_ACCOUNT, api::core::v1::ServiceAccount);
plain!(ENDPOINTS, api::core::v1::Endpoints);
static LEASE: Hooks = Hooks {
    default: |lease| {
        map_mut(lease, &["spec"]);
    },
    validate: |lease, _| {
        let mut errors = Vec::new();
        let number = |field: &str| lease["spec"][field].as_i64();
        if let Some(seconds) = number("leaseDurationSeconds").filter(|seconds| *seconds <= 0) {
            let (path, detail) = ("spec.leaseDurationSeconds", "must be greater than 0");
            errors.push(FieldError::invalid(path, seconds, detail));
        }
        if let Some(count) = number("leaseTransitions").filter(|count| *count < 0) {
            let detail = "must be greater than or equal to 0";
            errors.push(FieldError::invalid("spec.leaseTransitions", count, detail));
        }
        errors
    },
    decode: typed::<api::coordination::v1::Lease>,
    ..Hooks::PLAIN
};
static DISRUPTION_BUDGET: Hooks = Hooks {
    default: empty_budget,
    zero: empty_budget,
    decode: typed::<api::policy::v1::PodDisruptionBudget>,
    ..Hooks::PLAIN
};

/// What Go writes of a budget that says nothing.
fn empty_budget(budget: &mut Value) {
    map_mut(budget, &["spec"]);
    let status = map_mut(budget, &["status"]);
    for field in [
        "currentHealthy",
        "desiredHealthy",
        "disruptionsAllowed",
        "expectedPods",
    ] {
        status.entry(field).or_insert_with(|| 0.into());
    }
}

const RBAC: &str = "rbac.authorization.k8s.io";
const ADMISSION: &str = "admissionregistration.k8s.io";

/// Every built-in kind.
pub(crate) static ROWS: &[Row] = &[
    Row::namespaced("", "v1", "Pod", "pods")
        .short(&["po"])
        .traits(&[Status, Generation, ReturnsDeleted, Graceful])
        .hooks(&pod::HOOKS),
    Row::namespaced("", "v1", "Service", "services")
        .short(&["svc"])
        .traits(&[Status, CreateOnUpdate, ReturnsDeleted, LabelName])
        .hooks(&service::HOOKS),
    Row::namespaced("", "v1", "Endpoints", "endpoints")
        .short(&["ep"])
        .traits(&[CreateOnUpdate])
        .hooks(&ENDPOINTS),
    Row::namespaced("", "v1", "ConfigMap", "configmaps")
        .short(&["cm"])
        .hooks(&config::CONFIG_MAP),
    Row::namespaced("", "v1", "Secret", "secrets").hooks(&config::SECRET),
    Row::namespaced("", "v1", "ServiceAccount", "serviceaccounts")
        .short(&["sa"])
        .traits(&[ReturnsDeleted])
        .hooks(&SERVICE_ACCOUNT),
    Row::namespaced("", "v1", "Event", "events")
        .short(&["ev"])
        .traits(&[CreateOnUpdate, NoDependents, PathName])
        .hooks(&event::CORE),
    Row::cluster("", "v1", "Node", "nodes")
        .short(&["no"])
        .traits(&[Status, KeepsStatusOnCreate])
        .hooks(&node::HOOKS),
    Row::cluster("", "v1", "Namespace", "namespaces")
        .short(&["ns"])
        .traits(&[Status, ReturnsDeleted, LabelName])
        .hooks(&namespace::HOOKS),
    Row::namespaced("apps", "v1", "Deployment", "deployments")
        .short(&["deploy"])
        .traits(&[Status, Scale, Generation])
        .hooks(&workload::DEPLOYMENT),
    Row::namespaced("apps", "v1", "ReplicaSet", "replicasets")
        .short(&["rs"])
        .traits(&[Status, Scale, Generation])
        .hooks(&workload::REPLICA_SET),
    Row::namespaced("apps", "v1", "DaemonSet", "daemonsets")
        .short(&["ds"])
        .traits(&[Status, Generation])
        .hooks(&workload::DAEMON_SET),
    Row::namespaced("apps", "v1", "StatefulSet", "statefulsets")
        .short(&["sts"])
        .traits(&[Status, Scale, Generation])
        .hooks(&workload::STATEFUL_SET),
    Row::namespaced("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
        .traits(&[Generation])
        .hooks(&slice::HOOKS),
    Row::namespaced("events.k8s.io", "v1", "Event", "events")
        .short(&["ev"])
        .traits(&[CreateOnUpdate, NoDependents])
        .hooks(&event::EVENTS)
        .shape("EventsEvent")
        .stored_as("events", event::CONVERSION),
    Row::namespaced("coordination.k8s.io", "v1", "Lease", "leases")
        .traits(&[CreateOnUpdate, ConditionalUpdate])
        .hooks(&LEASE),
    Row::namespaced(
        "policy",
        "v1",
        "PodDisruptionBudget",
        "poddisruptionbudgets",
    )
    .short(&["pdb"])
    .traits(&[Status, Generation, ConditionalUpdate, PathName])
    .hooks(&DISRUPTION_BUDGET),
    Row::namespaced(
        "networking.k8s.io",
        "v1",
        "NetworkPolicy",
        "networkpolicies",
    )
    .short(&["netpol"])
    .traits(&[Generation]),
    Row::cluster("networking.k8s.io", "v1", "IngressClass", "ingressclasses").traits(&[Generation]),
    Row::cluster("networking.k8s.io", "v1", "ServiceCIDR", "servicecidrs").traits(&[Status]),
    Row::cluster("networking.k8s.io", "v1", "IPAddress", "ipaddresses").short(&["ip"]),
    Row::namespaced(RBAC, "v1", "Role", "roles").traits(&[CreateOnUpdate, PathName]),
    Row::namespaced(RBAC, "v1", "RoleBinding", "rolebindings").traits(&[CreateOnUpdate, PathName]),
    Row::cluster(RBAC, "v1", "ClusterRole", "clusterroles").traits(&[CreateOnUpdate, PathName]),
    Row::cluster(RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings")
        .traits(&[CreateOnUpdate, PathName]),
    Row::cluster(
        ADMISSION,
        "v1",
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
    )
    .traits(&[Generation, ConditionalUpdate]),
    Row::cluster(
        ADMISSION,
        "v1",
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
    )
    .traits(&[Generation, ConditionalUpdate]),
    Row::cluster(
        ADMISSION,
        "v1",
        "ValidatingAdmissionPolicy",
        "validatingadmissionpolicies",
    )
    .traits(&[Status, Generation, ConditionalUpdate]),
    Row::cluster(
        ADMISSION,
        "v1",
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
    )
    .traits(&[Generation, ConditionalUpdate]),
    Row::cluster(
        "scheduling.k8s.io",
        "v1",
        "PriorityClass",
        "priorityclasses",
    )
    .short(&["pc"])
    .traits(&[Generation]),
    Row::cluster(
        crd::GROUP,
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
    )
    .short(&["crd", "crds"])
    .traits(&[Status, Generation, ConditionalUpdate])
    .hooks(&crd::HOOKS),
];

/// What is served now: built-in kinds and those of established CRDs.
#[derive(Default)]
pub(crate) struct Kinds {
    /// By (group, version, plural).
    rows: BTreeMap<(String, String, String), Arc<Kind>>,
    /// One kind per table: the one that needs no conversion.
    tables: BTreeMap<String, Arc<Kind>>,
}

impl Kinds {
    /// All built-in kinds.
    pub(crate) fn built_in() -> Self {
        let mut kinds = Self::default();
        for row in ROWS {
            kinds.insert(row.build());
        }
        kinds
    }

    /// Serves a kind; replaces one of the same group, version and plural.
    pub(crate) fn insert(&mut self, kind: Kind) {
        let key = (
            kind.group.to_string(),
            kind.version.to_string(),
            kind.plural.to_string(),
        );
        let kind = Arc::new(kind);
        if kind.conversion.is_none() {
            self.tables.insert(kind.table.clone(), kind.clone());
        }
        self.rows.insert(key, kind);
    }

    /// Stops serving every version of a resource.
    pub(crate) fn remove(&mut self, group: &str, plural: &str) {
        self.rows
            .retain(|(g, _, p), _| (g.as_str(), p.as_str()) != (group, plural));
        self.tables.remove(&Kind::table_name(group, plural));
    }

    pub(crate) fn get(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Kind>> {
        self.rows
            .get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
    }

    /// The kind that an ownerReference or a manifest names.
    pub(crate) fn by_kind(&self, api_version: &str, kind: &str) -> Option<&Arc<Kind>> {
        self.iter()
            .find(|row| row.kind == kind && row.api_version() == api_version)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.rows.values()
    }

    /// The kind whose objects a table holds.
    pub(crate) fn of_table(&self, table: &str) -> Option<&Arc<Kind>> {
        self.tables.get(table)
    }

    /// One kind per table, for walks over every object.
    pub(crate) fn stored(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.tables.values()
    }
}
