//! What became of each spec, and a table of it.

use anyhow::{Context, Result};
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    path::Path,
    time::Duration,
};

/// Outcomes by the spec's name.
pub(super) type Results = BTreeMap<String, Outcome>;

/// What became of one spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Passed(Duration),
    /// With the first line of what it said.
    Failed(String),
    /// It chose not to run, and said why.
    Skipped(String),
}

impl Outcome {
    pub(super) fn passed(&self) -> bool {
        matches!(self, Self::Passed(_))
    }

    pub(super) fn failed(&self) -> bool {
        matches!(self, Self::Failed(_))
    }

    fn word(&self) -> String {
        match self {
            Self::Passed(time) => format!("passed ({} s)", time.as_secs()),
            Self::Failed(_) => "FAILED".to_owned(),
            Self::Skipped(_) => "skipped".to_owned(),
        }
    }

    fn reason(&self) -> Option<&str> {
        match self {
            Self::Passed(_) => None,
            Self::Failed(reason) | Self::Skipped(reason) => Some(reason),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Report {
    spec_reports: Option<Vec<Spec>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Spec {
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    leaf_node_text: String,
    state: String,
    run_time: u64,
    failure: Option<Failure>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    message: Option<String>,
}

/// Reads a report. Specs that were not asked for are not in it; what runs before and after all specs is, if it failed.
pub(super) fn read(path: &Path) -> Result<Results> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    parse(&text).with_context(|| format!("read {}", path.display()))
}

fn parse(text: &str) -> Result<Results> {
    let reports: Vec<Report> = serde_json::from_str(text)?;
    let specs = reports
        .into_iter()
        .flat_map(|report| report.spec_reports.unwrap_or_default());
    Ok(specs.filter_map(outcome).collect())
}

fn outcome(spec: Spec) -> Option<(String, Outcome)> {
    let said = spec
        .failure
        .and_then(|failure| failure.message)
        .unwrap_or_default();
    let said = said
        .lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or_default()
        .trim()
        .to_owned();
    let is_spec = spec.leaf_node_type == "It";
    let outcome = match spec.state.as_str() {
        "passed" => Outcome::Passed(Duration::from_nanos(spec.run_time)),
        // Without a word it was not asked for.
        "skipped" if said.is_empty() => return None,
        "skipped" => Outcome::Skipped(said),
        "pending" => return None,
        state => Outcome::Failed(format!("{state}: {said}")),
    };
    if !is_spec && !outcome.failed() {
        return None;
    }
    let mut name = spec.container_hierarchy_texts.unwrap_or_default();
    name.push(if is_spec {
        spec.leaf_node_text
    } else {
        spec.leaf_node_type
    });
    Some((name.join(" ").trim().to_owned(), outcome))
}

/// For a terminal: a line for each spec, the reasons below it.
pub(super) fn text(columns: &BTreeMap<&'static str, Results>) -> String {
    let mut text = String::new();
    for name in names(columns) {
        let _ = writeln!(text, "{name}");
        for (column, results) in columns {
            let outcome = results.get(&name);
            let word = outcome.map_or_else(|| "not run".to_owned(), Outcome::word);
            let reason = outcome.and_then(Outcome::reason);
            let reason = reason.map(|r| format!(": {r}")).unwrap_or_default();
            let _ = writeln!(text, "    {column:<10} {word}{reason}");
        }
    }
    text
}

/// For a page.
pub(super) fn markdown(columns: &BTreeMap<&'static str, Results>) -> String {
    let mut text = "| Spec |".to_owned();
    for column in columns.keys() {
        let _ = write!(text, " {column} |");
    }
    text.push_str("\n| --- |");
    text.push_str(&" --- |".repeat(columns.len()));
    text.push('\n');
    for name in names(columns) {
        let _ = write!(text, "| {} |", name.replace('|', "\\|"));
        for results in columns.values() {
            let word = results
                .get(&name)
                .map_or("not run", |outcome| match outcome {
                    Outcome::Passed(_) => "passed",
                    Outcome::Failed(_) => "failed",
                    Outcome::Skipped(_) => "cannot run",
                });
            let _ = write!(text, " {word} |");
        }
        text.push('\n');
    }
    text
}

fn names(columns: &BTreeMap<&'static str, Results>) -> BTreeSet<String> {
    columns.values().flat_map(BTreeMap::keys).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"[{"SpecReports": [
        {"ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeType": "It", "LeafNodeText": "serves",
         "State": "passed", "RunTime": 2500000000},
        {"ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeType": "It", "LeafNodeText": "breaks",
         "State": "failed", "RunTime": 1, "Failure": {"Message": "\n  no answer\nat line 3"}},
        {"ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeType": "It", "LeafNodeText": "wants ssh",
         "State": "skipped", "RunTime": 1, "Failure": {"Message": "no key"}},
        {"ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeType": "It", "LeafNodeText": "not in focus",
         "State": "skipped", "RunTime": 0},
        {"ContainerHierarchyTexts": null, "LeafNodeType": "SynchronizedBeforeSuite", "LeafNodeText": "",
         "State": "failed", "RunTime": 1, "Failure": {"Message": "no nodes"}},
        {"ContainerHierarchyTexts": null, "LeafNodeType": "SynchronizedAfterSuite", "LeafNodeText": "",
         "State": "passed", "RunTime": 1}
    ]}]"#;

    #[test]
    fn a_report_tells_what_passed_failed_and_could_not_run() {
        let results = parse(REPORT).expect("a report");
        let of = |name: &str| results.get(name).cloned();
        let passed = Outcome::Passed(Duration::from_millis(2500));
        assert_eq!(of("[sig-network] Services serves"), Some(passed));
        let failed = Outcome::Failed("failed: no answer".to_owned());
        assert_eq!(of("[sig-network] Services breaks"), Some(failed));
        let skipped = Outcome::Skipped("no key".to_owned());
        assert_eq!(of("[sig-network] Services wants ssh"), Some(skipped));
        assert_eq!(of("[sig-network] Services not in focus"), None);
        let before = Outcome::Failed("failed: no nodes".to_owned());
        assert_eq!(of("SynchronizedBeforeSuite"), Some(before));
        assert_eq!(results.len(), 4);
    }

    #[test]
    fn a_table_has_a_column_for_each_proxy_and_a_row_for_each_spec() {
        let results = parse(REPORT).expect("a report");
        let columns = BTreeMap::from([("onehop", results), ("kube-proxy", Results::new())]);
        let page = markdown(&columns);
        assert!(
            page.contains("| [sig-network] Services serves | not run | passed |"),
            "{page}"
        );
        assert!(text(&columns).contains("onehop     FAILED: failed: no answer"));
    }
}
