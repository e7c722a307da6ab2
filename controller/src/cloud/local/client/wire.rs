//! Bodies of the local cloud's REST API (harness.md section 6). Unknown fields of answers are ignored.

use std::collections::BTreeMap;
use std::net::IpAddr;

use onehop_core::id::Zone;
use serde::{Deserialize, Serialize};

use crate::cloud::Taken;
use crate::cloud::local::names;

type Tags = BTreeMap<String, String>;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LbBody<'a> {
    pub(super) name: &'a str,
    pub(super) tags: &'a Tags,
    pub(super) addresses: &'a [IpAddr],
    #[serde(rename = "preserveClientIP")]
    pub(super) preserve_client_ip: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sharing_key: Option<&'a str>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LbView {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) tags: Tags,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) sharing_key: Option<String>,
    pub(super) state: String,
    pub(super) listeners: Vec<ListenerView>,
}

#[derive(Debug, Serialize)]
pub(super) struct ListenerBody {
    pub(super) group: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct ListenerView {
    pub(super) port: u16,
    pub(super) protocol: String,
    pub(super) group: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct GroupBody<'a> {
    pub(super) name: &'a str,
    pub(super) tags: &'a Tags,
    pub(super) protocol: &'static str,
    pub(super) mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) health: Option<Health>,
    pub(super) drain_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) choice: Option<&'static str>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct GroupView {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) tags: Tags,
    pub(super) protocol: String,
    pub(super) mode: String,
    pub(super) health: Option<Health>,
    pub(super) drain_seconds: f64,
    pub(super) choice: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Health {
    pub(super) protocol: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) path: Option<String>,
    pub(super) interval: f64,
    pub(super) timeout: f64,
    pub(super) healthy: u32,
    pub(super) unhealthy: u32,
}

#[derive(Debug, Serialize)]
pub(super) struct TargetsBody {
    pub(super) targets: Vec<TargetBody>,
}

#[derive(Debug, Serialize)]
pub(super) struct TargetBody {
    pub(super) address: IpAddr,
    pub(super) port: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) zone: Option<Zone>,
}

#[derive(Debug, Deserialize)]
pub(super) struct TargetsView {
    pub(super) targets: Vec<TargetView>,
}

#[derive(Debug, Deserialize)]
pub(super) struct TargetView {
    pub(super) address: IpAddr,
    pub(super) port: u16,
    pub(super) zone: Option<Zone>,
    pub(super) state: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Items<T> {
    pub(super) items: Vec<T>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ErrorBody {
    pub(super) code: String,
    pub(super) message: String,
    details: Details,
}

/// What some errors tell beside.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Details {
    address: Option<IpAddr>,
    holder: Option<HolderView>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct HolderView {
    id: String,
    name: String,
    tags: Tags,
}

impl ErrorBody {
    /// The address that somebody else has in the cloud, if that is what this says.
    pub(super) fn taken(self) -> Option<Taken> {
        if self.code != "address_in_use" {
            return None;
        }
        let HolderView { id, name, tags } = self.details.holder?;
        let install = tags.get(names::INSTALL);
        Some(Taken {
            address: self.details.address?,
            by: match (tags.get(names::SERVICE), install) {
                (Some(service), Some(install)) => format!("Service {service} of install {install}"),
                _ => format!("load balancer {id} ({name})"),
            },
            install: install.map(|id| id.as_str().into()),
        })
    }
}
