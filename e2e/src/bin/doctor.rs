//! `./e2e/run doctor`: says whether this machine can run worlds, and removes what a killed run left.

use anyhow::{Context, Result};
use clap::Parser;
use e2e_fabric::{Leftovers, WorldTag, clean};
use onehop_runtime::clock::Clock;
use std::path::Path;

/// Whether this machine can run worlds of network namespaces; exit status 1 if not.
#[derive(Debug, Parser)]
#[command(name = "./e2e/run doctor")]
struct Args {
    /// Remove namespaces and processes of worlds whose run was killed. Those of running worlds stay.
    #[arg(long)]
    clean: bool,
}

// What is printed here is the program's answer.
#[allow(clippy::print_stdout)]
fn main() -> Result<()> {
    let args = Args::parse();
    let mut healthy = true;
    for check in checks() {
        healthy &= check.ok;
        println!(
            "{} {:<34} {}",
            if check.ok { "ok  " } else { "FAIL" },
            check.what,
            check.detail
        );
    }
    report(&clean(!args.clean)?, args.clean);
    anyhow::ensure!(
        healthy,
        "this machine cannot run worlds as it is; see the lines marked FAIL"
    );
    Ok(())
}

#[allow(clippy::print_stdout)]
fn report(left: &Leftovers, cleaned: bool) {
    if !left.alive.is_empty() {
        println!("     running worlds, left alone: {}", left.alive.join(", "));
    }
    match (left.namespaces.len(), cleaned) {
        (0, _) => println!("     nothing is left of killed runs"),
        (n, true) => println!("     removed {n} namespaces of killed runs"),
        (n, false) => println!("     {n} namespaces of killed runs; --clean removes them"),
    }
}

struct Check {
    what: &'static str,
    ok: bool,
    detail: String,
}

impl Check {
    fn of(what: &'static str, result: Result<String>) -> Self {
        let ok = result.is_ok();
        Self {
            what,
            ok,
            detail: result.unwrap_or_else(|e| format!("{e:#}")),
        }
    }
}

fn checks() -> Vec<Check> {
    vec![
        Check::of("root", root()),
        Check::of(
            "kernel",
            std::fs::read_to_string("/proc/sys/kernel/osrelease")
                .map(|s| s.trim().to_owned())
                .map_err(Into::into),
        ),
        Check::of("ip (iproute2)", tool("ip", "install the package iproute2")),
        Check::of("network namespaces and nftables", namespace()),
        Check::of("memory", memory()),
        judge("nft"),
        judge("conntrack"),
    ]
}

fn root() -> Result<String> {
    anyhow::ensure!(
        nix::unistd::geteuid().is_root(),
        "run it with sudo: namespaces need root"
    );
    Ok("yes".into())
}

fn tool(name: &str, advice: &'static str) -> Result<String> {
    let path = std::env::var_os("PATH").context("PATH is not set")?;
    let found = std::env::split_paths(&path)
        .map(|p| p.join(name))
        .find(|p| p.exists());
    found.map(|p| p.display().to_string()).context(advice)
}

/// A judge of the tests only: `./e2e/run test` installs it.
fn judge(name: &'static str) -> Check {
    let detail = tool(name, "")
        .unwrap_or_else(|_| "not there; only the tests need it, and install it".into());
    Check {
        what: name,
        ok: true,
        detail,
    }
}

/// Makes a namespace and opens nftables in it, as every world does.
fn namespace() -> Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let _entered = runtime.enter();
    let fabric = e2e_fabric::Fabric::new(
        WorldTag::new()?,
        e2e_fabric::FabricConfig::new(Clock::system()),
    )?;
    fabric.end()?;
    Ok("made and removed a small world".into())
}

fn memory() -> Result<String> {
    let text = std::fs::read_to_string(Path::new("/proc/meminfo"))?;
    let line = text
        .lines()
        .find(|l| l.starts_with("MemAvailable:"))
        .context("no MemAvailable")?;
    let kib: u64 = line
        .split_whitespace()
        .nth(1)
        .context("no number")?
        .parse()?;
    anyhow::ensure!(
        kib > 1 << 20,
        "{} MiB available; a world needs about 1 GiB",
        kib >> 10
    );
    Ok(format!("{} MiB available", kib >> 10))
}
