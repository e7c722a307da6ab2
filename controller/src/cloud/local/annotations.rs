//! The one parser of annotations for the local provider. It collects every problem; nothing else reads
//! an annotation (style: convert once at the border).
//!
//! Our own keys come first, `MetalLB`'s for addresses and sharing are read too (C-22, C-29) and answered
//! with a hint at ours. A key with our prefix that we
//! do not know is a problem (I10): it is more likely a typo than a message to somebody else.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use onehop_core::crd::{MembershipPolicy, TargetMode};
use onehop_core::service::ServiceSpec;

use super::resolve::OPTION_AFFINITY;

/// Target mode (K-50).
pub const TARGET: &str = "onehop.dev/target";
/// Membership policy (K-32).
pub const MEMBERSHIP: &str = "onehop.dev/membership";
/// Fixed addresses, one per family, with commas.
pub const ADDRESSES: &str = "onehop.dev/loadBalancerIPs";
/// Pool to take addresses from.
pub const POOL: &str = "onehop.dev/address-pool";
/// The same, as `MetalLB` has it.
pub const METALLB_ADDRESSES: &str = "metallb.io/loadBalancerIPs";
/// The same, as `MetalLB` has it.
pub const METALLB_POOL: &str = "metallb.io/address-pool";
/// Key by which Services share an address (C-29).
pub const SHARING: &str = "onehop.dev/allow-shared-ip";
/// The same, as `MetalLB` has it.
pub const METALLB_SHARING: &str = "metallb.io/allow-shared-ip";

/// Namespaces with whose Services the address may be shared too, or `*` (C-30).
pub const SHARING_NAMESPACES: &str = "onehop.dev/allow-shared-ip-namespaces";

/// Most bytes of a value that a message quotes.
const QUOTED_MAX: usize = 100;
const OUR_PREFIX: &str = "onehop.dev/";
/// Keys of our own.
pub const KNOWN: [&str; 6] = [
    TARGET,
    MEMBERSHIP,
    ADDRESSES,
    POOL,
    SHARING,
    SHARING_NAMESPACES,
];
const ADDRESS_LIST: &str = "a list of addresses with commas, at most one per family";

/// What a Service's annotations and its `loadBalancerIP` ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// An explicit mode.
    pub mode: Option<TargetMode>,
    /// An explicit membership policy.
    pub membership: Option<MembershipPolicy>,
    /// Fixed addresses.
    pub addresses: Vec<IpAddr>,
    /// A named pool.
    pub pool: Option<String>,
    /// A key for sharing an address.
    pub sharing: Option<String>,
    /// Namespaces with which it may be shared too, as they were written.
    pub sharing_namespaces: Option<String>,
    /// What is worth saying although nothing is wrong.
    pub hints: Vec<Hint>,
    /// Option, canonical value and the annotation it came from.
    pub origins: Vec<Origin>,
}

/// Option, canonical value and the annotation that it came from.
pub type Origin = (&'static str, String, String);

/// Something about an annotation that is worth saying.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hint {
    /// Another controller's key was read (C-09).
    Peer {
        /// The key.
        old: &'static str,
        /// Ours.
        new: &'static str,
    },
    /// Another controller's key was not read, since ours is there.
    PeerIgnored {
        /// The key.
        old: &'static str,
        /// Ours.
        new: &'static str,
    },
    /// A sharing key is a label, where nobody reads it.
    SharingLabel(&'static str),
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peer { old, new } => write!(f, "{old} is followed; the key here is {new}"),
            Self::PeerIgnored { old, new } => write!(f, "{old} is not read, since {new} is set"),
            Self::SharingLabel(key) => {
                write!(
                    f,
                    "{key} is a label here and does nothing: make it an annotation"
                )
            }
        }
    }
}

/// One annotation or field that cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// What would be right.
    pub allowed: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An annotation may hold a whole file.
        let quoted = &self.value[..self.value.floor_char_boundary(QUOTED_MAX)];
        let more = if quoted.len() < self.value.len() {
            "…"
        } else {
            ""
        };
        let Self { key, allowed, .. } = self;
        write!(f, "{key}: {quoted:?}{more} is not allowed: {allowed}")
    }
}

/// Reads everything and reports everything.
pub fn parse(service: &ServiceSpec) -> (Wishes, Vec<Problem>) {
    let mut parser = Parser {
        annotations: &service.annotations,
        problems: Vec::new(),
        hints: Vec::new(),
    };
    let mut wishes = Wishes::default();
    parser.unknown_keys();
    wishes.mode = parser.word(
        TARGET,
        &[
            ("node", TargetMode::Node),
            ("vip", TargetMode::Vip),
            ("pod", TargetMode::Pod),
        ],
    );
    wishes.membership = parser.word(
        MEMBERSHIP,
        &[
            ("zero-drop", MembershipPolicy::ZeroDrop),
            ("compat", MembershipPolicy::Compat),
        ],
    );
    let mut name = |keys, option, what| {
        let (key, text) = parser.name(keys, what)?;
        let origin = (option, text.to_owned(), key.to_owned());
        wishes.origins.push(origin);
        Some(text.to_owned())
    };
    wishes.pool = name(
        [POOL, METALLB_POOL],
        "addressPool",
        "the name of an AddressPool",
    );
    wishes.sharing = name(
        [SHARING, METALLB_SHARING],
        "sharingKey",
        "a word that others have too",
    );
    wishes.sharing_namespaces = parser.namespaces(wishes.sharing.is_some(), &mut wishes.origins);
    wishes.addresses = parser.addresses(service, &mut wishes.origins);
    if service.affinity.is_some() {
        let field = "spec.sessionAffinity".to_owned();
        let origin = (OPTION_AFFINITY, "ClientIP".to_owned(), field);
        wishes.origins.push(origin);
    }
    let labels = [SHARING, METALLB_SHARING].into_iter();
    let labels = labels.filter(|key| service.labels.contains_key(*key));
    parser.hints.extend(labels.map(Hint::SharingLabel));
    wishes.hints = parser.hints;
    (wishes, parser.problems)
}

struct Parser<'a> {
    annotations: &'a BTreeMap<String, String>,
    problems: Vec<Problem>,
    hints: Vec<Hint>,
}

impl<'a> Parser<'a> {
    fn problem(&mut self, key: &str, value: &str, allowed: impl Into<String>) {
        let (key, value) = (key.to_owned(), value.to_owned());
        self.problems.push(Problem {
            key,
            value,
            allowed: allowed.into(),
        });
    }

    fn unknown_keys(&mut self) {
        for (key, value) in self.annotations {
            if key.starts_with(OUR_PREFIX) && !KNOWN.contains(&key.as_str()) {
                self.problem(
                    key,
                    value,
                    format!("the keys here are {}", KNOWN.join(", ")),
                );
            }
        }
    }

    /// The value of our key, or else of the peer's.
    fn first(&mut self, [new, old]: [&'static str; 2]) -> Option<(&'static str, &'a str)> {
        let get = |key: &'static str| Some((key, self.annotations.get(key)?.trim()));
        match (get(new), get(old)) {
            (ours, None) => ours,
            (None, theirs) => {
                self.hints.push(Hint::Peer { old, new });
                theirs
            }
            (ours, Some(_)) => {
                self.hints.push(Hint::PeerIgnored { old, new });
                ours
            }
        }
    }

    /// As [`Self::first`], for a value that must not be empty.
    fn name(&mut self, keys: [&'static str; 2], what: &str) -> Option<(&'static str, &'a str)> {
        let (key, text) = self.first(keys)?;
        if text.is_empty() {
            self.problem(key, text, what);
            return None;
        }
        Some((key, text))
    }

    fn namespaces(&mut self, shares: bool, origins: &mut Vec<Origin>) -> Option<String> {
        let text = self.annotations.get(SHARING_NAMESPACES)?.trim();
        let name = |name: &str| {
            let name = name.trim();
            let dns = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            name == "*" || (!name.is_empty() && name.len() <= 63 && name.chars().all(dns))
        };
        if !text.split(',').all(name) {
            self.problem(
                SHARING_NAMESPACES,
                text,
                "names of namespaces with commas, or *",
            );
            return None;
        }
        if !shares {
            let what = format!("only together with {SHARING}");
            self.problem(SHARING_NAMESPACES, text, what);
            return None;
        }
        let origin = (
            "sharingNamespaces",
            text.to_owned(),
            SHARING_NAMESPACES.to_owned(),
        );
        origins.push(origin);
        Some(text.to_owned())
    }

    fn word<T: Copy>(&mut self, key: &'static str, words: &[(&str, T)]) -> Option<T> {
        let value = self.annotations.get(key)?;
        let found = words.iter().find(|(word, _)| *word == value.trim());
        if found.is_none() {
            let list: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            self.problem(key, value, format!("one of {}", list.join(", ")));
        }
        found.map(|(_, meaning)| *meaning)
    }

    fn addresses(&mut self, service: &ServiceSpec, origins: &mut Vec<Origin>) -> Vec<IpAddr> {
        let annotated = self.first([ADDRESSES, METALLB_ADDRESSES]);
        let field = service.requested_address.as_deref();
        let (key, text) = match (annotated, field) {
            (None, None) => return Vec::new(),
            (Some((key, text)), Some(_)) => {
                self.problem(
                    key,
                    text,
                    "not together with spec.loadBalancerIP: keep one of them",
                );
                return Vec::new();
            }
            (Some(annotated), None) => annotated,
            (None, Some(text)) => ("spec.loadBalancerIP", text),
        };
        let parsed: Result<Vec<IpAddr>, _> = text.split(',').map(|a| a.trim().parse()).collect();
        let Ok(addresses) = parsed else {
            self.problem(key, text, ADDRESS_LIST);
            return Vec::new();
        };
        let v4 = addresses.iter().filter(|a| a.is_ipv4()).count();
        if v4 > 1 || addresses.len() - v4 > 1 {
            self.problem(key, text, ADDRESS_LIST);
            return Vec::new();
        }
        origins.push(("addresses", text.to_owned(), key.to_owned()));
        addresses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(annotations: &[(&str, &str)]) -> ServiceSpec {
        let pairs = annotations
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        ServiceSpec {
            annotations: pairs.collect(),
            ..ServiceSpec::default()
        }
    }

    #[test]
    fn every_problem_is_collected_and_says_what_is_allowed() {
        let (wishes, problems) = parse(&service(&[
            (TARGET, "pods"),
            ("onehop.dev/tagret", "pod"),
            (MEMBERSHIP, "zero-drop"),
            (ADDRESSES, "10.0.0.1,10.0.0.2"),
            ("example.com/else", "is nobody's business here"),
        ]));
        let texts: Vec<_> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "onehop.dev/tagret: \"pod\" is not allowed: the keys here are onehop.dev/target, \
             onehop.dev/membership, onehop.dev/loadBalancerIPs, onehop.dev/address-pool, \
             onehop.dev/allow-shared-ip, onehop.dev/allow-shared-ip-namespaces",
                "onehop.dev/target: \"pods\" is not allowed: one of node, vip, pod",
                "onehop.dev/loadBalancerIPs: \"10.0.0.1,10.0.0.2\" is not allowed: a list of addresses \
             with commas, at most one per family",
            ]
        );
        assert_eq!(wishes.membership, Some(MembershipPolicy::ZeroDrop));
    }

    #[test]
    fn c22_our_key_wins_over_metallbs_and_both_ways_to_ask_are_an_error() {
        let ours = [(ADDRESSES, "10.0.0.1"), (METALLB_ADDRESSES, "10.0.0.2")];
        let (wishes, problems) = parse(&service(&ours));
        assert_eq!((wishes.addresses.len(), problems.len()), (1, 0));
        assert_eq!(wishes.addresses[0].to_string(), "10.0.0.1", "C-22");
        let mut both = service(&[(METALLB_ADDRESSES, "10.0.0.2")]);
        both.requested_address = Some("10.0.0.2".to_owned());
        assert_eq!(parse(&both).1.len(), 1, "C-22");
    }

    #[test]
    fn c09_c22_c29_the_peers_keys_mean_the_same_and_ours_win() {
        let peers = [
            (METALLB_ADDRESSES, "10.0.0.1"),
            (METALLB_POOL, "blue"),
            (METALLB_SHARING, "dns"),
        ];
        let ours = [(ADDRESSES, "10.0.0.1"), (POOL, "blue"), (SHARING, "dns")];
        let wishes = |list: &[(&str, &str)]| {
            let (wishes, problems) = parse(&service(list));
            assert_eq!(problems, []);
            (wishes.addresses, wishes.pool, wishes.sharing, wishes.hints)
        };
        let (addresses, pool, sharing, hints) = wishes(&peers);
        let from_ours = wishes(&ours);
        let same = (addresses.clone(), pool.clone(), sharing.clone(), Vec::new());
        assert_eq!(same, from_ours, "C-22, C-29");
        let mut hints: Vec<_> = hints.iter().map(ToString::to_string).collect();
        hints.sort();
        let expected = [
            "metallb.io/address-pool is followed; the key here is onehop.dev/address-pool",
            "metallb.io/allow-shared-ip is followed; the key here is onehop.dev/allow-shared-ip",
            "metallb.io/loadBalancerIPs is followed; the key here is onehop.dev/loadBalancerIPs",
        ];
        assert_eq!(hints, expected, "C-09");
        let both = wishes(&[(METALLB_POOL, "blue"), (POOL, "red")]);
        assert_eq!(both.1.as_deref(), Some("red"), "C-22: ours first");
    }

    #[test]
    fn s321_session_affinity_is_asked_of_the_load_balancer_too() {
        let mut service = service(&[]);
        assert_eq!(parse(&service).0.origins, []);
        service.affinity = Some(std::time::Duration::from_secs(1));
        let [(option, value, field)] = &parse(&service).0.origins[..] else {
            panic!("S-321: one option");
        };
        let said = (*option, value.as_str(), field.as_str());
        let wanted = (OPTION_AFFINITY, "ClientIP", "spec.sessionAffinity");
        assert_eq!(said, wanted, "S-321");
    }

    #[test]
    fn c22_an_annotation_and_the_field_together_are_wrong() {
        for key in [ADDRESSES, METALLB_ADDRESSES] {
            let mut service = service(&[(key, "10.0.0.1")]);
            service.requested_address = Some("10.0.0.1".to_owned());
            let (wishes, problems) = parse(&service);
            assert_eq!(wishes.addresses, Vec::<IpAddr>::new(), "C-22");
            assert_eq!((problems.len(), problems[0].key.as_str()), (1, key), "C-22");
        }
    }

    #[test]
    fn c08_a_huge_value_is_quoted_in_part_and_a_strange_one_is_escaped() {
        let huge = "é".repeat(100_000);
        let (_, problems) = parse(&service(&[
            (TARGET, huge.as_str()),
            (MEMBERSHIP, "a\n\u{0}b"),
        ]));
        let texts: Vec<_> = problems.iter().map(ToString::to_string).collect();
        assert!(texts.iter().all(|text| text.len() < 300), "C-08");
        assert!(texts[0].contains("…"), "C-08: {}", texts[0]);
        assert!(texts[1].contains(r#""a\n\0b""#), "C-08: {}", texts[1]);
    }

    #[test]
    fn c30_namespaces_to_share_with_need_a_key_and_names_that_namespaces_can_have() {
        let wishes = |list: &[(&str, &str)]| parse(&service(list));
        let (good, problems) = wishes(&[(SHARING, "k"), (SHARING_NAMESPACES, " shop, b-2 ")]);
        assert_eq!(
            (good.sharing_namespaces.as_deref(), problems.len()),
            (Some("shop, b-2"), 0),
            "C-30"
        );
        for bad in ["", "shop,", "Shop", "a b"] {
            let (wishes, problems) = wishes(&[(SHARING, "k"), (SHARING_NAMESPACES, bad)]);
            assert_eq!(
                (wishes.sharing_namespaces, problems.len()),
                (None, 1),
                "C-08: {bad:?}"
            );
        }
        let (_, problems) = wishes(&[(SHARING_NAMESPACES, "*")]);
        let told = problems[0].to_string();
        assert!(
            told.ends_with("only together with onehop.dev/allow-shared-ip"),
            "{told}"
        );
    }

    #[test]
    fn c29_a_key_given_as_a_label_is_hinted_at() {
        let mut service = service(&[]);
        service.labels.insert(SHARING.to_owned(), "dns".to_owned());
        let (wishes, problems) = parse(&service);
        assert_eq!((wishes.sharing, problems), (None, vec![]));
        assert_eq!(wishes.hints, [Hint::SharingLabel(SHARING)], "C-29");
    }
}
