//! Flags of provider azure, and the cloud config file that cloud-provider-azure reads: flags win, and alone are enough
//! (AZ-450).

mod config;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use onehop_core::crd::TargetMode;
use onehop_core::id::{Cidr, InstallId};
use reqwest::Url;

use self::config::CloudConfig;
use crate::cloud::azure::client::{Access, Credential};
use crate::cloud::azure::settings::{
    Layout, Place, SecurityGroup, Settings, TAIL_SECONDS, TakeOver,
};
use crate::cloud::local::resolve::NodeProxy;
use crate::plan::Bounds;
use crate::plan::custody::{PeerServices, Selection};

/// Endpoint of Azure Resource Manager.
const RESOURCE_MANAGER: &str = "https://management.azure.com/";
/// Where tokens come from.
const AUTHORITY: &str = "https://login.microsoftonline.com/";
/// Most members of a pool (AZ-266).
const POOL_SIZE: usize = 1000;

/// As they are written.
#[derive(Clone, Debug, Default, Args)]
#[allow(
    clippy::struct_field_names,
    reason = "each has the name of its flag, which clap takes from it"
)]
pub(super) struct AzureArgs {
    /// Cloud config file as cloud-provider-azure reads it, JSON or YAML (provider azure).
    #[arg(long, env = "ONEHOP_AZURE_CONFIG")]
    azure_config: Option<PathBuf>,
    /// Subscription (provider azure).
    #[arg(long, env = "ONEHOP_AZURE_SUBSCRIPTION_ID")]
    azure_subscription_id: Option<String>,
    /// Our load balancer is the cluster's own, which others write too, and carries no tag of ours (provider azure).
    #[arg(long, env = "ONEHOP_AZURE_SHARE_LOAD_BALANCER")]
    azure_share_load_balancer: bool,
    /// AKS's node resource group, if anything that is written is in it: that is done under AKS's Lease then
    /// (provider azure).
    #[arg(long, env = "ONEHOP_AZURE_NODE_RESOURCE_GROUP")]
    azure_node_resource_group: Option<String>,
    /// Says that cloud-provider-azure runs with --controllers=*,-service-lb-controller, or not at all: without it claimed
    /// Services without a class are looked at only (provider azure).
    #[arg(long, env = "ONEHOP_AZURE_SERVICE_CONTROLLER_DISABLED")]
    azure_service_controller_disabled: bool,
    /// Region (provider azure).
    #[arg(long, env = "ONEHOP_AZURE_LOCATION")]
    azure_location: Option<String>,
    /// Resource group of our load balancers and public IPs; on AKS one of yours, not the node resource group
    /// (provider azure).
    #[arg(long, env = "ONEHOP_AZURE_RESOURCE_GROUP")]
    azure_resource_group: Option<String>,
    /// Name of our load balancer; the internal one has -internal behind it. Default: the install id (provider azure).
    #[arg(long, env = "ONEHOP_AZURE_LOAD_BALANCER")]
    azure_load_balancer: Option<String>,
    /// The virtual network of the nodes (provider azure).
    #[arg(long, env = "ONEHOP_AZURE_VNET")]
    azure_vnet: Option<String>,
    /// Resource group of the virtual network; default: that of the cluster config file, else that of the load balancers
    /// (provider azure).
    #[arg(long, env = "ONEHOP_AZURE_VNET_RESOURCE_GROUP")]
    azure_vnet_resource_group: Option<String>,
    /// Subnet of internal frontends where no annotation names one (provider azure).
    #[arg(long, env = "ONEHOP_AZURE_SUBNET")]
    azure_subnet: Option<String>,
    /// Network security group that gets our rules; without one public Services are refused (provider azure).
    #[arg(long, env = "ONEHOP_AZURE_SECURITY_GROUP")]
    azure_security_group: Option<String>,
    /// Its resource group; default: that of the virtual network (provider azure).
    #[arg(long, env = "ONEHOP_AZURE_SECURITY_GROUP_RESOURCE_GROUP")]
    azure_security_group_resource_group: Option<String>,
    /// Network security group of the pods' subnet, where that has one of its own (provider azure).
    #[arg(long, env = "ONEHOP_AZURE_POD_SECURITY_GROUP")]
    azure_pod_security_group: Option<String>,
    /// Its resource group; default: that of the virtual network (provider azure).
    #[arg(long, env = "ONEHOP_AZURE_POD_SECURITY_GROUP_RESOURCE_GROUP")]
    azure_pod_security_group_resource_group: Option<String>,
    /// Ranges of pods that have addresses of the virtual network, by commas; without one pods are reached through
    /// their nodes (provider azure).
    #[arg(long, env = "ONEHOP_AZURE_POD_PREFIXES", value_delimiter = ',')]
    azure_pod_prefixes: Vec<Cidr>,
    /// Target mode where nothing says (provider azure).
    #[arg(long, env = "ONEHOP_AZURE_DEFAULT_TARGET", value_enum, default_value_t = ModeName::Vip)]
    azure_default_target: ModeName,
    /// Tags of everything that is made, as k=v,k=v (provider azure).
    #[arg(long, env = "ONEHOP_AZURE_TAGS", value_delimiter = ',')]
    azure_tags: Vec<String>,
    /// Most members of one backend pool (provider azure).
    #[arg(long, env = "ONEHOP_AZURE_POOL_SIZE", default_value_t = POOL_SIZE)]
    azure_pool_size: usize,
    /// Seconds for which a member that was set Down keeps its flows before it is taken out (provider azure).
    #[arg(long, env = "ONEHOP_AZURE_DRAIN_SECONDS", default_value_t = 600)]
    azure_drain_seconds: u32,
    /// Seconds for which a Service that moves between the public and the internal load balancer is served at its former
    /// address as well, for clients that know it from DNS (provider azure).
    #[arg(long, env = "ONEHOP_AZURE_DNS_GRACE_SECONDS", default_value_t = 900)]
    azure_dns_grace_seconds: u32,
    /// Endpoint of Azure Resource Manager (provider azure).
    #[arg(long, env = "ONEHOP_AZURE_ENDPOINT")]
    azure_endpoint: Option<Url>,
    /// Where tokens come from (provider azure).
    #[arg(long, env = "AZURE_AUTHORITY_HOST")]
    azure_authority: Option<Url>,
    /// PEM file with certificates of authorities beside those of the system (provider azure).
    #[arg(long, env = "ONEHOP_AZURE_CA_FILE")]
    azure_ca_file: Option<PathBuf>,
    /// Tenant of our identity (provider azure).
    #[arg(long, env = "AZURE_TENANT_ID")]
    azure_tenant_id: Option<String>,
    /// Client id of our identity (provider azure).
    #[arg(long, env = "AZURE_CLIENT_ID")]
    azure_client_id: Option<String>,
    /// File with the federated token of workload identity (provider azure).
    #[arg(long, env = "AZURE_FEDERATED_TOKEN_FILE")]
    azure_federated_token_file: Option<PathBuf>,
    /// PEM file with the certificate of our identity and its private key (provider azure).
    #[arg(long, env = "AZURE_CLIENT_CERTIFICATE_PATH")]
    azure_client_certificate_path: Option<PathBuf>,
    /// Client secret of our identity; from the environment only, so that no list of processes shows it (provider azure).
    #[arg(skip)]
    azure_client_secret: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum ModeName {
    #[default]
    Vip,
    Node,
    Pod,
}

/// Resolved.
#[derive(Clone, Debug)]
pub struct AzureConfig {
    /// How to reach Azure.
    pub access: Access,
    /// Of the provider.
    pub settings: Settings,
    /// What is worth saying at start although nothing is wrong.
    pub notes: Vec<String>,
}

/// What is wrong with these flags or the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AzureArgsError {
    /// Neither flags nor file say something that is needed (AZ-456).
    #[error("--provider azure needs {0}: give them, or a file with these keys by --azure-config")]
    Missing(String),
    /// A file cannot be read.
    #[error("{file}: {why}")]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The file asks for something that does not go (AZ-351, AZ-455).
    #[error("the cloud config asks for {0}, which this controller does not serve")]
    Unsupported(String),
    /// Two controllers would act on the same Services (AZ-014).
    #[error(
        "--take-over takes load balancers over from cloud-provider-azure: run it with          --controllers=*,-service-lb-controller, or not at all, and say so by --azure-service-controller-disabled"
    )]
    PeerActs,
    /// A tag is none.
    #[error("--azure-tags: {0:?} is not name=value")]
    Tag(String),
}

impl AzureArgs {
    pub(super) fn resolve(
        mut self,
        install: InstallId,
        cluster: Option<&String>,
        proxy: NodeProxy,
        switch_tail: Duration,
    ) -> Result<AzureConfig, AzureArgsError> {
        self.azure_client_secret = std::env::var("AZURE_CLIENT_SECRET")
            .ok()
            .filter(|secret| !secret.is_empty());
        let file = match &self.azure_config {
            Some(path) => parse(path, &read(path)?)?,
            None => CloudConfig::default(),
        };
        self.resolve_with(file, install, (cluster, proxy), switch_tail)
    }

    fn resolve_with(
        self,
        file: CloudConfig,
        install: InstallId,
        (cluster, proxy): (Option<&String>, NodeProxy),
        switch_tail: Duration,
    ) -> Result<AzureConfig, AzureArgsError> {
        supported(&file)?;
        let notes = notes(&file, self.azure_share_load_balancer);
        let mut missing = Vec::new();
        let place = self.place(&file, &install, &mut missing);
        let credential = self.credential(&file).unwrap_or_else(|what| {
            missing.push(what);
            Credential::Managed { client: None }
        });
        if !missing.is_empty() {
            return Err(AzureArgsError::Missing(missing.join(", ")));
        }
        let ca = match &self.azure_ca_file {
            Some(path) => Some(read(path)?),
            None => None,
        };
        let endpoint = file
            .resource_manager_endpoint
            .as_deref()
            .unwrap_or(RESOURCE_MANAGER);
        let url = |given: Option<Url>, default: &str| match given {
            Some(url) => Ok(url),
            None => default
                .parse()
                .map_err(|_| AzureArgsError::Unsupported(format!("the endpoint {default:?}"))),
        };
        Ok(AzureConfig {
            access: Access {
                endpoint: url(self.azure_endpoint, endpoint)?,
                authority: url(self.azure_authority, AUTHORITY)?,
                ca,
                credential,
            },
            settings: Settings {
                cluster: cluster.cloned().unwrap_or_else(|| install.to_string()),
                install,
                proxy,
                mode: match self.azure_default_target {
                    ModeName::Vip => TargetMode::Vip,
                    ModeName::Node => TargetMode::Node,
                    ModeName::Pod => TargetMode::Pod,
                },
                place,
                pod_prefixes: self.azure_pod_prefixes,
                tags: tags(&self.azure_tags, &file)?,
                disable_outbound_snat: file.disable_outbound_snat,
                pool_size: self.azure_pool_size,
                switch_tail,
                bounds: Bounds::with_tail(TAIL_SECONDS),
                drain: Duration::from_secs(self.azure_drain_seconds.into()),
                dns_grace: Duration::from_secs(self.azure_dns_grace_seconds.into()),
                membership: None,
                system_tags: file.system_tags(),
                exclude_control_plane: file.exclude_master_from_standard_lb.unwrap_or(true),
                others_pools: file.others_pools(),
                shared_probe: file.shared_probe(),
                layout: if self.azure_share_load_balancer {
                    Layout::Shared
                } else {
                    Layout::Own
                },
                take_over: TakeOver {
                    peer: if self.azure_service_controller_disabled {
                        PeerServices::Off
                    } else {
                        PeerServices::MayAct
                    },
                    ..TakeOver::default()
                },
            },
            notes,
        })
    }

    /// Places: flags before the file. Resource groups that nobody names are those of the cluster.
    fn place(&self, file: &CloudConfig, install: &InstallId, missing: &mut Vec<String>) -> Place {
        let first = |from: &[&Option<String>]| {
            let mut said = from.iter().filter_map(|text| text.as_ref());
            said.find(|text| !text.is_empty()).cloned()
        };
        let mut need = |flag: &str, key: &str, from: &[&Option<String>]| {
            first(from).unwrap_or_else(|| {
                missing.push(format!("--{flag} ({key})"));
                String::new()
            })
        };
        let ours = [
            &self.azure_resource_group,
            &file.load_balancer_resource_group,
            &file.resource_group,
        ];
        let resource_group = need("azure-resource-group", "resourceGroup", &ours);
        let subscription = [&self.azure_subscription_id, &file.subscription_id];
        let subscription = need("azure-subscription-id", "subscriptionId", &subscription);
        let location = [&self.azure_location, &file.location];
        let location = need("azure-location", "location", &location);
        let vnet = need(
            "azure-vnet",
            "vnetName",
            &[&self.azure_vnet, &file.vnet_name],
        );
        let subnet = [&self.azure_subnet, &file.subnet_name];
        let subnet = need("azure-subnet", "subnetName", &subnet);
        let vnet_resource_group = first(&[
            &self.azure_vnet_resource_group,
            &file.vnet_resource_group,
            &file.resource_group,
        ]);
        let vnet_resource_group = vnet_resource_group.unwrap_or_else(|| resource_group.clone());
        let group = |name: Option<String>, resource_group: Option<String>| {
            Some(SecurityGroup {
                name: name?,
                resource_group: resource_group.unwrap_or_else(|| vnet_resource_group.clone()),
            })
        };
        let security_group = group(
            first(&[&self.azure_security_group, &file.security_group_name]),
            first(&[
                &self.azure_security_group_resource_group,
                &file.security_group_resource_group,
            ]),
        );
        let pod_security_group = group(
            first(&[&self.azure_pod_security_group]),
            first(&[&self.azure_pod_security_group_resource_group]),
        );
        Place {
            subscription,
            location,
            edge_zone: first(&[&file.extended_location_name]),
            load_balancer: first(&[&self.azure_load_balancer])
                .unwrap_or_else(|| install.to_string()),
            vnet,
            vnet_resource_group,
            subnet,
            security_group,
            pod_security_group,
            resource_group: resource_group.to_lowercase(),
            node_resource_group: first(&[&self.azure_node_resource_group]),
        }
    }

    /// AZ-451, AZ-452: the environment comes before the file. The error says what is missing.
    fn credential(&self, file: &CloudConfig) -> Result<Credential, String> {
        let tenant = self
            .azure_tenant_id
            .clone()
            .or_else(|| file.tenant_id.clone());
        let client = self
            .azure_client_id
            .clone()
            .or_else(|| file.aad_client_id.clone());
        let secret = self
            .azure_client_secret
            .clone()
            .or_else(|| file.aad_client_secret.clone());
        let federated = self.azure_federated_token_file.clone();
        let federated = federated.or_else(|| {
            let file_says = file.use_federated_workload_identity_extension;
            file.aad_federated_token_file.clone().filter(|_| file_says)
        });
        let certificate = self.azure_client_certificate_path.clone();
        let certificate = certificate.or_else(|| file.aad_client_cert_path.clone());
        if let (Some(tenant), Some(client)) = (tenant, client) {
            if let Some(token_file) = federated {
                return Ok(Credential::Workload {
                    tenant,
                    client,
                    token_file,
                });
            }
            if let Some(secret) = secret {
                return Ok(Credential::Secret {
                    tenant,
                    client,
                    secret,
                });
            }
            if let Some(file) = certificate {
                return Ok(Credential::Certificate {
                    tenant,
                    client,
                    file,
                });
            }
        }
        if file.use_managed_identity_extension {
            let client = self.azure_client_id.clone();
            let client = client.or_else(|| file.user_assigned_identity_id.clone());
            return Ok(Credential::Managed {
                client: client.filter(|id| !id.is_empty()),
            });
        }
        Err(
            "an identity (AZURE_TENANT_ID and AZURE_CLIENT_ID with AZURE_FEDERATED_TOKEN_FILE, AZURE_CLIENT_SECRET or \
             AZURE_CLIENT_CERTIFICATE_PATH, or useManagedIdentityExtension in the file)"
                .to_owned(),
        )
    }
}

impl AzureConfig {
    /// What is taken over, and what of it although it changes something (AZ-014).
    pub(super) fn taking(
        mut self,
        (of, accepted): (Selection, Selection),
    ) -> Result<Self, AzureArgsError> {
        let take_over = &mut self.settings.take_over;
        if of != Selection::default() && take_over.peer == PeerServices::MayAct {
            return Err(AzureArgsError::PeerActs);
        }
        (take_over.of, take_over.accepted) = (of, accepted);
        Ok(self)
    }
}

/// AZ-351, AZ-455.
fn supported(file: &CloudConfig) -> Result<(), AzureArgsError> {
    let is = |value: &Option<String>, word: &str| {
        value
            .as_ref()
            .is_some_and(|it| it.eq_ignore_ascii_case(word))
    };
    let wrong = [
        (file.service_gateway_enabled, "serviceGatewayEnabled"),
        (
            file.aad_client_cert_password
                .as_ref()
                .is_some_and(|word| !word.is_empty()),
            "aadClientCertPassword (write the certificate and its key to a PEM file without one: openssl pkcs12 -in \
             FILE.pfx -out FILE.pem -nodes)",
        ),
        (
            is(&file.load_balancer_backend_pool_configuration_type, "podIP"),
            "loadBalancerBackendPoolConfigurationType podIP",
        ),
        (
            is(&file.load_balancer_sku, "service"),
            "loadBalancerSku service",
        ),
        (
            is(&file.load_balancer_sku, "basic"),
            "loadBalancerSku basic",
        ),
    ];
    match wrong.into_iter().find(|(wrong, _)| *wrong) {
        Some((_, what)) => Err(AzureArgsError::Unsupported(what.to_owned())),
        None => Ok(()),
    }
}

/// AZ-239: what the cluster's own load balancer has in its pools, unless its owner was told otherwise.
fn notes(file: &CloudConfig, shares: bool) -> Vec<String> {
    let said = file
        .load_balancer_backend_pool_configuration_type
        .as_deref();
    let by_address = said.is_some_and(|it| it.eq_ignore_ascii_case("nodeIP"));
    if !shares || by_address {
        return Vec::new();
    }
    let note = "the cloud config does not say loadBalancerBackendPoolConfigurationType nodeIP, so pools of the cluster's load \
                balancer may hold network interfaces: rules may be on them, and their members are never written here";
    vec![note.to_owned()]
}

fn tags(given: &[String], file: &CloudConfig) -> Result<BTreeMap<String, String>, AzureArgsError> {
    let mut tags = file.tags_map.clone();
    let of_file: Vec<String> = file
        .tags
        .iter()
        .flat_map(|list| list.split(',').map(str::to_owned))
        .collect();
    for entry in of_file
        .iter()
        .chain(given)
        .filter(|entry| !entry.trim().is_empty())
    {
        let (key, value) = entry
            .split_once('=')
            .ok_or_else(|| AzureArgsError::Tag(entry.clone()))?;
        tags.insert(key.trim().to_owned(), value.trim().to_owned());
    }
    Ok(tags)
}

fn read(path: &Path) -> Result<Vec<u8>, AzureArgsError> {
    let wrong = |why: std::io::Error| AzureArgsError::File {
        file: path.to_owned(),
        why: why.to_string(),
    };
    std::fs::read(path).map_err(wrong)
}

/// JSON or YAML.
fn parse(path: &Path, bytes: &[u8]) -> Result<CloudConfig, AzureArgsError> {
    let wrong = |why: String| AzureArgsError::File {
        file: path.to_owned(),
        why,
    };
    let text = std::str::from_utf8(bytes).map_err(|error| wrong(error.to_string()))?;
    serde_json::from_str(text)
        .or_else(|_| serde_saphyr::from_str(text).map_err(|error| wrong(error.to_string())))
}

#[cfg(test)]
mod tests;
