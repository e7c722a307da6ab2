//! Subnets of a load balancer: named, of the live one, or discovered (AWS-200 to AWS-208), and the
//! addresses that pair with them (AWS-220).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use onehop_core::crd::Scheme;

use super::{Builder, Mapping};
use crate::cloud::aws::annotations::keys;
use crate::cloud::aws::model::{IpType, Subnet};
use crate::cloud::aws::names::CLUSTER_TAG;
use crate::cloud::aws::resolve::refusal;
use crate::plan::{Notice, Refusal};

/// Fewest free addresses of a discovered subnet (AWS-201).
const FREE: u32 = 8;

impl Builder<'_> {
    pub(super) fn subnets(
        &self,
        scheme: Scheme,
        ip_type: IpType,
    ) -> Result<Vec<Mapping>, Vec<Refusal>> {
        let live = self
            .live
            .balancer
            .filter(|balancer| balancer.scheme == scheme);
        let chosen = if !self.wishes.subnets.is_empty() {
            self.named_subnets(ip_type)?
        } else if let Some(live) = live {
            // AWS-204: a live load balancer keeps its own.
            let known = live
                .subnets
                .keys()
                .filter_map(|id| self.network.subnets.get(id));
            known.collect()
        } else {
            self.discovered(scheme, ip_type)?
        };
        self.addresses(scheme, &chosen)
    }

    /// AWS-045: by id or by Name tag; a name that several have is consumed in the order of their ids.
    fn named_subnets(&self, ip_type: IpType) -> Result<Vec<&Subnet>, Vec<Refusal>> {
        let mut chosen: Vec<&Subnet> = Vec::new();
        let mut refusals = Vec::new();
        for entry in &self.wishes.subnets {
            let is = |subnet: &&Subnet| {
                let named = subnet.tags.get("Name") == Some(entry);
                (subnet.id == *entry || named) && !chosen.iter().any(|c| c.id == subnet.id)
            };
            match self.network.subnets.values().find(is) {
                Some(subnet) => chosen.push(subnet),
                None => refusals.push(wrong(
                    keys::SUBNETS,
                    entry,
                    "is no subnet of the VPC by id or Name tag",
                )),
            }
        }
        let mut zones = BTreeMap::new();
        for subnet in &chosen {
            if let Some(other) = zones.insert(&subnet.zone, &subnet.id) {
                let what = format!(
                    "is in zone {} as {other} is: one subnet a zone",
                    subnet.zone
                );
                refusals.push(wrong(keys::SUBNETS, &subnet.id, &what));
            }
            if ip_type == IpType::Dualstack && subnet.ipv6.is_empty() {
                refusals.push(wrong(
                    keys::SUBNETS,
                    &subnet.id,
                    "has no IPv6 range, which dualstack needs",
                ));
            }
        }
        if refusals.is_empty() {
            Ok(chosen)
        } else {
            Err(refusals)
        }
    }

    /// AWS-200 to AWS-203.
    fn discovered(&self, scheme: Scheme, ip_type: IpType) -> Result<Vec<&Subnet>, Vec<Refusal>> {
        let role = match scheme {
            Scheme::InternetFacing => "kubernetes.io/role/elb",
            Scheme::Internal | Scheme::Unknown => "kubernetes.io/role/internal-elb",
        };
        let has_role = |subnet: &&Subnet| {
            subnet
                .tags
                .get(role)
                .is_some_and(|v| v.is_empty() || v == "1")
        };
        let all = self.network.subnets.values();
        let mut candidates: Vec<&Subnet> = all.clone().filter(has_role).collect();
        let mut rejected: Vec<String> = Vec::new();
        if candidates.is_empty() && self.settings.gates.subnets_by_routes.is_on() {
            let public = scheme == Scheme::InternetFacing;
            candidates = all
                .clone()
                .filter(|subnet| subnet.public == Some(public))
                .collect();
            let others = all.filter(|subnet| subnet.public != Some(public));
            rejected.extend(
                others.map(|s| format!("{}: no tag {role}, and its routes do not fit", s.id)),
            );
        } else {
            let others = all.filter(|subnet| !has_role(subnet));
            rejected.extend(others.map(|s| format!("{}: no tag {role}", s.id)));
        }
        candidates.retain(|subnet| match self.unfit(subnet, ip_type) {
            None => true,
            Some(why) => {
                rejected.push(format!("{}: {why}", subnet.id));
                false
            }
        });
        // AWS-202: one a zone, our cluster's own before others, then the lowest id.
        candidates.sort_by_key(|subnet| (!self.is_our_clusters(subnet), subnet.id.clone()));
        let mut zones = BTreeSet::new();
        candidates.retain(|subnet| zones.insert(subnet.zone.clone()));
        candidates.sort_by(|a, b| a.id.cmp(&b.id));
        if candidates.is_empty() {
            rejected.sort();
            let message = format!(
                "no subnet for an {} load balancer in VPC {}: {}",
                crate::cloud::aws::names::scheme_word(scheme),
                self.network.vpc,
                if rejected.is_empty() {
                    "there is none".to_owned()
                } else {
                    rejected.join("; ")
                }
            );
            return Err(vec![refusal("SubnetRejected", message)]);
        }
        Ok(candidates)
    }

    fn unfit(&self, subnet: &Subnet, ip_type: IpType) -> Option<String> {
        let clusters: Vec<_> = subnet
            .tags
            .keys()
            .filter_map(|k| k.strip_prefix(CLUSTER_TAG))
            .collect();
        let checked = self.settings.gates.subnets_of_cluster.is_on() && !clusters.is_empty();
        if checked && !clusters.contains(&self.settings.cluster.as_str()) {
            return Some(format!("tagged for cluster {} only", clusters.join(", ")));
        }
        if subnet.free < FREE {
            return Some(format!("{} free addresses, {FREE} are needed", subnet.free));
        }
        let dualstack = ip_type == IpType::Dualstack;
        (dualstack && subnet.ipv6.is_empty()).then(|| "no associated IPv6 range".to_owned())
    }

    fn is_our_clusters(&self, subnet: &Subnet) -> bool {
        let key = format!("{CLUSTER_TAG}{}", self.settings.cluster);
        subnet.tags.contains_key(&key)
    }

    /// AWS-221: addresses of a live load balancer cannot be changed.
    pub(super) fn addresses_kept(&self, scheme: Scheme, subnets: &[Mapping]) -> Option<Notice> {
        let live = self.live.balancer.filter(|b| b.scheme == scheme)?;
        let other = |mapping: &&Mapping| {
            let asked = mapping.eip.as_ref().or(mapping.private_ipv4.as_ref());
            let had = live.subnets.get(&mapping.subnet).filter(|h| !h.is_empty());
            asked.is_some_and(|asked| had.is_some_and(|had| !had.contains(asked)))
        };
        let mapping = subnets.iter().find(other)?;
        let asked = mapping.eip.as_ref().or(mapping.private_ipv4.as_ref())?;
        Some(Notice {
            reason: "ReplacementRefused",
            message: format!(
                "subnet {} of the load balancer keeps {}, and {asked} is asked for: AWS cannot change the addresses of a load \
                 balancer. Another one is needed, which a new Service with this annotation makes",
                mapping.subnet,
                live.subnets.get(&mapping.subnet)?.join(", ")
            ),
            degrades: false,
        })
    }

    /// AWS-046, AWS-047, AWS-220.
    fn addresses(&self, scheme: Scheme, chosen: &[&Subnet]) -> Result<Vec<Mapping>, Vec<Refusal>> {
        let (eips, private) = (&self.wishes.eips, &self.wishes.private_ipv4);
        let mut refusals = Vec::new();
        let internal = scheme != Scheme::InternetFacing;
        if !eips.is_empty() && internal {
            refusals.push(wrong(
                keys::EIPS,
                &eips.join(","),
                "is for internet-facing load balancers only",
            ));
        }
        if !private.is_empty() && !internal {
            refusals.push(wrong(
                keys::PRIVATE_IPV4,
                "set",
                "is for internal load balancers only",
            ));
        }
        let counts = [
            (keys::EIPS, eips.len()),
            (keys::PRIVATE_IPV4, private.len()),
        ];
        for (key, count) in counts
            .into_iter()
            .filter(|(_, n)| *n > 0 && *n != chosen.len())
        {
            let what = format!("has {count} entries for {} subnets: one each", chosen.len());
            refusals.push(wrong(key, "the list", &what));
        }
        let holds = |subnet: &Subnet, address: IpAddr| {
            subnet.cidr.is_some_and(|range| range.contains(address))
        };
        let mut of: BTreeMap<&str, String> = BTreeMap::new();
        for address in private {
            let subnet = chosen
                .iter()
                .find(|subnet| holds(subnet, (*address).into()));
            match subnet {
                None => {
                    refusals.push(wrong(
                        keys::PRIVATE_IPV4,
                        &address.to_string(),
                        "is in none of the subnets",
                    ));
                }
                Some(subnet) => {
                    if of.insert(&subnet.id, address.to_string()).is_some() {
                        let what = format!("is the second one in subnet {}", subnet.id);
                        refusals.push(wrong(keys::PRIVATE_IPV4, &address.to_string(), &what));
                    }
                }
            }
        }
        if !refusals.is_empty() {
            return Err(refusals);
        }
        let mapping = |(index, subnet): (usize, &&Subnet)| Mapping {
            subnet: subnet.id.clone(),
            eip: eips.get(index).cloned(),
            private_ipv4: of.get(subnet.id.as_str()).cloned(),
        };
        Ok(chosen.iter().enumerate().map(mapping).collect())
    }
}

fn wrong(key: &str, value: &str, what: &str) -> Refusal {
    refusal(
        "AnnotationInvalid",
        format!("{}{key}: {value} {what}", keys::PREFIX),
    )
}
