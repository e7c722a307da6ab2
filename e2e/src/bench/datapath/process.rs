//! What the kernel counts of a process.

use anyhow::{Context, Result};
use nix::unistd::{SysconfVar, sysconf};
use std::time::Duration;

/// CPU time that a process has used: of all its threads, and of the programs that it ran and that ended (kube-proxy
/// runs `nft` for every sync).
pub(super) fn cpu(pid: u32) -> Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let ticks = ticks(&text).with_context(|| format!("{path} is {text:?}"))?;
    let second = sysconf(SysconfVar::CLK_TCK)?.context("the kernel's tick")?;
    let second = u64::try_from(second)?;
    let time = |ticks: u64| Duration::from_millis(ticks * 1000 / second);
    // Its ticks are too coarse for a change of endpoints; the threads are counted in ns, but only those that live.
    Ok(time(ticks.own).max(threads(pid)?) + time(ticks.children))
}

/// What a stat line counts.
#[derive(Debug, PartialEq, Eq)]
struct Ticks {
    own: u64,
    children: u64,
}

/// User and system time of a stat line; the program's name before them may hold anything.
fn ticks(stat: &str) -> Option<Ticks> {
    let (_, fields) = stat.rsplit_once(") ")?;
    // utime, stime, cutime and cstime are fields 14 to 17; the state behind the name is field 3.
    let mut times = fields.split_whitespace().skip(11).map(str::parse::<u64>);
    let mut next = || times.next()?.ok();
    let (user, system, of_children, system_of_children) = (next()?, next()?, next()?, next()?);
    Some(Ticks {
        own: user + system,
        children: of_children + system_of_children,
    })
}

/// Time that the threads of a process have run.
fn threads(pid: u32) -> Result<Duration> {
    let mut all = Duration::ZERO;
    let path = format!("/proc/{pid}/task");
    for thread in std::fs::read_dir(&path).with_context(|| format!("read {path}"))? {
        // One that has just ended is not there any more.
        let text = std::fs::read_to_string(thread?.path().join("schedstat")).unwrap_or_default();
        let run = text
            .split_whitespace()
            .next()
            .and_then(|ns| ns.parse().ok());
        all += Duration::from_nanos(run.unwrap_or(0));
    }
    Ok(all)
}

/// Largest resident memory so far, in MiB.
pub(super) fn peak_mib(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kib: f64 = kib.context("no VmHWM")?.trim().parse()?;
    Ok(kib / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_behind_a_name_with_spaces() {
        let line = "7 (a ) b) S 1 7 7 0 -1 4194560 1 0 0 0 250 50 7 3 20 0 1 0 1 1 1";
        let (own, children) = (300, 10);
        assert_eq!(ticks(line), Some(Ticks { own, children }));
    }

    #[test]
    fn this_process_has_memory_and_time() {
        let me = std::process::id();
        assert!(peak_mib(me).expect("memory") > 0.0);
        assert!(cpu(me).is_ok());
    }
}
