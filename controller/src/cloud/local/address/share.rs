//! When two Services may use one address (C-29, C-30). Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use onehop_core::crd::LoadBalancerSpec;
use onehop_core::id::Protocol;
use onehop_core::service::{ServiceSpec, TrafficPolicy};

use super::Holder;

/// A protocol and a port on an address; TCP and UDP on one number are two.
pub(super) type Port = (Protocol, u16);

/// What a Service shows to those who would use its address too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// The sharing key; without one an address is its own.
    pub key: Option<String>,
    /// What it listens on.
    pub ports: BTreeSet<Port>,
    /// Which endpoints a node may use.
    pub backends: Backends,
}

/// Which endpoints a node may use for traffic to the address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Backends {
    /// Any (`externalTrafficPolicy: Cluster`).
    #[default]
    Any,
    /// Those on the node, of the pods with these labels (`Local`).
    Local(BTreeMap<String, String>),
}

impl Terms {
    /// The terms of a Service as it is carried out: ports and key are those of the resolved spec.
    pub fn of(service: &ServiceSpec, spec: &LoadBalancerSpec, key: Option<&str>) -> Self {
        Self {
            key: key.map(str::to_owned),
            ports: spec.ports.iter().map(|p| (p.protocol, p.port)).collect(),
            backends: match service.external_policy {
                TrafficPolicy::Cluster => Backends::Any,
                TrafficPolicy::Local => Backends::Local(service.selector.clone()),
            },
        }
    }
}

/// Why two Services may not use one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clash {
    /// They did not both ask to share, by one key.
    Keys,
    /// They are of two namespaces (C-30).
    Namespaces,
    /// Both listen there.
    Port(Port),
    /// With policy Local, a node that one may use is none of the other's.
    Backends,
    /// The other's own change is still on its way to the cloud.
    Changing,
}

impl fmt::Display for Clash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keys => f.write_str("they have no sharing key in common"),
            Self::Namespaces => {
                f.write_str("they are of two namespaces, and sharing between namespaces is off")
            }
            Self::Port((protocol, port)) => write!(f, "both use {protocol}/{port}"),
            Self::Backends => f.write_str(
                "with externalTrafficPolicy Local both must have it, and the same pod selector",
            ),
            Self::Changing => f.write_str("the other one is just being changed"),
        }
    }
}

/// What the other one of a pair shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Neighbour<'a> {
    /// Who it is.
    pub(super) holder: &'a Holder,
    /// Its terms.
    pub(super) terms: &'a Terms,
    /// Its terms before a change that the cloud has yet to take.
    pub(super) before: Option<&'a Terms>,
    /// The key it asked for and was refused because of others on the address.
    pub(super) wished_key: Option<&'a String>,
}

/// Whether one that has just come to the address or has been there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coming {
    New,
    Staying,
}

/// What keeps `mine` off an address that the other one uses.
pub(super) fn clash(
    me: &Holder,
    mine: &Terms,
    coming: Coming,
    other: Neighbour<'_>,
) -> Option<Clash> {
    let theirs = other.terms;
    // A key that both want to change to is agreed on: else neither could ever begin (C-12).
    let wished = coming == Coming::Staying && mine.key.as_ref() == other.wished_key;
    if mine.key.is_none() || !(mine.key == theirs.key || wished) {
        return Some(Clash::Keys);
    }
    if me.service.namespace != other.holder.service.namespace {
        return Some(Clash::Namespaces);
    }
    let live = theirs
        .ports
        .iter()
        .chain(other.before.iter().flat_map(|t| &t.ports));
    if let Some(port) = live.copied().filter(|port| mine.ports.contains(port)).min() {
        return Some(Clash::Port(port));
    }
    if mine.backends != theirs.backends {
        return Some(Clash::Backends);
    }
    // The cloud compares keys when an address is taken.
    let key_on_its_way = other.before.is_some_and(|before| before.key != theirs.key);
    (coming == Coming::New && key_on_its_way).then_some(Clash::Changing)
}
