//! From bodies to the engine's types, with all defaults resolved. Every problem of a body is
//! reported, not only the first.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::wire::{GroupBody, HealthBody, LbBody, TargetBody, TargetsBody};
use crate::engine::{
    ApiError, GroupSpec, HealthCheck, LbSpec, ProbeProtocol, Problem, Profile, Protocol, TargetSpec,
};

/// Seconds that a drain may take.
const DRAIN: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_hours(100);
/// Seconds between two probes, and for an answer. Fewer would be a flood of connections, and no cloud offers it.
const PROBE: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_hours(1);

/// Collects the problems of one body.
#[derive(Default)]
struct Problems(Vec<Problem>);

impl Problems {
    fn check(&mut self, good: bool, field: &str, message: &str) {
        if !good {
            self.0.push(Problem::new(field, message));
        }
    }

    fn seconds(
        &mut self,
        value: Option<f64>,
        field: &str,
        (default, allowed): (Duration, RangeInclusive<Duration>),
    ) -> Duration {
        let Some(value) = value else {
            return default;
        };
        let duration = Duration::try_from_secs_f64(value).ok();
        let duration = duration.filter(|duration| allowed.contains(duration));
        if duration.is_none() {
            let (from, to) = (allowed.start().as_secs_f64(), allowed.end().as_secs_f64());
            let message = format!("must be a number of seconds from {from} to {to}");
            self.0.push(Problem::new(field, message));
        }
        duration.unwrap_or(default)
    }

    fn none_or<T>(self, value: T) -> Result<T, ApiError> {
        if self.0.is_empty() {
            Ok(value)
        } else {
            Err(ApiError::Invalid(self.0))
        }
    }
}

impl LbBody {
    /// With the profile's defaults.
    pub(super) fn resolve(self, profile: &Profile) -> Result<LbSpec, ApiError> {
        let mut problems = Problems::default();
        problems.check(!self.name.is_empty(), "name", "must not be empty");
        problems.check(
            !self.addresses.is_empty(),
            "addresses",
            "must name at least one address",
        );
        for (at, address) in self.addresses.iter().enumerate() {
            let usable = !address.is_unspecified() && !address.is_multicast();
            let field = format!("addresses[{at}]");
            problems.check(usable, &field, "must be a unicast address");
            problems.check(
                !self.addresses[..at].contains(address),
                &field,
                "is there twice",
            );
        }
        let key = self.sharing_key.as_deref();
        problems.check(
            key.is_none_or(|key| !key.trim().is_empty()),
            "sharingKey",
            "must not be empty: leave it out for an address of its own",
        );
        for (at, zone) in self.zones.iter().enumerate() {
            let twice = self.zones[..at].contains(zone);
            problems.check(!twice, &format!("zones[{at}]"), "is there twice");
        }
        problems.none_or(LbSpec {
            name: self.name,
            tags: self.tags,
            addresses: self.addresses,
            zones: self.zones,
            cross_zone: self.cross_zone.unwrap_or(profile.cross_zone),
            preserve_client_ip: self
                .preserve_client_ip
                .unwrap_or(profile.preserve_client_ip),
            sharing_key: self.sharing_key,
        })
    }
}

impl GroupBody {
    /// With the profile's defaults. A TCP group without a probe gets a TCP probe of the target's port.
    pub(super) fn resolve(self, profile: &Profile) -> Result<GroupSpec, ApiError> {
        let mut problems = Problems::default();
        problems.check(!self.name.is_empty(), "name", "must not be empty");
        let drain = (profile.drain, DRAIN);
        let drain = problems.seconds(self.drain_seconds, "drainSeconds", drain);
        let default = (self.protocol == Protocol::Tcp).then(HealthBody::tcp);
        let health = self
            .health
            .or(default)
            .map(|health| health.resolve(profile, &mut problems));
        problems.none_or(GroupSpec {
            name: self.name,
            tags: self.tags,
            protocol: self.protocol,
            mode: self.mode,
            health,
            drain,
            preserve_client_ip: None,
            proxy_protocol: false,
            choice: self.choice.unwrap_or_default(),
            lost_flow: None,
        })
    }
}

impl HealthBody {
    fn tcp() -> Self {
        Self {
            protocol: ProbeProtocol::Tcp,
            port: None,
            path: None,
            interval: None,
            timeout: None,
            healthy: None,
            unhealthy: None,
        }
    }

    fn resolve(self, profile: &Profile, problems: &mut Problems) -> HealthCheck {
        let defaults = &profile.probe;
        let interval = (defaults.interval, PROBE);
        let interval = problems.seconds(self.interval, "health.interval", interval);
        let timeout = (defaults.timeout, PROBE);
        let timeout = problems.seconds(self.timeout, "health.timeout", timeout);
        problems.check(self.port != Some(0), "health.port", "must be 1 to 65535");
        let healthy = self.healthy.unwrap_or(defaults.healthy);
        let unhealthy = self.unhealthy.unwrap_or(defaults.unhealthy);
        problems.check(
            (1..=10).contains(&healthy),
            "health.healthy",
            "must be 1 to 10",
        );
        problems.check(
            (1..=10).contains(&unhealthy),
            "health.unhealthy",
            "must be 1 to 10",
        );
        let path = self.path.unwrap_or_else(|| "/".to_owned());
        // Anything else could break out of the request line.
        let plain = path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic());
        problems.check(plain, "health.path", "must begin with / and hold no blanks");
        HealthCheck {
            protocol: self.protocol,
            port: self.port,
            path,
            interval,
            timeout,
            healthy,
            unhealthy,
        }
    }
}

impl TargetsBody {
    /// The targets, each with a port.
    pub(super) fn resolve(self) -> Result<Vec<TargetSpec>, ApiError> {
        let mut problems = Problems::default();
        for (at, target) in self.targets.iter().enumerate() {
            problems.check(
                target.port != 0,
                &format!("targets[{at}].port"),
                "must be 1 to 65535",
            );
        }
        let spec = |target: TargetBody| TargetSpec {
            target: SocketAddr::new(target.address, target.port),
            zone: target.zone,
        };
        problems.none_or(self.targets.into_iter().map(spec).collect())
    }
}
