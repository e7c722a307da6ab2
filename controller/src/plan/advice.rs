//! What is worth saying to the people whose pods these are: settings that cannot do what they are for (ZD-95, ZD-120). Pure;
//! `reconcile::advice` says each once.

use std::collections::BTreeMap;
use std::time::Duration;

use onehop_core::crd::{LoadBalancerSpec, TargetMode};
use onehop_runtime::events::Severity;

use super::gates;
use crate::index::{KnownPod, Rollout};

/// Every reason that there is.
pub const REASONS: [&str; 4] = [
    "GraceTooShort",
    "ProbesOutlastGrace",
    "ReadinessGateMissing",
    "SingleReplica",
];

/// One piece of advice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// Reason of the event.
    pub reason: &'static str,
    /// Whether something is lost as it is.
    pub severity: Severity,
    /// What is so, and what to do. The same for as long as it is so.
    pub message: String,
}

/// What it follows from: of a Service with pods as targets.
#[derive(Debug)]
pub struct Facts<'a> {
    /// What it asks for.
    pub spec: &'a LoadBalancerSpec,
    /// For how long new flows may come to a pod that was taken out.
    pub tail: Duration,
    /// Its running pods.
    pub pods: Vec<&'a KnownPod>,
    /// Whether the target guard is on every node of theirs.
    pub guarded: bool,
    /// Gates that its pods should have.
    pub gates: Vec<String>,
    /// The Deployments that make its pods, by name.
    pub rollouts: BTreeMap<&'a str, &'a Rollout>,
}

/// All advice.
pub fn advise(facts: &Facts<'_>) -> Vec<Advice> {
    let of_pods = facts.spec.ports.iter().any(|p| p.mode == TargetMode::Pod);
    if !of_pods {
        return Vec::new();
    }
    let all = [grace(facts), probes(facts), missing(facts), single(facts)];
    all.into_iter().flatten().collect()
}

fn shortest_grace(facts: &Facts<'_>) -> Option<Duration> {
    facts.pods.iter().map(|pod| pod.grace).min()
}

/// Normal where the guard answers for pods that are gone already, Warning where nobody does.
fn grace(facts: &Facts<'_>) -> Option<Advice> {
    let grace = shortest_grace(facts)?.as_secs();
    let tail = facts.tail.as_secs();
    if grace >= tail {
        return None;
    }
    let so = format!(
        "terminationGracePeriodSeconds of pods is {grace}, and the load balancer may send new flows for {tail} s after a pod \
         is told to end"
    );
    Some(if facts.guarded {
        Advice {
            reason: "GraceTooShort",
            severity: Severity::Normal,
            message: format!(
                "{so}: the target guard on their nodes covers that, nothing has to be done"
            ),
        }
    } else {
        Advice {
            reason: "GraceTooShort",
            severity: Severity::Warning,
            message: format!(
                "{so}, and the target guard is not on every node of theirs: run node agents there, or give pods a preStop \
                 sleep of {tail} s and a grace that is longer (the label onehop.dev/pod-drain-inject=enabled of their \
                 namespace does both for new pods)"
            ),
        }
    })
}

/// A pod that is gone before its probes have failed is found out by clients.
fn probes(facts: &Facts<'_>) -> Option<Advice> {
    let grace = shortest_grace(facts)?.as_secs();
    let of_pods = facts
        .spec
        .ports
        .iter()
        .filter(|p| p.mode == TargetMode::Pod);
    let times = of_pods.filter_map(|port| {
        let health = port.health.as_ref()?;
        Some(u64::from(health.interval_seconds) * u64::from(health.unhealthy))
    });
    let slowest = times.max()?;
    if facts.guarded || slowest <= grace {
        return None;
    }
    Some(Advice {
        reason: "ProbesOutlastGrace",
        severity: Severity::Warning,
        message: format!(
            "health checks need {slowest} s to fail, and pods are gone after {grace} s: shorten interval or threshold, or \
             give pods a longer grace"
        ),
    })
}

/// W21: pods that were made before the Service, or while the webhook was away.
fn missing(facts: &Facts<'_>) -> Option<Advice> {
    without_gate(facts)?;
    Some(Advice {
        reason: "ReadinessGateMissing",
        severity: Severity::Warning,
        message: format!(
            "the namespace asks for readiness gates ({}=enabled), and running pods have none for this Service: they were made \
             before it, or while the webhook was away; restart them (kubectl rollout restart) if their rollouts shall wait \
             for the load balancer",
            gates::INJECT_LABEL
        ),
    })
}

/// How many pods lack a gate that they should have; none: they have all, or should have none.
pub fn without_gate(facts: &Facts<'_>) -> Option<usize> {
    let lacks = |pod: &&&KnownPod| {
        let has = |gate: &String| pod.gates.iter().any(|g| g.kind == *gate);
        !facts.gates.iter().all(has)
    };
    let lacking = facts.pods.iter().filter(lacks).count();
    (lacking > 0).then_some(lacking)
}

/// A rollout that stops the only pod before it starts the next.
fn single(facts: &Facts<'_>) -> Option<Advice> {
    let (name, rollout) = facts.rollouts.iter().find(|(_, r)| r.leaves_none())?;
    let how = if rollout.recreates {
        "strategy Recreate"
    } else {
        "maxUnavailable of at least 1"
    };
    Some(Advice {
        reason: "SingleReplica",
        severity: Severity::Warning,
        message: format!(
            "Deployment {name} has one replica and {how}: each rollout has a time in which nothing serves, and new \
             connections are refused; set maxUnavailable to 0, or run two replicas"
        ),
    })
}

#[cfg(test)]
mod tests {
    use onehop_core::crd::{HealthBy, HealthCheck, HealthProtocol, LoadBalancerPort, Membership};
    use onehop_core::time::Time;

    use super::*;
    use crate::index::{KnownGate, PodLife};

    fn pod(grace: u64, gates: &[&str]) -> KnownPod {
        let gate = |kind: &&str| KnownGate {
            kind: (*kind).to_owned(),
            status: None,
            reason: None,
            since: None,
        };
        KnownPod {
            uid: "u".into(),
            addresses: Vec::new(),
            life: PodLife::Running,
            ready_agent_of: None,
            gates: gates.iter().map(gate).collect(),
            containers_ready: Some(Time::EPOCH),
            waits: false,
            grace: Duration::from_secs(grace),
        }
    }

    fn spec(tail: u32, mode: TargetMode) -> LoadBalancerSpec {
        LoadBalancerSpec {
            ports: vec![LoadBalancerPort {
                mode,
                health: Some(HealthCheck {
                    by: HealthBy::Traffic,
                    protocol: HealthProtocol::Tcp,
                    port: None,
                    path: None,
                    interval_seconds: 10,
                    timeout_seconds: 10,
                    healthy: 3,
                    unhealthy: 3,
                }),
                ..LoadBalancerPort::default()
            }],
            membership: Membership {
                tail_max_seconds: tail,
                ..Membership::default()
            },
            ..LoadBalancerSpec::default()
        }
    }

    fn of(
        spec: &LoadBalancerSpec,
        pods: &[KnownPod],
        guarded: bool,
    ) -> Vec<(&'static str, Severity)> {
        let facts = Facts {
            spec,
            tail: Duration::from_secs(spec.membership.tail_max_seconds.into()),
            pods: pods.iter().collect(),
            guarded,
            gates: Vec::new(),
            rollouts: BTreeMap::new(),
        };
        advise(&facts)
            .into_iter()
            .map(|a| (a.reason, a.severity))
            .collect()
    }

    #[test]
    fn zd95_zd120_a_grace_shorter_than_the_tail_is_a_warning_only_where_nobody_guards() {
        let nlb = spec(180, TargetMode::Pod);
        let (short, long) = ([pod(600, &[]), pod(30, &[])], [pod(180, &[])]);
        assert_eq!(
            of(&nlb, &short, true),
            [("GraceTooShort", Severity::Normal)],
            "ZD-95"
        );
        assert_eq!(
            of(&nlb, &short, false),
            [("GraceTooShort", Severity::Warning)],
            "ZD-95"
        );
        assert_eq!(of(&nlb, &long, false), [], "ZD-95: it is long enough");
        assert_eq!(
            of(&spec(0, TargetMode::Pod), &short, false),
            [],
            "a cloud without a tail"
        );
        assert_eq!(
            of(&spec(180, TargetMode::Node), &short, false),
            [],
            "nodes are targets"
        );
        assert_eq!(of(&nlb, &[], false), [], "no pod yet");
    }

    #[test]
    fn zd95_probes_that_outlast_the_grace_are_told_where_nobody_guards() {
        let azure = spec(0, TargetMode::Pod);
        let told = [("ProbesOutlastGrace", Severity::Warning)];
        assert_eq!(of(&azure, &[pod(29, &[])], false), told, "ZD-95");
        assert_eq!(
            of(&azure, &[pod(29, &[])], true),
            [],
            "agents answer for it"
        );
        assert_eq!(of(&azure, &[pod(30, &[])], false), [], "ZD-95");
    }

    #[test]
    fn aws508_w21_a_pod_without_the_gate_is_told_where_the_namespace_asks_for_it() {
        let spec = spec(0, TargetMode::Pod);
        let pods = [pod(60, &["g"]), pod(60, &["other"]), pod(60, &[])];
        let of = |pods: &[KnownPod], gates: &[&str]| {
            let facts = Facts {
                spec: &spec,
                tail: Duration::ZERO,
                pods: pods.iter().collect(),
                guarded: true,
                gates: gates.iter().map(|g| (*g).to_owned()).collect(),
                rollouts: BTreeMap::new(),
            };
            let reasons: Vec<_> = advise(&facts).into_iter().map(|a| a.reason).collect();
            (reasons, without_gate(&facts))
        };
        assert_eq!(
            of(&pods, &["g"]),
            (vec!["ReadinessGateMissing"], Some(2)),
            "AWS-508"
        );
        assert_eq!(of(&pods[..1], &["g"]), (vec![], None), "AWS-508: it has it");
        assert_eq!(of(&pods, &[]), (vec![], None), "W21: nobody asks for them");
    }

    #[test]
    fn zd95_one_replica_that_is_stopped_before_the_next_starts_is_told() {
        let spec = spec(0, TargetMode::Pod);
        let of = |replicas, recreates, unavailable| {
            let rollout = Rollout {
                labels: BTreeMap::new(),
                replicas,
                recreates,
                unavailable,
            };
            let facts = Facts {
                spec: &spec,
                tail: Duration::ZERO,
                pods: Vec::new(),
                guarded: true,
                gates: Vec::new(),
                rollouts: BTreeMap::from([("web", &rollout)]),
            };
            let told = advise(&facts);
            assert!(told.iter().all(|a| a.message.contains("Deployment web")));
            told.len()
        };
        assert_eq!(of(1, false, 1), 1, "ZD-95");
        assert_eq!(of(1, true, 0), 1, "ZD-95: Recreate");
        assert_eq!(of(1, false, 0), 0, "the default of one replica");
        assert_eq!(of(2, false, 1), 0, "the other one serves");
        assert_eq!(of(2, true, 0), 1, "all of them are stopped first");
        assert_eq!(of(0, true, 0), 0, "it has none");
    }
}
