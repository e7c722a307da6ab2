//! The controller's metrics (C-110). Label values come from fixed lists only (C-112).

use onehop_runtime::metrics::Metrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::plan::standing::Cause;

/// Handles of all metrics.
#[derive(Clone, Debug, Default)]
pub struct Measures {
    /// Cloud calls that change something, by operation and how they ended.
    pub calls: Family<Call, Counter>,
    /// Lanes that failed.
    pub lane_failures: Family<LaneFailure, Counter>,
    /// Passes over shards.
    pub passes: Counter,
    /// Shards that are due or will be.
    pub queue: Gauge,
    /// Addresses given to Services.
    pub addresses: Gauge,
    /// Services that hold addresses and are not there, nor anything of theirs (C-35): must be 0.
    pub leaked: Gauge,
    /// Pools of which at least this share is in use (C-38).
    pub pools_above: Family<PoolsAbove, Gauge>,
    /// Addresses in pools, by family (C-110).
    pub pool_addresses: Family<OfFamily, Gauge>,
    /// Of those, the ones in use, by family (C-110).
    pub pool_addresses_in_use: Family<OfFamily, Gauge>,
    /// Nodes with targets whose agent is absent (K-24, C-111).
    pub agents_absent: Gauge,
    /// Shards in the cloud whose Service is gone, kept until deletion is allowed (C-123).
    pub orphans: Gauge,
    /// Rights in the cloud that were missing when they were checked, by action (AWS-844).
    pub missing_rights: Family<Right, Gauge>,
    /// Mass-removal checks raised (K-33).
    pub mass_removals: Counter,
    /// Failed writes to the API server.
    pub write_failures: Counter,
    /// Nodes that could not be told of a target before it was registered (ZD-04, ZD-12).
    pub untold_nodes: Counter,
    /// Pods that wait for a readiness gate about a target (AWS-506).
    pub gates_shut: Gauge,
    /// Pods that lack a gate which their namespace asks for (AWS-508).
    pub pods_without_gate: Gauge,
    /// Gates opened since they had waited for too long (AWS-507).
    pub gate_fail_safes: Counter,
    /// Reviews of new pods, by what came of them.
    pub reviews: Family<Reviewed, Counter>,
    /// Handshakes with the webhook that failed: the API server does not trust what it is shown, perhaps (C-77).
    pub webhook_handshakes_failed: Counter,
    /// When the webhook's certificate ends, in seconds since 1970; 0 without one (C-77).
    pub webhook_expiry: Gauge,
    /// Targets of all Services, by state; those that are held are counted as what the load balancer says of them, too (ZD-121).
    pub targets: Family<TargetsState, Gauge>,
    /// From the wish to register a target until it is healthy, in seconds (ZD-121).
    pub to_healthy: Seconds,
    /// How long targets were held, in seconds (ZD-121).
    pub held_for: Seconds,
    /// Holds that have ended, by cause (ZD-121).
    pub hold_releases: Family<Released, Counter>,
    /// Targets let go although too few others were healthy: must be 0 (ZD-121).
    pub floor_violations: Counter,
    /// From the deregistration of targets until they are said to be released, in seconds (ZD-83).
    pub tails: Seconds,
    /// 1 on the replica that writes.
    pub leader: Gauge,
}

/// A histogram of times up to what a hold and a tail may last.
#[derive(Clone, Debug)]
pub struct Seconds(Histogram);

impl Seconds {
    /// Notes a time.
    pub fn observe(&self, seconds: f64) {
        self.0.observe(seconds);
    }
}

impl Default for Seconds {
    fn default() -> Self {
        let bounds = [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 90.0, 120.0];
        Self(Histogram::new(
            bounds.into_iter().chain([180.0, 300.0, 600.0, 900.0]),
        ))
    }
}

/// Label of a target's state.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TargetsState {
    /// `healthy`, `initial`, `unhealthy`, `draining` or `held`.
    pub state: &'static str,
}

/// Label of the end of a hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Released {
    /// Why.
    pub cause: &'static str,
}

/// Labels of a cloud call.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Call {
    /// Operation.
    pub operation: &'static str,
    /// `ok`, `already-so`, or the class of the error.
    pub result: &'static str,
}

/// Label of a level of use.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PoolsAbove {
    /// The level, of a fixed few.
    pub percent: u32,
}

/// Label of an address family.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OfFamily {
    /// `IPv4` or `IPv6`.
    pub family: &'static str,
}

/// Label of a right.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Right {
    /// The action.
    pub action: String,
}

/// Label of a review.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Reviewed {
    /// `patched` or `unchanged`.
    pub result: &'static str,
}

/// Labels of a failed lane.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct LaneFailure {
    /// Lane.
    pub lane: &'static str,
    /// Class of the error.
    pub class: &'static str,
}

impl Measures {
    /// Registers all of them as `onehop_*`.
    pub fn new(metrics: &Metrics) -> Self {
        let new = Self::default();
        metrics.register(|registry| {
            let r = registry.sub_registry_with_prefix("onehop");
            r.register(
                "cloud_calls",
                "Cloud calls that change something",
                new.calls.clone(),
            );
            r.register(
                "lane_failures",
                "Lanes that failed",
                new.lane_failures.clone(),
            );
            r.register("passes", "Passes over shards", new.passes.clone());
            r.register("queue_depth", "Shards in the queue", new.queue.clone());
            r.register(
                "addresses_in_use",
                "Addresses given to Services",
                new.addresses.clone(),
            );
            r.register(
                "addresses_leaked",
                "Holders of addresses that are not there; must be 0",
                new.leaked.clone(),
            );
            r.register(
                "pools_above",
                "Address pools of which at least this share is in use",
                new.pools_above.clone(),
            );
            r.register(
                "pool_addresses",
                "Addresses that pools may give, by family",
                new.pool_addresses.clone(),
            );
            r.register(
                "pool_addresses_in_use",
                "Addresses of pools that Services have, by family",
                new.pool_addresses_in_use.clone(),
            );
            r.register(
                "agents_absent",
                "Nodes with targets whose agent has not been Ready for a minute",
                new.agents_absent.clone(),
            );
            r.register(
                "orphans",
                "Cloud objects of ours without a Service",
                new.orphans.clone(),
            );
            r.register(
                "missing_rights",
                "Rights in the cloud that were missing when they were checked",
                new.missing_rights.clone(),
            );
            r.register(
                "mass_removal_checks",
                "Checks raised",
                new.mass_removals.clone(),
            );
            r.register(
                "api_write_failures",
                "Failed API writes",
                new.write_failures.clone(),
            );
            r.register(
                "untold_nodes",
                "Nodes that could not be told of a target before it was registered",
                new.untold_nodes.clone(),
            );
            new.register_targets(r);
            new.register_extras(r);
            r.register(
                "leader",
                "Whether this replica is the one that writes",
                new.leader.clone(),
            );
        });
        new
    }

    /// Those of targets. A series of every cause and state is there from the start: an alert on one that has never been is
    /// none.
    fn register_targets(&self, r: &mut Registry) {
        for state in ["healthy", "initial", "unhealthy", "draining", "held"] {
            drop(self.targets.get_or_create(&TargetsState { state }));
        }
        for cause in Cause::ALL {
            drop(self.released(cause));
        }
        r.register(
            "targets",
            "Targets of all Services, by state; held ones count a second time",
            self.targets.clone(),
        );
        let seconds = [
            (
                "target_healthy_after_seconds",
                "From the wish to register a target until the load balancer says that it is healthy",
                &self.to_healthy,
            ),
            (
                "target_held_seconds",
                "How long targets that leave were held",
                &self.held_for,
            ),
            (
                "target_released_after_seconds",
                "From the deregistration of targets until they are said to be released",
                &self.tails,
            ),
        ];
        for (name, help, seconds) in seconds {
            r.register(name, help, seconds.0.clone());
        }
        r.register(
            "hold_releases",
            "Holds of targets that have ended, by cause",
            self.hold_releases.clone(),
        );
        r.register(
            "floor_violations",
            "Targets let go although too few others were healthy; must be 0",
            self.floor_violations.clone(),
        );
    }

    /// Counts ends of holds with this cause.
    pub fn released(&self, cause: Cause) -> impl std::ops::Deref<Target = Counter> + '_ {
        let cause = cause.as_str();
        self.hold_releases.get_or_create(&Released { cause })
    }

    /// Those of readiness gates and of the webhook.
    fn register_extras(&self, r: &mut Registry) {
        r.register(
            "readiness_gates_shut",
            "Pods that wait for a readiness gate about a target",
            self.gates_shut.clone(),
        );
        r.register(
            "pods_without_readiness_gate",
            "Pods that lack a readiness gate which their namespace asks for",
            self.pods_without_gate.clone(),
        );
        r.register(
                "readiness_gate_fail_safes",
                "Readiness gates opened although the target was not healthy, since they had waited for too long",
                self.gate_fail_safes.clone(),
            );
        r.register(
            "webhook_reviews",
            "Reviews of new pods",
            self.reviews.clone(),
        );
        r.register(
            "webhook_handshakes_failed",
            "Handshakes with the webhook that failed",
            self.webhook_handshakes_failed.clone(),
        );
        r.register(
            "webhook_certificate_expiry_seconds",
            "When the webhook's certificate ends, in seconds since 1970; 0 without one",
            self.webhook_expiry.clone(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c112_labels_are_of_a_fixed_few() {
        let metrics = Metrics::default();
        let measures = Measures::new(&metrics);
        let call = Call {
            operation: "create-group",
            result: "ok",
        };
        measures.calls.get_or_create(&call).inc();
        let failure = LaneFailure {
            lane: "shape",
            class: "quota",
        };
        measures.lane_failures.get_or_create(&failure).inc();
        let above = PoolsAbove { percent: 75 };
        measures.pools_above.get_or_create(&above).set(1);
        let family = OfFamily { family: "IPv4" };
        measures.pool_addresses.get_or_create(&family).set(1);
        let page = metrics.page();
        let labels = page
            .lines()
            .filter_map(|line| line.split_once('{')?.1.split_once('}'));
        let names: std::collections::BTreeSet<&str> = labels
            .flat_map(|(list, _)| list.split(','))
            .filter_map(|pair| Some(pair.split_once('=')?.0))
            .collect();
        assert_eq!(
            names,
            [
                "cause",
                "class",
                "family",
                "lane",
                "le",
                "operation",
                "percent",
                "result",
                "state"
            ]
            .into(),
            "C-112: no label that names an object, an address or a request"
        );
    }
}
