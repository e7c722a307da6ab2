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
    /// Remove namespaces, control groups and processes of worlds whose run was killed. Those of running worlds stay.
    #[arg(long)]
    clean: bool,
}

// What is printed here is the program's answer.
#[allow(clippy::print_stdout)]
fn main() -> Result<()> {
    let args = Args::parse();
    let mut healthy = true;
    for check in checks() {
        healthy &= check.verdict != Verdict::Fails;
        println!(
            "{} {:<34} {}",
            check.verdict.word(),
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
    let what = format!(
        "{} namespaces and {} control groups of killed runs",
        left.namespaces.len(),
        left.cgroups.len()
    );
    if left.namespaces.is_empty() && left.cgroups.is_empty() {
        println!("     nothing is left of killed runs");
    } else if cleaned {
        println!("     removed {what}");
    } else {
        println!("     {what}; --clean removes them");
    }
}

/// What a check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// As it should be.
    Fine,
    /// Something is missing that only a part of what runs here needs.
    Lacks,
    /// No world runs like this.
    Fails,
}

impl Verdict {
    const fn word(self) -> &'static str {
        match self {
            Self::Fine => "ok  ",
            Self::Lacks => "note",
            Self::Fails => "FAIL",
        }
    }
}

struct Check {
    what: &'static str,
    verdict: Verdict,
    detail: String,
}

impl Check {
    /// What every world needs.
    fn of(what: &'static str, result: Result<String>) -> Self {
        Self::or(Verdict::Fails, what, result)
    }

    /// What only some of it needs.
    fn wish(what: &'static str, result: Result<String>) -> Self {
        Self::or(Verdict::Lacks, what, result)
    }

    fn or(without: Verdict, what: &'static str, result: Result<String>) -> Self {
        Self {
            what,
            verdict: if result.is_ok() {
                Verdict::Fine
            } else {
                without
            },
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
        Check::wish("Go", go()),
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
    let advice = "not there; only the tests need it, and install it";
    Check::wish(name, tool(name, advice))
}

/// What the modules of the real control plane ask for.
const MODULES: [&str; 7] = [
    include_str!("../../controlplane/etcd/go.mod"),
    include_str!("../../controlplane/kubernetes/go.mod"),
    include_str!("../../controlplane/helm/go.mod"),
    include_str!("../../controlplane/containerd/go.mod"),
    include_str!("../../controlplane/cni/go.mod"),
    include_str!("../../controlplane/runc/go.mod"),
    include_str!("../../controlplane/coredns/go.mod"),
];

/// The Go that builds the real control plane and Helm: `./e2e/run test`, and `demo --control-plane real`.
fn go() -> Result<String> {
    let wanted = MODULES.iter().filter_map(|module| wanted_go(module)).max();
    let wanted = wanted.context("no go.mod says which Go it needs")?;
    let [major, minor, patch] = wanted;
    let remedy = format!(
        "`./e2e/run test` and `demo --control-plane real` build the control plane from source: install Go \
         {major}.{minor}.{patch} or newer from https://go.dev/dl, or name a folder of ready programs in \
         KUBEBUILDER_ASSETS; the demo and `test --control-plane embedded packets` need neither"
    );
    if let Some(folder) = std::env::var_os("KUBEBUILDER_ASSETS") {
        return Ok(format!(
            "not asked for: programs are in {}",
            folder.display()
        ));
    }
    let Ok(path) = tool("go", "") else {
        anyhow::bail!("not there; {remedy}");
    };
    let output = std::process::Command::new(&path)
        .args(["env", "GOVERSION"])
        // Not of a module that happens to be where this is run.
        .current_dir("/")
        .output()
        .with_context(|| format!("run {path}"))?;
    let found = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match version(&found) {
        Some(version) if version >= wanted => Ok(format!("{found} at {path}")),
        _ => anyhow::bail!("{path} is {found:?}; {remedy}"),
    }
}

/// The line `go 1.26.0` of a go.mod.
fn wanted_go(module: &str) -> Option<[u32; 3]> {
    module
        .lines()
        .find_map(|line| line.strip_prefix("go "))
        .and_then(version)
}

/// `1.26`, `1.26.0` or `go1.26.8`, with a word after it or not.
fn version(text: &str) -> Option<[u32; 3]> {
    let number = text.trim_start_matches("go");
    let number = number.split([' ', '-']).next()?;
    let mut parts = number.split('.').map(str::parse);
    let major = parts.next()?.ok()?;
    let mut next = || parts.next().map_or(Some(0), Result::ok);
    Some([major, next()?, next()?])
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_go_compare_as_numbers() {
        assert_eq!(version("go1.26.8"), Some([1, 26, 8]));
        assert_eq!(version("1.26"), Some([1, 26, 0]));
        assert_eq!(version("go1.27-abc123 X:some"), Some([1, 27, 0]));
        assert_eq!(version("devel"), None);
        assert!(version("go1.9.1") < version("go1.26.0"));
    }

    #[test]
    fn every_module_says_which_go_it_needs() {
        assert!(MODULES.iter().all(|module| wanted_go(module).is_some()));
    }
}
