//! What the server adds to a document that was sent: names, ids, states, and addresses that it gives.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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

    fn complete_balancer(&mut self, id: &str, document: &mut Value) -> Result<(), Refusal> {
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

    fn complete_public_ip(&mut self, id: &str, document: &mut Value) -> Result<(), Refusal> {
        if let Some(old) = self.show(id) {
            for key in ["ipAddress", "ipConfiguration"] {
                if !old["properties"][key].is_null() {
                    document["properties"][key] = old["properties"][key].clone();
                }
            }
        }
        if document["properties"]["ipAddress"].is_null() {
            let taken: BTreeSet<&str> = self
                .documents
                .values()
                .filter_map(|document| document["properties"]["ipAddress"].as_str())
                .collect();
            let six = document["properties"]["publicIPAddressVersion"] == "IPv6";
            let twin = six.then_some(self.setup.twin);
            let free = free(self.setup.public.hosts(), twin, |it| {
                taken.contains(it.to_string().as_str())
            });
            let free = free
                .ok_or_else(|| Refusal::bad("PublicIPCountLimitReached", "no public IP is left"))?;
            document["properties"]["ipAddress"] = json!(free.to_string());
        }
        Ok(())
    }
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
