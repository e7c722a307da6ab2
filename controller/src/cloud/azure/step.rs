//! The Azure provider's steps. Steps for one load balancer, or for the security group, of any number of Services are
//! carried out together, in one write (AZ-101).

use std::fmt;

use onehop_core::id::ServiceKey;
use serde_json::Value;

use super::balancer::PoolChange;
use super::document::last_of_id;
use super::part::Part;
use super::settings::Kind;
use crate::plan::{Act, Facts, Lane, Resource, Step};

/// One step of one Service.
#[derive(Clone, Debug, PartialEq)]
pub enum AzureStep {
    /// Writes a public IP.
    PutPublicIp {
        /// Its id.
        id: String,
        /// Its document.
        document: Value,
    },
    /// Removes one.
    DeletePublicIp {
        /// Its id.
        id: String,
    },
    /// Lays a Service's part into a load balancer, with its first members.
    PutPart {
        /// The part.
        part: Box<Part>,
        /// Members of pools that are filled with it.
        members: Vec<PoolChange>,
        /// Ids of public IPs that have to be there first.
        needs: Vec<String>,
    },
    /// Takes a Service's part out of one.
    RemovePart {
        /// The load balancer.
        kind: Kind,
        /// Base name of the Service.
        base: String,
        /// Ids of public IPs that it lets go.
        frees: Vec<String>,
    },
    /// Changes members of a pool.
    ChangeMembers {
        /// The load balancer.
        kind: Kind,
        /// What comes and goes.
        change: PoolChange,
    },
    /// Removes a pool that no rule uses.
    DropPool {
        /// The load balancer.
        kind: Kind,
        /// The pool.
        pool: String,
    },
    /// Brings the rules of the security group up to date, once the part of this Service is there.
    PutRules {
        /// Base name of the Service.
        base: String,
        /// The load balancer that its part is on.
        kind: Kind,
    },
    /// Brings them up to date without this Service.
    ReleaseRules {
        /// The Service.
        service: ServiceKey,
        /// Its base names.
        bases: Vec<String>,
    },
}

fn public_ip(id: &str) -> Resource {
    Resource::new("publicIP", last_of_id(id))
}

fn part(kind: Kind, base: &str) -> Resource {
    Resource::new("part", format_args!("{kind:?}/{base}"))
}

impl Step for AzureStep {
    fn facts(&self) -> Facts {
        let facts = |lane, act, on| Facts {
            lane,
            act,
            on,
            uses: vec![],
            frees: vec![],
        };
        match self {
            Self::PutPublicIp { id, .. } => facts(Lane::Shape, Act::Create, public_ip(id)),
            Self::DeletePublicIp { id } => facts(Lane::Delete, Act::Delete, public_ip(id)),
            Self::PutPart {
                part: it, needs, ..
            } => Facts {
                uses: needs.iter().map(|id| public_ip(id)).collect(),
                ..facts(Lane::Shape, Act::Create, part(it.kind, &it.base))
            },
            Self::RemovePart { kind, base, frees } => Facts {
                uses: frees.iter().map(|id| public_ip(id)).collect(),
                ..facts(Lane::Delete, Act::Delete, part(*kind, base))
            },
            Self::ChangeMembers { kind, change } => {
                let act = if change.up.is_empty() {
                    Act::Empty
                } else {
                    Act::Fill
                };
                facts(
                    Lane::Members,
                    act,
                    Resource::new("pool", format_args!("{kind:?}/{}", change.pool)),
                )
            }
            Self::DropPool { kind, pool } => facts(
                Lane::Delete,
                Act::Delete,
                Resource::new("pool", format_args!("{kind:?}/{pool}")),
            ),
            Self::PutRules { base, kind } => Facts {
                uses: vec![part(*kind, base)],
                ..facts(Lane::Shape, Act::Publish, Resource::new("rules", base))
            },
            Self::ReleaseRules { bases, .. } => Facts {
                uses: bases
                    .iter()
                    .flat_map(|base| Kind::ALL.map(|kind| part(kind, base)))
                    .collect(),
                ..facts(
                    Lane::Delete,
                    Act::Delete,
                    Resource::new("rules", bases.join(",")),
                )
            },
        }
    }

    /// A part brings its first members with it.
    fn registers(&self) -> bool {
        match self {
            Self::PutPart { members, .. } => members.iter().any(|change| !change.up.is_empty()),
            Self::ChangeMembers { change, .. } => !change.up.is_empty(),
            _ => false,
        }
    }

    fn verb(&self) -> &'static str {
        match self {
            Self::PutPublicIp { .. } => "put-public-ip",
            Self::DeletePublicIp { .. } => "delete-public-ip",
            Self::PutPart { .. } => "put-part",
            Self::RemovePart { .. } => "remove-part",
            Self::ChangeMembers { .. } => "change-members",
            Self::DropPool { .. } => "drop-pool",
            Self::PutRules { .. } | Self::ReleaseRules { .. } => "put-rules",
        }
    }

    fn event(&self) -> Option<(&'static str, String)> {
        match self {
            Self::PutPublicIp { id, .. } => Some((
                "CreateOrUpdatePublicIPAddress",
                format!("Wrote public IP {}", last_of_id(id)),
            )),
            Self::DeletePublicIp { id } => Some((
                "DeletePublicIPAddress",
                format!("Deleted public IP {}", last_of_id(id)),
            )),
            Self::PutPart { .. } => Some((
                "UpdatedLoadBalancer",
                "Wrote its part of the load balancer".to_owned(),
            )),
            Self::ChangeMembers { change, .. } => {
                let PoolChange {
                    pool,
                    up,
                    down,
                    out,
                } = change;
                let message = format!(
                    "Pool {pool}: {} in, {} set Down, {} out",
                    up.len(),
                    down.len(),
                    out.len()
                );
                Some(("LoadBalancerBackendPoolUpdated", message))
            }
            Self::RemovePart { .. }
            | Self::DropPool { .. }
            | Self::PutRules { .. }
            | Self::ReleaseRules { .. } => None,
        }
    }
}

impl fmt::Display for AzureStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PutPublicIp { id, .. } => write!(f, "write public IP {}", last_of_id(id)),
            Self::DeletePublicIp { id } => write!(f, "delete public IP {}", last_of_id(id)),
            Self::PutPart { part, members, .. } => {
                let count: usize = members.iter().map(|change| change.up.len()).sum();
                write!(
                    f,
                    "write part {} of {:?} with {count} members",
                    part.base, part.kind
                )
            }
            Self::RemovePart { kind, base, .. } => write!(f, "remove part {base} of {kind:?}"),
            Self::ChangeMembers { kind, change } => {
                let (up, down, out) = (change.up.len(), change.down.len(), change.out.len());
                write!(
                    f,
                    "pool {} of {kind:?}: {up} up, {down} down, {out} out",
                    change.pool
                )
            }
            Self::DropPool { kind, pool } => write!(f, "drop pool {pool} of {kind:?}"),
            Self::PutRules { base, .. } => write!(f, "write security rules with {base}"),
            Self::ReleaseRules { service, .. } => {
                write!(f, "write security rules without {service}")
            }
        }
    }
}
