//! Workloads: defaults and validation of Deployments and of the kinds beside them.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use serde_json::{Map, Value, json};

use super::{default, pod};
use crate::error::FieldError;
use crate::kind::Hooks;
use crate::kinds::typed;
use crate::object::{at, map_mut, str_at};
use crate::selector::Selector;

/// Behaviour of Deployments.
pub(crate) static DEPLOYMENT: Hooks = Hooks {
    default: |object| {
        default_template(object);
        let spec = map_mut(object, &["spec"]);
        default(spec, "replicas", 1);
        default(spec, "revisionHistoryLimit", 10);
        default(spec, "progressDeadlineSeconds", 600);
        default_strategy(spec);
        map_mut(object, &["status"]);
    },
    validate: |object, old| {
        let mut errors = validate(object, old);
        errors.extend(validate_strategy(object));
        errors
    },
    decode: typed::<Deployment>,
    ..Hooks::PLAIN
};

/// Behaviour of `ReplicaSets`.
pub(crate) static REPLICA_SET: Hooks = Hooks {
    default: |object| {
        default_template(object);
        default(map_mut(object, &["spec"]), "replicas", 1);
        super::default(map_mut(object, &["status"]), "replicas", 0);
    },
    validate,
    fields: &["status.replicas"],
    decode: typed::<ReplicaSet>,
    ..Hooks::PLAIN
};

/// Behaviour of `DaemonSets`; nothing runs them.
pub(crate) static DAEMON_SET: Hooks = Hooks {
    default: |object| {
        default_template(object);
        default(map_mut(object, &["spec"]), "revisionHistoryLimit", 10);
        let strategy =
            json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}});
        default(map_mut(object, &["spec"]), "updateStrategy", strategy);
        map_mut(object, &["status"]);
    },
    validate,
    decode: typed::<DaemonSet>,
    ..Hooks::PLAIN
};

/// Behaviour of `StatefulSets`; nothing runs them.
pub(crate) static STATEFUL_SET: Hooks = Hooks {
    default: |object| {
        default_template(object);
        let spec = map_mut(object, &["spec"]);
        default(spec, "replicas", 1);
        default(spec, "revisionHistoryLimit", 10);
        default(spec, "podManagementPolicy", "OrderedReady");
        default(
            spec,
            "updateStrategy",
            json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}),
        );
        map_mut(object, &["status"]);
    },
    validate,
    decode: typed::<StatefulSet>,
    ..Hooks::PLAIN
};

fn default_template(object: &mut Value) {
    map_mut(object, &["spec", "template", "metadata"]);
    pod::default_spec(map_mut(object, &["spec", "template", "spec"]));
}

fn default_strategy(spec: &mut Map<String, Value>) {
    let strategy = spec.entry("strategy").or_insert_with(|| json!({}));
    let Some(strategy) = strategy.as_object_mut() else {
        return;
    };
    default(strategy, "type", "RollingUpdate");
    if strategy["type"] == "RollingUpdate" {
        let rolling = strategy.entry("rollingUpdate").or_insert_with(|| json!({}));
        if let Some(rolling) = rolling.as_object_mut() {
            default(rolling, "maxUnavailable", "25%");
            default(rolling, "maxSurge", "25%");
        }
    }
}

fn validate(object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let selector = at(object, &["spec", "selector"]);
    if selector.is_null() {
        errors.push(FieldError::required("spec.selector", ""));
    } else {
        let empty = ["matchLabels", "matchExpressions"].iter().all(|field| {
            selector[*field].as_object().is_none_or(Map::is_empty)
                && selector[*field].as_array().is_none_or(Vec::is_empty)
        });
        if empty {
            let detail = "empty selector is invalid for deployment";
            errors.push(FieldError::invalid(
                "spec.selector",
                selector.clone(),
                detail,
            ));
        } else if !Selector::of_label_selector(selector).matches(at(object, &["spec", "template"]))
        {
            let labels = at(object, &["spec", "template", "metadata", "labels"]).clone();
            let detail = "`selector` does not match template `labels`";
            errors.push(FieldError::invalid(
                "spec.template.metadata.labels",
                labels,
                detail,
            ));
        }
    }
    if let Some(old) = old
        .map(|old| at(old, &["spec", "selector"]))
        .filter(|old| *old != selector)
    {
        let _ = old;
        errors.push(FieldError::invalid(
            "spec.selector",
            selector.clone(),
            "field is immutable",
        ));
    }
    for field in ["replicas", "minReadySeconds", "revisionHistoryLimit"] {
        if let Some(number) = at(object, &["spec", field])
            .as_i64()
            .filter(|number| *number < 0)
        {
            let detail = "must be greater than or equal to 0";
            errors.push(FieldError::invalid(format!("spec.{field}"), number, detail));
        }
    }
    errors.extend(pod::validate_spec(
        at(object, &["spec", "template", "spec"]),
        "spec.template.spec",
    ));
    errors
}

fn validate_strategy(object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let strategy = at(object, &["spec", "strategy"]);
    let rolling = &strategy["rollingUpdate"];
    match str_at(strategy, &["type"]) {
        "RollingUpdate" => {
            let zero =
                |field: &str| matches!(rolling[field].as_str(), Some("0%")) || rolling[field] == 0;
            if zero("maxUnavailable") && zero("maxSurge") {
                let path = "spec.strategy.rollingUpdate.maxUnavailable";
                let detail = "may not be 0 when `maxSurge` is 0";
                errors.push(FieldError::invalid(
                    path,
                    rolling["maxUnavailable"].clone(),
                    detail,
                ));
            }
        }
        "Recreate" if !rolling.is_null() => {
            let detail = "may not be specified when strategy `type` is 'Recreate'";
            errors.push(FieldError::forbidden("spec.strategy.rollingUpdate", detail));
        }
        "Recreate" => {}
        other => errors.push(FieldError::not_supported(
            "spec.strategy.type",
            other,
            &["Recreate", "RollingUpdate"],
        )),
    }
    errors
}
