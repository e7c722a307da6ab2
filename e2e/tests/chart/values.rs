//! The page of values is made from `values.yaml`, whose comments are the only place that explains them (C-60).
//!
//! `ONEHOP_WRITE_DOCS=1` writes the page instead of comparing it.

use anyhow::{Context, Result, bail};
use onehop_e2e::chart::Chart;
use serde_json::Value;
use std::fmt::Write;

/// Page of values.
const PAGE: &str = "docs/values.md";

/// A key of `values.yaml`.
struct Entry {
    path: Vec<String>,
    /// Comment right above it.
    says: String,
    /// Whether keys below it have comments, too.
    is_section: bool,
}

/// Keys in order, each with the comment above it. A key below another one whose block has no comments is part of that one's
/// value.
fn entries(text: &str) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut comment: Vec<&str> = Vec::new();
    // Indentation and name of each key around the line.
    let mut around: Vec<(usize, String)> = Vec::new();
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        let line = line.trim();
        if let Some(words) = line.strip_prefix('#') {
            comment.push(words.trim());
            continue;
        }
        let key = line.split_once(':').map(|(key, _)| key);
        let key = key.filter(|key| key.chars().all(char::is_alphanumeric) && !key.is_empty());
        let Some(key) = key else {
            comment.clear();
            continue;
        };
        around.retain(|(outer, _)| *outer < indent);
        around.push((indent, key.to_owned()));
        let path: Vec<String> = around.iter().map(|(_, key)| key.clone()).collect();
        let says = std::mem::take(&mut comment).join(" ");
        if !says.is_empty() || indent == 0 {
            for entry in &mut entries {
                entry.is_section |= entry.path.len() < path.len() && path.starts_with(&entry.path);
            }
            entries.push(Entry {
                path,
                says,
                is_section: false,
            });
        }
    }
    entries
}

fn at<'a>(values: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(values, |value, key| value.get(key))
}

fn page() -> Result<String> {
    let text = std::fs::read_to_string(Chart::folder().join("values.yaml"))?;
    let values: Value = serde_saphyr::from_str(&text)?;
    let mut page = String::from(
        "# Values of the chart\n\nMade from `charts/onehop/values.yaml` and compared with it in the tests. \
         `charts/onehop/values.schema.json` refuses misspelt names and wrong types.\n\n| Value | Default | What |\n| --- | --- | --- |\n",
    );
    for entry in entries(&text) {
        let path = entry.path.join(".");
        let default = at(&values, &entry.path).with_context(|| path.clone())?;
        let says = entry.says.replace('|', "\\|");
        match (entry.is_section, says.is_empty()) {
            (true, true) => {}
            (true, false) => writeln!(page, "| **`{path}`** | | {says} |")?,
            (false, true) => bail!("values.yaml says nothing about {path}"),
            (false, false) => writeln!(page, "| `{path}` | `{default}` | {says} |")?,
        }
    }
    Ok(page)
}

#[test]
fn c60_the_page_of_values_is_made_from_the_values_file() -> Result<()> {
    let path = Chart::folder().join("../..").join(PAGE);
    let page = page()?;
    if std::env::var_os("ONEHOP_WRITE_DOCS").is_some() {
        std::fs::write(&path, &page)?;
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == page,
        "{PAGE} is not what values.yaml says: run this test with ONEHOP_WRITE_DOCS=1"
    );
    Ok(())
}
