use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use onehop_core::crd::{LoadBalancerSpec, Membership, NodeTargetsSpec};
use onehop_runtime::watch::Seen;

use onehop_core::crd::{LateFlows, LocalPort, NodeTargets, TargetMode};
use onehop_core::service::TrafficPolicy;

use super::*;
use crate::plan::membership::{TargetKey, View};

const INSTALL: &str = "demo";
const NOW: Time = Time::from_millis(1_800_000_000_000);

fn local(service: &str, state: TargetState) -> LocalPort {
    LocalPort {
        service: ServiceRef {
            namespace: "default".to_owned(),
            name: service.to_owned(),
            uid: "u".into(),
        },
        port_name: PortName::from("http"),
        protocol: Protocol::Tcp,
        node_port: None,
        health_check_node_port: Some(31000),
        state,
        since: NOW,
        late_flows: LateFlows::Forward,
    }
}

fn of_service(service: &str) -> OfService {
    let key = TargetKey {
        address: [10, 0, 1, 1].into(),
        port: 80,
    };
    let entry = Entry::Local(local(service, TargetState::Active));
    OfService {
        entries: vec![("a".into(), key, entry)],
        ..OfService::default()
    }
}

#[test]
fn i1_what_was_said_of_a_service_that_was_not_looked_at_yet_stays() {
    let there = NodeInstall {
        local: vec![local("web", TargetState::Active)],
        ..NodeInstall::default()
    };
    let mut register = Register::default();
    let node = NodeName::from("a");
    assert_eq!(
        register.entry(&node, &Ranges::default(), Some(&there)),
        there,
        "I1"
    );
    let key = ServiceKey::new("default", "web");
    register.remove((&Index::default(), &INSTALL.into()), &key, NOW);
    assert_eq!(
        register.entry(&node, &Ranges::default(), Some(&there)),
        NodeInstall::default()
    );
}

#[test]
fn k21_a_target_that_is_gone_is_released_for_a_minute() {
    let mut register = Register::default();
    let (node, key) = (NodeName::from("a"), ServiceKey::new("default", "web"));
    register.services.insert(key.clone(), of_service("web"));
    let touched = register.remove((&Index::default(), &INSTALL.into()), &key, NOW);
    assert_eq!(touched, BTreeSet::from([node.clone()]));
    let released = register.entry(&node, &Ranges::default(), None).local;
    assert_eq!(released[0].state, TargetState::Released, "K-21");
    let end = NOW + RELEASED_FOR;
    assert_eq!(register.next_change(), Some(end), "K-21: at least 60 s");
    assert!(register.purge(NOW + Duration::from_secs(59)).is_empty());
    assert_eq!(register.purge(end).len(), 1);
    assert_eq!(
        register.entry(&node, &Ranges::default(), None),
        NodeInstall::default()
    );
}

#[test]
fn i8_a_service_with_too_many_targets_leaves_the_others_their_place_in_the_object() {
    let mut register = Register::default();
    let node = NodeName::from("a");
    let mut huge = of_service("huge");
    huge.entries = huge
        .entries
        .iter()
        .cycle()
        .take(ENTRIES_MAX)
        .cloned()
        .collect();
    for (name, of) in [("huge", huge), ("web", of_service("web"))] {
        register
            .services
            .insert(ServiceKey::new("default", name), of);
    }
    let entry = register.entry(&node, &Ranges::default(), None);
    let told: Vec<_> = entry
        .local
        .iter()
        .map(|l| l.service.name.as_str())
        .collect();
    assert_eq!(told, ["web"], "I8");
    assert_eq!(
        register.too_large(&node),
        [ServiceKey::new("default", "huge")].into()
    );
    register.services.remove(&ServiceKey::new("default", "web"));
    assert_eq!(
        register.entry(&node, &Ranges::default(), None).local.len(),
        ENTRIES_MAX
    );
}

/// The node, a Service with policy Local, and its target in a state.
fn set(register: &mut Register, state: TargetState) -> News {
    told(register, &[], Some(state), 0, NOW)
}

/// The same, with what nodes were told before, a tail, and a target that the cloud may have no more.
fn told(
    register: &mut Register,
    before: &[NodeInstall],
    state: Option<TargetState>,
    tail_max_seconds: u32,
    now: Time,
) -> News {
    let address = IpAddr::from([10, 0, 1, 1]);
    let node = serde_json::json!({
        "metadata": { "name": "a" },
        "status": { "addresses": [{ "type": "InternalIP", "address": address }] },
    });
    let mut index = Index::default();
    let node = serde_json::from_value::<Node>(node).unwrap();
    index.on_node(Seen::Applied(node));
    said(&mut index, before);
    let service = ServiceSpec {
        key: ServiceKey::new("default", "web"),
        uid: "u".into(),
        external_policy: TrafficPolicy::Local,
        ..ServiceSpec::default()
    };
    let intent = Intent {
        service: service.key.clone(),
        uid: service.uid.clone(),
        spec: LoadBalancerSpec {
            membership: Membership {
                tail_max_seconds,
                late_flows: LateFlows::Drop,
                ..Membership::default()
            },
            ..LoadBalancerSpec::default()
        },
        addresses: Vec::new(),
        members: BTreeMap::new(),
        departed: BTreeMap::new(),
        machines: Arc::default(),
        view: View::Watched,
    };
    let listed = state.map(|state| Listed {
        port: PortKey::new("http", Protocol::Tcp),
        mode: TargetMode::Node,
        key: TargetKey {
            address,
            port: 30080,
        },
        state,
        seen: None,
    });
    let told = Told {
        targets: listed.into_iter().collect(),
        sources: BTreeMap::new(),
    };
    register.set((&index, &INSTALL.into()), &service, &intent, &told, now)
}

/// Nodes were told this by an earlier process.
fn said(index: &mut Index, installs: &[NodeInstall]) {
    index.on_node_targets(Seen::ListBegun);
    for said in installs {
        let mut object = NodeTargets::new("a", NodeTargetsSpec::default());
        object.spec.installs.insert(INSTALL.into(), said.clone());
        index.on_node_targets(Seen::Listed(object));
    }
    index.on_node_targets(Seen::ListDone);
}

/// State of the only target, and since when.
fn only(register: &Register) -> Option<(TargetState, Time)> {
    let said = register.entry(&"a".into(), &Ranges::default(), None);
    assert!(said.local.len() < 2, "{said:?}");
    said.local.first().map(|local| (local.state, local.since))
}

#[test]
fn zd60_a_node_is_told_what_its_service_says_of_late_flows() {
    let mut register = Register::default();
    set(&mut register, TargetState::Active);
    let said = register.entry(&"a".into(), &Ranges::default(), None);
    assert_eq!(said.local[0].late_flows, LateFlows::Drop, "ZD-60");
}

#[test]
fn zd_t39_k20_zd51_az300_a_target_is_released_when_its_tail_is_over_whatever_the_cloud_says() {
    let at = |seconds| NOW + Duration::from_secs(seconds);
    let mut register = Register::default();
    let mut told = |state, seconds| {
        told(&mut register, &[], state, 180, at(seconds));
        (only(&register), register.next_change())
    };
    told(Some(TargetState::Active), 0);
    let draining = Some((TargetState::Draining, at(10)));
    // While the cloud has it no clock of ours runs.
    let accepted = told(Some(TargetState::Draining), 10);
    assert_eq!(
        accepted,
        (draining, None),
        "K-20, AZ-300: not before its removal succeeded"
    );
    assert_eq!(told(None, 15), (draining, Some(at(190))), "ZD-T39: unused");
    assert_eq!(told(None, 189), (draining, Some(at(190))), "ZD-T39");
    let released = Some((TargetState::Released, at(190)));
    assert_eq!(told(None, 190), (released, Some(at(250))), "ZD-51, K-21");
    assert_eq!(told(None, 250), (None, None), "K-21");
}

#[test]
fn zd51_tails_end_although_nobody_looks_at_the_service() {
    let at = |seconds| NOW + Duration::from_secs(seconds);
    let mut register = Register::default();
    told(&mut register, &[], Some(TargetState::Active), 180, at(0));
    // The cloud has forgotten it before anybody saw it drain.
    told(&mut register, &[], None, 180, at(10));
    assert_eq!(only(&register), Some((TargetState::Draining, at(10))));
    assert!(register.purge(at(189)).is_empty(), "ZD-51");
    assert_eq!(register.purge(at(190)), ["a".into()].into());
    assert_eq!(only(&register), Some((TargetState::Released, at(190))));
    assert_eq!(register.purge(at(250)), ["a".into()].into(), "K-21");
    assert_eq!(only(&register), None);
    // One that the cloud still has, long after, is not released.
    told(
        &mut register,
        &[],
        Some(TargetState::Draining),
        180,
        at(300),
    );
    assert!(
        register.purge(at(900)).is_empty(),
        "K-20: the later of both"
    );
    assert_eq!(only(&register), Some((TargetState::Draining, at(300))));
}

#[test]
fn zd81_k21_after_a_restart_states_go_on_with_their_times_and_ends_are_still_said() {
    let at = |seconds| NOW + Duration::from_secs(seconds);
    let there = |state| {
        let mut entry = NodeInstall {
            local: vec![LocalPort {
                node_port: Some(30080),
                ..local("web", state)
            }],
            ..NodeInstall::default()
        };
        entry.cluster.tail_max_seconds = 180;
        [entry]
    };
    for state in [TargetState::Held, TargetState::Draining] {
        let mut register = Register::default();
        told(&mut register, &there(state), Some(state), 180, at(60));
        assert_eq!(only(&register), Some((state, NOW)), "ZD-81");
    }
    // It left the cloud while nobody was there.
    let mut register = Register::default();
    told(
        &mut register,
        &there(TargetState::Draining),
        None,
        180,
        at(60),
    );
    assert_eq!(only(&register), Some((TargetState::Draining, NOW)), "K-21");
    register.purge(at(180));
    assert_eq!(
        only(&register),
        Some((TargetState::Released, at(180))),
        "K-21"
    );
    let mut register = Register::default();
    told(&mut register, &there(TargetState::Held), None, 180, at(60));
    let late = Some((TargetState::Draining, at(60)));
    assert_eq!(only(&register), late, "K-21: late and never early");
}

#[test]
fn zd15_k21_targets_of_a_service_that_is_gone_are_released_by_the_next_process() {
    let mut index = Index::default();
    let mut entry = NodeInstall {
        local: vec![local("web", TargetState::Draining)],
        ..NodeInstall::default()
    };
    entry.cluster.tail_max_seconds = 180;
    said(&mut index, std::slice::from_ref(&entry));
    let mut register = Register::default();
    register.take_over_gone(&index, &INSTALL.into());
    assert_eq!(register.next_change(), Some(NOW + Duration::from_mins(3)));
    register.purge(NOW + Duration::from_mins(3));
    let released = Some((TargetState::Released, NOW + Duration::from_mins(3)));
    assert_eq!(only(&register), released, "ZD-15");
    // Of one that serves nothing of the kind is said: perhaps it has yet to be seen (I1).
    entry.local[0].state = TargetState::Active;
    said(&mut index, &[entry]);
    let mut register = Register::default();
    register.take_over_gone(&index, &INSTALL.into());
    assert_eq!(register.next_change(), None, "I1");
}

#[test]
fn k22_only_a_target_that_is_held_now_is_written_at_once() {
    let mut register = Register::default();
    let concerned = BTreeSet::from([NodeName::from("a")]);
    for (state, urgency) in [
        (TargetState::Active, Urgency::Awaited),
        (TargetState::Held, Urgency::AtOnce),
        (TargetState::Draining, Urgency::Merged),
    ] {
        let news = set(&mut register, state);
        assert_eq!(
            (&news.nodes, news.urgency),
            (&concerned, urgency),
            "K-22: {state:?}"
        );
        assert_eq!(
            set(&mut register, state),
            News::default(),
            "K-22: {state:?} again"
        );
    }
}

#[test]
fn k20_since_is_when_the_state_began() {
    let old = of_service("web");
    let mut new = of_service("web");
    new.entries[0]
        .2
        .set_state(TargetState::Active, NOW + RELEASED_FOR);
    let kept = new.after(&old, NOW);
    assert_eq!(
        kept.entries[0].2.state(),
        (TargetState::Active, NOW),
        "K-20"
    );
}

#[test]
fn zd86_aws429_an_address_that_still_leaves_another_service_is_not_free() {
    let address = IpAddr::from([10, 244, 1, 1]);
    let (web, api) = (
        ServiceKey::new("default", "web"),
        ServiceKey::new("default", "api"),
    );
    let leaves = |state| {
        let target = serde_json::json!({
            "service": { "namespace": "default", "name": "web", "uid": "u" }, "portName": "http",
            "protocol": "TCP", "address": address, "targetPort": 8080, "podUID": "p", "podName": "web-1",
            "health": "agent", "clientIP": "preserve", "state": state, "since": NOW,
        });
        let target = serde_json::from_value(target).unwrap();
        let key = TargetKey {
            address,
            port: 8080,
        };
        let of = OfService {
            entries: vec![("a".into(), key, Entry::Pod(target))],
            ..OfService::default()
        };
        let mut register = Register::default();
        register.services.insert(web.clone(), of);
        [&api, &web].map(|service| register.leaves_another(address, service))
    };
    assert_eq!(leaves("draining"), [true, false], "ZD-86: for others only");
    for state in ["active", "held", "released"] {
        assert_eq!(leaves(state), [false, false], "ZD-86: {state}");
    }
}
