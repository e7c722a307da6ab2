//! Services: defaults, allocated fields and what follows a change of type.
//!
//! The steps and their order are those of `pkg/registry/core/service` of the real server.

use k8s_openapi::api::core::v1::Service;
use serde_json::{Map, Value, json};

use super::{default, each_map, service_change, service_check, service_families, service_ports};
use crate::alloc::Allocations;
use crate::error::{ApiError, FieldError, GroupResource, Result};
use crate::kind::Hooks;
use crate::kinds::typed;
use crate::object::{self, list_at, map_mut, str_at};

/// Behaviour of Services.
pub(crate) static HOOKS: Hooks = Hooks {
    default: defaults,
    prepare,
    validate: service_check::validate,
    validate_status: service_change::validate_status,
    fields: &["spec.clusterIP", "spec.type"],
    decode: typed::<Service>,
    zero: |_| (),
};

/// `spec` with the questions that the rules ask of it.
#[derive(Clone, Copy)]
pub(super) struct Spec<'a>(pub(super) &'a Value);

impl<'a> Spec<'a> {
    pub(super) fn of(service: &'a Value) -> Self {
        Self(&service["spec"])
    }

    pub(super) fn text(self, field: &str) -> &'a str {
        str_at(self.0, &[field])
    }

    pub(super) fn list(self, field: &str) -> &'a [Value] {
        list_at(self.0, &[field])
    }

    pub(super) fn number(self, field: &str) -> i64 {
        self.0[field].as_i64().unwrap_or(0)
    }

    pub(super) fn is(self, kind: &str) -> bool {
        self.text("type") == kind
    }

    pub(super) fn needs_cluster_ip(self) -> bool {
        !self.is("ExternalName")
    }

    pub(super) fn needs_node_ports(self) -> bool {
        self.is("NodePort") || self.is("LoadBalancer")
    }

    /// A LoadBalancer with policy Local has a health check port.
    pub(super) fn needs_health_port(self) -> bool {
        self.is("LoadBalancer") && self.text("externalTrafficPolicy") == "Local"
    }

    pub(super) fn externally_accessible(self) -> bool {
        self.needs_node_ports() || (self.is("ClusterIP") && !self.list("externalIPs").is_empty())
    }

    pub(super) fn allocates_node_ports(self) -> bool {
        match self.text("type") {
            "NodePort" => true,
            "LoadBalancer" => self.0["allocateLoadBalancerNodePorts"] != false,
            _ => false,
        }
    }

    pub(super) fn is_headless(self) -> bool {
        self.list("clusterIPs") == ["None"]
    }

    pub(super) fn has_selector(self) -> bool {
        self.0["selector"]
            .as_object()
            .is_some_and(|selector| !selector.is_empty())
    }
}

/// Fields of `spec`, to change them.
pub(super) fn spec_mut(service: &mut Value) -> &mut Map<String, Value> {
    map_mut(service, &["spec"])
}

/// 422 for a Service.
pub(super) fn refuse(service: &Value, errors: &[FieldError]) -> ApiError {
    ApiError::invalid(
        &GroupResource::new("", "Service"),
        object::name(service),
        errors,
    )
}

fn defaults(service: &mut Value) {
    let spec = spec_mut(service);
    // Empty values of a Go struct are not there.
    for field in [
        "clusterIP",
        "externalTrafficPolicy",
        "type",
        "loadBalancerIP",
        "externalName",
    ] {
        if spec.get(field).is_some_and(|value| value == "") {
            spec.remove(field);
        }
    }
    for list in [
        "clusterIPs",
        "ipFamilies",
        "externalIPs",
        "loadBalancerSourceRanges",
        "ports",
    ] {
        if spec
            .get(list)
            .is_some_and(|value| value.as_array().is_some_and(Vec::is_empty))
        {
            spec.remove(list);
        }
    }
    if spec
        .get("healthCheckNodePort")
        .is_some_and(|port| port == 0)
    {
        spec.remove("healthCheckNodePort");
    }
    default(spec, "sessionAffinity", "None");
    match spec["sessionAffinity"].as_str() {
        Some("None") => drop(spec.remove("sessionAffinityConfig")),
        Some("ClientIP")
            if spec
                .get("sessionAffinityConfig")
                .is_none_or(|config| config["clientIP"]["timeoutSeconds"].is_null()) =>
        {
            spec.insert(
                "sessionAffinityConfig".into(),
                json!({"clientIP": {"timeoutSeconds": 10800}}),
            );
        }
        _ => {}
    }
    default(spec, "type", "ClusterIP");
    for port in each_map(spec, "ports") {
        default_port(port);
    }
    let kind = spec["type"].as_str().unwrap_or_default().to_owned();
    let accessible = Spec(&Value::Object(spec.clone())).externally_accessible();
    if accessible {
        default(spec, "externalTrafficPolicy", "Cluster");
    }
    if ["ClusterIP", "NodePort", "LoadBalancer"].contains(&kind.as_str()) {
        default(spec, "internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        default(spec, "allocateLoadBalancerNodePorts", true);
    }
    default_ingress(service);
}

fn default_port(port: &mut Map<String, Value>) {
    if port.get("protocol").is_none_or(|protocol| protocol == "") {
        port.insert("protocol".into(), "TCP".into());
    }
    if port
        .get("targetPort")
        .is_none_or(|target| target == 0 || target == "")
    {
        let target = port.get("port").cloned().unwrap_or_default();
        port.insert("targetPort".into(), target);
    }
    if port.get("nodePort").is_some_and(|port| port == 0) {
        port.remove("nodePort");
    }
    if port.get("name").is_some_and(|name| name == "") {
        port.remove("name");
    }
}

/// The status is an empty struct, never absent; published addresses are VIPs unless they say otherwise.
fn default_ingress(service: &mut Value) {
    let balanced = Spec::of(service).is("LoadBalancer");
    let status = map_mut(service, &["status", "loadBalancer"]);
    if status
        .get("ingress")
        .is_some_and(|list| list.as_array().is_some_and(Vec::is_empty))
    {
        status.remove("ingress");
    }
    if !balanced {
        return;
    }
    for ingress in each_map(status, "ingress") {
        if ingress.get("ip").is_some_and(|ip| ip != "") {
            default(ingress, "ipMode", "VIP");
        }
    }
}

fn prepare(allocations: &mut Allocations, service: &mut Value, old: Option<&Value>) -> Result<()> {
    // The generic code removes what a creation says of status.
    default_ingress(service);
    if let Some(old) = old {
        keep_allocated(service, old);
    }
    service_families::link_cluster_ips(service, old);
    service_families::settle_families(allocations, service, old)?;
    service_families::allocate(allocations, service, old)?;
    service_ports::allocate(allocations, service, old)?;
    if let Some(old) = old {
        drop_fields_of_old_type(service, old);
    }
    Ok(())
}

/// Values that the server gave stay where the client sends none, so that the same manifest can be sent again.
fn keep_allocated(service: &mut Value, old: &Value) {
    let (before, after) = (Spec::of(old), Spec::of(service));
    let (cluster_ip, health) = (
        before.needs_cluster_ip() && after.needs_cluster_ip(),
        before.needs_health_port() && after.needs_health_port(),
    );
    let node_ports = before.needs_node_ports() && after.needs_node_ports();
    if node_ports {
        service_ports::keep_node_ports(service, old);
    }
    let spec = spec_mut(service);
    let mut keep = |field: &str| {
        if let Some(value) = old["spec"].get(field) {
            default(spec, field, value.clone());
        }
    };
    if cluster_ip {
        keep("clusterIP");
        keep("clusterIPs");
    }
    if health {
        keep("healthCheckNodePort");
    }
}

/// Fields that the old type needed, the new one does not, and the user left alone.
fn drop_fields_of_old_type(service: &mut Value, old: &Value) {
    let (before, after) = (Spec::of(old), Spec(&service["spec"].clone()));
    let same = |field: &str| before.0[field] == after.0[field];
    let mut dropped: Vec<&str> = Vec::new();
    if before.needs_cluster_ip() && !after.needs_cluster_ip() {
        if same("clusterIP") && same("clusterIPs") {
            dropped.extend(["clusterIP", "clusterIPs"]);
        }
        dropped.extend(
            ["ipFamilies", "ipFamilyPolicy"]
                .into_iter()
                .filter(|field| same(field)),
        );
    }
    if before.needs_health_port() && !after.needs_health_port() && same("healthCheckNodePort") {
        dropped.push("healthCheckNodePort");
    }
    let (was_balanced, is_balanced) = (before.is("LoadBalancer"), after.is("LoadBalancer"));
    if was_balanced && !is_balanced {
        dropped.extend(
            ["allocateLoadBalancerNodePorts", "loadBalancerClass"]
                .into_iter()
                .filter(|field| same(field)),
        );
    }
    if before.externally_accessible()
        && !after.externally_accessible()
        && same("externalTrafficPolicy")
    {
        dropped.push("externalTrafficPolicy");
    }
    let node_ports = before.needs_node_ports()
        && !after.needs_node_ports()
        && service_ports::has_no_new_node_port(old, service);
    let spec = spec_mut(service);
    for field in dropped {
        spec.remove(field);
    }
    if node_ports {
        each_map(spec, "ports").for_each(|port| drop(port.remove("nodePort")));
    }
    if !is_balanced {
        map_mut(service, &["status"]).insert("loadBalancer".into(), json!({}));
    }
}
