//! The embedded API server alone, for `kubectl` and for a look around: writes a kubeconfig to the path given and serves
//! until it is interrupted.

use std::net::TcpListener;

use anyhow::Context;
use e2e_apiserver::{ApiServer, Clock, Config, ControllerOptions, Identity};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let path = std::env::args()
        .nth(1)
        .context("usage: serve <kubeconfig to write>")?;
    let server = ApiServer::start(Clock::system(), Config::default());
    let controllers = server.run_controllers(&ControllerOptions::default());
    let listener = TcpListener::bind("127.0.0.1:0").context("no port on localhost")?;
    let serving = server.serve_tls(listener, &[])?;
    let url = format!("https://{}", serving.address());
    std::fs::write(&path, server.kubeconfig(&url, &Identity::admin())?).context(path)?;
    tokio::signal::ctrl_c().await?;
    drop((serving, controllers));
    Ok(())
}
