//! FC-103 (1): the group that a listener's flows go to never stands without a healthy target while a pod is ready.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use onehop_core::time::Time;

use super::PodSpan;
use crate::engine::{Event, GroupId, LbId, TargetState, What};

/// A time without a healthy target although a pod was ready all the while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The listener, as `lb-000001/80-tcp`.
    pub listener: String,
    /// Its begin.
    pub from: Time,
    /// Its end; the end of what was looked at if it never ended.
    pub to: Time,
    /// A pod that was ready.
    pub ready: IpAddr,
}

/// What is known of one listener.
#[derive(Debug)]
struct Pointed {
    group: GroupId,
    // Whether it has had a healthy target.
    served: bool,
    empty_since: Option<Time>,
}

type Listener = (LbId, String);

#[derive(Default)]
struct Walk {
    healthy: BTreeSet<(GroupId, SocketAddr)>,
    listeners: BTreeMap<Listener, Pointed>,
    gaps: Vec<(Listener, Time, Time)>,
}

/// For every listener that uses one of a Service's `groups`: once its group has had a healthy target, never none while
/// a pod is ready, up to `end` (the Service's deletion, or now). A listener that is pointed at another group is judged
/// by that one from then on. A pod that turned ready within the gap is no reason to complain: registering takes time.
pub fn zero_healthy(
    events: &[Arc<Event>],
    groups: &BTreeSet<GroupId>,
    pods: &[PodSpan],
    end: Time,
) -> Vec<Gap> {
    let mut walk = Walk::default();
    for event in events.iter().filter(|event| event.wall_time <= end) {
        walk.take(&event.what, event.wall_time, groups);
    }
    let open = walk.listeners.iter();
    let open = open.filter_map(|(of, pointed)| Some((of.clone(), pointed.empty_since?, end)));
    let gaps = walk.gaps.iter().cloned().chain(open);
    let reported = gaps.filter_map(|((lb, listener), from, to)| {
        let pod = pods.iter().find(|pod| pod.covers(from, to))?;
        (to > from).then(|| Gap {
            listener: format!("{lb}/{listener}"),
            from,
            to,
            ready: pod.address,
        })
    });
    reported.collect()
}

impl Walk {
    fn take(&mut self, what: &What, at: Time, groups: &BTreeSet<GroupId>) {
        match what {
            What::TargetState {
                group,
                target,
                state,
                ..
            } if groups.contains(group) => {
                let key = (group.clone(), *target);
                if *state == TargetState::Healthy {
                    self.healthy.insert(key);
                } else {
                    self.healthy.remove(&key);
                }
            }
            What::ListenerSet {
                lb,
                listener,
                group,
            } => self.point((lb.clone(), listener.clone()), group.as_ref(), at, groups),
            _ => return,
        }
        self.judge(at);
    }

    fn point(
        &mut self,
        listener: Listener,
        group: Option<&GroupId>,
        at: Time,
        groups: &BTreeSet<GroupId>,
    ) {
        if let Some(group) = group.filter(|group| groups.contains(*group)) {
            let fresh = Pointed {
                group: group.clone(),
                served: false,
                empty_since: None,
            };
            let pointed = self.listeners.entry(listener).or_insert(fresh);
            pointed.group = group.clone();
            return;
        }
        let gone = self.listeners.remove(&listener);
        let gap = gone.and_then(|pointed| pointed.empty_since);
        self.gaps.extend(gap.map(|from| (listener, from, at)));
    }

    fn judge(&mut self, at: Time) {
        for (listener, pointed) in &mut self.listeners {
            let some = self.healthy.iter().any(|(of, _)| *of == pointed.group);
            if some {
                pointed.served = true;
                let gap = pointed.empty_since.take();
                self.gaps
                    .extend(gap.map(|from| (listener.clone(), from, at)));
            } else if pointed.served {
                pointed.empty_since.get_or_insert(at);
            }
        }
    }
}
