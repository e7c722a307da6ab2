//! Every manifest by the schemas that Kubernetes published, at both ends of what the chart supports and between: a judge
//! without a cluster, for versions that no cluster here runs. Run by `./e2e/run test chart`, which installs the judge.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use onehop_core::crd::definitions;
use onehop_e2e::chart::Chart;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::examples::objects;
use crate::install::known;
use crate::sets::{examples, golden, sets};

/// The Python that has kubernetes-validate.
const JUDGE: &str = "ONEHOP_MANIFEST_JUDGE";
/// Supported versions of Kubernetes; the first is the lowest that `kubeVersion` allows.
const VERSIONS: [&str; 5] = ["1.33", "1.34", "1.35", "1.36", "1.37"];

#[derive(Debug, Deserialize)]
struct Verdict {
    judged: usize,
    complaints: Vec<String>,
}

/// A manifest and what it comes from.
type Manifest = (String, Value);

fn judge(manifests: &[Manifest], versions: &[&str]) -> Result<Verdict> {
    let python = std::env::var(JUDGE).with_context(|| {
        format!("{JUDGE} names no Python with kubernetes-validate: run ./e2e/run test chart")
    })?;
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("chart/manifests.py");
    let objects: Vec<_> = manifests
        .iter()
        .map(|(from, object)| json!({"from": from, "object": object}))
        .collect();
    let asked = json!({"versions": versions, "schemas": own_kinds()?, "objects": objects});
    let mut child = Command::new(python)
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("start the judge")?;
    let mut stdin = child.stdin.take().context("the judge's input")?;
    stdin.write_all(asked.to_string().as_bytes())?;
    drop(stdin);
    let output = child.wait_with_output().context("wait for the judge")?;
    ensure!(output.status.success(), "the judge ended {}", output.status);
    serde_json::from_slice(&output.stdout).context("what the judge said")
}

/// The schemas of our own kinds, of which no release of Kubernetes knows.
fn own_kinds() -> Result<Value> {
    let mut schemas = Map::new();
    for definition in definitions() {
        let version = definition.spec.versions.first().context("a version")?;
        let schema = version.schema.as_ref().context("a schema")?;
        schemas.insert(
            definition.spec.names.kind.clone(),
            serde_json::to_value(&schema.open_api_v3_schema)?,
        );
    }
    Ok(schemas.into())
}

/// Every manifest of every set and example once, however many have it.
fn manifests() -> Result<Vec<Manifest>> {
    let chart = Chart::of_this_build()?;
    let mut found: Vec<Manifest> = Vec::new();
    let mut add = |from: &str, object: &Value| {
        if known(object) && !found.iter().any(|(_, other)| other == object) {
            found.push((from.to_owned(), object.clone()));
        }
    };
    for set in sets()? {
        let rendered = chart.render(&set.values)?;
        rendered.objects().iter().for_each(|o| add(&set.name, o));
    }
    for folder in examples()? {
        for (file, object) in objects(&folder)? {
            add(&file, &object);
        }
    }
    Ok(found)
}

/// C-T05, C-T06, C-65 and C-72: whatever the chart renders and the examples hold is valid in every supported version, with no
/// field and no kind that it does not know.
#[test]
fn c65_c72_ct05_manifests_are_valid_in_every_supported_version() -> Result<()> {
    let manifests = manifests()?;
    ensure!(manifests.len() >= 60, "{}", manifests.len());
    let verdict = judge(&manifests, &VERSIONS)?;
    ensure!(verdict.complaints.is_empty(), "{:#?}", verdict.complaints);
    ensure!(
        verdict.judged == manifests.len() * VERSIONS.len(),
        "{} judgements of {} manifests",
        verdict.judged,
        manifests.len()
    );
    Ok(())
}

/// C-74: one target renders each golden set, lints it strictly, has it judged at both ends of what is supported, and compares
/// it (`golden`); install, upgrade and uninstall are beside it (`install`, `lives`).
#[test]
fn c74_each_golden_set_is_rendered_linted_and_judged_at_both_ends() -> Result<()> {
    let chart = Chart::of_this_build()?;
    let ends = [VERSIONS[0], VERSIONS[VERSIONS.len() - 1]];
    for set in golden()? {
        let said = chart.lint(&set.values)?;
        ensure!(!said.contains("[WARNING]"), "C-74: {}: {said}", set.name);
        let rendered = chart.render(&set.values)?;
        let all = rendered.objects().iter().filter(|object| known(object));
        let all: Vec<Manifest> = all.map(|o| (set.name.clone(), o.clone())).collect();
        let verdict = judge(&all, &ends)?;
        ensure!(
            verdict.complaints.is_empty(),
            "C-74: {:#?}",
            verdict.complaints
        );
        ensure!(
            verdict.judged == all.len() * ends.len(),
            "C-74: {}",
            set.name
        );
    }
    Ok(())
}

/// The lowest version of the judge is the lowest that the chart allows.
#[test]
fn c65_the_versions_judged_begin_where_the_chart_does() -> Result<()> {
    let text = std::fs::read_to_string(Chart::folder().join("Chart.yaml"))?;
    let chart: Value = serde_saphyr::from_str(&text)?;
    let lowest = VERSIONS.first().context("a version")?;
    assert_eq!(chart["kubeVersion"], format!(">={lowest}.0-0"));
    Ok(())
}

/// C-72, C-T06: the judge does find what is wrong: a misspelt field, a wrong type, a kind that is not there, in ours as well.
#[test]
fn c72_the_judge_finds_what_is_wrong() -> Result<()> {
    let wrong = |kind: &str, api: &str, spec: Value| {
        let object =
            json!({"apiVersion": api, "kind": kind, "metadata": {"name": "x"}, "spec": spec});
        (kind.to_owned(), object)
    };
    let wrong = [
        wrong("Service", "v1", json!({"loadBalancerClazz": "x"})),
        wrong("Deployment", "apps/v1", json!({"replicas": "two"})),
        wrong("Balancer", "v1", json!({})),
        wrong(
            "AddressPool",
            "onehop.dev/v1alpha1",
            json!({"addresses": 5}),
        ),
    ];
    let verdict = judge(&wrong, &VERSIONS)?;
    assert_eq!(
        (verdict.judged, verdict.complaints.len()),
        (0, wrong.len() * VERSIONS.len()),
        "{:#?}",
        verdict.complaints
    );
    Ok(())
}
