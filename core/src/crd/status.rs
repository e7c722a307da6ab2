//! Status of a `LoadBalancer`: addresses, cloud resources, counts, conditions, and the columns that
//! `kubectl` shows.

use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{LoadBalancerSpec, PROGRAMMED, TARGETS_READY, schema};
use crate::id::{IpFamily, PortName, Zone};
use crate::time::Time;

/// How a load balancer stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancerStatus {
    /// Its addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub addresses: Vec<Address>,
    /// What we made for it in the cloud.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub resources: Vec<CloudResource>,
    /// Attributes and tags that we set, so that removal resets only these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub owned_keys: Vec<String>,
    /// Targets per port.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub ports: Vec<PortCounts>,
    /// How far the taking over from another program, or the giving back to it, has come; none where it is ours alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub take_over: Option<TakeOver>,
    /// What failed last and has not succeeded since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
    /// Accepted, Programmed, `TargetsReady` and Degraded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// The columns of `kubectl get`, which cannot add up or join by themselves.
    #[serde(default)]
    pub summary: Summary,
    /// Longest time that an agent has seen from a target's deregistration to the last new flow to it, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail_seconds: Option<u32>,
}

/// An address of a load balancer: an IP address or a host name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    /// The IP address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub ip: Option<IpAddr>,
    /// The host name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// The family.
    pub family: IpFamily,
    /// The zone that it is in, where the cloud says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<Zone>,
}

/// Something that we made in the cloud.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub struct CloudResource {
    /// The provider's word for it.
    pub kind: String,
    /// The cloud's identifier.
    pub id: String,
    /// Tells a replacement from what it replaces.
    pub generation: i64,
}

/// Targets of one port by state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PortCounts {
    /// Name of the port.
    pub name: PortName,
    /// All that are registered.
    pub registered: u32,
    /// Those that the cloud finds healthy.
    pub healthy: u32,
    /// Those that it has yet to judge.
    pub initial: u32,
    /// Those that it finds unhealthy.
    pub unhealthy: u32,
    /// Those that are leaving.
    pub draining: u32,
    /// Those that stay although they should leave.
    pub held: u32,
}

/// A failure that has not been followed by a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastError {
    /// The part that failed.
    pub part: String,
    /// Class of the error, a word from a fixed list.
    pub class: String,
    /// What was tried, on what, and what came back.
    pub message: String,
    /// Since when it fails.
    pub since: Time,
    /// When it is tried next.
    pub next_try: Time,
}

/// How a load balancer that another program has made is taken over, or given back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TakeOver {
    /// How far it has come.
    pub stage: TakeOverStage,
    /// What is to be done next, or would be, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub steps: Vec<String>,
    /// What would change the data path: what the other program has otherwise than the Service asks for here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub differences: Vec<String>,
    /// What stops it, each with what would let it go on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub blocked: Vec<String>,
}

/// How far a take-over, or the way back, has come.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[schemars(inline)]
pub enum TakeOverStage {
    /// Nothing is written: it is compared only.
    Observing,
    /// Security group, rules and tags of ours are put beside what is there.
    Preparing,
    /// They are given time to take effect.
    Settling,
    /// The other program's bindings go, and its finalizer gives way to ours.
    Switching,
    /// The other program acts on what was taken over: nothing is written.
    Conflict,
    /// What was taken from the other program is put back, and what is ours is taken off.
    Returning,
    /// It is the other program's again.
    Returned,
    /// A value that this version does not know (K-11).
    #[default]
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl TakeOverStage {
    /// The spelling in objects and messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Observing => "Observing",
            Self::Preparing => "Preparing",
            Self::Settling => "Settling",
            Self::Switching => "Switching",
            Self::Conflict => "Conflict",
            Self::Returning => "Returning",
            Self::Returned => "Returned",
            Self::Unknown => "Unknown",
        }
    }
}

/// The columns of `kubectl get olb` (C-104).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Target modes, joined by commas where ports differ.
    #[serde(default)]
    pub mode: String,
    /// Addresses, joined by commas.
    #[serde(default)]
    pub address: String,
    /// healthy/registered over all ports.
    #[serde(default)]
    pub targets: String,
    /// Held targets over all ports.
    #[serde(default)]
    pub held: u32,
    /// Draining targets over all ports.
    #[serde(default)]
    pub draining: u32,
    /// Whether it is programmed and can serve: `True`, `False` or `Unknown`.
    #[serde(default)]
    pub ready: String,
    /// Reason of the condition that decides `ready`.
    #[serde(default)]
    pub reason: String,
}

impl LoadBalancerStatus {
    /// The columns that belong to this status and its spec.
    pub fn summarize(&self, spec: &LoadBalancerSpec) -> Summary {
        let sum = |count: fn(&PortCounts) -> u32| self.ports.iter().map(count).sum::<u32>();
        let mut modes: Vec<_> = spec.ports.iter().map(|p| p.mode.as_str()).collect();
        modes.dedup();
        let addresses: Vec<_> = self.addresses.iter().map(Address::to_string).collect();
        let (ready, reason) = self.readiness();
        Summary {
            mode: modes.join(","),
            address: addresses.join(","),
            targets: format!("{}/{}", sum(|p| p.healthy), sum(|p| p.registered)),
            held: sum(|p| p.held),
            draining: sum(|p| p.draining),
            ready,
            reason,
        }
    }

    /// The condition with this type.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|c| c.type_ == kind)
    }

    /// The first of the two conditions that readiness needs which is not `True`, else the last.
    fn readiness(&self) -> (String, String) {
        let mut last = ("Unknown".to_owned(), String::new());
        for kind in [PROGRAMMED, TARGETS_READY] {
            match self.condition(kind) {
                Some(c) if c.status == "True" => last = (c.status.clone(), c.reason.clone()),
                Some(c) => return (c.status.clone(), c.reason.clone()),
                None => return ("Unknown".to_owned(), String::new()),
            }
        }
        last
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.hostname, self.ip) {
            (Some(name), _) => f.write_str(name),
            (None, Some(ip)) => ip.fmt(f),
            (None, None) => Ok(()),
        }
    }
}
