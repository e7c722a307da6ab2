//! What came of the writer's orders, and what becomes true by it.

use std::time::Duration;

use super::{
    App, FOLLOW, Flight, KEEP, PAUSE, PAUSE_MAX, STANDBY, Sync, VERIFY, Verification, Work,
};
use crate::http::Tables;
use crate::ready::Readiness;
use crate::table::element::{CommitFailure, Elements, Family};
use crate::writer::Report;

impl App {
    /// Takes what came of an order.
    pub fn report(&mut self, report: Report) {
        match report {
            Report::Tables(Ok(Some(elements))) => self.tables(elements),
            Report::Tables(Ok(None)) => self.standby(),
            Report::Tables(Err(failure)) => self.failed(failure),
            Report::Doubt(family, failure) => {
                self.out.metrics.cleanup_failed(family);
                self.failed(failure);
            }
            Report::Commit { result, took } => {
                let work = std::mem::replace(&mut self.work, Work::Idle);
                let Work::Committing(flight) = work else {
                    return;
                };
                match result {
                    Ok(()) => self.committed(*flight, took),
                    Err(failure) => {
                        self.out.metrics.commit_failed(&flight.families);
                        self.failed(failure);
                    }
                }
            }
        }
    }

    pub(super) fn committed(&mut self, flight: Flight, took: Duration) {
        for (service, ready) in &flight.services {
            if !self.state.health_ports(service).is_empty() {
                let now = self.state.local_ready(service);
                self.out.board.raise(service, ready, &now);
                // Whoever is sent here then is forwarded (S-107).
                self.out.board.hold(service, self.state.holds(service));
            }
        }
        for (key, answers) in flight.pods {
            // What changed meanwhile is compiled anew.
            if !self.state.guards().waits(&key) {
                self.out.board.raise_pods(&key, answers);
            }
        }
        if flight.pods_known {
            self.out.board.forget_kept_pods();
            self.out.pod_answers.send_replace(Tables::Ours);
        }
        let metrics = &self.out.metrics;
        let now = self.clock.now();
        // What was changed before this process came is not of its doing.
        for (family, at) in flight.triggers.iter().filter(|(_, at)| *at >= self.started) {
            metrics.programmed_after(*family, now.since(*at));
        }
        metrics.elements(flight.added, flight.removed);
        if let Some(seen) = flight.guarded {
            metrics.late().guarded_after(now.since(seen));
        }
        for ended in &flight.ended {
            metrics.late().ended(ended.cause);
        }
        self.out.tails.measure(flight.ended);
        self.sync.took += took;
        self.sync.families.extend(&flight.families);
        metrics.guards(self.state.guards().count());
        metrics.frontends(self.planner.frontends());
        let (internal, external) = self.planner.no_local();
        metrics.no_local_endpoints(internal, external);
        if self.refused.is_empty() {
            self.pause = PAUSE;
        }
        self.out.flows.clean(flight.flows);
        if let Some(Verification { differed, asked }) = flight.verified {
            for who in asked {
                // Who asked may have gone.
                let _ = who.send(differed);
            }
        }
        self.ranges = flight.ranges.or(self.ranges.take());
        if flight.take_over {
            tracing::info!("the tables that a stopped kube-proxy left are gone");
            self.peer.taken_over();
        }
        if !flight.more {
            self.truth = flight.targets;
            self.synced(flight.full);
        }
    }

    /// All of what was known when it was planned is in the kernel.
    fn synced(&mut self, full: bool) {
        let Sync { took, families } = std::mem::take(&mut self.sync);
        let families: Vec<Family> = families.into_iter().collect();
        let (metrics, now) = (&self.out.metrics, self.clock.now());
        if !families.is_empty() {
            metrics.committed(&families, full, took, now);
        }
        self.out.board.in_sync();
        if self.is_behind() {
            if self.out.board.queued() {
                metrics.queued(now);
            }
        } else {
            metrics.nothing_pending();
            if self.keeper.is_on() {
                self.keep_at.get_or_insert(now + KEEP);
            }
        }
        self.loaded = true;
        self.say_truth();
        self.answer();
        // Who waits for this agent to answer counts them (ZD-36).
        self.open_health_ports();
        self.set_ready(Readiness::InSync);
    }

    fn tables(&mut self, elements: Elements) {
        tracing::info!(elements = elements.len(), "kernel tables read");
        self.verify_at = self.clock.now() + VERIFY;
        if *self.out.ready.borrow() == Readiness::Standby {
            let at = self.clock.now() + FOLLOW;
            self.answer_at.get_or_insert(at);
        } else {
            self.answer();
        }
        if !self.refused.is_empty() {
            self.out.metrics.repaired("refused");
            self.retry_later();
        }
        self.state.guards().inherit(&elements);
        self.state.windows_mut().inherit(&elements);
        self.planner.restart(elements, &self.refused);
        let held = (self.planner.digest(), self.clock.now());
        if let Some(file) = self.file.take().filter(|file| file.holds(held.0, held.1)) {
            self.adopt(&file);
        }
        self.planner.set_links(&self.links);
        self.state.touch_all();
        self.must_plan = true;
        self.full = true;
        self.work = Work::Idle;
    }

    fn standby(&mut self) {
        if *self.out.ready.borrow() != Readiness::Standby {
            tracing::info!("another agent has this node's tables: in standby until it ends");
        }
        self.set_ready(Readiness::Standby);
        self.work = Work::Unread;
        self.retry_at = Some(self.clock.now() + STANDBY);
    }

    fn failed(&mut self, failure: CommitFailure) {
        tracing::error!(error = %failure, "the kernel did not take everything");
        self.sync = Sync::default();
        if failure.standby {
            self.standby();
            return;
        }
        // Frontends that were refused are left out of the next try, which can come at once.
        let progress = !failure.refused.is_subset(&self.refused);
        self.refused.extend(failure.refused);
        self.work = Work::Unread;
        if progress {
            self.retry_at = None;
        } else {
            self.retry_later();
        }
    }

    pub(super) fn retry_later(&mut self) {
        self.retry_at = Some(self.clock.now() + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    pub(super) fn retry_refused(&mut self) {
        self.retry_at = None;
        self.refused.clear();
        for service in self.planner.retry_refused() {
            self.state.touch(service);
        }
    }
}
