//! What the agent answers for a pod that is a target, and who may ask (ZD-30, ZD-31). Pure.

use onehop_core::crd::{FlowSources, NodeTarget, TargetState};
use onehop_core::endpoint::Endpoint;
use onehop_core::id::{Frontend, IpFamily, Protocol};

use super::choice::Standing;
use super::listing::Identity;
use super::{Cluster, Fate};
use crate::health::pods::HealthPath;
use crate::table::element::{Data, Elements, Key, SetId, Verdict};

/// What an answer follows from.
pub(super) struct Facts<'a> {
    /// How the pod stands.
    pub(super) standing: Standing,
    /// What the controller says of it.
    pub(super) state: TargetState,
    /// The guard of a pod that leaves has not ended yet (ZD-51).
    pub(super) guarded: bool,
    /// Its own endpoint.
    pub(super) own: Option<&'a Endpoint>,
    /// Only gates that wait for the load balancer keep it from being ready: they would wait for ever if this did for them.
    pub(super) waits: bool,
    /// Whether anybody else takes new flows.
    pub(super) others: bool,
    /// What is to become of the node.
    pub(super) fate: Fate,
}

/// The decision table of zero-drop.md section 5e, and ZD-78 for the node: whether the pod counts as healthy.
///
/// One row more than there: until the controller has said what becomes of a pod that leaves, it counts as held. A
/// controller that is away, or just restarting, has not registered the pods that follow either; a cloud that sends nothing
/// while all members are down would then drop everything, though the guard stands ready (ZD-110).
pub(super) fn answer(facts: &Facts<'_>) -> bool {
    let held = facts.state == TargetState::Held;
    let leaves = matches!(facts.standing, Standing::Leaves | Standing::Gone);
    let undecided = facts.state == TargetState::Active && leaves && facts.guarded;
    let conditions = facts.own.map(|endpoint| endpoint.conditions);
    let alive = matches!(facts.standing, Standing::Lives | Standing::Leaves);
    let serves = alive && conditions.is_some_and(|c| c.serving);
    match (facts.fate, facts.standing) {
        (Fate::Out, _) | (_, Standing::Replaced) => false,
        // A pod on a node that goes serves for as long as the floor needs it (ZD-76).
        (Fate::Goes, _) => held && serves,
        (Fate::Stays, Standing::Lives) if facts.waits || conditions.is_some_and(|c| c.ready) => {
            true
        }
        // A new flow would be accepted: by another endpoint, or by the pod itself.
        (Fate::Stays, _) => (held || undecided) && (facts.others || serves),
    }
}

/// The path at which a target is asked for (K-28).
pub(super) fn path(identity: &Identity) -> HealthPath {
    HealthPath {
        install: identity.install.to_string(),
        namespace: identity.service.namespace.clone(),
        service: identity.service.name.clone(),
        port: identity.port.name.to_string(),
    }
}

/// What brings probes of the target's address to the agent. Only those who probe are let through, so that a port of the
/// pod's own with this number stays reachable for others (ZD-35).
pub(super) fn elements(key: &Frontend, target: &NodeTarget, cluster: &impl Cluster) -> Elements {
    let family = IpFamily::of(key.address);
    let Some(at) = cluster.health_at(family) else {
        return Elements::new();
    };
    let probed = Frontend {
        address: key.address,
        protocol: Protocol::Tcp,
        port: at.port(),
    };
    let mut elements = Elements::new();
    let mut put = |set, key, data| elements.insert((family, set, key), Some(data));
    let verdict = Data::Verdict(Verdict::PodHealth);
    // Beside flows from anywhere the sources are those of probes (ZD-14).
    let sources = target.sources.iter().filter(|s| s.family() == family);
    let ranges = ipnet::IpNet::aggregate(&sources.map(|s| s.net()).collect::<Vec<_>>());
    for range in &ranges {
        put(SetId::HealthFrom, Key::Range(probed, *range), verdict);
    }
    if ranges.is_empty() {
        if target.flows() != FlowSources::AnyOutside {
            return Elements::new();
        }
        put(SetId::HealthAny, Key::Frontend(probed), verdict);
    }
    put(SetId::PodHealth, Key::Frontend(probed), Data::Target(at));
    elements
}

#[cfg(test)]
mod tests {
    use onehop_core::endpoint::{Conditions, Hints};

    use super::*;

    /// The table's rows: standing, own conditions, others, and the answers once the controller has decided, while it has
    /// not, and held.
    #[test]
    fn zd31_zd78_answers_are_those_of_the_decision_table() {
        use Standing::{Gone, Leaves, Lives, Replaced};
        let terminating = |serving| Conditions {
            ready: false,
            serving,
            terminating: true,
        };
        let not_ready = Conditions {
            ready: false,
            serving: false,
            terminating: false,
        };
        let rows = [
            (Lives, Some(Conditions::READY), true, [true, true, true]),
            (Lives, Some(Conditions::READY), false, [true, true, true]),
            (Lives, Some(not_ready), true, [false, false, true]),
            (Lives, Some(not_ready), false, [false, false, false]),
            (Lives, None, true, [false, false, true]),
            (Leaves, Some(terminating(true)), true, [false, true, true]),
            (Leaves, Some(terminating(true)), false, [false, true, true]),
            (Leaves, Some(terminating(false)), true, [false, true, true]),
            (
                Leaves,
                Some(terminating(false)),
                false,
                [false, false, false],
            ),
            (Gone, None, true, [false, true, true]),
            (Gone, Some(terminating(true)), false, [false, false, false]),
            (Replaced, None, true, [false, false, false]),
        ];
        for (standing, conditions, others, expected) in rows {
            let own = conditions.map(|conditions| Endpoint {
                address: [10, 244, 1, 1].into(),
                port: 8080,
                nodes: Vec::new(),
                zone: None,
                hints: Hints::default(),
                conditions,
                pod: None,
            });
            let of = |state, guarded, fate| {
                answer(&Facts {
                    standing,
                    state,
                    guarded,
                    own: own.as_ref(),
                    waits: false,
                    others,
                    fate,
                })
            };
            let states = [
                TargetState::Draining,
                TargetState::Active,
                TargetState::Held,
            ];
            let row = format!("{standing:?} {conditions:?} others {others}");
            let stays = states.map(|state| of(state, true, Fate::Stays));
            assert_eq!(stays, expected, "ZD-31, ZD-110: {row}");
            let ended = of(TargetState::Active, false, Fate::Stays);
            assert_eq!(ended, expected[0], "ZD-51: {row}");
            let serves = standing < Gone && conditions.is_some_and(|c| c.serving);
            let goes = states.map(|state| of(state, true, Fate::Goes));
            assert_eq!(goes, [false, false, serves], "ZD-78: {row}");
            let out = states.map(|state| of(state, true, Fate::Out));
            assert_eq!(out, [false; 3], "ZD-78: {row}");
        }
    }

    #[test]
    fn aws412_a_pod_that_waits_for_its_gate_passes_the_check_that_the_gate_waits_for() {
        let of = |standing, waits, fate| {
            answer(&Facts {
                standing,
                state: TargetState::Active,
                guarded: false,
                own: None,
                waits,
                others: false,
                fate,
            })
        };
        assert!(of(Standing::Lives, true, Fate::Stays), "AWS-412");
        assert!(!of(Standing::Lives, false, Fate::Stays), "ZD-31");
        for standing in [Standing::Leaves, Standing::Gone, Standing::Replaced] {
            assert!(!of(standing, true, Fate::Stays), "{standing:?}: ZD-31");
        }
        for fate in [Fate::Goes, Fate::Out] {
            assert!(!of(Standing::Lives, true, fate), "{fate:?}: ZD-78");
        }
    }
}
