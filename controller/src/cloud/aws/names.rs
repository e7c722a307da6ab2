//! Names and tags of what we make in AWS, byte for byte (AWS-100 to AWS-110). Pure.
//!
//! Tags carry ownership. Names are only used at create, but creates are idempotent by name, so a name
//! must never meet somebody else's object. For Services of the peer's class the recipes are the peer's.

use std::collections::BTreeMap;
use std::fmt::Display;

use onehop_core::crd::Scheme;
use onehop_core::id::{InstallId, ServiceKey, ServiceUid};
use sha2::{Digest, Sha256};

use super::model::{CheckProtocol, GroupProtocol, TargetType};
use super::settings::{Flavour, Settings};

/// What stands before the cluster's name in the tag of everything that belongs to it.
pub const CLUSTER_TAG: &str = "kubernetes.io/cluster/";
/// Install that made the object.
pub const INSTALL: &str = "onehop.dev/install";
/// Cluster of that install.
pub const CLUSTER: &str = "onehop.dev/cluster";
/// Namespace and name of the Service.
pub const SERVICE: &str = "onehop.dev/service";
/// UID of the Service.
pub const SERVICE_UID: &str = "onehop.dev/service-uid";
/// What the object is for its Service.
pub const RESOURCE: &str = "onehop.dev/resource";
/// Tells a replacement from what it replaces, from 2 on.
pub const GENERATION: &str = "onehop.dev/generation";
/// Since when a group or a load balancer is replaced.
pub const RETIRED: &str = "onehop.dev/retired-since";
/// Since when a load balancer that another program has made is being taken over.
pub const TAKEN: &str = "onehop.dev/taken-over-since";
/// What every key of our tags begins with.
pub const PREFIX: &str = "onehop.dev/";
/// The peer's tag of its shared security group (AWS-111).
pub const PEER_SHARED: &str = "elbv2.k8s.aws/resource";
/// Its value on that group.
pub const PEER_BACKEND_GROUP: &str = "backend-sg";
/// The peer's cluster tag.
pub const PEER_CLUSTER: &str = "elbv2.k8s.aws/cluster";
/// The peer's tag of the Service.
pub const PEER_STACK: &str = "service.k8s.aws/stack";
/// The peer's tag of the object within the Service.
pub const PEER_RESOURCE: &str = "service.k8s.aws/resource";

/// Value of [`RESOURCE`] of a load balancer.
pub const LOAD_BALANCER: &str = "LoadBalancer";
/// Value of [`RESOURCE`] of a managed security group.
pub const MANAGED_GROUP: &str = "ManagedLBSecurityGroup";
/// Value of [`RESOURCE`] of the backend security group.
pub const BACKEND_GROUP: &str = "BackendSecurityGroup";

/// Tags.
pub type Tags = BTreeMap<String, String>;

/// What the names of one Service's objects are made of.
#[derive(Clone, Copy, Debug)]
pub struct Namer<'a> {
    /// Cluster and install.
    pub settings: &'a Settings,
    /// Whose recipe.
    pub flavour: Flavour,
    /// The Service.
    pub service: &'a ServiceKey,
    /// Its UID.
    pub uid: &'a ServiceUid,
}

/// What decides the name of a group beside its Service (AWS-102).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupHash {
    /// Port of the group.
    pub port: u16,
    /// Port of the Service.
    pub service_port: u16,
    /// What its targets are.
    pub target: TargetType,
    /// Its protocol.
    pub protocol: GroupProtocol,
    /// Protocol of its check.
    pub check: CheckProtocol,
    /// Port of its check, where that is not the traffic port.
    pub check_port: Option<u16>,
    /// Seconds between checks.
    pub interval: u32,
}

impl Namer<'_> {
    /// A load balancer's name (AWS-101).
    pub fn balancer(&self, scheme: Scheme, generation: u32) -> String {
        let mut hash = self.seed();
        hash.add(self.uid).add(scheme_word(scheme));
        self.finish(hash.generation(generation))
    }

    /// A group's name (AWS-102, AWS-108).
    pub fn group(&self, of: &GroupHash, generation: u32) -> String {
        let mut hash = self.seed();
        hash.add(self.uid)
            .add(of.port)
            .add(of.service_port)
            .add(of.target.as_str())
            .add(of.protocol.as_str())
            .add(of.check.as_str())
            .add(of.interval);
        if self.flavour == Flavour::Own {
            match of.check_port {
                Some(port) => hash.add(port),
                None => hash.add("traffic-port"),
            };
        }
        self.finish(hash.generation(generation))
    }

    /// The managed security group's name (AWS-103): name and namespace go in unstripped.
    pub fn managed_group(&self) -> String {
        let mut hash = self.seed();
        hash.add(&self.service.name)
            .add(&self.service.namespace)
            .add(self.uid);
        self.finish(&mut hash)
    }

    fn seed(&self) -> Hash {
        let mut hash = Hash::default();
        match self.flavour {
            Flavour::Own => hash.add(&self.settings.install),
            Flavour::Peer => hash.add(&self.settings.cluster),
        };
        hash
    }

    fn finish(&self, hash: &mut Hash) -> String {
        let prefix = match self.flavour {
            Flavour::Own => "oh",
            Flavour::Peer => "k8s",
        };
        let (namespace, name) = (plain(&self.service.namespace), plain(&self.service.name));
        format!("{prefix}-{namespace}-{name}-{}", hash.ten())
    }

    /// Tags that find the Service's objects and say whose they are (AWS-110). `resource` is
    /// [`LOAD_BALANCER`], `<ns>/<svc>:<port>`, `<port>` or [`MANAGED_GROUP`].
    pub fn tracking_tags(&self, resource: &str, generation: u32) -> Tags {
        let mut tags = install_tags(self.settings);
        let mut put = |key: &str, value: String| tags.insert(key.to_owned(), value);
        put(SERVICE, self.service.to_string());
        put(SERVICE_UID, self.uid.to_string());
        put(RESOURCE, resource.to_owned());
        if generation > 1 {
            put(GENERATION, generation.to_string());
        }
        if self.flavour == Flavour::Peer {
            put(PEER_CLUSTER, self.settings.cluster.clone());
            put(PEER_STACK, self.service.to_string());
            put(PEER_RESOURCE, resource.to_owned());
        }
        tags
    }

    /// Value of [`RESOURCE`] of a group.
    pub fn group_resource(&self, service_port: u16) -> String {
        format!("{}:{service_port}", self.service)
    }
}

/// Tags of everything of this install.
pub fn install_tags(settings: &Settings) -> Tags {
    Tags::from([
        (INSTALL.to_owned(), settings.install.to_string()),
        (CLUSTER.to_owned(), settings.cluster.clone()),
    ])
}

/// Name of the backend security group (AWS-330).
pub fn backend_group(install: &InstallId) -> String {
    let mut hash = Hash::default();
    hash.add(install);
    let cut: String = install.as_str().chars().take(200).collect();
    format!("onehop-backend-{cut}-{}", hash.ten())
}

/// Name of the peer's backend security group, to recognise it (AWS-104).
pub fn peer_backend_group(cluster: &str) -> String {
    let mut hash = Hash::default();
    hash.add(cluster);
    let cut: String = cluster.chars().take(232).collect();
    format!("k8s-traffic-{cut}-{}", hash.ten())
}

/// Description of our rules; only rules with exactly this one are ever revoked (AWS-331).
pub fn rule_description(install: &InstallId) -> String {
    format!("{INSTALL}={install}")
}

/// Description of a managed security group (AWS-106).
pub fn managed_description(settings: &Settings, flavour: Flavour) -> String {
    match flavour {
        Flavour::Peer => "[k8s] Managed SecurityGroup for LoadBalancer".to_owned(),
        Flavour::Own => format!(
            "onehop: frontend of a load balancer of {}",
            settings.install
        ),
    }
}

/// A scheme as the API spells it.
pub const fn scheme_word(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::InternetFacing => "internet-facing",
        Scheme::Internal | Scheme::Unknown => "internal",
    }
}

/// Letters and digits only, at most eight (AWS-100).
fn plain(text: &str) -> String {
    text.chars()
        .filter(char::is_ascii_alphanumeric)
        .take(8)
        .collect()
}

/// SHA-256 over inputs without separators.
#[derive(Default)]
struct Hash(String);

impl Hash {
    fn add(&mut self, part: impl Display) -> &mut Self {
        self.0.push_str(&part.to_string());
        self
    }

    /// AWS-107: from 2 on the number is the last input.
    fn generation(&mut self, generation: u32) -> &mut Self {
        if generation > 1 {
            self.add(generation);
        }
        self
    }

    fn ten(&self) -> String {
        let digest = Sha256::digest(self.0.as_bytes());
        let digits: Vec<_> = digest
            .iter()
            .take(5)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        digits.concat()
    }
}

#[cfg(test)]
mod tests;
