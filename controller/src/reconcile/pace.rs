//! When each node is written to next (K-22): changes within a short time are one write, and the time grows while a node
//! is written to again and again, as in a large rollout. Pure; filled by passes, emptied by `nodes`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use onehop_core::id::NodeName;
use onehop_core::time::Time;

use crate::node_targets::Urgency;

/// Changes of one node within this time are one write.
const SHORT: Duration = Duration::from_millis(100);
/// The same under load.
const LONG: Duration = Duration::from_secs(1);
/// A node that has not been written to for so long is not under load.
const CALM: Duration = Duration::from_secs(2);

/// Nodes to be written to, each with its time.
#[derive(Debug, Default)]
pub(super) struct Due {
    at: BTreeMap<NodeName, Time>,
    written: BTreeMap<NodeName, Written>,
}

#[derive(Clone, Copy, Debug)]
struct Written {
    at: Time,
    /// From then until the next merged write.
    wait: Duration,
}

impl Written {
    fn is_recent(self, now: Time) -> bool {
        now.since(self.at) < CALM
    }
}

impl Due {
    /// Something has changed for these nodes.
    pub(super) fn enter(&mut self, nodes: BTreeSet<NodeName>, urgency: Urgency, now: Time) {
        for node in nodes {
            let at = match (urgency, self.written.get(&node)) {
                (Urgency::Merged, Some(last)) if last.is_recent(now) => {
                    (now + SHORT).max(last.at + last.wait)
                }
                (Urgency::Merged, _) => now + SHORT,
                (Urgency::Awaited, Some(last)) if last.is_recent(now) => {
                    now.max(last.at + last.wait)
                }
                (Urgency::AtOnce | Urgency::Awaited, _) => now,
            };
            self.enter_at(node, at);
        }
    }

    /// A write is to be tried (again) at this time, if none is due before.
    pub(super) fn enter_at(&mut self, node: NodeName, at: Time) {
        let due = self.at.entry(node).or_insert(at);
        *due = at.min(*due);
    }

    /// When the first one is due.
    pub(super) fn next(&self) -> Option<Time> {
        self.at.values().min().copied()
    }

    /// Nothing is written before this time.
    pub(super) fn postpone(&mut self, until: Time) {
        for at in self.at.values_mut() {
            *at = until.max(*at);
        }
    }

    /// Takes the nodes that are due.
    pub(super) fn take(&mut self, now: Time) -> BTreeSet<NodeName> {
        let later = self.at.iter().filter(|(_, at)| **at > now);
        let later = later.map(|(node, at)| (node.clone(), *at)).collect();
        let due = std::mem::replace(&mut self.at, later);
        let due = due.into_iter().filter(|(_, at)| *at <= now);
        due.map(|(node, _)| node).collect()
    }

    /// A node was written to.
    pub(super) fn written(&mut self, node: NodeName, now: Time) {
        self.written.retain(|_, last| last.is_recent(now));
        let wait = self
            .written
            .get(&node)
            .map_or(SHORT, |last| last.wait * 5 / 4);
        let wait = wait.min(LONG);
        self.written.insert(node, Written { at: now, wait });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_millis(1_800_000_000_000);

    fn a() -> BTreeSet<NodeName> {
        BTreeSet::from(["a".into()])
    }

    fn after(ms: u64) -> Time {
        NOW + Duration::from_millis(ms)
    }

    #[test]
    fn k22_changes_are_merged_for_a_tenth_of_a_second_and_what_is_urgent_goes_at_once() {
        let mut due = Due::default();
        due.enter(a(), Urgency::Merged, NOW);
        due.enter(a(), Urgency::Merged, after(60));
        assert_eq!(due.next(), Some(after(100)), "K-22, ZD-16");
        assert_eq!(due.take(after(99)), BTreeSet::new());
        due.enter(a(), Urgency::AtOnce, after(99));
        assert_eq!(due.take(after(99)), a(), "K-22, ZD-16: held");
        assert_eq!(due.next(), None);
    }

    #[test]
    fn k22_a_hundred_pods_that_come_and_go_are_tens_of_writes_of_their_node() {
        let mut due = Due::default();
        let mut writes = 0_usize;
        // A change every 50 ms for 40 s: more than a hundred pods with their four states each.
        for ms in (0..40_000).step_by(10) {
            if ms % 50 == 0 {
                let comes = ms % 200 == 0;
                let urgency = if comes {
                    Urgency::Awaited
                } else {
                    Urgency::Merged
                };
                due.enter(a(), urgency, after(ms));
            }
            for node in due.take(after(ms)) {
                due.written(node, after(ms));
                writes += 1;
            }
        }
        assert!((30..60).contains(&writes), "K-22, ZD-16: {writes}");
        // Calm again, it is soon again.
        due.take(after(60_000));
        due.enter(a(), Urgency::Merged, after(60_000));
        assert_eq!(due.next(), Some(after(60_100)), "K-22");
    }

    #[test]
    fn k22_what_a_registration_waits_for_goes_at_once_unless_the_node_was_just_written_to() {
        let mut due = Due::default();
        due.enter(a(), Urgency::Awaited, NOW);
        assert_eq!(due.take(NOW), a(), "ZD-12");
        due.written("a".into(), NOW);
        due.enter(a(), Urgency::Awaited, after(10));
        assert_eq!(due.next(), Some(after(100)), "K-22: merged");
        assert_eq!(due.take(after(100)), a());
        due.written("a".into(), after(100));
        due.enter(a(), Urgency::Awaited, after(400));
        assert_eq!(
            due.next(),
            Some(after(400)),
            "ZD-12: it is not put off again"
        );
    }

    #[test]
    fn i1_nothing_goes_before_a_time_to_which_all_was_put_off() {
        let mut due = Due::default();
        due.enter(a(), Urgency::AtOnce, NOW);
        due.enter(["b".into()].into(), Urgency::Merged, after(900));
        due.postpone(after(500));
        assert_eq!(due.take(after(499)), BTreeSet::new(), "I1");
        assert_eq!(due.take(after(500)), a());
        assert_eq!(due.next(), Some(after(1000)));
    }
}
