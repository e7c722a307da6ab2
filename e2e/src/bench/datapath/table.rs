//! The comparison as text.

use super::{Measured, Surge, Way};
use crate::world::Proxy;

/// What each is called.
pub(super) const fn name(proxy: Proxy) -> &'static str {
    match proxy {
        Proxy::Beside | Proxy::Replace => "onehop",
        Proxy::KubeProxy => "kube-proxy",
    }
}

/// A row: its words, its value, and whether more is better.
type Row = (&'static str, fn(&[&Measured]) -> f64, bool);

const ROWS: [Row; 24] = [
    (
        "start without rules until in sync, ms",
        |m| median(m.iter().map(|m| m.start_ms)),
        false,
    ),
    (
        "its own full sync, ms",
        |m| median(m.iter().map(|m| m.full_sync_ms)),
        false,
    ),
    (
        "longest health answer in the start, ms",
        |m| median(m.iter().map(|m| m.start_health_ms)),
        false,
    ),
    (
        "restart with rules until in sync, ms",
        |m| median(m.iter().map(|m| m.restart_ms)),
        false,
    ),
    (
        "failed connections in the restart",
        |m| m.iter().map(|m| f64::from(m.restart_connections[1])).sum(),
        false,
    ),
    (
        "endpoint change, API write to kernel, p50 ms",
        |m| quantile(swaps(m), 50),
        false,
    ),
    (
        "endpoint change, API write to kernel, p99 ms",
        |m| quantile(swaps(m), 99),
        false,
    ),
    (
        "its own sync of one change, mean ms",
        |m| median(m.iter().map(|m| m.partial_sync_ms)),
        false,
    ),
    (
        "99 of 100 of them took at most, ms",
        |m| median(m.iter().map(|m| m.partial_sync_p99_ms)),
        false,
    ),
    (
        "CPU of one change on its own, ms",
        |m| median(m.iter().map(|m| m.swap_cpu_ms)),
        false,
    ),
    (
        "CPU at 100 changes a second, ms/s",
        |m| median(m.iter().map(|m| m.churn_cpu_ms)),
        false,
    ),
    (
        "longest health answer in the churn, ms",
        |m| median(m.iter().map(|m| m.churn_health_ms)),
        false,
    ),
    (
        "failed connections after a flush by somebody else",
        |m| m.iter().map(|m| f64::from(m.flush.failed)).sum(),
        false,
    ),
    (
        "from the flush to the last that failed, ms",
        |m| median(m.iter().map(|m| m.flush.gap_ms)),
        false,
    ),
    (
        "of that after the flush had ended, ms",
        |m| median(m.iter().map(|m| m.flush.beyond_ms())),
        false,
    ),
    (
        "failed connections in an update by surge",
        |m| surges(m, |surge| surge.connections[1]),
        false,
    ),
    (
        "missed health answers in it",
        |m| surges(m, |surge| surge.health[1]),
        false,
    ),
    (
        "largest memory, MiB",
        |m| median(m.iter().map(|m| m.peak_mib)),
        false,
    ),
    (
        "new connections a second by ClusterIP",
        |m| rate(m, Way::ClusterIp),
        true,
    ),
    ("by node port", |m| rate(m, Way::NodePort), true),
    (
        "by load balancer address",
        |m| rate(m, Way::LoadBalancer),
        true,
    ),
    (
        "time of a connection by ClusterIP, p50 us",
        |m| connect_us(m, Way::ClusterIp),
        false,
    ),
    (
        "by node port, p50 us",
        |m| connect_us(m, Way::NodePort),
        false,
    ),
    (
        "by load balancer address, p50 us",
        |m| connect_us(m, Way::LoadBalancer),
        false,
    ),
];

fn rate(measured: &[&Measured], way: Way) -> f64 {
    let all = measured.iter().filter_map(|m| m.connects_by(way));
    median(all.map(|connects| connects.rate))
}

/// The sum over all runs.
fn surges(measured: &[&Measured], of: fn(&Surge) -> u32) -> f64 {
    let all = measured.iter().filter_map(|m| m.surge.as_ref());
    all.map(|surge| f64::from(of(surge))).sum()
}

fn connect_us(measured: &[&Measured], way: Way) -> f64 {
    let all = measured.iter().filter_map(|m| m.connects_by(way));
    median(all.map(|connects| connects.median_us))
}

fn swaps(measured: &[&Measured]) -> Vec<f64> {
    measured.iter().flat_map(|m| m.swap_ms.clone()).collect()
}

/// Prints what was measured with this number of Services.
pub(super) fn print(services: u32, all: &[Measured]) {
    let of = |proxy| -> Vec<&Measured> {
        let here = all.iter().filter(|m| m.services == services);
        here.filter(|m| m.proxy == name(proxy)).collect()
    };
    let (ours, theirs) = (of(Proxy::Replace), of(Proxy::KubeProxy));
    println!("\n| {services} Services | onehop | kube-proxy | ratio |");
    println!("| --- | --- | --- | --- |");
    for (words, value, more) in ROWS {
        let (a, b) = (value(&ours), value(&theirs));
        println!(
            "| {words} | {} | {} | {} |",
            number(a),
            number(b),
            ratio(a, b, more)
        );
    }
}

/// How many times better we are.
fn ratio(ours: f64, theirs: f64, more_is_better: bool) -> String {
    let (better, worse) = if more_is_better {
        (ours, theirs)
    } else {
        (theirs, ours)
    };
    if worse == 0.0 {
        return "-".to_owned();
    }
    number(better / worse)
}

/// Three digits are what such a measurement is worth.
fn number(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        v if v.abs() >= 100.0 => format!("{v:.0}"),
        v if v.abs() >= 10.0 => format!("{v:.1}"),
        v if v.abs() >= 1.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

/// Half of the values are not above it; 0 of none.
pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    quantile(values.collect(), 50)
}

/// The value that this percentage of them does not exceed (nearest rank); 0 of none.
pub(super) fn quantile(mut values: Vec<f64>, percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (percent * values.len()).div_ceil(100);
    values.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_by_nearest_rank() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(quantile(values.clone(), 50).to_bits(), 50f64.to_bits());
        assert_eq!(quantile(values, 99).to_bits(), 99f64.to_bits());
        assert_eq!(quantile(Vec::new(), 50).to_bits(), 0f64.to_bits());
    }

    #[test]
    fn a_ratio_above_one_is_for_us() {
        assert_eq!(ratio(2.0, 8.0, false), "4.00");
        assert_eq!(ratio(8.0, 2.0, true), "4.00");
        assert_eq!(ratio(0.0, 2.0, false), "-");
    }
}
