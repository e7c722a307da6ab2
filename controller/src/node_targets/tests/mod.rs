use std::sync::Arc;

use onehop_core::crd::{LoadBalancerSpec, Membership, NodeTargetsSpec};
use onehop_runtime::watch::Seen;

use onehop_core::crd::{
    LateFlows, LoadBalancer, LoadBalancerStatus, LocalPort, NodeTargets, NodeTargetsStatus, Tail,
    TargetMode,
};
use onehop_core::service::{ServicePort, TargetPort, TrafficPolicy};

use super::*;
use crate::index::Touched;
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
    let mut index = with_node();
    said(&mut index, before);
    told_with(register, &index, state, tail_max_seconds, now)
}

/// The same, with what else is known of the cluster.
fn told_with(
    register: &mut Register,
    index: &Index,
    state: Option<TargetState>,
    tail_max_seconds: u32,
    now: Time,
) -> News {
    let service = ServiceSpec {
        key: ServiceKey::new("default", "web"),
        uid: "u".into(),
        external_policy: TrafficPolicy::Local,
        ..ServiceSpec::default()
    };
    let spec = LoadBalancerSpec {
        membership: Membership {
            tail_max_seconds,
            late_flows: LateFlows::Drop,
            ..Membership::default()
        },
        ..LoadBalancerSpec::default()
    };
    let intent = intent_of(&service, spec);
    let listed = state.map(|state| listed_at(TargetMode::Node, ([10, 0, 1, 1], 30080), state));
    let told = Told {
        targets: listed.into_iter().collect(),
        sources: BTreeMap::new(),
    };
    register.set((index, &INSTALL.into()), &service, &intent, &told, now)
}

fn intent_of(service: &ServiceSpec, spec: LoadBalancerSpec) -> Intent {
    Intent {
        service: service.key.clone(),
        uid: service.uid.clone(),
        spec,
        addresses: Vec::new(),
        members: BTreeMap::new(),
        departed: BTreeMap::new(),
        machines: Arc::default(),
        view: View::Watched,
    }
}

/// A target of port `http`, of which the cloud and the policy have said nothing.
fn listed_at(mode: TargetMode, (address, port): ([u8; 4], u16), state: TargetState) -> Listed {
    Listed {
        port: PortKey::new("http", Protocol::Tcp),
        mode,
        key: TargetKey {
            address: address.into(),
            port,
        },
        state,
        health_port: None,
        seen: None,
        verdict: None,
    }
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
                health_check_node_port: None,
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

/// Node `a`, whose agent has seen this tail of Service `web`.
fn with_tail(index: &mut Index, seconds: u32) -> Touched {
    let mut object = NodeTargets::new("a", NodeTargetsSpec::default());
    object.status = Some(NodeTargetsStatus {
        tails: vec![Tail {
            service: local("web", TargetState::Active).service,
            seconds,
        }],
        ..NodeTargetsStatus::default()
    });
    index.on_node_targets(Seen::Applied(object))
}

fn with_node() -> Index {
    let node = serde_json::json!({
        "metadata": { "name": "a" },
        "status": { "addresses": [{ "type": "InternalIP", "address": "10.0.1.1" }] },
    });
    let mut index = Index::default();
    index.on_node(Seen::Applied(serde_json::from_value(node).unwrap()));
    index
}

#[test]
fn zd83_a_target_is_released_a_quarter_after_the_longest_tail_that_agents_have_seen() {
    let at = |seconds| NOW + Duration::from_secs(seconds);
    let released_at = |floor_seconds: Option<u32>, index: &Index| {
        let mut register = Register::new(Tails { floor_seconds });
        told_with(
            &mut register,
            index,
            Some(TargetState::Draining),
            180,
            at(0),
        );
        told_with(&mut register, index, None, 180, at(0));
        let end = register.next_change().unwrap();
        register.purge(end);
        assert_eq!(only(&register), Some((TargetState::Released, end)));
        let tails = register.released_after();
        assert_eq!(tails, [end.since(at(0))], "ZD-83: and is measured");
        assert!(register.released_after().is_empty(), "once");
        tails[0].as_secs()
    };
    let mut index = with_node();
    assert_eq!(released_at(Some(20), &index), 180, "ZD-83: none was seen");
    let news = |seconds, index: &mut Index| match with_tail(index, seconds) {
        Touched::Services(services) => services.len(),
        Touched::All => panic!("everything is looked at"),
    };
    assert_eq!(news(80, &mut index), 1, "ZD-83: the Service is looked at");
    assert_eq!(released_at(Some(20), &index), 100, "ZD-83");
    assert_eq!(released_at(Some(120), &index), 120, "ZD-83: the floor");
    assert_eq!(released_at(None, &index), 180, "ZD-51: not asked for");
    // An agent that starts anew has seen nothing; what was seen is not forgotten.
    assert_eq!(news(5, &mut index), 0);
    assert_eq!(released_at(Some(20), &index), 100, "ZD-83");
}

#[test]
fn zd83_a_controller_that_starts_anew_knows_what_agents_had_seen() {
    let key = ServiceKey::new("default", "web");
    let longest = |uid: &str, index: &Index| index.longest_tail(&key, &uid.into());
    let mut index = with_node();
    let mut object = LoadBalancer::new("web", LoadBalancerSpec::default());
    object.metadata.namespace = Some("default".to_owned());
    object.spec.service_uid = "u".into();
    object.status = Some(LoadBalancerStatus {
        tail_seconds: Some(80),
        ..LoadBalancerStatus::default()
    });
    index.on_balancer(Seen::Applied(object));
    assert_eq!(longest("u", &index), Some(80), "ZD-83");
    assert_eq!(longest("another", &index), None, "another Service by now");
    with_tail(&mut index, 90);
    assert_eq!(longest("u", &index), Some(90), "ZD-83: the longer one");
}

/// A Service, what its groups have, and what nodes are told then: node port, health port and state of each.
struct Retiring {
    register: Register,
    index: Index,
    now: Time,
}

type ToldPort = (Option<u16>, Option<u16>, TargetState);

impl Retiring {
    /// `node_port` and `health` are what the Service has now; each group has its node port and the port that it asks.
    fn told(
        &mut self,
        (policy, node_port, health): (TrafficPolicy, u16, Option<u16>),
        groups: &[(u16, Option<u16>, TargetState)],
    ) -> Vec<ToldPort> {
        let http = PortKey::new("http", Protocol::Tcp);
        let service = ServiceSpec {
            key: ServiceKey::new("default", "web"),
            uid: "u".into(),
            external_policy: policy,
            health_check_node_port: health,
            ports: vec![ServicePort {
                key: http.clone(),
                port: 80,
                target: TargetPort::Number(8080),
                node_port: Some(node_port),
                app_protocol: None,
            }],
            ..ServiceSpec::default()
        };
        let mut spec = LoadBalancerSpec::default();
        spec.membership.tail_max_seconds = 180;
        let intent = intent_of(&service, spec);
        let listed = groups.iter().map(|(port, health_port, state)| Listed {
            health_port: *health_port,
            ..listed_at(TargetMode::Node, ([10, 0, 1, 1], *port), *state)
        });
        let told = Told {
            targets: listed.collect(),
            sources: BTreeMap::new(),
        };
        let from = (&self.index, &INSTALL.into());
        self.register.set(from, &service, &intent, &told, self.now);
        self.said()
    }

    fn said(&self) -> Vec<ToldPort> {
        let entry = self.register.entry(&"a".into(), &Ranges::default(), None);
        let ports = entry.local.iter();
        ports
            .map(|p| (p.node_port, p.health_check_node_port, p.state))
            .collect()
    }

    fn later(&mut self, seconds: u64) -> Vec<ToldPort> {
        self.now += Duration::from_secs(seconds);
        self.register.purge(self.now);
        self.said()
    }
}

#[test]
fn zd68_zd28_old_ports_are_told_until_their_targets_are_released() {
    use TargetState::{Active, Draining, Released};
    use TrafficPolicy::{Cluster, Local};
    let mut world = Retiring {
        register: Register::default(),
        index: with_node(),
        now: NOW,
    };
    let local = (Local, 30080, Some(31000));
    let old = |state| (30080, Some(31000), state);
    let said = |state| (Some(30080), Some(31000), state);
    assert_eq!(world.told(local, &[old(Active)]), [said(Active)]);
    // It leaves policy Local: the group that asks the old port serves until the new one does.
    let cluster = (Cluster, 30080, None);
    let both = [old(Active), (30080, Some(10256), Active)];
    assert_eq!(world.told(cluster, &both), [said(Active)], "ZD-68");
    let retired = [old(Draining), (30080, Some(10256), Active)];
    assert_eq!(world.told(cluster, &retired), [said(Draining)], "ZD-28");
    let new = [(30080, Some(10256), Active)];
    assert_eq!(world.told(cluster, &new), [said(Draining)], "ZD-68: a tail");
    assert_eq!(world.later(179), [said(Draining)], "ZD-68");
    assert_eq!(world.later(1), [said(Released)], "ZD-68, K-20");
    assert_eq!(world.later(60), [], "K-21");
    // Another node port: the group with the old one is replaced.
    let moved = (Cluster, 30090, None);
    let retired = [(30080, Some(10256), Draining), (30090, Some(10256), Active)];
    let said = |state| [(Some(30080), None, state)];
    assert_eq!(world.told(moved, &retired), said(Draining), "ZD-68");
    let new = [(30090, Some(10256), Active)];
    assert_eq!(world.told(moved, &new), said(Draining), "ZD-68");
    assert_eq!(world.later(180), said(Released), "ZD-68");
}

/// What `node a` is told of a pod whose clients are let in by these ranges, and of which the load balancer's own addresses
/// are seen, or the clients'.
fn pod_told(allowed: &[Cidr], sources: Option<Cidr>) -> NodeTarget {
    let mut index = with_node();
    let slice = serde_json::json!({
        "addressType": "IPv4",
        "metadata": {
            "namespace": "default", "name": "web-1",
            "labels": { "kubernetes.io/service-name": "web" },
        },
        "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
        "endpoints": [{
            "addresses": ["10.244.0.1"], "nodeName": "a", "conditions": { "ready": true },
            "targetRef": { "kind": "Pod", "name": "p", "uid": "p1" },
        }],
    });
    index.on_slice(Seen::Applied(serde_json::from_value(slice).unwrap()));
    let http = PortKey::new("http", Protocol::Tcp);
    let mut service = ServiceSpec {
        key: ServiceKey::new("default", "web"),
        uid: "u".into(),
        ..ServiceSpec::default()
    };
    service.source_ranges.allowed = allowed.to_vec();
    let intent = intent_of(&service, LoadBalancerSpec::default());
    let pod = ([10, 244, 0, 1], 8080);
    let listed = listed_at(TargetMode::Pod, pod, TargetState::Active);
    let told = Told {
        targets: vec![listed],
        sources: sources.map(|from| (http, vec![from])).into_iter().collect(),
    };
    let mut register = Register::default();
    register.set((&index, &INSTALL.into()), &service, &intent, &told, NOW);
    let said = register.entry(&"a".into(), &Ranges::default(), None);
    said.targets.into_iter().next().unwrap()
}

#[test]
fn zd49_zd14_a_node_is_told_which_clients_are_let_in_where_packets_show_who_they_are() {
    let range = "203.0.113.0/24".parse::<Cidr>().unwrap();
    let subnet = "10.9.0.0/24".parse::<Cidr>().unwrap();
    let told = |allowed: &[Cidr], sources| {
        let target = pod_told(allowed, sources);
        (target.any_outside, target.sources, target.allowed)
    };
    assert_eq!(told(&[], None), (true, vec![], None), "ZD-14");
    let let_in = (true, vec![], Some(vec![range]));
    assert_eq!(told(&[range], None), let_in, "ZD-49");
    // Where the load balancer's own addresses are seen it has looked, and the node cannot.
    let looked = (false, vec![subnet], None);
    assert_eq!(told(&[range], Some(subnet)), looked, "ZD-14, ZD-49");
}
