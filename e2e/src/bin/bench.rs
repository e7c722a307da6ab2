//! `./e2e/run bench`: measurements on real packets.

use clap::Parser;

fn main() -> anyhow::Result<()> {
    let args = onehop_e2e::bench::Args::parse();
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(onehop_e2e::bench::run(args))
}
