//! Bodies of requests and answers.

use std::net::IpAddr;

use onehop_core::time::Time;
use serde::{Deserialize, Serialize};

use crate::engine::{
    Choice, GroupId, GroupStatus, LbId, LbState, LbStatus, ListenerKey, Mode, ProbeProtocol,
    Protocol, Reason, Tags, TargetState, TargetStatus,
};

/// A load balancer as a user writes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LbBody {
    /// Name; no identity.
    pub name: String,
    /// Tags.
    #[serde(default)]
    pub tags: Tags,
    /// Frontend addresses, at least one.
    pub addresses: Vec<IpAddr>,
    /// Enabled zones; all when empty.
    #[serde(default)]
    pub zones: Vec<String>,
    /// Whether LB nodes choose targets of other zones; the profile's default when absent.
    pub cross_zone: Option<bool>,
    /// Whether targets see the client's address; the profile's default when absent.
    #[serde(rename = "preserveClientIP")]
    pub preserve_client_ip: Option<bool>,
    /// Load balancers with one key may have one address, each with listeners of its own.
    pub sharing_key: Option<String>,
}

/// A load balancer as the cloud shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the fields of LbBody, and what the cloud adds")]
pub struct LbView {
    pub id: LbId,
    pub name: String,
    pub tags: Tags,
    pub addresses: Vec<IpAddr>,
    pub zones: Vec<String>,
    pub cross_zone: bool,
    #[serde(rename = "preserveClientIP")]
    pub preserve_client_ip: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing_key: Option<String>,
    pub state: LbState,
    pub listeners: Vec<ListenerView>,
}

/// What a listener does, as a user writes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListenerBody {
    /// Group for new flows.
    pub group: GroupId,
}

/// A listener as the cloud shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "plain words")]
pub struct ListenerView {
    pub port: u16,
    pub protocol: Protocol,
    pub group: GroupId,
}

/// A group as a user writes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GroupBody {
    /// Name; no identity.
    pub name: String,
    /// Tags.
    #[serde(default)]
    pub tags: Tags,
    /// Transport protocol. Fixed once made.
    pub protocol: Protocol,
    /// What the targets are. Fixed once made.
    pub mode: Mode,
    /// The probe. None is for UDP groups only: their targets are healthy once registered.
    pub health: Option<HealthBody>,
    /// Seconds that a deregistered target keeps its flows; the profile's default when absent.
    pub drain_seconds: Option<f64>,
    /// By what flows choose among the targets; `fiveTuple` when absent.
    pub choice: Option<Choice>,
}

/// A health check as a user writes it; what is absent is the profile's default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HealthBody {
    /// Kind of probe.
    pub protocol: ProbeProtocol,
    /// Port to probe; the target's own when absent.
    pub port: Option<u16>,
    /// Path of an HTTP probe; `/` when absent.
    pub path: Option<String>,
    /// Seconds from the start of one probe to the start of the next.
    pub interval: Option<f64>,
    /// Seconds after which an unanswered probe has failed.
    pub timeout: Option<f64>,
    /// Good probes in a row until healthy.
    pub healthy: Option<u32>,
    /// Bad probes in a row until unhealthy.
    pub unhealthy: Option<u32>,
}

/// A group as the cloud shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the fields of GroupBody, and who uses it")]
pub struct GroupView {
    pub id: GroupId,
    pub name: String,
    pub tags: Tags,
    pub protocol: Protocol,
    pub mode: Mode,
    pub health: Option<HealthBody>,
    pub drain_seconds: f64,
    pub choice: Choice,
    pub load_balancers: Vec<LbId>,
}

/// A list of targets to register or to deregister.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetsBody {
    /// The targets.
    pub targets: Vec<TargetBody>,
}

/// One target as a user writes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetBody {
    /// Address.
    pub address: IpAddr,
    /// Port.
    pub port: u16,
    /// Zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
}

/// Targets as the cloud shows them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "a list")]
pub struct TargetsView {
    pub targets: Vec<TargetView>,
}

/// One target as the cloud shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields of TargetBody, and its state")]
pub struct TargetView {
    pub address: IpAddr,
    pub port: u16,
    pub zone: Option<String>,
    pub state: TargetState,
    pub reason: Option<Reason>,
    pub since: Option<Time>,
}

/// A list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Items<T> {
    /// What was found.
    pub items: Vec<T>,
}

impl From<LbStatus> for LbView {
    fn from(
        LbStatus {
            id,
            spec,
            state,
            listeners,
        }: LbStatus,
    ) -> Self {
        Self {
            id,
            name: spec.name,
            tags: spec.tags,
            addresses: spec.addresses,
            zones: spec.zones,
            cross_zone: spec.cross_zone,
            preserve_client_ip: spec.preserve_client_ip,
            sharing_key: spec.sharing_key,
            state,
            listeners: listeners.into_iter().map(ListenerView::from).collect(),
        }
    }
}

impl From<(ListenerKey, GroupId)> for ListenerView {
    fn from((ListenerKey { port, protocol }, group): (ListenerKey, GroupId)) -> Self {
        Self {
            port,
            protocol,
            group,
        }
    }
}

impl From<GroupStatus> for GroupView {
    fn from(GroupStatus { id, spec, used_by }: GroupStatus) -> Self {
        let health = spec.health.map(|check| HealthBody {
            protocol: check.protocol,
            port: check.port,
            path: (check.protocol == ProbeProtocol::Http).then_some(check.path),
            interval: Some(check.interval.as_secs_f64()),
            timeout: Some(check.timeout.as_secs_f64()),
            healthy: Some(check.healthy),
            unhealthy: Some(check.unhealthy),
        });
        Self {
            id,
            name: spec.name,
            tags: spec.tags,
            protocol: spec.protocol,
            mode: spec.mode,
            health,
            drain_seconds: spec.drain.as_secs_f64(),
            choice: spec.choice,
            load_balancers: used_by.into_iter().collect(),
        }
    }
}

impl From<TargetStatus> for TargetView {
    fn from(status: TargetStatus) -> Self {
        Self {
            address: status.target.ip(),
            port: status.target.port(),
            zone: status.zone,
            state: status.state,
            reason: status.reason,
            since: status.since,
        }
    }
}
