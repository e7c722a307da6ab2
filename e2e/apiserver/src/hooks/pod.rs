//! Pods: defaults, phase, grace period and what may change.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Map, Value, json};

use super::{default, each_map};
use crate::error::FieldError;
use crate::kind::Hooks;
use crate::kinds::typed;
use crate::object::{int_at, list_at, map_mut, str_at};

/// Behaviour of pods.
pub(crate) static HOOKS: Hooks = Hooks {
    default: |pod| {
        if let Some(ip) = pod["status"]["podIP"].as_str().map(str::to_owned)
            && pod["status"]["podIPs"].is_null()
        {
            pod["status"]["podIPs"] = json!([{ "ip": ip }]);
        }
        if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) {
            default_spec(spec);
            default(spec, "enableServiceLinks", true);
            default_requests(spec);
        }
    },
    prepare: |_, pod, old| {
        prepare(pod, old);
        Ok(())
    },
    validate,
    fields: &[
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ],
    decode: typed::<Pod>,
    ..Hooks::PLAIN
};

/// Defaults of a pod's or a template's spec.
pub(crate) fn default_spec(spec: &mut Map<String, Value>) {
    default(spec, "restartPolicy", "Always");
    default(spec, "terminationGracePeriodSeconds", 30);
    default(spec, "dnsPolicy", "ClusterFirst");
    default(spec, "securityContext", json!({}));
    default(spec, "schedulerName", "default-scheduler");
    let account = spec
        .get("serviceAccountName")
        .or(spec.get("serviceAccount"))
        .cloned();
    if let Some(account) = account {
        spec.insert("serviceAccountName".into(), account.clone());
        spec.insert("serviceAccount".into(), account);
    }
    let host_network = spec.get("hostNetwork").is_some_and(|host| *host == true);
    for list in ["initContainers", "containers"] {
        for container in each_map(spec, list) {
            default_container(container, host_network);
        }
    }
}

fn default_container(container: &mut Map<String, Value>, host_network: bool) {
    let image = container
        .get("image")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let tag = image
        .rsplit('/')
        .next()
        .and_then(|last| last.split_once(':'))
        .map_or("latest", |(_, tag)| tag);
    let policy = if tag == "latest" && !image.contains('@') {
        "Always"
    } else {
        "IfNotPresent"
    };
    default(container, "imagePullPolicy", policy);
    default(container, "terminationMessagePath", "/dev/termination-log");
    default(container, "terminationMessagePolicy", "File");
    default(container, "resources", json!({}));
    for port in each_map(container, "ports") {
        default(port, "protocol", "TCP");
        if host_network && let Some(number) = port.get("containerPort").cloned() {
            default(port, "hostPort", number);
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.get_mut(probe).and_then(Value::as_object_mut) {
            for (field, value) in [
                ("timeoutSeconds", 1),
                ("periodSeconds", 10),
                ("successThreshold", 1),
                ("failureThreshold", 3),
            ] {
                default(probe, field, value);
            }
            default_http_get(probe);
        }
    }
    for hook in ["preStop", "postStart"] {
        let handler = container
            .get_mut("lifecycle")
            .and_then(|lifecycle| lifecycle.get_mut(hook));
        if let Some(handler) = handler.and_then(Value::as_object_mut) {
            default_http_get(handler);
        }
    }
}

fn default_http_get(handler: &mut Map<String, Value>) {
    if let Some(get) = handler.get_mut("httpGet").and_then(Value::as_object_mut) {
        default(get, "path", "/");
        default(get, "scheme", "HTTP");
    }
}

fn default_requests(spec: &mut Map<String, Value>) {
    for list in ["initContainers", "containers"] {
        for container in each_map(spec, list) {
            let Some(resources) = container
                .get_mut("resources")
                .and_then(Value::as_object_mut)
            else {
                continue;
            };
            let limits = resources
                .get("limits")
                .and_then(Value::as_object)
                .cloned()
                .unwrap_or_default();
            if limits.is_empty() {
                continue;
            }
            let requests = resources.entry("requests").or_insert_with(|| json!({}));
            for (name, limit) in limits {
                if let Some(requests) = requests.as_object_mut() {
                    default(requests, &name, limit);
                }
            }
        }
    }
}

fn prepare(pod: &mut Value, old: Option<&Value>) {
    if old.is_none() {
        let class = qos_class(pod);
        pod["status"] = json!({"phase": "Pending", "qosClass": class});
        let spec = map_mut(pod, &["spec"]);
        default(spec, "serviceAccountName", "default");
        default(spec, "serviceAccount", "default");
        default(spec, "preemptionPolicy", "PreemptLowerPriority");
        default(spec, "priority", 0);
    }
    let spec = map_mut(pod, &["spec"]);
    if !spec.contains_key("tolerations") {
        spec.insert("tolerations".into(), json!([]));
    }
    for key in [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ] {
        add_toleration(spec, key);
    }
}

/// Every pod bears a node that is away for five minutes (admission plugin `DefaultTolerationSeconds`).
fn add_toleration(spec: &mut Map<String, Value>, key: &str) {
    let Some(list) = spec.get_mut("tolerations").and_then(Value::as_array_mut) else {
        return;
    };
    let covers = |toleration: &Value| {
        (toleration["key"] == key || toleration["key"].as_str().is_none_or(str::is_empty))
            && (toleration["effect"] == "NoExecute"
                || toleration["effect"].as_str().is_none_or(str::is_empty))
    };
    if !list.iter().any(covers) {
        list.push(json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}));
    }
}

fn qos_class(pod: &Value) -> &'static str {
    let containers = list_at(pod, &["spec", "containers"]);
    let part =
        |container: &Value, part: &str, name: &str| container["resources"][part][name].clone();
    let any = containers.iter().any(|one| {
        ["cpu", "memory"].iter().any(|name| {
            !part(one, "requests", name).is_null() || !part(one, "limits", name).is_null()
        })
    });
    let all = containers.iter().all(|one| {
        ["cpu", "memory"].iter().all(|name| {
            let limit = part(one, "limits", name);
            !limit.is_null() && limit == part(one, "requests", name)
        })
    });
    match (any, all) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// Seconds that a pod gets before its end (`podStrategy.CheckGracefulDelete`).
pub(crate) fn grace_period(pod: &Value, wish: Option<i64>) -> i64 {
    let unscheduled = str_at(pod, &["spec", "nodeName"]).is_empty();
    let over = ["Failed", "Succeeded"].contains(&str_at(pod, &["status", "phase"]));
    if unscheduled || over {
        return 0;
    }
    let own = || int_at(pod, &["spec", "terminationGracePeriodSeconds"]).unwrap_or(0);
    let period = wish.unwrap_or_else(own);
    if period < 0 { 1 } else { period }
}

fn validate(pod: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Some(old) = old {
        check_change(pod, old, &mut errors);
        check_tolerations(pod, old, &mut errors);
    }
    errors.extend(validate_spec(&pod["spec"], "spec"));
    errors
}

/// Tolerations may be added; of those that are there only the seconds may change.
fn check_tolerations(pod: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let of = |pod| -> Vec<Value> {
        let mut all = list_at(pod, &["spec", "tolerations"]).to_vec();
        for one in all.iter_mut().filter_map(Value::as_object_mut) {
            one.remove("tolerationSeconds");
        }
        all
    };
    let after = of(pod);
    if of(old).iter().any(|toleration| !after.contains(toleration)) {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(FieldError::forbidden("spec.tolerations", detail));
    }
}

/// The part of a pod's or a template's spec that scenarios can get wrong.
pub(crate) fn validate_spec(spec: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let containers = list_at(spec, &["containers"]);
    if containers.is_empty() {
        errors.push(FieldError::required(format!("{path}.containers"), ""));
    }
    let mut names = Vec::new();
    for (index, container) in containers.iter().enumerate() {
        let path = format!("{path}.containers[{index}]");
        let name = container["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        } else if names.contains(&name) {
            errors.push(FieldError::duplicate(format!("{path}.name"), name));
        }
        names.push(name);
        if container["image"].as_str().is_none_or(str::is_empty) {
            errors.push(FieldError::required(format!("{path}.image"), ""));
        }
        for (at, port) in list_at(container, &["ports"]).iter().enumerate() {
            let number = port["containerPort"].as_i64().unwrap_or(0);
            if !(1..=65535).contains(&number) {
                let detail = "must be between 1 and 65535, inclusive";
                errors.push(FieldError::invalid(
                    format!("{path}.ports[{at}].containerPort"),
                    number,
                    detail,
                ));
            }
        }
    }
    let policies = ["Always", "Never", "OnFailure"];
    let policy = spec["restartPolicy"].as_str().unwrap_or_default();
    if !policies.contains(&policy) {
        errors.push(FieldError::not_supported(
            format!("{path}.restartPolicy"),
            policy,
            &policies,
        ));
    }
    errors
}

const IMMUTABLE: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

fn check_change(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let fixed = |pod: &Value| {
        let mut spec = pod["spec"].clone();
        for list in ["containers", "initContainers"] {
            if let Some(spec) = spec.as_object_mut() {
                each_map(spec, list).for_each(|container| drop(container.remove("image")));
            }
        }
        if let Some(spec) = spec.as_object_mut() {
            spec.remove("activeDeadlineSeconds");
            spec.remove("tolerations");
        }
        spec
    };
    if fixed(new) != fixed(old) {
        errors.push(FieldError::forbidden("spec", IMMUTABLE));
    }
}
