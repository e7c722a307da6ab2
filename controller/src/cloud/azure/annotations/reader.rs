//! Reading single values (AZ-030 to AZ-033). Collects problems and notes which keys were used; never stops at the first.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use onehop_core::id::Cidr;

use super::keys::{
    self, PORT_PROBE_COUNT, PORT_PROBE_INTERVAL, PORT_PROBE_PATH, PORT_PROBE_PROTOCOL, PREFIX,
};
use super::{Hint, INVALID, PortWish, ProbeProtocol, ProbeWish, Problem};

/// Seconds that interval times count has to stay below (AZ-147).
const LONGEST_PROBING: u32 = 120;
const INTERVAL: u32 = 5;
const COUNT: u32 = 2;

/// A reader over one Service's annotations and fields.
pub(super) struct Reader<'a> {
    values: &'a BTreeMap<String, String>,
    pub(super) problems: Vec<Problem>,
    pub(super) hints: Vec<Hint>,
    /// Full keys that were read.
    pub(super) used: BTreeSet<String>,
}

/// A key with its prefix.
pub(super) fn full(key: &str) -> String {
    if key.starts_with("onehop.dev/") || key.starts_with("spec.") {
        key.to_owned()
    } else {
        format!("{PREFIX}{key}")
    }
}

impl<'a> Reader<'a> {
    pub(super) fn new(values: &'a BTreeMap<String, String>) -> Self {
        Self {
            values,
            problems: Vec::new(),
            hints: Vec::new(),
            used: BTreeSet::new(),
        }
    }

    pub(super) fn problem(
        &mut self,
        reason: &'static str,
        key: &str,
        value: &str,
        allowed: impl Into<String>,
    ) {
        let problem = Problem {
            reason,
            key: full(key),
            value: value.to_owned(),
            allowed: allowed.into(),
        };
        self.problems.push(problem);
    }

    /// The value, even an empty one.
    pub(super) fn text(&mut self, key: &str) -> Option<&'a str> {
        let key = full(key);
        let value = self.values.get(&key)?;
        self.used.insert(key);
        Some(value.trim())
    }

    /// The value, where it says something (AZ-032).
    pub(super) fn take(&mut self, key: &str) -> Option<&'a str> {
        self.text(key).filter(|value| !value.is_empty())
    }

    pub(super) fn word(&mut self, key: &str) -> Option<String> {
        self.take(key).map(str::to_owned)
    }

    /// `true` in any case; all else is false (AZ-030).
    pub(super) fn flag(&mut self, key: &str) -> bool {
        self.take(key)
            .is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    /// One of our own keys: unknown words are refused.
    pub(super) fn own<T: Copy>(&mut self, key: &str, words: &[(&str, T)]) -> Option<T> {
        let value = self.take(key)?;
        let found = words.iter().find(|(word, _)| *word == value);
        if found.is_none() {
            let list: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            self.problem(INVALID, key, value, format!("one of {}", list.join(", ")));
        }
        found.map(|(_, meaning)| *meaning)
    }

    /// A whole number within limits (AZ-031).
    pub(super) fn number(&mut self, key: &str, least: u32, most: u32, what: &str) -> Option<u32> {
        let value = self.take(key)?;
        let read = value.parse().ok().filter(|n| (least..=most).contains(n));
        if read.is_none() {
            self.problem(
                INVALID,
                key,
                value,
                format!("a whole number of {what} from {least} to {most}"),
            );
        }
        read
    }

    /// AZ-033.
    pub(super) fn list(&mut self, key: &str) -> Vec<String> {
        let parts = self.take(key).unwrap_or_default().split(',').map(str::trim);
        parts
            .filter(|part| !part.is_empty())
            .map(str::to_owned)
            .collect()
    }

    /// `a=b,c=d`; pairs that do not split in exactly two are skipped, of two with one key the last one holds.
    pub(super) fn pairs(&mut self, key: &str) -> Option<BTreeMap<String, String>> {
        self.take(key)?;
        let list = self.list(key);
        let pair = |entry: &String| {
            let mut parts = entry.split('=').map(str::trim);
            let (key, value, more) = (parts.next()?, parts.next()?, parts.next());
            (more.is_none() && !key.is_empty()).then(|| (key.to_owned(), value.to_owned()))
        };
        Some(list.iter().filter_map(pair).collect())
    }

    pub(super) fn address(&mut self, key: &str) -> Option<IpAddr> {
        let value = self.take(key)?;
        let read = value.parse().ok();
        if read.is_none() {
            self.problem(INVALID, key, value, "an IP address");
        }
        read
    }

    pub(super) fn addresses(&mut self, key: &str) -> Vec<IpAddr> {
        let mut all = Vec::new();
        for entry in self.list(key) {
            match entry.parse() {
                Ok(address) if all.contains(&address) => {}
                Ok(address) => all.push(address),
                Err(_) => self.problem(INVALID, key, &entry, "IP addresses with commas"),
            }
        }
        all
    }

    /// Ranges, and entries that are none: an address without a length, or bits behind it (AZ-052).
    pub(super) fn ranges(&mut self, key: &str) -> (Vec<Cidr>, Vec<String>) {
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        for entry in self.list(key) {
            match entry.parse::<IpNet>() {
                Ok(net) if net.trunc() == net => good.push(Cidr::from(net)),
                _ => bad.push(entry),
            }
        }
        (good, bad)
    }

    /// The four keys of a probe, by the names that they have for a port.
    pub(super) fn probe(&mut self, key: impl Fn(&str) -> String) -> ProbeWish {
        ProbeWish {
            protocol: self.take(&key(PORT_PROBE_PROTOCOL)).map(ProbeProtocol::of),
            path: self.word(&key(PORT_PROBE_PATH)),
            interval: self.number(
                &key(PORT_PROBE_INTERVAL),
                INTERVAL,
                LONGEST_PROBING - 1,
                "seconds",
            ),
            count: self.number(&key(PORT_PROBE_COUNT), COUNT, LONGEST_PROBING - 1, "probes"),
        }
    }

    /// Numbers of the ports that have keys of their own.
    pub(super) fn port_numbers(&self) -> BTreeSet<u16> {
        let of_port = |key: &String| {
            let rest = key.strip_prefix(PREFIX)?.strip_prefix("port_")?;
            rest.split_once('_')?.0.parse().ok()
        };
        self.values.keys().filter_map(of_port).collect()
    }

    /// AZ-147: interval times count, with what each port falls back to.
    pub(super) fn check_products(&mut self, all: &ProbeWish, ports: &BTreeMap<u16, PortWish>) {
        let of_port = |(number, wish): (&u16, &PortWish)| {
            let key = format!("port_{number}_{PORT_PROBE_INTERVAL}");
            (
                key,
                wish.probe.interval.or(all.interval),
                wish.probe.count.or(all.count),
            )
        };
        let whole = (keys::PROBE_INTERVAL.to_owned(), all.interval, all.count);
        let checks: Vec<_> = std::iter::once(whole)
            .chain(ports.iter().map(of_port))
            .collect();
        for (key, interval, count) in checks {
            let product = interval
                .unwrap_or(INTERVAL)
                .saturating_mul(count.unwrap_or(COUNT));
            if product >= LONGEST_PROBING {
                let allowed = format!(
                    "interval times number of probes below {LONGEST_PROBING} seconds, it is {product}"
                );
                let value = interval.unwrap_or(INTERVAL).to_string();
                self.problem(INVALID, &key, &value, allowed);
            }
        }
    }
}
