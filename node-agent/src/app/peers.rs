//! What the app does about others who program the node: a kube-proxy (S-125, S-126), and hands on our tables (S-261).

use super::{App, FIGHT, Work};
use crate::peer::{Sighting, Stand};

impl App {
    /// A kube-proxy was looked for, and this was seen.
    pub fn sighted(&mut self, mut sighting: Sighting) {
        if let Some(process) = sighting.tampered.take() {
            self.tampered(&process);
        }
        let (had, now) = (self.peer.stand(self.clock.now()), self.clock.now());
        let had_iptables = self.peer.iptables();
        let planner = &self.planner;
        self.peer
            .see(sighting, now, |front| planner.owner(front).cloned());
        self.state.set_taker(self.peer.takes_services());
        let stand = self.peer.stand(now);
        if stand == Stand::Refuse && had != Stand::Refuse {
            tracing::error!(
                "a kube-proxy lives on this node and would program the same Services; refusing"
            );
            self.out.notifier.kube_proxy_lives(&self.state.here().node);
        }
        if self.peer.iptables() && !had_iptables && self.peer.is_alone() {
            self.out.notifier.iptables_left(&self.state.here().node);
        }
        self.settle_claims();
    }

    /// Somebody else changed our tables: they are read and mended at once; if it goes on, after ever longer pauses
    /// (S-262).
    fn tampered(&mut self, process: &str) {
        let now = self.clock.now();
        let again = self.tampered.is_some_and(|last| now.since(last) < FIGHT);
        tracing::error!(
            process,
            again,
            "somebody else changed our nftables tables; mending them"
        );
        self.out.metrics.repaired("foreign");
        self.tampered = Some(now);
        if again {
            self.retry_later();
        }
        match self.work {
            // What is under way fails or is read back afterwards.
            Work::Reading | Work::Committing(_) => self.reread = true,
            Work::Idle | Work::Unread => self.work = Work::Unread,
        }
    }

    /// Gives Services up that kube-proxy programs too, and takes them back (S-126).
    pub(super) fn settle_claims(&mut self) {
        let (planner, now) = (&self.planner, self.clock.now());
        let claimed = self
            .peer
            .claimed(now, |front| planner.owner(front).cloned());
        for key in &claimed.give_up {
            if let Some(service) = self.state.service(key) {
                self.out.notifier.claimed_twice(service);
            }
            self.state.give_up(key.clone());
            self.lower(key);
        }
        for key in &claimed.take_back {
            self.state.take_back(key);
            self.lower(key);
        }
        self.out.metrics.kube_proxy_overlap(self.peer.overlap());
    }
}
