//! Events: one table, shown as core/v1 and as events.k8s.io/v1.

use k8s_openapi::api::{core, events};
use serde_json::{Value, json};

use crate::error::FieldError;
use crate::kind::{Conversion, Hooks};
use crate::kinds::typed;
use crate::object::{self, str_at};

const FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];

/// Behaviour of core events.
pub(crate) static CORE: Hooks = Hooks {
    default: core_defaults,
    fields: FIELDS,
    decode: typed::<core::v1::Event>,
    zero: core_defaults,
    validate,
    ..Hooks::PLAIN
};

/// Behaviour of events.k8s.io events; selectors speak of the stored form.
pub(crate) static EVENTS: Hooks = Hooks {
    default: core_defaults,
    fields: FIELDS,
    decode: typed::<events::v1::Event>,
    zero: core_defaults,
    validate,
    ..Hooks::PLAIN
};

/// An event lives where its object does.
fn validate(event: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let about = str_at(event, &["involvedObject", "namespace"]);
    let own = object::namespace(event);
    let fits = about == own || (about.is_empty() && own == "default");
    if fits || old.is_some_and(|old| old["involvedObject"] == event["involvedObject"]) {
        return Vec::new();
    }
    vec![FieldError::invalid(
        "involvedObject.namespace",
        about,
        "does not match event.namespace",
    )]
}

/// Fields that the two versions call differently.
const RENAMED: &[(&str, &str)] = &[
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

/// Between events.k8s.io (shown) and core (stored).
pub(crate) const CONVERSION: Conversion = Conversion {
    to_stored: |event| rename(event, "v1", |(shown, stored)| (shown, stored)),
    from_stored: |event| rename(event, "events.k8s.io/v1", |(shown, stored)| (stored, shown)),
};

fn rename(
    event: Value,
    version: &str,
    order: impl Fn((&'static str, &'static str)) -> (&'static str, &'static str),
) -> Value {
    let Value::Object(mut fields) = event else {
        return event;
    };
    for pair in RENAMED {
        let (from, to) = order(*pair);
        if let Some(value) = fields.remove(from) {
            fields.insert(to.to_owned(), value);
        }
    }
    fields.insert("apiVersion".into(), version.into());
    Value::Object(fields)
}

/// Core events always show these fields, even when empty.
fn core_defaults(event: &mut Value) {
    let Some(fields) = event.as_object_mut() else {
        return;
    };
    super::default(fields, "source", json!({}));
    super::default(fields, "reportingComponent", "");
    super::default(fields, "reportingInstance", "");
    for time in ["eventTime", "firstTimestamp", "lastTimestamp"] {
        super::default(fields, time, Value::Null);
    }
}
