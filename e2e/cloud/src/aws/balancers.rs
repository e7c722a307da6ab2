//! Load balancers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::account::Balancer;
use super::error::Refusal;
use super::tags;
use super::xml::{el, members, wrap};
use super::{Answer, Call};
use crate::engine::{LbSpec, LbState, Tags};

/// Attributes of a Network Load Balancer with their defaults.
const DEFAULTS: [(&str, &str); 7] = [
    ("access_logs.s3.bucket", ""),
    ("access_logs.s3.enabled", "false"),
    ("access_logs.s3.prefix", ""),
    ("deletion_protection.enabled", "false"),
    ("dns_record.client_routing_policy", "any_availability_zone"),
    ("load_balancing.cross_zone.enabled", "false"),
    ("zonal_shift.config.enabled", "false"),
];
const CROSS_ZONE: &str = "load_balancing.cross_zone.enabled";
const PROTECTION: &str = "deletion_protection.enabled";
const PAGE: usize = 400;

impl Call<'_> {
    pub(super) fn create_balancer(&mut self) -> Answer {
        let name = self.form.need("Name")?.to_owned();
        check_name(&name)?;
        if self.form.text("Type") != "network" {
            return Err(Refusal::validation(
                "only load balancers of type network are here",
            ));
        }
        let scheme = self
            .form
            .maybe("Scheme")
            .unwrap_or("internet-facing")
            .to_owned();
        if !["internet-facing", "internal"].contains(&scheme.as_str()) {
            return Err(Refusal::new("InvalidScheme", format!("no scheme {scheme}")));
        }
        let ip_type = self
            .form
            .maybe("IpAddressType")
            .unwrap_or("ipv4")
            .to_owned();
        if ip_type != "ipv4" {
            return Err(Refusal::new(
                "InvalidConfigurationRequest",
                format!("subnets here have no IPv6 ranges for {ip_type}"),
            ));
        }
        let subnets = self.subnets()?;
        let groups: Vec<String> = self
            .form
            .list("SecurityGroups")
            .into_iter()
            .map(str::to_owned)
            .collect();
        self.check_groups(&groups)?;
        let tags = self.form.pairs("Tags");
        tags::check(&tags)?;
        let there = self.account.balancers.values().find(|lb| lb.name == name);
        if let Some(there) = there {
            let ids = |all: &[(String, String, IpAddr)]| -> BTreeSet<String> {
                all.iter().map(|(id, ..)| id.clone()).collect()
            };
            let same = there.scheme == scheme
                && there.security_groups == groups
                && ids(&there.subnets) == subnets.iter().map(|(id, _)| id.clone()).collect();
            if !same {
                let message = format!(
                    "A load balancer with the same name '{name}' exists, but with different settings"
                );
                return Err(Refusal::new("DuplicateLoadBalancerName", message));
            }
            let there = there.clone();
            return Ok(members(
                "LoadBalancers",
                [self.balancer_xml(&there)].into_iter(),
            ));
        }
        let made = self.make_balancer((name, scheme, ip_type), subnets, (groups, tags))?;
        Ok(members(
            "LoadBalancers",
            [self.balancer_xml(&made)].into_iter(),
        ))
    }

    fn make_balancer(
        &mut self,
        (name, scheme, ip_type): (String, String, String),
        subnets: Vec<(String, String)>,
        (security_groups, tags): (Vec<String>, Tags),
    ) -> Result<Balancer, Refusal> {
        let number = self.account.next_number();
        let id = format!("{number:016x}");
        let mut placed: Vec<(String, String, IpAddr)> = Vec::new();
        let mut balancer = Balancer {
            arn: self.account.arn(&format!("loadbalancer/net/{name}/{id}")),
            dns: format!("{name}-{id}.elb.{}.amazonaws.com", self.account.region),
            engine: "".into(),
            created: self.cloud.clock().now(),
            subnets: Vec::new(),
            attributes: DEFAULTS.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            name,
            scheme,
            ip_type,
            security_groups,
            tags,
        };
        for (id, zone) in subnets {
            balancer.subnets.clone_from(&placed);
            let taken = |address: &IpAddr| placed.iter().any(|(_, _, a)| a == address);
            // Counted as taken while it is being placed.
            self.account
                .balancers
                .insert(balancer.arn.clone(), balancer.clone());
            let address = self.account.free_address().map(IpAddr::V4);
            self.account.balancers.remove(&balancer.arn);
            let address = address?;
            debug_assert!(!taken(&address));
            placed.push((id, zone, address));
        }
        balancer.subnets = placed;
        let (arn, spec) = (balancer.arn.clone(), engine_spec(&balancer));
        let made = self
            .cloud
            .with(|engine, now| engine.create_lb(now, &arn, spec))?;
        balancer.engine = made.id;
        self.account.balancers.insert(arn, balancer.clone());
        Ok(balancer)
    }

    /// Subnets of the call with their zones, one a zone.
    fn subnets(&self) -> Result<Vec<(String, String)>, Refusal> {
        let mappings = self.form.entries("SubnetMappings");
        let ids: Vec<String> = if mappings.is_empty() {
            self.form
                .list("Subnets")
                .into_iter()
                .map(str::to_owned)
                .collect()
        } else {
            let id = |stem: &String| self.form.text(&format!("{stem}.SubnetId")).to_owned();
            mappings.iter().map(id).collect()
        };
        let unsupported = mappings.iter().any(|stem| {
            self.form.maybe(&format!("{stem}.AllocationId")).is_some()
                || self
                    .form
                    .maybe(&format!("{stem}.PrivateIPv4Address"))
                    .is_some()
        });
        if unsupported {
            let message = "addresses of one's own are not here: AllocationIdNotFound";
            return Err(Refusal::new("AllocationIdNotFound", message));
        }
        let mut zones: BTreeMap<String, String> = BTreeMap::new();
        let mut all = Vec::new();
        for id in ids {
            let subnet = self.account.subnets.get(&id);
            let missing = || {
                Refusal::new(
                    "SubnetNotFound",
                    format!("The subnet ID '{id}' does not exist"),
                )
            };
            let subnet = subnet.ok_or_else(missing)?;
            if zones.insert(subnet.zone.clone(), id.clone()).is_some() {
                let message = "A load balancer cannot be attached to multiple subnets in the same Availability Zone";
                return Err(Refusal::new("InvalidConfigurationRequest", message));
            }
            all.push((id.clone(), subnet.zone.clone()));
        }
        if all.is_empty() {
            return Err(Refusal::validation("at least one subnet must be specified"));
        }
        Ok(all)
    }

    fn check_groups(&self, groups: &[String]) -> Result<(), Refusal> {
        let missing = groups
            .iter()
            .find(|id| !self.account.security_groups.contains_key(*id));
        missing.map_or(Ok(()), |id| {
            Err(Refusal::new(
                "InvalidSecurityGroup",
                format!("security group {id} does not exist"),
            ))
        })
    }

    pub(super) fn describe_balancers(&mut self) -> Answer {
        let arns = self.form.list("LoadBalancerArns");
        let names = self.form.list("Names");
        for arn in &arns {
            self.account.balancer(arn)?;
        }
        let known = |name: &&&str| self.account.balancers.values().any(|lb| lb.name == **name);
        if let Some(name) = names.iter().find(|name| !known(name)) {
            return Err(Refusal::new(
                "LoadBalancerNotFound",
                format!("Load balancer '{name}' not found"),
            ));
        }
        let asked = |lb: &&Balancer| {
            (arns.is_empty() && names.is_empty())
                || arns.contains(&lb.arn.as_str())
                || names.contains(&lb.name.as_str())
        };
        let all: Vec<Balancer> = self
            .account
            .balancers
            .values()
            .filter(asked)
            .cloned()
            .collect();
        let (page, next) = self.page(all, |lb| &lb.arn)?;
        let list = members("LoadBalancers", page.iter().map(|lb| self.balancer_xml(lb)));
        Ok(list + &next)
    }

    /// One page of a list that is ordered by id, and the marker of the next one (AWS-707).
    pub(super) fn page<T: Clone>(
        &self,
        all: Vec<T>,
        id: impl Fn(&T) -> &String,
    ) -> Result<(Vec<T>, String), Refusal> {
        let size = self.form.number("PageSize", (1, PAGE))?.unwrap_or(PAGE);
        let after = self.form.text("Marker");
        let rest: Vec<T> = all
            .into_iter()
            .filter(|entry| id(entry).as_str() > after)
            .collect();
        let page = rest[..size.min(rest.len())].to_vec();
        let next = if rest.len() > size {
            page.last()
                .map(|last| el("NextMarker", id(last)))
                .unwrap_or_default()
        } else {
            String::new()
        };
        Ok((page, next))
    }

    pub(super) fn balancer_xml(&self, lb: &Balancer) -> String {
        let state = self.cloud.with(|engine, now| {
            engine.advance(now);
            engine
                .inventory()
                .load_balancers
                .into_iter()
                .find(|found| found.id == lb.engine)
        });
        let state = match state.map(|found| found.state) {
            Some(LbState::Active) => "active",
            Some(LbState::Failed) => "failed",
            Some(LbState::Provisioning) | None => "provisioning",
        };
        let zone = |(subnet, zone, address): &(String, String, IpAddr)| {
            let addresses = members(
                "LoadBalancerAddresses",
                [el("IpAddress", address)].into_iter(),
            );
            el("ZoneName", zone) + &el("SubnetId", subnet) + &addresses
        };
        let groups = lb
            .security_groups
            .iter()
            .map(|id| wrap("member", id))
            .collect::<String>();
        [
            el("LoadBalancerArn", &lb.arn),
            el("DNSName", &lb.dns),
            el("CanonicalHostedZoneId", "Z00000000000000000000"),
            el("CreatedTime", lb.created),
            el("LoadBalancerName", &lb.name),
            el("Scheme", &lb.scheme),
            el("VpcId", &self.account.vpc),
            wrap("State", el("Code", state)),
            el("Type", "network"),
            members("AvailabilityZones", lb.subnets.iter().map(zone)),
            wrap("SecurityGroups", groups),
            el("IpAddressType", &lb.ip_type),
        ]
        .concat()
    }

    pub(super) fn delete_balancer(&mut self) -> Answer {
        let arn = self.form.need("LoadBalancerArn")?;
        // Deleting what is not there succeeds.
        let Some(lb) = self.account.balancers.get(arn).cloned() else {
            return Ok(String::new());
        };
        if lb
            .attributes
            .get(PROTECTION)
            .is_some_and(|value| value == "true")
        {
            let message = format!(
                "Load balancer '{arn}' cannot be deleted because deletion protection is enabled"
            );
            return Err(Refusal::new("OperationNotPermitted", message));
        }
        self.cloud
            .with(|engine, now| engine.delete_lb(now, &lb.engine))?;
        self.account.balancers.remove(arn);
        self.account
            .listeners
            .retain(|_, listener| listener.balancer != arn);
        Ok(String::new())
    }

    pub(super) fn balancer_attributes(&mut self) -> Answer {
        let arn = self.form.need("LoadBalancerArn")?;
        Ok(tags::attributes(&self.account.balancer(arn)?.attributes))
    }

    pub(super) fn set_balancer_attributes(&mut self) -> Answer {
        let arn = self.form.need("LoadBalancerArn")?;
        let asked = self.form.pairs("Attributes");
        check_attributes(&asked, &DEFAULTS)?;
        let lb = self.account.balancer(arn)?;
        lb.attributes.extend(asked);
        let (lb, spec) = (lb.clone(), engine_spec(lb));
        self.cloud
            .with(|engine, now| engine.update_lb(now, &lb.engine, spec))?;
        Ok(tags::attributes(&lb.attributes))
    }

    pub(super) fn set_security_groups(&mut self) -> Answer {
        let arn = self.form.need("LoadBalancerArn")?;
        let groups: Vec<String> = self
            .form
            .list("SecurityGroups")
            .into_iter()
            .map(str::to_owned)
            .collect();
        self.check_groups(&groups)?;
        let lb = self.account.balancer(arn)?;
        if lb.security_groups.is_empty() != groups.is_empty() {
            let message = "You cannot add security groups to a load balancer that was created without, nor remove all";
            return Err(Refusal::new("InvalidConfigurationRequest", message));
        }
        lb.security_groups.clone_from(&groups);
        let list: String = groups.iter().map(|id| wrap("member", id)).collect();
        Ok(wrap("SecurityGroupIds", list))
    }

    pub(super) fn set_subnets(&mut self) -> Answer {
        let arn = self.form.need("LoadBalancerArn")?;
        let subnets = self.subnets()?;
        let mut lb = self.account.balancer(arn)?.clone();
        let old = std::mem::take(&mut lb.subnets);
        for (id, zone) in subnets {
            let kept = old.iter().find(|(known, ..)| *known == id);
            let address = match kept {
                Some((_, _, address)) => *address,
                None => self.account.free_address()?.into(),
            };
            lb.subnets.push((id, zone, address));
            self.account.balancers.insert(lb.arn.clone(), lb.clone());
        }
        let spec = engine_spec(&lb);
        self.cloud
            .with(|engine, now| engine.update_lb(now, &lb.engine, spec))?;
        let xml = self.balancer_xml(&lb);
        let from = xml.find("<AvailabilityZones>").unwrap_or(0);
        let to = xml.find("<SecurityGroups>").unwrap_or(xml.len());
        Ok(xml[from..to].to_owned() + &el("IpAddressType", &lb.ip_type))
    }
}

/// AWS-757 and what AWS asks of names beside their length.
pub(super) fn check_name(name: &str) -> Result<(), Refusal> {
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    let fits = (1..=32).contains(&name.len()) && !name.starts_with('-') && !name.ends_with('-');
    if plain && fits && !name.starts_with("internal-") {
        return Ok(());
    }
    Err(Refusal::validation(format!(
        "the name '{name}' is not allowed: 1 to 32 letters, digits and hyphens"
    )))
}

/// Keys that there are, and booleans where the default is one.
pub(super) fn check_attributes(
    asked: &BTreeMap<String, String>,
    known: &[(&str, &str)],
) -> Result<(), Refusal> {
    if asked.is_empty() {
        return Err(Refusal::validation("Attributes is empty"));
    }
    for (key, value) in asked {
        let Some((_, default)) = known.iter().find(|(name, _)| name == key) else {
            let message =
                format!("Load balancer or target group attribute key '{key}' is not recognized");
            return Err(Refusal::validation(message));
        };
        let boolean = ["true", "false"].contains(default);
        if boolean && !["true", "false"].contains(&value.as_str()) {
            return Err(Refusal::validation(format!(
                "'{key}' must be true or false, not '{value}'"
            )));
        }
    }
    Ok(())
}

fn engine_spec(lb: &Balancer) -> LbSpec {
    LbSpec {
        name: lb.name.clone(),
        tags: lb.tags.clone(),
        addresses: lb.addresses(),
        zones: lb.subnets.iter().map(|(_, zone, _)| zone.clone()).collect(),
        cross_zone: lb
            .attributes
            .get(CROSS_ZONE)
            .is_some_and(|value| value == "true"),
        preserve_client_ip: true,
        sharing_key: None,
    }
}
