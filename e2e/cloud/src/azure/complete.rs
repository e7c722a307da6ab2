//! What the server adds to a document that was sent: names, ids, states, and addresses that it gives.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::Ipv4Net;
use serde_json::{Value, json};

use super::check;
use super::error::Refusal;
use super::resources::Subscription;
use super::store::{CHILDREN, list, list_mut};

impl Subscription {
    /// What the server adds: names, ids, states, and addresses that it gives.
    pub(super) fn completed(
        &mut self,
        kind: &str,
        id: &str,
        mut document: Value,
    ) -> Result<Value, Refusal> {
        if document.is_object() && document["properties"].is_null() {
            document["properties"] = json!({});
        }
        if !document["properties"].is_object() {
            return Err(Refusal::bad(
                "InvalidRequestContent",
                "a resource is an object with properties",
            ));
        }
        let name = id.rsplit('/').next().unwrap_or_default();
        document["id"] = json!(id);
        document["name"] = json!(name);
        document["type"] = json!(format!("Microsoft.Network/{kind}"));
        document["properties"]["provisioningState"] = json!("Succeeded");
        if document["properties"]["resourceGuid"].is_null() {
            document["properties"]["resourceGuid"] = json!(self.guid());
        }
        match kind {
            "loadBalancers" => self.complete_balancer(id, &mut document)?,
            "publicIPAddresses" => self.complete_public_ip(id, &mut document)?,
            "publicIPPrefixes" => self.complete_prefix(id, &mut document)?,
            "networkSecurityGroups" => {
                if document["properties"]["securityRules"].is_null() {
                    document["properties"]["securityRules"] = json!([]);
                }
                for rule in list_mut(&mut document, "securityRules") {
                    rule["id"] = json!(format!(
                        "{id}/securityRules/{}",
                        rule["name"].as_str().unwrap_or_default()
                    ));
                    rule["properties"]["provisioningState"] = json!("Succeeded");
                }
            }
            _ => {}
        }
        Ok(document)
    }

    /// The zones of a resource are zones of its region (AZ-175).
    fn in_zones(&self, document: &Value) -> Result<(), Refusal> {
        let zones = document["zones"].as_array().into_iter().flatten();
        let known = |zone: &Value| self.setup.zones.iter().any(|known| *zone == json!(known));
        match zones.into_iter().find(|zone| !known(zone)) {
            None => Ok(()),
            Some(zone) => {
                let message = format!("zone {zone} is not supported in {}", self.setup.location);
                Err(Refusal::bad("LocationNotSupportAvailabilityZones", message))
            }
        }
    }

    fn complete_balancer(&mut self, id: &str, document: &mut Value) -> Result<(), Refusal> {
        let old = self.show(id).unwrap_or_default();
        for frontend in list(document, "frontendIPConfigurations") {
            self.in_zones(frontend)?;
            let mut olds = list(&old, "frontendIPConfigurations").iter();
            if let Some(old) = olds.find(|it| it["name"] == frontend["name"]) {
                zones_stay(old, frontend)?;
            }
        }
        for kind in CHILDREN {
            for child in list_mut(document, kind) {
                let name = child["name"].as_str().unwrap_or_default().to_owned();
                child["id"] = json!(format!("{id}/{kind}/{name}"));
                child["type"] = json!(format!("Microsoft.Network/loadBalancers/{kind}"));
                child["properties"]["provisioningState"] = json!("Succeeded");
            }
        }
        let mut taken: BTreeSet<IpAddr> = BTreeSet::new();
        for (other, balancer) in self
            .documents
            .iter()
            .filter(|(_, d)| d["type"] == "Microsoft.Network/loadBalancers")
        {
            if other != &id.to_lowercase() {
                let frontends = list(balancer, "frontendIPConfigurations").iter();
                taken.extend(frontends.filter_map(check::private_address));
            }
        }
        taken.extend(
            list(document, "frontendIPConfigurations")
                .iter()
                .filter_map(check::private_address),
        );
        let (subnets, twin) = (self.setup.subnets.clone(), self.setup.twin);
        for frontend in list_mut(document, "frontendIPConfigurations") {
            let Some(subnet) = frontend["properties"]["subnet"]["id"].as_str() else {
                continue;
            };
            let range = subnets
                .iter()
                .find(|(id, _)| id.eq_ignore_ascii_case(subnet))
                .map(|(_, range)| *range);
            let Some(range) = range else {
                return Err(Refusal::bad(
                    "InvalidResourceReference",
                    format!("there is no subnet {subnet}"),
                ));
            };
            if check::private_address(frontend).is_none() {
                let six = frontend["properties"]["privateIPAddressVersion"] == "IPv6";
                let hosts = range.hosts().skip(3);
                let free = free(hosts, six.then_some(twin), |it| taken.contains(it));
                let free = free.ok_or_else(|| Refusal::bad("SubnetIsFull", subnet))?;
                taken.insert(free);
                frontend["properties"]["privateIPAddress"] = json!(free.to_string());
                frontend["properties"]["privateIPAllocationMethod"] = json!("Dynamic");
            }
        }
        Ok(())
    }

    fn public_addresses(&self) -> BTreeSet<IpAddr> {
        let all = self.documents.values();
        all.filter_map(|document| document["properties"]["ipAddress"].as_str()?.parse().ok())
            .collect()
    }

    fn prefixes(&self) -> Vec<Ipv4Net> {
        self.documents.values().filter_map(range_of).collect()
    }

    /// The last range of this length that is free; IPv4 alone.
    fn complete_prefix(&self, id: &str, document: &mut Value) -> Result<(), Refusal> {
        if let Some(old) = self.show(id).as_ref().and_then(range_of) {
            document["properties"]["ipPrefix"] = json!(old.to_string());
            return Ok(());
        }
        let length = document["properties"]["prefixLength"].as_u64();
        let length = length.and_then(|length| u8::try_from(length).ok());
        let ranges = length.and_then(|length| self.setup.public.subnets(length).ok());
        let Some(ranges) = ranges else {
            let message = "prefixLength is missing, or out of range";
            return Err(Refusal::bad("InvalidPublicIPPrefixLength", message));
        };
        let (taken, prefixes) = (self.public_addresses(), self.prefixes());
        let is_free = |range: &Ipv4Net| {
            let holds = |it: &IpAddr| matches!(it, IpAddr::V4(it) if range.contains(it));
            let overlaps = |it: &Ipv4Net| it.contains(range) || range.contains(it);
            !taken.iter().any(holds) && !prefixes.iter().any(overlaps)
        };
        let free = ranges.filter(is_free).last();
        let free = free
            .ok_or_else(|| Refusal::bad("PublicIPPrefixCountLimitReached", "no range is left"))?;
        document["properties"]["ipPrefix"] = json!(free.to_string());
        Ok(())
    }

    fn complete_public_ip(&mut self, id: &str, document: &mut Value) -> Result<(), Refusal> {
        self.in_zones(document)?;
        if let Some(old) = self.show(id) {
            zones_stay(&old, document)?;
            for key in ["ipAddress", "ipConfiguration"] {
                if !old["properties"][key].is_null() {
                    document["properties"][key] = old["properties"][key].clone();
                }
            }
        }
        if document["properties"]["ipAddress"].is_null() {
            let taken = self.public_addresses();
            let six = document["properties"]["publicIPAddressVersion"] == "IPv6";
            let twin = six.then_some(self.setup.twin);
            let free = if let Some(prefix) = document["properties"]["publicIPPrefix"]["id"].as_str()
            {
                let range = self.show(prefix).and_then(|it| range_of(&it));
                let range = range.ok_or_else(|| {
                    let message = format!("there is no public IP prefix {prefix}");
                    Refusal::bad("InvalidResourceReference", message)
                })?;
                // Every address of a prefix is given, its first and last, too.
                let all = u32::from(range.network())..=u32::from(range.broadcast());
                free(all.map(Ipv4Addr::from), twin, |it| taken.contains(it))
            } else {
                let prefixes = self.prefixes();
                let hosts = self.setup.public.hosts();
                let hosts = hosts.filter(|it| !prefixes.iter().any(|range| range.contains(it)));
                free(hosts, twin, |it| taken.contains(it))
            };
            let free = free
                .ok_or_else(|| Refusal::bad("PublicIPCountLimitReached", "no public IP is left"))?;
            document["properties"]["ipAddress"] = json!(free.to_string());
        }
        Ok(())
    }
}

/// The range of a prefix.
fn range_of(prefix: &Value) -> Option<Ipv4Net> {
    prefix["properties"]["ipPrefix"].as_str()?.parse().ok()
}

/// Zones are chosen once.
fn zones_stay(old: &Value, new: &Value) -> Result<(), Refusal> {
    if old["zones"] == new["zones"] {
        return Ok(());
    }
    let message = format!("the zones of {} are {} and stay", old["name"], old["zones"]);
    Err(Refusal::bad(
        "ResourceAvailabilityZonesCannotBeModified",
        message,
    ))
}

/// The first address that is free: of these, or of their IPv6 ones.
fn free(
    mut hosts: impl Iterator<Item = Ipv4Addr>,
    twin: Option<fn(Ipv4Addr) -> Ipv6Addr>,
    taken: impl Fn(&IpAddr) -> bool,
) -> Option<IpAddr> {
    hosts.find_map(|host| {
        let address = twin.map_or(IpAddr::V4(host), |twin| IpAddr::V6(twin(host)));
        (!taken(&address)).then_some(address)
    })
}
