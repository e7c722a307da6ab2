//! Entries of EC2's lists: read from its answers, and rules written to its forms (AWS-906).

use std::collections::BTreeMap;

use super::ec2::Form;
use super::xml::Element;
use crate::cloud::aws::interfaces::Interface;
use crate::cloud::aws::model::{Rule, RuleSource, SecurityGroup, Subnet};
use crate::cloud::aws::names::Tags;

pub(super) fn tags(of: &Element) -> Tags {
    let pairs = of.items("tagSet");
    pairs
        .map(|tag| {
            (
                tag.text_of("key").to_owned(),
                tag.text_of("value").to_owned(),
            )
        })
        .collect()
}

pub(super) fn subnet(of: &Element) -> Subnet {
    let associated = |entry: &&Element| {
        let state = entry.child("ipv6CidrBlockState");
        state.is_some_and(|state| state.text_of("state") == "associated")
    };
    let six = of.items("ipv6CidrBlockAssociationSet").filter(associated);
    Subnet {
        id: of.text_of("subnetId").to_owned(),
        zone: of.text_of("availabilityZone").to_owned(),
        cidr: of.text_of("cidrBlock").parse().ok(),
        ipv6: six
            .filter_map(|entry| entry.text_of("ipv6CidrBlock").parse().ok())
            .collect(),
        free: of
            .text_of("availableIpAddressCount")
            .parse()
            .unwrap_or_default(),
        tags: tags(of),
        public: None,
    }
}

pub(super) fn interface(of: &Element) -> Interface {
    let texts = |list, name| of.items(list).map(move |entry| entry.text_of(name));
    let four = texts("privateIpAddressesSet", "privateIpAddress");
    let six = texts("ipv6AddressesSet", "ipv6Address");
    let prefixes = texts("ipv4PrefixSet", "ipv4Prefix").chain(texts("ipv6PrefixSet", "ipv6Prefix"));
    let attachment = of.child("attachment");
    let primary = attachment.filter(|of| of.text_of("deviceIndex") == "0");
    let instance = primary.map(|of| of.text_of("instanceId").to_owned());
    Interface {
        id: of.text_of("networkInterfaceId").to_owned(),
        groups: texts("groupSet", "groupId").map(str::to_owned).collect(),
        addresses: four
            .chain(six)
            .filter_map(|text| text.parse().ok())
            .collect(),
        prefixes: prefixes.filter_map(|text| text.parse().ok()).collect(),
        primary_of: instance.filter(|id| !id.is_empty()),
    }
}

pub(super) fn security_group(of: &Element) -> SecurityGroup {
    let mut rules = BTreeMap::new();
    for permission in of.items("ipPermissions") {
        let Some(protocol) = protocol(permission.text_of("ipProtocol")) else {
            continue;
        };
        let number = |name| permission.text_of(name).parse().unwrap_or(-1);
        let mut put = |source, entry: &Element| {
            let rule = Rule {
                protocol,
                from: number("fromPort"),
                to: number("toPort"),
                source,
            };
            rules.insert(rule, entry.text_of("description").to_owned());
        };
        for (list, name) in [("ipRanges", "cidrIp"), ("ipv6Ranges", "cidrIpv6")] {
            for entry in permission.items(list) {
                if let Ok(range) = entry.text_of(name).parse() {
                    put(RuleSource::Cidr(range), entry);
                }
            }
        }
        for entry in permission.items("prefixListIds") {
            put(
                RuleSource::PrefixList(entry.text_of("prefixListId").to_owned()),
                entry,
            );
        }
        for entry in permission.items("groups") {
            put(
                RuleSource::Group(entry.text_of("groupId").to_owned()),
                entry,
            );
        }
    }
    SecurityGroup {
        id: of.text_of("groupId").to_owned(),
        name: of.text_of("groupName").to_owned(),
        tags: tags(of),
        rules,
    }
}

/// Protocols of rules that are ours to make; others are nobody's business here.
fn protocol(word: &str) -> Option<&'static str> {
    ["tcp", "udp", "icmp", "icmpv6"]
        .into_iter()
        .find(|known| *known == word)
}

/// One permission for each rule, with our description.
pub(super) fn rules_form(group: &str, rules: &[Rule], description: &str) -> Form {
    let mut form = vec![("GroupId".to_owned(), group.to_owned())];
    for (index, rule) in rules.iter().enumerate() {
        let stem = format!("IpPermissions.{}", index + 1);
        let mut put = |key: &str, value: String| form.push((format!("{stem}.{key}"), value));
        put("IpProtocol", rule.protocol.to_owned());
        put("FromPort", rule.from.to_string());
        put("ToPort", rule.to.to_string());
        let (list, key, value) = match &rule.source {
            RuleSource::Cidr(range) if range.net().addr().is_ipv4() => {
                ("IpRanges", "CidrIp", range.to_string())
            }
            RuleSource::Cidr(range) => ("Ipv6Ranges", "CidrIpv6", range.to_string()),
            RuleSource::PrefixList(id) => ("PrefixListIds", "PrefixListId", id.clone()),
            RuleSource::Group(id) => ("Groups", "GroupId", id.clone()),
        };
        put(&format!("{list}.1.{key}"), value);
        put(&format!("{list}.1.Description"), description.to_owned());
    }
    form
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aws906_lists_have_ec2s_form_without_member() {
        let rule = Rule {
            protocol: "tcp",
            from: 80,
            to: 80,
            source: RuleSource::Cidr("10.0.0.0/8".parse().unwrap()),
        };
        let form = rules_form("sg-1", &[rule], "onehop.dev/install=i");
        let keys: Vec<_> = form.iter().map(|(key, _)| key.as_str()).collect();
        let expected = [
            "GroupId",
            "IpPermissions.1.IpProtocol",
            "IpPermissions.1.FromPort",
            "IpPermissions.1.ToPort",
            "IpPermissions.1.IpRanges.1.CidrIp",
            "IpPermissions.1.IpRanges.1.Description",
        ];
        assert_eq!(keys, expected);
    }
}
