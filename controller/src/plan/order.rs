//! The order rules: create before use, fill before publish, register before deregister, switch before
//! retire, drain before delete, children before parents.
//!
//! Called by every provider's planner with its steps in any order. Order is never set by hand, so that
//! a new step cannot be put in the wrong place; a step only states its facts.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use onehop_core::id::ServiceKey;

use super::{Act, Facts, Group, GroupId, Lane, Plan, Resource, Step};

/// Groups steps by lane, resource and act, and orders the groups.
///
/// Steps for one group keep the order in which they were given.
pub fn arrange<S: Step>(services: &[ServiceKey], steps: Vec<S>) -> Plan<S> {
    let mut bundles: BTreeMap<(Lane, Resource, Act), Vec<(Facts, S)>> = BTreeMap::new();
    for step in steps {
        let facts = step.facts();
        let key = (facts.lane, facts.on.clone(), facts.act);
        bundles.entry(key).or_default().push((facts, step));
    }
    let bundles: Vec<_> = bundles.into_iter().collect();
    let ids: Vec<GroupId> = bundles
        .iter()
        .map(|((_, on, act), _)| GroupId(format!("{} {on}", act.as_str())))
        .collect();
    let related = Related::of(bundles.iter().map(|(_, steps)| steps));
    let waits: Vec<Vec<usize>> = (0..bundles.len())
        .map(|later| {
            let firsts = related.to(&bundles[later].1).into_iter();
            firsts
                .filter(|&first| first != later && any_before(&bundles[first].1, &bundles[later].1))
                .collect()
        })
        .collect();
    let sequence = topological(&waits);
    let mut bundles: Vec<_> = bundles.into_iter().map(Some).collect();
    let groups = sequence
        .into_iter()
        .filter_map(|i| {
            let ((lane, subject, _), steps) = bundles[i].take()?;
            Some(Group {
                id: ids[i].clone(),
                lane,
                subject: subject.whole(),
                services: services.to_vec(),
                after: waits[i].iter().map(|&w| ids[w].clone()).collect(),
                steps: steps.into_iter().map(|(_, step)| step).collect(),
            })
        })
        .collect();
    Plan { groups }
}

/// Which bundles have to do with a resource. A Service may have a thousand ports: comparing each bundle with each
/// other one would hold up everybody else's plans.
#[derive(Default)]
struct Related<'a> {
    on: HashMap<&'a Resource, BTreeSet<usize>>,
    naming: HashMap<&'a Resource, BTreeSet<usize>>,
}

impl<'a> Related<'a> {
    fn of<S: 'a>(bundles: impl Iterator<Item = &'a Vec<(Facts, S)>>) -> Self {
        let mut all = Self::default();
        for (number, steps) in bundles.enumerate() {
            for (facts, _) in steps {
                all.on.entry(&facts.on).or_default().insert(number);
                for named in facts.uses.iter().chain(&facts.frees) {
                    all.naming.entry(named).or_default().insert(number);
                }
            }
        }
        all
    }

    /// The bundles that these steps may have to wait for: every rule of [`before`] asks for one of these relations.
    fn to<S>(&self, steps: &[(Facts, S)]) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        for (facts, _) in steps {
            let same = self.on.get(&facts.on);
            let used = facts.uses.iter().filter_map(|r| self.on.get(r));
            let naming = self.naming.get(&facts.on);
            let all = same.into_iter().chain(used).chain(naming);
            found.extend(all.flatten().copied());
        }
        found
    }
}

fn any_before<S>(first: &[(Facts, S)], later: &[(Facts, S)]) -> bool {
    first
        .iter()
        .any(|(a, _)| later.iter().any(|(b, _)| before(a, b)))
}

/// Whether `a` must have succeeded before `b` may start.
fn before(a: &Facts, b: &Facts) -> bool {
    let same = a.on == b.on;
    match (a.act, b.act) {
        // Create before use. Serve before switch: a listener never points at a group that lacks
        // what we could register.
        (Act::Create, Act::Create | Act::Publish) | (Act::Fill, Act::Publish) => {
            b.uses.contains(&a.on)
        }
        // Create before use. Register before deregister (ZD-21). Drain before delete.
        (Act::Create, _) | (Act::Fill, Act::Empty) | (Act::Drop | Act::Empty, Act::Delete) => same,
        // Switch before what was switched away from is retired, emptied or deleted (ZD-28).
        (Act::Publish, Act::Adjust | Act::Empty | Act::Delete) => a.frees.contains(&b.on),
        // Children before what they hang on.
        (Act::Delete, Act::Delete) => a.uses.contains(&b.on) || a.frees.contains(&b.on),
        _ => false,
    }
}

/// Positions in an order in which each comes after those it waits for. The rules cannot form a cycle
/// (acts only ever wait for earlier acts, deletes only for children); should one be built all the
/// same, its members come last and never run, since what they wait for is not done.
fn topological(waits: &[Vec<usize>]) -> Vec<usize> {
    let mut done: Vec<usize> = Vec::with_capacity(waits.len());
    let mut is_done = vec![false; waits.len()];
    let mut left: Vec<usize> = (0..waits.len()).collect();
    while !left.is_empty() {
        let (ready, rest): (Vec<_>, Vec<_>) = left
            .iter()
            .copied()
            .partition(|&i| waits[i].iter().all(|&w| is_done[w]));
        if ready.is_empty() {
            done.extend(rest);
            break;
        }
        for &i in &ready {
            is_done[i] = true;
        }
        done.extend(ready);
        left = rest;
    }
    done
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    struct Any(Facts);

    impl fmt::Display for Any {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{:?}", self.0)
        }
    }

    impl Step for Any {
        fn facts(&self) -> Facts {
            self.0.clone()
        }

        fn verb(&self) -> &'static str {
            "any"
        }

        fn event(&self) -> Option<(&'static str, String)> {
            None
        }
    }

    const ACTS: [Act; 7] = [
        Act::Create,
        Act::Adjust,
        Act::Fill,
        Act::Publish,
        Act::Drop,
        Act::Empty,
        Act::Delete,
    ];

    fn step() -> impl Strategy<Value = Any> {
        let resource = || (0..4_u8).prop_map(|n| Resource::new("r", n));
        let list = || prop::collection::vec(resource(), 0..3);
        (0..ACTS.len(), resource(), list(), list()).prop_map(|(act, on, uses, frees)| {
            Any(Facts {
                lane: Lane::Shape,
                act: ACTS[act],
                on,
                uses,
                frees,
            })
        })
    }

    proptest! {
        #[test]
        fn the_related_bundles_are_all_that_a_step_can_have_to_wait_for(a in step(), b in step()) {
            let bundles = [vec![(a.facts(), ())], vec![(b.facts(), ())]];
            if before(&bundles[0][0].0, &bundles[1][0].0) {
                let related = Related::of(bundles.iter()).to(&bundles[1]);
                prop_assert!(related.contains(&0), "{} before {}", a, b);
            }
        }
    }
}
