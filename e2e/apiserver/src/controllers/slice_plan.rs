//! What the slices of a Service should hold, and the fewest writes to get there. Pure.
//!
//! Follows `k8s.io/endpointslice`: slices are kept per address family and set of ports, filled before new ones are
//! made, and never hold more than [`MAX`] endpoints.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::pods::is_ready;
use super::scheduler::ZONE;
use crate::alloc::Family;
use crate::object::{self, is_deleting, label, list_at, map_mut, str_at};

/// Most endpoints of a slice.
pub(crate) const MAX: usize = 100;
/// Label that names the Service.
pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Label that names the writer.
pub(crate) const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// The writer.
pub(crate) const MANAGER: &str = "endpointslice-controller.k8s.io";
const HEADLESS: &str = "service.kubernetes.io/headless";

/// Nodes by name.
pub(crate) type Nodes = BTreeMap<String, Arc<Value>>;

/// Writes to be done.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) create: Vec<Value>,
    pub(crate) update: Vec<Value>,
    pub(crate) delete: Vec<Value>,
    /// A pod whose node is not known; it is left out for now.
    pub(crate) missing_node: Option<String>,
}

/// Plans the slices of a Service.
pub(crate) fn plan(
    service: &Value,
    pods: &[Arc<Value>],
    slices: &[Arc<Value>],
    nodes: &Nodes,
) -> Plan {
    let families: Vec<Family> = list_at(service, &["spec", "ipFamilies"])
        .iter()
        .filter_map(|family| Family::parse(family.as_str()?))
        .collect();
    let mut plan = Plan::default();
    let is_wanted = |slice: &Value| {
        families
            .iter()
            .any(|family| slice["addressType"] == family.name())
    };
    plan.delete.extend(
        slices
            .iter()
            .filter(|slice| !is_wanted(slice))
            .map(|slice| Value::clone(slice)),
    );
    for family in families {
        let own: Vec<&Value> = slices
            .iter()
            .map(Arc::as_ref)
            .filter(|slice| slice["addressType"] == family.name())
            .collect();
        plan_family(service, pods, &own, nodes, family, &mut plan);
    }
    plan
}

/// Endpoints of one set of ports.
type ByPorts = BTreeMap<String, (Value, Vec<Value>)>;

fn plan_family(
    service: &Value,
    pods: &[Arc<Value>],
    slices: &[&Value],
    nodes: &Nodes,
    family: Family,
    plan: &mut Plan,
) {
    let mut wanted = ByPorts::new();
    for pod in pods {
        let ports = endpoint_ports(service, pod);
        let node = nodes.get(str_at(pod, &["spec", "nodeName"]));
        let tolerant = service["spec"]["publishNotReadyAddresses"] == true;
        let endpoint = endpoint(service, pod, node.map(Arc::as_ref), family);
        let addressed = !list_at(pod, &["status", "podIPs"]).is_empty();
        if addressed && node.is_none() && !tolerant {
            plan.missing_node = Some(object::key_of(pod));
            continue;
        }
        if addressed {
            let entry = wanted
                .entry(ports.to_string())
                .or_insert_with(|| (ports, Vec::new()));
            entry.1.extend(endpoint);
        }
    }
    let mut changes = Changes::default();
    let mut kept = 0;
    let owned = |slice: &Value| {
        list_at(slice, &["metadata", "ownerReferences"])
            .iter()
            .any(|owner| owner["uid"] == object::uid(service))
    };
    let mut by_ports: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
    for slice in slices {
        if owned(slice) {
            by_ports
                .entry(slice["ports"].to_string())
                .or_default()
                .push(slice);
        } else {
            changes.delete.push((*slice).clone());
        }
    }
    for (key, (ports, endpoints)) in wanted {
        let existing = by_ports.remove(&key).unwrap_or_default();
        kept += changes.fill(service, family, &ports, endpoints, &existing);
    }
    changes
        .delete
        .extend(by_ports.into_values().flatten().cloned());
    if kept == 0 && changes.create.is_empty() && changes.update.is_empty() {
        changes.keep_placeholder(service, family);
    }
    changes.reuse_deleted(service);
    plan.create.append(&mut changes.create);
    plan.update.append(&mut changes.update);
    plan.delete.append(&mut changes.delete);
}

#[derive(Default)]
struct Changes {
    create: Vec<Value>,
    update: Vec<Value>,
    delete: Vec<Value>,
}

impl Changes {
    /// Distributes endpoints over the slices of their ports; the answer is how many slices stay as they are.
    fn fill(
        &mut self,
        service: &Value,
        family: Family,
        ports: &Value,
        mut endpoints: Vec<Value>,
        existing: &[&Value],
    ) -> usize {
        let labels = slice_labels(service);
        let (mut updated, mut unchanged): (Vec<Value>, Vec<Value>) = (Vec::new(), Vec::new());
        for slice in existing {
            let mut kept = Vec::new();
            for old in list_at(slice, &["endpoints"]) {
                if let Some(at) = endpoints
                    .iter()
                    .position(|new| identity(new) == identity(old))
                {
                    kept.push(endpoints.remove(at));
                }
            }
            let same = kept.as_slice() == list_at(slice, &["endpoints"]);
            if kept.is_empty() && !same {
                self.delete.push((*slice).clone());
                continue;
            }
            let mut next = (*slice).clone();
            next["endpoints"] = kept.into();
            next["metadata"]["labels"] = labels.clone();
            if next == **slice {
                unchanged.push(next);
            } else {
                updated.push(next);
            }
        }
        // Slices that are written anyway take new endpoints first, the fullest before others.
        updated.sort_by_key(|slice| std::cmp::Reverse(size(slice)));
        for slice in &mut updated {
            top_up(slice, &mut endpoints);
        }
        while !endpoints.is_empty() {
            let room = |slice: &&mut Value| MAX.checked_sub(size(slice) + endpoints.len());
            let best = if endpoints.len() < MAX {
                let fitting = unchanged
                    .iter_mut()
                    .enumerate()
                    .filter_map(|(at, slice)| Some((room(&&mut *slice)?, at)));
                fitting.min().map(|(_, at)| at)
            } else {
                None
            };
            let mut slice = match best {
                Some(at) => unchanged.remove(at),
                None => new_slice(service, family, ports),
            };
            top_up(&mut slice, &mut endpoints);
            if object::name(&slice).is_empty() {
                self.create.push(slice);
            } else {
                updated.push(slice);
            }
        }
        self.update.append(&mut updated);
        unchanged.len()
    }

    /// A Service without any endpoint has one empty slice.
    fn keep_placeholder(&mut self, service: &Value, family: Family) {
        let empty = new_slice(service, family, &json!([]));
        let is_placeholder = |slice: &Value| {
            list_at(slice, &["endpoints"]).is_empty()
                && list_at(slice, &["ports"]).is_empty()
                && slice["metadata"]["labels"] == empty["metadata"]["labels"]
        };
        if self.delete.len() == 1 && is_placeholder(&self.delete[0]) {
            self.delete.clear();
        } else {
            self.create.push(empty);
        }
    }

    /// A slice that would be deleted is written anew instead of one being created.
    fn reuse_deleted(&mut self, service: &Value) {
        let owned = |slice: &Value| {
            list_at(slice, &["metadata", "ownerReferences"])
                .iter()
                .any(|owner| owner["uid"] == object::uid(service))
        };
        while let Some(at) = self.delete.iter().position(&owned) {
            let Some(mut slice) = self.create.pop() else {
                return;
            };
            let old = self.delete.remove(at);
            for field in ["name", "uid", "resourceVersion"] {
                object::carry(map_mut(&mut slice, &["metadata"]), &old["metadata"], field);
            }
            slice["metadata"]["namespace"] = old["metadata"]["namespace"].clone();
            self.update.push(slice);
        }
    }
}

fn size(slice: &Value) -> usize {
    list_at(slice, &["endpoints"]).len()
}

fn top_up(slice: &mut Value, endpoints: &mut Vec<Value>) {
    let room = MAX.saturating_sub(size(slice)).min(endpoints.len());
    let more = endpoints.drain(..room);
    if let Some(list) = slice["endpoints"].as_array_mut() {
        list.extend(more);
    }
}

/// What makes an endpoint the same one (`hashEndpoint`).
fn identity(endpoint: &Value) -> (&Value, &Value, &Value, &Value) {
    let target = &endpoint["targetRef"];
    (
        &endpoint["addresses"],
        &endpoint["hostname"],
        &target["namespace"],
        &target["name"],
    )
}

fn new_slice(service: &Value, family: Family, ports: &Value) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "generateName": format!("{}-", object::name(service)),
            "labels": slice_labels(service),
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Service", "name": object::name(service), "uid": object::uid(service),
                "controller": true, "blockOwnerDeletion": true
            }],
        },
        "addressType": family.name(), "ports": ports, "endpoints": [],
    })
}

fn slice_labels(service: &Value) -> Value {
    let mut labels: Map<String, Value> = service["metadata"]["labels"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    labels.retain(|key, _| ![SERVICE_NAME, MANAGED_BY, HEADLESS].contains(&key.as_str()));
    if ["None", ""].contains(&str_at(service, &["spec", "clusterIP"])) {
        labels.insert(HEADLESS.into(), "".into());
    }
    labels.insert(SERVICE_NAME.into(), object::name(service).into());
    labels.insert(MANAGED_BY.into(), MANAGER.into());
    Value::Object(labels)
}

/// A Service's ports as this pod has them; a named port that it lacks is left out.
fn endpoint_ports(service: &Value, pod: &Value) -> Value {
    let ports = list_at(service, &["spec", "ports"]).iter().filter_map(|port| {
        let number = target_port(pod, port)?;
        let mut endpoint = json!({
            "name": port["name"].as_str().unwrap_or_default(), "port": number, "protocol": port["protocol"]
        });
        if !port["appProtocol"].is_null() {
            endpoint["appProtocol"] = port["appProtocol"].clone();
        }
        Some(endpoint)
    });
    ports.collect::<Vec<Value>>().into()
}

fn target_port(pod: &Value, port: &Value) -> Option<i64> {
    let Some(name) = port["targetPort"].as_str() else {
        return port["targetPort"].as_i64();
    };
    let sidecars = list_at(pod, &["spec", "initContainers"])
        .iter()
        .filter(|one| one["restartPolicy"] == "Always");
    let containers = list_at(pod, &["spec", "containers"]).iter().chain(sidecars);
    let mut ports = containers.flat_map(|container| list_at(container, &["ports"]));
    ports.find(|own| own["name"] == name && own["protocol"] == port["protocol"])?["containerPort"]
        .as_i64()
}

/// A pod as endpoint of a family; none if it has no address of it.
fn endpoint(service: &Value, pod: &Value, node: Option<&Value>, family: Family) -> Option<Value> {
    let addresses: Vec<&Value> = list_at(pod, &["status", "podIPs"])
        .iter()
        .map(|entry| &entry["ip"])
        .filter(|ip| {
            let address = ip.as_str().and_then(|ip| ip.parse::<IpAddr>().ok());
            address.is_some_and(|address| Family::of(address) == family)
        })
        .collect();
    if addresses.is_empty() {
        return None;
    }
    let (serving, terminating) = (is_ready(pod), is_deleting(pod));
    let ready = service["spec"]["publishNotReadyAddresses"] == true || (serving && !terminating);
    let mut endpoint = json!({
        "addresses": addresses,
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        "targetRef": {
            "kind": "Pod", "namespace": object::namespace(pod), "name": object::name(pod), "uid": object::uid(pod)
        },
    });
    let node_name = str_at(pod, &["spec", "nodeName"]);
    if !node_name.is_empty() {
        endpoint["nodeName"] = node_name.into();
    }
    let zone = node
        .and_then(|node| label(node, ZONE))
        .filter(|zone| !zone.is_empty());
    if let Some(zone) = zone {
        endpoint["zone"] = zone.into();
    }
    let (hostname, subdomain) = (
        str_at(pod, &["spec", "hostname"]),
        str_at(pod, &["spec", "subdomain"]),
    );
    if !hostname.is_empty() && subdomain == object::name(service) {
        endpoint["hostname"] = hostname.into();
    }
    if let Some(hints) = hints(service, ready, zone, node_name) {
        endpoint["hints"] = hints;
    }
    Some(endpoint)
}

/// Hints of `spec.trafficDistribution`: the endpoint's own zone, and its node where that is asked for.
fn hints(service: &Value, ready: bool, zone: Option<&str>, node: &str) -> Option<Value> {
    let distribution = str_at(service, &["spec", "trafficDistribution"]);
    if !ready || !["PreferClose", "PreferSameZone", "PreferSameNode"].contains(&distribution) {
        return None;
    }
    let mut hints = json!({});
    if let Some(zone) = zone {
        hints["forZones"] = json!([{"name": zone}]);
    }
    if distribution == "PreferSameNode" && !node.is_empty() {
        hints["forNodes"] = json!([{"name": node}]);
    }
    (hints != json!({})).then_some(hints)
}
