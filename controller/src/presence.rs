//! Which nodes have an agent at work (K-24): its pod is Ready, or was a moment ago. Pure; fed by the watch of pods,
//! asked by whoever waits for agents. What an agent can do is in the status of its `NodeTargets`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use onehop_core::id::NodeName;
use onehop_core::time::Time;

/// How long an agent's pod may be without readiness before the agent counts as absent.
pub const ABSENT_AFTER: Duration = Duration::from_mins(1);

/// Since when nodes have been without a Ready agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Presence(BTreeMap<NodeName, Stand>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    Ready,
    /// Not Ready since it was seen so: after a start of ours the minute begins anew, late and never early.
    Since(Time),
}

impl Presence {
    /// Takes in all nodes, and those with a Ready agent.
    pub fn update(&mut self, nodes: &BTreeSet<NodeName>, ready: &BTreeSet<NodeName>, now: Time) {
        self.0.retain(|node, _| nodes.contains(node));
        for node in nodes {
            let stand = self.0.entry(node.clone()).or_insert(Stand::Since(now));
            *stand = match (ready.contains(node), *stand) {
                (true, _) => Stand::Ready,
                (false, Stand::Ready) => Stand::Since(now),
                (false, since) => since,
            };
        }
    }

    /// Whether a node's agent is absent. A node that is gone has none.
    pub fn is_absent(&self, node: &NodeName, now: Time) -> bool {
        match self.0.get(node) {
            Some(Stand::Ready) => false,
            Some(Stand::Since(since)) => now.since(*since) >= ABSENT_AFTER,
            None => true,
        }
    }

    /// The nodes that are there and whose agents are absent.
    pub fn absent(&self, now: Time) -> BTreeSet<NodeName> {
        let absent = self.0.keys().filter(|node| self.is_absent(node, now));
        absent.cloned().collect()
    }

    /// When the next agent will count as absent if nothing happens.
    pub fn next_change(&self, now: Time) -> Option<Time> {
        let ends = self.0.values().filter_map(|stand| match stand {
            Stand::Ready => None,
            Stand::Since(since) => Some(*since + ABSENT_AFTER),
        });
        ends.filter(|end| *end > now).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_millis(1_800_000_000_000);

    fn set(names: &[&'static str]) -> BTreeSet<NodeName> {
        names.iter().map(|name| NodeName::from(*name)).collect()
    }

    #[test]
    fn k24_an_agent_is_absent_after_a_minute_without_readiness_or_when_its_node_is_gone() {
        let mut presence = Presence::default();
        let (a, b) = (NodeName::from("a"), NodeName::from("b"));
        presence.update(&set(&["a", "b"]), &set(&["a"]), NOW);
        assert!(
            !presence.is_absent(&a, NOW) && !presence.is_absent(&b, NOW),
            "K-24"
        );
        assert_eq!(presence.next_change(NOW), Some(NOW + ABSENT_AFTER));
        let almost = NOW + Duration::from_secs(59);
        presence.update(&set(&["a", "b"]), &set(&[]), almost);
        assert!(
            !presence.is_absent(&b, almost),
            "K-24, ZD-13: only after 60 s"
        );
        let minute = NOW + Duration::from_mins(1);
        assert!(presence.is_absent(&b, minute), "K-24");
        assert!(!presence.is_absent(&a, minute), "K-24: its own minute");
        assert_eq!(presence.next_change(minute), Some(almost + ABSENT_AFTER));
        presence.update(&set(&["a", "b"]), &set(&["b"]), minute);
        assert!(!presence.is_absent(&b, minute), "K-24: Ready again");
        presence.update(&set(&["b"]), &set(&["b"]), minute);
        assert!(
            presence.is_absent(&a, minute),
            "K-24, ZD-13: at once, with its node"
        );
        assert_eq!(presence.next_change(minute), None);
    }
}
