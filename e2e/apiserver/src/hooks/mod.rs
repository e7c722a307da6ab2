//! What single kinds do beyond the generic machinery: defaults, allocation, validation.

pub(crate) mod config;
pub(crate) mod crd;
pub(crate) mod event;
pub(crate) mod namespace;
pub(crate) mod node;
pub(crate) mod pod;
pub(crate) mod service;
mod service_addresses;
mod service_change;
mod service_check;
mod service_families;
mod service_ports;
pub(crate) mod slice;
pub(crate) mod workload;

use serde_json::{Map, Value};

/// Sets a field that is absent.
pub(crate) fn default(fields: &mut Map<String, Value>, field: &str, value: impl Into<Value>) {
    fields.entry(field).or_insert_with(|| value.into());
}

/// Maps of a list that can be changed.
pub(crate) fn each_map<'a>(
    fields: &'a mut Map<String, Value>,
    list: &str,
) -> impl Iterator<Item = &'a mut Map<String, Value>> + use<'a> {
    fields
        .get_mut(list)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
}
