//! The one parser of annotations for the local provider. It collects every problem; nothing else reads
//! an annotation (style: convert once at the border).
//!
//! Our own keys come first, `MetalLB`'s address keys are read too (C-22). A key with our prefix that we
//! do not know is a problem (I10): it is more likely a typo than a message to somebody else.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use onehop_core::crd::{MembershipPolicy, TargetMode};
use onehop_core::service::ServiceSpec;

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

const OUR_PREFIX: &str = "onehop.dev/";
const KNOWN: [&str; 4] = [TARGET, MEMBERSHIP, ADDRESSES, POOL];
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
    /// Option, canonical value and the annotation it came from.
    pub origins: Vec<(&'static str, String, String)>,
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
        write!(
            f,
            "{}: {:?} is not allowed: {}",
            self.key, self.value, self.allowed
        )
    }
}

/// Reads everything and reports everything.
pub fn parse(service: &ServiceSpec) -> (Wishes, Vec<Problem>) {
    let mut parser = Parser {
        annotations: &service.annotations,
        problems: Vec::new(),
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
    if let Some((key, pool)) = parser.first(&[POOL, METALLB_POOL]) {
        wishes
            .origins
            .push(("addressPool", pool.to_owned(), key.to_owned()));
        wishes.pool = Some(pool.to_owned());
    }
    wishes.addresses = parser.addresses(service, &mut wishes.origins);
    (wishes, parser.problems)
}

struct Parser<'a> {
    annotations: &'a BTreeMap<String, String>,
    problems: Vec<Problem>,
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

    /// The first of several keys that is set.
    fn first(&self, keys: &[&'static str]) -> Option<(&'static str, &'a str)> {
        keys.iter()
            .find_map(|key| Some((*key, self.annotations.get(*key)?.trim())))
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

    fn addresses(
        &mut self,
        service: &ServiceSpec,
        origins: &mut Vec<(&'static str, String, String)>,
    ) -> Vec<IpAddr> {
        let annotated = self.first(&[ADDRESSES, METALLB_ADDRESSES]);
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
             onehop.dev/membership, onehop.dev/loadBalancerIPs, onehop.dev/address-pool",
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
}
