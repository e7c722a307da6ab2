//! The status that a pod's facts amount to. Pure; conditions of others and their times are kept.

use std::net::Ipv4Addr;

use e2e_fabric::both;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use onehop_core::time::Time;

/// How a container's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) signal: Option<i32>,
    pub(crate) started: Time,
    pub(crate) finished: Time,
    pub(crate) pid: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ContainerState {
    Waiting {
        reason: String,
        message: Option<String>,
    },
    Running {
        since: Time,
        pid: u32,
    },
    Terminated(Ended),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerFacts {
    pub(crate) name: String,
    pub(crate) image: String,
    pub(crate) state: ContainerState,
    pub(crate) last: Option<Ended>,
    /// The readiness probe's verdict, or that it runs when it has none.
    pub(crate) ready: bool,
    pub(crate) restarts: i32,
}

impl ContainerFacts {
    pub(crate) fn new(name: &str, image: &str) -> Self {
        let state = ContainerState::Waiting {
            reason: "ContainerCreating".to_owned(),
            message: None,
        };
        Self {
            name: name.to_owned(),
            image: image.to_owned(),
            state,
            last: None,
            ready: false,
            restarts: 0,
        }
    }
}

/// Everything the kubelet knows of a pod's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) uid: String,
    pub(crate) host: Ipv4Addr,
    pub(crate) address: Option<Ipv4Addr>,
    pub(crate) seen: Time,
    pub(crate) gates: Vec<String>,
    pub(crate) containers: Vec<ContainerFacts>,
    /// No container will run again.
    pub(crate) over: bool,
}

impl Facts {
    /// `Pending`, `Running`, `Succeeded` or `Failed`.
    pub(crate) fn phase(&self) -> &'static str {
        let code = |c: &ContainerFacts| match (&c.state, &c.last) {
            (ContainerState::Terminated(ended), _) | (_, Some(ended)) => ended.code,
            _ => 0,
        };
        let started = |c: &ContainerFacts| {
            c.restarts > 0 || !matches!(c.state, ContainerState::Waiting { .. })
        };
        if self.over {
            if self.containers.iter().all(|c| code(c) == 0) {
                "Succeeded"
            } else {
                "Failed"
            }
        } else if self.containers.iter().all(started) {
            "Running"
        } else {
            "Pending"
        }
    }

    pub(crate) fn containers_ready(&self) -> bool {
        !self.over
            && self
                .containers
                .iter()
                .all(|c| c.ready && matches!(c.state, ContainerState::Running { .. }))
    }

    /// Containers ready and every readiness gate true in `last`.
    pub(crate) fn ready(&self, last: &core::PodStatus) -> bool {
        let open = |gate: &String| {
            last.conditions
                .iter()
                .flatten()
                .any(|c| c.type_ == *gate && c.status == "True")
        };
        self.containers_ready() && self.gates.iter().all(open)
    }

    /// The status to write, built on the one that the server has.
    pub(crate) fn status(&self, last: &core::PodStatus, now: Time) -> core::PodStatus {
        let mut conditions = last.conditions.clone().unwrap_or_default();
        let unready = if self.over {
            "PodCompleted"
        } else {
            "ContainersNotReady"
        };
        let gated = self.containers_ready() && !self.ready(last);
        let ready_reason = if gated {
            "ReadinessGatesNotReady"
        } else {
            unready
        };
        for (kind, holds, reason) in [
            ("PodScheduled", true, ""),
            (
                "PodReadyToStartContainers",
                self.address.is_some() && !self.over,
                "",
            ),
            ("Initialized", true, ""),
            ("ContainersReady", self.containers_ready(), unready),
            ("Ready", self.ready(last), ready_reason),
        ] {
            set_condition(&mut conditions, kind, holds, reason, now);
        }
        let address = self.address.map(|a| a.to_string());
        core::PodStatus {
            phase: Some(self.phase().to_owned()),
            conditions: Some(conditions),
            host_ip: Some(self.host.to_string()),
            host_ips: Some(addresses(self.host, |ip| core::HostIP { ip })),
            pod_ips: self
                .address
                .map(|address| addresses(address, |ip| core::PodIP { ip })),
            pod_ip: address,
            start_time: last.start_time.clone().or_else(|| Some(self.seen.into())),
            container_statuses: Some(self.containers.iter().map(|c| self.container(c)).collect()),
            ..last.clone()
        }
    }

    fn container(&self, facts: &ContainerFacts) -> core::ContainerStatus {
        let running = matches!(facts.state, ContainerState::Running { .. });
        let mut state = core::ContainerState::default();
        let mut pid = 0;
        match &facts.state {
            ContainerState::Waiting { reason, message } => {
                let waiting = core::ContainerStateWaiting {
                    reason: Some(reason.clone()),
                    message: message.clone(),
                };
                state.waiting = Some(waiting);
            }
            ContainerState::Running {
                since,
                pid: running,
            } => {
                pid = *running;
                state.running = Some(core::ContainerStateRunning {
                    started_at: Some((*since).into()),
                });
            }
            ContainerState::Terminated(ended) => {
                pid = ended.pid;
                state.terminated = Some(terminated(*ended, self.container_id(facts, ended.pid)));
            }
        }
        core::ContainerStatus {
            name: facts.name.clone(),
            image: facts.image.clone(),
            image_id: facts.image.clone(),
            container_id: (pid != 0).then(|| self.container_id(facts, pid)),
            ready: facts.ready && running,
            started: Some(running),
            restart_count: facts.restarts,
            state: Some(state),
            last_state: facts.last.map(|ended| core::ContainerState {
                terminated: Some(terminated(ended, self.container_id(facts, ended.pid))),
                ..core::ContainerState::default()
            }),
            ..core::ContainerStatus::default()
        }
    }

    fn container_id(&self, facts: &ContainerFacts, pid: u32) -> String {
        format!("process://{}/{}/{pid}", self.uid, facts.name)
    }
}

fn terminated(ended: Ended, id: String) -> core::ContainerStateTerminated {
    core::ContainerStateTerminated {
        container_id: Some(id),
        exit_code: ended.code,
        signal: ended.signal,
        reason: Some(
            if ended.code == 0 {
                "Completed"
            } else {
                "Error"
            }
            .to_owned(),
        ),
        message: None,
        started_at: Some(ended.started.into()),
        finished_at: Some(ended.finished.into()),
    }
}

fn set_condition(
    conditions: &mut Vec<core::PodCondition>,
    kind: &str,
    holds: bool,
    reason: &str,
    now: Time,
) {
    let status = if holds { "True" } else { "False" };
    let reason = (!holds && !reason.is_empty()).then(|| reason.to_owned());
    let at = conditions.iter().position(|c| c.type_ == kind);
    let since = at
        .filter(|&i| conditions[i].status == status)
        .and_then(|i| conditions[i].last_transition_time.clone());
    let condition = core::PodCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason,
        last_transition_time: since.or_else(|| Some(meta::Time::from(now))),
        ..core::PodCondition::default()
    };
    match at {
        Some(i) => conditions[i] = condition,
        None => conditions.push(condition),
    }
}

/// The addresses of both families, IPv4 first.
fn addresses<T>(address: Ipv4Addr, of: impl FnMut(String) -> T) -> Vec<T> {
    let texts = both(address).into_iter().map(|ip| ip.to_string());
    texts.map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Time = Time::from_millis(1_000_000);
    const T1: Time = Time::from_millis(2_000_000);

    fn facts() -> Facts {
        let running = ContainerState::Running { since: T0, pid: 7 };
        Facts {
            uid: "u".to_owned(),
            host: Ipv4Addr::new(10, 0, 1, 11),
            address: Some(Ipv4Addr::new(10, 244, 1, 2)),
            seen: T0,
            gates: Vec::new(),
            containers: vec![ContainerFacts {
                ready: true,
                state: running,
                ..ContainerFacts::new("a", "web")
            }],
            over: false,
        }
    }

    fn condition(status: &core::PodStatus, kind: &str) -> (String, Option<meta::Time>) {
        let found = status
            .conditions
            .iter()
            .flatten()
            .find(|c| c.type_ == kind)
            .unwrap();
        (found.status.clone(), found.last_transition_time.clone())
    }

    #[test]
    fn nothing_new_gives_the_same_status_and_a_transition_only_its_own_time() {
        let first = facts().status(&core::PodStatus::default(), T0);
        assert_eq!(facts().status(&first, T1), first);
        let mut unready = facts();
        unready.containers[0].ready = false;
        let second = unready.status(&first, T1);
        assert_eq!(
            condition(&second, "Ready"),
            ("False".to_owned(), Some(T1.into()))
        );
        assert_eq!(
            condition(&second, "Initialized"),
            condition(&first, "Initialized")
        );
        assert_eq!(second.phase.as_deref(), Some("Running"));
    }

    #[test]
    fn a_readiness_gate_of_others_is_kept_and_respected() {
        let mut gated = facts();
        gated.gates = vec!["example.org/gate".to_owned()];
        let first = gated.status(&core::PodStatus::default(), T0);
        assert_eq!(condition(&first, "Ready").0, "False");
        assert_eq!(condition(&first, "ContainersReady").0, "True");
        let mut opened = first;
        let gate = core::PodCondition {
            type_: "example.org/gate".to_owned(),
            status: "True".to_owned(),
            ..core::PodCondition::default()
        };
        opened.conditions.as_mut().unwrap().push(gate);
        let second = gated.status(&opened, T1);
        assert_eq!(condition(&second, "Ready").0, "True");
        assert_eq!(condition(&second, "example.org/gate").0, "True");
    }

    #[test]
    fn phases_follow_the_containers() {
        let mut pod = facts();
        assert_eq!(pod.phase(), "Running");
        pod.containers[0] = ContainerFacts::new("a", "web");
        assert_eq!(pod.phase(), "Pending");
        let ended = Ended {
            code: 143,
            signal: Some(15),
            started: T0,
            finished: T1,
            pid: 7,
        };
        pod.containers[0].state = ContainerState::Terminated(ended);
        pod.over = true;
        assert_eq!(pod.phase(), "Failed");
        assert!(!pod.containers_ready());
    }
}
