//! Validation of Services over time: what may not change once set, and what a new status may say.

use std::net::IpAddr;

use serde_json::Value;

use super::service::Spec;
use crate::error::FieldError;

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
pub(crate) fn validate_status(service: &Value, _old: &Value) -> Vec<FieldError> {
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
    for (index, entry) in ingress.iter().enumerate() {
        let ip = entry["ip"].as_str().unwrap_or_default();
        if !ip.is_empty() && ip.parse::<IpAddr>().is_err() {
            let detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            errors.push(FieldError::invalid(
                format!("{path}[{index}].ip"),
                ip,
                detail,
            ));
        }
        match entry["ipMode"].as_str() {
            None => {
                if !ip.is_empty() {
                    errors.push(FieldError::required(
                        format!("{path}[{index}].ipMode"),
                        "must be specified when `ip` is set",
                    ));
                }
            }
            Some(mode) => {
                if ip.is_empty() {
                    let detail = "may not be specified when `ip` is not set";
                    errors.push(FieldError::forbidden(
                        format!("{path}[{index}].ipMode"),
                        detail,
                    ));
                }
                if !["Proxy", "VIP"].contains(&mode) {
                    errors.push(FieldError::not_supported(
                        format!("{path}[{index}].ipMode"),
                        mode,
                        &["Proxy", "VIP"],
                    ));
                }
            }
        }
        let hostname = entry["hostname"].as_str().unwrap_or_default();
        if hostname.parse::<IpAddr>().is_ok() {
            let detail = "must be a DNS name, not an IP address";
            errors.push(FieldError::invalid(
                format!("{path}[{index}].hostname"),
                hostname,
                detail,
            ));
        }
    }
    errors
}
