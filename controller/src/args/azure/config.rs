//! The cloud config file that cloud-provider-azure reads, JSON or YAML.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::Deserialize;

use crate::cloud::azure::settings::Kind;

/// Where kube-proxy tells its node's health.
const NODE_HEALTH: u16 = 10256;

/// Keys of the cloud config file that we read; others are passed over.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "the keys of another program's file"
)]
pub(super) struct CloudConfig {
    pub(super) tenant_id: Option<String>,
    pub(super) subscription_id: Option<String>,
    pub(super) resource_manager_endpoint: Option<String>,
    pub(super) resource_group: Option<String>,
    pub(super) location: Option<String>,
    pub(super) extended_location_name: Option<String>,
    pub(super) vnet_name: Option<String>,
    pub(super) vnet_resource_group: Option<String>,
    pub(super) subnet_name: Option<String>,
    pub(super) security_group_name: Option<String>,
    pub(super) security_group_resource_group: Option<String>,
    pub(super) load_balancer_sku: Option<String>,
    pub(super) load_balancer_resource_group: Option<String>,
    #[serde(rename = "disableOutboundSNAT")]
    pub(super) disable_outbound_snat: bool,
    pub(super) load_balancer_backend_pool_configuration_type: Option<String>,
    pub(super) service_gateway_enabled: bool,
    pub(super) tags: Option<String>,
    pub(super) tags_map: BTreeMap<String, String>,
    pub(super) system_tags: Option<String>,
    #[serde(rename = "excludeMasterFromStandardLB")]
    pub(super) exclude_master_from_standard_lb: Option<bool>,
    pub(super) pre_configured_backend_pool_load_balancer_types: Option<String>,
    pub(super) cluster_service_load_balancer_health_probe_mode: Option<String>,
    pub(super) cluster_service_shared_load_balancer_health_probe_port: Option<u16>,
    pub(super) cluster_service_shared_load_balancer_health_probe_path: Option<String>,
    pub(super) aad_client_id: Option<String>,
    pub(super) aad_client_secret: Option<String>,
    pub(super) aad_client_cert_path: Option<PathBuf>,
    pub(super) aad_client_cert_password: Option<String>,
    pub(super) aad_federated_token_file: Option<PathBuf>,
    pub(super) use_federated_workload_identity_extension: bool,
    pub(super) use_managed_identity_extension: bool,
    #[serde(rename = "userAssignedIdentityID")]
    pub(super) user_assigned_identity_id: Option<String>,
}

impl CloudConfig {
    /// Set but empty is said, too (AZ-185).
    pub(super) fn system_tags(&self) -> Option<BTreeSet<String>> {
        let list = self.system_tags.as_ref()?.split(',').map(str::trim);
        Some(
            list.filter(|key| !key.is_empty())
                .map(str::to_owned)
                .collect(),
        )
    }

    /// Load balancers whose pools are filled by others (AZ-236).
    pub(super) fn others_pools(&self) -> BTreeSet<Kind> {
        let said = self
            .pre_configured_backend_pool_load_balancer_types
            .as_deref();
        match said.unwrap_or_default().to_ascii_lowercase().as_str() {
            "internal" => [Kind::Internal].into(),
            "external" => [Kind::External].into(),
            "all" => Kind::ALL.into(),
            _ => BTreeSet::new(),
        }
    }

    /// The probe that all Services share, if there is to be one (AZ-142).
    pub(super) fn shared_probe(&self) -> Option<(u16, String)> {
        let mode = self
            .cluster_service_load_balancer_health_probe_mode
            .as_deref();
        let shared = mode.is_some_and(|mode| mode.eq_ignore_ascii_case("shared"));
        let path = &self.cluster_service_shared_load_balancer_health_probe_path;
        let path = path.clone().filter(|path| !path.is_empty());
        let port = self.cluster_service_shared_load_balancer_health_probe_port;
        shared.then(|| {
            (
                port.unwrap_or(NODE_HEALTH),
                path.unwrap_or_else(|| "/healthz".to_owned()),
            )
        })
    }
}
