//! FC-103 (1): the group that a listener's flows go to never stands without a healthy target while a pod is ready.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use onehop_core::time::Time;

use super::PodSpan;
use crate::engine::{Event, GroupId, LbId, TargetState, What};

/// Where a healthy target has to be: anywhere, or in this zone.
type Place = Option<String>;

/// A time without a healthy target although a pod was ready all the while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The listener, as `lb-000001/80-tcp`.
    pub listener: String,
    /// The zone without one, where the load balancer's nodes choose only targets of their own.
    pub zone: Option<String>,
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
    // Where it has had a healthy target, and since when there is none.
    served: BTreeMap<Place, Option<Time>>,
}

type Listener = (LbId, String);

#[derive(Default)]
struct Walk {
    healthy: BTreeSet<(GroupId, SocketAddr)>,
    zones: BTreeMap<(GroupId, SocketAddr), Place>,
    // Load balancers whose nodes choose only targets of their own zone.
    apart: BTreeSet<LbId>,
    listeners: BTreeMap<Listener, Pointed>,
    gaps: Vec<(Listener, Place, Time, Time)>,
}

/// For every listener that uses one of a Service's `groups`: once its group has had a healthy target, never none while
/// a pod is ready, up to `end` (the Service's deletion, or now). A listener that is pointed at another group is judged
/// by that one from then on. A pod that turned ready within the gap is no reason to complain: registering takes time.
/// With cross-zone off each zone is judged for itself, by the pods that are in it.
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
    let open = open.flat_map(|(of, pointed)| {
        let empty = pointed.served.iter();
        empty.filter_map(|(place, since)| Some((of.clone(), place.clone(), (*since)?, end)))
    });
    let gaps = walk.gaps.iter().cloned().chain(open);
    let reported = gaps.filter_map(|((lb, listener), zone, from, to)| {
        let near = |pod: &&PodSpan| zone.is_none() || pod.zone == zone;
        let mut near = pods.iter().filter(near);
        let pod = near.find(|pod| pod.covers(from, to))?;
        (to > from).then(|| Gap {
            listener: format!("{lb}/{listener}"),
            zone: zone.clone(),
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
                zone,
                ..
            } if groups.contains(group) => {
                let key = (group.clone(), *target);
                self.zones.insert(key.clone(), zone.clone());
                if *state == TargetState::Healthy {
                    self.healthy.insert(key);
                } else {
                    self.healthy.remove(&key);
                }
            }
            What::TargetMoved {
                group,
                target,
                zone,
            } => {
                self.zones.insert((group.clone(), *target), zone.clone());
            }
            What::CrossZone { lb, on } => {
                if *on {
                    self.apart.remove(lb);
                } else {
                    self.apart.insert(lb.clone());
                }
                // Other questions are asked from here on.
                self.close(at, |(of, _)| of == lb);
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
                served: BTreeMap::new(),
            };
            let pointed = self.listeners.entry(listener).or_insert(fresh);
            pointed.group = group.clone();
            return;
        }
        self.close(at, |of| *of == listener);
        self.listeners.remove(&listener);
    }

    /// Ends what is open of these listeners; they begin anew.
    fn close(&mut self, at: Time, which: impl Fn(&Listener) -> bool) {
        for (listener, pointed) in self.listeners.iter_mut().filter(|(of, _)| which(of)) {
            let served = std::mem::take(&mut pointed.served).into_iter();
            let open = served.filter_map(|(place, since)| Some((place, since?)));
            let gaps = open.map(|(place, from)| (listener.clone(), place, from, at));
            self.gaps.extend(gaps);
        }
    }

    fn judge(&mut self, at: Time) {
        for (listener, pointed) in &mut self.listeners {
            let healthy = self.healthy.iter().filter(|(of, _)| *of == pointed.group);
            let places: BTreeSet<Place> = if self.apart.contains(&listener.0) {
                healthy
                    .map(|key| self.zones.get(key).cloned().flatten())
                    .collect()
            } else {
                healthy.map(|_| None).collect()
            };
            // A target without a zone is near for every LB node, and any target will do where no zone is asked for.
            let met = |place: &Place| {
                places.contains(&None)
                    || places.contains(place)
                    || (place.is_none() && !places.is_empty())
            };
            for (place, since) in &mut pointed.served {
                if met(place) {
                    let gap = since.take();
                    let gap = gap.map(|from| (listener.clone(), place.clone(), from, at));
                    self.gaps.extend(gap);
                } else {
                    since.get_or_insert(at);
                }
            }
            for place in places {
                pointed.served.entry(place).or_default();
            }
        }
    }
}
