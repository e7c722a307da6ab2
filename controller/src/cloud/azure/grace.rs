//! Former addresses of a Service that was given another one: they serve on for a while, for clients that know them from
//! DNS (AZ-113). Pure.
//!
//! One that moved to the other load balancer leaves its part there as it is. One that stays gets another frontend beside
//! the former one, whose rules have names of their own and, with floating IP off, pools of their own (AZ-262). Pools of
//! both are kept up to date until the end; then what is former is cleaned like everything that a Service no longer wants
//! (AZ-110). Times are those of this process until a tag of a public IP of the Service says the end, which a restart does
//! not change; where there is none of ours, the grace begins anew with the process, late and never early.

use std::collections::BTreeSet;
use std::net::IpAddr;

use onehop_core::crd::{LoadBalancerSpec, TargetMode};
use onehop_core::id::IpFamily;
use onehop_core::time::Time;
use serde_json::{Value, json};

use super::document::{
    FRONTENDS, POOLS, RULES, at, child, children, has, lay_over, name, referred, tag, text,
};
use super::families::is_ipv6;
use super::members::has_members;
use super::model::{Documents, Observed, address_at, addresses};
use super::names;
use super::part::{FormerFrontend, Part, Pool};
use super::public_ip::{keeper, kept_for};
use super::resolve::Flavour;
use super::settings::{Kind, Settings};
use crate::plan::Notice;

const FRONTEND: &str = "frontendIPConfiguration";

/// Addresses at which the Service still is on the other load balancer.
pub(super) fn addresses_opposite(part: &Part, documents: &Documents) -> Vec<IpAddr> {
    at_fronts(part.kind.opposite(), &opposite(part, documents), documents)
}

/// Former addresses that it still has on its own one.
pub(super) fn addresses_beside(part: &Part, documents: &Documents) -> Vec<IpAddr> {
    let fronts: Vec<&str> = part.former.iter().map(String::as_str).collect();
    at_fronts(part.kind, &fronts, documents)
}

fn at_fronts(kind: Kind, fronts: &[&str], documents: &Documents) -> Vec<IpAddr> {
    let Some(balancer) = documents.balancers.get(&kind) else {
        return Vec::new();
    };
    let frontends = fronts
        .iter()
        .filter_map(|front| child(balancer, FRONTENDS, front));
    frontends
        .filter_map(|frontend| address_at(frontend, documents))
        .collect()
}

/// Frontends of its rules on the other load balancer.
fn opposite<'a>(part: &Part, documents: &'a Documents) -> Vec<&'a str> {
    let Some(other) = documents.balancers.get(&part.kind.opposite()) else {
        return Vec::new();
    };
    let own = rules_of(other, &part.base);
    let mut fronts: Vec<&str> = own.filter_map(|rule| referred(rule, FRONTEND)).collect();
    fronts.sort_unstable();
    fronts.dedup();
    fronts
}

fn rules_of<'a>(balancer: &'a Value, base: &str) -> impl Iterator<Item = &'a Value> {
    let rules = children(balancer, RULES).iter();
    rules.filter(move |rule| names::is_of(name(rule), base))
}

/// Frontends on a Service's own load balancer that its rules are on, and that are not those that it should be on: their
/// addresses are former ones. Of a family that it has no more, nothing serves on (AZ-315).
pub(super) fn beside(
    balancer: &Value,
    spec: &LoadBalancerSpec,
    wanted: &[&str],
    documents: &Documents,
) -> Vec<FormerFrontend> {
    let base = names::base(&spec.service_uid);
    let mut all: Vec<FormerFrontend> = Vec::new();
    for rule in rules_of(balancer, &base) {
        let Some(front) = referred(rule, FRONTEND) else {
            continue;
        };
        if wanted.iter().any(|it| it.eq_ignore_ascii_case(front)) {
            continue;
        }
        let port = at(rule, &["properties", "frontendPort"]).and_then(Value::as_u64);
        let protocol = text(rule, &["properties", "protocol"]).map(str::to_ascii_lowercase);
        let (Some(port), Some(protocol)) = (port, protocol) else {
            continue;
        };
        let known = all
            .iter_mut()
            .find(|it| it.name.eq_ignore_ascii_case(front));
        if let Some(known) = known {
            known.ports.insert((protocol, port));
        } else if let Some(frontend) = child(balancer, FRONTENDS, front) {
            let family = if is_ipv6(frontend, &documents.ipv6()) {
                IpFamily::V6
            } else {
                IpFamily::V4
            };
            all.push(FormerFrontend {
                name: name(frontend).to_owned(),
                family,
                ports: [(protocol, port)].into(),
            });
        }
    }
    all
}

/// Frontends, in lower case, that rules of former addresses are on, of whatever Service.
pub(super) fn frontends_of_former_rules(balancer: &Value) -> BTreeSet<String> {
    let rules = children(balancer, RULES).iter();
    let former = rules.filter(|rule| {
        let base = name(rule).split('-').next().unwrap_or_default();
        names::is_former_rule(name(rule), base)
    });
    former
        .filter_map(|rule| referred(rule, FRONTEND))
        .map(str::to_ascii_lowercase)
        .collect()
}

/// Frontends with former addresses.
fn former(part: &Part, documents: &Documents) -> Vec<(Kind, String)> {
    let opposite = opposite(part, documents).into_iter();
    let opposite = opposite.map(|front| (part.kind.opposite(), front.to_owned()));
    let beside = part.former.iter().cloned();
    opposite
        .chain(beside.map(|front| (part.kind, front)))
        .collect()
}

fn mark((kind, front): &(Kind, String)) -> String {
    names::mark(&format!("{kind:?}/{front}"))
}

/// What a tag says: the end, and whether it is that of all these.
fn said(tag: &str, marks: &BTreeSet<String>) -> Option<(Time, bool)> {
    let mut words = tag.split(' ');
    let end = words.next()?.parse().ok()?;
    let of: BTreeSet<&str> = words.collect();
    Some((end, marks.iter().all(|mark| of.contains(mark.as_str()))))
}

/// Until when former addresses serve; none where there is none. A further change begins the time anew for all.
pub(super) fn end(settings: &Settings, part: &Part, seen: &Observed, now: Time) -> Option<Time> {
    let former = former(part, &seen.documents);
    if former.is_empty() {
        return None;
    }
    let marks = former.iter().map(mark).collect();
    let tags = seen
        .public_ips(settings)
        .filter_map(|pip| said(tag(pip, names::TAG_FORMER)?, &marks));
    let tags: Vec<(Time, bool)> = tags.collect();
    if let Some(end) = tags.iter().filter(|(_, of)| *of).map(|(end, _)| *end).min() {
        return Some(end);
    }
    if !tags.is_empty() {
        // It was said of others, before this change.
        return Some(now + settings.dns_grace);
    }
    let new = part.frontends.iter();
    let new = new.map(|frontend| (part.kind, frontend.name.clone()));
    let since = |(kind, name): (Kind, String)| {
        let since = seen.times.frontends.get(&(kind, name.to_ascii_lowercase()));
        since.map_or(now, |(_, since)| *since)
    };
    // From when all were there, each as it is now.
    let all = former.into_iter().chain(new).map(since).max()?;
    Some(all + settings.dns_grace)
}

/// Public IPs of the Service alone whose tag does not say this end, or that say one where there is none: id and document.
pub(super) fn unsaid(
    settings: &Settings,
    part: &Part,
    seen: &Observed,
    end: Option<Time>,
) -> Vec<(String, Value)> {
    let marks: BTreeSet<String> = former(part, &seen.documents).iter().map(mark).collect();
    let wanted = end.map(|end| {
        let marks: Vec<&str> = marks.iter().map(String::as_str).collect();
        format!("{end} {}", marks.join(" "))
    });
    let own = seen.public_ips(settings).filter(|pip| {
        let alone = kept_for(settings, pip).len() == 1;
        alone && keeper(settings, pip) == Some(Flavour::Own)
    });
    let unsaid = own.filter(|pip| {
        let there = tag(pip, names::TAG_FORMER);
        match end {
            Some(end) => there.and_then(|it| said(it, &marks)) != Some((end, true)),
            None => there.is_some(),
        }
    });
    let written = unsaid.filter_map(|pip| {
        let mut document = pip.clone();
        lay_over(&mut document, &json!({"tags": {names::TAG_FORMER: wanted}}));
        Some((text(pip, &["id"])?.to_owned(), document))
    });
    written.collect()
}

/// Pools on the other load balancer that its rules there use, and that have what those of the part have.
pub(super) fn pools_opposite(part: &Part, seen: &Observed) -> Vec<Pool> {
    let Some(other) = seen.balancer(part.kind.opposite()) else {
        return Vec::new();
    };
    let fronts = opposite(part, &seen.documents);
    let used = |pool: &Pool| {
        let mut rules = rules_of(other, &part.base);
        let uses = rules.any(|rule| {
            referred(rule, "backendAddressPool")
                .is_some_and(|it| it.eq_ignore_ascii_case(&pool.name))
        });
        uses && has_members(child(other, POOLS, &pool.name))
    };
    let apart = |pool: &Pool, front: &str| Pool {
        name: names::former_pool(&part.base, &pool.name, front, pool.family),
        ..pool.clone()
    };
    let apart = part
        .pools
        .iter()
        .flat_map(|pool| fronts.iter().map(move |front| apart(pool, front)));
    part.pools
        .iter()
        .cloned()
        .chain(apart)
        .filter(used)
        .collect()
}

/// What to say where a frontend is made anew, so that its former address cannot serve on beside the new one (AZ-113).
pub(super) fn lost(part: &Part, documents: &Documents) -> Option<Notice> {
    let balancer = documents.balancers.get(&part.kind)?;
    let fronts = rules_of(balancer, &part.base).filter_map(|rule| referred(rule, FRONTEND));
    let goes = |front: &&str| {
        if part.former.iter().any(|it| it.eq_ignore_ascii_case(front)) {
            return false;
        }
        let mut wanted = part.frontends.iter();
        let wanted = wanted.find(|it| it.name.eq_ignore_ascii_case(front));
        wanted.is_none_or(|it| {
            let mut wish = it.wish.clone();
            // How an address was come by does not change it.
            if let Some(wish) = wish["properties"].as_object_mut() {
                wish.remove("privateIPAllocationMethod");
            }
            !has(child(balancer, FRONTENDS, front), &wish)
        })
    };
    let mut gone: Vec<String> = fronts
        .filter(goes)
        .filter_map(|front| address_at(child(balancer, FRONTENDS, front)?, documents))
        .map(|address| address.to_string())
        .collect();
    gone.dedup();
    (!gone.is_empty()).then(|| Notice {
        reason: "FormerAddressGoes",
        message: format!(
            "{} is served no longer as soon as the new address is: clients that know it from DNS fail until they ask again",
            gone.join(", ")
        ),
        degrades: false,
    })
}

/// The addresses to publish beside the new ones until the end, and what to say.
pub(super) fn published(
    settings: &Settings,
    part: &Part,
    seen: &Observed,
    now: Time,
) -> Option<(Vec<IpAddr>, Notice)> {
    let end = end(settings, part, seen, now).filter(|end| *end > now)?;
    let documents = &seen.documents;
    let mut former = addresses_opposite(part, documents);
    former.extend(addresses_beside(part, documents));
    let said: Vec<String> = former.iter().map(ToString::to_string).collect();
    // Nodes take packets for what is published only.
    let floats = part.pools.iter().any(|pool| pool.mode == TargetMode::Vip);
    let stays = if floats {
        ", and stays in status until then"
    } else {
        ""
    };
    let notice = Notice {
        reason: "FormerAddressServes",
        message: format!("{} serves on until {end}{stays}", said.join(", ")),
        degrades: false,
    };
    // Nor is there nothing in status as long as the new one has no address.
    let alone = addresses(part, documents).len() < part.frontends.len();
    Some((if floats || alone { former } else { Vec::new() }, notice))
}
