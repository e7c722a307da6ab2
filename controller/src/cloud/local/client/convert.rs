//! Between the wire and our model. An object that does not carry our tags as we write them is not
//! ours and is left out.

use std::collections::{BTreeMap, HashSet};

use onehop_core::crd::TargetMode;
use onehop_core::id::{Protocol, ServiceKey, ServiceUid, Zone};

use super::super::model::{
    Balancer, BalancerSpec, BalancerState, Group, GroupSpec, ListenerKey, Probe, ProbeProtocol,
};
use super::super::names::{self, Tags};
use super::wire::{
    GroupBody, GroupView, Health, LbBody, LbView, TargetBody, TargetView, TargetsBody, TargetsView,
};
use crate::plan::Existing;
use crate::plan::membership::{CloudState, TargetKey};

/// The choice of a group whose clients stay with their target.
const STICKY: &str = "addresses";

/// One entry per Service and UID found.
pub(super) fn existing(
    balancers: Vec<LbView>,
    groups: Vec<GroupView>,
) -> Vec<Existing<ServiceKey>> {
    let mut found: BTreeMap<(ServiceKey, ServiceUid), HashSet<std::net::IpAddr>> = BTreeMap::new();
    for view in balancers {
        if let Some(owner) = owner(&view.tags) {
            found.entry(owner).or_default().extend(view.addresses);
        }
    }
    for owner in groups.iter().filter_map(|view| owner(&view.tags)) {
        found.entry(owner).or_default();
    }
    let entry = |((service, uid), addresses): ((ServiceKey, ServiceUid), HashSet<_>)| Existing {
        shard: service.clone(),
        service,
        uid,
        addresses: addresses.into_iter().collect(),
    };
    found.into_iter().map(entry).collect()
}

fn owner(tags: &Tags) -> Option<(ServiceKey, ServiceUid)> {
    let (namespace, name) = tags.get(names::SERVICE)?.split_once('/')?;
    let uid = tags.get(names::SERVICE_UID)?;
    Some((ServiceKey::new(namespace, name), uid.as_str().into()))
}

pub(super) fn balancer(view: LbView) -> Option<Balancer> {
    let (_, uid) = owner(&view.tags)?;
    let listener = |l: super::wire::ListenerView| {
        Some((
            ListenerKey {
                port: l.port,
                protocol: protocol(&l.protocol)?,
            },
            l.group,
        ))
    };
    Some(Balancer {
        id: view.id,
        uid,
        state: match view.state.as_str() {
            "active" => BalancerState::Active,
            "failed" => BalancerState::Failed,
            _ => BalancerState::Provisioning,
        },
        listeners: view.listeners.into_iter().filter_map(listener).collect(),
        spec: BalancerSpec {
            name: view.name,
            tags: view.tags,
            addresses: view.addresses,
            sharing_key: view.sharing_key,
        },
    })
}

pub(super) fn balancer_body(spec: &BalancerSpec) -> LbBody<'_> {
    LbBody {
        name: &spec.name,
        tags: &spec.tags,
        addresses: &spec.addresses,
        preserve_client_ip: true,
        sharing_key: spec.sharing_key.as_deref(),
    }
}

pub(super) fn group(view: GroupView) -> Option<Group> {
    let (_, uid) = owner(&view.tags)?;
    Some(Group {
        id: view.id,
        uid,
        port: names::port_from_tag(view.tags.get(names::PORT)?)?,
        generation: view.tags.get(names::GENERATION)?.parse().ok()?,
        retired: view
            .tags
            .get(names::RETIRED)
            .and_then(|since| since.parse().ok()),
        spec: GroupSpec {
            name: view.name,
            protocol: protocol(&view.protocol)?,
            mode: match view.mode.as_str() {
                "node" => TargetMode::Node,
                "vip" => TargetMode::Vip,
                "pod" => TargetMode::Pod,
                _ => return None,
            },
            probe: view.health.map(probe),
            drain_seconds: whole(view.drain_seconds),
            sticky: view.choice.as_deref() == Some(STICKY),
            tags: view.tags,
        },
        targets: BTreeMap::new(),
        zones: BTreeMap::new(),
    })
}

/// Gives groups of one name, of which all but one are there by mistake, names of their own: steps speak of names. The
/// one that a listener uses keeps it, else the oldest (C-124).
pub(super) fn told_apart(mut groups: Vec<Group>, balancers: &[Balancer]) -> Vec<Group> {
    let used = |group: &Group| {
        let mut listeners = balancers.iter().flat_map(|b| b.listeners.values());
        listeners.any(|id| *id == group.id)
    };
    groups.sort_by(|a, b| (!used(a), &a.id).cmp(&(!used(b), &b.id)));
    let mut names = HashSet::new();
    for group in &mut groups {
        if !names.insert(group.spec.name.clone()) {
            group.spec.name = names::twin(&group.spec.name, &group.id);
        }
    }
    groups
}

pub(super) fn group_body(spec: &GroupSpec) -> GroupBody<'_> {
    GroupBody {
        name: &spec.name,
        tags: &spec.tags,
        protocol: spec.protocol.as_str(),
        mode: spec.mode.as_str(),
        health: spec.probe.as_ref().map(|probe| Health {
            protocol: match probe.protocol {
                ProbeProtocol::Tcp => "TCP".to_owned(),
                ProbeProtocol::Http => "HTTP".to_owned(),
            },
            port: probe.port,
            path: probe.path.clone(),
            interval: probe.interval_seconds.into(),
            timeout: probe.timeout_seconds.into(),
            healthy: probe.healthy,
            unhealthy: probe.unhealthy,
        }),
        drain_seconds: spec.drain_seconds.into(),
        choice: spec.sticky.then_some(STICKY),
    }
}

fn probe(health: Health) -> Probe {
    let http = health.protocol == "HTTP";
    Probe {
        protocol: if http {
            ProbeProtocol::Http
        } else {
            ProbeProtocol::Tcp
        },
        port: health.port,
        path: health.path.filter(|_| http),
        interval_seconds: whole(health.interval),
        timeout_seconds: whole(health.timeout),
        healthy: health.healthy,
        unhealthy: health.unhealthy,
    }
}

/// Seconds as we set them: whole ones. Anything else was set by somebody else and reads as different.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float cast saturates, and what saturates differs from what we set"
)]
fn whole(seconds: f64) -> u32 {
    seconds.round() as u32
}

fn protocol(text: &str) -> Option<Protocol> {
    text.to_ascii_uppercase().parse().ok()
}

pub(super) fn targets_body(
    targets: impl Iterator<Item = (TargetKey, Option<Zone>)>,
) -> TargetsBody {
    let target = |(key, zone): (TargetKey, Option<Zone>)| TargetBody {
        address: key.address,
        port: key.port,
        zone,
    };
    TargetsBody {
        targets: targets.map(target).collect(),
    }
}

/// The group with the targets that it has. In one without a probe `healthy` means no more than registered.
pub(super) fn with_targets(group: Group, view: TargetsView) -> Group {
    let probed = group.spec.probe.is_some();
    let state = |text: &str| match text {
        "healthy" if probed => CloudState::Healthy,
        "healthy" | "unused" => CloudState::Unjudged,
        "unhealthy" => CloudState::Unhealthy,
        "draining" => CloudState::Draining,
        _ => CloudState::Initial,
    };
    let key = |t: &TargetView| TargetKey {
        address: t.address,
        port: t.port,
    };
    let all = view.targets.iter();
    let zones = all.clone().filter_map(|t| Some((key(t), t.zone.clone()?)));
    Group {
        targets: all.clone().map(|t| (key(t), state(&t.state))).collect(),
        zones: zones.collect(),
        ..group
    }
}
