//! Public IPs: which one a Service uses, how it should be, and when it goes (AZ-170 to AZ-187). Pure.

use std::net::IpAddr;

use onehop_core::crd::LoadBalancerSpec;
use onehop_core::id::{IpFamily, ServiceKey};
use serde_json::{Value, json};

use super::annotations::{Wishes, keys};
use super::document::{has, lay_over, name, tag, text};
use super::names::{self, Half};
use super::resolve::{Flavour, refusal};
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
    /// Zones of a public IP that is new (AZ-175).
    pub zones: &'a [String],
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
        let id = text(pip, &["id"]).unwrap_or_default().to_owned();
        let keeper = keeper(settings, pip);
        if let Some(other) = names::PEER_SERVICE_TAGS
            .iter()
            .find_map(|key| tag(pip, key))
            .filter(|_| keeper != Some(Flavour::Peer))
        {
            let message = format!(
                "{key}: public IP {} belongs to Service {other} of another controller, by its tag",
                name(pip)
            );
            return Err(refusal("PublicIPForeign", message));
        }
        let Some(keeper) = keeper else {
            let Some(install) = tag(pip, names::TAG_INSTALL) else {
                // Of a user: never tagged, never deleted (AZ-180).
                return Ok(PublicIp { id, write: None });
            };
            let message = format!(
                "{key}: public IP {} belongs to install {install}",
                name(pip)
            );
            return Err(refusal("PublicIPForeign", message));
        };
        let mut services = services_of(pip);
        if services.contains(&self.service.to_string()) {
            return Ok(PublicIp { id, write: None });
        }
        services.push(self.service.to_string());
        let mut document = pip.clone();
        set_services(&mut document, &services, keeper).map_err(|list| {
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
        let keeper = match there {
            Some(pip) => keeper(settings, pip),
            None => Some(settings.naming(self.spec.class.as_deref())),
        };
        let Some(keeper) = keeper else {
            let message = format!(
                "public IP {wanted} is there already and has no tag of this install: delete or rename it"
            );
            return Err(refusal("PublicIPForeign", message));
        };
        let mut wish = json!({"tags": self.tags(settings, there, keeper)});
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
            wish["tags"][keeper.dns_tag()] = holder;
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
    fn tags(&self, settings: &Settings, there: Option<&Value>, keeper: Flavour) -> Value {
        let mut tags = settings.tags.clone();
        for (key, value) in &self.wishes.pip_tags {
            tags.retain(|known, _| !known.eq_ignore_ascii_case(key));
            tags.insert(key.clone(), value.clone());
        }
        let mut services = there.map(services_of).unwrap_or_default();
        if !services.contains(&self.service.to_string()) {
            services.push(self.service.to_string());
        }
        match keeper {
            Flavour::Own => {
                tags.insert(names::TAG_INSTALL.to_owned(), settings.install.to_string());
                tags.insert(names::TAG_GENERATION.to_owned(), "1".to_owned());
            }
            // One that is there says it already: that is how it was known.
            Flavour::Peer if there.is_some() => {}
            Flavour::Peer => {
                let key = names::PEER_CLUSTER_TAGS[0].to_owned();
                tags.insert(key, settings.cluster.clone());
            }
        }
        tags.insert(service_tag(there, keeper).to_owned(), services.join(","));
        let mut wish = json!(tags);
        for key in obsolete(settings, there, &tags) {
            wish[key] = Value::Null;
        }
        wish
    }

    /// AZ-175.
    fn new_document(&self, settings: &Settings, family: IpFamily) -> Value {
        let mut document = json!({
            "location": settings.place.location,
            "sku": {"name": "Standard", "tier": "Regional"},
            "properties": {"publicIPAllocationMethod": "Static", "publicIPAddressVersion": family.as_str()},
        });
        settings.place.put_in_edge_zone(&mut document);
        if !self.zones.is_empty() {
            document["zones"] = json!(self.zones);
        }
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

/// Keys of tags that go: with `systemTags`, those that are neither wished nor a system's nor say whose it is (AZ-185).
fn obsolete(settings: &Settings, there: Option<&Value>, wished: &names::Tags) -> Vec<String> {
    let (Some(system), Some(there)) = (&settings.system_tags, there) else {
        return Vec::new();
    };
    let tags = there.get("tags").and_then(Value::as_object);
    let says_whose = |key: &str| {
        let peer = ["k8s-azure-", "kubernetes-", "onehop-"];
        key == "service" || peer.iter().any(|stem| key.starts_with(stem))
    };
    let stays = |key: &str| {
        let is = |other: &String| other.eq_ignore_ascii_case(key);
        wished.keys().any(is) || system.iter().any(is) || says_whose(&key.to_ascii_lowercase())
    };
    let keys = tags.into_iter().flat_map(|tags| tags.keys());
    keys.filter(|key| !stays(key)).cloned().collect()
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

/// Whose tags say that a public IP is managed: ours or, where the peer was said to be off, those of the peer with our
/// cluster's name (AZ-180). None: it is a user's, or somebody else's.
pub fn keeper(settings: &Settings, pip: &Value) -> Option<Flavour> {
    if let Some(install) = tag(pip, names::TAG_INSTALL) {
        return (install == settings.install.as_str()).then_some(Flavour::Own);
    }
    let any = |keys: &[&str]| keys.iter().find_map(|key| tag(pip, key)).map(str::to_owned);
    let cluster = any(&names::PEER_CLUSTER_TAGS)?;
    let named = any(&names::PEER_SERVICE_TAGS).is_some();
    let adopted = settings.naming(None) == Flavour::Peer;
    (adopted && named && cluster.eq_ignore_ascii_case(&settings.cluster)).then_some(Flavour::Peer)
}

/// The tag that lists the Services of a public IP.
fn service_tag(pip: Option<&Value>, keeper: Flavour) -> &'static str {
    match keeper {
        Flavour::Own => names::TAG_SERVICE,
        Flavour::Peer => {
            let mut known = names::PEER_SERVICE_TAGS.into_iter();
            let there = |key: &&str| pip.is_some_and(|pip| tag(pip, key).is_some());
            known.find(there).unwrap_or(names::PEER_SERVICE_TAGS[0])
        }
    }
}

/// Services in the tag of a public IP: the whole list (AZ-181).
pub fn services_of(pip: &Value) -> Vec<String> {
    let peer = || {
        names::PEER_SERVICE_TAGS
            .iter()
            .find_map(|key| tag(pip, key))
    };
    let list = tag(pip, names::TAG_SERVICE).or_else(peer);
    let parts = list
        .unwrap_or_default()
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    parts.map(str::to_owned).collect()
}

/// Services of a public IP that we keep for them.
pub fn kept_for(settings: &Settings, pip: &Value) -> Vec<String> {
    keeper(settings, pip).map_or_else(Vec::new, |_| services_of(pip))
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
    let Some(keeper) = keeper(settings, pip).filter(|_| services.contains(&own)) else {
        return Release::Nothing;
    };
    services.retain(|other| *other != own);
    if services.is_empty() {
        return Release::Delete;
    }
    let mut document = pip.clone();
    match set_services(&mut document, &services, keeper) {
        Ok(()) => Release::Keep(document),
        // A shorter list than one that was there.
        Err(_) => Release::Nothing,
    }
}

/// Writes the list, unless it is too long for a tag (AZ-182).
fn set_services(pip: &mut Value, services: &[String], keeper: Flavour) -> Result<(), String> {
    let list = services.join(",");
    if list.len() > LONGEST_TAG {
        return Err(list);
    }
    let key = service_tag(Some(pip), keeper);
    lay_over(pip, &json!({"tags": {key: list}}));
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
