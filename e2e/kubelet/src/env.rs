//! The environment of a container: what the stand-in always sets, then the pod's own.

use std::net::{IpAddr, Ipv4Addr};

use e2e_fabric::{NodeNet, both};

use crate::events::PodRef;
use crate::plan::{EnvSource, PodPlan};

/// Set for every container, so that programs need no downward API in their manifests.
const FIXED: [(&str, &str); 6] = [
    ("POD_NAME", "metadata.name"),
    ("POD_NAMESPACE", "metadata.namespace"),
    ("POD_UID", "metadata.uid"),
    ("POD_IP", "status.podIP"),
    ("NODE_NAME", "spec.nodeName"),
    ("HOST_IP", "status.hostIP"),
];

/// Names and values; of a name that comes twice the last one holds.
pub(crate) fn environment(
    own: &[(String, EnvSource)],
    plan: &PodPlan,
    node: &NodeNet,
    address: Ipv4Addr,
) -> Vec<(String, String)> {
    let PodRef {
        namespace,
        name,
        uid,
    } = &plan.pod;
    let field = |path: &str| match path {
        "metadata.name" => name.clone(),
        "metadata.namespace" => namespace.clone(),
        "metadata.uid" => uid.clone(),
        "spec.nodeName" => node.name().to_owned(),
        "status.hostIP" => node.address().to_string(),
        "status.hostIPs" => list(node.addresses()),
        "status.podIP" => address.to_string(),
        "status.podIPs" => list(both(address)),
        path => {
            let label = path
                .strip_prefix("metadata.labels['")
                .and_then(|p| p.strip_suffix("']"));
            label
                .and_then(|l| plan.labels.get(l))
                .cloned()
                .unwrap_or_default()
        }
    };
    let fixed = FIXED
        .into_iter()
        .map(|(name, path)| (name.to_owned(), field(path)));
    let own = own.iter().map(|(name, source)| match source {
        EnvSource::Value(value) => (name.clone(), value.clone()),
        EnvSource::Field(path) => (name.clone(), field(path)),
    });
    fixed.chain(own).collect()
}

/// As the downward API joins addresses.
fn list(addresses: [IpAddr; 2]) -> String {
    addresses.map(|a| a.to_string()).join(",")
}
