//! Becomes a container's program, as the kubelet stand-in has written it down in the one argument. Its environment is the
//! container's.

use anyhow::Context;
use e2e_kubelet::Sandbox;

fn main() -> anyhow::Result<()> {
    let argument = std::env::args().nth(1).context("needs one argument")?;
    let sandbox: Sandbox = serde_json::from_str(&argument).context("read the argument")?;
    sandbox.become_it()
}
