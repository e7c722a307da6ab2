//! When two Services may use one address (C-29, C-30). Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use onehop_core::crd::LoadBalancerSpec;
use onehop_core::id::Protocol;
use onehop_core::service::{ServiceSpec, TrafficPolicy};

use super::Holder;
use crate::cloud::local::annotations::SHARING_NAMESPACES;

/// A protocol and a port on an address; TCP and UDP on one number are two.
pub(super) type Port = (Protocol, u16);

/// A word by which Services share an address; it means the same only among those that look equally far.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharingKey {
    /// The word.
    pub name: String,
    /// How far it reaches.
    pub scope: Scope,
}

/// How far a sharing key reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Within the Service's namespace.
    Namespace,
    /// Also to other namespaces, where both sides agree (C-30).
    Across,
}

impl SharingKey {
    /// As the cloud is told: keys of two namespaces are two, unless they reach across.
    pub fn in_cloud(&self, namespace: &str) -> String {
        match self.scope {
            Scope::Namespace => format!("{namespace}/{}", self.name),
            Scope::Across => format!("*/{}", self.name),
        }
    }
}

/// With whom a Service agrees to share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Partners {
    /// Services of its own namespace.
    #[default]
    Own,
    /// Also those of these namespaces.
    Named(BTreeSet<String>),
    /// Those of all namespaces.
    Any,
}

impl Partners {
    /// Reads a list of namespaces with commas, or `*`. Empty: none but the own.
    pub fn parse(text: &str) -> Self {
        let names = text
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty());
        let names: BTreeSet<String> = names.map(str::to_owned).collect();
        if names.is_empty() {
            Self::Own
        } else if names.contains("*") {
            Self::Any
        } else {
            Self::Named(names)
        }
    }

    fn accept(&self, namespace: &str) -> bool {
        match self {
            Self::Own => false,
            Self::Named(names) => names.contains(namespace),
            Self::Any => true,
        }
    }
}

/// What a Service shows to those who would use its address too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// The sharing key; without one an address is its own.
    pub key: Option<SharingKey>,
    /// With whom it agrees to share by that key.
    pub partners: Partners,
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
    pub fn of(
        service: &ServiceSpec,
        spec: &LoadBalancerSpec,
        (key, partners): (Option<SharingKey>, Partners),
    ) -> Self {
        Self {
            key,
            partners,
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
    /// Of two with one key, only one shares with other namespaces too.
    Scopes,
    /// They are of two namespaces that do not both agree (C-30).
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
            Self::Scopes => write!(f, "only one of them has {SHARING_NAMESPACES}"),
            Self::Namespaces => write!(
                f,
                "they are of two namespaces, and not both name the other's in {SHARING_NAMESPACES}"
            ),
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
    pub(super) wished_key: Option<&'a SharingKey>,
}

/// Whether one that has just come to the address or has been there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coming {
    New,
    Staying,
}

/// Whether two of two namespaces agree to share.
pub(super) fn agree((me, mine): (&Holder, &Terms), (other, theirs): (&Holder, &Terms)) -> bool {
    let accepts = |terms: &Terms, whom: &Holder| terms.partners.accept(&whom.service.namespace);
    accepts(mine, other) && accepts(theirs, me)
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
    let apart = me.service.namespace != other.holder.service.namespace;
    let (Some(key), agreed) = (&mine.key, mine.key == theirs.key || wished) else {
        return Some(Clash::Keys);
    };
    if !agreed {
        let one_word = theirs.key.as_ref().is_some_and(|k| k.name == key.name);
        return Some(match (one_word, apart) {
            (true, true) => Clash::Namespaces,
            (true, false) => Clash::Scopes,
            (false, _) => Clash::Keys,
        });
    }
    if apart && !agree((me, mine), (other.holder, theirs)) {
        return Some(Clash::Namespaces);
    }
    let live = theirs
        .ports
        .iter()
        .chain(other.before.iter().flat_map(|t| &t.ports));
    if let Some(port) = live.copied().filter(|port| mine.ports.contains(port)).min() {
        return Some(Clash::Port(port));
    }
    // Pods of two namespaces are never the same ones.
    let local = |terms: &Terms| terms.backends != Backends::Any;
    if mine.backends != theirs.backends || (apart && local(mine)) {
        return Some(Clash::Backends);
    }
    // The cloud compares keys when an address is taken.
    let key_on_its_way = other.before.is_some_and(|before| before.key != theirs.key);
    (coming == Coming::New && key_on_its_way).then_some(Clash::Changing)
}
