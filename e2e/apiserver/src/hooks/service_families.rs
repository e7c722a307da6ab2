//! `clusterIP`, `clusterIPs`, `ipFamilies` and `ipFamilyPolicy`: linked fields, dual stack and allocation.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::service::{Spec, refuse, spec_mut};
use super::service_addresses::check_cluster_ips;
use crate::alloc::{Allocations, Family};
use crate::error::{ApiError, FieldError, Result};
use crate::object;

/// Old clients know `clusterIP` only, new ones send both (`normalizeClusterIPs`).
pub(super) fn link_cluster_ips(service: &mut Value, old: Option<&Value>) {
    let after = Spec(&service["spec"].clone());
    let single = after.text("clusterIP").to_owned();
    let Some(old) = old else {
        if !single.is_empty() && after.list("clusterIPs").is_empty() {
            spec_mut(service).insert("clusterIPs".into(), json!([single]));
        }
        return;
    };
    let before = Spec::of(old);
    let same_list = before.list("clusterIPs") == after.list("clusterIPs");
    if before.text("clusterIP") == single {
        if !before.list("clusterIPs").is_empty() && after.list("clusterIPs").is_empty() {
            spec_mut(service).insert("clusterIPs".into(), before.list("clusterIPs").into());
        }
    } else if same_list && single.is_empty() {
        spec_mut(service).remove("clusterIPs");
    } else if same_list {
        spec_mut(service).insert("clusterIPs".into(), json!([single]));
    }
}

/// A dual-stack wish that is already fulfilled is left alone (`isMatchingPreferDualStackClusterIPFields`).
fn is_settled(after: Spec, before: Option<Spec>) -> bool {
    let Some(before) = before else { return false };
    let fields = ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"];
    after.text("ipFamilyPolicy") == "PreferDualStack"
        && before.needs_cluster_ip() == after.needs_cluster_ip()
        && fields
            .iter()
            .all(|field| before.0[*field] == after.0[*field])
}

/// Fills `ipFamilyPolicy` and `ipFamilies` (`initIPFamilyFields`).
pub(super) fn settle_families(
    allocations: &Allocations,
    service: &mut Value,
    old: Option<&Value>,
) -> Result<()> {
    let before = old.map(Spec::of);
    if !Spec::of(service).needs_cluster_ip() || is_settled(Spec::of(service), before) {
        return Ok(());
    }
    default_policy(service, before);
    let kept = before.map_or(&[][..], |before| before.list("clusterIPs"));
    let errors = check_cluster_ips(service, kept);
    if !errors.is_empty() {
        return Err(refuse(service, &errors));
    }
    let mut errors = Vec::new();
    if let Some(before) = before {
        release_second(service, before, &mut errors);
    }
    check_single(service, &mut errors);
    infer_families(allocations, service, &mut errors);
    if !errors.is_empty() {
        return Err(refuse(service, &errors));
    }
    let spec = Spec::of(service);
    let single = spec.text("ipFamilyPolicy") == "SingleStack";
    let selectorless_headless = spec.is_headless() && !spec.has_selector();
    if !selectorless_headless {
        check_configured(allocations, service)?;
    }
    add_families(allocations, service, single, selectorless_headless);
    Ok(())
}

fn default_policy(service: &mut Value, before: Option<Spec>) {
    let spec = Spec::of(service);
    if !spec.text("ipFamilyPolicy").is_empty() {
        return;
    }
    let policy = match before.map(|before| before.text("ipFamilyPolicy")) {
        Some(policy) if !policy.is_empty() => policy,
        _ if spec.text("clusterIP") == "None" && !spec.has_selector() => "RequireDualStack",
        _ => "SingleStack",
    };
    let policy = policy.to_owned();
    spec_mut(service).insert("ipFamilyPolicy".into(), policy.into());
}

/// `SingleStack` gives the second address and family back; any other policy must say so.
fn release_second(service: &mut Value, before: Spec, errors: &mut Vec<FieldError>) {
    let after = Spec(&service["spec"].clone());
    let policy = after.text("ipFamilyPolicy");
    for (field, what) in [("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")] {
        let (old, new) = (before.list(field), after.list(field));
        if policy == "SingleStack" {
            if old == new && new.len() > 1 {
                spec_mut(service).insert(field.into(), json!([new[0]]));
            }
        } else if !new.is_empty() && new.len() < old.len() {
            let detail = format!("must be 'SingleStack' to release the secondary {what}");
            errors.push(FieldError::invalid("spec.ipFamilyPolicy", policy, detail));
        }
    }
}

fn check_single(service: &Value, errors: &mut Vec<FieldError>) {
    let spec = Spec::of(service);
    let policy = spec.text("ipFamilyPolicy");
    for (field, what) in [("clusterIPs", "cluster IPs"), ("ipFamilies", "IP families")] {
        if policy == "SingleStack" && spec.list(field).len() == 2 {
            let detail = format!(
                "must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified"
            );
            errors.push(FieldError::invalid("spec.ipFamilyPolicy", policy, detail));
        }
    }
}

/// Families of requested addresses that `ipFamilies` does not name yet.
fn infer_families(allocations: &Allocations, service: &mut Value, errors: &mut Vec<FieldError>) {
    let spec = Spec(&service["spec"].clone());
    let mut families = spec.list("ipFamilies").to_vec();
    for (index, address) in spec.list("clusterIPs").iter().enumerate() {
        let Some(address) = address
            .as_str()
            .and_then(|address| address.parse::<IpAddr>().ok())
        else {
            break;
        };
        if index < families.len() {
            continue;
        }
        let family = Family::of(address);
        if allocations.has_family(family) {
            families.push(family.name().into());
        } else {
            let detail = format!("{} is not configured on this cluster", family.name());
            let path = format!("spec.clusterIPs[{index}]");
            errors.push(FieldError::invalid(
                path,
                spec.0["clusterIPs"].clone(),
                detail,
            ));
        }
    }
    if !families.is_empty() {
        spec_mut(service).insert("ipFamilies".into(), families.into());
    }
}

fn check_configured(allocations: &Allocations, service: &Value) -> Result<()> {
    let spec = Spec::of(service);
    let mut errors = Vec::new();
    if spec.text("ipFamilyPolicy") == "RequireDualStack" && allocations.cidrs.len() < 2 {
        let detail = "this cluster is not configured for dual-stack services";
        errors.push(FieldError::invalid(
            "spec.ipFamilyPolicy",
            "RequireDualStack",
            detail,
        ));
    }
    for (index, family) in spec.list("ipFamilies").iter().enumerate() {
        let known = family
            .as_str()
            .and_then(Family::parse)
            .is_some_and(|family| allocations.has_family(family));
        if !known {
            let path = format!("spec.ipFamilies[{index}]");
            errors.push(FieldError::invalid(
                path,
                family.clone(),
                "not configured on this cluster",
            ));
        }
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(refuse(service, &errors))
    }
}

fn add_families(allocations: &Allocations, service: &mut Value, single: bool, any_cluster: bool) {
    let mut families = Spec::of(service).list("ipFamilies").to_vec();
    if families.is_empty() {
        families.push(allocations.default_family().name().into());
    }
    if let ([only], false, true) = (
        families.as_slice(),
        single,
        any_cluster || allocations.cidrs.len() == 2,
    ) {
        let other = only
            .as_str()
            .and_then(Family::parse)
            .unwrap_or(Family::V4)
            .other();
        families.push(other.name().into());
    }
    spec_mut(service).insert("ipFamilies".into(), families.into());
}

/// Gives every family its address; what was given stays.
pub(super) fn allocate(
    allocations: &mut Allocations,
    service: &mut Value,
    old: Option<&Value>,
) -> Result<()> {
    let spec = Spec(&service["spec"].clone());
    let before = old.map(Spec::of).filter(|before| before.needs_cluster_ip());
    if !spec.needs_cluster_ip()
        || spec
            .list("clusterIPs")
            .first()
            .is_some_and(|address| address == "None")
        || before.is_some_and(Spec::is_headless)
    {
        return Ok(());
    }
    let mut addresses: Vec<String> = spec
        .list("clusterIPs")
        .iter()
        .map(|address| address.as_str().unwrap_or_default().to_owned())
        .collect();
    for (index, family) in spec.list("ipFamilies").iter().enumerate() {
        let held = before.and_then(|before| before.list("clusterIPs").get(index));
        if held.is_some() {
            continue;
        }
        if addresses.len() <= index {
            addresses.push(String::new());
        }
        let family = family
            .as_str()
            .and_then(Family::parse)
            .unwrap_or(Family::V4);
        addresses[index] = take(allocations, service, family, &addresses[index])?;
    }
    if let Some(first) = addresses.first() {
        let first = first.clone();
        let spec = spec_mut(service);
        // A changed first address is for validation to refuse.
        if spec.get("clusterIP").is_none() && before.is_none() {
            spec.insert("clusterIP".into(), first.into());
        }
        spec.insert("clusterIPs".into(), addresses.into());
    }
    Ok(())
}

fn take(
    allocations: &mut Allocations,
    service: &Value,
    family: Family,
    wish: &str,
) -> Result<String> {
    if wish.is_empty() {
        let name = object::name(service);
        return allocations
            .any_address(family)
            .map(|address| address.to_string())
            .ok_or_else(|| {
                ApiError::internal(format!(
                    "failed to allocate a serviceIP for Service {name:?}: range is full"
                ))
            });
    }
    let address: IpAddr = wish
        .parse()
        .map_err(|_| ApiError::internal(format!("failed to parse service IP {wish:?}")))?;
    allocations
        .check_address(address)
        .map(|()| wish.to_owned())
        .map_err(|why| {
            let all = service["spec"]["clusterIPs"].clone();
            let detail = format!("failed to allocate IP {wish}: {why}");
            refuse(
                service,
                &[FieldError::invalid("spec.clusterIPs", all, detail)],
            )
        })
}
