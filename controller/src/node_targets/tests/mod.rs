use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use onehop_core::crd::LoadBalancerSpec;
use onehop_runtime::watch::Seen;

use super::*;
use crate::plan::membership::View;

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
        vips: BTreeMap::new(),
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
    register.remove(&ServiceKey::new("default", "web"), NOW);
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
    let touched = register.remove(&key, NOW);
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
    let address = IpAddr::from([10, 0, 1, 1]);
    let node = serde_json::json!({
        "metadata": { "name": "a" },
        "status": { "addresses": [{ "type": "InternalIP", "address": address }] },
    });
    let mut index = Index::default();
    let node = serde_json::from_value::<Node>(node).unwrap();
    index.on_node(Seen::Applied(node));
    let service = ServiceSpec {
        key: ServiceKey::new("default", "web"),
        uid: "u".into(),
        external_policy: TrafficPolicy::Local,
        ..ServiceSpec::default()
    };
    let intent = Intent {
        service: service.key.clone(),
        uid: service.uid.clone(),
        spec: LoadBalancerSpec::default(),
        addresses: Vec::new(),
        members: BTreeMap::new(),
        departed: BTreeMap::new(),
        machines: Arc::default(),
        view: View::Watched,
    };
    let listed = Listed {
        port: PortKey::new("http", Protocol::Tcp),
        mode: TargetMode::Node,
        key: TargetKey {
            address,
            port: 30080,
        },
        state,
        seen: None,
    };
    let told = Told {
        targets: vec![listed],
        sources: BTreeMap::new(),
    };
    register.set(&index, &service, &intent, &told, NOW)
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
            vips: BTreeMap::new(),
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
