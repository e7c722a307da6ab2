//! What agents are told of a Service's targets (K-20). Pure.

use std::collections::{BTreeMap, BTreeSet};

use onehop_core::crd::{HealthBy, LoadBalancerPort, MembershipPolicy, TargetState};
use onehop_core::gate;
use onehop_core::id::{Cidr, PortKey, Protocol, ServiceKey};
use onehop_core::time::Time;

use super::annotations;
use super::model::{Group, GroupProtocol, Observed, Tagged};
use super::resolve::keeps_client;
use super::settings::Settings;
use super::stack::CUT_UNHEALTHY;
use super::wanted::{balancers, decide, groups_of, known_targets, mode_of, stack};
use crate::plan::membership::{Action, CloudState, State, TargetKey};
use crate::plan::{Intent, Listed, gates};

/// Ports whose targets see the load balancer nodes' addresses: those are of its subnets (ZD-14).
pub(super) fn sources(
    settings: &Settings,
    intent: &Intent,
    seen: &Observed,
) -> BTreeMap<PortKey, Vec<Cidr>> {
    let wishes = annotations::of_options(settings, &intent.spec);
    let ports = &intent.spec.ports;
    let own = ports.iter().filter(|port| {
        let merged = ports.iter().filter(|p| p.port == port.port).count() > 1;
        !keeps_client(port.key().protocol, port.port, port.mode, merged, &wishes)
    });
    let wanted = stack(settings, intent, seen).map(|stack| stack.balancer.subnets);
    let wanted = wanted.into_iter().flatten().map(|mapping| mapping.subnet);
    let there = balancers(intent, seen);
    let there = there.iter().flat_map(|b| b.subnets.keys().cloned());
    let subnets: BTreeSet<String> = wanted.chain(there).collect();
    let known = subnets.iter().filter_map(|id| seen.network.subnets.get(id));
    let ranges = known.flat_map(|s| s.cidr.into_iter().chain(s.ipv6.iter().copied()));
    let ranges: Vec<Cidr> = ranges.collect();
    own.map(|port| (port.key(), ranges.clone())).collect()
}

/// Every target of every group, and those that are about to be registered in a group that does not exist
/// yet.
pub(super) fn listed(intent: &Intent, seen: &Observed, now: Time) -> Vec<Listed> {
    let mut all = Vec::new();
    for port in &intent.spec.ports {
        let key = port.key();
        let mut in_mode = false;
        let groups = groups_of(port.port, seen);
        for group in groups.filter(|group| carries(group.protocol, port.protocol)) {
            let retired = group.retired().is_some();
            in_mode |= !retired && mode_of(group.target) == port.mode;
            let decision = decide(intent, group, now);
            let (known, _) = known_targets(group, &intent.machines);
            let mut states: BTreeMap<TargetKey, TargetState> = BTreeMap::new();
            for (target, cloud) in &known {
                states.insert(*target, state_of(*cloud, retired));
            }
            for (target, _) in decision.with(Action::Hold) {
                states.insert(target, TargetState::Held);
            }
            if !retired && cuts_unhealthy(intent, port, group) {
                // Its health must not fail before it is deregistered, or its flows would be cut (ZD-33).
                for (target, _) in decision.with(Action::Drain) {
                    states.insert(target, TargetState::Held);
                }
            }
            if !retired {
                for (target, _) in decision.with(Action::Register) {
                    states.insert(target, TargetState::Active);
                }
            }
            all.extend(states.into_iter().map(|(target, state)| Listed {
                port: key.clone(),
                mode: mode_of(group.target),
                key: target,
                state,
                health_port: group.check.port,
                seen: known.get(&target).copied().filter(|_| !retired),
                verdict: decision.verdicts.get(&target).copied().filter(|_| !retired),
            }));
        }
        if !in_mode {
            let members = intent.members(&key, port.mode);
            let ready = members.into_iter().flat_map(|m| &m.list);
            let ready = ready.filter(|m| m.state == State::Ready);
            all.extend(ready.map(|member| Listed {
                port: key.clone(),
                mode: port.mode,
                key: member.key,
                state: TargetState::Active,
                health_port: None,
                seen: None,
                verdict: None,
            }));
        }
    }
    all
}

/// Whether agents answer for the targets of a group whose flows end as soon as its health fails, as a user has asked for.
pub(super) fn cuts_unhealthy(intent: &Intent, port: &LoadBalancerPort, group: &Group) -> bool {
    let by_agent = port
        .health
        .as_ref()
        .is_some_and(|h| h.by == HealthBy::Agent);
    let ours = intent.spec.membership.policy == MembershipPolicy::ZeroDrop;
    let attributes = group.attributes.as_ref();
    let cuts = attributes.and_then(|all| all.get(CUT_UNHEALTHY));
    by_agent && ours && cuts.is_some_and(|cuts| cuts == "true")
}

/// Whether a port's group has as many targets as it may (AWS-433); 0: there is no limit.
pub(super) fn is_full(most: usize, intent: &Intent, port: &PortKey, seen: &Observed) -> bool {
    let mut numbers = intent.spec.ports.iter().filter(|p| p.key() == *port);
    let full = |group: &Group| {
        let targets = group.targets.as_ref().map_or(0, BTreeMap::len);
        group.retired().is_none() && targets >= most
    };
    most > 0 && numbers.any(|p| groups_of(p.port, seen).any(full))
}

/// Gates of the peer's for groups that it has made for this Service, which we have now: its bindings are named as groups
/// are (AWS-504).
pub(super) fn peer_gates(intent: &Intent, seen: &Observed) -> BTreeMap<String, PortKey> {
    let mut gates = BTreeMap::new();
    for port in &intent.spec.ports {
        let groups = groups_of(port.port, seen);
        let peers = groups.filter(|group| group.name.starts_with("k8s-"));
        for group in peers.filter(|group| carries(group.protocol, port.protocol)) {
            let gate = format!("{}{}", gate::PEER_PREFIX, group.name);
            gates.entry(gate).or_insert_with(|| port.key());
        }
    }
    gates
}

/// What gates of the peer's for this Service begin with.
pub(super) fn peer_gate_stem(service: &ServiceKey) -> String {
    format!("{}k8s-{}", gate::PEER_PREFIX, gates::stem(service))
}

/// Whether a group takes flows of a protocol: one that is merged is listed for both of its ports.
const fn carries(group: GroupProtocol, protocol: Protocol) -> bool {
    match group {
        GroupProtocol::TcpUdp => true,
        GroupProtocol::Udp => matches!(protocol, Protocol::Udp),
        GroupProtocol::Tcp | GroupProtocol::Tls => matches!(protocol, Protocol::Tcp),
    }
}

/// Targets of a group that is on its way out drain, whatever the cloud says of them yet.
const fn state_of(cloud: CloudState, retired: bool) -> TargetState {
    match (cloud, retired) {
        (CloudState::Draining, _) | (_, true) => TargetState::Draining,
        (_, false) => TargetState::Active,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cloud::aws::outcome::outcome;
    use crate::cloud::aws::resolve::resolve;
    use crate::cloud::aws::testkit::{
        Model, NOW, UID_A, annotated, converge, intent, network, service, settings, udp,
    };

    /// The ranges of each port that has some, for a Service with pods as targets.
    fn of(pairs: &[(&str, &str)], more_udp: bool) -> Vec<(String, Vec<String>)> {
        let mut service = service(("default", "web"), UID_A, &[(80, 8080, 30080)]);
        if more_udp {
            service.ports.push(udp(80, 8080, 30080));
        }
        let service = annotated(
            annotated(service, &[("aws-load-balancer-nlb-target-type", "ip")]),
            pairs,
        );
        let intent = intent(&service, resolve(&settings(), &service, None), &[]);
        let seen = Observed {
            network: network(&["192.168.0.0/19", "192.168.32.0/19"]).into(),
            ..Observed::default()
        };
        let all = sources(&settings(), &intent, &seen).into_iter();
        all.map(|(port, ranges)| {
            let ranges = ranges.iter().map(ToString::to_string).collect();
            (port.name.to_string(), ranges)
        })
        .collect()
    }

    #[test]
    fn k20_targets_of_a_merged_group_are_listed_for_both_of_its_ports() {
        let mut service = service(("default", "web"), UID_A, &[(80, 8080, 30080)]);
        service.ports.push(udp(80, 8080, 30080));
        let pairs = [
            ("aws-load-balancer-nlb-target-type", "ip"),
            ("aws-load-balancer-enable-tcp-udp-listener", "true"),
        ];
        let service = annotated(service, &pairs);
        let intent = intent(
            &service,
            resolve(&settings(), &service, None),
            &[(1, State::Ready)],
        );
        let mut model = Model::on(network(&["192.168.0.0/19"]));
        let names = |all: Vec<Listed>| -> Vec<_> {
            let all = all.into_iter();
            all.map(|one| (one.port.name.to_string(), one.state))
                .collect()
        };
        let both = ["p80", "u80"].map(|name| (name.to_owned(), TargetState::Active));
        assert_eq!(names(listed(&intent, &model.seen, NOW)), both, "before");
        converge(&mut model, Some(&intent), NOW);
        assert_eq!(model.seen.groups.len(), 1);
        assert_eq!(names(listed(&intent, &model.seen, NOW)), both, "K-20");
    }

    /// ZD-T06: the user wants flows of unhealthy targets ended.
    #[test]
    fn zd33_where_failing_health_cuts_flows_a_target_that_leaves_is_held_until_it_is_out() {
        use TargetState::{Active, Held};

        use crate::plan::membership::Serving;
        let listed_with = |attribute: &str| {
            let key = format!("{CUT_UNHEALTHY}={attribute}");
            let pairs = [
                ("aws-load-balancer-nlb-target-type", "ip"),
                ("aws-load-balancer-target-group-attributes", key.as_str()),
            ];
            let mut service = service(("default", "web"), UID_A, &[(80, 8080, 30080)]);
            service.class = Some("onehop.dev/aws".to_owned());
            let service = annotated(service, &pairs);
            let with = |pods: &[(u8, State)]| {
                let mut intent = intent(&service, resolve(&settings(), &service, None), pods);
                let port = &mut intent.spec.ports[0];
                port.health.as_mut().unwrap().by = HealthBy::Agent;
                intent
            };
            let mut model = Model::on(network(&["192.168.0.0/19"]));
            let both = [(1, State::Ready), (2, State::Ready)];
            converge(&mut model, Some(&with(&both)), NOW);
            model.settle();
            let ends = State::Terminating {
                serving: Serving::Yes,
                since: Some(NOW),
            };
            let leaving = with(&[(1, ends), (2, State::Ready)]);
            let before: Vec<_> = listed(&leaving, &model.seen, NOW)
                .into_iter()
                .map(|one| one.state)
                .collect();
            let told = outcome(&settings(), &leaving, &model.seen, NOW).notices;
            let told = told.iter().any(|n| n.reason == "SlowDeregistration");
            converge(&mut model, Some(&leaving), NOW);
            let after: Vec<_> = listed(&leaving, &model.seen, NOW)
                .into_iter()
                .map(|one| one.state)
                .collect();
            (before, told, after)
        };
        let (before, told, after) = listed_with("true");
        assert_eq!(
            before,
            [Held, Active],
            "ZD-33: it answers 200 until it is out"
        );
        assert!(told, "ZD-T06: and people are told");
        assert_eq!(after.last(), Some(&Active));
        assert!(!after.contains(&Held), "ZD-33: it is out: {after:?}");
        let (before, told, _) = listed_with("false");
        assert_eq!(before, [Active, Active], "its health fails first (ZD-34)");
        assert!(!told);
    }

    #[test]
    fn aws507_aws433_a_group_with_as_many_targets_as_it_may_is_full() {
        let service = service(("default", "web"), UID_A, &[(80, 8080, 30080)]);
        let service = annotated(service, &[("aws-load-balancer-nlb-target-type", "ip")]);
        let ready = [(1, State::Ready), (2, State::Ready)];
        let intent = intent(&service, resolve(&settings(), &service, None), &ready);
        let mut model = Model::on(network(&["192.168.0.0/19"]));
        converge(&mut model, Some(&intent), NOW);
        let port = intent.spec.ports[0].key();
        let full = |most| is_full(most, &intent, &port, &model.seen);
        assert_eq!(
            [0, 1, 2, 3].map(full),
            [false, true, true, false],
            "AWS-433"
        );
    }

    #[test]
    fn aws771_flows_without_the_clients_address_come_from_the_load_balancers_subnets() {
        let subnets = vec!["192.168.0.0/19".to_owned(), "192.168.32.0/19".to_owned()];
        assert_eq!(of(&[], false), [("p80".to_owned(), subnets.clone())]);
        let attributes = "aws-load-balancer-target-group-attributes";
        let keep = (attributes, "preserve_client_ip.enabled=true");
        assert_eq!(of(&[keep], false), []);
        // A PROXY header does not change where packets come from.
        let proxy = ("aws-load-balancer-proxy-protocol", "*");
        assert_eq!(of(&[proxy], false), [("p80".to_owned(), subnets)]);
        assert_eq!(of(&[proxy, keep], false), []);
        let merge = ("aws-load-balancer-enable-tcp-udp-listener", "true");
        assert_eq!(of(&[merge], true), []);
    }
}
