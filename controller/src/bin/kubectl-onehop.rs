//! The plugin `kubectl onehop`: a command line in, text or JSON out, an exit code.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use onehop_controller::cli::{Cli, run};

#[tokio::main]
async fn main() -> ExitCode {
    let mut out = std::io::stdout();
    match run(Cli::parse(), &mut out).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            // Nobody may be reading.
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::from(2)
        }
    }
}
