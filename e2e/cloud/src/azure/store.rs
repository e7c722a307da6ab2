//! Documents as they are kept: under new `ETag`s, with back-references, and carried out by the engine.

use std::collections::BTreeMap;
use std::net::IpAddr;

use onehop_core::time::Time;
use serde_json::{Value, json};

use super::check;
use super::error::Refusal;
use super::resources::Subscription;
use crate::engine::Engine;

/// Lists of a load balancer whose items are children.
pub(super) const CHILDREN: [&str; 7] = [
    "frontendIPConfigurations",
    "backendAddressPools",
    "loadBalancingRules",
    "probes",
    "inboundNatRules",
    "inboundNatPools",
    "outboundRules",
];

impl Subscription {
    pub(super) fn show(&self, id: &str) -> Option<Value> {
        self.documents.get(&id.to_lowercase()).cloned()
    }

    pub(super) fn ids(&self, kind: &str) -> Vec<String> {
        let of_kind = format!("/{}/", kind.to_lowercase());
        let ids = self
            .documents
            .iter()
            .filter(|(id, _)| id.contains(&of_kind));
        ids.filter_map(|(_, document)| document["id"].as_str().map(str::to_owned))
            .collect()
    }

    pub(super) fn frontends(&self, id: &str) -> Vec<IpAddr> {
        let Some(document) = self.show(id) else {
            return Vec::new();
        };
        let frontends = list(&document, "frontendIPConfigurations").iter();
        frontends
            .filter_map(|frontend| check::address(self, frontend))
            .collect()
    }

    pub(super) fn edit(
        &mut self,
        id: &str,
        edit: impl FnOnce(&mut Value),
        engine: &mut Engine,
        now: Time,
    ) {
        if let Some(mut document) = self.show(id) {
            edit(&mut document);
            self.store(id, document);
            // What cannot be carried out shows as packets that go astray.
            let _ = self.carry_out(engine, now);
        }
    }

    /// Stores a document under a new `ETag`, which its children have too (AZ-367).
    pub(super) fn store(&mut self, id: &str, mut document: Value) {
        let etag = format!("W/\"{}\"", self.guid());
        document["etag"] = json!(etag);
        if document["id"].is_null() {
            document["id"] = json!(id);
            document["name"] = json!(id.rsplit('/').next());
        }
        for kind in CHILDREN {
            for child in list_mut(&mut document, kind) {
                child["etag"] = json!(etag);
            }
        }
        self.documents.insert(id.to_lowercase(), document);
        self.refer_back();
    }

    /// Back-references: rules on what they use, and the frontend on the public IP that it holds. Whose holder changes gets
    /// another `ETag` (AZ-367).
    pub(super) fn refer_back(&mut self) {
        let mut holders: BTreeMap<String, String> = BTreeMap::new();
        for document in self.documents.values_mut() {
            back_references(document);
            for frontend in list(document, "frontendIPConfigurations") {
                if let (Some(pip), Some(id)) = (
                    frontend["properties"]["publicIPAddress"]["id"].as_str(),
                    frontend["id"].as_str(),
                ) {
                    holders.insert(pip.to_lowercase(), id.to_owned());
                }
            }
        }
        let guid = self.guid();
        for (id, document) in self
            .documents
            .iter_mut()
            .filter(|(id, _)| id.contains("/publicipaddresses/"))
        {
            let holder = holders
                .get(id)
                .map_or(Value::Null, |holder| json!({"id": holder}));
            let Some(properties) = document["properties"].as_object_mut() else {
                continue;
            };
            if properties.get("ipConfiguration").unwrap_or(&Value::Null) == &holder {
                continue;
            }
            match holder {
                Value::Null => drop(properties.remove("ipConfiguration")),
                holder => drop(properties.insert("ipConfiguration".to_owned(), holder)),
            }
            document["etag"] = json!(format!("W/\"{guid}\""));
        }
    }

    /// Makes the engine do what the documents say.
    pub(super) fn carry_out(&mut self, engine: &mut Engine, now: Time) -> Result<(), Refusal> {
        let mut links = std::mem::take(&mut self.links);
        let done = links.carry_out(self, engine, now);
        self.links = links;
        done
    }
}

/// Children of a kind.
pub(super) fn list<'a>(document: &'a Value, kind: &str) -> &'a [Value] {
    document["properties"][kind]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
}

/// Children of a kind, to be changed. A list that is not there is not made.
pub(super) fn list_mut<'a>(document: &'a mut Value, kind: &str) -> &'a mut [Value] {
    let list = document.pointer_mut(&format!("/properties/{kind}"));
    list.and_then(Value::as_array_mut)
        .map(Vec::as_mut_slice)
        .unwrap_or_default()
}

/// The child of this name.
pub(super) fn child<'a>(document: &'a Value, kind: &str, name: &str) -> Option<&'a Value> {
    let named = |child: &&Value| {
        child["name"]
            .as_str()
            .is_some_and(|it| it.eq_ignore_ascii_case(name))
    };
    list(document, kind).iter().find(named)
}

pub(super) fn set_child(document: &mut Value, kind: &str, child: Value) {
    let name = child["name"].as_str().unwrap_or_default().to_owned();
    let named = |it: &Value| {
        it["name"]
            .as_str()
            .is_some_and(|it| it.eq_ignore_ascii_case(&name))
    };
    match document["properties"][kind].as_array_mut() {
        Some(list) => match list.iter_mut().find(|it| named(it)) {
            Some(there) => *there = child,
            None => list.push(child),
        },
        None => document["properties"][kind] = json!([child]),
    }
}

pub(super) fn remove_child(document: &mut Value, kind: &str, name: &str) {
    let named = |it: &Value| {
        it["name"]
            .as_str()
            .is_some_and(|it| it.eq_ignore_ascii_case(name))
    };
    if let Some(list) = document["properties"][kind].as_array_mut() {
        list.retain(|it| !named(it));
    }
}

/// Writes rules' names on what they use, as Azure does.
fn back_references(document: &mut Value) {
    let rules: Vec<Value> = list(document, "loadBalancingRules").to_vec();
    let users = [
        ("frontendIPConfigurations", "frontendIPConfiguration"),
        ("backendAddressPools", "backendAddressPool"),
        ("probes", "probe"),
    ];
    for (kind, key) in users {
        for child in list_mut(document, kind) {
            let id = child["id"].as_str().unwrap_or_default().to_lowercase();
            let uses = |rule: &&Value| {
                rule["properties"][key]["id"]
                    .as_str()
                    .is_some_and(|it| it.to_lowercase() == id)
            };
            let of: Vec<Value> = rules
                .iter()
                .filter(uses)
                .map(|rule| json!({"id": rule["id"]}))
                .collect();
            let Some(properties) = child["properties"].as_object_mut() else {
                continue;
            };
            if of.is_empty() {
                properties.remove("loadBalancingRules");
            } else {
                properties.insert("loadBalancingRules".to_owned(), Value::Array(of));
            }
        }
    }
}
