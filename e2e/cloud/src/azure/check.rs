//! What Azure refuses (AZ-380, AZ-438 to AZ-444, AZ-495).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::Value;

use super::error::Refusal;
use super::resources::Subscription;
use super::store::{CHILDREN, child, list};

/// Limits of one load balancer (AZ-430, AZ-432) and of one security group (AZ-441).
const MOST_RULES: usize = 1500;
const MOST_FRONTENDS: usize = 600;
const MOST_SECURITY_RULES: usize = 1000;
const MOST_PREFIXES: usize = 4000;
const LONGEST_NAME: usize = 80;

/// Refuses a document that Azure would refuse.
pub(super) fn document(
    subscription: &Subscription,
    kind: &str,
    id: &str,
    document: &Value,
) -> Result<(), Refusal> {
    tags(document)?;
    match kind {
        "loadBalancers" => balancer(subscription, id, document),
        "publicIPAddresses" => public_ip(subscription, id, document),
        "networkSecurityGroups" => security_group(document),
        _ => Ok(()),
    }
}

/// Refuses to delete what is in use.
pub(super) fn delete(kind: &str, document: &Value) -> Result<(), Refusal> {
    let holder = &document["properties"]["ipConfiguration"]["id"];
    if kind == "publicIPAddresses" && holder.is_string() {
        let message = format!(
            "Public IP address {} is still held by {holder}.",
            document["name"]
        );
        return Err(Refusal::bad("PublicIPAddressCannotBeDeleted", message));
    }
    Ok(())
}

/// Actions on other resources that a document needs: what it takes into use.
pub(super) fn joins(document: &Value) -> Vec<&'static str> {
    let text = document["properties"].to_string();
    let joins = [
        (
            "\"publicIPAddress\":",
            "Microsoft.Network/publicIPAddresses/join/action",
        ),
        (
            "\"publicIPPrefix\":",
            "Microsoft.Network/publicIPPrefixes/join/action",
        ),
        (
            "\"virtualNetwork\":",
            "Microsoft.Network/virtualNetworks/joinLoadBalancer/action",
        ),
        (
            "\"subnet\":",
            "Microsoft.Network/virtualNetworks/subnets/join/action",
        ),
    ];
    let needed = joins.into_iter().filter(|(key, _)| text.contains(key));
    needed.map(|(_, action)| action).collect()
}

fn tags(document: &Value) -> Result<(), Refusal> {
    let tags = document["tags"].as_object();
    for (key, value) in tags.into_iter().flatten() {
        let wrong = key.contains(['<', '>', '%', '&', '\\', '?', '/']) || key.len() > 512;
        let long = value.as_str().is_none_or(|value| value.len() > 256);
        if wrong || long {
            return Err(Refusal::bad(
                "InvalidTag",
                format!("the tag {key:?} has a wrong name or too long a value"),
            ));
        }
    }
    if tags.is_some_and(|tags| tags.len() > 50) {
        return Err(Refusal::bad("InvalidTag", "more than 50 tags"));
    }
    Ok(())
}

/// The frontend's private address.
pub(super) fn private_address(frontend: &Value) -> Option<IpAddr> {
    frontend["properties"]["privateIPAddress"]
        .as_str()?
        .parse()
        .ok()
}

/// A frontend's address.
pub(super) fn address(subscription: &Subscription, frontend: &Value) -> Option<IpAddr> {
    match frontend["properties"]["publicIPAddress"]["id"].as_str() {
        Some(pip) => subscription.show(pip)?["properties"]["ipAddress"]
            .as_str()?
            .parse()
            .ok(),
        None => private_address(frontend),
    }
}

/// The name at the end of a reference, if it is to something of this very load balancer.
fn refers<'a>(child: &'a Value, key: &str, id: &str, kind: &str) -> Option<&'a str> {
    let reference = child["properties"][key]["id"].as_str()?;
    let (of, name) = reference.rsplit_once('/')?;
    of.eq_ignore_ascii_case(&format!("{id}/{kind}"))
        .then_some(name)
}

fn balancer(subscription: &Subscription, id: &str, document: &Value) -> Result<(), Refusal> {
    if document["sku"]["name"] != "Standard" {
        return Err(Refusal::bad(
            "InvalidSku",
            "only load balancers of SKU Standard are here",
        ));
    }
    for kind in CHILDREN {
        let mut names = BTreeSet::new();
        for child in list(document, kind) {
            let name = child["name"].as_str().unwrap_or_default();
            if name.is_empty() || name.len() > LONGEST_NAME {
                return Err(Refusal::bad(
                    "InvalidResourceName",
                    format!("{kind}: the name {name:?}"),
                ));
            }
            if !names.insert(name.to_lowercase()) {
                return Err(Refusal::bad(
                    "DuplicateResourceName",
                    format!("{kind} has {name} twice"),
                ));
            }
        }
    }
    let frontends = list(document, "frontendIPConfigurations");
    let has_children = CHILDREN
        .iter()
        .skip(1)
        .any(|kind| !list(document, kind).is_empty());
    if frontends.is_empty() && has_children {
        let message = "a load balancer without frontends can have no children";
        return Err(Refusal::bad(
            "LoadBalancerWithoutFrontendIPCantHaveChildResources",
            message,
        ));
    }
    if frontends.len() > MOST_FRONTENDS {
        return Err(Refusal::bad(
            "LoadBalancerFrontendIPConfigurationCountLimitReached",
            "600",
        ));
    }
    check_frontends(subscription, id, frontends)?;
    for pool in list(document, "backendAddressPools") {
        check_pool(pool)?;
    }
    for probe in list(document, "probes") {
        check_probe(probe)?;
    }
    check_rules(id, document)
}

fn check_frontends(
    subscription: &Subscription,
    id: &str,
    frontends: &[Value],
) -> Result<(), Refusal> {
    let six = |frontend: &Value| {
        let private = frontend["properties"]["privateIPAddressVersion"] == "IPv6";
        private || address(subscription, frontend).is_some_and(|address| address.is_ipv6())
    };
    if !frontends.is_empty() && frontends.iter().all(six) {
        let code = "AtleastOneIpV4RequiredForIpV6LbFrontendIpConfiguration";
        return Err(Refusal::bad(code, "there is no IPv4 frontend"));
    }
    let mut public: BTreeMap<String, &str> = BTreeMap::new();
    for frontend in frontends {
        let name = frontend["name"].as_str().unwrap_or_default();
        let own = format!("{id}/frontendIPConfigurations/{name}");
        match frontend["properties"]["publicIPAddress"]["id"].as_str() {
            Some(pip) => {
                let Some(there) = subscription.show(pip) else {
                    return Err(Refusal::bad(
                        "InvalidResourceReference",
                        format!("{name}: there is no {pip}"),
                    ));
                };
                if there["sku"]["name"] != "Standard" {
                    let code = "DifferentSkuLoadBalancersAndPublicIPAddressNotAllowed";
                    return Err(Refusal::bad(code, format!("{name}: {pip} is not Standard")));
                }
                if there["properties"]["provisioningState"] != "Succeeded" {
                    return Err(Refusal::unprovisioned(pip, id));
                }
                let holder = there["properties"]["ipConfiguration"]["id"].as_str();
                let other = holder.filter(|holder| !holder.eq_ignore_ascii_case(&own));
                let of_other_balancer = other.filter(|holder| {
                    !holder
                        .to_lowercase()
                        .starts_with(&format!("{}/", id.to_lowercase()))
                });
                if let Some(first) = of_other_balancer.or(public.insert(pip.to_lowercase(), name)) {
                    let message = format!("{pip} is held by {first} and by {name}");
                    return Err(Refusal::bad(
                        "PublicIPReferencedByMultipleIPConfigs",
                        message,
                    ));
                }
            }
            None => check_private(subscription, id, frontend)?,
        }
    }
    Ok(())
}

fn check_private(subscription: &Subscription, id: &str, frontend: &Value) -> Result<(), Refusal> {
    let name = &frontend["name"];
    let Some(subnet) = frontend["properties"]["subnet"]["id"].as_str() else {
        return Err(Refusal::bad(
            "MissingJsonReferenceId",
            format!("{name} has neither a public IP nor a subnet"),
        ));
    };
    let Some(address) = private_address(frontend) else {
        return Ok(());
    };
    let range = subscription
        .setup
        .subnets
        .iter()
        .find(|(id, _)| id.eq_ignore_ascii_case(subnet));
    let inside = range.is_some_and(|(_, range)| match address {
        IpAddr::V4(address) => range.contains(&address),
        IpAddr::V6(_) => true,
    });
    if !inside {
        return Err(Refusal::bad(
            "PrivateIPAddressNotInSubnet",
            format!("{address} is not in {subnet}"),
        ));
    }
    let others = subscription
        .documents
        .iter()
        .filter(|(other, _)| **other != id.to_lowercase());
    let mut taken = others
        .flat_map(|(_, other)| list(other, "frontendIPConfigurations"))
        .filter_map(private_address);
    if taken.any(|other| other == address) {
        return Err(Refusal::bad(
            "PrivateIPAddressIsAllocated",
            format!("{address} is held by another load balancer"),
        ));
    }
    Ok(())
}

/// AZ-230, AZ-260, AZ-261.
fn check_pool(pool: &Value) -> Result<(), Refusal> {
    let members = list(pool, "loadBalancerBackendAddresses");
    let network = pool["properties"]["virtualNetwork"]["id"].is_string();
    let (mut names, mut addresses) = (BTreeSet::new(), BTreeSet::new());
    for member in members {
        if !network && !member["properties"]["subnet"]["id"].is_string() {
            let message = format!("pool {} has addresses and no virtual network", pool["name"]);
            return Err(Refusal::bad("InvalidRequestFormat", message));
        }
        let address: Option<IpAddr> = member["properties"]["ipAddress"]
            .as_str()
            .and_then(|it| it.parse().ok());
        let Some(address) = address else {
            return Err(Refusal::bad(
                "InvalidRequestFormat",
                format!("member {} has no address", member["name"]),
            ));
        };
        let name = member["name"].as_str().unwrap_or_default().to_lowercase();
        if !names.insert(name) || !addresses.insert(address) {
            return Err(Refusal::bad(
                "DuplicateResourceName",
                format!("pool {} has {address} twice", pool["name"]),
            ));
        }
        let state = member["properties"]["adminState"]
            .as_str()
            .unwrap_or("None");
        if !["None", "Up", "Down"].contains(&state) {
            return Err(Refusal::bad(
                "InvalidRequestFormat",
                format!("adminState {state}"),
            ));
        }
    }
    Ok(())
}

/// AZ-148, AZ-438.
fn check_probe(probe: &Value) -> Result<(), Refusal> {
    let p = &probe["properties"];
    let wrong = |what: &str| {
        Err(Refusal::bad(
            "InvalidRequestFormat",
            format!("probe {}: {what}", probe["name"]),
        ))
    };
    let protocol = p["protocol"].as_str().unwrap_or_default();
    let http = ["Http", "Https"].contains(&protocol);
    if !http && protocol != "Tcp" {
        return wrong("protocol");
    }
    if http != p["requestPath"].is_string() {
        return wrong("requestPath is for HTTP and HTTPS, and needed there");
    }
    let Some(port) = p["port"].as_u64().filter(|port| (1..=65535).contains(port)) else {
        return wrong("port");
    };
    if http && [19, 21, 25, 70, 110, 119, 143, 220, 993].contains(&port) {
        return wrong("a port that is not probed by HTTP");
    }
    if p["intervalInSeconds"]
        .as_u64()
        .is_none_or(|interval| interval < 5)
    {
        return wrong("intervalInSeconds below 5");
    }
    if p["probeThreshold"]
        .as_u64()
        .is_none_or(|threshold| !(1..=100).contains(&threshold))
    {
        return wrong("probeThreshold");
    }
    Ok(())
}

/// AZ-262, AZ-439, AZ-440.
fn check_rules(id: &str, document: &Value) -> Result<(), Refusal> {
    let rules = list(document, "loadBalancingRules");
    if rules.len() > MOST_RULES {
        return Err(Refusal::bad("LoadBalancerRuleCountLimitReached", "1500"));
    }
    let (mut fronts, mut backs) = (BTreeMap::new(), BTreeMap::new());
    for rule in rules {
        let (name, p) = (
            rule["name"].as_str().unwrap_or_default(),
            &rule["properties"],
        );
        let lost =
            |key: &str| Refusal::bad("InvalidResourceReference", format!("rule {name}: {key}"));
        let there = |key: &str, kind: &str| {
            let found =
                refers(rule, key, id, kind).filter(|name| child(document, kind, name).is_some());
            found.map(str::to_lowercase).ok_or_else(|| lost(key))
        };
        let frontend = there("frontendIPConfiguration", "frontendIPConfigurations")?;
        let pool = there("backendAddressPool", "backendAddressPools")?;
        if !p["probe"].is_null() {
            there("probe", "probes")?;
        }
        let wrong = |what: &str| {
            Err(Refusal::bad(
                "InvalidRequestFormat",
                format!("rule {name}: {what}"),
            ))
        };
        let protocol = p["protocol"].as_str().unwrap_or_default();
        if !["Tcp", "Udp", "All"].contains(&protocol) {
            return wrong("protocol");
        }
        let port = |key: &str, most: u64| {
            p[key]
                .as_u64()
                .filter(|port| *port <= most && (*port > 0 || protocol == "All"))
        };
        let (Some(front), Some(back)) = (port("frontendPort", 65534), port("backendPort", 65535))
        else {
            return wrong("a port out of range");
        };
        // AZ-440.
        if protocol == "All" && (front, back) != (0, 0) {
            return wrong("all protocols go with all ports");
        }
        let of = child(document, "frontendIPConfigurations", &frontend);
        if protocol == "All" && !of.is_some_and(|it| it["properties"]["publicIPAddress"].is_null())
        {
            return wrong("all ports are for private frontends");
        }
        // AZ-436.
        let alone = |(of, _, protocol): &(String, u64, String)| {
            *of == frontend && (protocol == "All" || p["protocol"] == "All")
        };
        if let Some((_, other)) = fronts.iter().find(|(key, _)| alone(key)) {
            let message = format!("{other} and {name}");
            return Err(Refusal::bad(
                "RulesUseSameFrontendPortProtocolAndIPConfig",
                message,
            ));
        }
        if p["idleTimeoutInMinutes"]
            .as_u64()
            .is_some_and(|minutes| !(4..=100).contains(&minutes))
        {
            return wrong("idleTimeoutInMinutes");
        }
        let floating = p["enableFloatingIP"].as_bool().unwrap_or_default();
        if floating && front != back {
            return wrong("with floating IP both ports are one");
        }
        if let Some(other) = fronts.insert((frontend, front, protocol.to_owned()), name) {
            let message = format!("{other} and {name}");
            return Err(Refusal::bad(
                "RulesUseSameFrontendPortProtocolAndIPConfig",
                message,
            ));
        }
        if !floating && let Some(other) = backs.insert((pool, back, protocol.to_owned()), name) {
            return Err(Refusal::bad(
                "RulesUseSameBackendPortProtocolAndPool",
                format!("{other} and {name}"),
            ));
        }
    }
    Ok(())
}

fn public_ip(subscription: &Subscription, id: &str, document: &Value) -> Result<(), Refusal> {
    if document["sku"]["name"] != "Standard"
        || document["properties"]["publicIPAllocationMethod"] != "Static"
    {
        return Err(Refusal::bad(
            "InvalidRequestFormat",
            "a public IP here is Standard and Static",
        ));
    }
    let Some(label) = document["properties"]["dnsSettings"]["domainNameLabel"].as_str() else {
        return Ok(());
    };
    let same = |other: &Value| {
        other["properties"]["dnsSettings"]["domainNameLabel"].as_str() == Some(label)
    };
    let mut others = subscription
        .documents
        .iter()
        .filter(|(other, _)| **other != id.to_lowercase());
    match others.find(|(_, other)| same(other)) {
        Some((other, _)) => Err(Refusal::bad(
            "DnsRecordInUse",
            format!("{label} is that of {other}"),
        )),
        None => Ok(()),
    }
}

fn security_group(document: &Value) -> Result<(), Refusal> {
    let rules = list(document, "securityRules");
    if rules.len() > MOST_SECURITY_RULES {
        return Err(Refusal::bad("SecurityRuleCountLimitReached", "1000"));
    }
    let (mut names, mut priorities) = (BTreeSet::new(), BTreeSet::new());
    let mut prefixes = 0;
    for rule in rules {
        let (name, p) = (
            rule["name"].as_str().unwrap_or_default(),
            &rule["properties"],
        );
        if name.is_empty() || name.len() > LONGEST_NAME || !names.insert(name.to_lowercase()) {
            return Err(Refusal::bad(
                "DuplicateResourceName",
                format!("rule {name:?}"),
            ));
        }
        let Some(priority) = p["priority"]
            .as_u64()
            .filter(|it| (100..=4096).contains(it))
        else {
            return Err(Refusal::bad("SecurityRuleInvalidPriority", name));
        };
        let direction = p["direction"].as_str().unwrap_or_default().to_lowercase();
        if !priorities.insert((direction, priority)) {
            return Err(Refusal::bad(
                "SecurityRuleConflict",
                format!("priority {priority} of rule {name} is taken"),
            ));
        }
        for key in ["source", "destination"] {
            let (one, many) = (
                &p[format!("{key}AddressPrefix")],
                &p[format!("{key}AddressPrefixes")],
            );
            let many = many.as_array().map_or(0, Vec::len);
            if one.as_str().is_none_or(str::is_empty) == (many == 0) {
                let message =
                    format!("rule {name}: {key} prefixes either in the singular or in the plural");
                return Err(Refusal::bad(
                    "SecurityRuleParameterContainsUnsupportedValue",
                    message,
                ));
            }
            prefixes += many;
        }
    }
    if prefixes > 2 * MOST_PREFIXES {
        return Err(Refusal::bad(
            "SecurityRuleAddressPrefixLimitReached",
            "4000",
        ));
    }
    Ok(())
}
