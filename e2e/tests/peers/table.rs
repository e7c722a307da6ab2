//! The table of scenarios and proxies, and what counts as failed.

use crate::{Peer, run::Row};
use std::fmt::Write;

/// What a run is called in the table.
fn word(outcome: Option<&Result<(), String>>) -> &'static str {
    match outcome {
        Some(Ok(())) => "passes",
        Some(Err(_)) => "fails",
        None => "-",
    }
}

/// Why the row is as it is, if there is something to say.
fn note(row: &Row) -> String {
    match row.scenario.peer {
        Peer::Same if matches!(row.kube_proxy, Some(Err(_))) => "NOT EXPLAINED".to_owned(),
        Peer::Differs(_, _) if matches!(row.kube_proxy, Some(Ok(()))) => {
            "EXPECTED TO DIFFER, but does not".to_owned()
        }
        Peer::Same => String::new(),
        Peer::Differs(id, why) => format!("differs by {id}: {why}"),
        Peer::Ours(id, why) => format!("ours alone, {id}: {why}"),
    }
}

/// One line a scenario.
pub(crate) fn text(rows: &[Row]) -> String {
    let names = rows.iter().map(|row| row.scenario.name.len());
    let width = names.max().unwrap_or(0);
    let mut text = format!("\n{:<width$}  {:<7}  kube-proxy", "scenario", "agent");
    for row in rows {
        let (agent, peer) = (word(row.agent.as_ref()), word(row.kube_proxy.as_ref()));
        let line = format!(
            "{:<width$}  {agent:<7}  {peer:<10}  {}",
            row.scenario.name,
            note(row)
        );
        // Writing to a String cannot fail.
        let _ = write!(text, "\n{}", line.trim_end());
    }
    text
}

/// How many runs were as the list says, and how many were not.
pub(crate) fn counts(rows: &[Row]) -> (usize, usize) {
    let right = |row: &Row| {
        let peer = row.kube_proxy.as_ref().map(|outcome| {
            let differs = matches!(row.scenario.peer, Peer::Differs(..));
            outcome.is_err() == differs
        });
        [row.agent.as_ref().map(Result::is_ok), peer]
    };
    let runs: Vec<bool> = rows.iter().flat_map(right).flatten().collect();
    let passed = runs.iter().filter(|right| **right).count();
    (passed, runs.len() - passed)
}
