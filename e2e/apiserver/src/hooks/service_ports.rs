//! Node ports and the health check port of Services.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::each_map;
use super::service::{Spec, refuse, spec_mut};
use crate::alloc::Allocations;
use crate::error::{ApiError, FieldError, Result};

fn node_port(port: &Map<String, Value>) -> Option<u16> {
    port.get("nodePort")
        .and_then(Value::as_i64)
        .and_then(|port| u16::try_from(port).ok())
        .filter(|port| *port != 0)
}

fn node_ports(service: &Value) -> BTreeSet<u16> {
    let ports = Spec::of(service)
        .list("ports")
        .iter()
        .filter_map(Value::as_object);
    ports.filter_map(node_port).collect()
}

/// True if every node port of the new Service was one of the old.
pub(super) fn has_no_new_node_port(old: &Value, new: &Value) -> bool {
    node_ports(new).is_subset(&node_ports(old))
}

/// Ports keep their number by name where the client sends none.
pub(super) fn keep_node_ports(service: &mut Value, old: &Value) {
    let named: BTreeMap<&str, u16> = Spec::of(old)
        .list("ports")
        .iter()
        .filter_map(|port| {
            Some((
                port["name"].as_str().unwrap_or_default(),
                node_port(port.as_object()?)?,
            ))
        })
        .collect();
    let used: BTreeSet<u16> = node_ports(old)
        .intersection(&node_ports(service))
        .copied()
        .collect();
    for port in each_map(spec_mut(service), "ports").filter(|port| node_port(port).is_none()) {
        let name = port.get("name").and_then(Value::as_str).unwrap_or_default();
        if let Some(number) = named.get(name).filter(|number| !used.contains(number)) {
            port.insert("nodePort".into(), (*number).into());
        }
    }
}

/// Gives node ports and the health check port.
pub(super) fn allocate(
    allocations: &mut Allocations,
    service: &mut Value,
    old: Option<&Value>,
) -> Result<()> {
    let mut taken = BTreeSet::new();
    let held = old.map(node_ports).unwrap_or_default();
    if Spec::of(service).needs_node_ports() {
        if old.is_some() {
            update_node_ports(allocations, service, &held, &mut taken)?;
        } else {
            create_node_ports(allocations, service, &mut taken)?;
        }
    }
    let needed = old.is_some_and(|old| Spec::of(old).needs_health_port());
    if Spec::of(service).needs_health_port() && !needed {
        take_health_port(allocations, service, &taken)?;
    }
    Ok(())
}

fn refused(service: &Value, index: usize, port: u16, why: &str) -> ApiError {
    refuse(
        service,
        &[FieldError::invalid(
            format!("spec.ports[{index}].nodePort"),
            port,
            why,
        )],
    )
}

fn full(what: &str) -> ApiError {
    ApiError::internal(format!("failed to allocate a {what}: range is full"))
}

/// On creation, ports of one number (TCP and UDP) share a node port.
fn create_node_ports(
    allocations: &mut Allocations,
    service: &mut Value,
    taken: &mut BTreeSet<u16>,
) -> Result<()> {
    let shown = service.clone();
    let allocates = Spec::of(&shown).allocates_node_ports();
    let wishes: Vec<(i64, Option<u16>)> = Spec::of(&shown)
        .list("ports")
        .iter()
        .filter_map(Value::as_object)
        .map(|port| {
            (
                port.get("port").and_then(Value::as_i64).unwrap_or(0),
                node_port(port),
            )
        })
        .collect();
    let mut given: BTreeMap<i64, u16> = BTreeMap::new();
    for (index, port) in each_map(spec_mut(service), "ports").enumerate() {
        let (number, wish) = wishes[index];
        if wish.is_none() && !allocates {
            continue;
        }
        let node_port = match (given.get(&number).copied(), wish) {
            (Some(shared), None) => shared,
            (Some(shared), Some(wish)) if shared == wish => shared,
            (None, None) => {
                let requested = wishes
                    .iter()
                    .find(|(other, wish)| *other == number && wish.is_some());
                match requested.and_then(|(_, wish)| *wish) {
                    Some(wish) => claim(allocations, &shown, index, wish, taken)?,
                    None => allocations
                        .any_port(taken)
                        .ok_or_else(|| full("nodePort"))?,
                }
            }
            (_, Some(wish)) => claim(allocations, &shown, index, wish, taken)?,
        };
        taken.insert(node_port);
        given.entry(number).or_insert(node_port);
        port.insert("nodePort".into(), node_port.into());
    }
    Ok(())
}

fn claim(
    allocations: &Allocations,
    service: &Value,
    index: usize,
    port: u16,
    taken: &BTreeSet<u16>,
) -> Result<u16> {
    allocations
        .check_port(port, taken)
        .map(|()| port)
        .map_err(|why| refused(service, index, port, &why))
}

/// On update, numbers that the Service holds stay and new ports get new ones.
fn update_node_ports(
    allocations: &mut Allocations,
    service: &mut Value,
    held: &BTreeSet<u16>,
    taken: &mut BTreeSet<u16>,
) -> Result<()> {
    let shown = service.clone();
    let allocates = Spec::of(&shown).allocates_node_ports();
    for (index, port) in each_map(spec_mut(service), "ports").enumerate() {
        match node_port(port) {
            Some(number) if held.contains(&number) || taken.contains(&number) => {}
            Some(number) => {
                claim(allocations, &shown, index, number, taken)?;
                taken.insert(number);
            }
            None if allocates => {
                let number = allocations
                    .any_port(taken)
                    .ok_or_else(|| full("nodePort"))?;
                taken.insert(number);
                port.insert("nodePort".into(), number.into());
            }
            None => {}
        }
    }
    Ok(())
}

fn take_health_port(
    allocations: &mut Allocations,
    service: &mut Value,
    taken: &BTreeSet<u16>,
) -> Result<()> {
    let wish = u16::try_from(Spec::of(service).number("healthCheckNodePort")).unwrap_or(0);
    let port = if wish == 0 {
        allocations
            .any_port(taken)
            .ok_or_else(|| full("HealthCheck NodePort"))?
    } else {
        allocations
            .check_port(wish, taken)
            .map(|()| wish)
            .map_err(|why| {
                ApiError::internal(format!(
                    "failed to allocate requested HealthCheck NodePort {wish}: {why}"
                ))
            })?
    };
    spec_mut(service).insert("healthCheckNodePort".into(), port.into());
    Ok(())
}
