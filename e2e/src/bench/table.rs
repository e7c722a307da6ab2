//! The matrix as text: a row for each run.

use super::{cells::Cell, measure::CellReport};
use crate::traffic::FailureKind;

/// Names of the cells, each with its promise.
pub(super) fn names(cells: &[Cell]) {
    for cell in cells {
        println!("{:<42} {:?}", cell.name(), cell.claim);
    }
}

/// Column names.
pub(super) fn head() {
    println!(
        "| Cell | Seed | Promise | Connections | Lost | Ended with their pod | Datagrams lost | Longest gap, ms | SYN resends | Flows cut early |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
}

/// A run.
pub(super) fn row(report: &CellReport) {
    let promise = format!("{:?}", report.claim).to_lowercase();
    println!(
        "| {} | {} | {promise} | {} | {} | {} | {} of {} | {} | {} | {} of {} |",
        report.cell,
        report.seed,
        report.connections,
        lost(report),
        report.ended_with_pod,
        report.lost_datagrams,
        report.datagrams,
        report.longest_gap_ms,
        report.syn_resends,
        report.cut_early,
        report.long_flows,
    );
}

fn lost(report: &CellReport) -> String {
    let word = |kind: &FailureKind| match kind {
        FailureKind::Refused => "refused",
        FailureKind::TimeoutConnect => "timed out",
        FailureKind::Misdelivered => "misdelivered",
        _ => "other",
    };
    let classes = report.lost.iter();
    let classes: Vec<_> = classes
        .map(|(kind, count)| format!("{count} {}", word(kind)))
        .collect();
    match report.lost_all() {
        0 => "0".to_owned(),
        all => format!("{all} ({})", classes.join(", ")),
    }
}
