//! What documents mean for the engine: a load balancer of the engine for each frontend, a group for
//! each rule, and the members of its pool as targets.
//!
//! `adminState` Down is a deregistration whose flows go on; a member that is taken out loses its flows (AZ-290, FC-T07,
//! FC-T08).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use onehop_core::time::Time;
use serde_json::Value;

use super::check;
use super::error::Refusal;
use super::resources::Subscription;
use super::store::{child, list};
use crate::engine::{
    Choice, Engine, GroupId, GroupSpec, HealthCheck, LbId, LbSpec, ListenerKey, LostFlow, Mode,
    ProbeProtocol, Protocol, Tags, TargetSpec,
};

/// How long flows of a member that is Down go on: until they end.
const FOR_EVER: Duration = Duration::from_hours(24 * 365);
/// Seconds that Azure waits for the answer to a probe (AZ-438). Connections are given less: what does not listen here
/// refuses or drops at once.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// What the engine has of the documents.
#[derive(Debug, Default)]
pub(super) struct Links {
    balancers: BTreeMap<Front, (LbId, LbSpec)>,
    groups: BTreeMap<String, Group>,
}

/// Id of a frontend.
type Front = String;

#[derive(Debug)]
struct Group {
    id: GroupId,
    spec: GroupSpec,
    front: Front,
    listener: ListenerKey,
    /// Targets, and whether each is Down.
    targets: BTreeMap<SocketAddr, bool>,
}

/// A rule as the engine should have it.
struct Wanted {
    front: Front,
    address: IpAddr,
    listener: ListenerKey,
    spec: GroupSpec,
    targets: BTreeMap<SocketAddr, bool>,
}

impl Links {
    /// Makes the engine do what the documents say.
    pub(super) fn carry_out(
        &mut self,
        from: &Subscription,
        engine: &mut Engine,
        now: Time,
    ) -> Result<(), Refusal> {
        let wanted = wanted(from);
        let fronts: BTreeMap<Front, IpAddr> = wanted
            .values()
            .map(|rule| (rule.front.clone(), rule.address))
            .collect();
        self.drop_listeners(&wanted, engine, now)?;
        self.balancers(&fronts, engine, now)?;
        for (rule, wanted) in &wanted {
            self.rule(rule, wanted, engine, now)?;
        }
        self.drop_groups(&wanted, engine, now)
    }

    /// First what goes: a port may move from one of the engine's load balancers to another with the same address.
    fn drop_listeners(
        &mut self,
        wanted: &BTreeMap<String, Wanted>,
        engine: &mut Engine,
        now: Time,
    ) -> Result<(), Refusal> {
        let there = engine.inventory().load_balancers;
        for (rule, group) in &self.groups {
            let stays = wanted
                .get(rule)
                .is_some_and(|it| (&it.front, it.listener) == (&group.front, group.listener));
            let Some((lb, _)) = self.balancers.get(&group.front).filter(|_| !stays) else {
                continue;
            };
            let listens = there
                .iter()
                .any(|it| it.id == *lb && it.listeners.get(&group.listener) == Some(&group.id));
            if listens {
                engine.delete_listener(now, lb, group.listener)?;
            }
        }
        Ok(())
    }

    fn balancers(
        &mut self,
        fronts: &BTreeMap<Front, IpAddr>,
        engine: &mut Engine,
        now: Time,
    ) -> Result<(), Refusal> {
        let gone: Vec<Front> = self
            .balancers
            .keys()
            .filter(|front| !fronts.contains_key(*front))
            .cloned()
            .collect();
        for front in gone {
            if let Some((lb, _)) = self.balancers.remove(&front) {
                engine.delete_lb(now, &lb)?;
            }
        }
        for (front, address) in fronts {
            let spec = LbSpec {
                name: front.rsplit('/').next().unwrap_or_default().to_owned(),
                tags: Tags::new(),
                addresses: vec![*address],
                zones: Vec::new(),
                cross_zone: true,
                preserve_client_ip: true,
                sharing_key: Some(front.clone()),
            };
            match self.balancers.get_mut(front) {
                Some((_, known)) if *known == spec => {}
                Some((lb, known)) => {
                    engine.update_lb(now, lb, spec.clone())?;
                    *known = spec;
                }
                None => {
                    let key = format!("{front}/{}", engine.log().last());
                    let made = engine.create_lb(now, &key, spec.clone())?;
                    self.balancers.insert(front.clone(), (made.id, spec));
                }
            }
        }
        Ok(())
    }

    fn rule(
        &mut self,
        rule: &str,
        wanted: &Wanted,
        engine: &mut Engine,
        now: Time,
    ) -> Result<(), Refusal> {
        let Some((lb, _)) = self.balancers.get(&wanted.front) else {
            return Ok(());
        };
        let same_kind = |group: &Group| {
            (group.spec.protocol, group.spec.mode) == (wanted.spec.protocol, wanted.spec.mode)
        };
        let old = match self.groups.get(rule) {
            Some(group) if same_kind(group) => None,
            Some(_) => self.groups.remove(rule),
            None => None,
        };
        let fresh = !self.groups.contains_key(rule);
        if fresh {
            let key = format!("{rule}/{}", engine.log().last());
            let made = engine.create_group(now, &key, wanted.spec.clone())?;
            let group = Group {
                id: made.id,
                spec: wanted.spec.clone(),
                front: wanted.front.clone(),
                listener: wanted.listener,
                targets: BTreeMap::new(),
            };
            self.groups.insert(rule.to_owned(), group);
        }
        let Some(group) = self.groups.get_mut(rule) else {
            return Ok(());
        };
        if group.spec != wanted.spec {
            engine.update_group(now, &group.id, wanted.spec.clone())?;
            group.spec = wanted.spec.clone();
        }
        targets(group, &wanted.targets, engine, now)?;
        if fresh || (&group.front, group.listener) != (&wanted.front, wanted.listener) {
            engine.put_listener(now, lb, wanted.listener, &group.id)?;
        }
        (group.front, group.listener) = (wanted.front.clone(), wanted.listener);
        match old {
            Some(old) => Ok(engine.delete_group(now, &old.id)?),
            None => Ok(()),
        }
    }

    fn drop_groups(
        &mut self,
        wanted: &BTreeMap<String, Wanted>,
        engine: &mut Engine,
        now: Time,
    ) -> Result<(), Refusal> {
        let gone: Vec<String> = self
            .groups
            .keys()
            .filter(|rule| !wanted.contains_key(*rule))
            .cloned()
            .collect();
        for rule in gone {
            if let Some(group) = self.groups.remove(&rule) {
                engine.delete_group(now, &group.id)?;
            }
        }
        Ok(())
    }
}

fn targets(
    group: &mut Group,
    wanted: &BTreeMap<SocketAddr, bool>,
    engine: &mut Engine,
    now: Time,
) -> Result<(), Refusal> {
    let up = wanted
        .iter()
        .filter(|(target, down)| !**down && group.targets.get(*target) != Some(&false));
    let up: Vec<TargetSpec> = up
        .map(|(target, _)| TargetSpec {
            target: *target,
            zone: None,
        })
        .collect();
    if !up.is_empty() {
        engine.register(now, &group.id, up)?;
    }
    let down = wanted
        .iter()
        .filter(|(target, down)| **down && group.targets.get(*target) == Some(&false));
    let down: Vec<SocketAddr> = down.map(|(target, _)| *target).collect();
    if !down.is_empty() {
        engine.deregister(now, &group.id, &down)?;
    }
    let out: BTreeSet<SocketAddr> = group
        .targets
        .keys()
        .filter(|target| !wanted.contains_key(*target))
        .copied()
        .collect();
    if !out.is_empty() {
        engine.cut(now, &group.id, &out)?;
    }
    group.targets.clone_from(wanted);
    Ok(())
}

fn wanted(from: &Subscription) -> BTreeMap<String, Wanted> {
    let balancers = from
        .documents
        .values()
        .filter(|document| document["type"] == "Microsoft.Network/loadBalancers");
    let mut all = BTreeMap::new();
    for balancer in balancers {
        for rule in list(balancer, "loadBalancingRules") {
            if let (Some(id), Some(wanted)) = (rule["id"].as_str(), of_rule(from, balancer, rule)) {
                all.insert(id.to_lowercase(), wanted);
            }
        }
    }
    all
}

fn of_rule(from: &Subscription, balancer: &Value, rule: &Value) -> Option<Wanted> {
    let p = &rule["properties"];
    let named =
        |key: &str, kind: &str| child(balancer, kind, p[key]["id"].as_str()?.rsplit('/').next()?);
    let frontend = named("frontendIPConfiguration", "frontendIPConfigurations")?;
    let pool = named("backendAddressPool", "backendAddressPools")?;
    let floating = p["enableFloatingIP"].as_bool().unwrap_or_default();
    if p["protocol"] == "All" {
        // The engine listens on single ports: of these rules there are documents and no packets.
        return None;
    }
    let protocol = if p["protocol"] == "Udp" {
        Protocol::Udp
    } else {
        Protocol::Tcp
    };
    let number = |key: &str| u16::try_from(p[key].as_u64()?).ok();
    let back = number("backendPort")?;
    let probe = named("probe", "probes").and_then(health);
    let members = list(pool, "loadBalancerBackendAddresses").iter();
    let targets: BTreeMap<SocketAddr, bool> = members
        .filter_map(|member| {
            let address: IpAddr = member["properties"]["ipAddress"].as_str()?.parse().ok()?;
            // Down has no effect on a rule without a probe (AZ-290).
            let down = member["properties"]["adminState"] == "Down" && probe.is_some();
            Some((SocketAddr::new(address, back), down))
        })
        .collect();
    let is_pod = |target: &SocketAddr| {
        from.setup
            .pods
            .iter()
            .any(|range| range.contains(&target.ip()))
    };
    let mode = match floating {
        true => Mode::Vip,
        false if !targets.is_empty() && targets.keys().all(is_pod) => Mode::Pod,
        false => Mode::Node,
    };
    Some(Wanted {
        front: frontend["id"].as_str()?.to_lowercase(),
        address: check::address(from, frontend)?,
        listener: ListenerKey {
            port: number("frontendPort")?,
            protocol,
        },
        spec: GroupSpec {
            name: rule["name"].as_str()?.to_owned(),
            tags: Tags::new(),
            protocol,
            mode,
            health: probe,
            drain: FOR_EVER,
            preserve_client_ip: Some(true),
            proxy_protocol: false,
            lost_flow: Some(if p["enableTcpReset"] == true {
                LostFlow::Reset
            } else {
                LostFlow::Drop
            }),
            choice: match p["loadDistribution"].as_str() {
                Some("SourceIP") => Choice::Addresses,
                Some("SourceIPProtocol") => Choice::AddressesAndProtocol,
                _ => Choice::FiveTuple,
            },
        },
        targets,
    })
}

fn health(probe: &Value) -> Option<HealthCheck> {
    let p = &probe["properties"];
    let threshold = u32::try_from(p["probeThreshold"].as_u64()?).ok()?;
    Some(HealthCheck {
        protocol: if p["protocol"] == "Tcp" {
            ProbeProtocol::Tcp
        } else {
            ProbeProtocol::Http
        },
        port: Some(u16::try_from(p["port"].as_u64()?).ok()?),
        path: p["requestPath"].as_str().unwrap_or("/").to_owned(),
        interval: Duration::from_secs(p["intervalInSeconds"].as_u64()?),
        timeout: PROBE_TIMEOUT,
        healthy: threshold,
        unhealthy: threshold,
    })
}
