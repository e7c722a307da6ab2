//! One guarded key to elements (S-410 to S-414). Pure.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use ipnet::IpNet;
use onehop_core::crd::{FlowSources, TargetHealth, TargetState};
use onehop_core::endpoint::Endpoint;
use onehop_core::id::{Cidr, Frontend, IpFamily, Protocol};
use onehop_core::time::Time;

use super::Cluster;
use super::choice::{self, Standing};
use super::health;
use super::listing::Listing;
use super::pods::Pods;
use crate::health::pods::Answers;
use crate::table::element::{
    ClassKind, Data, ElementKey, Elements, Key, LOCAL_SCOPE, MAX_SCOPES, SetId, Verdict,
};

/// What comes of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compiled {
    /// Address, protocol and port of the target.
    pub key: Frontend,
    /// What the kernel shall hold for it.
    pub elements: Elements,
    /// When it ends by itself; none: there is no guard.
    pub ends: Option<Time>,
    /// The pod is gone: half-open flows to it, and UDP flows that it answered, are to be deleted (ZD-45).
    pub gone: bool,
    /// Who serves in its place.
    pub others: BTreeSet<SocketAddr>,
    /// What the agent answers for it, once the elements are in the kernel; none: nothing new is known of that.
    pub answers: Option<Answers>,
}

impl Compiled {
    /// No guard.
    pub fn nothing(key: Frontend) -> Self {
        Self {
            key,
            elements: Elements::new(),
            ends: None,
            gone: false,
            others: BTreeSet::new(),
            answers: None,
        }
    }
}

/// Where flows come from.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Sources {
    /// From everywhere that is not inside the cluster.
    Outside,
    /// From these ranges, which are disjoint.
    Ranges(Vec<IpNet>),
}

/// A target on its way out.
struct Part {
    from: Sources,
    endpoints: Vec<Endpoint>,
    until: Time,
}

/// Flows that cannot be told apart, and who takes them (ZD-56).
struct Group<'a> {
    from: Sources,
    /// Endpoints common to all Services of the group.
    ready: Vec<&'a Endpoint>,
    /// One of the Services has no endpoint of its own.
    empty: bool,
    /// More than one Service.
    shared: bool,
    until: Time,
}

/// When the timed elements end, the last of them.
pub(super) fn end_of(elements: &Elements) -> Option<Time> {
    let ends = elements.values().filter_map(|data| match data {
        Some(Data::Timed(_, until) | Data::Until(until)) => Some(*until),
        _ => None,
    });
    ends.max()
}

/// Compiles a key. `bound`: until when an earlier process has guarded it.
pub(super) fn key(
    key: Frontend,
    listing: &mut Listing,
    pods: &Pods,
    cluster: &impl Cluster,
    (now, bound): (Time, Option<Time>),
) -> Compiled {
    let inside = listing.inside();
    let mut compiled = Compiled::nothing(key);
    let (mut parts, mut gone) = (Vec::new(), false);
    let mut answers = Answers::new();
    for (identity, listed) in listing.entries_mut(&key) {
        let endpoints = choice::endpoints(cluster, &key, identity);
        let standing = choice::standing(&key, identity, listed, pods, &endpoints);
        if standing == Standing::Replaced || listed.target.state == TargetState::Released {
            continue;
        }
        let until = if standing == Standing::Lives {
            listed.until = None;
            None
        } else {
            let end = bound.unwrap_or(now + listed.bound);
            Some(*listed.until.get_or_insert(end))
        };
        if listed.target.health == TargetHealth::Agent {
            let elements = health::elements(&key, &listed.target, cluster);
            compiled.elements.extend(elements);
            let others = !choice::ready(&key, &endpoints, pods, cluster.here()).is_empty();
            let answer = health::answer(&health::Facts {
                standing,
                state: listed.target.state,
                guarded: until.is_some_and(|end| end > now),
                own: endpoints.iter().find(|e| e.address == key.address),
                waits: pods.waits(&identity.pod),
                others,
                fate: cluster.fate(),
            });
            // One path, two entries: a port that moves, or a pod that follows another at its address.
            *answers.entry(health::path(identity)).or_default() |= answer;
        }
        if key.protocol == Protocol::Tcp {
            compiled.put(SetId::Targets, Key::Frontend(key), None);
        }
        let Some(until) = until else { continue };
        let from = sources(
            &key,
            listed.target.flows(),
            listed.target.allowed.as_deref(),
            &inside,
        );
        if until <= now || (from == Sources::Outside && !listed.outside_known) {
            continue;
        }
        gone |= standing == Standing::Gone;
        parts.push(Part {
            from,
            endpoints,
            until,
        });
    }
    let groups = groups(&key, &parts, pods, cluster);
    for (scope, group) in (0..MAX_SCOPES).zip(&groups) {
        Writer {
            key,
            scope,
            gone,
            out: &mut compiled,
        }
        .group(group, cluster);
    }
    compiled.gone = gone && !groups.is_empty();
    compiled.answers = Some(answers);
    compiled
}

/// Where a target's flows come from, in the key's family. With a list of clients that are let in only those are
/// steered (S-413).
fn sources(
    key: &Frontend,
    flows: FlowSources<'_>,
    allowed: Option<&[Cidr]>,
    inside: &[IpNet],
) -> Sources {
    let family = IpFamily::of(key.address);
    let of_family = |cidrs: &[Cidr]| -> Vec<IpNet> {
        let of_family = cidrs.iter().filter(|cidr| cidr.family() == family);
        of_family.map(|cidr| cidr.net()).collect()
    };
    let ranges = match (flows, allowed) {
        (FlowSources::AnyOutside, None) => return Sources::Outside,
        (FlowSources::Of(sources), _) => of_family(sources),
        (FlowSources::AnyOutside, Some(allowed)) => {
            let allowed = of_family(allowed).into_iter();
            allowed.flat_map(|net| without(net, inside)).collect()
        }
    };
    Sources::Ranges(IpNet::aggregate(&ranges))
}

/// A range without what others cover of it, as ranges.
fn without(net: IpNet, taken: &[IpNet]) -> Vec<IpNet> {
    if taken.iter().any(|other| other.contains(&net)) {
        return Vec::new();
    }
    if !taken.iter().any(|other| net.contains(other)) {
        return vec![net];
    }
    let halves = net.subnets(net.prefix_len() + 1).into_iter().flatten();
    halves.flat_map(|half| without(half, taken)).collect()
}

fn groups<'a>(
    key: &Frontend,
    parts: &'a [Part],
    pods: &Pods,
    cluster: &impl Cluster,
) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for part in parts {
        let ready = choice::ready(key, &part.endpoints, pods, cluster.here());
        let mut group = Group {
            from: part.from.clone(),
            empty: ready.is_empty(),
            shared: false,
            ready,
            until: part.until,
        };
        // What overlaps becomes one, and may then overlap with yet another.
        while let Some(at) = groups.iter().position(|g| overlap(&g.from, &group.from)) {
            let other = groups.swap_remove(at);
            group = merged(other, group);
        }
        groups.push(group);
    }
    groups
}

fn overlap(a: &Sources, b: &Sources) -> bool {
    match (a, b) {
        (Sources::Outside, Sources::Outside) => true,
        // Known sources are looked up first.
        (Sources::Outside, Sources::Ranges(_)) | (Sources::Ranges(_), Sources::Outside) => false,
        (Sources::Ranges(a), Sources::Ranges(b)) => a
            .iter()
            .any(|a| b.iter().any(|b| a.contains(b) || b.contains(a))),
    }
}

fn merged<'a>(a: Group<'a>, b: Group<'a>) -> Group<'a> {
    let from = match (a.from, b.from) {
        (Sources::Ranges(a), Sources::Ranges(b)) => {
            Sources::Ranges(IpNet::aggregate(&[a, b].concat()))
        }
        _ => Sources::Outside,
    };
    let common = |e: &&Endpoint| {
        let mut others = b.ready.iter();
        others.any(|o| (o.address, o.port) == (e.address, e.port))
    };
    Group {
        from,
        ready: a.ready.into_iter().filter(common).collect(),
        empty: a.empty || b.empty,
        shared: true,
        until: a.until.max(b.until),
    }
}

struct Writer<'a> {
    key: Frontend,
    scope: u8,
    gone: bool,
    out: &'a mut Compiled,
}

impl Writer<'_> {
    fn group(&mut self, group: &Group<'_>, cluster: &impl Cluster) {
        let others = choice::choose(&group.ready, cluster.here());
        let until = group.until;
        match others {
            Some(others) => {
                let count = self.slots(&others.list);
                let kind = if others.here {
                    ClassKind::Gl(self.scope)
                } else {
                    ClassKind::Gr(self.scope)
                };
                self.verdicts(
                    (SetId::GuardFrom, SetId::GuardAny),
                    &group.from,
                    Data::Timed(Verdict::Class(kind, count), until),
                );
                if self.gone {
                    self.dead(&group.from, Verdict::DeadSteered, until);
                }
                let serving = group
                    .ready
                    .iter()
                    .map(|e| SocketAddr::new(e.address, e.port));
                self.out.others.extend(serving);
            }
            // Endpoints that are not common to all: nothing is steered (ZD-56).
            None if group.shared && !group.empty => return,
            // Nobody serves: refused at once (ZD-55).
            None if self.gone => self.dead(&group.from, Verdict::DeadRefused, until),
            // The pod itself goes on for as long as it can (ZD-42).
            None => {}
        }
        self.out.ends = Some(self.out.ends.map_or(until, |end| end.max(until)));
    }

    fn slots(&mut self, list: &[SocketAddr]) -> u16 {
        let first = u32::from(self.scope) * LOCAL_SCOPE;
        for (slot, target) in (first..).zip(list) {
            let key = Key::FrontendSlot(self.key, slot);
            self.put(SetId::GuardEndpoints, key, Data::Target(*target));
        }
        u16::try_from(list.len()).unwrap_or(u16::MAX)
    }

    fn dead(&mut self, from: &Sources, verdict: Verdict, until: Time) {
        self.verdicts(
            (SetId::DeadFrom, SetId::DeadAny),
            from,
            Data::Timed(verdict, until),
        );
        self.put(SetId::DeadKeys, Key::Frontend(self.key), Data::Until(until));
    }

    fn verdicts(&mut self, (of, any): (SetId, SetId), from: &Sources, data: Data) {
        match from {
            Sources::Ranges(ranges) => {
                for range in ranges {
                    self.put(of, Key::Range(self.key, *range), data);
                }
            }
            Sources::Outside => self.put(any, Key::Frontend(self.key), data),
        }
    }

    fn put(&mut self, set: SetId, key: Key, data: Data) {
        self.out.put(set, key, Some(data));
    }
}

impl Compiled {
    fn put(&mut self, set: SetId, key: Key, data: Option<Data>) {
        let element: ElementKey = (IpFamily::of(self.key.address), set, key);
        self.elements.insert(element, data);
    }
}
