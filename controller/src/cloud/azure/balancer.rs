//! The document of a load balancer: parts of Services and changes of pools are laid into it, and what is no longer
//! wanted is taken out (AZ-101, AZ-110, AZ-141, AZ-150, AZ-172). Pure.
//!
//! Whatever is not named as something of ours stays byte for byte (AZ-008). Additions come before removals (AZ-109).

use std::collections::BTreeSet;
use std::net::IpAddr;

use onehop_core::id::IpFamily;
use serde_json::{Value, json};

use super::document::{
    FRONTENDS, MEMBERS, POOLS, PROBES, RULES, at, child, children, children_mut, has, lay_over,
    name, object_mut, other_users, referred, text,
};
use super::families::{is_ipv6, keep_an_ipv4_frontend};
use super::names;
use super::part::{Child, Part};
use super::settings::{Layout, Settings};
use crate::plan::Refusal;
use crate::plan::custody::PeerServices;

/// What Azure takes on one load balancer.
const MOST_FRONTENDS: usize = 600;
const MOST_RULES: usize = 1500;

/// Everything that is to be done to one load balancer's document.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// Parts to be made or brought up to date.
    pub parts: Vec<Part>,
    /// Base names of Services of which nothing stays.
    pub removed: BTreeSet<String>,
    /// Members that come and go.
    pub members: Vec<PoolChange>,
    /// Own pools that no rule uses and whose flows have ended.
    pub pools: BTreeSet<String>,
    /// Ids of IPv6 public IPs, in lower case.
    pub six: BTreeSet<String>,
}

/// Members of one pool that come and go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolChange {
    /// The pool.
    pub pool: String,
    /// Members to add, or to set Up again: name and address.
    pub up: Vec<(String, IpAddr)>,
    /// Members to set Down.
    pub down: Vec<IpAddr>,
    /// Members to take out.
    pub out: Vec<IpAddr>,
}

impl PoolChange {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.up.is_empty() && self.down.is_empty() && self.out.is_empty()
    }
}

/// A new load balancer of ours, without children.
pub fn new(settings: &Settings) -> Value {
    let mut tags = settings.tags.clone();
    tags.insert(names::TAG_INSTALL.to_owned(), settings.install.to_string());
    tags.insert(names::TAG_GENERATION.to_owned(), "1".to_owned());
    let mut document = json!({
        "location": settings.place.location,
        "sku": {"name": "Standard", "tier": "Regional"},
        "tags": tags,
        "properties": {FRONTENDS: [], POOLS: [], RULES: [], PROBES: []},
    });
    settings.place.put_in_edge_zone(&mut document);
    document
}

/// Whether a load balancer is this install's to write: its own or, if it was said so, the cluster's, which has no tag
/// (AZ-017). Another one of its name is foreign (AZ-099).
pub fn is_ours(document: &Value, settings: &Settings) -> bool {
    match super::document::tag(document, names::TAG_INSTALL) {
        Some(install) => install == settings.install.as_str(),
        None => settings.layout == Layout::Shared,
    }
}

/// Whether a load balancer goes with its last frontend: one of ours or, where the peer was said to be off, the cluster's
/// (AZ-082).
pub fn may_go(document: &Value, settings: &Settings) -> bool {
    let ours = super::document::tag(document, names::TAG_INSTALL).is_some();
    ours || settings.take_over.peer == PeerServices::Off
}

/// Lays everything in.
pub fn apply(document: &mut Value, settings: &Settings, changes: &Changes) {
    let before = children(document, FRONTENDS).to_vec();
    if super::document::tag(document, names::TAG_INSTALL).is_some() && !settings.tags.is_empty() {
        // AZ-185.
        lay_over(document, &json!({"tags": settings.tags}));
    }
    for part in &changes.parts {
        lay_in(document, settings, part);
    }
    for change in &changes.members {
        change_members(document, settings, change);
    }
    for part in &changes.parts {
        let keep = |list: &[Child]| {
            list.iter()
                .map(|child| child.name.clone())
                .collect::<Vec<_>>()
        };
        take_out(
            document,
            &part.base,
            (
                &keep(&part.rules),
                &keep(&part.probes),
                &keep(&part.frontends),
            ),
        );
    }
    for base in &changes.removed {
        take_out(document, base, (&[], &[], &[]));
        retain(document, POOLS, |pool| !names::is_of(name(pool), base));
    }
    let used: Vec<String> = children(document, RULES)
        .iter()
        .filter_map(|rule| referred(rule, "backendAddressPool"))
        .map(str::to_owned)
        .collect();
    retain(document, POOLS, |pool| {
        let over = changes
            .pools
            .iter()
            .any(|pool_name| pool_name.eq_ignore_ascii_case(name(pool)));
        !over
            || used
                .iter()
                .any(|used| used.eq_ignore_ascii_case(name(pool)))
    });
    keep_an_ipv4_frontend(document, before, &changes.six);
    drop_unused_node_probes(document, settings);
    if settings.layout == Layout::Shared {
        // Our own one goes with everything that is in it; of one that stays nothing of ours is left.
        let own = IpFamily::ALL.map(|family| names::node_pool(settings.install.as_str(), family));
        let is_own = |pool: &Value| own.iter().any(|it| it.eq_ignore_ascii_case(name(pool)));
        let used = |pool: &Value| used.iter().any(|it| it.eq_ignore_ascii_case(name(pool)));
        retain(document, POOLS, |pool| !is_own(pool) || used(pool));
    }
}

/// Whether no frontend is left, so that the load balancer itself can go (AZ-082).
pub fn is_empty(document: &Value) -> bool {
    children(document, FRONTENDS).is_empty()
}

/// Whether everything of a part is there as it should be, and nothing else of its Service.
pub fn is_there(document: &Value, part: &Part) -> bool {
    let all = |list: &str, wanted: &[Child]| {
        wanted
            .iter()
            .all(|wish| has(child(document, list, &wish.name), &wish.wish))
    };
    let stale = |list: &str, wanted: &[Child]| {
        children(document, list).iter().any(|there| {
            names::is_of(name(there), &part.base)
                && !wanted
                    .iter()
                    .any(|w| w.name.eq_ignore_ascii_case(name(there)))
        })
    };
    all(FRONTENDS, &part.frontends)
        && all(PROBES, &part.probes)
        && all(RULES, &part.rules)
        && part
            .all_pools()
            .all(|pool| child(document, POOLS, &pool.name).is_some())
        && !stale(RULES, &part.rules)
        && !stale(PROBES, &part.probes)
        && !stale_frontend(document, part)
}

/// Names of what is not there as a part wants it, or is too much, for people.
pub fn differing(document: &Value, part: &Part) -> Vec<String> {
    let lists = [
        ("frontend", FRONTENDS, &part.frontends),
        ("probe", PROBES, &part.probes),
        ("rule", RULES, &part.rules),
    ];
    let mut all = Vec::new();
    for (word, list, wanted) in lists {
        let lacks = |wish: &&Child| !has(child(document, list, &wish.name), &wish.wish);
        let lacking = wanted.iter().filter(lacks);
        all.extend(lacking.map(|wish| format!("{word} {}", wish.name)));
        let mut there = children(document, list).iter().map(name);
        let more = |it: &&str| {
            names::is_of(it, &part.base)
                && !wanted.iter().any(|wish| wish.name.eq_ignore_ascii_case(it))
        };
        all.extend(
            there
                .by_ref()
                .filter(more)
                .map(|it| format!("{word} {it} too much")),
        );
    }
    let lacks = |pool: &&super::part::Pool| child(document, POOLS, &pool.name).is_none();
    let pools = part.all_pools().filter(lacks);
    all.extend(pools.map(|pool| format!("pool {}", pool.name)));
    all
}

/// A frontend of the Service that nobody uses and nothing wants.
fn stale_frontend(document: &Value, part: &Part) -> bool {
    children(document, FRONTENDS).iter().any(|there| {
        let name = name(there);
        names::is_of(name, &part.base)
            && !part
                .frontends
                .iter()
                .any(|w| w.name.eq_ignore_ascii_case(name))
            && !is_used(document, name)
    })
}

/// Whether anything of a Service is there: a rule, probe, pool or frontend of its name (AZ-110). A frontend that others
/// use is theirs (AZ-173).
pub fn has_part(document: &Value, base: &str) -> bool {
    let any = |list: &str| {
        children(document, list)
            .iter()
            .any(|there| names::is_of(name(there), base))
    };
    let frontend =
        |there: &Value| names::is_of(name(there), base) && !is_used(document, name(there));
    any(RULES) || any(PROBES) || any(POOLS) || children(document, FRONTENDS).iter().any(frontend)
}

/// What stands in the way of a part: a rule, NAT rule or NAT pool of somebody else with one of its frontends, ports and
/// protocols (AZ-115).
pub fn conflict(document: &Value, part: &Part) -> Option<Refusal> {
    for wish in &part.rules {
        let key = |rule: &Value| {
            let frontend = referred(rule, "frontendIPConfiguration")?.to_ascii_lowercase();
            let port = at(rule, &["properties", "frontendPort"])?.as_u64()?;
            let protocol = text(rule, &["properties", "protocol"])?.to_ascii_lowercase();
            Some((frontend, port, protocol))
        };
        let others = [RULES, "inboundNatRules"]
            .into_iter()
            .flat_map(|list| children(document, list));
        // A rule for all ports leaves nothing of its frontend to others (AZ-436).
        let same = |there: &&Value| {
            let (Some(a), Some(b)) = (key(there), key(&wish.wish)) else {
                return false;
            };
            a == b || (a.0 == b.0 && (a.2 == "all" || b.2 == "all"))
        };
        let clash = others
            .filter(|there| !names::is_of(name(there), &part.base))
            .find(same);
        if let Some(there) = clash {
            let message = format!(
                "rule {} has the same address, port and protocol as rule {} of somebody else",
                wish.name,
                name(there)
            );
            return Some(Refusal {
                reason: "FrontendPortConflict",
                message,
            });
        }
    }
    None
}

/// What Azure takes on one load balancer (AZ-430, AZ-432), and its wish for an IPv4 frontend beside those of IPv6
/// (AZ-188).
pub fn room(document: Option<&Value>, part: &Part, six: &BTreeSet<String>) -> Option<Refusal> {
    let none = Value::Null;
    let document = document.unwrap_or(&none);
    let count = |list: &str, wanted: &[Child]| {
        let there = children(document, list);
        let new = wanted
            .iter()
            .filter(|wish| child(document, list, &wish.name).is_none());
        there.len() + new.count()
    };
    let counts = [
        (
            "frontends",
            count(FRONTENDS, &part.frontends),
            MOST_FRONTENDS,
        ),
        ("rules", count(RULES, &part.rules), MOST_RULES),
    ];
    if let Some((what, count, most)) = counts.into_iter().find(|(_, count, most)| count > most) {
        let message =
            format!("{what} of the load balancer: {count} are needed and Azure takes {most}");
        return Some(Refusal {
            reason: "LimitReached",
            message,
        });
    }
    let own = part.pools.iter().any(|pool| pool.family == IpFamily::V4);
    let others = children(document, FRONTENDS).iter();
    let mut others = others.filter(|frontend| !names::is_of(name(frontend), &part.base));
    if own || part.rules.is_empty() || others.any(|frontend| !is_ipv6(frontend, six)) {
        return None;
    }
    let message = "Azure takes an IPv6 frontend only on a load balancer that has an IPv4 one, and there is none yet";
    Some(Refusal {
        reason: "IPv6WithoutIPv4",
        message: message.to_owned(),
    })
}

fn lay_in(document: &mut Value, settings: &Settings, part: &Part) {
    for frontend in &part.frontends {
        upsert(document, FRONTENDS, frontend);
    }
    for pool in part.all_pools() {
        if child(document, POOLS, &pool.name).is_none() {
            children_mut(document, POOLS).push(new_pool(settings, &pool.name));
        }
    }
    for probe in &part.probes {
        upsert(document, PROBES, probe);
    }
    for rule in &part.rules {
        upsert(document, RULES, rule);
    }
}

/// A pool without members. Its network is always said: without it Azure refuses addresses (AZ-230).
pub fn new_pool(settings: &Settings, name: &str) -> Value {
    json!({
        "name": name,
        "properties": {"virtualNetwork": {"id": settings.place.vnet_id()}, MEMBERS: []},
    })
}

fn upsert(document: &mut Value, list: &str, wish: &Child) {
    let there = children_mut(document, list);
    let known = there
        .iter_mut()
        .find(|child| name(child).eq_ignore_ascii_case(&wish.name));
    if let Some(known) = known {
        // Untouched where it says the same in other letters.
        if !has(Some(known), &wish.wish) {
            lay_over(known, &wish.wish);
        }
    } else {
        let mut made = wish.at_birth.clone();
        lay_over(&mut made, &wish.wish);
        there.push(made);
    }
}

/// Keeps the children that `keep` says. A list that is not there is not made: where nothing goes, nothing is written.
fn retain(document: &mut Value, list: &str, keep: impl FnMut(&Value) -> bool) {
    if !children(document, list).is_empty() {
        children_mut(document, list).retain(keep);
    }
}

/// Takes out what a Service has beyond what is to be kept. Frontends that its rules leave without a user go as well
/// when they have the name of the Service, or of one that is gone.
fn take_out(
    document: &mut Value,
    base: &str,
    (rules, probes, frontends): (&[String], &[String], &[String]),
) {
    let kept = |list: &[String], child: &Value| {
        list.iter()
            .any(|keep| keep.eq_ignore_ascii_case(name(child)))
    };
    let leaves =
        |list: &[String], child: &Value| names::is_of(name(child), base) && !kept(list, child);
    let mut left: BTreeSet<String> = BTreeSet::new();
    retain(document, RULES, |rule| {
        let goes = leaves(rules, rule);
        if goes {
            left.extend(referred(rule, "frontendIPConfiguration").map(str::to_ascii_lowercase));
        }
        !goes
    });
    retain(document, PROBES, |probe| !leaves(probes, probe));
    let unused: Vec<String> = children(document, FRONTENDS)
        .iter()
        .filter(|frontend| {
            leaves(frontends, frontend) || left.contains(&name(frontend).to_ascii_lowercase())
        })
        .filter(|frontend| !kept(frontends, frontend) && !is_used(document, name(frontend)))
        .map(|frontend| name(frontend).to_owned())
        .collect();
    retain(document, FRONTENDS, |frontend| {
        !unused.iter().any(|gone| gone == name(frontend))
    });
}

/// Whether a rule or anything else of the load balancer refers to a frontend.
pub fn is_used(document: &Value, frontend: &str) -> bool {
    let rules = children(document, RULES).iter();
    let mut users = rules.filter_map(|rule| referred(rule, "frontendIPConfiguration"));
    users.any(|user| user.eq_ignore_ascii_case(frontend))
        || !other_users(document, frontend).is_empty()
}

/// AZ-150: a shared probe stays while any rule of the load balancer refers to it.
fn drop_unused_node_probes(document: &mut Value, settings: &Settings) {
    let used: BTreeSet<String> = children(document, RULES)
        .iter()
        .filter_map(|rule| referred(rule, "probe"))
        .map(str::to_ascii_lowercase)
        .collect();
    // The peer's is common property: it goes with its last rule where the peer is off, whoever has made it (AZ-011).
    let adopted = settings.take_over.peer == PeerServices::Off;
    let shared = |probe: &Value| {
        let theirs = name(probe).eq_ignore_ascii_case(names::PEER_SHARED_PROBE);
        names::is_node_probe(name(probe), &settings.install) || (theirs && adopted)
    };
    retain(document, PROBES, |probe| {
        !shared(probe) || used.contains(&name(probe).to_ascii_lowercase())
    });
}

fn change_members(document: &mut Value, settings: &Settings, change: &PoolChange) {
    let pools = children_mut(document, POOLS);
    let index = pools
        .iter()
        .position(|pool| name(pool).eq_ignore_ascii_case(&change.pool));
    let index = index.unwrap_or_else(|| {
        pools.push(new_pool(settings, &change.pool));
        pools.len() - 1
    });
    change_pool(&mut pools[index], settings, change);
}

/// Carries a change out in the document of a pool. The difference is keyed by address (AZ-096).
pub fn change_pool(pool: &mut Value, settings: &Settings, change: &PoolChange) {
    let properties = object_mut(object_mut(pool).entry("properties").or_insert(Value::Null));
    if !properties.contains_key("virtualNetwork") {
        properties.insert(
            "virtualNetwork".to_owned(),
            json!({"id": settings.place.vnet_id()}),
        );
    }
    let members = children_mut(pool, MEMBERS);
    for (name, address) in &change.up {
        let known = members
            .iter_mut()
            .find(|member| member_address(member) == Some(*address));
        if let Some(known) = known {
            set_admin(known, "Up");
        } else if members.len() < settings.pool_size {
            members.push(json!({"name": name, "properties": {"ipAddress": address.to_string()}}));
        }
    }
    for member in members.iter_mut() {
        if member_address(member).is_some_and(|address| change.down.contains(&address)) {
            set_admin(member, "Down");
        }
    }
    members.retain(|member| {
        member_address(member).is_none_or(|address| !change.out.contains(&address))
    });
}

fn set_admin(member: &mut Value, state: &str) {
    lay_over(member, &json!({"properties": {"adminState": state}}));
}

/// The address of a member.
pub fn member_address(member: &Value) -> Option<IpAddr> {
    text(member, &["properties", "ipAddress"])?.parse().ok()
}

/// Whether a member is set Down.
pub fn is_down(member: &Value) -> bool {
    text(member, &["properties", "adminState"])
        .is_some_and(|state| state.eq_ignore_ascii_case("Down"))
}

/// Whether a rule is on a pool, and whether every one of them has a probe: without one Down has no effect (AZ-290).
pub fn rules_of_pool(document: &Value, pool: &str) -> (bool, bool) {
    let on = |rule: &&Value| {
        referred(rule, "backendAddressPool").is_some_and(|name| name.eq_ignore_ascii_case(pool))
    };
    let rules: Vec<_> = children(document, RULES).iter().filter(on).collect();
    (
        !rules.is_empty(),
        rules.iter().all(|rule| referred(rule, "probe").is_some()),
    )
}

#[cfg(test)]
mod tests;
