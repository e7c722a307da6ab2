//! What became of each spec, as upstream's runner reports it.

use anyhow::{Context, Result};
use serde::Deserialize;
use std::{collections::BTreeMap, path::Path, time::Duration};

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

    pub(super) fn word(&self) -> String {
        match self {
            Self::Passed(time) => format!("passed ({} s)", time.as_secs()),
            Self::Failed(_) => "FAILED".to_owned(),
            Self::Skipped(_) => "skipped".to_owned(),
        }
    }

    pub(super) fn reason(&self) -> Option<&str> {
        match self {
            Self::Passed(_) => None,
            Self::Failed(reason) | Self::Skipped(reason) => Some(reason),
        }
    }
}

/// What a report tells.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// Specs that were asked for, and what runs before and after all specs, if it failed.
    pub(super) results: Results,
    /// Specs that were chosen, but of which the report says nothing: the run broke off.
    pub(super) missing: usize,
    /// Why the run as a whole failed.
    pub(super) complaints: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Report {
    suite_succeeded: bool,
    special_suite_failure_reasons: Option<Vec<String>>,
    pre_run_stats: Option<Chosen>,
    spec_reports: Option<Vec<Spec>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Chosen {
    specs_that_will_run: usize,
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

impl Spec {
    /// Rather than what runs before or after all specs.
    fn is_spec(&self) -> bool {
        self.leaf_node_type == "It"
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    message: Option<String>,
}

/// Reads a report.
pub(super) fn read(path: &Path) -> Result<Told> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    parse(&text).with_context(|| format!("read {}", path.display()))
}

fn parse(text: &str) -> Result<Told> {
    let reports: Vec<Report> = serde_json::from_str(text)?;
    let mut told = Told::default();
    for report in reports {
        let mut ran = 0;
        for spec in report.spec_reports.unwrap_or_default() {
            let is_spec = spec.is_spec();
            if let Some((name, outcome)) = outcome(spec) {
                ran += usize::from(is_spec);
                told.results.insert(name, outcome);
            }
        }
        let chosen = report
            .pre_run_stats
            .context("it does not say how many specs were chosen")?;
        told.missing += chosen.specs_that_will_run.saturating_sub(ran);
        told.complaints
            .extend(report.special_suite_failure_reasons.unwrap_or_default());
        if !report.suite_succeeded
            && !told.results.values().any(Outcome::failed)
            && told.complaints.is_empty()
        {
            told.complaints
                .push("the suite failed, and none of its specs did".to_owned());
        }
    }
    Ok(told)
}

fn outcome(spec: Spec) -> Option<(String, Outcome)> {
    let is_spec = spec.is_spec();
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const REPORT: &str = r#"[{"SuiteSucceeded": false, "PreRunStats": {"TotalSpecs": 4, "SpecsThatWillRun": 4}, "SpecReports": [
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

    /// A spec that passed, one that failed, one that could not run, one that was chosen and is not in the report, and a
    /// failure before all.
    pub(in super::super) fn told() -> Told {
        parse(REPORT).expect("a report")
    }

    #[test]
    fn a_report_tells_what_passed_failed_and_could_not_run() {
        let told = told();
        let of = |name: &str| told.results.get(name).cloned();
        let passed = Outcome::Passed(Duration::from_millis(2500));
        assert_eq!(of("[sig-network] Services serves"), Some(passed));
        let failed = Outcome::Failed("failed: no answer".to_owned());
        assert_eq!(of("[sig-network] Services breaks"), Some(failed));
        let skipped = Outcome::Skipped("no key".to_owned());
        assert_eq!(of("[sig-network] Services wants ssh"), Some(skipped));
        assert_eq!(of("[sig-network] Services not in focus"), None);
        let before = Outcome::Failed("failed: no nodes".to_owned());
        assert_eq!(of("SynchronizedBeforeSuite"), Some(before));
        assert_eq!(told.results.len(), 4);
    }

    #[test]
    fn a_report_tells_what_should_have_run_and_did_not() {
        assert_eq!(told().missing, 1);
        let nothing = |more: &str| {
            parse(&format!(
                r#"[{{"SuiteSucceeded": false, "PreRunStats": {{"SpecsThatWillRun": 3}}{more}}}]"#
            ))
        };
        let told = nothing("").expect("a report");
        assert_eq!((told.missing, told.complaints.len()), (3, 1));
        let late = nothing(r#", "SpecialSuiteFailureReasons": ["Suite Timeout Elapsed"]"#);
        assert_eq!(
            late.expect("a report").complaints,
            ["Suite Timeout Elapsed"]
        );
        assert!(parse(r#"[{"SuiteSucceeded": true}]"#).is_err());
    }
}
