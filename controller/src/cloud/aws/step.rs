//! The AWS provider's steps: one API call each, idempotent, named by our names rather than by ARNs, so
//! that a plan can speak of what it is about to make.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::model::{Attributes, Check, GroupProtocol, Rule, TargetId};
use super::names::Tags;
use super::stack::{BalancerSpec, GroupRef, GroupSpec, ListenerSpec, Mapping, SecuritySpec};
use crate::plan::membership::{Guard, Reason};
use crate::plan::{Act, Facts, Lane, Resource, Step, deregistered, registered};

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AwsStep {
    /// Makes a security group.
    CreateSecurity(SecuritySpec),
    /// Adds rules to one.
    Authorize {
        /// Its name.
        group: String,
        /// Its id, where it is not ours.
        id: Option<String>,
        /// The rules.
        rules: Vec<Rule>,
    },
    /// Takes rules of ours from one.
    Revoke {
        /// Its name.
        group: String,
        /// Its id, where it is not ours.
        id: Option<String>,
        /// The rules.
        rules: Vec<Rule>,
    },
    /// Sets tags of a security group that was made by another program.
    TagSecurity {
        /// Its id.
        id: String,
        /// The tags.
        tags: Tags,
    },
    /// Removes tags of ours from one.
    UntagSecurity {
        /// Its id.
        id: String,
        /// Their keys.
        keys: Vec<String>,
    },
    /// Removes one.
    DeleteSecurity {
        /// Its name.
        name: String,
    },
    /// Makes a load balancer.
    CreateBalancer(BalancerSpec),
    /// Changes one in place.
    AdjustBalancer {
        /// Its name.
        name: String,
        /// What.
        change: BalancerChange,
    },
    /// Removes one.
    DeleteBalancer {
        /// Its name.
        name: String,
        /// Security groups that it has.
        frees: Vec<String>,
    },
    /// Makes a group.
    CreateGroup(GroupSpec),
    /// Changes one in place.
    AdjustGroup {
        /// Its name.
        name: String,
        /// What.
        change: GroupChange,
    },
    /// Removes one.
    DeleteGroup {
        /// Its name.
        name: String,
    },
    /// Registers targets.
    Register {
        /// The group.
        group: String,
        /// The targets, each with the zone to state.
        targets: Vec<(TargetId, Option<String>)>,
        /// The share, in percent, of the group's wanted targets that take flows: the fewer, the more urgent (AWS-712).
        healthy: u8,
    },
    /// Deregisters targets.
    Deregister {
        /// The group.
        group: String,
        /// The targets, each with the policy's reason.
        targets: Vec<(TargetId, Reason)>,
        /// Whether it waits for the registrations of this plan.
        when: When,
        /// Whether all of them have somebody that stands in for them: then it is not urgent (AWS-712).
        guard: Guard,
    },
    /// Makes a listener.
    CreateListener {
        /// The load balancer.
        balancer: String,
        /// The listener.
        listener: ListenerSpec,
        /// The group that it sends to.
        group: String,
        /// What has to be there first.
        needs: Vec<Resource>,
    },
    /// Changes a listener: protocol, certificates, policy, groups.
    ModifyListener {
        /// The load balancer.
        balancer: String,
        /// The listener.
        listener: ListenerSpec,
        /// Groups with their weights.
        groups: BTreeMap<String, u32>,
        /// What has to be there first.
        needs: Vec<Resource>,
        /// The groups that it sends to no longer.
        frees: BTreeSet<String>,
    },
    /// Sets attributes of a listener.
    SetListenerAttributes {
        /// The load balancer.
        balancer: String,
        /// The listener.
        port: u16,
        /// The attributes.
        attributes: Attributes,
    },
    /// Adds or removes certificates beside the default one.
    Certificates {
        /// The load balancer.
        balancer: String,
        /// The listener.
        port: u16,
        /// Which.
        change: Change,
        /// The certificates.
        certificates: Vec<String>,
    },
    /// Removes a listener.
    DeleteListener {
        /// The load balancer.
        balancer: String,
        /// Its port.
        port: u16,
        /// The groups that it sends to.
        frees: Vec<String>,
    },
}

/// Adding or removing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adding.
    Add,
    /// Removing.
    Remove,
}

/// A change of a load balancer in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BalancerChange {
    /// Attributes.
    Attributes(Attributes),
    /// Security groups, all of them.
    SecurityGroups(Vec<GroupRef>),
    /// Subnets, all of them.
    Subnets(Vec<Mapping>),
    /// Families.
    IpType(super::model::IpType),
    /// Tags to set.
    Tags(Tags),
    /// Keys of tags to remove.
    Untag(Vec<String>),
    /// Tags to set on it and on its listeners: it is ours from then on (AWS-129).
    Adopt(Tags),
    /// Keys of tags to remove from it and from its listeners: it is not ours any more (AWS-130).
    Disown(Vec<String>),
}

/// A change of a group in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupChange {
    /// Attributes.
    Attributes(Attributes),
    /// Numbers of the check.
    Check(Check),
    /// Tags to set.
    Tags(Tags),
    /// Keys of tags to remove.
    Untag(Vec<String>),
}

/// When targets are taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// They serve nobody.
    AtOnce,
    /// They still serve: once the registrations of this plan were accepted (AWS-610).
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

/// The security group of this name, for the order rules.
pub fn security(name: &str) -> Resource {
    Resource::new("security", name)
}

fn listener(balancer: &str, port: u16) -> Resource {
    Resource::new("listener", format_args!("{balancer}/{port}"))
}

/// What has to be there for a load balancer with these groups.
fn made_groups(groups: &[GroupRef]) -> Vec<Resource> {
    let made = groups.iter().filter_map(|group| match group {
        GroupRef::Managed(name) | GroupRef::Backend(name) => Some(security(name)),
        GroupRef::Given(_) => None,
    });
    made.collect()
}

impl AwsStep {
    fn lane(&self) -> Lane {
        match self {
            Self::Register { .. } | Self::Deregister { .. } => Lane::Members,
            Self::DeleteSecurity { .. }
            | Self::DeleteBalancer { .. }
            | Self::DeleteGroup { .. }
            | Self::DeleteListener { .. } => Lane::Delete,
            _ => Lane::Shape,
        }
    }

    fn subject(&self) -> (Act, Resource) {
        match self {
            Self::CreateSecurity(spec) => (Act::Create, security(&spec.name)),
            Self::Authorize { group, .. } | Self::Revoke { group, .. } => {
                (Act::Adjust, security(group))
            }
            Self::DeleteSecurity { name } => (Act::Delete, security(name)),
            Self::TagSecurity { id, .. } | Self::UntagSecurity { id, .. } => {
                (Act::Adjust, security(id))
            }
            Self::CreateBalancer(spec) => (Act::Create, balancer(&spec.name)),
            // Each kind of change fails alone (AWS-602).
            Self::AdjustBalancer { name, change } => {
                let (turn, word) = change.part();
                (Act::Adjust, balancer(name).part(turn, word))
            }
            Self::DeleteBalancer { name, .. } => (Act::Delete, balancer(name)),
            Self::CreateGroup(spec) => (Act::Create, group(&spec.name)),
            Self::AdjustGroup { name, change } => {
                let (turn, word) = change.part();
                (Act::Adjust, group(name).part(turn, word))
            }
            Self::DeleteGroup { name } => (Act::Delete, group(name)),
            Self::Register { group: name, .. } => (Act::Fill, group(name)),
            Self::Deregister {
                group: name, when, ..
            } => match when {
                When::AtOnce => (Act::Drop, group(name)),
                When::AfterRegister => (Act::Empty, group(name)),
            },
            Self::CreateListener {
                balancer,
                listener: spec,
                ..
            }
            | Self::ModifyListener {
                balancer,
                listener: spec,
                ..
            } => (Act::Publish, listener(balancer, spec.port)),
            Self::SetListenerAttributes { balancer, port, .. } => {
                (Act::Adjust, listener(balancer, *port))
            }
            Self::Certificates { balancer, port, .. } => (Act::Adjust, listener(balancer, *port)),
            Self::DeleteListener { balancer, port, .. } => (Act::Delete, listener(balancer, *port)),
        }
    }
}

impl Step for AwsStep {
    fn facts(&self) -> Facts {
        let (act, on) = self.subject();
        let (uses, frees) = match self {
            Self::CreateBalancer(spec) => (made_groups(&spec.security_groups), vec![]),
            Self::DeleteBalancer { frees, .. } => {
                (vec![], frees.iter().map(|name| security(name)).collect())
            }
            Self::CreateListener { needs, .. } => (needs.clone(), vec![]),
            Self::ModifyListener { needs, frees, .. } => (
                needs.clone(),
                frees.iter().map(|name| group(name)).collect(),
            ),
            Self::DeleteListener {
                balancer: name,
                frees,
                ..
            } => {
                let frees = frees.iter().map(|name| group(name)).collect();
                (vec![balancer(name)], frees)
            }
            _ => (vec![], vec![]),
        };
        Facts {
            lane: self.lane(),
            act,
            on,
            uses,
            frees,
        }
    }

    fn verb(&self) -> &'static str {
        match self {
            Self::CreateSecurity(_) => "create-security-group",
            Self::Authorize { .. } => "authorize",
            Self::Revoke { .. } => "revoke",
            Self::TagSecurity { .. } => "create-tags",
            Self::UntagSecurity { .. } => "delete-tags",
            Self::DeleteSecurity { .. } => "delete-security-group",
            Self::CreateBalancer(_) => "create-load-balancer",
            Self::AdjustBalancer { change, .. } => change.verb(),
            Self::DeleteBalancer { .. } => "delete-load-balancer",
            Self::CreateGroup(_) => "create-target-group",
            Self::AdjustGroup { change, .. } => change.verb(),
            Self::DeleteGroup { .. } => "delete-target-group",
            Self::Register { .. } => "register",
            Self::Deregister { .. } => "deregister",
            Self::CreateListener { .. } => "create-listener",
            Self::ModifyListener { .. } => "modify-listener",
            Self::SetListenerAttributes { .. } => "modify-listener-attributes",
            Self::Certificates { .. } => "change-certificates",
            Self::DeleteListener { .. } => "delete-listener",
        }
    }

    fn event(&self) -> Option<(&'static str, String)> {
        match self {
            Self::Register { group, targets, .. } => Some(registered(targets.len(), group)),
            Self::Deregister { group, targets, .. } => Some(deregistered(targets.len(), group)),
            Self::ModifyListener {
                listener,
                groups,
                frees,
                ..
            } if !frees.is_empty() => {
                let names: Vec<_> = groups.keys().map(String::as_str).collect();
                let message = format!(
                    "Listener {} now sends to {}",
                    listener.port,
                    names.join(", ")
                );
                Some(("UpdatedLoadBalancer", message))
            }
            _ => None,
        }
    }
}

impl BalancerChange {
    /// The part that it changes, and its turn (AWS-602).
    const fn part(&self) -> (u8, &'static str) {
        match self {
            Self::Tags(_) | Self::Untag(_) | Self::Adopt(_) | Self::Disown(_) => (0, "tags"),
            Self::SecurityGroups(_) => (1, "security-groups"),
            Self::Subnets(_) => (2, "subnets"),
            Self::IpType(_) => (3, "ip-type"),
            Self::Attributes(_) => (4, "attributes"),
        }
    }

    const fn verb(&self) -> &'static str {
        match self {
            Self::Attributes(_) => "modify-load-balancer-attributes",
            Self::SecurityGroups(_) => "set-security-groups",
            Self::Subnets(_) => "set-subnets",
            Self::IpType(_) => "set-ip-address-type",
            Self::Tags(_) | Self::Adopt(_) => "add-tags",
            Self::Untag(_) | Self::Disown(_) => "remove-tags",
        }
    }
}

impl GroupChange {
    const fn part(&self) -> (u8, &'static str) {
        match self {
            Self::Tags(_) | Self::Untag(_) => (0, "tags"),
            Self::Check(_) => (1, "check"),
            Self::Attributes(_) => (2, "attributes"),
        }
    }

    const fn verb(&self) -> &'static str {
        match self {
            Self::Attributes(_) => "modify-target-group-attributes",
            Self::Check(_) => "modify-target-group",
            Self::Tags(_) => "add-tags",
            Self::Untag(_) => "remove-tags",
        }
    }
}

impl fmt::Display for AwsStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.verb())?;
        match self {
            Self::CreateSecurity(spec) => write!(f, " {}", spec.name),
            Self::Authorize { group, id, rules } | Self::Revoke { group, id, rules } => {
                write!(f, " {}", id.as_ref().unwrap_or(group))?;
                rules.iter().try_for_each(|rule| write!(f, " [{rule}]"))
            }
            Self::CreateBalancer(spec) => {
                write!(
                    f,
                    " {} {} {}",
                    spec.name,
                    super::names::scheme_word(spec.scheme),
                    spec.ip_type
                )?;
                spec.subnets
                    .iter()
                    .try_for_each(|mapping| write!(f, " {}", mapping.subnet))
            }
            Self::AdjustBalancer { name, change } => write!(f, " {name} {change}"),
            Self::AdjustGroup { name, change } => write!(f, " {name} {change}"),
            Self::CreateGroup(spec) => {
                let check = &spec.check;
                write!(
                    f,
                    " {} {} {}:{} check {}",
                    spec.name, spec.target, spec.protocol, spec.port, check.protocol
                )?;
                match check.port {
                    Some(port) => write!(f, ":{port}")?,
                    None => f.write_str(":traffic")?,
                }
                f.write_str(check.path.as_deref().unwrap_or_default())
            }
            Self::TagSecurity { id, tags } => write!(f, " {id}{}", Pairs(tags)),
            Self::UntagSecurity { id, keys } => write!(f, " {id} {}", keys.join(" ")),
            Self::DeleteSecurity { name }
            | Self::DeleteBalancer { name, .. }
            | Self::DeleteGroup { name } => write!(f, " {name}"),
            Self::Register { group, targets, .. } => {
                write!(f, " {group}")?;
                targets.iter().try_for_each(|(target, zone)| match zone {
                    Some(zone) => write!(f, " {target}@{zone}"),
                    None => write!(f, " {target}"),
                })
            }
            Self::Deregister { group, targets, .. } => {
                write!(f, " {group}")?;
                targets
                    .iter()
                    .try_for_each(|(target, reason)| write!(f, " {target}={reason:?}"))
            }
            Self::CreateListener {
                balancer,
                listener,
                group,
                ..
            } => {
                write!(
                    f,
                    " {balancer} {}:{} -> {group}",
                    listener.protocol, listener.port
                )
            }
            Self::ModifyListener {
                balancer,
                listener,
                groups,
                ..
            } => {
                write!(f, " {balancer} {}:{} ->", listener.protocol, listener.port)?;
                groups
                    .iter()
                    .try_for_each(|(group, weight)| write!(f, " {group}*{weight}"))
            }
            Self::SetListenerAttributes {
                balancer,
                port,
                attributes,
            } => {
                write!(f, " {balancer} {port}{}", Pairs(attributes))
            }
            Self::Certificates {
                balancer,
                port,
                change,
                certificates,
            } => {
                write!(
                    f,
                    " {balancer} {port} {change:?} {}",
                    certificates.join(" ")
                )
            }
            Self::DeleteListener { balancer, port, .. } => write!(f, " {balancer} {port}"),
        }
    }
}

impl fmt::Display for BalancerChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attributes(all) | Self::Tags(all) => write!(f, "{}", Pairs(all)),
            Self::Adopt(all) => write!(f, "and its listeners{}", Pairs(all)),
            Self::Disown(keys) => write!(f, "and its listeners {}", keys.join(" ")),
            Self::SecurityGroups(groups) => write!(f, "{groups:?}"),
            Self::Subnets(subnets) => subnets.iter().try_for_each(|m| write!(f, " {}", m.subnet)),
            Self::IpType(ip_type) => write!(f, "{ip_type}"),
            Self::Untag(keys) => f.write_str(&keys.join(" ")),
        }
    }
}

impl fmt::Display for GroupChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attributes(all) | Self::Tags(all) => write!(f, "{}", Pairs(all)),
            Self::Check(check) => write!(
                f,
                "{}/{}/{}/{}",
                check.interval, check.timeout, check.healthy, check.unhealthy
            ),
            Self::Untag(keys) => f.write_str(&keys.join(" ")),
        }
    }
}

struct Pairs<'a>(&'a BTreeMap<String, String>);

impl fmt::Display for Pairs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|(key, value)| write!(f, " {key}={value}"))
    }
}

/// Whether two protocols of listeners can share a forward action: an attached group must fit.
pub const fn may_attach(listener: GroupProtocol, group: GroupProtocol) -> bool {
    use GroupProtocol::{Tcp, TcpUdp, Tls, Udp};
    matches!(
        (listener, group),
        (Tcp, Tcp) | (Udp, Udp) | (TcpUdp, TcpUdp) | (Tls, Tcp | Tls)
    )
}
