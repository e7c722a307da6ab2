//! What the planner sees: documents as they came, and what is remembered of their members' times.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use onehop_core::crd::LoadBalancerSpec;
use onehop_core::id::{IpFamily, ServiceKey, ServiceUid};
use onehop_core::time::Time;
use serde_json::Value;

use super::annotations::{self, Wishes};
use super::balancer::{is_down, member_address};
use super::demands::{demands_of, of_side, rules};
use super::document::{
    FRONTENDS, MEMBERS, POOLS, RULES, child, children, name, other_users, reference, referred, text,
};
use super::grace;
use super::names::{self, Half};
use super::part::{self, Address, Makings, Part};
use super::public_ip::{Asker, address_of, kept_for, version_of};
use super::resolve::Flavour;
use super::rights::Missing;
use super::security;
use super::settings::{Kind, Settings, Side};
use crate::plan::Refusal;

/// Documents in the cloud.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Documents {
    /// Load balancers of ours.
    pub balancers: BTreeMap<Kind, Value>,
    /// Public IPs of the resource groups that are read.
    pub public_ips: Vec<Value>,
    /// The network security group.
    pub security: Option<Value>,
    /// That of the pods' subnet, where it has its own (AZ-216).
    pub pod_security: Option<Value>,
    /// Zones in which what is new is made: all of the region, none in an edge zone (AZ-175).
    pub zones: Vec<String>,
}

/// Since when members are as they are, as far as this process knows: Azure does not say (AZ-292).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Since when an address is in a pool, Up or Down.
    pub members: BTreeMap<Place, Time>,
    /// Since when no rule uses a pool.
    pub unused: BTreeMap<(Kind, String), Time>,
    /// Since when a frontend is there, with a present address of a Service or with a former one (AZ-113).
    pub frontends: BTreeMap<(Kind, String), (bool, Time)>,
}

/// A member: load balancer, pool in lower case, address, and whether it is Down.
pub type Place = (Kind, String, IpAddr, bool);

impl Times {
    /// Notes what is new in the documents and forgets what is gone. What is found without a time begins now: late, never
    /// early.
    pub fn note(&mut self, documents: &Documents, now: Time) {
        let (mut members, mut unused) = (BTreeMap::new(), BTreeMap::new());
        let mut frontends = BTreeMap::new();
        for (kind, balancer) in &documents.balancers {
            let rules = children(balancer, RULES).iter();
            let used: BTreeSet<String> = rules
                .filter_map(|rule| referred(rule, "backendAddressPool"))
                .map(str::to_ascii_lowercase)
                .collect();
            let former = grace::frontends_of_former_rules(balancer);
            for frontend in children(balancer, FRONTENDS) {
                let key = (*kind, name(frontend).to_ascii_lowercase());
                let is_former = former.contains(&key.1);
                let known = self.frontends.get(&key).copied();
                let same = known.filter(|(was_former, _)| *was_former == is_former);
                frontends.insert(key, same.unwrap_or((is_former, now)));
            }
            for pool in children(balancer, POOLS) {
                let pool_name = name(pool).to_ascii_lowercase();
                for member in children(pool, MEMBERS) {
                    let Some(address) = member_address(member) else {
                        continue;
                    };
                    let place = (*kind, pool_name.clone(), address, is_down(member));
                    let since = self.members.get(&place).copied().unwrap_or(now);
                    members.insert(place, since);
                }
                if !used.contains(&pool_name) {
                    let key = (*kind, pool_name);
                    let since = self.unused.get(&key).copied().unwrap_or(now);
                    unused.insert(key, since);
                }
            }
        }
        *self = Self {
            members,
            unused,
            frontends,
        };
    }
}

/// Services that this process has met: their documents do not name them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Roster {
    /// By name.
    pub services: BTreeMap<ServiceKey, Met>,
}

/// What is known of a Service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Met {
    /// UIDs under which it was met; of earlier ones something may be left.
    pub uids: BTreeSet<ServiceUid>,
    /// What it asks for, while it is there.
    pub spec: Option<Arc<LoadBalancerSpec>>,
}

/// What a look at a Service gives.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The Service.
    pub service: ServiceKey,
    /// UIDs under which it was met.
    pub uids: BTreeSet<ServiceUid>,
    /// Whether the security group's rules are made with what it asks for.
    pub asks: bool,
    /// The documents.
    pub documents: Arc<Documents>,
    /// Times of members.
    pub times: Arc<Times>,
    /// What we may not do (AZ-019).
    pub missing: Arc<Vec<Missing>>,
    /// How the rules of the security group stand; found out when somebody asks.
    pub standing: Arc<Standing>,
}

/// What is found out once for all Services, as long as neither documents nor wishes change.
#[derive(Debug, Default)]
pub struct Standing {
    /// Who asks for what.
    pub roster: Roster,
    rules: OnceLock<Rules>,
}

impl Standing {
    /// Of these Services.
    pub const fn new(roster: Roster) -> Self {
        Self {
            roster,
            rules: OnceLock::new(),
        }
    }
}

/// How the rules of the network security group stand, for all Services at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rules {
    /// As they should be.
    Right,
    /// To be written.
    Due,
    /// They cannot be written.
    Refused(Refusal),
}

impl Documents {
    /// The security group of a side.
    pub const fn group(&self, side: Side) -> Option<&Value> {
        match side {
            Side::Nodes => self.security.as_ref(),
            Side::Pods => self.pod_security.as_ref(),
        }
    }

    /// Ids of IPv6 public IPs, in lower case.
    pub fn ipv6(&self) -> BTreeSet<String> {
        let all = self.public_ips.iter();
        let six = all.filter(|pip| version_of(pip) == IpFamily::V6);
        let ids = six.filter_map(|pip| text(pip, &["id"]));
        ids.map(str::to_ascii_lowercase).collect()
    }
}

impl Observed {
    /// How the rules of the security group stand.
    pub fn rules(&self, settings: &Settings) -> &Rules {
        let standing = &self.standing;
        standing
            .rules
            .get_or_init(|| rules(settings, &standing.roster, &self.documents))
    }

    /// Whether the rules let in who may connect to one Service.
    pub fn lets_in(&self, settings: &Settings, spec: &LoadBalancerSpec) -> bool {
        let needs = demands_of(settings, &self.service, spec, &self.documents);
        Side::ALL.into_iter().all(|side| {
            let document = self.documents.group(side);
            document.is_none_or(|it| security::lets_in(settings, it, &of_side(&needs, side)))
        })
    }

    /// A load balancer.
    pub fn balancer(&self, kind: Kind) -> Option<&Value> {
        self.documents.balancers.get(&kind)
    }

    /// Base names under which the Service may have something: of its UIDs, and of public IPs that name it (AZ-110). One
    /// that names others too, or has the name of another Service that is there, is that one's, and only shared (AZ-173).
    pub fn bases(&self, settings: &Settings) -> BTreeSet<String> {
        let stem = format!("{}-", settings.cluster);
        let others = self.standing.roster.services.iter();
        let others =
            others.filter(|(service, met)| **service != self.service && met.spec.is_some());
        let taken: BTreeSet<String> = others
            .flat_map(|(_, met)| met.uids.iter().map(names::base))
            .collect();
        let own = self
            .public_ips(settings)
            .filter(|pip| kept_for(settings, pip).len() == 1);
        let named = own.filter_map(|pip| {
            let rest = name(pip).strip_prefix(&stem)?;
            Some(rest.chars().take(names::LONGEST_BASE).collect())
        });
        let named = named.filter(|base| !taken.contains(base));
        self.uids.iter().map(names::base).chain(named).collect()
    }

    /// Public IPs that we keep for the Service, by their tags.
    pub fn public_ips<'a>(&'a self, settings: &'a Settings) -> impl Iterator<Item = &'a Value> {
        let own = self.service.to_string();
        self.documents
            .public_ips
            .iter()
            .filter(move |pip| kept_for(settings, pip).contains(&own))
    }
}

/// A Service's part, with the public IPs that have to be written for it.
#[derive(Clone, Debug)]
pub struct Built {
    /// The part.
    pub part: Part,
    /// Public IPs to be written: id and document.
    pub public_ips: Vec<(String, Value)>,
    /// Ids of the public IPs that it uses.
    pub uses: Vec<String>,
}

/// Builds a Service's part out of what is there. A refusal leaves everything as it is (AZ-107).
pub fn build(
    settings: &Settings,
    service: &ServiceKey,
    spec: &LoadBalancerSpec,
    documents: &Documents,
) -> Result<Built, Refusal> {
    let wishes = annotations::of_options(spec);
    let asker = Asker {
        service,
        spec,
        wishes: &wishes,
        zones: &documents.zones,
    };
    let balancer = documents.balancers.get(&part::kind(&wishes));
    let (mut public_ips, mut uses) = (Vec::new(), Vec::new());
    let mut frontends = BTreeMap::new();
    for family in &spec.families {
        let address = if wishes.internal {
            Address::Private {
                subnet: wishes.subnet.clone(),
                pinned: wishes.pinned.get(family).copied(),
            }
        } else {
            let pip = asker.public_ip(settings, &documents.public_ips, *family)?;
            public_ips.extend(pip.write.map(|document| (pip.id.clone(), document)));
            uses.push(pip.id.clone());
            Address::Public { id: pip.id }
        };
        let there = balancer
            .and_then(|balancer| holder(balancer, &address, (spec, *family), settings))
            .map(str::to_owned);
        frontends.insert(*family, (address, there));
    }
    let mut left = balancer.map_or_else(Vec::new, |it| used_by_others(it, spec));
    let wanted = frontends.values().filter_map(|(_, there)| there.as_deref());
    let wanted: Vec<&str> = wanted.collect();
    let mut former =
        balancer.map_or_else(Vec::new, |it| grace::beside(it, spec, &wanted, documents));
    if Flavour::of(spec.class.as_deref()) == Flavour::Peer {
        // The peer knows a frontend by its name: one that has the name of the new one makes room for it (AZ-085).
        let name = |family: &IpFamily| {
            let half = Half::of(*family, &spec.families);
            names::frontend(
                &names::base(&spec.service_uid),
                wishes.subnet.as_deref(),
                half,
            )
        };
        let names: Vec<String> = spec.families.iter().map(name).collect();
        former.retain(|it| !names.iter().any(|name| name.eq_ignore_ascii_case(&it.name)));
    }
    left.extend(former.iter().map(|former| former.name.clone()));
    let zones = balancer.and_then(|it| zones_before(it, spec));
    let part = Part::new(
        settings,
        Makings {
            spec,
            wishes: &wishes,
            left_to_others: &left,
            former: &former,
            zones: zones.as_deref().unwrap_or(&documents.zones),
        },
        |family| {
            // Each family of the spec was put in just above.
            let none = || {
                (
                    Address::Private {
                        subnet: None,
                        pinned: None,
                    },
                    None,
                )
            };
            frontends.get(&family).cloned().unwrap_or_else(none)
        },
    );
    Ok(Built {
        part,
        public_ips,
        uses,
    })
}

/// Frontends named after the Service that rules of others, or other objects, use.
fn used_by_others(balancer: &Value, spec: &LoadBalancerSpec) -> Vec<String> {
    let base = names::base(&spec.service_uid);
    let own = |child: &&Value| names::is_of(name(child), &base);
    let rules = children(balancer, RULES).iter().filter(|rule| !own(rule));
    let by_rules: BTreeSet<String> = rules
        .filter_map(|rule| referred(rule, "frontendIPConfiguration"))
        .map(str::to_ascii_lowercase)
        .collect();
    let frontends = children(balancer, FRONTENDS).iter().filter(own).map(name);
    let used = frontends.filter(|frontend| {
        by_rules.contains(&frontend.to_ascii_lowercase())
            || !other_users(balancer, frontend).is_empty()
    });
    used.map(str::to_owned).collect()
}

/// The zones in which the Service's frontends are: one in another subnet is made in them, too (AZ-175).
fn zones_before(balancer: &Value, spec: &LoadBalancerSpec) -> Option<Vec<String>> {
    let base = names::base(&spec.service_uid);
    let frontends = children(balancer, FRONTENDS).iter();
    let mut zones = frontends
        .filter(|frontend| names::is_of(name(frontend), &base))
        .filter_map(|frontend| frontend.get("zones")?.as_array());
    let zones = zones.find(|zones| !zones.is_empty())?.iter();
    Some(
        zones
            .filter_map(|it| it.as_str().map(str::to_owned))
            .collect(),
    )
}

/// The frontend that holds an address already: Services that share it share the frontend (AZ-171). One whose address
/// nobody asked for stays the one that it was when the Service gets or loses its other family (AZ-315).
fn holder<'a>(
    balancer: &'a Value,
    address: &Address,
    (spec, family): (&LoadBalancerSpec, IpFamily),
    settings: &Settings,
) -> Option<&'a str> {
    let of_family = |frontend: &Value| {
        let version = text(frontend, &["properties", "privateIPAddressVersion"]);
        version
            .unwrap_or(IpFamily::V4.as_str())
            .eq_ignore_ascii_case(family.as_str())
    };
    let holds = |frontend: &&Value| match address {
        Address::Public { id } => {
            reference(frontend, "publicIPAddress").is_some_and(|it| it.eq_ignore_ascii_case(id))
        }
        Address::Private {
            pinned: Some(pinned),
            ..
        } => {
            let held = text(frontend, &["properties", "privateIPAddress"]);
            held.and_then(|held| held.parse().ok()) == Some(*pinned)
        }
        Address::Private {
            pinned: None,
            subnet,
        } => {
            let wanted = settings.place.subnet_id(subnet.as_deref());
            names::is_of(name(frontend), &names::base(&spec.service_uid))
                && reference(frontend, "subnet").is_some_and(|it| it.eq_ignore_ascii_case(&wanted))
                && of_family(frontend)
        }
    };
    let base = names::base(&spec.service_uid);
    // Not one with a former address, where there is a choice (AZ-113).
    let serves = |frontend: &&Value| {
        let mut rules = children(balancer, RULES).iter();
        rules.any(|rule| {
            names::is_of(name(rule), &base)
                && !names::is_former_rule(name(rule), &base)
                && referred(rule, "frontendIPConfiguration")
                    .is_some_and(|it| it.eq_ignore_ascii_case(name(frontend)))
        })
    };
    let holders: Vec<&Value> = children(balancer, FRONTENDS).iter().filter(holds).collect();
    let chosen = holders.iter().find(|it| serves(it)).or(holders.first());
    chosen.map(|it| name(it))
}

/// Addresses of a part's frontends, as far as there are some.
pub fn addresses(part: &Part, documents: &Documents) -> Vec<IpAddr> {
    let Some(balancer) = documents.balancers.get(&part.kind) else {
        return Vec::new();
    };
    let wanted = part
        .frontends
        .iter()
        .filter_map(|frontend| child(balancer, FRONTENDS, &frontend.name));
    wanted
        .filter_map(|frontend| address_at(frontend, documents))
        .collect()
}

/// The address of a frontend.
pub(super) fn address_at(frontend: &Value, documents: &Documents) -> Option<IpAddr> {
    if let Some(id) = reference(frontend, "publicIPAddress") {
        let mut all = documents.public_ips.iter();
        let pip =
            all.find(|pip| text(pip, &["id"]).is_some_and(|it| it.eq_ignore_ascii_case(id)))?;
        return address_of(pip);
    }
    text(frontend, &["properties", "privateIPAddress"])?
        .parse()
        .ok()
}

/// Wishes of a spec, for whoever needs them beside the part.
pub fn wishes(spec: &LoadBalancerSpec) -> Wishes {
    annotations::of_options(spec)
}
