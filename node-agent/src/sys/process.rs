//! What this process uses, as dashboards of kube-proxy expect it (S-301).

use nix::unistd::{SysconfVar, sysconf};

/// Use of the machine by this process.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Use {
    /// Processor time since the start, in seconds.
    pub cpu_seconds: f64,
    /// Memory in use, in bytes.
    pub resident_bytes: u64,
}

/// As the kernel says now; `None` where it does not.
pub fn usage() -> Option<Use> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let ticks = sysconf(SysconfVar::CLK_TCK).ok()??;
    let page = sysconf(SysconfVar::PAGE_SIZE).ok()??;
    parse(&stat, u32::try_from(ticks).ok()?, u64::try_from(page).ok()?)
}

fn parse(stat: &str, ticks: u32, page: u64) -> Option<Use> {
    // The name of the process may hold anything, also blanks and brackets.
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    // proc(5) counts from 1 and with the two that are cut off: utime 14, stime 15, rss 24.
    let (user, system) = (
        u32::try_from(number(11)?).ok()?,
        u32::try_from(number(12)?).ok()?,
    );
    Some(Use {
        cpu_seconds: (f64::from(user) + f64::from(system)) / f64::from(ticks),
        resident_bytes: number(21)? * page,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s301_fields_are_found_whatever_the_process_is_called() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 9 0 100 1000 25 18446";
        let wanted = Use {
            cpu_seconds: 2.0,
            resident_bytes: 25 * 4096,
        };
        assert_eq!(parse(stat, 100, 4096), Some(wanted));
        assert!(usage().is_some_and(|usage| usage.resident_bytes > 0));
    }
}
