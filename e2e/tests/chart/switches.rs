//! What is installed only where it is asked for, and what the chart says of itself.

use crate::sets::{aws, monitoring, overlay, with};
use anyhow::{Context, Result};
use onehop_e2e::chart::{Chart, minimal_values};
use serde_json::{Value, json};

const OF_MONITORING: [&str; 3] = ["ServiceMonitor", "PodMonitor", "PrometheusRule"];

/// C-54: what needs somebody else's object types is there by an explicit value only, whatever the cluster can do.
#[test]
fn c54_monitors_and_rules_are_switched_by_values() -> Result<()> {
    let chart = Chart::of_this_build()?;
    let kinds = |values: &Value| -> Result<Vec<String>> {
        let rendered = chart.render(values)?;
        let objects = rendered.of_kinds(&OF_MONITORING).into_iter();
        Ok(objects
            .filter_map(|o| o["kind"].as_str().map(str::to_owned))
            .collect())
    };
    assert_eq!(kinds(&minimal_values())?, [] as [&str; 0]);
    let service = json!({"serviceMonitor": {"enabled": true}});
    assert_eq!(kinds(&with(service))?, ["ServiceMonitor"]);
    let pods = json!({"agent": {"podMonitor": {"enabled": true}}});
    assert_eq!(kinds(&with(pods))?, ["PodMonitor"]);
    let mut all = kinds(&with(monitoring()))?;
    all.sort();
    assert_eq!(all, ["PodMonitor", "PrometheusRule", "ServiceMonitor"]);
    for entry in std::fs::read_dir(Chart::folder().join("templates"))? {
        let path = entry?.path();
        let text = std::fs::read_to_string(&path)?;
        assert!(!text.contains("APIVersions"), "C-71: {}", path.display());
    }
    Ok(())
}

/// C-87: the values for a take-over claim the peer's class and write nothing, until someone says that the peer is off.
#[test]
fn c87_a_take_over_looks_only_until_it_is_confirmed() -> Result<()> {
    let chart = Chart::of_this_build()?;
    let text = std::fs::read_to_string(Chart::folder().join("values-eks-take-over.yaml"))?;
    let more: Value = serde_saphyr::from_str(&text)?;
    let mut values = aws();
    overlay(&mut values, &more);
    let args =
        |values: &Value| -> Result<Vec<String>> { chart.render(values)?.controller()?.args() };
    let looks = args(&values)?;
    let has = |args: &[String], flag: &str| args.iter().any(|arg| arg.starts_with(flag));
    assert!(
        has(&looks, "--load-balancer-class=service.k8s.aws/nlb"),
        "{looks:?}"
    );
    assert!(!has(&looks, "--take-over") && !has(&looks, "--lbc-service-controller-disabled"));
    overlay(&mut values, &json!({"takeOver": ["shop"]}));
    let refused = args(&values).err().context("refused")?.to_string();
    assert!(
        refused.contains("lbcServiceControllerDisabled is required"),
        "{refused}"
    );
    overlay(&mut values, &json!({"lbcServiceControllerDisabled": true}));
    let acts = args(&values)?;
    assert!(has(&acts, "--take-over=shop") && has(&acts, "--lbc-service-controller-disabled"));
    Ok(())
}

/// C-83 and C-82: the guide says how it goes, and what stays on the nodes.
#[test]
fn c83_the_guide_says_how_to_uninstall() -> Result<()> {
    let root = Chart::folder().join("../..");
    let guide = std::fs::read_to_string(root.join("docs/upgrade.md"))?;
    let (_, uninstall) = guide.split_once("\n## Uninstall\n").context("a heading")?;
    for said in [
        "Delete the Services",
        "helm uninstall",
        "kubectl delete crd",
        "--cleanup",
        "kubectl onehop uninstall",
        "--how keep",
    ] {
        assert!(uninstall.contains(said), "C-83: {said}");
    }
    let readme = std::fs::read_to_string(root.join("README.md"))?;
    assert!(readme.contains("(docs/upgrade.md)"), "C-83");
    Ok(())
}
