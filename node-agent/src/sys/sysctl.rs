//! Kernel settings that a service proxy depends on (S-34, S-97, S-98): which values they shall have, and setting them.
//! Called once at start. A setting that cannot be written is told and never a failure: in child network namespaces some
//! are read-only, and in a container without privilege all of them (S-314).

use std::io;
use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;

/// What `nf_conntrack_tcp_be_liberal` shall be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Liberal {
    /// On for kernels before 6.1, which answer a packet outside of the window with a reset to the client; else left alone.
    #[default]
    Auto,
    /// On.
    On,
    /// Off.
    Off,
}

/// What was asked for by flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Connections to track per core; 0 leaves the limit alone.
    pub max_per_core: u32,
    /// The least limit whatever the number of cores.
    pub max_least: u32,
    /// How long an idle TCP connection is tracked; zero leaves it alone. So for all of these.
    pub tcp_established: Duration,
    /// How long one is tracked that waits to be closed.
    pub tcp_close_wait: Duration,
    /// How long a UDP flow without answer is tracked.
    pub udp: Duration,
    /// How long a UDP flow with answers is tracked.
    pub udp_stream: Duration,
    /// Window checks.
    pub liberal: Liberal,
    /// Ports that no outgoing connection shall take by chance: the node ports (S-34).
    pub reserved_ports: Option<(u16, u16)>,
}

/// How a setting is changed.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Change {
    To(u64),
    AtLeast(u64),
    /// Ports added to a list of them.
    Including(u16, u16),
}

/// A setting that could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot set {name} to {wanted}: {error}; it has to be set on the node by hand")]
pub struct NotSet {
    /// Path below `/proc/sys`.
    pub name: &'static str,
    /// The value.
    pub wanted: String,
    /// What the system said.
    pub error: io::Error,
}

/// The longest time for which a load balancer keeps an idle flow: a TCP listener's of AWS, and its time for UDP (ZD-87).
const LONGEST_IDLE_TCP: Duration = Duration::from_mins(100);
const IDLE_UDP: Duration = Duration::from_mins(2);

impl Settings {
    /// The time-outs that are shorter than a load balancer's may be: it still sends what the node has forgotten.
    pub fn too_short(&self) -> Vec<(&'static str, Duration, Duration)> {
        let all = [
            (
                "conntrack-tcp-timeout-established",
                self.tcp_established,
                LONGEST_IDLE_TCP,
            ),
            ("conntrack-udp-timeout-stream", self.udp_stream, IDLE_UDP),
        ];
        let short = |(_, set, least): &(&str, Duration, Duration)| !set.is_zero() && set < least;
        all.into_iter().filter(short).collect()
    }
}

/// Makes the settings below `root`, which is `/proc/sys`. What is as it should be is not written (I4).
pub fn apply(settings: &Settings, root: &Path, cores: usize, kernel: (u32, u32)) -> Vec<NotSet> {
    let changes = changes(settings, cores, kernel).into_iter();
    changes
        .filter_map(|(name, change)| set(root, name, &change).err())
        .collect()
}

fn changes(settings: &Settings, cores: usize, kernel: (u32, u32)) -> Vec<(&'static str, Change)> {
    let mut changes = Vec::new();
    if settings.max_per_core > 0 {
        let cores = u64::try_from(cores).unwrap_or(1);
        let max = (u64::from(settings.max_per_core) * cores).max(u64::from(settings.max_least));
        changes.push(("net/netfilter/nf_conntrack_max", Change::AtLeast(max)));
    }
    for (name, time) in [
        (
            "net/netfilter/nf_conntrack_tcp_timeout_established",
            settings.tcp_established,
        ),
        (
            "net/netfilter/nf_conntrack_tcp_timeout_close_wait",
            settings.tcp_close_wait,
        ),
        ("net/netfilter/nf_conntrack_udp_timeout", settings.udp),
        (
            "net/netfilter/nf_conntrack_udp_timeout_stream",
            settings.udp_stream,
        ),
    ] {
        if !time.is_zero() {
            changes.push((name, Change::To(time.as_secs())));
        }
    }
    let liberal = match settings.liberal {
        Liberal::Auto => (kernel < (6, 1)).then_some(1),
        Liberal::On => Some(1),
        Liberal::Off => Some(0),
    };
    let name = "net/netfilter/nf_conntrack_tcp_be_liberal";
    changes.extend(liberal.map(|value| (name, Change::To(value))));
    if kernel >= (5, 14) {
        // Connections that wait in a listener which is closed go to the next process on the port (K-55).
        changes.push(("net/ipv4/tcp_migrate_req", Change::To(1)));
    }
    if let Some((first, last)) = settings.reserved_ports {
        let name = "net/ipv4/ip_local_reserved_ports";
        changes.push((name, Change::Including(first, last)));
    }
    changes
}

fn set(root: &Path, name: &'static str, change: &Change) -> Result<(), NotSet> {
    let path = root.join(name);
    let failed = |wanted: &str, error| NotSet {
        name,
        wanted: wanted.to_owned(),
        error,
    };
    let held = std::fs::read_to_string(&path);
    let held = held.map_err(|error| failed(&change.to_string(), error))?;
    let Some(wanted) = change.next(held.trim()) else {
        return Ok(());
    };
    std::fs::write(&path, &wanted).map_err(|error| failed(&wanted, error))?;
    tracing::info!(
        name,
        from = held.trim(),
        to = wanted,
        "kernel setting changed"
    );
    Ok(())
}

impl Change {
    /// The value to write, if the one that is held is not good.
    fn next(&self, held: &str) -> Option<String> {
        let number = held.parse::<u64>().ok();
        match *self {
            Self::To(wanted) if number == Some(wanted) => None,
            Self::AtLeast(least) if number.is_some_and(|number| number >= least) => None,
            Self::To(value) | Self::AtLeast(value) => Some(value.to_string()),
            Self::Including(first, last) => {
                let within = |part: &str| {
                    let (from, to) = part.split_once('-').unwrap_or((part, part));
                    let ends = from.parse::<u16>().ok().zip(to.parse::<u16>().ok());
                    ends.is_some_and(|(from, to)| from <= first && last <= to)
                };
                let range = format!("{first}-{last}");
                match held {
                    "" => Some(range),
                    held if held.split(',').any(within) => None,
                    held => Some(format!("{held},{range}")),
                }
            }
        }
    }
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::To(value) | Self::AtLeast(value) => write!(f, "{value}"),
            Self::Including(first, last) => write!(f, "{first}-{last}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            max_per_core: 32_768,
            max_least: 131_072,
            tcp_established: Duration::from_hours(24),
            tcp_close_wait: Duration::from_hours(1),
            udp: Duration::ZERO,
            udp_stream: Duration::ZERO,
            liberal: Liberal::Auto,
            reserved_ports: Some((30_000, 32_767)),
        }
    }

    fn to(name: &str, cores: usize, kernel: (u32, u32), settings: &Settings) -> Option<Change> {
        let name = format!("net/netfilter/nf_conntrack_{name}");
        let changes = changes(settings, cores, kernel);
        changes
            .into_iter()
            .find(|(of, _)| *of == name)
            .map(|(_, change)| change)
    }

    #[test]
    fn s98_limits_and_timeouts_by_default() {
        let of = |name, cores| to(name, cores, (6, 18), &settings());
        assert_eq!(of("max", 2), Some(Change::AtLeast(131_072)));
        assert_eq!(of("max", 64), Some(Change::AtLeast(64 * 32_768)));
        assert_eq!(of("tcp_timeout_established", 2), Some(Change::To(86_400)));
        assert_eq!(of("tcp_timeout_close_wait", 2), Some(Change::To(3_600)));
        assert_eq!(of("udp_timeout", 2), None, "S-98: untouched");
        assert_eq!(of("udp_timeout_stream", 2), None, "S-98: untouched");
    }

    #[test]
    fn zd87_flows_are_not_forgotten_before_the_load_balancer_does() {
        assert_eq!(settings().too_short(), [], "ZD-87: the defaults");
        let established = changes(&settings(), 2, (6, 18));
        let established = established
            .into_iter()
            .find(|(name, _)| name.ends_with("tcp_timeout_established"));
        let Some((_, Change::To(seconds))) = established else {
            panic!("ZD-87: it is set");
        };
        assert!(seconds >= 6000, "ZD-87: {seconds}");
        let short = Settings {
            tcp_established: Duration::from_secs(5999),
            udp_stream: Duration::from_secs(119),
            ..settings()
        };
        let names = short.too_short().into_iter().map(|(name, ..)| name);
        assert_eq!(
            names.collect::<Vec<_>>(),
            [
                "conntrack-tcp-timeout-established",
                "conntrack-udp-timeout-stream"
            ],
            "ZD-87"
        );
    }

    #[test]
    fn s97_window_checks_have_three_values() {
        let of = |liberal, kernel| {
            let settings = Settings {
                liberal,
                ..settings()
            };
            to("tcp_be_liberal", 2, kernel, &settings)
        };
        assert_eq!(of(Liberal::Auto, (6, 1)), None);
        assert_eq!(of(Liberal::Auto, (5, 15)), Some(Change::To(1)));
        assert_eq!(of(Liberal::On, (6, 18)), Some(Change::To(1)));
        assert_eq!(of(Liberal::Off, (5, 15)), Some(Change::To(0)));
    }

    #[test]
    fn i4_a_setting_that_is_good_is_not_written() {
        assert_eq!(Change::To(5).next("5"), None);
        assert_eq!(Change::To(5).next("6").as_deref(), Some("5"));
        assert_eq!(Change::AtLeast(5).next("6"), None);
        assert_eq!(Change::AtLeast(5).next("4").as_deref(), Some("5"));
    }

    #[test]
    fn s34_node_ports_are_added_to_what_is_reserved() {
        // DI-54, DI-62
        let ports = Change::Including(30_000, 32_767);
        assert_eq!(ports.next("").as_deref(), Some("30000-32767"));
        assert_eq!(
            ports.next("8080,9000-9010").as_deref(),
            Some("8080,9000-9010,30000-32767")
        );
        assert_eq!(ports.next("8080,29000-33000"), None);
    }

    #[test]
    fn s98_what_cannot_be_set_is_told_and_no_failure() {
        let nowhere = Path::new("/nonexistent");
        let told = apply(&settings(), nowhere, 2, (6, 18));
        // S-314: as in a container without privilege.
        assert_eq!(told.len(), 5);
        let text = told[0].to_string();
        assert!(text.contains("nf_conntrack_max to 131072"), "{text}");
    }
}
