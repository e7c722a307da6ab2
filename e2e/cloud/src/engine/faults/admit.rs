//! Whether a call gets through, and what becomes of its answer.

use std::net::SocketAddr;

use rand::seq::SliceRandom;
use serde::Serialize;

use super::{Effect, Operation};
use crate::engine::log::{Seq, What};
use crate::engine::{
    ApiError, Engine, GroupSpec, LbSpec, ProbeProtocol, Protocol, Reason, TargetSpec, TargetState,
    TargetStatus,
};

/// What a partial success does to one target of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Fate {
    /// The answer says that it is not registered.
    Refused,
    /// The answer says that it is.
    Lost,
}

impl Engine {
    /// Rights first, then throttling, then what was injected, as clouds do.
    pub(in crate::engine) fn admit(
        &mut self,
        operation: Operation,
        cause: Seq,
    ) -> Result<Option<Effect>, ApiError> {
        if self.faults.knobs.denied.contains(&operation) {
            return Err(ApiError::Forbidden { operation });
        }
        self.throttle(operation)?;
        let Some(effect) = self.take_injection(operation) else {
            return Ok(None);
        };
        self.log.push(
            self.now,
            Some(cause),
            What::FaultInjected { operation, effect },
        );
        match effect {
            Effect::Unavailable => Err(ApiError::Unavailable { operation }),
            Effect::InternalError => Err(ApiError::Internal { operation }),
            Effect::LostBefore => Err(ApiError::ConnectionLost { operation }),
            Effect::LostAfter | Effect::Partial { .. } => Ok(Some(effect)),
        }
    }

    /// A call takes a token of each bucket that covers it, or none.
    fn throttle(&mut self, operation: Operation) -> Result<(), ApiError> {
        let now = self.now;
        let buckets = &mut self.faults.buckets;
        let mut covering: Vec<_> = buckets.iter_mut().filter(|b| b.covers(operation)).collect();
        let waits = covering.iter_mut().filter_map(|bucket| bucket.wait(now));
        if let Some(retry_after) = waits.max() {
            return Err(ApiError::Throttled {
                operation,
                retry_after,
            });
        }
        covering.into_iter().for_each(super::throttle::Bucket::take);
        Ok(())
    }

    fn take_injection(&mut self, operation: Operation) -> Option<Effect> {
        let hits = |injection: &super::Injection| {
            let covers =
                injection.operations.is_empty() || injection.operations.contains(&operation);
            let batch = operation == Operation::RegisterTargets;
            covers && (batch || !matches!(injection.effect, Effect::Partial { .. }))
        };
        let at = self.faults.injections.iter().position(hits)?;
        let injection = self.faults.injections.get_mut(at)?;
        if let Some(left) = injection.skip.checked_sub(1) {
            injection.skip = left;
            return None;
        }
        let effect = injection.effect;
        injection.times = injection.times.saturating_sub(1);
        if injection.times == 0 {
            self.faults.injections.remove(at);
        }
        Some(effect)
    }

    /// Draws the targets of a batch that do not make it (FC-92).
    pub(in crate::engine) fn draw_fates(&mut self, batch: &[TargetSpec]) {
        self.faults.fates.clear();
        let Some(Effect::Partial { refuse, lose }) = self.faults.under_way else {
            return;
        };
        let mut targets: Vec<_> = batch.iter().map(|spec| spec.target).collect();
        targets.shuffle(&mut self.rng);
        let fates =
            std::iter::repeat_n(Fate::Refused, refuse).chain(std::iter::repeat_n(Fate::Lost, lose));
        self.faults.fates = targets.into_iter().zip(fates).collect();
    }

    /// A lost target looks like a registered one in the answer to the call under way.
    pub(in crate::engine) fn tell_lies(&self, answer: &mut [TargetStatus]) {
        for status in answer {
            if self.fate(status.target) == Some(Fate::Lost) {
                status.state = TargetState::Initial;
                status.reason = Some(Reason::RegistrationInProgress);
            }
        }
    }

    /// What the partial success of the call under way does to a target.
    pub(in crate::engine) fn fate(&self, target: SocketAddr) -> Option<Fate> {
        self.faults.fates.get(&target).copied()
    }

    /// Refuses what holds a text that the cloud cannot take (FC-99).
    pub(in crate::engine) fn refuse_bad_text(&self, spec: &impl Serialize) -> Result<(), ApiError> {
        if self.faults.knobs.bad_text.is_empty() {
            return Ok(());
        }
        let body = serde_json::to_string(spec).unwrap_or_default();
        let mut bad = self.faults.knobs.bad_text.iter();
        match bad.find(|text| body.contains(text.as_str())) {
            Some(text) => Err(ApiError::BadAttribute { text: text.clone() }),
            None => Ok(()),
        }
    }

    /// Refuses a change of the probe's protocol where it is fixed (FC-98).
    pub(in crate::engine) fn check_probe_protocol(
        &self,
        old: &GroupSpec,
        new: &GroupSpec,
    ) -> Result<(), ApiError> {
        let kind = |spec: &GroupSpec| spec.health.as_ref().map(|h| h.protocol);
        let fixed = self.faults.knobs.probe_protocol_fixed
            && old.protocol == Protocol::Tcp
            && kind(old) != kind(new);
        if fixed {
            let now = kind(old).map_or("none", |kind| match kind {
                ProbeProtocol::Tcp => "TCP",
                ProbeProtocol::Http => "HTTP",
            });
            let message = format!("is {now} and fixed: make another group and switch to it");
            return Err(ApiError::invalid("health.protocol", message));
        }
        Ok(())
    }

    /// Refuses a change of IPv6 addresses where they can be set only once (FC-98).
    pub(in crate::engine) fn check_ipv6(&self, old: &LbSpec, new: &LbSpec) -> Result<(), ApiError> {
        let six = |spec: &LbSpec| -> Vec<_> {
            let addresses = spec.addresses.iter().copied();
            addresses.filter(std::net::IpAddr::is_ipv6).collect()
        };
        let before = six(old);
        if self.faults.knobs.ipv6_fixed && !before.is_empty() && before != six(new) {
            let message = format!("IPv6 addresses can be set only once; they are {before:?}");
            return Err(ApiError::invalid("addresses", message));
        }
        Ok(())
    }
}
