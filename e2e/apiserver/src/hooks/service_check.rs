//! Validation of Services, in the words of `pkg/apis/core/validation`.

use serde_json::{Value, json};

use super::service::Spec;
use super::service_addresses::{check_cluster_ips, ip_problem, range_problem};
use super::service_change::check_change;
use crate::error::FieldError;
use crate::verbs::meta;
use crate::verbs::meta::is_dns_label;

/// Everything that is wrong with a Service, in the order of `validateService`.
pub(crate) fn validate(service: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let spec = Spec::of(service);
    let before = old.map(Spec::of);
    let kept = |field: &str| before.map_or(&[][..], |before| before.list(field));
    let mut errors = Vec::new();
    if let Some(before) = before {
        check_change(spec, before, &mut errors);
    }
    if spec.list("ports").is_empty() && !spec.is_headless() && !spec.is("ExternalName") {
        errors.push(FieldError::required("spec.ports", ""));
    }
    check_fields_of_type(spec, &mut errors);
    check_ports(spec, &mut errors);
    check_selector(spec, &mut errors);
    check_affinity(spec, &mut errors);
    errors.extend(check_cluster_ips(service, kept("clusterIPs")));
    for (index, address) in spec.list("externalIPs").iter().enumerate() {
        errors.extend(ip_problem(
            &format!("spec.externalIPs[{index}]"),
            address,
            kept("externalIPs"),
        ));
    }
    check_type(spec, &mut errors);
    check_repeated_ports(spec, &mut errors);
    check_load_balancer(spec, kept("loadBalancerSourceRanges"), &mut errors);
    check_traffic(spec, &mut errors);
    errors
}

/// Fields that fit the type or not.
fn check_fields_of_type(spec: Spec, errors: &mut Vec<FieldError>) {
    let kind = spec.text("type");
    if spec.needs_node_ports() && spec.is_headless() {
        let detail = format!("may not be set to 'None' for {kind} services");
        errors.push(FieldError::invalid("spec.clusterIPs[0]", "None", detail));
    }
    if kind == "ExternalName" {
        for field in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            if !spec.0[field].is_null() {
                let detail = "may not be set for ExternalName services";
                errors.push(FieldError::forbidden(format!("spec.{field}"), detail));
            }
        }
        let name = spec.text("externalName");
        let name = name.strip_suffix('.').unwrap_or(name);
        if name.is_empty() {
            errors.push(FieldError::required("spec.externalName", ""));
        } else if let Some(problem) = meta::subdomain_problem(name) {
            errors.push(FieldError::invalid("spec.externalName", name, problem));
        }
    }
}

fn check_type(spec: Spec, errors: &mut Vec<FieldError>) {
    let kind = spec.text("type");
    let types = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    if !types.contains(&kind) {
        errors.push(FieldError::not_supported("spec.type", kind, &types));
    }
    let ports = spec.list("ports").iter().enumerate();
    for (index, _) in ports.filter(|(_, port)| kind == "ClusterIP" && !port["nodePort"].is_null()) {
        let path = format!("spec.ports[{index}].nodePort");
        let detail = "may not be used when `type` is 'ClusterIP'";
        errors.push(FieldError::forbidden(path, detail));
    }
}

const PORT_RANGE: &str = "must be between 1 and 65535, inclusive";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";

fn check_ports(spec: Spec, errors: &mut Vec<FieldError>) {
    let ports = spec.list("ports");
    let mut names = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let path = format!("spec.ports[{index}]");
        match port["name"].as_str() {
            None if ports.len() > 1 => {
                errors.push(FieldError::required(format!("{path}.name"), ""));
            }
            None => {}
            Some(name) => {
                if !is_dns_label(name) {
                    errors.push(FieldError::invalid(format!("{path}.name"), name, LABEL));
                }
                if names.contains(&name) {
                    errors.push(FieldError::duplicate(format!("{path}.name"), name));
                }
                names.push(name);
            }
        }
        let number = port["port"].as_i64().unwrap_or(0);
        if !is_port(number) {
            errors.push(FieldError::invalid(
                format!("{path}.port"),
                number,
                PORT_RANGE,
            ));
        }
        let protocol = port["protocol"].as_str().unwrap_or_default();
        let protocols = ["SCTP", "TCP", "UDP"];
        if !protocols.contains(&protocol) {
            errors.push(FieldError::not_supported(
                format!("{path}.protocol"),
                protocol,
                &protocols,
            ));
        }
        check_target_port(&port["targetPort"], &path, errors);
        if let Some(protocol) = port["appProtocol"].as_str()
            && let Some(problem) = meta::key_problem(protocol)
        {
            let path = format!("{path}.appProtocol");
            errors.push(FieldError::invalid(path, protocol, problem));
        }
    }
}

/// The same node port, or the same port, twice for one protocol.
fn check_repeated_ports(spec: Spec, errors: &mut Vec<FieldError>) {
    let ports = spec.list("ports");
    let (mut node_ports, mut numbers) = (Vec::new(), Vec::new());
    for (index, port) in ports.iter().enumerate() {
        let key = (&port["protocol"], &port["nodePort"]);
        if !port["nodePort"].is_null() && node_ports.contains(&key) {
            errors.push(FieldError::duplicate(
                format!("spec.ports[{index}].nodePort"),
                port["nodePort"].clone(),
            ));
        }
        node_ports.push(key);
    }
    for (index, port) in ports.iter().enumerate() {
        let key = (&port["protocol"], &port["port"]);
        if numbers.contains(&key) {
            // The real server shows the internal struct, all of its fields.
            let shown = json!({
                "Name": "", "Protocol": port["protocol"], "AppProtocol": null, "Port": port["port"],
                "TargetPort": 0, "NodePort": 0
            });
            errors.push(FieldError::duplicate(format!("spec.ports[{index}]"), shown));
        }
        numbers.push(key);
    }
}

fn check_target_port(target: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let path = format!("{path}.targetPort");
    if let Some(number) = target.as_i64() {
        if !is_port(number) {
            errors.push(FieldError::invalid(path, number, PORT_RANGE));
        }
    } else if let Some(name) = target.as_str() {
        let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if name.len() > 15 {
            errors.push(FieldError::invalid(
                path,
                name,
                "must be no more than 15 characters",
            ));
        } else if !name.bytes().all(legal) {
            let detail = "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)";
            errors.push(FieldError::invalid(path, name, detail));
        } else if !name.bytes().any(|byte| byte.is_ascii_lowercase()) {
            errors.push(FieldError::invalid(
                path,
                name,
                "must contain at least one letter (a-z)",
            ));
        } else if name.contains("--") {
            errors.push(FieldError::invalid(
                path,
                name,
                "must not contain consecutive hyphens",
            ));
        } else if name.starts_with('-') || name.ends_with('-') {
            errors.push(FieldError::invalid(
                path,
                name,
                "must not begin or end with a hyphen",
            ));
        }
    }
}

fn is_port(number: i64) -> bool {
    (1..=65535).contains(&number)
}

fn check_affinity(spec: Spec, errors: &mut Vec<FieldError>) {
    match spec.text("sessionAffinity") {
        "None" => {}
        "ClientIP" => {
            let seconds = spec.0["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"]
                .as_i64()
                .unwrap_or(0);
            if !(1..=86400).contains(&seconds) {
                let path = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
                errors.push(FieldError::invalid(
                    path,
                    seconds,
                    "must be greater than 0 and less than 86400",
                ));
            }
        }
        other => errors.push(FieldError::not_supported(
            "spec.sessionAffinity",
            other,
            &["ClientIP", "None"],
        )),
    }
}

fn check_load_balancer(spec: Spec, kept: &[Value], errors: &mut Vec<FieldError>) {
    let balanced = spec.is("LoadBalancer");
    let only = "may only be used when `type` is 'LoadBalancer'";
    let ranges = spec.list("loadBalancerSourceRanges");
    if !ranges.is_empty() && !balanced {
        errors.push(FieldError::forbidden("spec.LoadBalancerSourceRanges", only));
    }
    for (index, range) in ranges.iter().enumerate() {
        let path = format!("spec.LoadBalancerSourceRanges[{index}]");
        errors.extend(range_problem(path, range, kept));
    }
    if !balanced && !spec.0["allocateLoadBalancerNodePorts"].is_null() {
        errors.push(FieldError::forbidden(
            "spec.allocateLoadBalancerNodePorts",
            only,
        ));
    }
    if !balanced && !spec.0["loadBalancerClass"].is_null() {
        errors.push(FieldError::forbidden("spec.loadBalancerClass", only));
    }
    let class = spec.text("loadBalancerClass");
    if let Some(problem) = meta::key_problem(class).filter(|_| balanced && !class.is_empty()) {
        errors.push(FieldError::invalid(
            "spec.loadBalancerClass",
            class,
            problem,
        ));
    }
}

fn check_selector(spec: Spec, errors: &mut Vec<FieldError>) {
    for (key, value) in spec.0["selector"].as_object().into_iter().flatten() {
        if let Some(problem) = meta::key_problem(key) {
            errors.push(FieldError::invalid("spec.selector", key.as_str(), problem));
        }
        let text = value.as_str().unwrap_or_default();
        if let Some(problem) = meta::label_value_problem(text) {
            errors.push(FieldError::invalid("spec.selector", text, problem));
        }
    }
}

fn check_traffic(spec: Spec, errors: &mut Vec<FieldError>) {
    let policies = ["Cluster", "Local"];
    let policy = spec.text("externalTrafficPolicy");
    if !spec.externally_accessible() {
        if !policy.is_empty() {
            let detail = "may only be set for externally-accessible services";
            errors.push(FieldError::invalid(
                "spec.externalTrafficPolicy",
                policy,
                detail,
            ));
        }
    } else if policy.is_empty() {
        errors.push(FieldError::required("spec.externalTrafficPolicy", ""));
    } else if !policies.contains(&policy) {
        errors.push(FieldError::not_supported(
            "spec.externalTrafficPolicy",
            policy,
            &policies,
        ));
    }
    let health = spec.number("healthCheckNodePort");
    if !spec.needs_health_port() {
        if health != 0 {
            let detail = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
            errors.push(FieldError::invalid(
                "spec.healthCheckNodePort",
                health,
                detail,
            ));
        }
    } else if health == 0 {
        errors.push(FieldError::required("spec.healthCheckNodePort", ""));
    } else if !is_port(health) {
        errors.push(FieldError::invalid(
            "spec.healthCheckNodePort",
            health,
            PORT_RANGE,
        ));
    }
    let internal = spec.text("internalTrafficPolicy");
    if !internal.is_empty() && !policies.contains(&internal) {
        errors.push(FieldError::not_supported(
            "spec.internalTrafficPolicy",
            internal,
            &policies,
        ));
    }
    let distributions = ["PreferClose", "PreferSameZone", "PreferSameNode"];
    let distribution = spec.0["trafficDistribution"].as_str();
    if let Some(word) = distribution.filter(|word| !distributions.contains(word)) {
        errors.push(FieldError::not_supported(
            "spec.trafficDistribution",
            word,
            &distributions,
        ));
    }
}
