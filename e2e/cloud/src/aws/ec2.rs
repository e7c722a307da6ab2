//! EC2: network and security groups.

use std::collections::BTreeMap;

use super::account::{Interface, RuleKey, SecurityGroup};
use super::error::Refusal;
use super::tags;
use super::xml::{el, items, wrap};
use super::{Answer, Call};

/// Inbound rules of one security group (AWS-758).
const RULES: usize = 60;

impl Call<'_> {
    pub(super) fn ec2(&mut self, action: &str) -> Answer {
        // A dry run comes after the check of rights (AWS-844).
        if self.form.text("DryRun") == "true" {
            let message = "Request would have succeeded, but DryRun flag is set";
            return Err(Refusal::new("DryRunOperation", message));
        }
        let inner = match action {
            "DescribeVpcs" => self.vpcs(),
            "DescribeSubnets" => self.describe_subnets(),
            "DescribeSecurityGroups" => self.describe_security_groups(),
            "DescribeNetworkInterfaces" => self.describe_network_interfaces(),
            "CreateSecurityGroup" => self.create_security_group(),
            "DeleteSecurityGroup" => self.delete_security_group(),
            "AuthorizeSecurityGroupIngress" => self.authorize(),
            "RevokeSecurityGroupIngress" => self.revoke(),
            "CreateTags" => self.set_security_tags(),
            "DeleteTags" => self.delete_security_tags(),
            _ => Err(Refusal::new(
                "InvalidAction",
                format!("no action {action} here"),
            )),
        }?;
        let request = self.account.request_id();
        let space = "http://ec2.amazonaws.com/doc/2016-11-15/";
        Ok(format!(
            "<{action}Response xmlns=\"{space}\"><requestId>{request}</requestId>{inner}</{action}Response>"
        ))
    }

    fn vpcs(&self) -> Answer {
        let asked = self.form.list("VpcId");
        if let Some(id) = asked.iter().find(|id| **id != self.account.vpc) {
            return Err(Refusal::new(
                "InvalidVpcID.NotFound",
                format!("The vpc ID '{id}' does not exist"),
            ));
        }
        let ranges = self.account.ranges.iter().map(|range| {
            el("cidrBlock", range) + &wrap("cidrBlockState", el("state", "associated"))
        });
        let vpc = el("vpcId", &self.account.vpc) + &items("cidrBlockAssociationSet", ranges);
        Ok(items("vpcSet", [vpc].into_iter()))
    }

    /// Whether an object passes the filters that are understood here.
    fn passes(&self, vpc: &str, own: &BTreeMap<String, String>) -> Result<bool, Refusal> {
        for stem in self.form.entries("Filter") {
            let name = self.form.text(&format!("{stem}.Name")).to_owned();
            let values = self.form.list(&format!("{stem}.Value"));
            let value = match name.split_once(':') {
                None if name == "vpc-id" => Some(vpc),
                Some(("tag", key)) => own.get(key).map(String::as_str),
                _ => {
                    return Err(Refusal::new(
                        "InvalidParameterValue",
                        format!("The filter '{name}' is invalid"),
                    ));
                }
            };
            if !value.is_some_and(|value| values.contains(&value)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn describe_subnets(&self) -> Answer {
        let mut all = Vec::new();
        for subnet in self.account.subnets.values() {
            if !self.passes(&self.account.vpc, &subnet.tags)? {
                continue;
            }
            all.push(
                [
                    el("subnetId", &subnet.id),
                    el("vpcId", &self.account.vpc),
                    el("availabilityZone", &subnet.zone),
                    el("cidrBlock", subnet.range),
                    el("availableIpAddressCount", 200),
                    tag_set(&subnet.tags),
                ]
                .concat(),
            );
        }
        Ok(items("subnetSet", all.into_iter()))
    }

    fn describe_security_groups(&self) -> Answer {
        let asked = self.form.list("GroupId");
        let missing = asked
            .iter()
            .find(|id| !self.account.security_groups.contains_key(**id));
        if let Some(id) = missing {
            return Err(not_found(id));
        }
        let mut all = Vec::new();
        for group in self.account.security_groups.values() {
            let named = asked.is_empty() || asked.contains(&group.id.as_str());
            if !named || !self.passes(&self.account.vpc, &group.tags)? {
                continue;
            }
            all.push(
                [
                    el("groupId", &group.id),
                    el("groupName", &group.name),
                    el("groupDescription", &group.description),
                    el("vpcId", &self.account.vpc),
                    items("ipPermissions", group.rules.iter().map(permission)),
                    tag_set(&group.tags),
                ]
                .concat(),
            );
        }
        Ok(items("securityGroupInfo", all.into_iter()))
    }

    /// Each machine's primary interface, and all others.
    fn describe_network_interfaces(&self) -> Answer {
        if !self.passes(&self.account.vpc, &BTreeMap::new())? {
            return Ok(items("networkInterfaceSet", std::iter::empty()));
        }
        let account = &self.account;
        let first = || account.security_groups.values().find(|g| !g.made_by_call);
        let machines = account.machines.values().map(|machine| {
            let mut groups = machine.security_groups.clone();
            if groups.is_empty() {
                groups.extend(first().map(|group| group.id.clone()));
            }
            let attachment = el("instanceId", &machine.id) + &el("deviceIndex", 0);
            let own = Interface {
                id: machine.id.replacen("i-", "eni-", 1),
                addresses: vec![machine.address],
                prefixes: Vec::new(),
                security_groups: groups,
            };
            interface(&account.vpc, &own) + &wrap("attachment", attachment)
        });
        let others = account
            .interfaces
            .iter()
            .map(|one| interface(&account.vpc, one));
        let all: Vec<String> = machines.chain(others).collect();
        Ok(items("networkInterfaceSet", all.into_iter()))
    }

    fn create_security_group(&mut self) -> Answer {
        let name = self.form.need("GroupName")?.to_owned();
        let description = self.form.need("GroupDescription")?.to_owned();
        let allowed = |text: &str| {
            text.chars()
                .all(|c| c.is_ascii_alphanumeric() || " ._-:/()#,@[]+=&;{}!$*".contains(c))
        };
        if name.len() > 255
            || description.len() > 255
            || !allowed(&name)
            || !allowed(&description)
            || name.starts_with("sg-")
        {
            return Err(Refusal::new(
                "InvalidParameterValue",
                format!("the name '{name}' or its description is not allowed"),
            ));
        }
        if self.form.text("VpcId") != self.account.vpc {
            return Err(Refusal::new("InvalidVpcID.NotFound", "no such VPC"));
        }
        if self
            .account
            .security_groups
            .values()
            .any(|group| group.name == name)
        {
            let message = format!("The security group '{name}' already exists");
            return Err(Refusal::new("InvalidGroup.Duplicate", message));
        }
        let mut own = BTreeMap::new();
        for stem in self.form.entries("TagSpecification") {
            own.extend(self.form.pairs(&format!("{stem}.Tag")));
        }
        tags::check(&own)?;
        let id = format!("sg-{:017x}", self.account.next_number());
        let group = SecurityGroup {
            id: id.clone(),
            name,
            description,
            made_by_call: true,
            tags: own,
            rules: BTreeMap::new(),
        };
        self.account.security_groups.insert(id.clone(), group);
        Ok(el("groupId", &id))
    }

    fn delete_security_group(&mut self) -> Answer {
        let id = self.form.need("GroupId")?;
        if !self.account.security_groups.contains_key(id) {
            return Err(not_found(id));
        }
        let used = self
            .account
            .balancers
            .values()
            .any(|lb| lb.security_groups.iter().any(|g| g == id));
        let named = self
            .account
            .security_groups
            .values()
            .any(|group| group.id != id && group.rules.keys().any(|rule| rule.source == id));
        if used || named {
            let message = format!("resource {id} has a dependent object");
            return Err(Refusal::new("DependencyViolation", message));
        }
        self.account.security_groups.remove(id);
        Ok(el("return", true))
    }

    fn authorize(&mut self) -> Answer {
        let (id, asked) = self.asked()?;
        for (rule, _) in &asked {
            if rule.kind == "group" && !self.account.security_groups.contains_key(&rule.source) {
                return Err(not_found(&rule.source));
            }
        }
        let group = self
            .account
            .security_groups
            .get_mut(&id)
            .ok_or_else(|| not_found(&id))?;
        // FC-99a: the description does not tell two rules apart. Nothing of the call is done then.
        if let Some((rule, _)) = asked
            .iter()
            .find(|(rule, _)| group.rules.contains_key(rule))
        {
            let message = format!(
                "the specified rule \"peer: {}, {}, from port: {}, to port: {}, ALLOW\" already exists",
                rule.source, rule.protocol, rule.from, rule.to
            );
            return Err(Refusal::new("InvalidPermission.Duplicate", message));
        }
        if group.rules.len() + asked.len() > RULES {
            let message =
                format!("The maximum number of rules per security group has been reached: {RULES}");
            return Err(Refusal::new("RulesPerSecurityGroupLimitExceeded", message));
        }
        group.rules.extend(asked);
        Ok(el("return", true))
    }

    fn revoke(&mut self) -> Answer {
        let (id, asked) = self.asked()?;
        let group = self
            .account
            .security_groups
            .get_mut(&id)
            .ok_or_else(|| not_found(&id))?;
        if let Some((rule, _)) = asked
            .iter()
            .find(|(rule, _)| !group.rules.contains_key(rule))
        {
            let message =
                format!("The specified rule does not exist in this security group: {rule:?}");
            return Err(Refusal::new("InvalidPermission.NotFound", message));
        }
        for (rule, _) in asked {
            group.rules.remove(&rule);
        }
        Ok(el("return", true))
    }

    /// The security groups of a call about tags; no other resource has tags that can be changed here.
    fn tagged(&self) -> Result<Vec<String>, Refusal> {
        let ids = self.form.list("ResourceId");
        if ids.is_empty() {
            return Err(Refusal::missing("ResourceId"));
        }
        let known = |id: &&str| self.account.security_groups.contains_key(*id);
        match ids.iter().find(|id| !known(id)) {
            Some(id) => Err(not_found(id)),
            None => Ok(ids.into_iter().map(str::to_owned).collect()),
        }
    }

    fn set_security_tags(&mut self) -> Answer {
        let own = self.form.pairs("Tag");
        for id in self.tagged()? {
            let Some(group) = self.account.security_groups.get_mut(&id) else {
                continue;
            };
            let mut all = group.tags.clone();
            all.extend(own.clone());
            tags::check(&all)?;
            group.tags = all;
        }
        Ok(el("return", true))
    }

    fn delete_security_tags(&mut self) -> Answer {
        let keys: Vec<String> = self.form.pairs("Tag").into_keys().collect();
        for id in self.tagged()? {
            if let Some(group) = self.account.security_groups.get_mut(&id) {
                group.tags.retain(|key, _| !keys.contains(key));
            }
        }
        Ok(el("return", true))
    }

    /// The group and the rules of a call, each with its description.
    fn asked(&self) -> Result<(String, Vec<(RuleKey, String)>), Refusal> {
        let id = self.form.need("GroupId")?.to_owned();
        let mut rules = Vec::new();
        for stem in self.form.entries("IpPermissions") {
            let protocol = self.form.need(&format!("{stem}.IpProtocol"))?.to_owned();
            let number = |name: &str| -> Result<i32, Refusal> {
                let number = self.form.number(&format!("{stem}.{name}"), (-1, 65535))?;
                number.ok_or_else(|| Refusal::missing(name))
            };
            let (from, to) = (number("FromPort")?, number("ToPort")?);
            let lists = [
                ("IpRanges", "CidrIp", "range"),
                ("Ipv6Ranges", "CidrIpv6", "range6"),
                ("PrefixListIds", "PrefixListId", "list"),
                ("Groups", "GroupId", "group"),
            ];
            for (list, key, kind) in lists {
                for entry in self.form.entries(&format!("{stem}.{list}")) {
                    let rule = RuleKey {
                        protocol: protocol.clone(),
                        from,
                        to,
                        kind,
                        source: self.form.need(&format!("{entry}.{key}"))?.to_owned(),
                    };
                    rules.push((
                        rule,
                        self.form.text(&format!("{entry}.Description")).to_owned(),
                    ));
                }
            }
        }
        if rules.is_empty() {
            return Err(Refusal::new("MissingParameter", "no rule is given"));
        }
        Ok((id, rules))
    }
}

fn interface(vpc: &str, of: &Interface) -> String {
    let four = of.addresses.iter().filter(|address| address.is_ipv4());
    let six = of.addresses.iter().filter(|address| address.is_ipv6());
    let prefixes = of.prefixes.iter();
    [
        el("networkInterfaceId", &of.id),
        el("vpcId", vpc),
        items(
            "groupSet",
            of.security_groups.iter().map(|id| el("groupId", id)),
        ),
        items(
            "privateIpAddressesSet",
            four.map(|address| el("privateIpAddress", address)),
        ),
        items(
            "ipv6AddressesSet",
            six.map(|address| el("ipv6Address", address)),
        ),
        items(
            "ipv4PrefixSet",
            prefixes
                .clone()
                .filter(|range| range.addr().is_ipv4())
                .map(|range| el("ipv4Prefix", range)),
        ),
        items(
            "ipv6PrefixSet",
            prefixes
                .filter(|range| range.addr().is_ipv6())
                .map(|range| el("ipv6Prefix", range)),
        ),
    ]
    .concat()
}

fn permission((rule, description): (&RuleKey, &String)) -> String {
    let (list, name) = match rule.kind {
        "range" => ("ipRanges", "cidrIp"),
        "range6" => ("ipv6Ranges", "cidrIpv6"),
        "list" => ("prefixListIds", "prefixListId"),
        _ => ("groups", "groupId"),
    };
    let source = el(name, &rule.source) + &el("description", description);
    [
        el("ipProtocol", &rule.protocol),
        el("fromPort", rule.from),
        el("toPort", rule.to),
        items(list, [source].into_iter()),
    ]
    .concat()
}

fn tag_set(all: &BTreeMap<String, String>) -> String {
    items(
        "tagSet",
        all.iter()
            .map(|(key, value)| el("key", key) + &el("value", value)),
    )
}

fn not_found(id: &str) -> Refusal {
    Refusal::new(
        "InvalidGroup.NotFound",
        format!("The security group '{id}' does not exist"),
    )
}
