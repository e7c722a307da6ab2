//! The shard queue: each key once, the first event at once, later ones within an adaptive window.
//!
//! Pure; `reconcile` drives it with the clock. A key that runs is not handed out again until it has
//! finished; what happens to it meanwhile makes it due once more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use onehop_core::time::Time;

/// Shortest time between two passes of one key.
const NARROWEST: Duration = Duration::from_millis(20);
/// Longest time that an event waits behind another of its key.
const WIDEST: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
struct Entry {
    /// When it is due, if it is.
    due: Option<Time>,
    /// Whether it runs, and whether something happened to it since it started.
    running: Option<Dirty>,
    /// No event makes it due earlier: the window after its last pass.
    not_before: Option<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dirty {
    No,
    Yes,
}

/// Keys and when each is due.
#[derive(Debug)]
pub(super) struct Queue<K> {
    entries: BTreeMap<K, Entry>,
    due: BTreeSet<(Time, K)>,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            due: BTreeSet::new(),
        }
    }
}

impl<K: Ord + Clone> Queue<K> {
    /// Something happened to the key.
    pub(super) fn touch(&mut self, key: &K, now: Time) {
        let entry = self.entries.entry(key.clone()).or_default();
        if let Some(dirty) = &mut entry.running {
            *dirty = Dirty::Yes;
            return;
        }
        let at = entry.not_before.map_or(now, |t| t.max(now));
        self.schedule(key, at);
    }

    /// Everything that is due is due about now, these keys before the others.
    pub(super) fn put_first(&mut self, first: &BTreeSet<K>, now: Time) {
        for (_, key) in std::mem::take(&mut self.due) {
            let later = u64::from(!first.contains(&key));
            let at = now + Duration::from_millis(later);
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.due = Some(at);
                self.due.insert((at, key));
            }
        }
    }

    /// A key that is due, if any; it counts as running until [`Self::finished`].
    pub(super) fn pop(&mut self, now: Time) -> Option<K> {
        let (at, _) = self.due.first()?;
        if *at > now {
            return None;
        }
        let (_, key) = self.due.pop_first()?;
        let entry = self.entries.entry(key.clone()).or_default();
        entry.due = None;
        entry.running = Some(Dirty::No);
        Some(key)
    }

    /// The key's pass is over; it took `cost`. `again` is its own wish for another one.
    pub(super) fn finished(&mut self, key: &K, now: Time, cost: Duration, again: Option<Time>) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let dirty = entry.running.take() == Some(Dirty::Yes);
        let open = now + cost.clamp(NARROWEST, WIDEST);
        entry.not_before = Some(open);
        let wishes = [dirty.then_some(open), again];
        if let Some(at) = wishes.into_iter().flatten().min() {
            self.schedule(key, at);
        }
    }

    /// Forgets a key that is not due and does not run.
    pub(super) fn forget(&mut self, key: &K) {
        if self
            .entries
            .get(key)
            .is_some_and(|e| e.due.is_none() && e.running.is_none())
        {
            self.entries.remove(key);
        }
    }

    /// When the next key is due.
    pub(super) fn next_due(&self) -> Option<Time> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Number of keys that are due.
    pub(super) fn depth(&self) -> usize {
        self.due.len()
    }

    fn schedule(&mut self, key: &K, at: Time) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        if entry.due.is_some_and(|due| due <= at) {
            return;
        }
        if let Some(due) = entry.due.replace(at) {
            self.due.remove(&(due, key.clone()));
        }
        self.due.insert((at, key.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: i64) -> Time {
        Time::from_millis(ms)
    }

    #[test]
    fn the_first_event_is_acted_on_at_once_and_a_key_is_there_only_once() {
        let mut queue = Queue::default();
        queue.touch(&"a", at(5));
        queue.touch(&"a", at(5));
        assert_eq!(queue.depth(), 1);
        assert_eq!(queue.pop(at(5)), Some("a"));
        assert_eq!(queue.pop(at(5)), None);
    }

    #[test]
    fn later_events_wait_for_a_window_as_wide_as_the_last_pass_was_long() {
        for (cost, window) in [(1, 20), (100, 100), (9000, 500)] {
            let mut queue = Queue::default();
            queue.touch(&"a", at(0));
            queue.pop(at(0));
            queue.touch(&"a", at(1));
            queue.finished(&"a", at(10), Duration::from_millis(cost), None);
            assert_eq!(queue.next_due(), Some(at(10 + window)), "during the pass");
            queue.pop(at(10 + window));
            queue.finished(&"a", at(1000), Duration::from_millis(cost), None);
            queue.touch(&"a", at(1001));
            assert_eq!(queue.next_due(), Some(at(1000 + window)), "just after it");
            queue.pop(at(1000 + window));
            queue.finished(&"a", at(2000), Duration::from_millis(cost), None);
            queue.touch(&"a", at(9000));
            assert_eq!(queue.next_due(), Some(at(9000)), "long after it");
        }
    }

    #[test]
    fn a_running_key_is_not_handed_out_and_its_own_wish_counts_after_it() {
        let mut queue = Queue::default();
        queue.touch(&"a", at(0));
        queue.pop(at(0));
        queue.touch(&"a", at(5));
        assert_eq!(queue.pop(at(60)), None);
        queue.finished(&"a", at(60), Duration::ZERO, Some(at(900)));
        assert_eq!(
            queue.next_due(),
            Some(at(80)),
            "what happened meanwhile comes first"
        );
        queue.pop(at(80));
        queue.finished(&"a", at(80), Duration::ZERO, Some(at(900)));
        assert_eq!(queue.next_due(), Some(at(900)));
    }

    #[test]
    fn aws424_what_has_changed_is_first_whatever_came_before_it() {
        let mut queue = Queue::default();
        for (key, ms) in [("a", 1), ("b", 2), ("c", 3), ("d", 4)] {
            queue.touch(&key, at(ms));
        }
        queue.put_first(&["d", "b", "never seen"].into(), at(900));
        let mut order = Vec::new();
        while let Some(key) = queue.pop(at(901)) {
            order.push(key);
        }
        assert_eq!(order, ["b", "d", "a", "c"], "AWS-424");
        // They are due as any other.
        queue.finished(&"a", at(902), Duration::ZERO, Some(at(950)));
        assert_eq!(queue.next_due(), Some(at(950)));
    }

    #[test]
    fn only_a_quiet_key_can_be_forgotten() {
        let mut queue = Queue::default();
        queue.touch(&"a", at(0));
        queue.forget(&"a");
        assert_eq!(queue.pop(at(0)), Some("a"));
        queue.forget(&"a");
        queue.finished(&"a", at(0), Duration::ZERO, None);
        queue.forget(&"a");
        assert_eq!(queue.next_due(), None);
    }
}
