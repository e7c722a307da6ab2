//! Services and settings of the golden rows: `test1`, base name `atest1`, nodePort = port + 10000.

use std::collections::{BTreeMap, BTreeSet};

use onehop_core::crd::{LoadBalancerSpec, TargetMode};
use onehop_core::id::{IpFamily, PortKey, Protocol, ServiceKey};
use onehop_core::service::{ServicePort, ServiceSpec, TargetPort, TrafficPolicy};
use serde_json::{Value, json};

use super::annotations::{self, keys};
use super::document::{PROBES, RULES};
use super::part::{Address, Child, Makings, Part};
use super::resolve::resolve;
use super::settings::{Layout, Place, SecurityGroup, Settings, TakeOver};
use crate::cloud::local::resolve::NodeProxy;

/// Class of ours.
pub(super) const OWN: &str = "onehop.dev/azure";

pub(super) fn settings() -> Settings {
    Settings {
        install: "demo-azure".into(),
        cluster: "kubernetes".to_owned(),
        proxy: NodeProxy::Beside,
        mode: TargetMode::Vip,
        membership: None,
        place: Place {
            subscription: "subscription".to_owned(),
            resource_group: "rg".to_owned(),
            location: "westus".to_owned(),
            edge_zone: None,
            load_balancer: "lbname".to_owned(),
            vnet_resource_group: "rg".to_owned(),
            vnet: "vnet".to_owned(),
            subnet: "subnet".to_owned(),
            security_group: Some(SecurityGroup {
                resource_group: "rg".to_owned(),
                name: "nsg".to_owned(),
            }),
            pod_security_group: None,
            node_resource_group: None,
        },
        pod_prefixes: vec!["10.1.0.0/16".parse().unwrap()],
        tags: BTreeMap::new(),
        disable_outbound_snat: false,
        system_tags: None,
        exclude_control_plane: true,
        others_pools: BTreeSet::new(),
        shared_probe: None,
        pool_size: 1000,
        switch_tail: std::time::Duration::from_secs(30),
        bounds: crate::plan::Bounds::with_tail(30),
        drain: std::time::Duration::from_mins(10),
        dns_grace: std::time::Duration::from_mins(15),
        layout: Layout::Own,
        take_over: TakeOver::default(),
    }
}

pub(super) fn key() -> ServiceKey {
    ServiceKey::new("default", "test1")
}

/// A Service of the peer's class with these TCP ports.
pub(super) fn service(ports: &[u16]) -> ServiceSpec {
    let port = |number: &u16| ServicePort {
        key: PortKey::new(format!("p{number}").as_str(), Protocol::Tcp),
        port: *number,
        target: TargetPort::Number(number + 8000),
        node_port: Some(number + 10000),
        app_protocol: None,
    };
    ServiceSpec {
        key: key(),
        uid: "test1".into(),
        families: vec![IpFamily::V4],
        allocates_node_ports: true,
        ports: ports.iter().map(port).collect(),
        ..ServiceSpec::default()
    }
}

/// The same with our class.
pub(super) fn own(ports: &[u16]) -> ServiceSpec {
    ServiceSpec {
        class: Some(OWN.to_owned()),
        ..service(ports)
    }
}

pub(super) fn annotated(mut service: ServiceSpec, annotations: &[(&str, &str)]) -> ServiceSpec {
    for (key, value) in annotations {
        let full = if key.contains('/') {
            (*key).to_owned()
        } else {
            format!("{}{key}", keys::PREFIX)
        };
        service.annotations.insert(full, (*value).to_owned());
    }
    service
}

pub(super) fn local(mut service: ServiceSpec, health: u16) -> ServiceSpec {
    service.external_policy = TrafficPolicy::Local;
    service.health_check_node_port = Some(health);
    service
}

/// The resolved spec of a Service that has nothing wrong.
pub(super) fn resolved(service: &ServiceSpec) -> LoadBalancerSpec {
    let resolution = resolve(&settings(), service, None);
    assert_eq!(resolution.refusals, [], "{service:?}");
    resolution.spec.unwrap()
}

pub(super) fn part(service: &ServiceSpec) -> Part {
    part_of(&resolved(service))
}

pub(super) fn part_of(spec: &LoadBalancerSpec) -> Part {
    let wishes = annotations::of_options(spec);
    let makings = Makings {
        spec,
        wishes: &wishes,
        left_to_others: &[],
        former: &[],
        zones: &[],
    };
    Part::new(&settings(), makings, |_| {
        let private = Address::Private {
            subnet: wishes.subnet.clone(),
            pinned: wishes.pinned.get(&IpFamily::V4).copied(),
        };
        let public = Address::Public {
            id: settings().place.public_ip_id(None, "kubernetes-atest1"),
        };
        (if wishes.internal { private } else { public }, None)
    })
}

/// A child as it is written when it is made.
pub(super) fn made(child: &Child) -> Value {
    let mut made = child.at_birth.clone();
    super::document::lay_over(&mut made, &child.wish);
    made
}

/// A rule in few words: `80->10080 floating=false pool=kubernetes probe=name`.
pub(super) fn rule(part: &Part, name: &str) -> String {
    let rule = part
        .rules
        .iter()
        .find(|rule| rule.name == name)
        .unwrap_or_else(|| panic!("{name}: {part:?}"));
    let rule = made(rule);
    let of = |key: &str| {
        super::document::referred(&rule, key)
            .unwrap_or("-")
            .to_owned()
    };
    let p = &rule["properties"];
    format!(
        "{} {}->{} floating={} pool={} probe={}",
        p["protocol"].as_str().unwrap(),
        p["frontendPort"],
        p["backendPort"],
        p["enableFloatingIP"],
        of("backendAddressPool"),
        of("probe")
    )
}

/// A probe in few words: `Http 10080 /path 5x2`.
pub(super) fn probe(part: &Part, name: &str) -> String {
    let probe = part
        .probes
        .iter()
        .find(|probe| probe.name == name)
        .unwrap_or_else(|| panic!("{name}: {part:?}"));
    let p = &made(probe)["properties"];
    let path = p
        .get("requestPath")
        .map_or("-", |path| path.as_str().unwrap());
    format!(
        "{} {} {path} {}x{}",
        p["protocol"].as_str().unwrap(),
        p["port"],
        p["intervalInSeconds"],
        p["probeThreshold"]
    )
}

/// A load balancer that somebody else keeps, with fields and objects that nobody here knows.
pub(super) fn foreign() -> Value {
    let id = |list: &str, name: &str| {
        settings()
            .place
            .child_id(super::settings::Kind::External, list, name)
    };
    json!({
        "id": "/x", "etag": "W/\"1\"", "sku": {"name": "Standard", "news": {"a": [1, null]}},
        "properties": {
            "scope": "Public", "mystery": [],
            "frontendIPConfigurations": [{"name": "aks-out", "id": id("frontendIPConfigurations", "aks-out"), "properties": {"ddosSettings": {"x": 1}}}],
            "backendAddressPools": [{"name": "aksOutboundBackendPool", "properties": {"y": []}}],
            "outboundRules": [{"name": "aksOutboundRule", "properties": {"frontendIPConfigurations": [{"id": id("frontendIPConfigurations", "aks-out")}]}}],
            PROBES: [{"name": "aother-TCP-80", "properties": {"z": 1}}],
            RULES: [{"name": "aother-TCP-80", "properties": {
                "enableConnectionTracking": true, "frontendPort": 80, "protocol": "Tcp",
                "frontendIPConfiguration": {"id": id("frontendIPConfigurations", "aother")},
            }}],
        },
    })
}

/// Puts something unknown into every object, at every depth.
pub(super) fn sprinkle(value: &mut Value, depth: u32) {
    match value {
        Value::Object(map) => {
            map.values_mut()
                .for_each(|value| sprinkle(value, depth + 1));
            map.insert(
                "unknownToUs".to_owned(),
                json!({"depth": depth, "list": []}),
            );
        }
        Value::Array(list) => list.iter_mut().for_each(|value| sprinkle(value, depth + 1)),
        _ => {}
    }
}
