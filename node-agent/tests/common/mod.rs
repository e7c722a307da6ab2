//! Builders shared by the tests of state, planner and app.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses its own part"
)]

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::discovery::v1 as api;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use onehop_core::crd::{NodeInstall, NodeTargetsStatus};
use onehop_core::endpoint::Slice;
use onehop_core::id::{NodeName, PortKey, PortName, Protocol, ServiceKey, ServiceUid};
use onehop_core::node::NodeView;
use onehop_core::service::{Ingress, IpMode, ServiceKind, ServicePort, ServiceSpec, TargetPort};
use onehop_core::service::{PROXY_NAME_LABEL, TrafficPolicy};
use onehop_core::time::Time;
use onehop_node_agent::args::Mode;
use onehop_node_agent::collection::Step;
use onehop_node_agent::state::{Change, Ownership, State};
use onehop_node_agent::targets::OwnTargets;
use onehop_runtime::watch::ObjectKey;

pub const NODE: &str = "n1";

pub fn addr(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

pub fn key(name: &str) -> ServiceKey {
    ServiceKey::new("default", name)
}

/// A state whose lists are complete and empty but for the own node.
pub fn synced(mode: Mode) -> State {
    let ownership = Ownership {
        mode,
        proxy_name: "onehop".to_owned(),
    };
    let mut state = State::new(ownership, NodeName::from(NODE));
    for change in lists(node(Some("a"))) {
        state.apply(change);
    }
    state
}

/// The changes of three complete lists: no Service, no slice, one node.
pub fn lists(node: NodeView) -> Vec<Change> {
    vec![
        Change::Service(Step::ListStarts),
        Change::Service(Step::ListEnds),
        Change::Slice(Step::ListStarts),
        Change::Slice(Step::ListEnds),
        Change::Node(Step::ListStarts),
        Change::Node(Step::Apply(node.name.clone(), node)),
        Change::Node(Step::ListEnds),
        Change::Targets(Step::ListStarts),
        Change::Targets(Step::ListEnds),
        Change::ServiceCidr(Step::ListStarts),
        Change::ServiceCidr(Step::ListEnds),
    ]
}

/// What one install says to the own node.
pub fn told(install: NodeInstall) -> Change {
    let targets = OwnTargets {
        generation: 1,
        vips: BTreeMap::new(),
        installs: [("local".into(), install)].into(),
        status: NodeTargetsStatus::default(),
    };
    Change::Targets(Step::Apply(NodeName::from(NODE), Box::new(targets)))
}

pub fn node(zone: Option<&str>) -> NodeView {
    NodeView {
        name: NodeName::from(NODE),
        zone: zone.map(onehop_core::id::Zone::from),
        addresses: vec![addr("10.0.1.1")],
        ..NodeView::default()
    }
}

/// A Service of ours with one TCP port 80 at 10.96.0.`last`.
pub fn service(name: &str, last: u8) -> ServiceSpec {
    ServiceSpec {
        key: key(name),
        uid: ServiceUid::from(name),
        created: Time::from_millis(i64::from(last)),
        labels: [(PROXY_NAME_LABEL.to_owned(), "onehop".to_owned())].into(),
        cluster_ips: vec![IpAddr::from([10, 96, 0, last])],
        ports: vec![port(Protocol::Tcp, 80, None)],
        ..ServiceSpec::default()
    }
}

pub fn port(protocol: Protocol, port: u16, node_port: Option<u16>) -> ServicePort {
    ServicePort {
        key: PortKey::new(PortName::default(), protocol),
        port,
        target: TargetPort::Number(8080),
        node_port,
        app_protocol: None,
    }
}

/// The same as a LoadBalancer with an address, a node port and policy Local.
pub fn local_lb(name: &str, last: u8) -> ServiceSpec {
    ServiceSpec {
        kind: ServiceKind::LoadBalancer,
        external_policy: TrafficPolicy::Local,
        health_check_node_port: Some(31000 + u16::from(last)),
        ingress: vec![vip(&format!("198.51.100.{last}"))],
        ports: vec![port(Protocol::Tcp, 80, Some(30000 + u16::from(last)))],
        ..service(name, last)
    }
}

pub fn vip(text: &str) -> Ingress {
    Ingress {
        ports: std::collections::BTreeSet::new(),
        address: Some(addr(text)),
        hostname: None,
        mode: IpMode::Vip,
    }
}

/// How an endpoint stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stands {
    Ready,
    NotReady,
    ServingTerminating,
}

/// An endpoint at 10.244.0.`last`, on this node or another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ep {
    pub last: u8,
    pub local: bool,
    pub stands: Stands,
}

pub fn ep(last: u8) -> Ep {
    Ep {
        last,
        local: false,
        stands: Stands::Ready,
    }
}

pub fn local(last: u8) -> Ep {
    Ep {
        last,
        local: true,
        stands: Stands::Ready,
    }
}

pub fn slice(name: &str, service: &str, protocol: &str, endpoints: &[Ep]) -> Slice {
    let slice = api::EndpointSlice {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some("default".to_owned()),
            labels: Some([("kubernetes.io/service-name".to_owned(), service.to_owned())].into()),
            ..ObjectMeta::default()
        },
        address_type: "IPv4".to_owned(),
        endpoints: endpoints.iter().map(|ep| endpoint(*ep)).collect(),
        ports: Some(vec![api::EndpointPort {
            name: Some(String::new()),
            port: Some(8080),
            protocol: Some(protocol.to_owned()),
            ..api::EndpointPort::default()
        }]),
    };
    Slice::read(&slice).expect("a slice").0
}

fn endpoint(ep: Ep) -> api::Endpoint {
    let node = if ep.local { NODE } else { "n2" };
    api::Endpoint {
        addresses: vec![format!("10.244.0.{}", ep.last)],
        node_name: Some(node.to_owned()),
        conditions: Some(api::EndpointConditions {
            ready: Some(ep.stands == Stands::Ready),
            serving: Some(ep.stands != Stands::NotReady),
            terminating: Some(ep.stands == Stands::ServingTerminating),
        }),
        ..api::Endpoint::default()
    }
}

pub fn put(service: ServiceSpec) -> Change {
    Change::Service(Step::Apply(service.key.clone(), Box::new(service)))
}

pub fn remove(name: &str) -> Change {
    Change::Service(Step::Delete(key(name)))
}

pub fn put_slice(name: &str, service: &str, endpoints: &[Ep]) -> Change {
    put_slice_of(name, service, "TCP", endpoints)
}

pub fn put_slice_of(name: &str, service: &str, protocol: &str, endpoints: &[Ep]) -> Change {
    let slice = slice(name, service, protocol, endpoints);
    Change::Slice(Step::Apply(object(name), slice))
}

pub fn remove_slice(name: &str) -> Change {
    Change::Slice(Step::Delete(object(name)))
}

fn object(name: &str) -> ObjectKey {
    ObjectKey {
        namespace: "default".to_owned(),
        name: name.to_owned(),
    }
}

/// A slice of ready endpoints at the addresses 10.0.0.0 + n.
pub fn put_addresses(name: &str, service: &str, numbers: impl Iterator<Item = u32>) -> Change {
    let endpoints = numbers.map(|n| api::Endpoint {
        addresses: vec![std::net::Ipv4Addr::from(0x0a00_0000 + n).to_string()],
        ..api::Endpoint::default()
    });
    let slice = api::EndpointSlice {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some("default".to_owned()),
            labels: Some([("kubernetes.io/service-name".to_owned(), service.to_owned())].into()),
            ..ObjectMeta::default()
        },
        address_type: "IPv4".to_owned(),
        endpoints: endpoints.collect(),
        ports: Some(vec![api::EndpointPort {
            name: Some(String::new()),
            port: Some(8080),
            protocol: Some("TCP".to_owned()),
            ..api::EndpointPort::default()
        }]),
    };
    let slice = Slice::read(&slice).expect("a slice").0;
    Change::Slice(Step::Apply(object(name), slice))
}

/// How many random cases a property test tries: as many as `$PROPTEST_CASES` says, else `usual`.
pub fn cases(usual: u32) -> u32 {
    let asked = std::env::var("PROPTEST_CASES").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(usual)
}
