//! What is said about a Service: its `LoadBalancer` object and its own status, as values. Pure.
//!
//! Both are built whole and compared with what is there without regard to times; `writes` sends them
//! only when they differ (I4). Conditions of other writers are none of our business.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use onehop_core::crd::{
    ACCEPTED, Address, CloudResource, DEGRADED, INSTALL_LABEL, LastError, LoadBalancer,
    LoadBalancerSpec, LoadBalancerStatus, PROGRAMMED, PortCounts, TARGETS_FINALIZER, TARGETS_READY,
    TakeOver,
};
use onehop_core::id::{InstallId, IpFamily, Protocol};
use onehop_core::service::{ServiceKind, ServiceSpec};
use onehop_core::time::Time;
use serde_json::{Value, json};

use crate::plan::{HostName, Notice, Outcome, Programmed, Refusal};

/// Our condition on Services (C-102).
pub const SERVICE_CONDITION: &str = "onehop.dev/LoadBalancerReady";
/// Counts are written at most this often (K-10).
pub const COUNTS_EVERY: Duration = Duration::from_secs(10);

/// Reason of what is said of late flows that nodes drop (ZD-108).
pub const LATE_FLOWS_DROPPED: &str = "LateFlowsDropped";

/// Longest message of a condition; the API's limit is 32,768 bytes, and nobody reads that much.
const MESSAGE_MAX: usize = 4096;

/// Everything that the two statuses are made from.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// The Service.
    pub service: &'a ServiceSpec,
    /// What is carried out, if anything can be.
    pub spec: Option<&'a LoadBalancerSpec>,
    /// What is wrong with the Service.
    pub refusals: &'a [Refusal],
    /// What is to be said although it is carried out.
    pub notices: &'a [Notice],
    /// How the cloud stands, once it was looked at.
    pub outcome: Option<&'a Outcome>,
    /// What fails.
    pub error: Option<LastError>,
    /// How far a take-over has come, where there is one.
    pub take_over: Option<TakeOver>,
    /// The longest tail that agents have seen, in seconds.
    pub tail_seconds: Option<u32>,
}

/// One condition without its time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Verdict {
    holds: bool,
    reason: String,
    message: String,
}

impl Verdict {
    fn new(holds: bool, reason: &str, message: impl Into<String>) -> Self {
        Self {
            holds,
            reason: reason.to_owned(),
            message: bounded(message.into()),
        }
    }

    fn condition(self, kind: &str, generation: i64, old: &[Condition], now: Time) -> Condition {
        let status = if self.holds { "True" } else { "False" };
        let same = old.iter().find(|c| c.type_ == kind && c.status == status);
        Condition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: self.reason,
            message: self.message,
            // The API server gives Services no generation; there is none to have observed then.
            observed_generation: (generation > 0).then_some(generation),
            last_transition_time: same
                .map_or_else(|| now.into(), |c| c.last_transition_time.clone()),
        }
    }
}

/// Cuts a message that the API server would refuse, and with it the whole status: what it quotes comes from people.
fn bounded(mut message: String) -> String {
    if message.len() > MESSAGE_MAX {
        message.truncate(message.floor_char_boundary(MESSAGE_MAX));
        message.push('…');
    }
    message
}

impl Facts<'_> {
    fn accepted(&self) -> Verdict {
        match self.refusals.first() {
            None => Verdict::new(true, "Accepted", ""),
            Some(first) => {
                let all: Vec<_> = self.refusals.iter().map(|r| r.message.as_str()).collect();
                let made = self.outcome.is_some() || !self.service.ingress.is_empty();
                let kept = match self.spec {
                    Some(_) if made => "the last good state is kept",
                    _ => "nothing is made until this is put right",
                };
                let all = bounded(all.join("; "));
                Verdict::new(false, first.reason, format!("{all}; {kept}"))
            }
        }
    }

    fn programmed(&self) -> Verdict {
        match (self.outcome.map(|o| &o.programmed), &self.error) {
            (Some(Programmed::Yes), _) => Verdict::new(true, "Programmed", ""),
            (_, Some(error)) => Verdict::new(false, "SyncFailed", &error.message),
            (Some(Programmed::Waiting(what)), None) => Verdict::new(false, "Provisioning", what),
            (Some(Programmed::Failed(what)), None) => Verdict::new(false, "Failed", what),
            (None, None) => Verdict::new(false, "NotAccepted", "nothing is asked of the cloud"),
        }
    }

    fn targets_ready(&self) -> Verdict {
        let Some(outcome) = self.outcome else {
            return Verdict::new(false, "Unknown", "the cloud was not looked at yet");
        };
        let dark = outcome.ports.iter().find(|(_, count)| count.healthy == 0);
        match dark {
            None => Verdict::new(true, "TargetsReady", ""),
            Some((port, count)) if count.registered == 0 => {
                Verdict::new(false, "NoTargets", format!("port {port} has no targets"))
            }
            Some((port, _)) => {
                let message = format!("port {port} has no healthy target");
                Verdict::new(false, "NoHealthyTargets", message)
            }
        }
    }

    fn all_notices(&self) -> impl Iterator<Item = &Notice> {
        let seen = self.outcome.iter().flat_map(|o| &o.notices);
        self.notices.iter().chain(seen)
    }

    /// A limit of what was asked for, which nothing is wrong with (ZD-108).
    fn limit(&self) -> Option<&Notice> {
        self.all_notices().find(|n| n.reason == LATE_FLOWS_DROPPED)
    }

    fn degraded(&self) -> Verdict {
        match (&self.error, self.outcome.and_then(|o| o.mass_removal)) {
            (Some(error), _) => Verdict::new(true, "SyncFailed", &error.message),
            (None, Some(_)) => Verdict::new(
                true,
                "MassRemovalCheck",
                "many targets would leave for no known reason: waiting for a fresh list",
            ),
            (None, None) => match self.all_notices().find(|notice| notice.degrades) {
                Some(notice) => Verdict::new(true, notice.reason, &notice.message),
                None => match self.limit() {
                    Some(limit) => Verdict::new(false, limit.reason, &limit.message),
                    None => Verdict::new(false, "AsWanted", ""),
                },
            },
        }
    }

    /// Conditions of the `LoadBalancer` object.
    fn conditions(&self, old: &[Condition], now: Time) -> Vec<Condition> {
        let all = [
            (ACCEPTED, self.accepted()),
            (PROGRAMMED, self.programmed()),
            (TARGETS_READY, self.targets_ready()),
            (DEGRADED, self.degraded()),
        ];
        let generation = self.service.generation;
        all.into_iter()
            .map(|(kind, v)| v.condition(kind, generation, old, now))
            .collect()
    }

    /// The condition on the Service: the first thing that stands in the way.
    pub fn service_condition(&self, old: &[Condition], now: Time) -> Condition {
        let accepted = self.accepted();
        let mut verdict = if accepted.holds {
            self.programmed()
        } else {
            accepted
        };
        if let Some(limit) = self.limit().filter(|_| verdict.holds) {
            verdict.message = bounded(limit.message.clone());
        }
        verdict.condition(SERVICE_CONDITION, self.service.generation, old, now)
    }

    /// Status of the `LoadBalancer` object.
    pub fn balancer_status(
        &self,
        old: Option<&LoadBalancerStatus>,
        now: Time,
    ) -> LoadBalancerStatus {
        let conditions = old.map_or(&[][..], |status| &status.conditions);
        let outcome = self.outcome;
        let mut status = LoadBalancerStatus {
            addresses: outcome.map(addresses).unwrap_or_default(),
            resources: outcome.map(resources).unwrap_or_default(),
            owned_keys: Vec::new(),
            ports: outcome.map(counts).unwrap_or_default(),
            take_over: self.take_over.clone(),
            last_error: self.error.clone(),
            conditions: self.conditions(conditions, now),
            summary: onehop_core::crd::Summary::default(),
            tail_seconds: self.tail_seconds,
        };
        if let Some(spec) = self.spec {
            status.summary = status.summarize(spec);
        }
        status
    }

    /// The name to publish on the Service: as soon as there is one, and what is published stays while the
    /// cloud was not looked at (AWS-801).
    pub fn host(&self) -> Option<HostName> {
        match self.outcome {
            Some(outcome) => outcome.host.clone(),
            None => published_host(self.service),
        }
    }

    /// The addresses to publish on the Service: none before they are usable, and those that are
    /// published stay while something is being changed (C-10).
    pub fn ingress(&self) -> Vec<IpAddr> {
        let published: Vec<IpAddr> = self
            .service
            .ingress
            .iter()
            .filter_map(|i| i.address)
            .collect();
        match self.outcome {
            Some(outcome) if outcome.programmed == Programmed::Yes => outcome.addresses.clone(),
            Some(outcome) => published
                .into_iter()
                .filter(|a| outcome.addresses.contains(a))
                .collect(),
            None => published,
        }
    }
}

fn addresses(outcome: &Outcome) -> Vec<Address> {
    let host = outcome.host.iter().map(|host| Address {
        ip: None,
        hostname: Some(host.name.clone()),
        family: IpFamily::V4,
        zone: None,
    });
    let address = |ip: &IpAddr| Address {
        ip: Some(*ip),
        hostname: None,
        family: IpFamily::of(*ip),
        zone: None,
    };
    outcome.addresses.iter().map(address).chain(host).collect()
}

fn resources(outcome: &Outcome) -> Vec<CloudResource> {
    let resource = |(kind, id, generation): &(&str, String, u32)| CloudResource {
        kind: (*kind).to_owned(),
        id: id.clone(),
        generation: i64::from(*generation),
    };
    outcome.resources.iter().map(resource).collect()
}

fn counts(outcome: &Outcome) -> Vec<PortCounts> {
    let ports = outcome.ports.iter();
    ports
        .map(|(port, count)| PortCounts {
            name: port.name.clone(),
            registered: count.registered,
            healthy: count.healthy,
            initial: count.initial,
            unhealthy: count.unhealthy,
            draining: count.draining,
            held: count.held,
        })
        .collect()
}

/// The `LoadBalancer` object of a Service, without status.
pub fn balancer_object(
    install: &InstallId,
    service: &ServiceSpec,
    spec: &LoadBalancerSpec,
) -> LoadBalancer {
    let mut object = LoadBalancer::new(&service.key.name, spec.clone());
    let meta = &mut object.metadata;
    meta.namespace = Some(service.key.namespace.clone());
    meta.labels = Some([(INSTALL_LABEL.to_owned(), install.to_string())].into());
    meta.finalizers = Some(vec![TARGETS_FINALIZER.to_owned()]);
    meta.owner_references = Some(vec![
        k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Service".to_owned(),
            name: service.key.name.clone(),
            uid: service.uid.to_string(),
            // Without blockOwnerDeletion: our own finalizer says when the object may go.
            ..Default::default()
        },
    ]);
    object
}

/// Whether the object that is there says what ours says (status apart).
pub fn same_object(there: &LoadBalancer, wanted: &LoadBalancer) -> bool {
    let finalizers = there.metadata.finalizers.as_deref().unwrap_or_default();
    let label = |object: &LoadBalancer| {
        object
            .metadata
            .labels
            .as_ref()
            .and_then(|l| l.get(INSTALL_LABEL).cloned())
    };
    let owner = |object: &LoadBalancer| {
        let owners = object
            .metadata
            .owner_references
            .as_deref()
            .unwrap_or_default();
        owners.first().map(|o| o.uid.clone())
    };
    there.spec == wanted.spec
        && label(there) == label(wanted)
        && owner(there) == owner(wanted)
        && finalizers.iter().any(|f| f == TARGETS_FINALIZER)
}

/// How two statuses differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Not at all.
    None,
    /// In nothing but counts, which can wait (K-10).
    Counts,
    /// In something that people or controllers wait for.
    Content,
}

/// Compares what is there with what we would write.
pub fn difference(there: Option<&LoadBalancerStatus>, wanted: &LoadBalancerStatus) -> Difference {
    let Some(there) = there else {
        return Difference::Content;
    };
    if there == wanted {
        return Difference::None;
    }
    let without_counts = |status: &LoadBalancerStatus| {
        let mut status = status.clone();
        status.ports.clear();
        status.summary.targets.clear();
        (status.summary.held, status.summary.draining) = (0, 0);
        if let Some(error) = &mut status.last_error {
            error.next_try = error.since;
        }
        status
    };
    if without_counts(there) == without_counts(wanted) {
        Difference::Counts
    } else {
        Difference::Content
    }
}

/// The apply patch for a Service's status, or none when it says so already. `condition` is `None` when
/// the Service is no longer ours: then what we wrote is taken back. The API server takes no addresses of a Service of
/// another type (AWS-006).
pub fn service_status(
    service: &ServiceSpec,
    conditions: &[Condition],
    ingress: &[IpAddr],
    host: Option<&HostName>,
    condition: Option<Condition>,
) -> Option<Value> {
    let (ingress, host) = match service.kind {
        ServiceKind::LoadBalancer => (ingress, host),
        _ => (&[][..], None),
    };
    let published: Vec<IpAddr> = service.ingress.iter().filter_map(|i| i.address).collect();
    let ours = conditions.iter().find(|c| c.type_ == SERVICE_CONDITION);
    let same = published == ingress && published_host(service).as_ref() == host;
    if same && ours == condition.as_ref() {
        return None;
    }
    let addresses = ingress
        .iter()
        .map(|ip| json!({ "ip": ip, "ipMode": "VIP" }));
    let entries: Vec<_> = addresses.chain(host.map(host_entry)).collect();
    Some(json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service.key.name,
            "namespace": service.key.namespace,
            "uid": service.uid,
        },
        "status": {
            "loadBalancer": { "ingress": entries },
            "conditions": condition.into_iter().collect::<Vec<_>>(),
        },
    }))
}

/// The entry of a host name (AWS-800): without `ip` and `ipMode`.
fn host_entry(host: &HostName) -> Value {
    let port =
        |(port, protocol): &(u16, Protocol)| json!({ "port": port, "protocol": protocol.as_str() });
    let ports: Vec<_> = host.ports.iter().map(port).collect();
    json!({ "hostname": host.name, "ports": ports })
}

/// What is published of a host name; ports as a set, so that their order is no difference (AWS-802).
fn published_host(service: &ServiceSpec) -> Option<HostName> {
    service.ingress.iter().find_map(|entry| {
        Some(HostName {
            name: entry.hostname.clone()?,
            ports: entry.ports.clone(),
        })
    })
}

#[cfg(test)]
mod tests;
