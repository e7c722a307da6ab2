//! What Services need of the security groups, at present and former addresses, and how the rules stand (AZ-212). Pure.

use std::net::IpAddr;

use onehop_core::crd::{LoadBalancerSpec, TargetMode};
use onehop_core::id::ServiceKey;
use serde_json::Value;

use super::annotations::{self, Wishes};
use super::balancer::member_address;
use super::document::{MEMBERS, POOLS, child, children, name};
use super::model::{Built, Documents, Roster, Rules, addresses, build};
use super::security::{self, Addresses, Demand};
use super::settings::{Settings, Side};
use super::{grace, part, switch};

/// What one Service needs of the security group; nothing before it has a frontend.
pub(super) fn demands_of(
    settings: &Settings,
    service: &ServiceKey,
    spec: &LoadBalancerSpec,
    documents: &Documents,
) -> Vec<Demand> {
    let wishes = annotations::of_options(spec);
    let Ok(Built { part, .. }) = build(settings, service, spec, documents) else {
        return Vec::new();
    };
    let demands = |wishes: &Wishes, frontends: Vec<IpAddr>| {
        let kind = part::kind(wishes);
        let Some(balancer) = documents.balancers.get(&kind) else {
            return Vec::new();
        };
        let of_mode = |mode| {
            let pools = part.all_pools().filter(move |pool| pool.mode == mode);
            let pools = pools.filter_map(|pool| child(balancer, POOLS, &pool.name));
            pools
                .flat_map(|pool| children(pool, MEMBERS))
                .filter_map(member_address)
                .collect()
        };
        let at = Addresses {
            frontends,
            nodes: of_mode(TargetMode::Node),
            pods: of_mode(TargetMode::Pod),
        };
        security::demands(settings, spec, wishes, &at)
    };
    let mut all = demands(&wishes, addresses(&part, documents));
    let balancer = documents.balancers.get(&part.kind);
    if let Some((balancer, former)) =
        balancer.and_then(|it| Some((it, switch::former(it, &part, spec)?)))
    {
        let used = |pool: &&Value| former.pools.contains(&name(pool).to_ascii_lowercase());
        let pools = children(balancer, POOLS).iter().filter(used);
        let members: Vec<IpAddr> = pools
            .flat_map(|pool| children(pool, MEMBERS))
            .filter_map(member_address)
            .collect();
        let at = Addresses {
            frontends: addresses(&part, documents),
            nodes: members.clone(),
            pods: members,
        };
        all.extend(security::demands(settings, &former.spec, &wishes, &at));
    }
    let beside = grace::addresses_beside(&part, documents);
    if !beside.is_empty() {
        all.extend(demands(&wishes, beside));
    }
    let former = grace::addresses_opposite(&part, documents);
    if !former.is_empty() {
        let other = Wishes {
            internal: !wishes.internal,
            ..wishes
        };
        all.extend(demands(&other, former));
    }
    all
}

/// What all Services need of the security group.
pub(super) fn demands(settings: &Settings, roster: &Roster, documents: &Documents) -> Vec<Demand> {
    let asking = roster.services.iter();
    let asking = asking.filter_map(|(service, met)| Some((service, met.spec.as_ref()?)));
    asking
        .flat_map(|(service, spec)| demands_of(settings, service, spec, documents))
        .collect()
}

/// How the rules of the security group stand.
pub(super) fn rules(settings: &Settings, roster: &Roster, documents: &Documents) -> Rules {
    let demands = demands(settings, roster, documents);
    let mut all = Rules::Right;
    for side in Side::ALL {
        let Some(document) = documents.group(side) else {
            continue;
        };
        match security::desired(settings, document, &of_side(&demands, side)) {
            Ok(desired) if security::differs(&desired, document) => all = Rules::Due,
            Ok(_) => {}
            Err(refusal) => return Rules::Refused(refusal),
        }
    }
    all
}

/// Those that one security group has to let in.
pub(super) fn of_side(demands: &[Demand], side: Side) -> Vec<Demand> {
    let of = demands.iter().filter(|demand| demand.side == side);
    of.cloned().collect()
}
