//! Least privilege: the rights are listed here as what they may be at most.

use crate::sets::{sets, with};
use anyhow::{Context, Result};
use onehop_e2e::chart::{Chart, minimal_values};
use serde_json::Value;
use std::collections::BTreeSet;

/// `group/resource verb` of each right of a role; `/path verb` where it is about a path.
pub(crate) fn rights(role: &Value) -> Result<BTreeSet<String>> {
    let list = |value: &Value| -> Result<Vec<String>> {
        serde_json::from_value(value.clone()).context("a list")
    };
    let mut all = BTreeSet::new();
    for rule in role["rules"].as_array().context("rules")? {
        if rule["nonResourceURLs"].is_array() {
            for path in list(&rule["nonResourceURLs"])? {
                all.extend(
                    list(&rule["verbs"])?
                        .iter()
                        .map(|verb| format!("{path} {verb}")),
                );
            }
            continue;
        }
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
    // ZD-10, ZD-11: of what controllers write it reads NodeTargets alone, and writes nothing but its status.
    assert_eq!(rights(role)?, most, "ZD-10, ZD-11");
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

/// S-313 and S-300: it asks who scrapes only where somebody can, and a Prometheus gets the right to scrape and no other.
#[test]
fn s313_s300_rights_of_whoever_scrapes() -> Result<()> {
    let chart = Chart::of_this_build()?;
    let agents = |values: &Value| -> Result<BTreeSet<String>> {
        rights(
            chart
                .render(values)?
                .object("ClusterRole", "onehop-node-agent")?,
        )
    };
    let usual = agents(&minimal_values())?;
    let more = |agent: Value| -> Result<BTreeSet<String>> {
        let all = agents(&with(serde_json::json!({"agent": agent})))?;
        Ok(all.difference(&usual).cloned().collect())
    };
    let reviews = expected(
        "authentication.k8s.io/tokenreviews create
         authorization.k8s.io/subjectaccessreviews create",
    );
    let monitor = serde_json::json!({"podMonitor": {"enabled": true}});
    assert_eq!(more(monitor.clone())?, reviews, "S-313");
    for (at, wanted) in [
        ("0.0.0.0:10349", reviews.clone()),
        ("127.0.0.1:10349", BTreeSet::new()),
        ("[::1]:10349", BTreeSet::new()),
    ] {
        let only = serde_json::json!({"metricsBindAddresses": [at]});
        assert_eq!(more(only)?, wanted, "S-313: {at}");
    }
    let service = serde_json::json!({"serviceMonitor": {"enabled": true}});
    let controllers = |values: &Value| -> Result<BTreeSet<String>> {
        rights(
            chart
                .render(values)?
                .object("ClusterRole", "onehop-controller")?,
        )
    };
    let (with_it, without) = (
        controllers(&with(service))?,
        controllers(&minimal_values())?,
    );
    let added: BTreeSet<String> = with_it.difference(&without).cloned().collect();
    assert_eq!(added, reviews, "S-300");
    let rendered = chart.render(&with(serde_json::json!({"agent": monitor})))?;
    let name = "onehop-node-agent-metrics-reader";
    let reader = rendered.object("ClusterRole", name)?;
    assert_eq!(rights(reader)?, expected("/metrics get"), "S-300");
    let secret = rendered.object("Secret", name)?;
    assert_eq!(secret["type"], "kubernetes.io/service-account-token");
    assert_eq!(
        (&secret["data"], &secret["stringData"]),
        (&Value::Null, &Value::Null),
        "C-61"
    );
    let endpoint = &rendered.of_kinds(&["PodMonitor"])[0]["spec"]["podMetricsEndpoints"][0];
    assert_eq!(endpoint["scheme"], "https", "S-300");
    assert_eq!(
        endpoint["authorization"]["credentials"]["name"], name,
        "S-300"
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
         /pods/status patch
         /namespaces list watch
         discovery.k8s.io/endpointslices list watch
         apps/deployments list watch
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

/// C-82, C-53: after an uninstall entries of NodeTargets and one Lease may go, and nothing else is written.
#[test]
fn c53_c82_rights_after_an_uninstall() -> Result<()> {
    let rendered = Chart::of_this_build()?.render(&minimal_values())?;
    let name = "onehop-uninstall-clean-up";
    let most = expected(
        "/services list
         onehop.dev/loadbalancers list
         onehop.dev/nodetargets list patch delete",
    );
    assert_eq!(rights(rendered.object("ClusterRole", name)?)?, most);
    let role = rendered.object("Role", name)?;
    assert_eq!(rights(role)?, expected("coordination.k8s.io/leases delete"));
    let lease = &role["rules"][0]["resourceNames"];
    assert_eq!(*lease, serde_json::json!(["onehop-controller-demo-local"]));
    let hooks = rendered.objects().iter();
    let hooks = hooks.filter(|o| o["metadata"]["annotations"]["helm.sh/hook"] == "post-delete");
    assert_eq!(hooks.count(), 6, "there for as long as it runs only");
    Ok(())
}

/// Whether the role's rights on Secrets and on webhooks are about one object each, in the release's namespace where that
/// has one.
fn only_the_webhooks(role: &Value) -> bool {
    let about = |rule: &&Value| {
        let resources = rule["resources"].to_string();
        resources.contains("secrets") || resources.contains("webhook")
    };
    let one = |rule: &Value| {
        rule["resourceNames"].as_array().is_some_and(|names| {
            names.len() == 1 && names[0].as_str().is_some_and(|n| n.ends_with("-webhook"))
        })
    };
    let rules = role["rules"].as_array().into_iter().flatten();
    let secrets = role["kind"] == "Role" || !role["rules"].to_string().contains("secrets");
    secrets && rules.filter(about).all(one)
}

/// C-53: with the webhook the controller may write one Secret and one configuration, and no other.
#[test]
fn c53_c64_rights_of_the_webhook_are_about_one_object_of_each_kind() -> Result<()> {
    let values = crate::sets::with(serde_json::json!({"webhook": {"enabled": true}}));
    let rendered = Chart::of_this_build()?.render(&values)?;
    let without = Chart::of_this_build()?.render(&minimal_values())?;
    let more = |kind: &str| -> Result<BTreeSet<String>> {
        let with = rights(rendered.object(kind, "onehop-controller")?)?;
        let without = rights(without.object(kind, "onehop-controller")?)?;
        Ok(with.difference(&without).cloned().collect())
    };
    assert_eq!(
        more("ClusterRole")?,
        expected("admissionregistration.k8s.io/mutatingwebhookconfigurations list watch patch")
    );
    assert_eq!(more("Role")?, expected("/secrets list watch update"));
    for kind in ["ClusterRole", "Role"] {
        assert!(
            only_the_webhooks(rendered.object(kind, "onehop-controller")?),
            "C-53: {kind}"
        );
    }
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
                let secrets = right.contains("secrets") && !only_the_webhooks(role);
                let bad = right.contains('*')
                    || secrets
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
