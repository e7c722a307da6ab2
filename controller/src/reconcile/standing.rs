//! Measures and tells what becomes of targets: how long they take to be healthy, how long they are held, and how that ends
//! (ZD-120, ZD-121); and how long new flows come to those that were let go (ZD-83).

use std::collections::HashMap;
use std::hash::Hash;

use onehop_core::crd::LoadBalancerSpec;
use onehop_core::service::ServiceSpec;
use onehop_core::time::Time;
use onehop_runtime::events::Severity;

use super::memory::OfService;
use super::{Reconciler, lock};
use crate::metrics::TargetsState;
use crate::plan::standing::{Cause, Turn};
use crate::plan::{Intent, Listed, Notice, PortCount, Provider, Tails};

/// Targets of each shard, and of all of them.
#[derive(Debug)]
pub(super) struct Totals<K> {
    by_shard: HashMap<K, PortCount>,
}

impl<K> Default for Totals<K> {
    fn default() -> Self {
        Self {
            by_shard: HashMap::new(),
        }
    }
}

/// How many targets there are in each state.
const fn states(count: PortCount) -> [(&'static str, u32); 5] {
    [
        ("healthy", count.healthy),
        ("initial", count.initial),
        ("unhealthy", count.unhealthy),
        ("draining", count.draining),
        ("held", count.held),
    ]
}

impl<K: Eq + Hash + Clone> Totals<K> {
    /// A shard has so many now; by how much each state's number has changed.
    fn note(&mut self, shard: &K, now: PortCount) -> [(&'static str, i64); 5] {
        let before = if now == PortCount::default() {
            self.by_shard.remove(shard)
        } else {
            self.by_shard.insert(shard.clone(), now)
        };
        let before = states(before.unwrap_or_default());
        let mut changes = [("", 0); 5];
        for ((change, (state, new)), (_, old)) in changes.iter_mut().zip(states(now)).zip(before) {
            *change = (state, i64::from(new) - i64::from(old));
        }
        changes
    }
}

impl<P: Provider> Reconciler<P> {
    /// Takes in how a Service's targets stand.
    pub(super) fn follow(
        &self,
        service: &ServiceSpec,
        intent: &Intent,
        listed: &[Listed],
        (of, now): (&mut OfService, Time),
    ) {
        let before = of.standing.held();
        let turns = {
            let register = lock(&self.register);
            let since = |one: &Listed| register.held_since(&service.key, one);
            of.standing.look(listed, since, now)
        };
        let mut began = false;
        let mut over = 0_u32;
        for turn in turns {
            match turn {
                Turn::Healthy(took) => self.measures.to_healthy.observe(took.as_secs_f64()),
                Turn::Held => began = true,
                Turn::Let(cause, held) => {
                    self.measures.held_for.observe(held.as_secs_f64());
                    self.measures.released(cause).inc();
                    over += u32::from(cause == Cause::Maximum);
                }
            }
        }
        if began && before == 0 {
            let text = "Targets that leave stay registered until enough others are healthy";
            self.tell(service, Severity::Normal, "TargetsHeld", text);
        }
        if over > 0 {
            let text = format!(
                "Let {over} targets go that were held for {} s, the longest time allowed, although too few others are healthy",
                intent.spec.membership.hold_max_seconds
            );
            self.tell(service, Severity::Warning, "HoldReleased", &text);
        } else if before > 0 && of.standing.held() == 0 {
            let text = "No target is held any more";
            self.tell(service, Severity::Normal, "HoldReleased", text);
        }
        self.measure_tails();
    }

    /// Counts the targets of a shard's Services.
    pub(super) fn count_targets(&self, shard: &P::Shard, now: PortCount) {
        for (state, change) in lock(&self.totals).note(shard, now) {
            let gauge = TargetsState { state };
            self.measures.targets.get_or_create(&gauge).inc_by(change);
        }
        let below = u64::from(now.below_floor);
        self.measures.floor_violations.inc_by(below);
        if below > 0 {
            tracing::error!(%shard, targets = below, "targets are let go although too few others are healthy");
        }
    }

    /// Takes in for how long targets drained that are released now.
    pub(super) fn measure_tails(&self) {
        for tail in lock(&self.register).released_after() {
            self.measures.tails.observe(tail.as_secs_f64());
        }
    }

    /// The longest time in seconds for which agents have seen new flows after a deregistration.
    pub(super) fn longest_tail(&self, service: &ServiceSpec) -> Option<u32> {
        lock(&self.index).longest_tail(&service.key, &service.uid)
    }
}

/// Flows come for as long as anybody answers them, and perhaps longer (ZD-04).
pub(super) fn tail_at_limit(spec: &LoadBalancerSpec, seen_seconds: Option<u32>) -> Option<Notice> {
    Tails::at_limit(&spec.membership, seen_seconds).then(|| Notice {
        reason: "TailAtLimit",
        message: format!(
            "new flows have come for about as long after a deregistration as anybody answers them, {} s: later ones may be \
             lost; raise the longest tail (tailMaxSeconds)",
            spec.membership.tail_max_seconds
        ),
        degrades: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zd121_targets_of_all_shards_are_counted_by_their_state() {
        let mut totals = Totals::default();
        let count = PortCount {
            registered: 4,
            healthy: 3,
            initial: 1,
            held: 2,
            ..PortCount::default()
        };
        let all = |healthy, initial, unhealthy, draining, held| {
            [
                ("healthy", healthy),
                ("initial", initial),
                ("unhealthy", unhealthy),
                ("draining", draining),
                ("held", held),
            ]
        };
        assert_eq!(totals.note(&"a", count), all(3, 1, 0, 0, 2), "ZD-121");
        assert_eq!(totals.note(&"a", count), all(0, 0, 0, 0, 0));
        assert_eq!(totals.note(&"b", count), all(3, 1, 0, 0, 2));
        let gone = totals.note(&"a", PortCount::default());
        assert_eq!(gone, all(-3, -1, 0, 0, -2), "ZD-121: with its Service");
        assert_eq!(totals.by_shard.len(), 1);
    }
}
