//! Names and tags of what the Azure provider makes, byte for byte (AZ-080 to AZ-099). Pure.
//!
//! Services of our own class share the recipes of frontends, rules, probes and public IPs with
//! cloud-provider-azure, since those carry the Service's UID; load balancers, node pools, node-health probes,
//! NSG rules and tags are named so that neither controller takes the other's for its own (AZ-099).

use std::collections::BTreeMap;
use std::fmt::Write;

use md5::{Digest, Md5};
use onehop_core::id::{InstallId, IpFamily, Protocol, ServiceUid};

use super::resolve::Flavour;

/// Tag with the install id, on load balancers and public IPs of ours.
pub const TAG_INSTALL: &str = "onehop-install";
/// Tag that tells a replacement from what it replaces (AZ-112).
pub const TAG_GENERATION: &str = "onehop-generation";
/// Tag of a public IP: Services that use it, as ns/name with commas.
pub const TAG_SERVICE: &str = "onehop-service";
/// Tag of a public IP: the Service that its DNS label is for.
pub const TAG_DNS: &str = "onehop-dns-label-service";
/// Tag of a public IP: until when former addresses of its Service serve on, and marks of their frontends (AZ-113).
pub const TAG_FORMER: &str = "onehop-former-until";
/// Tags by which cloud-provider-azure knows its public IPs, old and new (AZ-094).
pub const PEER_SERVICE_TAGS: [&str; 2] = ["k8s-azure-service", "service"];
/// Tags with which it says of which cluster they are, new and old (AZ-094).
pub const PEER_CLUSTER_TAGS: [&str; 2] = ["k8s-azure-cluster-name", "kubernetes-cluster-name"];
/// Its tag for the Service that a DNS label is for (AZ-094).
pub const PEER_DNS_TAG: &str = "k8s-azure-dns-label-service";
/// Its probe that all Services share, where it is told to have one (AZ-088).
pub const PEER_SHARED_PROBE: &str = "cluster-service-shared-health-probe";
/// Prefix of its rules in the security group (AZ-091, AZ-092).
pub const PEER_RULE_PREFIX: &str = "k8s-azure-lb_";

/// Longest frontend, rule, probe or public IP name without the suffix of its family (AZ-085, AZ-089).
const LONGEST: usize = 75;
/// Longest base name (AZ-080).
pub const LONGEST_BASE: usize = 32;
/// Marks the rules of a former frontend.
const FORMER: &str = "_was";
/// Marks the IPv6 half of a dual-stack Service.
const IPV6: &str = "-IPv6";

/// Tags.
pub type Tags = BTreeMap<String, String>;

/// Which half of a Service something is for: only the IPv6 half of a dual-stack Service is marked (AZ-314).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Half {
    /// All of a single-stack Service, or the IPv4 half.
    Plain,
    /// The IPv6 half of a dual-stack Service.
    Second,
}

impl Half {
    /// The half of this family of a Service with these families.
    pub fn of(family: IpFamily, families: &[IpFamily]) -> Self {
        if family == IpFamily::V6 && families.len() > 1 {
            Self::Second
        } else {
            Self::Plain
        }
    }

    const fn suffix(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Second => IPV6,
        }
    }
}

/// `a` and the UID without dashes, cut to 32 characters (AZ-080).
pub fn base(uid: &ServiceUid) -> String {
    let plain = uid.as_str().chars().filter(|c| *c != '-');
    std::iter::once('a')
        .chain(plain)
        .take(LONGEST_BASE)
        .collect()
}

/// A frontend (AZ-085).
pub fn frontend(base: &str, subnet: Option<&str>, half: Half) -> String {
    let name = match subnet {
        None => base.to_owned(),
        Some(subnet) => {
            let mut name = cut(&format!("{base}-{subnet}"), LONGEST).to_owned();
            let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if name.chars().last().is_some_and(|last| !fits(last)) {
                name.pop();
                name.push('_');
            }
            name
        }
    };
    name + half.suffix()
}

/// A rule or a probe (AZ-086, AZ-088).
pub fn rule(base: &str, subnet: Option<&str>, protocol: Protocol, port: u16, half: Half) -> String {
    let protocol = protocol.as_str();
    let plain = format!("{base}-{protocol}-{port}");
    let name = match subnet {
        None => plain,
        Some(subnet) => {
            let room = LONGEST.saturating_sub(plain.len() + 1);
            format!("{base}-{}-{protocol}-{port}", cut(subnet, room))
        }
    };
    name + half.suffix()
}

/// Whether a frontend, rule, probe or own pool of this name belongs to the Service with this base name, without
/// regard to case (AZ-080, AZ-098).
pub fn is_of(name: &str, base: &str) -> bool {
    let Some(head) = name.get(..base.len()) else {
        return false;
    };
    head.eq_ignore_ascii_case(base) && matches!(name.as_bytes().get(base.len()), None | Some(b'-'))
}

/// A public IP (AZ-089).
pub fn public_ip(cluster: &str, base: &str, prefix: Option<&str>, half: Half) -> String {
    let name = match prefix {
        None => format!("{cluster}-{base}"),
        Some(prefix) => format!("{cluster}-{base}-{prefix}"),
    };
    cut(&name, LONGEST).to_owned() + half.suffix()
}

/// The pool of nodes that the Services of a load balancer share (AZ-083, AZ-099): `owner` is the install id, for
/// Services of the peer's class the cluster's name.
pub fn node_pool(owner: &str, family: IpFamily) -> String {
    match family {
        IpFamily::V4 => owner.to_owned(),
        IpFamily::V6 => format!("{owner}{IPV6}"),
    }
}

/// The pool with the pods of one Service (AZ-095). `port` where two ports with one target port need a pool each
/// (AZ-262). A pool holds addresses only, so nothing that is edited ever needs another one: its generation is always 1.
pub fn pod_pool(base: &str, port: Option<(Protocol, u16)>, family: IpFamily) -> String {
    let mut name = format!("{base}-pods-1");
    if let Some((protocol, port)) = port {
        // Writing to a String cannot fail.
        let _ = write!(name, "-{}-{port}", protocol.as_str());
    }
    if family == IpFamily::V6 {
        name.push_str(IPV6);
    }
    name
}

/// A rule of a frontend with a former address of the Service, until its grace is over (AZ-113). No subnet's name begins
/// like what tells it from the Service's other rules.
pub fn former_rule(
    base: &str,
    frontend: &str,
    protocol: Protocol,
    port: u16,
    half: Half,
) -> String {
    let mark = format!("{FORMER}-{}", mark(frontend));
    rule(base, Some(&mark), protocol, port, half)
}

/// Whether a rule is one of a former address of the Service with this base name.
pub fn is_former_rule(name: &str, base: &str) -> bool {
    is_of(name, &format!("{base}-{FORMER}"))
}

/// The pool of a former frontend where floating IP is off: of the same members as that other pool (AZ-113, AZ-262).
pub fn former_pool(base: &str, pool: &str, frontend: &str, family: IpFamily) -> String {
    let nodes = own_node_pool(base, family);
    let own: &str = if is_of(pool, base) { pool } else { &nodes };
    let stem = match family {
        IpFamily::V4 => own,
        IpFamily::V6 => own.strip_suffix(IPV6).unwrap_or(own),
    };
    node_pool(&format!("{stem}-was-{}", mark(frontend)), family)
}

/// Eight digits that tell a name from others, in any case.
pub fn mark(name: &str) -> String {
    hex(&Md5::digest(name.to_ascii_lowercase().as_bytes()))
        .chars()
        .take(8)
        .collect()
}

/// Whether a pool has pods of the Service with this base name.
pub fn is_pod_pool(name: &str, base: &str) -> bool {
    is_of(name, &format!("{base}-pods"))
}

/// The pool with the nodes of one Service that host a ready pod of it, where `vip` stands in for `pod` (AZ-132, AZ-254).
/// With floating IP any number of its ports can be on it.
pub fn own_node_pool(base: &str, family: IpFamily) -> String {
    node_pool(&format!("{base}-nodes-1"), family)
}

/// A port of a Service in one word, as lists of them have it.
pub fn port_word(protocol: Protocol, port: u16) -> String {
    format!("{}-{port}", protocol.as_str())
}

/// Whether a pool holds IPv6 addresses: by the end of its name, in any case (AZ-083).
pub fn is_ipv6_pool(name: &str) -> bool {
    let start = name.len().saturating_sub(IPV6.len());
    name.get(start..)
        .is_some_and(|end| end.eq_ignore_ascii_case(IPV6))
}

/// A member's name in its pool, made from its address (AZ-096). Node members have their node's name (AZ-090).
pub fn pod_member(address: std::net::IpAddr) -> String {
    let dashed: String = address
        .to_string()
        .chars()
        .map(|c| if c.is_ascii_hexdigit() { c } else { '-' })
        .collect();
    format!("ip-{dashed}")
}

/// `<i>`: the first 8 hex digits of the md5 of the install id (AZ-099).
fn short(install: &InstallId) -> String {
    hex(&Md5::digest(install.as_str().as_bytes()))
        .chars()
        .take(8)
        .collect()
}

/// The probe of nodes' health that Services of our class share, one a port (AZ-099).
pub fn node_probe(install: &InstallId, port: u16) -> String {
    format!("onehop-{}-node-{port}", short(install))
}

/// Whether a probe of this name is a shared one of this install.
pub fn is_node_probe(name: &str, install: &InstallId) -> bool {
    let stem = format!("onehop-{}-node-", short(install));
    name.get(..stem.len())
        .is_some_and(|head| head.eq_ignore_ascii_case(&stem))
}

/// Prefix of the NSG rules of this install (AZ-099), or of the peer.
pub fn security_rule_prefix(install: &InstallId, naming: Flavour) -> String {
    match naming {
        Flavour::Own => format!("onehop-{}_", short(install)),
        Flavour::Peer => PEER_RULE_PREFIX.to_owned(),
    }
}

/// An NSG allow rule; the hash is the peer's (AZ-091).
pub fn allow_rule(prefix: &str, family: IpFamily, hash: &str) -> String {
    format!("{prefix}allow_{family}_{hash}")
}

/// An NSG deny rule (AZ-092).
pub fn deny_rule(prefix: &str, family: IpFamily) -> String {
    format!("{prefix}deny-all_{family}")
}

/// The hash in the name of an allow rule (AZ-091): both lists are sorted as strings, so `443` is before `80`.
/// `protocol` is `Tcp`, `Udp` or `*`.
pub fn rule_hash(protocol: &str, sources: &[String], ports: &[String]) -> String {
    let sorted = |list: &[String]| {
        let mut list = list.to_vec();
        list.sort();
        list.join(",")
    };
    let text = format!("{protocol}_{}_{}", sorted(sources), sorted(ports));
    hex(&Md5::digest(text.as_bytes()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// At most this many characters; Azure names are ASCII.
fn cut(text: &str, most: usize) -> &str {
    text.get(..most).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "257b9655-5137-4ad2-b091-ef3f07043ad3";

    fn based() -> String {
        base(&UID.into())
    }

    #[test]
    fn az080_the_base_name_is_the_uid_without_dashes_cut_to_32() {
        assert_eq!(based(), "a257b965551374ad2b091ef3f07043ad");
        assert_eq!(base(&"test1".into()), "atest1");
        assert!(is_of("A257B965551374AD2B091EF3F07043AD-TCP-80", &based()));
        assert!(is_of("atest1", "atest1"));
        assert!(
            !is_of("atest12-TCP-80", "atest1"),
            "AZ-080: of another Service"
        );
        assert!(!is_of("ates", "atest1"));
    }

    #[test]
    fn za40_az086_rules_and_probes() {
        let rule = |subnet, half| rule(&based(), subnet, Protocol::Tcp, 9000, half);
        assert_eq!(
            rule(Some("shortsubnet"), Half::Plain),
            "a257b965551374ad2b091ef3f07043ad-shortsubnet-TCP-9000"
        );
        assert_eq!(
            rule(None, Half::Plain),
            "a257b965551374ad2b091ef3f07043ad-TCP-9000"
        );
        assert_eq!(
            rule(None, Half::Second),
            "a257b965551374ad2b091ef3f07043ad-TCP-9000-IPv6"
        );
        let long = "averylongsubnetname".repeat(4);
        let cut = rule(Some(&long), Half::Plain);
        assert_eq!(cut.len(), 75, "{cut}");
        assert!(cut.ends_with("-TCP-9000"));
        assert_eq!(rule(Some(&long), Half::Second).len(), 80, "AZ-098");
    }

    #[test]
    fn az085_a_frontend_of_a_subnet_is_cut_and_ends_well() {
        assert_eq!(frontend("atest1", None, Half::Plain), "atest1");
        assert_eq!(
            frontend("atest1", Some("subnet"), Half::Second),
            "atest1-subnet-IPv6"
        );
        let dash_at_75 = format!("{}-more", "s".repeat(67));
        let name = frontend("atest1", Some(&dash_at_75), Half::Plain);
        assert_eq!(name.len(), 75);
        assert!(name.ends_with("s_"), "{name}");
    }

    #[test]
    fn az089_public_ips() {
        let name = |prefix, half| public_ip("kubernetes", "atest1", prefix, half);
        assert_eq!(name(None, Half::Plain), "kubernetes-atest1");
        assert_eq!(
            name(Some("prefix"), Half::Plain),
            "kubernetes-atest1-prefix"
        );
        assert_eq!(name(None, Half::Second), "kubernetes-atest1-IPv6");
        assert_eq!(name(Some(&"p".repeat(90)), Half::Second).len(), 80);
    }

    #[test]
    fn za42_az083_pools_tell_their_family_by_the_end_of_their_names() {
        assert_eq!(node_pool("kubernetes", IpFamily::V4), "kubernetes");
        assert_eq!(node_pool("kubernetes", IpFamily::V6), "kubernetes-IPv6");
        for (name, six) in [
            ("a-ipv6", true),
            ("a-IPV6", true),
            ("a-ipv6-1", false),
            ("ipv6", false),
            ("a", false),
        ] {
            assert_eq!(is_ipv6_pool(name), six, "{name}");
        }
    }

    #[test]
    fn az095_pools_of_pods() {
        let name = pod_pool("atest1", Some((Protocol::Udp, 53)), IpFamily::V6);
        assert_eq!(name, "atest1-pods-1-UDP-53-IPv6");
        assert!(is_ipv6_pool(&name) && is_of(&name, "atest1"));
        assert_eq!(pod_pool("atest1", None, IpFamily::V4), "atest1-pods-1");
        let longest = pod_pool(&"a".repeat(32), Some((Protocol::Sctp, 65535)), IpFamily::V6);
        assert!(longest.len() <= 80, "AZ-098: {longest}");
    }

    #[test]
    fn az095_az132_own_pools_of_nodes() {
        let of = |family| own_node_pool(&based(), family);
        assert_eq!(of(IpFamily::V4), format!("{}-nodes-1", based()));
        assert_eq!(of(IpFamily::V6), format!("{}-nodes-1-IPv6", based()));
        assert!(is_ipv6_pool(&of(IpFamily::V6)) && is_of(&of(IpFamily::V4), &based()));
    }

    #[test]
    fn az113_az098_what_a_former_frontend_has_is_the_services_and_like_nothing_else_of_it() {
        let base = "a".repeat(32);
        let rule = former_rule(&base, &base, Protocol::Sctp, 65535, Half::Second);
        assert!(is_of(&rule, &base) && is_former_rule(&rule.to_uppercase(), &base));
        let subnet = super::rule(&base, Some("was"), Protocol::Tcp, 80, Half::Plain);
        assert!(!is_former_rule(&subnet, &base), "{subnet}");
        let other = former_rule(
            &base,
            &format!("{base}-2"),
            Protocol::Sctp,
            65535,
            Half::Second,
        );
        assert_ne!(rule, other);
        for family in IpFamily::ALL {
            let pods = pod_pool(&base, Some((Protocol::Sctp, 65535)), family);
            let pods = former_pool(&base, &pods, &base, family);
            let nodes = former_pool(&base, &node_pool("demo", family), &base, family);
            assert!(is_pod_pool(&pods, &base) && !is_pod_pool(&nodes, &base));
            for name in [&pods, &nodes] {
                assert!(is_of(name, &base) && name.len() <= 80, "{name}");
                assert_eq!(is_ipv6_pool(name), family == IpFamily::V6, "AZ-083: {name}");
            }
        }
    }

    #[test]
    fn az096_members_are_named_by_their_address() {
        assert_eq!(pod_member("10.0.1.2".parse().unwrap()), "ip-10-0-1-2");
        assert_eq!(pod_member("fd00::1".parse().unwrap()), "ip-fd00--1");
    }

    #[test]
    fn za39_az091_the_hash_of_an_nsg_rule() {
        let hash = |ports: &[&str]| {
            let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
            rule_hash("Tcp", &["Internet".to_owned()], &ports)
        };
        assert_eq!(hash(&["80"]), "d39272f7f57ed937951650d93992ad77", "ZA-39");
        assert_eq!(
            hash(&["80", "443"]),
            "556f7044ec033071ec0dfcf7cd85bc93",
            "ZA-39"
        );
        assert_eq!(hash(&["443", "80"]), hash(&["80", "443"]));
    }

    #[test]
    fn az091_az092_rules_of_the_peer() {
        let prefix = security_rule_prefix(&"demo-azure".into(), Flavour::Peer);
        let allow = allow_rule(&prefix, IpFamily::V4, "d39272f7f57ed937951650d93992ad77");
        assert_eq!(
            allow, "k8s-azure-lb_allow_IPv4_d39272f7f57ed937951650d93992ad77",
            "ZA-39"
        );
        let deny = deny_rule(&prefix, IpFamily::V6);
        assert_eq!(deny, "k8s-azure-lb_deny-all_IPv6", "AZ-092");
    }

    #[test]
    fn az097_az099_rules_and_probes_of_ours_never_look_like_the_peers() {
        let install = "demo-azure".into();
        let prefix = security_rule_prefix(&install, Flavour::Own);
        let allow = allow_rule(&prefix, IpFamily::V4, "d39272f7f57ed937951650d93992ad77");
        assert_eq!(allow.len(), "onehop-12345678_allow_IPv4_".len() + 32);
        for name in [&allow, &deny_rule(&prefix, IpFamily::V6)] {
            assert!(name.starts_with(&prefix), "{name}");
            assert!(
                !name.to_lowercase().starts_with("k8s-azure-lb"),
                "AZ-097: {name}"
            );
        }
        let probe = node_probe(&install, 10356);
        assert!(
            probe.starts_with("onehop-") && probe.ends_with("-node-10356"),
            "{probe}"
        );
        assert!(is_node_probe(&probe.to_uppercase(), &install));
        assert!(!is_node_probe(&probe, &"other".into()));
    }
}
