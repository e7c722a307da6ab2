//! Clusters of real nodes: `./e2e/run up` and `./e2e/run test upstream`.

use clap::Parser;
use onehop_e2e::nodes::{UpArgs, UpstreamArgs, run_upstream, up};

/// Clusters of real nodes.
#[derive(Debug, Parser)]
enum Command {
    /// One that stays until Ctrl-C.
    Up(UpArgs),
    /// Upstream's end-to-end suite on one.
    Upstream(UpstreamArgs),
}

fn main() -> anyhow::Result<()> {
    let command = Command::parse();
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(async {
            match command {
                Command::Up(args) => up(args).await,
                Command::Upstream(args) => run_upstream(args).await,
            }
        })
}
