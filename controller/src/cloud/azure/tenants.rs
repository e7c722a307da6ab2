//! What a namespace's Services may ask for (AZ-114, K-60). Pure; asked before the first call about a Service.

use std::collections::BTreeSet;

use onehop_core::id::{IpFamily, ServiceKey};
use serde_json::Value;

use super::annotations::{Wishes, keys};
use super::document::{last_of_id, name};
use super::public_ip::{address_of, services_of};
use super::resolve::refusal;
use crate::plan::Refusal;
use crate::policy::{Policy, Reach, Sharing};

/// Reason of everything that a policy forbids.
const FORBIDDEN: &str = "PolicyRefused";

/// What the policy of its namespace forbids of a Service's wishes.
pub(super) fn forbidden(
    policy: &Policy,
    service: &ServiceKey,
    families: &[IpFamily],
    wishes: &Wishes,
    public_ips: &[Value],
) -> Option<Refusal> {
    let by = |what: String| {
        Some(refusal(
            FORBIDDEN,
            format!("policy {:?} forbids {what}", policy.name),
        ))
    };
    if !wishes.internal && policy.internet == Reach::Inside {
        return by(format!(
            "load balancers that the internet reaches: set {}{} to true",
            keys::PREFIX,
            keys::INTERNAL
        ));
    }
    let named = |key: &str, wish: Option<&str>, allowed: Option<&BTreeSet<String>>| {
        let wish = wish.map(last_of_id)?;
        let allows =
            |allowed: &BTreeSet<String>| allowed.iter().any(|it| it.eq_ignore_ascii_case(wish));
        let forbids = allowed.is_some_and(|allowed| !allows(allowed));
        forbids.then(|| format!("{}{key}: {wish:?}", keys::PREFIX))
    };
    let mut wrong = vec![
        named(
            keys::SUBNET,
            wishes.subnet.as_deref(),
            policy.subnets.as_ref(),
        ),
        named(
            keys::RESOURCE_GROUP,
            wishes.resource_group.as_deref(),
            policy.resource_groups.as_ref(),
        ),
    ];
    for family in families {
        let prefix = wishes.prefix.of(*family, families);
        wrong.push(named(
            keys::PIP_PREFIX,
            prefix,
            policy.public_ip_prefixes.as_ref(),
        ));
        let by_name = wishes.pip.of(*family, families);
        let pinned = wishes.pinned.get(family).filter(|_| !wishes.internal);
        let asked = public_ips.iter().find(|pip| match (pinned, by_name) {
            (Some(address), _) => address_of(pip) == Some(*address),
            (None, Some(wanted)) => name(pip).eq_ignore_ascii_case(wanted),
            (None, None) => false,
        });
        let wish = asked.map(name).or(by_name);
        wrong.push(named(keys::PIP_NAME, wish, policy.public_ips.as_ref()));
        wrong.push(asked.and_then(|pip| shared(policy, service, pip)));
    }
    wrong.into_iter().flatten().next().and_then(by)
}

/// Services of other namespaces on a public IP, where addresses may not be shared with them.
fn shared(policy: &Policy, service: &ServiceKey, pip: &Value) -> Option<String> {
    if policy.across_namespaces == Sharing::Allowed {
        return None;
    }
    let own = format!("{}/", service.namespace);
    let other = services_of(pip)
        .into_iter()
        .find(|other| !other.starts_with(&own))?;
    Some(format!(
        "sharing public IP {} with Service {other} of another namespace",
        name(pip)
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::annotations::of_options;
    use super::super::testkit::{annotated, key, own, resolved};
    use super::*;

    fn told(policy: &Policy, annotations: &[(&str, &str)]) -> Option<String> {
        let spec = resolved(&annotated(own(&[80]), annotations));
        let pips = [
            json!({"name": "mine", "properties": {"ipAddress": "20.0.0.1"}}),
            json!({"name": "theirs", "tags": {"onehop-service": "other/web"}}),
        ];
        let refusal = forbidden(policy, &key(), &spec.families, &of_options(&spec), &pips)?;
        assert_eq!(refusal.reason, FORBIDDEN, "ZA-118");
        assert!(
            refusal.message.contains(&policy.name),
            "ZA-118: {}",
            refusal.message
        );
        Some(refusal.message)
    }

    #[test]
    fn za118_az114_k60_what_a_policy_forbids_names_the_policy_and_the_wish() {
        let none = || Some(BTreeSet::new());
        let policy = Policy {
            name: "red".to_owned(),
            subnets: none(),
            public_ips: Some(["mine".to_owned()].into()),
            public_ip_prefixes: none(),
            resource_groups: none(),
            ..Policy::default()
        };
        let subnet = [
            ("azure-load-balancer-internal", "true"),
            ("azure-load-balancer-internal-subnet", "s"),
        ];
        assert!(told(&policy, &subnet).is_some(), "AZ-041");
        assert!(
            told(&policy, &[("azure-load-balancer-resource-group", "g")]).is_some(),
            "AZ-049"
        );
        assert!(
            told(&policy, &[("azure-pip-prefix-id", "/x/publicIPPrefixes/p")]).is_some(),
            "AZ-044"
        );
        assert!(
            told(&policy, &[("azure-pip-name", "other")]).is_some(),
            "AZ-043"
        );
        assert_eq!(told(&policy, &[("azure-pip-name", "Mine")]), None);
        assert_eq!(
            told(&policy, &[("azure-load-balancer-ipv4", "20.0.0.1")]),
            None,
            "AZ-042"
        );
        assert_eq!(
            told(&policy, &[]),
            None,
            "what is ours to choose is no wish"
        );
    }

    #[test]
    fn k60_no_internet_and_no_sharing_with_other_namespaces_unless_allowed() {
        let inside = Policy {
            internet: Reach::Inside,
            ..Policy::default()
        };
        assert!(told(&inside, &[]).is_some());
        assert_eq!(
            told(&inside, &[("azure-load-balancer-internal", "true")]),
            None
        );
        let shared = [("azure-pip-name", "theirs")];
        assert!(
            told(&Policy::default(), &shared).is_some_and(|text| text.contains("other/web")),
            "K-60: off"
        );
        let allowed = Policy {
            across_namespaces: Sharing::Allowed,
            ..Policy::default()
        };
        assert_eq!(told(&allowed, &shared), None);
    }
}
