//! Reads that lag behind writes (FC-90): after each change the whole is kept, with the time from when
//! on reads see it. Membership and settings lag; states are told as they are, since their own lags
//! belong to the profile.

use std::net::SocketAddr;

use crate::engine::{
    ApiError, Engine, GroupId, GroupStatus, Inventory, Lag, LbId, LbStatus, TargetState,
    TargetStatus, not_found,
};

impl Engine {
    /// Notes what a change has made, for reads to come.
    pub(in crate::engine) fn note_change(&mut self) {
        let lag = &self.faults.knobs.describe_lag;
        if *lag == Lag::NONE {
            return;
        }
        let at = self.now + lag.draw(&mut self.rng);
        // Reads never see an older state after a newer one.
        let at = self
            .faults
            .seen
            .back()
            .map_or(at, |(last, _)| at.max(*last));
        let now = self.inventory();
        self.faults.seen.push_back((at, now));
    }

    /// What reads see, where that may differ from what is.
    fn seen(&mut self) -> Option<&Inventory> {
        let now = self.now;
        let seen = &mut self.faults.seen;
        while seen.get(1).is_some_and(|(at, _)| *at <= now) {
            seen.pop_front();
        }
        seen.front().map(|(_, inventory)| inventory)
    }

    pub(in crate::engine) fn seen_lb(&mut self, id: &LbId) -> Result<LbStatus, ApiError> {
        let Some(seen) = self.seen() else {
            return self.lb_status(id);
        };
        let found = seen.load_balancers.iter().find(|lb| lb.id == *id).cloned();
        found
            .map(|lb| self.with_state(lb))
            .ok_or_else(|| not_found("load balancer", id))
    }

    pub(in crate::engine) fn seen_lbs(&mut self) -> Vec<LbStatus> {
        let Some(seen) = self.seen() else {
            return self.inventory().load_balancers;
        };
        let all = seen.load_balancers.clone();
        all.into_iter().map(|lb| self.with_state(lb)).collect()
    }

    fn with_state(&self, mut lb: LbStatus) -> LbStatus {
        if let Some(now) = self.balancers.get(&lb.id) {
            lb.state = now.state;
        }
        lb
    }

    pub(in crate::engine) fn seen_group(&mut self, id: &GroupId) -> Result<GroupStatus, ApiError> {
        let Some(seen) = self.seen() else {
            return self.group_status(id);
        };
        let mut all = seen.groups.iter().map(|(group, _)| group);
        let found = all.find(|group| group.id == *id).cloned();
        found.ok_or_else(|| not_found("group", id))
    }

    pub(in crate::engine) fn seen_groups(&mut self) -> Vec<GroupStatus> {
        let Some(seen) = self.seen() else {
            let ids = self.groups.keys();
            return ids.filter_map(|id| self.group_status(id).ok()).collect();
        };
        seen.groups.iter().map(|(group, _)| group.clone()).collect()
    }

    pub(in crate::engine) fn seen_targets(
        &mut self,
        id: &GroupId,
        asked: &[SocketAddr],
    ) -> Result<Vec<TargetStatus>, ApiError> {
        let Some(seen) = self.seen() else {
            return if asked.is_empty() {
                self.listed(id)
            } else {
                self.statuses(id, asked)
            };
        };
        let found = seen.groups.iter().find(|(group, _)| group.id == *id);
        let (_, targets) = found.cloned().ok_or_else(|| not_found("group", id))?;
        let shown = targets.into_iter().filter_map(|old| self.as_seen(id, old));
        let shown: Vec<_> = shown.collect();
        if asked.is_empty() {
            return Ok(shown);
        }
        let of = |target: &SocketAddr| {
            let known = shown.iter().find(|status| status.target == *target);
            known
                .cloned()
                .unwrap_or_else(|| TargetStatus::unregistered(*target))
        };
        Ok(asked.iter().map(of).collect())
    }

    /// A target that reads know of, with its state of now; none if its drain time is over.
    fn as_seen(&self, id: &GroupId, old: TargetStatus) -> Option<TargetStatus> {
        use TargetState::{Draining, Unused};
        let now = self.statuses(id, &[old.target]).ok()?.pop()?;
        let gone = now.reason == Some(crate::engine::Reason::NotRegistered);
        match (old.state, now.state) {
            (Draining, Unused) if gone => None,
            // The deregistration is not seen yet.
            (seen, Draining | Unused) if seen != Draining && (gone || now.state == Draining) => {
                Some(old)
            }
            // Nor the registration that ended the draining.
            (Draining, state) if state != Draining => Some(old),
            _ => Some(now),
        }
    }
}
