//! Who takes new flows in place of a target (ZD-41), and whether anybody has to (ZD-48). Pure.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;

use onehop_core::endpoint::Endpoint;
use onehop_core::id::{Frontend, IpFamily, NodeName};

use super::Cluster;
use super::listing::{Identity, Listed};
use super::pods::{Life, Pods};

/// Most targets of one guard's list, so that class chains stay few (S-412).
const MOST: usize = 16;

/// How a target stands, by the agent's own evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    /// It serves, or only its readiness is in doubt.
    Lives,
    /// It is on its way out.
    Leaves,
    /// Its processes are gone.
    Gone,
    /// Its address is another pod's now.
    Replaced,
}

/// Others that serve, on one side of the node's border.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Others {
    pub(super) here: bool,
    pub(super) list: Vec<SocketAddr>,
}

/// How a target stands: pod and endpoint, whichever says more (K-23, ZD-48).
pub(super) fn standing(
    key: &Frontend,
    identity: &Identity,
    listed: &mut Listed,
    pods: &Pods,
    endpoints: &[Endpoint],
) -> Standing {
    if pods
        .owner(key.address)
        .is_some_and(|uid| *uid != identity.pod)
    {
        return Standing::Replaced;
    }
    match pods.life(&identity.pod) {
        None | Some(Life::Ended) => return Standing::Gone,
        Some(Life::Deleted) => return Standing::Leaves,
        Some(Life::Lives) => {}
    }
    let own = endpoints.iter().find(|e| e.address == key.address);
    match own {
        Some(endpoint) => {
            listed.seen = true;
            if endpoint.conditions.terminating {
                Standing::Leaves
            } else {
                Standing::Lives
            }
        }
        // One that was never seen may be on its way here.
        None if listed.seen => Standing::Leaves,
        None => Standing::Lives,
    }
}

/// Every endpoint that takes new flows in place of `key`. Those that really serve go first: a Service that publishes
/// not-ready addresses calls pods ready which are not.
pub(super) fn ready<'a>(
    key: &Frontend,
    endpoints: &'a [Endpoint],
    pods: &Pods,
    here: &NodeName,
) -> Vec<&'a Endpoint> {
    let takes = |e: &&Endpoint| {
        let known = e.pod.as_ref().and_then(|pod| pods.life(&pod.uid));
        // What runs here is known first hand; the slices follow later.
        let alive = match known {
            Some(life) => life == Life::Lives,
            None => e.pod.is_none() || !e.is_local(here),
        };
        e.address != key.address && e.conditions.ready && !e.conditions.terminating && alive
    };
    let ready: Vec<&Endpoint> = endpoints.iter().filter(takes).collect();
    let serving: Vec<&Endpoint> = ready
        .iter()
        .copied()
        .filter(|e| e.conditions.serving)
        .collect();
    if serving.is_empty() { ready } else { serving }
}

/// Those on this node if there are any, else those on others; not too many (ZD-41, S-412).
pub(super) fn choose(endpoints: &[&Endpoint], here: &NodeName) -> Option<Others> {
    let addresses = |local: bool| -> BTreeSet<SocketAddr> {
        let of = endpoints.iter().filter(|e| e.is_local(here) == local);
        of.map(|e| SocketAddr::new(e.address, e.port)).collect()
    };
    let (near, far) = (addresses(true), addresses(false));
    let here_too = !near.is_empty();
    let all = if here_too { near } else { far };
    if all.is_empty() {
        return None;
    }
    Some(Others {
        here: here_too,
        list: some(all, here),
    })
}

/// A subset that stays the same while the endpoints do, and differs between nodes.
fn some(all: BTreeSet<SocketAddr>, here: &NodeName) -> Vec<SocketAddr> {
    let mut list: Vec<SocketAddr> = all.into_iter().collect();
    if list.len() > MOST {
        let weight = |target: &SocketAddr| {
            let mut hasher = DefaultHasher::new();
            (here.as_str(), target).hash(&mut hasher);
            hasher.finish()
        };
        list.sort_by_key(weight);
        list.truncate(MOST);
        list.sort_unstable();
    }
    list
}

/// The endpoints of the target's Service port, in the target's family.
pub(super) fn endpoints(
    cluster: &impl Cluster,
    key: &Frontend,
    identity: &Identity,
) -> Vec<Endpoint> {
    let family = IpFamily::of(key.address);
    cluster.endpoints(&identity.service.key(), &identity.port, family)
}
