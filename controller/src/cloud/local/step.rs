//! The local provider's steps: one API call each, idempotent, named by our names rather than by the
//! cloud's ids, so that a plan can speak of what it is about to make.

use std::fmt;

use onehop_core::id::Zone;

use super::model::{BalancerSpec, GroupSpec, ListenerKey, Probe, ProbeProtocol};
use crate::plan::membership::{Reason, TargetKey};
use crate::plan::{Act, Facts, Lane, Resource, Step, deregistered, registered};

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalStep {
    /// Makes a load balancer.
    CreateBalancer(BalancerSpec),
    /// Changes one in place.
    AdjustBalancer(BalancerSpec),
    /// Removes one.
    DeleteBalancer {
        /// Its name.
        name: String,
    },
    /// Makes a group.
    CreateGroup(GroupSpec),
    /// Changes one in place (probe timing, drain time, tags).
    AdjustGroup(GroupSpec),
    /// Removes one.
    DeleteGroup {
        /// Its name.
        name: String,
    },
    /// Registers targets.
    Register {
        /// The group.
        group: String,
        /// The targets, each with the zone of its node, where that is known. One that is registered is told its zone.
        targets: Vec<(TargetKey, Option<Zone>)>,
    },
    /// Deregisters targets.
    Deregister {
        /// The group.
        group: String,
        /// The targets, each with the policy's reason.
        targets: Vec<(TargetKey, Reason)>,
        /// Whether it waits for the registrations of this plan.
        when: When,
    },
    /// Makes a listener or points it at another group.
    PutListener {
        /// The load balancer.
        balancer: String,
        /// Port and protocol.
        listener: ListenerKey,
        /// The group it will point at.
        group: String,
        /// What has to be there first.
        needs: Vec<Resource>,
        /// The group it points at now.
        frees: Option<String>,
    },
    /// Removes a listener.
    DeleteListener {
        /// The load balancer.
        balancer: String,
        /// Port and protocol.
        listener: ListenerKey,
        /// The group it points at now.
        frees: Option<String>,
    },
}

/// When targets are taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// They serve nobody.
    AtOnce,
    /// They still serve: once the registrations of this plan were accepted (ZD-21).
    AfterRegister,
}

/// The load balancer of this name, for the order rules.
pub fn balancer(name: &str) -> Resource {
    Resource::new("balancer", name)
}

/// The group of this name, for the order rules.
pub fn group(name: &str) -> Resource {
    Resource::new("group", name)
}

fn listener(balancer: &str, key: ListenerKey) -> Resource {
    Resource::new("listener", format_args!("{balancer}/{key}"))
}

impl Step for LocalStep {
    fn facts(&self) -> Facts {
        let facts = |lane, act, on| Facts {
            lane,
            act,
            on,
            uses: vec![],
            frees: vec![],
        };
        match self {
            Self::CreateBalancer(spec) => facts(Lane::Shape, Act::Create, balancer(&spec.name)),
            Self::AdjustBalancer(spec) => facts(Lane::Shape, Act::Adjust, balancer(&spec.name)),
            Self::DeleteBalancer { name } => facts(Lane::Delete, Act::Delete, balancer(name)),
            Self::CreateGroup(spec) => facts(Lane::Shape, Act::Create, group(&spec.name)),
            Self::AdjustGroup(spec) => facts(Lane::Shape, Act::Adjust, group(&spec.name)),
            Self::DeleteGroup { name } => facts(Lane::Delete, Act::Delete, group(name)),
            Self::Register { group: name, .. } => facts(Lane::Members, Act::Fill, group(name)),
            Self::Deregister {
                group: name, when, ..
            } => {
                let act = match when {
                    When::AtOnce => Act::Drop,
                    When::AfterRegister => Act::Empty,
                };
                facts(Lane::Members, act, group(name))
            }
            Self::PutListener {
                balancer,
                listener: key,
                needs,
                frees,
                ..
            } => Facts {
                uses: needs.clone(),
                frees: frees.iter().map(|name| group(name)).collect(),
                ..facts(Lane::Shape, Act::Publish, listener(balancer, *key))
            },
            Self::DeleteListener {
                balancer: name,
                listener: key,
                frees,
            } => Facts {
                uses: vec![balancer(name)],
                frees: frees.iter().map(|name| group(name)).collect(),
                ..facts(Lane::Delete, Act::Delete, listener(name, *key))
            },
        }
    }

    fn verb(&self) -> &'static str {
        match self {
            Self::CreateBalancer(_) => "create-loadbalancer",
            Self::AdjustBalancer(_) => "update-loadbalancer",
            Self::DeleteBalancer { .. } => "delete-loadbalancer",
            Self::CreateGroup(_) => "create-group",
            Self::AdjustGroup(_) => "update-group",
            Self::DeleteGroup { .. } => "delete-group",
            Self::Register { .. } => "register",
            Self::Deregister { .. } => "deregister",
            Self::PutListener { .. } => "put-listener",
            Self::DeleteListener { .. } => "delete-listener",
        }
    }

    fn event(&self) -> Option<(&'static str, String)> {
        match self {
            Self::Register { group, targets } => Some(registered(targets.len(), group)),
            Self::Deregister { group, targets, .. } => Some(deregistered(targets.len(), group)),
            Self::PutListener {
                listener,
                group,
                frees: Some(old),
                ..
            } => {
                let message = format!("Listener {listener} now sends to {group} instead of {old}");
                Some(("UpdatedLoadBalancer", message))
            }
            _ => None,
        }
    }
}

impl fmt::Display for LocalStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = self.verb();
        match self {
            Self::CreateBalancer(spec) | Self::AdjustBalancer(spec) => {
                write!(f, "{verb} {} addresses={:?}", spec.name, spec.addresses)?;
                let mut key = spec.sharing_key.iter();
                key.try_for_each(|key| write!(f, " shared by {key}"))
            }
            Self::CreateGroup(spec) | Self::AdjustGroup(spec) => {
                write!(f, "{verb} {} {} {}", spec.name, spec.protocol, spec.mode)?;
                match &spec.probe {
                    Some(probe) => write!(f, " probe={probe}")?,
                    None => f.write_str(" unprobed")?,
                }
                match spec.tags.get(super::names::RETIRED) {
                    Some(since) => write!(f, " retired={since}"),
                    None => Ok(()),
                }
            }
            Self::DeleteBalancer { name } | Self::DeleteGroup { name } => {
                write!(f, "{verb} {name}")
            }
            Self::Register { group, targets } => {
                write!(f, "{verb} {group}")?;
                targets.iter().try_for_each(|(key, zone)| match zone {
                    Some(zone) => write!(f, " {key}@{zone}"),
                    None => write!(f, " {key}"),
                })
            }
            Self::Deregister { group, targets, .. } => {
                write!(f, "{verb} {group}")?;
                targets
                    .iter()
                    .try_for_each(|(key, reason)| write!(f, " {key}={reason:?}"))
            }
            Self::PutListener {
                balancer,
                listener,
                group,
                frees,
                ..
            } => {
                write!(f, "{verb} {balancer} {listener} -> {group}")?;
                frees.iter().try_for_each(|old| write!(f, " (was {old})"))
            }
            Self::DeleteListener {
                balancer, listener, ..
            } => {
                write!(f, "{verb} {balancer} {listener}")
            }
        }
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.protocol {
            ProbeProtocol::Tcp => "tcp",
            ProbeProtocol::Http => "http",
        })?;
        match self.port {
            Some(port) => write!(f, ":{port}")?,
            None => f.write_str(":traffic")?,
        }
        f.write_str(self.path.as_deref().unwrap_or_default())
    }
}
