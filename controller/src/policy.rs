//! What the annotations of a namespace's Services may ask for (K-60, C-122): rules of the install, each for the
//! namespaces that its selector chooses. Pure; read from a flag, asked by providers, which refuse what it forbids.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt};
use serde::Deserialize;

/// All rules of an install. The first one whose selector chooses a namespace holds there.
#[derive(Clone, Debug)]
pub struct Policies {
    rules: Vec<(Selector, Arc<Policy>)>,
    otherwise: Arc<Policy>,
}

/// What one rule allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Name, for whoever is refused something by it.
    pub name: String,
    /// Pools that addresses may come from; none: any.
    pub address_pools: Option<BTreeSet<String>>,
    /// Whether an address may be shared with Services of other namespaces (C-30).
    pub across_namespaces: Sharing,
    /// Whether load balancers may be reached from the internet.
    pub internet: Reach,
    /// Subnets that annotations may name; none: any.
    pub subnets: Option<BTreeSet<String>>,
    /// Public IPs that annotations may name or pin, by name; none: any.
    pub public_ips: Option<BTreeSet<String>>,
    /// Public IP prefixes that annotations may name, by the last part of their id; none: any.
    pub public_ip_prefixes: Option<BTreeSet<String>>,
    /// Resource groups that annotations may name; none: any.
    pub resource_groups: Option<BTreeSet<String>>,
    /// Security groups that annotations may name, by id or name; none: any.
    pub security_groups: Option<BTreeSet<String>>,
    /// Prefix lists that annotations may name; none: any.
    pub prefix_lists: Option<BTreeSet<String>>,
    /// Allocations of elastic addresses that annotations may name; none: any.
    pub elastic_ips: Option<BTreeSet<String>>,
    /// Names that annotations may give to load balancers; none: any.
    pub load_balancer_names: Option<BTreeSet<String>>,
}

/// From where a load balancer may be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// From anywhere.
    #[default]
    Anywhere,
    /// From inside the network only.
    Inside,
}

/// Whether something may be shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// No.
    #[default]
    Forbidden,
    /// Yes, where the other side agrees.
    Allowed,
}

/// Rules that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// Not the JSON that it should be.
    #[error(
        "--policies is not a JSON list of rules such as \
         [{{\"name\":\"red\",\"namespaceSelector\":{{\"matchLabels\":{{\"team\":\"red\"}}}},\"addressPools\":[\"red\"],\
         \"sharingAcrossNamespaces\":true}}]: {0}"
    )]
    Unreadable(String),
    /// A selector that no API server would take.
    #[error("--policies: the namespaceSelector of rule {rule:?} cannot be used: {why}")]
    Selector {
        /// Name of the rule.
        rule: String,
        /// What is wrong with it.
        why: String,
    },
    /// Two rules with one name, or one without.
    #[error("--policies: each rule needs a name of its own, and {0:?} is there twice or empty")]
    Name(String),
}

/// A rule as it is written.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rule {
    name: String,
    #[serde(default)]
    namespace_selector: LabelSelector,
    #[serde(default)]
    address_pools: Option<BTreeSet<String>>,
    #[serde(default)]
    sharing_across_namespaces: bool,
    #[serde(default = "yes")]
    internet_facing: bool,
    #[serde(default)]
    subnets: Option<BTreeSet<String>>,
    #[serde(default, rename = "publicIPs")]
    public_ips: Option<BTreeSet<String>>,
    #[serde(default, rename = "publicIPPrefixes")]
    public_ip_prefixes: Option<BTreeSet<String>>,
    #[serde(default)]
    resource_groups: Option<BTreeSet<String>>,
    #[serde(default)]
    security_groups: Option<BTreeSet<String>>,
    #[serde(default)]
    prefix_lists: Option<BTreeSet<String>>,
    #[serde(default, rename = "elasticIPs")]
    elastic_ips: Option<BTreeSet<String>>,
    #[serde(default)]
    load_balancer_names: Option<BTreeSet<String>>,
}

const fn yes() -> bool {
    true
}

impl Default for Policies {
    fn default() -> Self {
        Self {
            rules: Vec::new(),
            otherwise: Arc::new(Policy::default()),
        }
    }
}

impl Default for Policy {
    /// Of an install without rules: any pool, nothing across namespaces.
    fn default() -> Self {
        Self {
            name: "default".to_owned(),
            address_pools: None,
            across_namespaces: Sharing::Forbidden,
            internet: Reach::Anywhere,
            subnets: None,
            public_ips: None,
            public_ip_prefixes: None,
            resource_groups: None,
            security_groups: None,
            prefix_lists: None,
            elastic_ips: None,
            load_balancer_names: None,
        }
    }
}

impl Policies {
    /// Reads the flag's value: a JSON list of rules.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let written: Vec<Rule> =
            serde_json::from_str(text).map_err(|e| PolicyError::Unreadable(e.to_string()))?;
        let mut names = BTreeSet::new();
        let mut rules = Vec::new();
        for rule in written {
            if rule.name.is_empty() || !names.insert(rule.name.clone()) {
                return Err(PolicyError::Name(rule.name));
            }
            let selector = Selector::try_from(rule.namespace_selector);
            let selector = selector.map_err(|why| PolicyError::Selector {
                rule: rule.name.clone(),
                why: why.to_string(),
            })?;
            let policy = Policy {
                name: rule.name,
                address_pools: rule.address_pools,
                across_namespaces: if rule.sharing_across_namespaces {
                    Sharing::Allowed
                } else {
                    Sharing::Forbidden
                },
                internet: if rule.internet_facing {
                    Reach::Anywhere
                } else {
                    Reach::Inside
                },
                subnets: rule.subnets,
                public_ips: rule.public_ips,
                public_ip_prefixes: rule.public_ip_prefixes,
                resource_groups: rule.resource_groups,
                security_groups: rule.security_groups,
                prefix_lists: rule.prefix_lists,
                elastic_ips: rule.elastic_ips,
                load_balancer_names: rule.load_balancer_names,
            };
            rules.push((selector, Arc::new(policy)));
        }
        Ok(Self {
            rules,
            ..Self::default()
        })
    }

    /// The rule that holds for a namespace with these labels.
    pub fn of(&self, namespace: &BTreeMap<String, String>) -> &Arc<Policy> {
        let chosen = self.rules.iter().find(|(s, _)| s.matches(namespace));
        chosen.map_or(&self.otherwise, |(_, policy)| policy)
    }
}

impl Policy {
    /// Whether addresses may come from a pool.
    pub fn allows_pool(&self, pool: &str) -> bool {
        self.address_pools.as_ref().is_none_or(|p| p.contains(pool))
    }

    /// The pools it allows, for messages.
    pub fn pools(&self) -> impl fmt::Display {
        let list: Vec<&str> = self
            .address_pools
            .iter()
            .flatten()
            .map(String::as_str)
            .collect();
        match (&self.address_pools, list.is_empty()) {
            (None, _) => "any AddressPool".to_owned(),
            (Some(_), true) => "no AddressPool".to_owned(),
            (Some(_), false) => format!("AddressPool {}", list.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = r#"[
        {"name": "red", "namespaceSelector": {"matchLabels": {"team": "red"}}, "addressPools": ["a", "b"],
         "sharingAcrossNamespaces": true},
        {"name": "teams", "namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "Exists"}]},
         "addressPools": []}
    ]"#;

    fn labels(team: &str) -> BTreeMap<String, String> {
        [("team".to_owned(), team.to_owned())].into()
    }

    #[test]
    fn k60_c122_the_first_rule_that_chooses_the_namespace_holds_and_without_one_nothing_is_shared()
    {
        let policies = Policies::parse(RULES).unwrap();
        let red = policies.of(&labels("red"));
        assert_eq!(
            (red.name.as_str(), red.across_namespaces),
            ("red", Sharing::Allowed),
            "K-60"
        );
        assert!(red.allows_pool("a") && !red.allows_pool("c"), "C-122");
        let teams = policies.of(&labels("blue"));
        assert_eq!(teams.name, "teams", "K-60: per namespace selector");
        assert!(!teams.allows_pool("a"), "C-122: an empty list allows none");
        assert_eq!(teams.pools().to_string(), "no AddressPool");
        let others = policies.of(&BTreeMap::new());
        assert_eq!(**others, Policy::default());
        assert!(others.allows_pool("c"));
        assert_eq!(others.across_namespaces, Sharing::Forbidden, "K-60: off");
    }

    #[test]
    fn rules_that_cannot_be_used_say_which_and_why() {
        let told = |text: &str| Policies::parse(text).unwrap_err().to_string();
        let typo = told(r#"[{"name": "red", "addresspools": []}]"#);
        assert!(typo.contains("unknown field `addresspools`"), "{typo}");
        assert!(
            typo.contains("--policies is not a JSON list of rules"),
            "{typo}"
        );
        let twice = told(r#"[{"name": "red"}, {"name": "red"}]"#);
        assert!(twice.contains("\"red\" is there twice"), "{twice}");
        let operator = r#"{"matchExpressions": [{"key": "a", "operator": "Near"}]}"#;
        let selector = told(&format!(
            r#"[{{"name": "red", "namespaceSelector": {operator}}}]"#
        ));
        assert!(
            selector.contains("of rule \"red\" cannot be used"),
            "{selector}"
        );
    }
}
