//! A world on AWS's APIs: the account that the fake cloud shows, and how nodes are machines of it.

use super::{World, lb_node::LbNode};
use anyhow::{Context, Result};
use e2e_cloud::{
    Cloud,
    aws::{Aws, Interface, Machine, OnRules, Rights, Setup, SubnetSetup},
};
use e2e_fabric::Fabric;
use e2e_kubelet::Kubelet;
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use std::{collections::BTreeMap, net::Ipv4Addr, sync::Arc};

/// Access key of the controller, and its secret.
pub(super) const KEY: (&str, &str) = ("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY");
/// The region.
pub(super) const REGION: &str = "eu-central-1";
/// The VPC.
pub(super) const VPC: &str = "vpc-0e2e";
/// The cluster's name.
pub(super) const CLUSTER: &str = "e2e";
/// Where load balancers get their addresses, apart from those of address pools.
const ADDRESSES: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(198, 51, 100, 128), 25);
/// The network of nodes and load balancer nodes.
const NODES: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 0, 0), 16);

/// The account, without machines yet.
pub(super) fn account(cloud: Cloud, zones: &[&str]) -> Aws {
    let tag = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let subnet = |(index, zone): (usize, &&str)| SubnetSetup {
        id: format!("subnet-{index:04x}"),
        zone: (*zone).to_owned(),
        // Where the fabric puts the load balancer nodes of the zone: agents answer probes from there only.
        range: Ipv4Net::new_assert(lb_subnet(index), 24),
        tags: [
            tag("kubernetes.io/role/elb", "1"),
            tag("kubernetes.io/role/internal-elb", "1"),
        ]
        .into(),
    };
    let of_nodes = [tag(&format!("kubernetes.io/cluster/{CLUSTER}"), "owned")];
    let setup = Setup {
        region: REGION.to_owned(),
        keys: [tag(KEY.0, KEY.1)].into(),
        vpc: VPC.to_owned(),
        ranges: vec![NODES.into(), Fabric::CLUSTER_CIDR.into()],
        subnets: zones.iter().enumerate().map(subnet).collect(),
        machines: Vec::new(),
        security_groups: [("sg-0000nodes".to_owned(), of_nodes.into())].into(),
        addresses: ADDRESSES,
    };
    let aws = Aws::new(cloud, setup);
    // What the chart's policy does not allow is refused (AWS-841).
    let policy = include_str!("../../../charts/onehop/files/aws-iam-policy.json");
    aws.set_rights(Rights::of_policy(&policy.parse().unwrap_or_default()));
    aws
}

/// Where the load balancer nodes of the n-th zone stand.
fn lb_subnet(zone: usize) -> Ipv4Addr {
    // A world has a handful of zones.
    Ipv4Addr::new(10, 0, 9 + u8::try_from(zone).unwrap_or(0), 0)
}

/// What makes the network follow the account's security groups (FC-79).
pub(super) fn rules_on_packets(fabric: &Fabric, lbs: &[LbNode]) -> OnRules {
    let router = fabric.router().clone();
    let lbs: Vec<_> = lbs.iter().map(|lb| lb.net.clone()).collect();
    Arc::new(move |rules| {
        let admit = || {
            router.admit_from_lb_nodes(&rules.machines)?;
            lbs.iter().try_for_each(|lb| lb.admit(&rules.balancers))
        };
        if let Err(error) = admit() {
            tracing::error!(%error, "security groups are not those of the account");
        }
    })
}

/// Id of the machine of the node with this number.
pub(super) fn machine_id(index: usize) -> String {
    format!("i-{index:017x}")
}

/// `spec.providerID` of the node with this number, as a cloud controller manager writes it.
pub(super) fn provider_id(zone: &str, index: usize) -> String {
    format!("aws:///{zone}/{}", machine_id(index))
}

/// Makes each node a machine, with a subnet for its pods that is no load balancer's.
pub(super) fn machines(aws: &Aws, kubelets: &[Kubelet], zones: &[&str]) {
    let mut interfaces = Vec::new();
    for (index, (kubelet, zone)) in kubelets.iter().zip(zones.iter().cycle()).enumerate() {
        aws.add_machine(Machine {
            id: machine_id(index),
            address: kubelet.node().address().into(),
            zone: (*zone).to_owned(),
            security_groups: Vec::new(),
        });
        // As the CNI does: pods have addresses of a range of their machine's interface.
        interfaces.push(Interface {
            id: format!("eni-pods-{index:04x}"),
            addresses: Vec::new(),
            prefixes: vec![kubelet.node().pod_cidr().into()],
            security_groups: vec!["sg-0000nodes".to_owned()],
        });
        aws.add_subnet(SubnetSetup {
            id: format!("subnet-pods-{index:04x}"),
            zone: (*zone).to_owned(),
            range: kubelet.node().pod_cidr(),
            tags: BTreeMap::new(),
        });
    }
    aws.set_interfaces(interfaces);
}

impl World {
    /// The id of a node's machine, in a world on AWS.
    pub fn machine(&self, node: &str) -> Result<String> {
        let index = self.kubelets.iter().position(|k| k.node().name() == node);
        index
            .map(machine_id)
            .with_context(|| format!("no node {node}"))
    }

    /// AWS, in a world on it.
    pub fn aws(&self) -> Result<&Aws> {
        self.local.aws.as_ref().context("this world is not on AWS")
    }

    /// The host name that a Service has got, once it has one.
    pub async fn lb_host(&self, name: &str) -> Result<String> {
        let services: Api<Service> = Api::namespaced(self.kube(), "default");
        let what = format!("Service {name} gets a host name");
        super::eventually(
            &self.clock,
            &what,
            std::time::Duration::from_secs(30),
            async || {
                let service = services.get(name).await.map_err(|e| e.to_string())?;
                let ingress = service
                    .status
                    .and_then(|s| s.load_balancer)
                    .and_then(|l| l.ingress);
                let host = ingress
                    .iter()
                    .flatten()
                    .find_map(|entry| entry.hostname.clone());
                host.ok_or_else(|| format!("ingress {ingress:?}"))
            },
        )
        .await
    }
}
