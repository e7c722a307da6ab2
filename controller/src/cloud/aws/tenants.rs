//! What a namespace's Services may ask for (AWS-034, K-60). Pure; asked before the first call about a Service.

use std::collections::BTreeSet;

use onehop_core::crd::{LoadBalancerSpec, Scheme};

use super::annotations::{self, keys};
use super::resolve::refusal;
use super::settings::Settings;
use crate::plan::Refusal;
use crate::policy::{Policy, Reach};

/// Reason of everything that a policy forbids (AWS-811).
const FORBIDDEN: &str = "PolicyRefused";

/// What the policy of its namespace forbids of a Service's wishes. Annotations name things by id or by tag: a list allows
/// them as they are named.
pub(super) fn forbidden(
    policy: &Policy,
    settings: &Settings,
    spec: &LoadBalancerSpec,
) -> Option<Refusal> {
    let by = |what: String| {
        let message = format!("policy {:?} forbids {what}", policy.name);
        refusal(FORBIDDEN, message)
    };
    if spec.scheme == Scheme::InternetFacing && policy.internet == Reach::Inside {
        return Some(by(format!(
            "load balancers that the internet reaches: set {}{} to internal",
            keys::PREFIX,
            keys::SCHEME
        )));
    }
    let wishes = annotations::of_options(settings, spec);
    let name: Vec<String> = wishes.name.into_iter().collect();
    let asked = [
        (keys::SUBNETS, &wishes.subnets, &policy.subnets),
        (
            keys::SECURITY_GROUPS,
            &wishes.security_groups,
            &policy.security_groups,
        ),
        (
            keys::PREFIX_LISTS,
            &wishes.prefix_lists,
            &policy.prefix_lists,
        ),
        (keys::EIPS, &wishes.eips, &policy.elastic_ips),
        (keys::NAME, &name, &policy.load_balancer_names),
    ];
    let wrong = asked.iter().find_map(|(key, values, allowed)| {
        let forbids = |value: &&String| {
            let allowed: Option<&BTreeSet<String>> = allowed.as_ref();
            allowed.is_some_and(|allowed| !allowed.contains(*value))
        };
        let value = values.iter().find(forbids)?;
        Some(format!("{}{key}: {value:?}", keys::PREFIX))
    });
    wrong.map(by)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cloud::aws::resolve::resolve;
    use crate::cloud::aws::testkit::{UID_A, annotated, service, settings};

    fn told(policy: &Policy, annotations: &[(&str, &str)]) -> Option<String> {
        let service = service(("default", "web"), UID_A, &[(80, 8080, 30080)]);
        let service = annotated(service, annotations);
        let spec = resolve(&settings(), &service, None).spec.unwrap();
        let refusal = forbidden(policy, &settings(), &spec)?;
        assert_eq!(refusal.reason, "PolicyRefused", "AWS-811");
        Some(refusal.message)
    }

    #[test]
    fn aws034_k60_a_policy_says_what_annotations_may_name_and_a_refusal_names_it_key_and_value() {
        let only = |names: &[&str]| Some(names.iter().map(|n| (*n).to_owned()).collect());
        let strict = Policy {
            name: "tenants".to_owned(),
            internet: Reach::Inside,
            subnets: only(&["subnet-1", "by-name"]),
            security_groups: only(&[]),
            prefix_lists: only(&["pl-1"]),
            elastic_ips: only(&["eipalloc-1"]),
            load_balancer_names: only(&["shop"]),
            ..Policy::default()
        };
        let rows = [
            ("subnets", "subnet-2"),
            ("subnets", "by-another-name"),
            ("security-groups", "sg-1"),
            ("security-group-prefix-lists", "pl-2"),
            ("eip-allocations", "eipalloc-2"),
            ("name", "taken"),
        ];
        for (key, value) in rows {
            let key = format!("aws-load-balancer-{key}");
            let wishes = [(key.as_str(), value)];
            let told_of = told(&strict, &wishes).unwrap_or_else(|| panic!("AWS-034: {key}"));
            for part in ["policy \"tenants\"", &key, value] {
                assert!(told_of.contains(part), "AWS-034: {told_of}");
            }
            assert_eq!(told(&Policy::default(), &wishes), None, "AWS-034: {key}");
        }
        let public = [("aws-load-balancer-scheme", "internet-facing")];
        let told_of = told(&strict, &public).unwrap();
        assert!(told_of.contains("the internet reaches"), "AWS-034");
        assert_eq!(told(&Policy::default(), &public), None);
        let allowed = [
            ("aws-load-balancer-subnets", "subnet-1,by-name"),
            ("aws-load-balancer-name", "shop"),
            ("aws-load-balancer-security-group-prefix-lists", "pl-1"),
        ];
        assert_eq!(told(&strict, &allowed), None, "AWS-034");
    }
}
