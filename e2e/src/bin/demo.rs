//! `./e2e/run demo`: the main job on real packets, from a Service manifest to a rollout under load.

use clap::Parser;

fn main() -> anyhow::Result<()> {
    let args = onehop_e2e::demo::Args::parse();
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(onehop_e2e::demo::run(args))
}
