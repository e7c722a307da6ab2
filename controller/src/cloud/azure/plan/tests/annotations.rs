//! Every annotation that is carried out: set, changed and removed (ZA-70).

use onehop_core::crd::LoadBalancerSpec;

use super::super::super::annotations::keys;
use super::super::super::resolve::resolve;
use super::super::super::security::{Addresses, demands};
use super::*;

/// What is asked for beside, a key, its value, and another one where it has several.
type Row = (
    &'static [(&'static str, &'static str)],
    &'static str,
    &'static str,
    Option<&'static str>,
);

const HTTP: &[(&str, &str)] = &[(keys::PROBE_PROTOCOL, "http")];
const INTERNAL: &[(&str, &str)] = &[(keys::INTERNAL, "true")];
const LISTED: &[(&str, &str)] = &[(keys::ALLOWED_RANGES, "192.0.2.0/24")];

const ROWS: [Row; 32] = [
    (&[], keys::TARGET, "pod", Some("node")),
    (&[], keys::MEMBERSHIP, "compat", None),
    (&[], keys::INTERNAL, "true", None),
    (INTERNAL, keys::SUBNET, "apps", Some("web")),
    (&[], keys::IPV4, "20.0.0.8", Some("20.0.0.9")),
    (INTERNAL, keys::IPV4, "10.0.4.8", Some("10.0.4.9")),
    (&[], keys::PIP_NAME, "one", Some("two")),
    (
        &[],
        keys::PIP_PREFIX,
        "/p/publicIPPrefixes/one",
        Some("/p/publicIPPrefixes/two"),
    ),
    (&[], keys::PIP_TAGS, "a=b", Some("a=c")),
    (
        &[],
        keys::PIP_IP_TAGS,
        "RoutingPreference=Internet",
        Some("FirstPartyUsage=/x"),
    ),
    (&[], keys::DNS_LABEL, "one", Some("two")),
    (&[], keys::RESOURCE_GROUP, "here", Some("there")),
    (&[], keys::ADDITIONAL_IPS, "20.1.0.1", Some("20.1.0.2")),
    (
        &[],
        keys::SERVICE_TAGS,
        "Storage",
        Some("AzureCloud,Storage"),
    ),
    (
        &[],
        keys::ALLOWED_RANGES,
        "192.0.2.0/24",
        Some("198.51.100.0/24"),
    ),
    (
        &[],
        keys::SOURCE_RANGES,
        "192.0.2.0/24",
        Some("198.51.100.0/24"),
    ),
    (LISTED, keys::DENY_ALL, "true", None),
    (&[], keys::NO_NSG, "true", None),
    (&[], keys::NO_FLOATING, "true", None),
    (&[], keys::IDLE, "5", Some("6")),
    (&[], keys::NO_RESET, "true", None),
    (&[], keys::PROBE_PROTOCOL, "http", Some("https")),
    (HTTP, keys::PROBE_PATH, "/a", Some("/b")),
    (&[], keys::PROBE_INTERVAL, "10", Some("20")),
    (&[], keys::PROBE_COUNT, "3", Some("4")),
    (&[], "port_80_no_lb_rule", "true", None),
    (&[], "port_80_no_probe_rule", "true", None),
    (&[], "port_80_health-probe_protocol", "http", Some("https")),
    (HTTP, "port_80_health-probe_request-path", "/a", Some("/b")),
    (HTTP, "port_80_health-probe_interval", "10", Some("20")),
    (HTTP, "port_80_health-probe_num-of-probe", "3", Some("4")),
    (&[], "port_80_health-probe_port", "15021", Some("p81")),
];

/// Public IPs of a user.
fn documents() -> Documents {
    let given = |name: &str, address: &str| {
        let id = settings().place.public_ip_id(None, name);
        json!({"id": id, "name": name, "properties": {"ipAddress": address}})
    };
    Documents {
        public_ips: vec![given("one", "20.0.0.8"), given("two", "20.0.0.9")],
        ..Documents::default()
    }
}

/// Everything that is written for it.
fn picture(spec: &LoadBalancerSpec) -> String {
    let wishes = super::super::super::model::wishes(spec);
    let built = build(&settings(), &key(), spec, &documents()).unwrap();
    let at = Addresses {
        frontends: vec![[20, 0, 0, 1].into()],
        nodes: vec![[10, 0, 0, 1].into()],
        pods: vec![[10, 1, 0, 1].into()],
    };
    let rules = demands(&settings(), spec, &wishes, &at);
    let membership = &spec.membership;
    format!(
        "{:#?}{:#?}{:#?}{rules:#?}{membership:?}",
        built.part, built.public_ips, built.uses
    )
}

#[test]
fn za70_az078_every_annotation_is_followed_when_set_changed_and_removed() {
    for (beside, key, first, second) in ROWS {
        let of = |value: Option<&'static str>, last_good: Option<&LoadBalancerSpec>| {
            let mut all = beside.to_vec();
            all.extend(value.map(|value| (key, value)));
            let resolution = resolve(&settings(), &annotated(own(&[80, 81]), &all), last_good);
            assert_eq!(resolution.refusals, [], "{key}: {value:?}");
            resolution.spec.unwrap()
        };
        let without = of(None, None);
        let set = of(Some(first), Some(&without));
        assert_ne!(picture(&set), picture(&without), "ZA-70: {key} is set");
        let last = match second {
            Some(second) => {
                let changed = of(Some(second), Some(&set));
                assert_ne!(picture(&changed), picture(&set), "ZA-70: {key} is changed");
                assert_eq!(picture(&changed), picture(&of(Some(second), None)), "{key}");
                changed
            }
            None => set,
        };
        let removed = of(None, Some(&last));
        assert_eq!(
            picture(&removed),
            picture(&without),
            "AZ-078: {key} is removed"
        );
    }
}
