//! Public IPs: which one a Service uses, how it should be, and when it goes (AZ-170 to AZ-187). Pure.

use std::net::IpAddr;

use onehop_core::crd::LoadBalancerSpec;
use onehop_core::id::{IpFamily, ServiceKey};
use serde_json::{Value, json};

use super::annotations::{Wishes, keys};
use super::document::{has, lay_over, name, tag, text};
use super::names::{self, Half};
use super::resolve::refusal;
use super::settings::Settings;
use crate::plan::Refusal;

/// Longest value of a tag (AZ-182, AZ-442).
const LONGEST_TAG: usize = 256;

/// The public IP of a frontend.
#[derive(Clone, Debug, PartialEq)]
pub struct PublicIp {
    /// Its id.
    pub id: String,
    /// How its document should be, where it has to be written.
    pub write: Option<Value>,
}

/// What a Service asks for.
#[derive(Clone, Copy, Debug)]
pub struct Asker<'a> {
    /// The Service.
    pub service: &'a ServiceKey,
    /// Its resolved wishes.
    pub spec: &'a LoadBalancerSpec,
    /// Its annotations, read again.
    pub wishes: &'a Wishes,
}

impl Asker<'_> {
    /// The public IP of a family out of those that are there, or why there is none.
    pub fn public_ip(
        &self,
        settings: &Settings,
        all: &[Value],
        family: IpFamily,
    ) -> Result<PublicIp, Refusal> {
        if let Some(address) = self.wishes.pinned.get(&family) {
            let found = all.iter().find(|pip| address_of(pip) == Some(*address));
            let wanted = address.to_string();
            return self.given(settings, found, (keys::IPV4, &wanted), family);
        }
        if let Some(wanted) = self.wishes.pip.of(family, &self.spec.families) {
            let found = all
                .iter()
                .find(|pip| name(pip).eq_ignore_ascii_case(wanted));
            return self.given(settings, found, (keys::PIP_NAME, wanted), family);
        }
        let names = self.managed_names(settings, family);
        let place = &settings.place;
        let id = |name: &str| place.public_ip_id(self.wishes.resource_group.as_deref(), name);
        let there = |name: &String| {
            let id = id(name);
            let mut all = all.iter();
            all.find(|pip| text(pip, &["id"]).is_some_and(|it| it.eq_ignore_ascii_case(&id)))
        };
        let of_family = |name: &&String| there(name).is_some_and(|pip| version_of(pip) == family);
        let free = |name: &&String| there(name).is_none();
        let chosen = names.iter().find(of_family);
        let chosen = chosen.or_else(|| names.iter().find(free));
        let name = chosen.unwrap_or(&names[0]);
        self.managed(settings, there(name), (id(name), name), family)
    }

    /// Names that the one of a family may have, the best first. Of a Service that gets or loses its other family it stays
    /// the one that it was (AZ-315); so another name may be taken.
    fn managed_names(&self, settings: &Settings, family: IpFamily) -> Vec<String> {
        let prefix = self.wishes.prefix.of(family, &self.spec.families);
        let prefix = prefix.map(super::document::last_of_id);
        let base = names::base(&self.spec.service_uid);
        let of = |half| names::public_ip(&settings.cluster, &base, prefix, half);
        match (family, Half::of(family, &self.spec.families)) {
            (IpFamily::V4, _) => {
                let plain = of(Half::Plain);
                let marked = format!("{plain}-{family}");
                vec![plain, marked]
            }
            (IpFamily::V6, Half::Plain) => vec![of(Half::Plain), of(Half::Second)],
            (IpFamily::V6, Half::Second) => vec![of(Half::Second), of(Half::Plain)],
        }
    }

    /// One that was there before: by address or by name.
    fn given(
        &self,
        settings: &Settings,
        found: Option<&Value>,
        (key, wanted): (&str, &str),
        family: IpFamily,
    ) -> Result<PublicIp, Refusal> {
        let key = format!("{}{key}", keys::PREFIX);
        let Some(pip) = found else {
            let message = format!(
                "{key}: there is no public IP {wanted:?} in the resource groups that are read"
            );
            return Err(refusal("PublicIPNotFound", message));
        };
        let version = version_of(pip);
        if version != family {
            let message =
                format!("{key}: public IP {wanted:?} is {version}, and {family} is needed");
            return Err(refusal("PublicIPNotFound", message));
        }
        if let Some(other) = names::PEER_SERVICE_TAGS
            .iter()
            .find_map(|key| tag(pip, key))
        {
            let message = format!(
                "{key}: public IP {} belongs to Service {other} of another controller, by its tag",
                name(pip)
            );
            return Err(refusal("PublicIPForeign", message));
        }
        let id = text(pip, &["id"]).unwrap_or_default().to_owned();
        let Some(install) = tag(pip, names::TAG_INSTALL) else {
            // Of a user: never tagged, never deleted (AZ-180).
            return Ok(PublicIp { id, write: None });
        };
        if install != settings.install.as_str() {
            let message = format!(
                "{key}: public IP {} belongs to install {install}",
                name(pip)
            );
            return Err(refusal("PublicIPForeign", message));
        }
        let mut services = services_of(pip);
        if services.contains(&self.service.to_string()) {
            return Ok(PublicIp { id, write: None });
        }
        services.push(self.service.to_string());
        let mut document = pip.clone();
        set_services(&mut document, &services).map_err(|list| {
            let message = format!(
                "{key}: the tag of public IP {} is full: {list} is longer than {LONGEST_TAG}",
                name(pip)
            );
            refusal("PublicIPTagFull", message)
        })?;
        Ok(PublicIp {
            id,
            write: Some(document),
        })
    }

    /// One that we make and keep.
    fn managed(
        &self,
        settings: &Settings,
        there: Option<&Value>,
        (id, wanted): (String, &str),
        family: IpFamily,
    ) -> Result<PublicIp, Refusal> {
        if let Some(pip) = there
            && tag(pip, names::TAG_INSTALL) != Some(settings.install.as_str())
        {
            let message = format!(
                "public IP {wanted} is there already and has no tag of this install: delete or rename it"
            );
            return Err(refusal("PublicIPForeign", message));
        }
        let mut wish = json!({"tags": self.tags(settings, there)});
        if let Some(label) = &self.wishes.dns_label {
            let setting = if label.is_empty() {
                Value::Null
            } else {
                json!({"domainNameLabel": label})
            };
            lay_over(&mut wish, &json!({"properties": {}}));
            wish["properties"]["dnsSettings"] = setting;
            let holder = if label.is_empty() {
                Value::Null
            } else {
                json!(self.service.to_string())
            };
            wish["tags"][names::TAG_DNS] = holder;
        }
        match there {
            Some(pip) if has(Some(pip), &wish) => Ok(PublicIp { id, write: None }),
            Some(pip) => {
                let mut document = pip.clone();
                lay_over(&mut document, &wish);
                Ok(PublicIp {
                    id,
                    write: Some(document),
                })
            }
            None => {
                let mut document = self.new_document(settings, family);
                lay_over(&mut document, &wish);
                Ok(PublicIp {
                    id,
                    write: Some(document),
                })
            }
        }
    }

    /// AZ-045, AZ-099: others in the list of Services stay.
    fn tags(&self, settings: &Settings, there: Option<&Value>) -> Value {
        let mut tags = settings.tags.clone();
        for (key, value) in &self.wishes.pip_tags {
            tags.retain(|known, _| !known.eq_ignore_ascii_case(key));
            tags.insert(key.clone(), value.clone());
        }
        let mut services = there.map(services_of).unwrap_or_default();
        if !services.contains(&self.service.to_string()) {
            services.push(self.service.to_string());
        }
        tags.insert(names::TAG_INSTALL.to_owned(), settings.install.to_string());
        tags.insert(names::TAG_GENERATION.to_owned(), "1".to_owned());
        tags.insert(names::TAG_SERVICE.to_owned(), services.join(","));
        json!(tags)
    }

    /// AZ-175. Zones are left to Azure, which makes a Standard one in all of them.
    fn new_document(&self, settings: &Settings, family: IpFamily) -> Value {
        let mut document = json!({
            "location": settings.place.location,
            "sku": {"name": "Standard", "tier": "Regional"},
            "properties": {"publicIPAllocationMethod": "Static", "publicIPAddressVersion": family.as_str()},
        });
        if let Some(prefix) = self.wishes.prefix.of(family, &self.spec.families) {
            document["properties"]["publicIPPrefix"] = json!({"id": prefix});
        }
        if let Some(tags) = &self.wishes.ip_tags {
            let tag = |(kind, tag): (&String, &String)| json!({"ipTagType": kind, "tag": tag});
            document["properties"]["ipTags"] = tags.iter().map(tag).collect();
        }
        document
    }
}

/// Its family (AZ-313).
pub fn version_of(pip: &Value) -> IpFamily {
    let version = text(pip, &["properties", "publicIPAddressVersion"]);
    if version.is_some_and(|version| version.eq_ignore_ascii_case(IpFamily::V6.as_str())) {
        IpFamily::V6
    } else {
        IpFamily::V4
    }
}

/// The address, once Azure has given one.
pub fn address_of(pip: &Value) -> Option<IpAddr> {
    text(pip, &["properties", "ipAddress"])?.parse().ok()
}

/// Services in the tag of a public IP: the whole list (AZ-181).
pub fn services_of(pip: &Value) -> Vec<String> {
    let list = tag(pip, names::TAG_SERVICE).unwrap_or_default();
    let parts = list
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    parts.map(str::to_owned).collect()
}

/// What becomes of a public IP that a Service no longer uses.
#[derive(Clone, Debug, PartialEq)]
pub enum Release {
    /// It is not ours, or not this Service's.
    Nothing,
    /// Others use it too: only our name goes.
    Keep(Value),
    /// It was the last one.
    Delete,
}

/// Releases a public IP (AZ-181): deleted only where the Service's name was the last in its tag.
pub fn release(settings: &Settings, pip: &Value, service: &ServiceKey) -> Release {
    let mut services = services_of(pip);
    let own = service.to_string();
    if tag(pip, names::TAG_INSTALL) != Some(settings.install.as_str()) || !services.contains(&own) {
        return Release::Nothing;
    }
    services.retain(|other| *other != own);
    if services.is_empty() {
        return Release::Delete;
    }
    let mut document = pip.clone();
    match set_services(&mut document, &services) {
        Ok(()) => Release::Keep(document),
        // A shorter list than one that was there.
        Err(_) => Release::Nothing,
    }
}

/// Writes the list, unless it is too long for a tag (AZ-182).
fn set_services(pip: &mut Value, services: &[String]) -> Result<(), String> {
    let list = services.join(",");
    if list.len() > LONGEST_TAG {
        return Err(list);
    }
    lay_over(pip, &json!({"tags": {names::TAG_SERVICE: list}}));
    Ok(())
}

/// Whether two readings differ in nothing but which frontend holds the public IP.
pub fn is_same(a: Option<&Value>, b: Option<&Value>) -> bool {
    let without = |pip: &Value| {
        let mut pip = pip.clone();
        lay_over(
            &mut pip,
            &json!({"etag": null, "properties": {"ipConfiguration": null}}),
        );
        pip
    };
    a.map(without) == b.map(without)
}

/// Whether a frontend still holds the public IP: then Azure refuses to delete it (AZ-183).
pub fn is_attached(pip: &Value) -> bool {
    super::document::at(pip, &["properties", "ipConfiguration"]).is_some()
}

#[cfg(test)]
mod tests;
