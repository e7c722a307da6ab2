//! The former address of a Service that moves between the public and the internal load balancer: it serves on for a while,
//! for clients that know it from DNS (AZ-113). Pure.
//!
//! Where both stand side by side the old part is left as it is and its pools are kept up to date, until the end; then it
//! is cleaned like everything that a Service no longer wants (AZ-110). Times are those of this process until a tag of a
//! public IP of the Service says the end, which a restart does not change; where there is none of ours, the grace begins
//! anew with the process, late and never early.

use std::net::IpAddr;

use onehop_core::crd::TargetMode;
use onehop_core::time::Time;
use serde_json::{Value, json};

use super::document::{
    FRONTENDS, POOLS, RULES, child, children, has, lay_over, name, referred, tag, text,
};
use super::members::has_members;
use super::model::{Documents, Observed, address_at};
use super::names;
use super::part::{Part, Pool};
use super::public_ip::{keeper, kept_for};
use super::resolve::Flavour;
use super::settings::Settings;
use crate::plan::Notice;

/// Addresses at which the Service still is on the other load balancer.
pub(super) fn former_addresses(part: &Part, documents: &Documents) -> Vec<IpAddr> {
    let Some(other) = documents.balancers.get(&part.kind.opposite()) else {
        return Vec::new();
    };
    let fronts = fronts(part, documents);
    let frontends = fronts
        .iter()
        .filter_map(|front| child(other, FRONTENDS, front));
    frontends
        .filter_map(|frontend| address_at(frontend, documents))
        .collect()
}

/// Frontends of its rules on the other load balancer.
fn fronts<'a>(part: &Part, documents: &'a Documents) -> Vec<&'a str> {
    let Some(other) = documents.balancers.get(&part.kind.opposite()) else {
        return Vec::new();
    };
    let own = children(other, RULES)
        .iter()
        .filter(|rule| names::is_of(name(rule), &part.base));
    let mut fronts: Vec<&str> = own
        .filter_map(|rule| referred(rule, "frontendIPConfiguration"))
        .collect();
    fronts.sort_unstable();
    fronts.dedup();
    fronts
}

/// Until when the former side serves; none where there is none.
pub(super) fn end(settings: &Settings, part: &Part, seen: &Observed, now: Time) -> Option<Time> {
    let former = fronts(part, &seen.documents);
    if former.is_empty() {
        return None;
    }
    let former = former.into_iter().map(|name| (part.kind.opposite(), name));
    let new = part
        .frontends
        .iter()
        .map(|frontend| (part.kind, frontend.name.as_str()));
    let since = |(kind, name): (_, &str)| {
        let since = seen.times.frontends.get(&(kind, name.to_ascii_lowercase()));
        since.copied().unwrap_or(now)
    };
    // From when both were there.
    let both = former.chain(new).map(since).max()?;
    let end = both + settings.dns_grace;
    let tags = seen
        .public_ips(settings)
        .filter_map(|pip| tag(pip, names::TAG_FORMER));
    let said = tags.filter_map(|said| said.parse().ok()).min();
    Some(said.map_or(end, |said: Time| said.min(end)))
}

/// Public IPs of the Service alone whose tag says another end than this, or that say one where there is none: id and
/// document.
pub(super) fn unsaid(
    settings: &Settings,
    seen: &Observed,
    end: Option<Time>,
) -> Vec<(String, Value)> {
    let end = end.map(|end| end.to_string());
    let own = seen.public_ips(settings).filter(|pip| {
        let alone = kept_for(settings, pip).len() == 1;
        alone && keeper(settings, pip) == Some(Flavour::Own)
    });
    let unsaid = own.filter(|pip| tag(pip, names::TAG_FORMER) != end.as_deref());
    let written = unsaid.filter_map(|pip| {
        let mut document = pip.clone();
        lay_over(&mut document, &json!({"tags": {names::TAG_FORMER: end}}));
        Some((text(pip, &["id"])?.to_owned(), document))
    });
    written.collect()
}

/// Pools of the part that rules of the former side use, too.
pub(super) fn pools<'a>(part: &'a Part, seen: &Observed) -> Vec<&'a Pool> {
    let Some(other) = seen.balancer(part.kind.opposite()) else {
        return Vec::new();
    };
    let used = |pool: &&Pool| {
        let mut rules = children(other, RULES)
            .iter()
            .filter(|rule| names::is_of(name(rule), &part.base));
        let uses = rules.any(|rule| {
            referred(rule, "backendAddressPool")
                .is_some_and(|it| it.eq_ignore_ascii_case(&pool.name))
        });
        uses && has_members(child(other, POOLS, &pool.name))
    };
    part.pools.iter().filter(used).collect()
}

/// What to say where a Service is given another address on the same load balancer: there the old one cannot serve on
/// beside it (AZ-113).
pub(super) fn lost(part: &Part, documents: &Documents) -> Option<Notice> {
    let balancer = documents.balancers.get(&part.kind)?;
    let own = children(balancer, RULES)
        .iter()
        .filter(|rule| names::is_of(name(rule), &part.base));
    let fronts = own.filter_map(|rule| referred(rule, "frontendIPConfiguration"));
    let goes = |front: &&str| {
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
    let former = former_addresses(part, &seen.documents);
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
    Some((if floats { former } else { Vec::new() }, notice))
}
