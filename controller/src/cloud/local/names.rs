//! Names and tags of what the local provider makes. Pure.
//!
//! Tags carry ownership (C-05, K-02); names are for people and for idempotency keys, and are the same
//! for the same wish at any time, so that a repeated create finds what the first one made (I6).

use std::collections::BTreeMap;

use onehop_core::id::{InstallId, PortKey, ServiceKey, ServiceUid};
use sha2::{Digest, Sha256};

/// Install that made the object.
pub const INSTALL: &str = "onehop.dev/install";
/// Namespace and name of the Service.
pub const SERVICE: &str = "onehop.dev/service";
/// UID of the Service.
pub const SERVICE_UID: &str = "onehop.dev/service-uid";
/// Port of the Service: name/protocol.
pub const PORT: &str = "onehop.dev/port";
/// Tells a replacement from what it replaces (C-124).
pub const GENERATION: &str = "onehop.dev/generation";
/// Since when a group is used by no listener, after a switch (ZD-28).
pub const RETIRED: &str = "onehop.dev/retired-since";

/// Tags.
pub type Tags = BTreeMap<String, String>;

/// The port from its tag, which is the key as it is written: `http/TCP`.
pub fn port_from_tag(text: &str) -> Option<PortKey> {
    let (name, protocol) = text.rsplit_once('/')?;
    Some(PortKey::new(name, protocol.parse().ok()?))
}

/// Tags that find everything of one Service, whatever its UID.
pub fn service_tags(install: &InstallId, service: &ServiceKey) -> Tags {
    Tags::from([
        (INSTALL.to_owned(), install.to_string()),
        (SERVICE.to_owned(), service.to_string()),
    ])
}

/// Tags of a load balancer.
pub fn owner_tags(install: &InstallId, service: &ServiceKey, uid: &ServiceUid) -> Tags {
    let mut tags = service_tags(install, service);
    tags.insert(SERVICE_UID.to_owned(), uid.to_string());
    tags
}

/// `onehop-<namespace>-<name>-<hash>`, for a load balancer.
pub fn load_balancer(install: &InstallId, service: &ServiceKey, uid: &ServiceUid) -> String {
    named(install, service, uid, "lb")
}

/// As [`load_balancer`], with port and generation, for a group.
pub fn group(
    install: &InstallId,
    service: &ServiceKey,
    uid: &ServiceUid,
    port: &PortKey,
    generation: u32,
) -> String {
    let stem = named(install, service, uid, &port.to_string());
    format!(
        "{stem}-{}-{generation}",
        port.protocol.as_str().to_lowercase()
    )
}

/// Name for a group that has the name of another one by mistake.
pub fn twin(name: &str, id: &str) -> String {
    format!("{name}{TWIN}{id}")
}

/// Whether a name is one of those.
pub fn is_twin(name: &str) -> bool {
    name.contains(TWIN)
}

/// In no name that we give.
const TWIN: char = '~';

fn named(install: &InstallId, service: &ServiceKey, uid: &ServiceUid, what: &str) -> String {
    let mut hash = Sha256::new();
    for part in [
        install.as_str(),
        &service.namespace,
        &service.name,
        uid.as_str(),
        what,
    ] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let digest = hash.finalize();
    let short = digest
        .iter()
        .take(5)
        .fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
    format!(
        "onehop-{:.16}-{:.16}-{short:010x}",
        service.namespace, service.name
    )
}

#[cfg(test)]
mod tests {
    use onehop_core::id::Protocol;

    use super::*;

    fn key() -> ServiceKey {
        ServiceKey::new("shop", "web")
    }

    #[test]
    fn c05_tags_tell_install_service_and_uid() {
        let tags = owner_tags(&"demo-local".into(), &key(), &"u1".into());
        assert_eq!(tags[INSTALL], "demo-local");
        assert_eq!(tags[SERVICE], "shop/web");
        assert_eq!(tags[SERVICE_UID], "u1");
    }

    #[test]
    fn names_differ_by_install_uid_port_and_generation_and_by_nothing_else() {
        let (a, b): (InstallId, InstallId) = ("a".into(), "b".into());
        let (one, two): (ServiceUid, ServiceUid) = ("1".into(), "2".into());
        let http = PortKey::new("http", Protocol::Tcp);
        let dns = PortKey::new("http", Protocol::Udp);
        let all = [
            load_balancer(&a, &key(), &one),
            load_balancer(&b, &key(), &one),
            load_balancer(&a, &key(), &two),
            group(&a, &key(), &one, &http, 1),
            group(&a, &key(), &one, &http, 2),
            group(&a, &key(), &one, &dns, 1),
        ];
        let distinct: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len(), "{all:?}");
        assert_eq!(all[3], group(&a, &key(), &one, &http, 1));
    }

    #[test]
    fn the_port_tag_survives_a_round_trip_also_without_a_name() {
        for name in ["", "http"] {
            let port = PortKey::new(name, Protocol::Udp);
            assert_eq!(port_from_tag(&port.to_string()), Some(port));
        }
    }
}
