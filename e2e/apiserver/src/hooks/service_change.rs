//! Validation of Services over time: what may not change once set, and what a new status may say.

use std::net::IpAddr;

use serde_json::Value;

use super::service::Spec;
use super::service_addresses::ip_problem;
use crate::error::FieldError;
use crate::object::list_at;
use crate::verbs::meta;

/// What may not change once set.
pub(super) fn check_change(after: Spec, before: Spec, errors: &mut Vec<FieldError>) {
    let once = "may not change once set";
    if after.needs_cluster_ip() && before.needs_cluster_ip() {
        if !(after.is_headless() && before.is_headless()) {
            check_kept(after, before, errors);
        }
        if !after.is_headless() && !before.is_headless() {
            let (old, new) = (before.list("ipFamilies"), after.list("ipFamilies"));
            if old.iter().zip(new).any(|(old, new)| old != new) {
                errors.push(FieldError::invalid(
                    "spec.ipFamilies[0]",
                    after.0["ipFamilies"].clone(),
                    once,
                ));
            }
        }
    }
    if after.is("LoadBalancer") && before.is("LoadBalancer") {
        let class = &after.0["loadBalancerClass"];
        if *class != before.0["loadBalancerClass"] {
            errors.push(FieldError::invalid(
                "spec.loadBalancerClass",
                class.clone(),
                once,
            ));
        }
    }
    if after.needs_health_port()
        && before.needs_health_port()
        && after.number("healthCheckNodePort") != before.number("healthCheckNodePort")
    {
        errors.push(FieldError::forbidden(
            "spec.healthCheckNodePort",
            "field is immutable",
        ));
    }
}

fn check_kept(after: Spec, before: Spec, errors: &mut Vec<FieldError>) {
    let (old, new) = (before.list("clusterIPs"), after.list("clusterIPs"));
    let shown = || after.0["clusterIPs"].clone();
    if new.is_empty() && !old.is_empty() {
        errors.push(FieldError::invalid(
            "spec.clusterIPs[0]",
            shown(),
            "primary clusterIP can not be unset",
        ));
    }
    for (index, (old, new)) in old.iter().zip(new).enumerate() {
        if old != new {
            let path = format!("spec.clusterIPs[{index}]");
            errors.push(FieldError::invalid(
                path,
                shown(),
                "may not change once set",
            ));
        }
    }
    if old.len() == 2 && new.len() == 1 && after.text("ipFamilyPolicy") != "SingleStack" {
        let detail = "must be set to 'SingleStack' when releasing the secondary clusterIP";
        errors.push(FieldError::invalid(
            "spec.ipFamilyPolicy",
            after.text("ipFamilyPolicy"),
            detail,
        ));
    }
}

/// `ValidateLoadBalancerStatus`.
pub(crate) fn validate_status(service: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let path = "status.loadBalancer.ingress";
    let ingress = service["status"]["loadBalancer"]["ingress"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    if !Spec::of(service).is("LoadBalancer") && !ingress.is_empty() {
        errors.push(FieldError::forbidden(
            path,
            "may only be used when `spec.type` is 'LoadBalancer'",
        ));
        return errors;
    }
    let published = list_at(old, &["status", "loadBalancer", "ingress"]);
    let kept: Vec<Value> = published.iter().map(|entry| entry["ip"].clone()).collect();
    for (index, entry) in ingress.iter().enumerate() {
        check_ingress(&format!("{path}[{index}]"), entry, &kept, &mut errors);
    }
    errors
}

fn check_ingress(path: &str, entry: &Value, kept: &[Value], errors: &mut Vec<FieldError>) {
    let text = |field: &str| entry[field].as_str().unwrap_or_default();
    let (ip, hostname) = (text("ip"), text("hostname"));
    if !ip.is_empty() {
        errors.extend(ip_problem(&format!("{path}.ip"), &entry["ip"], kept));
    }
    let mode_path = format!("{path}.ipMode");
    match entry["ipMode"].as_str() {
        None if ip.is_empty() => {}
        None => {
            let detail = "must be specified when `ip` is set";
            errors.push(FieldError::required(mode_path, detail));
        }
        Some(_) if ip.is_empty() => {
            let detail = "may not be specified when `ip` is not set";
            errors.push(FieldError::forbidden(mode_path, detail));
        }
        Some("Proxy" | "VIP") => {}
        Some(mode) => {
            let modes = ["Proxy", "VIP"];
            errors.push(FieldError::not_supported(mode_path, mode, &modes));
        }
    }
    if hostname.is_empty() {
        return;
    }
    let host_path = format!("{path}.hostname");
    if let Some(problem) = meta::subdomain_problem(hostname) {
        errors.push(FieldError::invalid(host_path.as_str(), hostname, problem));
    }
    if hostname.parse::<IpAddr>().is_ok() {
        let detail = "must be a DNS name, not an IP address";
        errors.push(FieldError::invalid(host_path, hostname, detail));
    }
}
