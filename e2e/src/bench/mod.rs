//! `./e2e/run bench zero-drop`: what is lost in each loss window, with our measures and without (zero-drop.md sections 2
//! and 6). Called by `src/bin/bench.rs`; a few cells run as tests, too. `./e2e/run bench datapath`: our agent beside a
//! real kube-proxy.

mod cells;
mod datapath;
mod event;
mod measure;
mod table;

pub use cells::{Cell, Claim, Cloud, Event, Measures, Mode, matrix};
pub use measure::{CellReport, measure};

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// Measures on real packets.
#[derive(Debug, Parser)]
#[command(name = "./e2e/run bench")]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// New connections, long flows and datagrams that are lost while pods, nodes, agents and controllers come and go.
    ZeroDrop(ZeroDrop),
    /// The node agent and a real kube-proxy with the same Services: start, changes, memory, connections.
    Datapath(datapath::Datapath),
}

#[derive(Debug, clap::Args)]
struct ZeroDrop {
    /// Write everything that was found as JSON to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only cells whose name contains this.
    #[arg(long, value_name = "TEXT", default_value = "")]
    cell: String,
    /// Runs of each cell, with the seeds 1, 2, and so on.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Only name the cells.
    #[arg(long)]
    list: bool,
}

/// Runs what was asked for. An error if a cell that promises zero lost something, or one without our measures did not.
pub async fn run(args: Args) -> Result<()> {
    let args = match args.what {
        What::ZeroDrop(args) => args,
        What::Datapath(args) => return datapath::run(&args).await,
    };
    let cells = matrix()
        .into_iter()
        .filter(|cell| cell.name().contains(&args.cell));
    let cells: Vec<Cell> = cells.collect();
    ensure!(!cells.is_empty(), "no cell's name contains {:?}", args.cell);
    if args.list {
        table::names(&cells);
        return Ok(());
    }
    let mut reports = Vec::new();
    table::head();
    for cell in &cells {
        for seed in 1..=args.seeds {
            let report = measure(cell, seed).await;
            let report = report.with_context(|| format!("{} with seed {seed}", cell.name()))?;
            table::row(&report);
            reports.push(report);
        }
    }
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&reports)?;
        std::fs::write(file, text).with_context(|| format!("write {}", file.display()))?;
    }
    let broken: Vec<String> = reports.iter().filter_map(CellReport::broken).collect();
    ensure!(broken.is_empty(), "promises broken:\n{}", broken.join("\n"));
    Ok(())
}
