//! What a new pod is given, as a JSON patch. Pure.

use std::time::Duration;

use serde_json::{Value, json};

/// Grace that the API server gives to pods that do not say it.
const DEFAULT_GRACE: u64 = 30;

/// Which opt-in of its namespace a pod is reviewed for: each is a webhook of its own, chosen by a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Gates of our Services (`onehop.dev/pod-readiness-gate-inject=enabled`).
    Gates,
    /// Gates of Services that were the peer's (its own label, AWS-500).
    PeersGates,
    /// A pause before SIGTERM (`onehop.dev/pod-drain-inject=enabled`, ZD-91).
    Pause,
}

impl Ask {
    /// Path of the webhook.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Gates => "/pods/gates",
            Self::PeersGates => "/pods/peers-gates",
            Self::Pause => "/pods/pause",
        }
    }
}

/// What a pod is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Injection {
    /// Readiness gates.
    pub gates: Vec<String>,
    /// Time for which its containers go on before they are told to end.
    pub pause: Duration,
}

/// The operations that give a pod what it lacks; none if it lacks nothing. What a pod says of itself stays.
pub fn patch(pod: &Value, wanted: &Injection) -> Vec<Value> {
    let spec = &pod["spec"];
    // Its addresses are the node's: no target is its own.
    if spec["hostNetwork"] == true {
        return Vec::new();
    }
    let mut operations = gates(spec, &wanted.gates);
    operations.extend(pause(spec, wanted.pause.as_secs()));
    operations
}

fn add(path: impl Into<String>, value: Value) -> Value {
    json!({ "op": "add", "path": path.into(), "value": value })
}

fn gates(spec: &Value, wanted: &[String]) -> Vec<Value> {
    let there = spec["readinessGates"].as_array();
    let has = |gate: &str| {
        let mut all = there.into_iter().flatten();
        all.any(|g| g["conditionType"] == gate)
    };
    let missing = wanted.iter().filter(|gate| !has(gate));
    let missing: Vec<Value> = missing
        .map(|gate| json!({ "conditionType": gate }))
        .collect();
    match there {
        _ if missing.is_empty() => Vec::new(),
        Some(_) => {
            let one = |gate| add("/spec/readinessGates/-", gate);
            missing.into_iter().map(one).collect()
        }
        None => vec![add("/spec/readinessGates", missing.into())],
    }
}

fn pause(spec: &Value, seconds: u64) -> Vec<Value> {
    if seconds == 0 {
        return Vec::new();
    }
    let sleep = json!({ "sleep": { "seconds": seconds } });
    let containers = spec["containers"].as_array().into_iter().flatten();
    let mut operations: Vec<Value> = containers
        .enumerate()
        .filter_map(|(i, container)| {
            let path = format!("/spec/containers/{i}/lifecycle");
            match &container["lifecycle"] {
                Value::Object(lifecycle)
                    if lifecycle.get("preStop").is_some_and(|p| !p.is_null()) =>
                {
                    None
                }
                Value::Object(_) => Some(add(format!("{path}/preStop"), sleep.clone())),
                _ => Some(add(path, json!({ "preStop": sleep }))),
            }
        })
        .collect();
    if !operations.is_empty() {
        // The pause is part of the grace: what the pod had for itself, it keeps.
        let grace = spec["terminationGracePeriodSeconds"].as_u64();
        let grace = grace.unwrap_or(DEFAULT_GRACE).saturating_add(seconds);
        operations.push(add("/spec/terminationGracePeriodSeconds", grace.into()));
    }
    operations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(pod: &Value, wanted: &Injection) -> Value {
        let mut pod = pod.clone();
        let operations = patch(&pod, wanted);
        let operations: json_patch::Patch = serde_json::from_value(operations.into()).unwrap();
        json_patch::patch(&mut pod, &operations).unwrap();
        pod
    }

    fn gates_of(pod: &Value) -> Vec<&str> {
        let gates = pod["spec"]["readinessGates"]
            .as_array()
            .into_iter()
            .flatten();
        gates.filter_map(|g| g["conditionType"].as_str()).collect()
    }

    #[test]
    fn aws008_aws959_new_pods_are_reviewed_and_nothing_else_and_none_is_refused() {
        let chart = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/onehop");
        let mut reviewing = Vec::new();
        for file in std::fs::read_dir(chart.join("templates")).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            if text.contains("kind: MutatingWebhookConfiguration")
                || text.contains("kind: ValidatingWebhookConfiguration")
            {
                reviewing.push(text);
            }
        }
        let [text] = reviewing.as_slice() else {
            panic!("AWS-008: {} templates", reviewing.len());
        };
        let all = |key: &str| -> Vec<&str> {
            let lines = text.lines().map(str::trim);
            lines.filter_map(|line| line.strip_prefix(key)).collect()
        };
        assert_eq!(all("resources: "), ["[pods]"], "AWS-008: no Service");
        assert_eq!(all("operations: "), ["[CREATE]"], "AWS-959");
        assert_eq!(all("failurePolicy: "), ["Ignore"], "AWS-959");
    }

    #[test]
    fn aws500_aws501_gates_are_added_once_beside_those_that_are_there() {
        let wanted = Injection {
            gates: vec!["a".to_owned(), "b".to_owned()],
            pause: Duration::ZERO,
        };
        let bare = json!({ "spec": { "containers": [{ "name": "c" }] } });
        let with = json!({ "spec": { "readinessGates": [{ "conditionType": "b" }, { "conditionType": "x" }] } });
        assert_eq!(gates_of(&applied(&bare, &wanted)), ["a", "b"], "AWS-501");
        assert_eq!(
            gates_of(&applied(&with, &wanted)),
            ["b", "x", "a"],
            "AWS-501"
        );
        let twice = applied(&applied(&bare, &wanted), &wanted);
        assert_eq!(
            gates_of(&twice),
            ["a", "b"],
            "asked again, nothing is added"
        );
        assert!(
            patch(&bare, &Injection::default()).is_empty(),
            "no port wants one"
        );
        let on_host = json!({ "spec": { "hostNetwork": true } });
        assert!(
            patch(&on_host, &wanted).is_empty(),
            "it has no address of its own"
        );
    }

    #[test]
    fn zd91_containers_without_a_hook_of_their_own_pause_and_the_grace_grows_by_it() {
        let wanted = Injection {
            gates: Vec::new(),
            pause: Duration::from_mins(3),
        };
        let pod = json!({ "spec": { "containers": [
            { "name": "bare" },
            { "name": "starts", "lifecycle": { "postStart": { "exec": {} } } },
            { "name": "own", "lifecycle": { "preStop": { "exec": { "command": ["bye"] } } } },
        ] } });
        let paused = applied(&pod, &wanted);
        let hooks = paused["spec"]["containers"].as_array().unwrap().iter();
        let hooks: Vec<_> = hooks.map(|c| c["lifecycle"]["preStop"].clone()).collect();
        let sleep = json!({ "sleep": { "seconds": 180 } });
        let own = pod["spec"]["containers"][2]["lifecycle"]["preStop"].clone();
        assert_eq!(hooks, [sleep.clone(), sleep, own], "ZD-91");
        let starts = &paused["spec"]["containers"][1]["lifecycle"]["postStart"];
        assert_eq!(*starts, json!({ "exec": {} }), "what it had stays");
        assert_eq!(
            paused["spec"]["terminationGracePeriodSeconds"], 210,
            "ZD-91"
        );
        assert!(
            patch(&paused, &wanted).is_empty(),
            "asked again, nothing grows"
        );
        let mut long = pod.clone();
        long["spec"]["terminationGracePeriodSeconds"] = 600.into();
        let long = applied(&long, &wanted);
        assert_eq!(long["spec"]["terminationGracePeriodSeconds"], 780, "ZD-91");
        assert!(
            patch(&pod, &Injection::default()).is_empty(),
            "a cloud without a tail"
        );
    }
}
