//! `EndpointSlices`: defaults and validation.

use std::net::IpAddr;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};

use super::{default, each_map};
use crate::error::{FieldError, Problem};
use crate::kind::Hooks;
use crate::kinds::typed;
use crate::object::list_at;

/// Behaviour of `EndpointSlices`.
pub(crate) static HOOKS: Hooks = Hooks {
    default: |slice| {
        if let Some(fields) = slice.as_object_mut() {
            for list in ["endpoints", "ports"] {
                default(fields, list, Value::Null);
            }
            for endpoint in each_map(fields, "endpoints") {
                default(endpoint, "conditions", json!({}));
            }
            for port in each_map(fields, "ports") {
                default(port, "name", "");
                default(port, "protocol", "TCP");
            }
        }
    },
    prepare: |_, slice, _| {
        // An empty list comes back from storage as Go's nil, which is shown.
        for list in ["endpoints", "ports"] {
            if slice[list].as_array().is_some_and(Vec::is_empty) {
                slice[list] = Value::Null;
            }
        }
        Ok(())
    },
    zero: |slice| {
        for list in ["endpoints", "ports"] {
            slice[list] = Value::Null;
        }
    },
    validate,
    decode: typed::<EndpointSlice>,
    ..Hooks::PLAIN
};

fn validate(slice: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let types = ["FQDN", "IPv4", "IPv6"];
    let kind = slice["addressType"].as_str().unwrap_or_default();
    if kind.is_empty() {
        errors.push(FieldError::required("addressType", ""));
    } else if !types.contains(&kind) {
        errors.push(FieldError::not_supported("addressType", kind, &types));
    }
    if old.is_some_and(|old| old["addressType"] != slice["addressType"]) {
        errors.push(FieldError::invalid(
            "addressType",
            kind,
            "field is immutable",
        ));
    }
    let endpoints = list_at(slice, &["endpoints"]);
    if endpoints.len() > 1000 {
        let detail = "must have at most 1000 items";
        errors.push(FieldError::new(
            Problem::TooMany,
            "endpoints",
            endpoints.len(),
            detail,
        ));
    }
    for (index, endpoint) in endpoints.iter().enumerate() {
        let addresses = list_at(endpoint, &["addresses"]);
        if addresses.is_empty() {
            errors.push(FieldError::required(
                format!("endpoints[{index}].addresses"),
                "must contain at least 1 address",
            ));
        }
        for (at, address) in addresses.iter().filter_map(Value::as_str).enumerate() {
            let right = match (kind, address.parse::<IpAddr>()) {
                ("IPv4", Ok(address)) => address.is_ipv4(),
                ("IPv6", Ok(address)) => address.is_ipv6(),
                ("IPv4" | "IPv6", Err(_)) => false,
                _ => true,
            };
            if !right {
                let detail = format!("must be a valid {kind} address");
                errors.push(FieldError::invalid(
                    format!("endpoints[{index}].addresses[{at}]"),
                    address,
                    detail,
                ));
            }
        }
    }
    errors
}
