//! Members of a Service's pools: the policy's answer, in words of Azure (AZ-290 to AZ-300). Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use onehop_core::crd::{MembershipPolicy, TargetMode};
use onehop_core::time::Time;
use serde_json::Value;

use super::balancer::{PoolChange, is_down, member_address, rules_of_pool};
use super::document::{MEMBERS, POOLS, child, children};
use super::model::Observed;
use super::names;
use super::part::Pool;
use super::settings::{Kind, Settings};
use super::takeover::interfaces;
use crate::plan::membership::{
    self, Action, CloudState, Decision, Kind as PolicyKind, Member, Policy, Readiness, State,
    TargetKey,
};
use crate::plan::{Intent, Notice};

/// Share of a pool that may leave for no known reason without a second look (K-33).
const MASS_PERCENT: u8 = 50;
/// What a probe takes where none says how long.
const PROBE_TIME: Duration = Duration::from_secs(10);

/// Labels of nodes that are no members (AZ-037, AZ-233).
const MANAGED: &str = "kubernetes.azure.com/managed";
const RESOURCE_GROUP: &str = "kubernetes.azure.com/resource-group";
const CONTROL_PLANE: [&str; 2] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
];

/// A pool of a Service and what is in it.
#[derive(Clone, Debug)]
pub struct Filled<'a> {
    settings: &'a Settings,
    intent: &'a Intent,
    pool: &'a Pool,
    kind: Kind,
    /// States by target; Down counts as draining.
    pub seen: BTreeMap<TargetKey, CloudState>,
    /// Since when each is as it is.
    since: BTreeMap<TargetKey, Time>,
    /// Whether every rule on it has a probe.
    probed: bool,
    /// Whether its members are its other writer's: at network interfaces, or by the configuration (AZ-012, AZ-236).
    of_others: bool,
    /// How many network interfaces are in it, of which nothing else is known here.
    pub interfaces: usize,
}

impl<'a> Filled<'a> {
    /// Reads a pool. A target gets the port that the Service has for its address, else that of its other targets.
    pub fn read(
        settings: &'a Settings,
        intent: &'a Intent,
        (pool, kind): (&'a Pool, Kind),
        seen: &Observed,
        now: Time,
    ) -> Self {
        let balancer = seen.balancer(kind);
        let document = balancer.and_then(|balancer| child(balancer, POOLS, &pool.name));
        let known = intent.members(&pool.port, pool.mode);
        let known = || known.into_iter().flat_map(|members| &members.list);
        let number = number(intent, pool);
        let port = |address: IpAddr| {
            if let Some(number) = number {
                return number;
            }
            let of = known()
                .find(|member| member.key.address == address)
                .or_else(|| known().next());
            of.map_or(0, |member| member.key.port)
        };
        let (used, probed) = balancer.map_or((false, true), |balancer| {
            rules_of_pool(balancer, &pool.name)
        });
        let wait = probe_time(intent, pool);
        let (mut states, mut times) = (BTreeMap::new(), BTreeMap::new());
        let members = document.map_or(&[][..], |pool| children(pool, MEMBERS));
        for member in members {
            let Some(address) = member_address(member) else {
                continue;
            };
            let key = TargetKey {
                address,
                port: port(address),
            };
            let down = is_down(member);
            let place = (kind, pool.name.to_ascii_lowercase(), address, down);
            let since = seen.times.members.get(&place).copied().unwrap_or(now);
            let state = match () {
                () if down => CloudState::Draining,
                () if !used || !probed => CloudState::Unjudged,
                () if now.since(since) < wait => CloudState::Initial,
                () => CloudState::Healthy,
            };
            states.insert(key, state);
            times.insert(key, since);
        }
        let interfaces = document.map_or(0, interfaces);
        let shared = !names::is_of(&pool.name, &names::base(&intent.spec.service_uid));
        let others = shared && settings.others_pools.contains(&kind);
        Self {
            settings,
            intent,
            pool,
            kind,
            seen: states,
            since: times,
            probed,
            of_others: interfaces > 0 || others,
            interfaces,
        }
    }

    /// AZ-239: that nobody here follows the nodes of a pool of network interfaces.
    pub fn left_to_others(&self) -> Option<Notice> {
        (self.interfaces > 0).then(|| Notice {
            reason: "PoolOfNetworkInterfaces",
            message: format!(
                "pool {} of load balancer {} holds {} network interfaces: its members are left to whoever puts them there, and \
                 nodes that come and go change nothing here; to have them followed, move it to addresses \
                 (loadBalancerBackendPoolConfigurationType nodeIP of cloud-provider-azure)",
                self.pool.name,
                self.settings.place.balancer(self.kind),
                self.interfaces
            ),
            degrades: false,
        })
    }

    /// The membership policy's answer.
    pub fn decide(&self, now: Time) -> Decision {
        let (intent, pool) = (self.intent, self.pool);
        let members = self.explained(self.seen.keys());
        let wishes = &intent.spec.membership;
        let health = intent
            .spec
            .ports
            .iter()
            .find(|port| port.key() == pool.port)
            .and_then(|p| p.health.as_ref());
        let policy = Policy {
            kind: match wishes.policy {
                MembershipPolicy::Compat => PolicyKind::Compat,
                MembershipPolicy::ZeroDrop | MembershipPolicy::Unknown => PolicyKind::ZeroDrop,
            },
            floor_percent: u8::try_from(wishes.floor_percent).unwrap_or(100),
            hold_max: Duration::from_secs(u64::from(wishes.hold_max_seconds)),
            readiness: if health.is_some() {
                Readiness::ByHealth
            } else {
                Readiness::ByMembership
            },
            mass_percent: MASS_PERCENT,
            // Of all families together; nodes with pods of one have pods of the other.
            at_most_healthy: intent
                .members(&pool.port, pool.mode)
                .and_then(|m| m.at_most_healthy)
                .map(|all| all.div_ceil(intent.spec.families.len().max(1))),
        };
        membership::decide(&policy, &members, &self.seen, intent.view, now)
    }

    /// The targets that the pool may have, and those that it has.
    fn explained<'k>(&self, keys: impl IntoIterator<Item = &'k TargetKey>) -> Vec<Member> {
        let (intent, pool) = (self.intent, self.pool);
        let mut members = intent.explained(&pool.port, pool.mode, keys);
        let number = number(intent, pool);
        // A pod with another number for the port's name is no member (AZ-263).
        members.retain(|member| {
            pool.takes(member.key.address) && number.is_none_or(|it| member.key.port == it)
        });
        for member in &mut members {
            if member.state == State::Ready && self.is_never(member.key.address) {
                member.state = State::Withdrawn;
            }
        }
        members
    }

    /// Whether a node of this address is no member by its labels, whatever it could do (AZ-037, AZ-233).
    fn is_never(&self, address: IpAddr) -> bool {
        if self.pool.mode == TargetMode::Pod {
            return false;
        }
        let Some(machine) = self.intent.machines.get(&address) else {
            return false;
        };
        let label = |key: &str| machine.labels.get(key).map(String::as_str);
        let unmanaged = label(MANAGED).is_some_and(|it| it.eq_ignore_ascii_case("false"));
        let own = self.settings.place.node_resource_group.as_deref();
        let elsewhere = label(RESOURCE_GROUP)
            .is_some_and(|group| !own.is_some_and(|own| own.eq_ignore_ascii_case(group)));
        let plane = CONTROL_PLANE.iter().any(|key| label(key).is_some());
        unmanaged || elsewhere || (plane && self.settings.exclude_control_plane)
    }

    /// What the answer means for the pool (AZ-291): drain = Down, then out once its flows had their time.
    pub fn change(&self, settings: &Settings, now: Time) -> PoolChange {
        let decision = self.decide(now);
        let mut change = PoolChange {
            pool: self.pool.name.clone(),
            ..PoolChange::default()
        };
        if self.of_others {
            return change;
        }
        for (key, _) in decision.with(Action::Register) {
            if reachable(settings, self.pool, key.address) {
                change.up.push((self.member_name(key.address), key.address));
            }
        }
        for (key, _) in decision.with(Action::Drain) {
            // Without a probe Down has no effect, and what has none may as well go at once (AZ-290).
            let list = if self.probed {
                &mut change.down
            } else {
                &mut change.out
            };
            list.push(key.address);
        }
        change
            .out
            .extend(decision.with(Action::Release).map(|(key, _)| key.address));
        change.out.extend(self.drained(settings, now));
        change.up.sort();
        change
            .out
            .retain(|address| change.up.iter().all(|(_, up)| up != address));
        change
    }

    /// Members whose drain is over, or that are gone altogether.
    fn drained(&self, settings: &Settings, now: Time) -> Vec<IpAddr> {
        let down: Vec<TargetKey> = self.draining().collect();
        let explained = self.explained(&down);
        let over = |key: &TargetKey| {
            let state = explained
                .iter()
                .find(|member| member.key == *key)
                .map(|member| member.state);
            let gone = matches!(state, Some(State::Gone | State::Reused));
            gone || self
                .since
                .get(key)
                .is_some_and(|since| now.since(*since) >= settings.drain)
        };
        let back = |key: &TargetKey| {
            let member = explained.iter().find(|member| member.key == *key);
            member.is_some_and(|member| member.state == State::Ready)
        };
        down.iter()
            .filter(|key| over(key) && !back(key))
            .map(|key| key.address)
            .collect()
    }

    fn draining(&self) -> impl Iterator<Item = TargetKey> + '_ {
        let down = self
            .seen
            .iter()
            .filter(|(_, state)| **state == CloudState::Draining);
        down.map(|(key, _)| *key)
    }

    /// When time alone changes the answer.
    pub fn next_look(&self, settings: &Settings, now: Time) -> Option<Time> {
        let wait = probe_time(self.intent, self.pool);
        let turns = self.seen.iter().filter_map(|(key, state)| {
            let since = *self.since.get(key)?;
            match state {
                CloudState::Initial => Some(since + wait),
                CloudState::Draining => Some(since + settings.drain),
                _ => None,
            }
        });
        let next = turns.chain(self.decide(now).next_look).min()?;
        Some(next.max(now + Duration::from_millis(100)))
    }

    /// Node members have their node's name (AZ-090).
    fn member_name(&self, address: IpAddr) -> String {
        let machine = self
            .intent
            .machines
            .get(&address)
            .filter(|_| self.pool.mode != TargetMode::Pod);
        machine.map_or_else(
            || names::pod_member(address),
            |machine| machine.node.to_string(),
        )
    }

    /// The pool.
    pub const fn pool(&self) -> &Pool {
        self.pool
    }

    /// The load balancer that it is on.
    pub const fn kind(&self) -> Kind {
        self.kind
    }
}

/// The one number at which the rule reaches pods.
fn number(intent: &Intent, pool: &Pool) -> Option<u16> {
    let mut ports = intent.spec.ports.iter();
    let port = ports.find(|port| port.key() == pool.port)?;
    port.target_port.filter(|_| pool.mode == TargetMode::Pod)
}

/// AZ-252: pods outside of the network are no members.
fn reachable(settings: &Settings, pool: &Pool, address: IpAddr) -> bool {
    pool.mode != TargetMode::Pod
        || settings
            .pod_prefixes
            .iter()
            .any(|range| range.contains(address))
}

/// Probe interval times threshold (AZ-292).
fn probe_time(intent: &Intent, pool: &Pool) -> Duration {
    let port = intent
        .spec
        .ports
        .iter()
        .find(|port| port.key() == pool.port);
    let health = port.and_then(|port| port.health.as_ref());
    health.map_or(PROBE_TIME, |health| {
        Duration::from_secs(u64::from(health.interval_seconds * health.healthy))
    })
}

/// Whether a pool document has any member at all.
pub fn has_members(pool: Option<&Value>) -> bool {
    pool.is_some_and(|pool| !children(pool, MEMBERS).is_empty())
}
