//! A world on Azure's API: the subscription that the fake cloud shows.

use super::World;
use anyhow::{Context, Result};
use e2e_cloud::{
    Cloud,
    aws::Aws,
    azure::{Azure, Setup, actions_of_role},
};
use e2e_fabric::{Fabric, twin};
use ipnet::Ipv4Net;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    time::Duration,
};

const SUBSCRIPTION: &str = "00000000-0000-4000-8000-00000000e2e0";
const GROUP: &str = "onehop";
const LOCATION: &str = "westeurope";
const CLIENT: &str = "e2e-client";
const SECRET: &str = "e2e-secret";
/// Who the controller is.
pub(super) const ENVIRONMENT: [(&str, &str); 3] = [
    ("AZURE_TENANT_ID", "e2e-tenant"),
    ("AZURE_CLIENT_ID", CLIENT),
    ("AZURE_CLIENT_SECRET", SECRET),
];
/// Where public IPs come from, apart from those of address pools.
const PUBLIC: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(198, 51, 100, 128), 25);
/// Where internal frontends get their addresses: routed to load balancer nodes as well.
const INTERNAL: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(198, 51, 100, 64), 26);
/// The authority of its certificate, in the world's folder.
pub(super) const CA_FILE: &str = "azure-ca.pem";
/// How long the cloud works on a write.
const OPERATION: Duration = Duration::from_secs(1);

fn network(kind: &str, name: &str) -> String {
    format!(
        "/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}/providers/Microsoft.Network/{kind}/{name}"
    )
}

/// The subscription: a network with a subnet, and a security group with a rule of somebody else.
pub(super) fn subscription(cloud: Cloud) -> Azure {
    let rule = json!({
        "name": "theirs",
        "properties": {
            "priority": 500, "direction": "Inbound", "access": "Allow", "protocol": "Tcp", "sourcePortRange": "*",
            "sourceAddressPrefix": "10.0.0.0/8", "destinationAddressPrefix": "*", "destinationPortRange": "22",
        },
    });
    let role = include_str!("../../../charts/onehop/files/azure-role.json");
    let group = json!({"location": LOCATION, "properties": {"securityRules": [rule]}});
    Azure::new(
        cloud,
        Setup {
            subscription: SUBSCRIPTION.to_owned(),
            location: LOCATION.to_owned(),
            resource_groups: vec![GROUP.to_owned()],
            clients: [(CLIENT.to_owned(), SECRET.to_owned())].into(),
            public: PUBLIC,
            zones: ["1", "2", "3"].map(str::to_owned).into(),
            subnets: [(
                format!("{}/subnets/nodes", network("virtualNetworks", "vnet")),
                INTERNAL,
            )]
            .into(),
            twin,
            documents: vec![(network("networkSecurityGroups", "nodes"), group)],
            pods: vec![Fabric::CLUSTER_CIDR.into(), Fabric::CLUSTER_CIDR6.into()],
            // What the chart's role does not allow is refused (AZ-231).
            actions: Some(actions_of_role(&role.parse().unwrap_or_default())),
            operation: OPERATION,
        },
    )
}

/// What the controller is told of it.
pub(super) fn flags(api: SocketAddr, folder: &Path) -> [(&'static str, String); 13] {
    [
        ("--provider", "azure".to_owned()),
        ("--cluster-name", "e2e".to_owned()),
        ("--azure-endpoint", format!("https://{api}")),
        ("--azure-authority", format!("https://{api}")),
        (
            "--azure-ca-file",
            folder.join(CA_FILE).to_string_lossy().into_owned(),
        ),
        ("--azure-subscription-id", SUBSCRIPTION.to_owned()),
        ("--azure-resource-group", GROUP.to_owned()),
        ("--azure-location", LOCATION.to_owned()),
        ("--azure-vnet", "vnet".to_owned()),
        ("--azure-subnet", "nodes".to_owned()),
        ("--azure-security-group", "nodes".to_owned()),
        (
            "--azure-pod-prefixes",
            format!("{},{}", Fabric::CLUSTER_CIDR, Fabric::CLUSTER_CIDR6),
        ),
        ("--azure-load-balancer", "onehop-lb".to_owned()),
    ]
}

impl World {
    /// Azure, in a world on it.
    pub fn azure(&self) -> Result<&Azure> {
        self.local
            .azure
            .as_ref()
            .context("this world is not on Azure")
    }

    /// Calls of the cloud's API so far, where it is that of a real cloud.
    pub fn cloud_calls(&self) -> BTreeMap<String, u64> {
        let aws = self.local.aws.as_ref().map(Aws::calls);
        let azure = self.local.azure.as_ref().map(Azure::calls);
        aws.or(azure).unwrap_or_default()
    }

    /// Id of something of the subscription, by kind and name.
    pub fn azure_id(kind: &str, name: &str) -> String {
        network(kind, name)
    }

    /// A document of the subscription, by kind and name.
    pub fn azure_document(&self, kind: &str, name: &str) -> Result<Option<Value>> {
        Ok(self.azure()?.document(&network(kind, name)))
    }
}
