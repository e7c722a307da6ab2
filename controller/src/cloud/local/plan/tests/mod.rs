//! Tests of the planner: golden plans, rules, and plans that are cut short at every step, on a model of the cloud.

mod crash;
mod golden;
mod model;
mod rules;

use std::net::IpAddr;

use onehop_core::crd::{
    HealthBy, HealthCheck, HealthProtocol, LoadBalancerSpec, Membership, ProviderKind, TargetMode,
};
use onehop_core::id::{Protocol, ServiceUid};

use super::super::model::BalancerState;
use super::super::outcome::outcome;
use super::super::wanted::next_look;
use super::*;
use crate::plan::membership::{CloudState, Guard, Member, Owner, Serving, TargetKey, View};
use crate::plan::{Lane, Members, PortMembers, Programmed};

const NOW: Time = Time::from_millis(1_000_000_000);
const TAIL: Duration = Duration::from_mins(2);

fn settings() -> Settings {
    Settings {
        install: "demo-local".into(),
        switch_tail: TAIL,
    }
}

fn service() -> ServiceKey {
    ServiceKey::new("shop", "web")
}

fn port(name: &str, protocol: Protocol, number: u16, mode: TargetMode) -> LoadBalancerPort {
    let check = |by, protocol, port, path: Option<&str>| HealthCheck {
        by,
        protocol,
        port,
        path: path.map(str::to_owned),
        interval_seconds: 2,
        timeout_seconds: 2,
        healthy: 1,
        unhealthy: 2,
    };
    let health = match (mode, protocol) {
        (TargetMode::Pod, Protocol::Udp) => None,
        (TargetMode::Pod, _) => Some(check(HealthBy::Traffic, HealthProtocol::Tcp, None, None)),
        _ => Some(check(
            HealthBy::Node,
            HealthProtocol::Http,
            Some(10256),
            Some("/healthz"),
        )),
    };
    LoadBalancerPort {
        name: name.into(),
        protocol,
        port: number,
        mode,
        health,
        ..LoadBalancerPort::default()
    }
}

fn member(address: [u8; 4], port: u16, state: State) -> Member {
    let key = TargetKey {
        address: IpAddr::from(address),
        port,
    };
    Member {
        key,
        owner: Owner::Unknown,
        state,
        guard: Guard::Absent,
        held_since: None,
    }
}

fn pod(n: u8, state: State) -> Member {
    member([10, 244, 1, n], 8080, state)
}

fn members(pods: Vec<Member>) -> PortMembers {
    let nodes = |port| {
        let node = |n| member([10, 0, 1, n], port, State::Ready);
        (1..=2).map(node).collect()
    };
    PortMembers {
        pods: Members {
            list: pods,
            ..Members::default()
        },
        nodes: Members {
            list: nodes(30080),
            ..Members::default()
        },
        vips: Members {
            list: nodes(80),
            ..Members::default()
        },
    }
}

fn intent(ports: Vec<LoadBalancerPort>, pods: &[(u8, State)]) -> Intent {
    let list = || pods.iter().map(|(n, state)| pod(*n, *state)).collect();
    let uid = ServiceUid::from("u1");
    Intent {
        service: service(),
        uid: uid.clone(),
        addresses: vec![IpAddr::from([198, 51, 100, 1])],
        members: ports.iter().map(|p| (p.key(), members(list()))).collect(),
        departed: BTreeMap::new(),
        machines: std::sync::Arc::default(),
        view: View::Watched,
        spec: LoadBalancerSpec {
            provider: ProviderKind::Local,
            service_uid: uid,
            ports,
            membership: Membership {
                floor_percent: 100,
                hold_max_seconds: 600,
                ..Membership::default()
            },
            ..LoadBalancerSpec::default()
        },
    }
}

fn http(mode: TargetMode) -> LoadBalancerPort {
    port("http", Protocol::Tcp, 80, mode)
}
