//! Tables of what became of specs.

use super::{
    PART, known,
    report::{Outcome, Results},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

/// For a terminal: a line for each spec, the reasons below it.
pub(super) fn text(columns: &BTreeMap<&'static str, Results>) -> String {
    let mut text = String::new();
    for name in names(columns) {
        let _ = writeln!(text, "{name}");
        for (column, results) in columns {
            let outcome = results.get(&name);
            let word = outcome.map_or_else(|| "not run".to_owned(), Outcome::word);
            let said = outcome.and_then(Outcome::reason);
            let said = said.map(|said| format!(": {said}")).unwrap_or_default();
            let _ = writeln!(text, "    {column:<10} {word}{said}");
        }
    }
    text
}

/// For a page: why some do not pass, then all of them.
pub(super) fn markdown(columns: &BTreeMap<&'static str, Results>) -> String {
    let mut reasons = String::new();
    let mut rows = String::new();
    for name in names(columns) {
        // All are of this part of upstream's.
        let short = name.trim_start_matches(PART).replace('|', "\\|");
        let _ = write!(rows, "| {short} |");
        for (column, results) in columns {
            let outcome = results.get(&name);
            let word = outcome.map_or("not run", |outcome| match outcome {
                Outcome::Passed(_) => "passed",
                Outcome::Failed(_) => "failed",
                Outcome::Skipped(_) => "cannot run",
            });
            let _ = write!(rows, " {word} |");
            if !outcome.is_some_and(Outcome::passed) {
                let why = known::of(&name, column).map_or("not known", |known| known.why);
                let _ = writeln!(reasons, "| {short} | {column} | {why} |");
            }
        }
        rows.push('\n');
    }
    let titles = columns.keys().copied().collect::<Vec<_>>().join(" | ");
    let line = " --- |".repeat(columns.len());
    format!(
        "## Why a spec does not pass\n\n| Spec | With | Why |\n| --- | --- | --- |\n{reasons}\n\
         ## Results\n\n| Spec | {titles} |\n| --- |{line}\n{rows}"
    )
}

fn names(columns: &BTreeMap<&'static str, Results>) -> BTreeSet<String> {
    columns.values().flat_map(BTreeMap::keys).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::told;
    use super::*;

    #[test]
    fn a_table_has_a_column_for_each_proxy_and_a_row_for_each_spec() {
        let columns = BTreeMap::from([("onehop", told().results), ("kube-proxy", Results::new())]);
        let page = markdown(&columns);
        assert!(
            page.contains("| Services serves | not run | passed |"),
            "{page}"
        );
        assert!(
            page.contains("| Services breaks | onehop | not known |"),
            "{page}"
        );
        assert!(text(&columns).contains("onehop     FAILED: failed: no answer"));
    }
}
