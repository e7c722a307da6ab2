//! `docs/upstream-tests.md` names tests that exist.

use anyhow::{Context, Result, ensure};
use std::path::Path;

/// Rows of the table: the upstream test, and (file, function) of ours.
fn rows(page: &str) -> Vec<(&str, Vec<(&str, &str)>)> {
    let lines = page.lines().filter(|line| line.starts_with("| "));
    let cells = lines.filter_map(|line| line.trim_matches('|').split_once(" | "));
    let named = cells
        .filter(|(upstream, _)| !upstream.contains("---") && upstream.trim() != "Upstream test");
    named
        .map(|(upstream, ours)| {
            let quoted: Vec<&str> = ours.split('`').skip(1).step_by(2).collect();
            let pairs = quoted.chunks(2).filter_map(|pair| match pair {
                [file, function] => Some((*file, *function)),
                _ => None,
            });
            (upstream.trim(), pairs.collect())
        })
        .collect()
}

#[test]
fn every_upstream_test_of_the_table_has_tests_of_ours_that_exist() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("the project")?;
    let page = std::fs::read_to_string(root.join("docs/upstream-tests.md"))?;
    let rows = rows(&page);
    ensure!(rows.len() > 60, "{} rows", rows.len());
    for (upstream, ours) in rows {
        ensure!(!ours.is_empty(), "{upstream}: no test of ours");
        for (file, function) in ours {
            let text = std::fs::read_to_string(root.join(file))
                .with_context(|| format!("{upstream}: {file}"))?;
            ensure!(
                text.contains(&format!("fn {function}(")),
                "{upstream}: no {function} in {file}"
            );
        }
    }
    Ok(())
}
