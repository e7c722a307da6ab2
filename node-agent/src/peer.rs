//! kube-proxy on the same node (sections 11.3 and S-125 to S-127): whether one lives, what a stopped one left, and which
//! of our frontends it programs too. Pure; the app feeds it what `peer_watch` saw and acts on its answers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use onehop_core::id::ServiceKey;
use onehop_core::time::Time;

use crate::args::Mode;
use crate::claims::Front;

/// Somebody else's commit to kube-proxy's tables means for this long that it lives.
const RECENT: Duration = Duration::from_mins(2);
/// A frontend in both proxies is a double claim after this; a moved label overlaps for a sync period (S-126).
const OVERLAP: Duration = Duration::from_secs(10);

/// What was seen of kube-proxy at one look.
#[allow(clippy::struct_excessive_bools, reason = "each was seen or not")]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sighting {
    /// Its health port is answered, and not by one of ours.
    pub answers: bool,
    /// Somebody committed to its tables since the last look.
    pub committed: bool,
    /// Somebody who is not our writer changed our own tables: the name of the process (S-262).
    pub tampered: Option<String>,
    /// It has tables of nftables mode.
    pub tables: bool,
    /// It has chains of an iptables mode.
    pub iptables: bool,
    /// The frontends that its tables serve.
    pub fronts: BTreeSet<Front>,
}

/// How far the agent may go as the only proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stand {
    /// Not at all: a kube-proxy lives and would program the same Services (S-125).
    Refuse,
    /// Program.
    Go,
    /// Program, and take the tables of a stopped kube-proxy away with the first commit (S-127).
    TakeOver,
}

/// Everything known of kube-proxy.
#[derive(Debug)]
pub struct Peer {
    mode: Mode,
    /// Program although one lives.
    overridden: bool,
    last: Sighting,
    looks: u64,
    committed: Option<Time>,
    /// Frontends of ours in its tables, and since when.
    shared: BTreeMap<Front, Time>,
    /// Services that were given up, with the frontends that were claimed twice.
    given_up: BTreeMap<ServiceKey, BTreeSet<Front>>,
}

/// What a look changes for Services.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claimed {
    /// Kube-proxy programs these too: give them up.
    pub give_up: BTreeSet<ServiceKey>,
    /// It no longer does: take them back.
    pub take_back: BTreeSet<ServiceKey>,
}

impl Peer {
    /// Nothing was seen yet.
    pub fn new(mode: Mode, overridden: bool) -> Self {
        Self {
            mode,
            overridden,
            last: Sighting::default(),
            looks: 0,
            committed: None,
            shared: BTreeMap::new(),
            given_up: BTreeMap::new(),
        }
    }

    /// Takes what was seen. `owner` names the Service of ours that a frontend belongs to.
    pub fn see(
        &mut self,
        sighting: Sighting,
        now: Time,
        owner: impl Fn(&Front) -> Option<ServiceKey>,
    ) {
        if sighting.committed {
            self.committed = Some(now);
        }
        let ours = sighting
            .fronts
            .iter()
            .filter(|front| owner(front).is_some());
        let since = |front: &Front| self.shared.get(front).copied().unwrap_or(now);
        self.shared = ours.map(|front| (*front, since(front))).collect();
        self.last = sighting;
        self.looks += 1;
    }

    /// How often it was looked at.
    pub fn looks(&self) -> u64 {
        self.looks
    }

    /// Whether there is one in nftables mode that takes over, frontend by frontend, what we leave (S-345).
    pub fn takes_services(&self) -> bool {
        self.mode == Mode::Beside && self.last.tables
    }

    /// Whether its tables serve a frontend.
    pub fn serves(&self, front: &Front) -> bool {
        self.last.fronts.contains(front)
    }

    /// How far to go as the only proxy. Leftover tables alone are no living kube-proxy.
    pub fn stand(&self, now: Time) -> Stand {
        if self.mode == Mode::Beside {
            return Stand::Go;
        }
        let recent = self.committed.is_some_and(|at| now.since(at) < RECENT);
        let lives = self.last.answers || recent;
        match (lives, self.overridden, self.last.tables) {
            (true, false, _) => Stand::Refuse,
            (false, _, true) => Stand::TakeOver,
            (true, true, _) | (false, _, false) => Stand::Go,
        }
    }

    /// The tables that were left are gone.
    pub fn taken_over(&mut self) {
        self.last.tables = false;
        self.last.fronts.clear();
    }

    /// Whether the agent is to be the only proxy.
    pub fn is_alone(&self) -> bool {
        self.mode == Mode::Replace
    }

    /// Whether chains of an iptables mode are left, which share tables with others and are never edited (S-127).
    pub fn iptables(&self) -> bool {
        self.last.iptables
    }

    /// Which Services to give up or take back beside kube-proxy. `owner` as in [`Peer::see`].
    pub fn claimed(&mut self, now: Time, owner: impl Fn(&Front) -> Option<ServiceKey>) -> Claimed {
        let mut claimed = Claimed::default();
        if self.mode == Mode::Replace {
            return claimed;
        }
        for (front, since) in &self.shared {
            if let Some(service) = owner(front).filter(|_| now.since(*since) >= OVERLAP) {
                self.given_up
                    .entry(service.clone())
                    .or_default()
                    .insert(*front);
                claimed.give_up.insert(service);
            }
        }
        self.shared.retain(|_, since| now.since(*since) < OVERLAP);
        let fronts = &self.last.fronts;
        self.given_up.retain(|service, claims| {
            let still = !claims.is_disjoint(fronts);
            if !still {
                claimed.take_back.insert(service.clone());
            }
            still
        });
        claimed
    }

    /// When [`Peer::claimed`] may have something new although nothing was seen.
    pub fn next_look(&self) -> Option<Time> {
        let earliest = self.shared.values().min().copied();
        earliest
            .filter(|_| self.mode == Mode::Beside)
            .map(|since| since + OVERLAP)
    }

    /// How many Services are given up.
    pub fn overlap(&self) -> usize {
        self.given_up.len()
    }
}

#[cfg(test)]
mod tests {
    use onehop_core::id::IpFamily;

    use super::*;
    use crate::table::element::Protocol;

    const FRONT: Front = Front::NodePort(IpFamily::V4, Protocol::Tcp, 30_080);

    fn at(seconds: i64) -> Time {
        Time::from_millis(seconds * 1000)
    }

    #[allow(clippy::unnecessary_wraps, reason = "the form that is asked for")]
    fn owner(_: &Front) -> Option<ServiceKey> {
        Some(ServiceKey::new("default", "web"))
    }

    fn seen(mode: Mode, overridden: bool, sighting: Sighting) -> Peer {
        let mut peer = Peer::new(mode, overridden);
        peer.see(sighting, at(0), owner);
        peer
    }

    #[test]
    fn s125_a_living_kube_proxy_is_refused_unless_overridden() {
        let answers = Sighting {
            answers: true,
            tables: true,
            ..Sighting::default()
        };
        assert_eq!(
            seen(Mode::Replace, false, answers.clone()).stand(at(0)),
            Stand::Refuse
        );
        assert_eq!(
            seen(Mode::Replace, true, answers.clone()).stand(at(0)),
            Stand::Go
        );
        assert_eq!(
            seen(Mode::Beside, false, answers).stand(at(0)),
            Stand::Go,
            "S-126"
        );
        let committed = Sighting {
            committed: true,
            tables: true,
            ..Sighting::default()
        };
        let peer = seen(Mode::Replace, false, committed);
        assert_eq!(
            peer.stand(at(119)),
            Stand::Refuse,
            "it committed a moment ago"
        );
        assert_eq!(peer.stand(at(121)), Stand::TakeOver, "it has stopped");
    }

    #[test]
    fn s127_leftover_tables_alone_are_taken_over() {
        let tables = Sighting {
            tables: true,
            ..Sighting::default()
        };
        assert_eq!(
            seen(Mode::Replace, false, tables).stand(at(0)),
            Stand::TakeOver
        );
        assert_eq!(
            seen(Mode::Replace, false, Sighting::default()).stand(at(0)),
            Stand::Go
        );
    }

    #[test]
    fn s126_a_frontend_in_both_for_ten_seconds_is_given_up_until_it_is_in_one_again() {
        let shared = Sighting {
            fronts: [FRONT].into(),
            ..Sighting::default()
        };
        let mut peer = seen(Mode::Beside, false, shared.clone());
        let service: BTreeSet<ServiceKey> = owner(&FRONT).into_iter().collect();
        assert_eq!(peer.claimed(at(9), owner), Claimed::default());
        assert_eq!(peer.next_look(), Some(at(10)));
        assert_eq!(peer.claimed(at(10), owner).give_up, service);
        assert_eq!((peer.overlap(), peer.next_look()), (1, None));
        // Given up, it is nobody's of ours, and stays given up while kube-proxy has it.
        peer.see(shared, at(20), |_| None);
        assert_eq!(peer.claimed(at(60), |_| None), Claimed::default());
        peer.see(Sighting::default(), at(61), |_| None);
        assert_eq!(peer.claimed(at(61), |_| None).take_back, service);
        assert_eq!(peer.overlap(), 0);
    }

    #[test]
    fn s126_a_moved_label_overlaps_for_a_moment_without_harm() {
        let shared = Sighting {
            fronts: [FRONT].into(),
            ..Sighting::default()
        };
        let mut peer = seen(Mode::Beside, false, shared);
        peer.see(Sighting::default(), at(5), owner);
        assert_eq!(peer.claimed(at(60), owner), Claimed::default());
    }
}
