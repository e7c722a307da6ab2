//! Least privilege: the rights are listed here as what they may be at most.

use crate::sets::sets;
use anyhow::{Context, Result};
use onehop_e2e::chart::{Chart, minimal_values};
use serde_json::Value;
use std::collections::BTreeSet;

/// `group/resource verb` of each right of a role.
pub(crate) fn rights(role: &Value) -> Result<BTreeSet<String>> {
    let list = |value: &Value| -> Result<Vec<String>> {
        serde_json::from_value(value.clone()).context("a list")
    };
    let mut all = BTreeSet::new();
    for rule in role["rules"].as_array().context("rules")? {
        for group in list(&rule["apiGroups"])? {
            for resource in list(&rule["resources"])? {
                for verb in list(&rule["verbs"])? {
                    all.insert(format!("{group}/{resource} {verb}"));
                }
            }
        }
    }
    Ok(all)
}

fn expected(text: &str) -> BTreeSet<String> {
    let lines = text.lines().filter_map(|line| line.trim().split_once(' '));
    lines
        .flat_map(|(what, verbs)| verbs.split(' ').map(move |verb| format!("{what} {verb}")))
        .collect()
}

/// S-313, C-53 and K-25: the agent reads, and writes the status of NodeTargets and events only.
#[test]
fn s313_c53_k25_rights_of_the_agent() -> Result<()> {
    let rendered = Chart::of_this_build()?.render(&minimal_values())?;
    let role = rendered.object("ClusterRole", "onehop-node-agent")?;
    let most = expected(
        "/services list watch
         /nodes list watch
         /pods list watch
         discovery.k8s.io/endpointslices list watch
         onehop.dev/nodetargets list watch
         onehop.dev/nodetargets/status patch
         /events create patch",
    );
    assert_eq!(rights(role)?, most);
    // K-25: and of these only the own node's, by a policy that fails closed.
    let policy = rendered.object("ValidatingAdmissionPolicy", "onehop-node-agent")?;
    assert_eq!(policy["spec"]["failurePolicy"], "Fail");
    let binding = rendered.object("ValidatingAdmissionPolicyBinding", "onehop-node-agent")?;
    assert_eq!(binding["spec"]["policyName"], "onehop-node-agent");
    assert_eq!(
        binding["spec"]["validationActions"],
        serde_json::json!(["Deny"])
    );
    Ok(())
}

/// C-53: of a Service the controller writes a finalizer and the status; of users' other objects nothing.
#[test]
fn c53_rights_of_the_controller() -> Result<()> {
    let rendered = Chart::of_this_build()?.render(&minimal_values())?;
    let role = rendered.object("ClusterRole", "onehop-controller")?;
    let most = expected(
        "/services list watch patch
         /services/status patch
         /nodes list watch
         /pods list watch
         /namespaces list watch
         discovery.k8s.io/endpointslices list watch
         onehop.dev/loadbalancers list watch create patch delete
         onehop.dev/loadbalancers/status patch
         onehop.dev/nodetargets list watch create patch delete
         onehop.dev/addresspools list watch patch
         onehop.dev/addresspools/status patch
         coordination.k8s.io/leases list watch
         /events create patch",
    );
    assert_eq!(rights(role)?, most);
    let role = rendered.object("Role", "onehop-controller")?;
    assert_eq!(
        rights(role)?,
        expected("coordination.k8s.io/leases create get update")
    );
    Ok(())
}

/// C-53: nobody gets what a wildcard would give, or more rights than it was given.
#[test]
fn c53_no_wildcards_and_no_escalation() -> Result<()> {
    let chart = Chart::of_this_build()?;
    for set in sets()? {
        let rendered = chart.render(&set.values)?;
        for role in rendered.of_kinds(&["ClusterRole", "Role"]) {
            for right in rights(role)? {
                let verbs = ["escalate", "impersonate", "bind"];
                let bad = right.contains('*')
                    || right.contains("secrets")
                    || right.contains("serviceaccounts")
                    || verbs
                        .iter()
                        .any(|verb| right.ends_with(&format!(" {verb}")));
                assert!(!bad, "{}: {right}", set.name);
            }
        }
        for binding in rendered.of_kinds(&["ClusterRoleBinding", "RoleBinding"]) {
            let subjects = binding["subjects"].as_array().context("subjects")?;
            assert!(
                subjects.len() == 1 && subjects[0]["kind"] == "ServiceAccount",
                "{}: {binding}",
                set.name
            );
        }
    }
    Ok(())
}
