//! A Pod object as the kubelet reads it: once, at the border, with Kubernetes' defaults filled in.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::events::PodRef;
use crate::probe::{ProbeAction, ProbePlan};
use crate::security::Security;
use crate::volumes::Volume;

/// When a container that ended is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PreStop {
    Sleep(Duration),
    Exec(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerPlan {
    pub(crate) name: String,
    pub(crate) image: String,
    /// Replaces the image's program if not empty.
    pub(crate) command: Vec<String>,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, EnvSource)>,
    pub(crate) readiness: Option<ProbePlan>,
    pub(crate) security: Security,
    pub(crate) mounts: Vec<MountPlan>,
    pub(crate) pre_stop: Option<PreStop>,
    /// Time after SIGTERM that a container has at least, when its preStop took all the grace.
    pub(crate) after_pre_stop: Duration,
}

/// A volume in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountPlan {
    pub(crate) volume: String,
    pub(crate) path: String,
    pub(crate) read_only: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EnvSource {
    Value(String),
    Field(String),
}

/// What of a pod never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodPlan {
    pub(crate) pod: PodRef,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) host_network: bool,
    pub(crate) restart: RestartPolicy,
    pub(crate) grace: Duration,
    pub(crate) gates: Vec<String>,
    /// Those that run to their end first, one after the other.
    pub(crate) init: Vec<ContainerPlan>,
    pub(crate) containers: Vec<ContainerPlan>,
    pub(crate) volumes: Vec<(String, Volume)>,
    pub(crate) account: String,
    pub(crate) fs_group: Option<u32>,
    /// What the pod asks for and this stand-in does not do.
    pub(crate) not_done: Option<&'static str>,
}

impl PodPlan {
    /// With its grace and preStop times that many times shorter (FC-04).
    pub(crate) fn faster(mut self, speed: u32) -> Self {
        self.grace /= speed;
        for container in &mut self.containers {
            container.after_pre_stop /= speed;
            if let Some(PreStop::Sleep(time)) = &mut container.pre_stop {
                *time /= speed;
            }
        }
        self
    }

    /// `None`: the object lacks what every server fills in.
    pub(crate) fn read(pod: &core::Pod) -> Option<Self> {
        let spec = pod.spec.as_ref()?;
        Some(Self {
            pod: pod_ref(pod)?,
            labels: pod.metadata.labels.clone().unwrap_or_default(),
            host_network: spec.host_network.unwrap_or(false),
            restart: match spec.restart_policy.as_deref() {
                Some("Never") => RestartPolicy::Never,
                Some("OnFailure") => RestartPolicy::OnFailure,
                _ => RestartPolicy::Always,
            },
            grace: seconds(spec.termination_grace_period_seconds, 30),
            gates: spec
                .readiness_gates
                .iter()
                .flatten()
                .map(|g| g.condition_type.clone())
                .collect(),
            init: spec
                .init_containers
                .iter()
                .flatten()
                .map(|one| container(spec, one))
                .collect(),
            containers: spec
                .containers
                .iter()
                .map(|one| container(spec, one))
                .collect(),
            volumes: spec.volumes.iter().flatten().map(Volume::read).collect(),
            account: spec
                .service_account_name
                .clone()
                .unwrap_or_else(|| "default".to_owned()),
            fs_group: spec
                .security_context
                .as_ref()
                .and_then(|s| s.fs_group)
                .and_then(|id| u32::try_from(id).ok()),
            not_done: not_done(spec),
        })
    }
}

fn not_done(spec: &core::PodSpec) -> Option<&'static str> {
    let probed = |c: &core::Container| c.liveness_probe.is_some() || c.startup_probe.is_some();
    spec.containers
        .iter()
        .any(probed)
        .then_some("only readiness probes are run")
}

pub(crate) fn pod_ref(pod: &core::Pod) -> Option<PodRef> {
    Some(PodRef {
        namespace: pod.metadata.namespace.clone()?,
        name: pod.metadata.name.clone()?,
        uid: pod.metadata.uid.clone()?,
    })
}

/// How long a pod that is being deleted has; `None` while it is not.
pub(crate) fn deletion_grace(pod: &core::Pod) -> Option<Duration> {
    pod.metadata.deletion_timestamp.as_ref()?;
    let spec = pod
        .spec
        .as_ref()
        .and_then(|s| s.termination_grace_period_seconds);
    Some(seconds(
        pod.metadata.deletion_grace_period_seconds.or(spec),
        30,
    ))
}

fn container(spec: &core::PodSpec, container: &core::Container) -> ContainerPlan {
    let env = container.env.iter().flatten().filter_map(|var| {
        let field = || {
            var.value_from
                .as_ref()?
                .field_ref
                .as_ref()
                .map(|f| EnvSource::Field(f.field_path.clone()))
        };
        let value = var.value.clone().map(EnvSource::Value).or_else(field);
        Some((var.name.clone(), value?))
    });
    let pre_stop = container
        .lifecycle
        .as_ref()
        .and_then(|l| l.pre_stop.as_ref());
    ContainerPlan {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        command: container.command.clone().unwrap_or_default(),
        args: container.args.clone().unwrap_or_default(),
        env: env.collect(),
        security: Security::read(spec, container),
        mounts: container
            .volume_mounts
            .iter()
            .flatten()
            .map(|mount| MountPlan {
                volume: mount.name.clone(),
                path: mount.mount_path.clone(),
                read_only: mount.read_only.unwrap_or(false),
            })
            .collect(),
        readiness: container
            .readiness_probe
            .as_ref()
            .and_then(|p| probe(p, container)),
        pre_stop: pre_stop.and_then(|handler| match (&handler.sleep, &handler.exec) {
            (Some(sleep), _) => Some(PreStop::Sleep(seconds(Some(sleep.seconds), 0))),
            (None, Some(exec)) => Some(PreStop::Exec(exec.command.clone().unwrap_or_default())),
            (None, None) => None,
        }),
        // As the kubelet does.
        after_pre_stop: Duration::from_secs(2),
    }
}

fn probe(probe: &core::Probe, container: &core::Container) -> Option<ProbePlan> {
    let action = if let Some(http) = &probe.http_get {
        ProbeAction::Http {
            host: http.host.clone(),
            port: port(&http.port, container)?,
            path: http.path.clone().unwrap_or_else(|| "/".to_owned()),
            headers: http
                .http_headers
                .iter()
                .flatten()
                .map(|h| (h.name.clone(), h.value.clone()))
                .collect(),
        }
    } else if let Some(tcp) = &probe.tcp_socket {
        ProbeAction::Tcp {
            host: tcp.host.clone(),
            port: port(&tcp.port, container)?,
        }
    } else {
        ProbeAction::Exec {
            command: probe.exec.as_ref()?.command.clone()?,
        }
    };
    let count = |given: Option<i32>, default| {
        given
            .and_then(|n| u32::try_from(n).ok())
            .unwrap_or(default)
            .max(1)
    };
    Some(ProbePlan {
        action,
        delay: seconds(probe.initial_delay_seconds.map(Into::into), 0),
        period: seconds(probe.period_seconds.map(Into::into), 10),
        timeout: seconds(probe.timeout_seconds.map(Into::into), 1),
        success: count(probe.success_threshold, 1),
        failure: count(probe.failure_threshold, 3),
    })
}

fn port(port: &IntOrString, container: &core::Container) -> Option<u16> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let ports = container.ports.as_deref().unwrap_or_default();
            ports
                .iter()
                .find(|p| p.name.as_ref() == Some(name))?
                .container_port
        }
    };
    u16::try_from(number).ok()
}

fn seconds(given: Option<i64>, default: u64) -> Duration {
    Duration::from_secs(given.and_then(|s| u64::try_from(s).ok()).unwrap_or(default))
}
