//! Validation of addresses in Services, among them the linked fields `clusterIP`, `clusterIPs`, families and their policy.

use std::net::IpAddr;

use serde_json::Value;

use super::service::Spec;
use crate::error::FieldError;

fn strings(list: &[Value]) -> Vec<&str> {
    list.iter()
        .map(|item| item.as_str().unwrap_or_default())
        .collect()
}

/// `IsValidIPForLegacyField`: what was there before may stay.
pub(super) fn ip_problem(path: &str, address: &Value, kept: &[Value]) -> Option<FieldError> {
    let text = address.as_str().unwrap_or_default();
    let detail = match text.parse::<IpAddr>() {
        _ if kept.contains(address) => return None,
        Err(_) => "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
        Ok(IpAddr::V6(mapped)) if mapped.to_ipv4_mapped().is_some() => {
            "must not be an IPv4-mapped IPv6 address"
        }
        Ok(_) => return None,
    };
    Some(FieldError::invalid(path, text, detail))
}

/// `IsValidCIDRForLegacyField`, around which spaces are allowed.
pub(super) fn range_problem(path: String, range: &Value, kept: &[Value]) -> Option<FieldError> {
    let text = range.as_str().unwrap_or_default().trim();
    let mut before = kept.iter().filter_map(Value::as_str);
    if before.any(|before| before.trim() == text) {
        return None;
    }
    let detail = match text.parse::<ipnet::IpNet>() {
        Err(_) => "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
        Ok(net) if net.addr() != net.network() => "must not have bits set beyond the prefix length",
        Ok(_) => return None,
    };
    Some(FieldError::invalid(path, text, detail))
}

/// `ValidateServiceClusterIPsRelatedFields`.
pub(super) fn check_cluster_ips(service: &Value, kept: &[Value]) -> Vec<FieldError> {
    let spec = Spec::of(service);
    let mut errors = Vec::new();
    if spec.is("ExternalName") {
        return errors;
    }
    let (single, addresses) = (spec.text("clusterIP"), strings(spec.list("clusterIPs")));
    let shown = || spec.0["clusterIPs"].clone();
    let path = "spec.clusterIPs";
    match (single, addresses.first()) {
        ("", None) => {}
        ("", Some(_)) => {
            errors.push(FieldError::invalid(
                path,
                shown(),
                "must be empty when `clusterIP` is not specified",
            ));
        }
        (_, None) => errors.push(FieldError::required(path, "")),
        (single, Some(first)) if single != *first => {
            errors.push(FieldError::invalid(
                path,
                shown(),
                "first value must match `clusterIP`",
            ));
        }
        _ => {}
    }
    check_family_words(spec, &mut errors);
    let before = errors.len();
    for (index, address) in addresses.iter().enumerate() {
        if index == 0 && *address == "None" {
            if addresses.len() > 1 {
                errors.push(FieldError::invalid(
                    path,
                    shown(),
                    "'None' must be the first and only value",
                ));
            }
        } else {
            let path = format!("{path}[{index}]");
            errors.extend(ip_problem(&path, &Value::from(*address), kept));
        }
    }
    let invalid = errors.len() > before;
    if addresses.len() > 2 {
        errors.push(FieldError::invalid(
            path,
            shown(),
            "may only hold up to 2 values",
        ));
    }
    if !invalid {
        check_families_match(spec, &addresses, &mut errors);
    }
    errors
}

fn check_family_words(spec: Spec, errors: &mut Vec<FieldError>) {
    let families = strings(spec.list("ipFamilies"));
    for (index, family) in families.iter().enumerate() {
        if !["IPv4", "IPv6"].contains(family) {
            let path = format!("spec.ipFamilies[{index}]");
            errors.push(FieldError::not_supported(path, *family, &["IPv4", "IPv6"]));
        }
        if families[..index].contains(family) {
            errors.push(FieldError::duplicate(
                format!("spec.ipFamilies[{index}]"),
                *family,
            ));
        }
    }
    let policies = ["PreferDualStack", "RequireDualStack", "SingleStack"];
    if let Some(policy) = spec.0["ipFamilyPolicy"]
        .as_str()
        .filter(|policy| !policies.contains(policy))
    {
        errors.push(FieldError::not_supported(
            "spec.ipFamilyPolicy",
            policy,
            &policies,
        ));
    }
}

fn check_families_match(spec: Spec, addresses: &[&str], errors: &mut Vec<FieldError>) {
    let parsed: Vec<IpAddr> = addresses
        .iter()
        .filter_map(|address| address.parse().ok())
        .collect();
    if addresses.len() > 1
        && !(parsed.iter().any(IpAddr::is_ipv4) && parsed.iter().any(IpAddr::is_ipv6))
    {
        let detail = "may specify no more than one IP for each IP family";
        errors.push(FieldError::invalid(
            "spec.clusterIPs",
            spec.0["clusterIPs"].clone(),
            detail,
        ));
    }
    if spec.is_headless() {
        return;
    }
    for (index, (address, family)) in parsed
        .iter()
        .zip(strings(spec.list("ipFamilies")))
        .enumerate()
    {
        let wrong =
            (family == "IPv4" && address.is_ipv6()) || (family == "IPv6" && address.is_ipv4());
        if wrong {
            let detail =
                format!("expected an {family} value as indicated by `ipFamilies[{index}]`");
            errors.push(FieldError::invalid(
                format!("spec.clusterIPs[{index}]"),
                addresses[index],
                detail,
            ));
        }
    }
}
