//! Saying how things stand: `LoadBalancer` object, Service status, events. Written only on difference.

use std::collections::BTreeMap;
use std::sync::Arc;

use onehop_core::crd::{LastError, LoadBalancer};
use onehop_core::time::Time;
use onehop_runtime::events::Severity;

use super::cases::{Case, Wanted};
use super::memory::{Memory, OfService};
use super::standing::tail_at_limit;
use super::{Reconciler, lock};
use crate::cloud::Class;
use crate::plan::{Group, Intent, Outcome, PortCount, Programmed, Provider, Step};
use crate::status::{self, COUNTS_EVERY, Difference, Facts};
use crate::writes::WriteError;

impl<P: Provider> Reconciler<P> {
    /// Says everything about the shard's Services; the answer is when to come back for what waits.
    pub(super) async fn say(
        &self,
        shard: &P::Shard,
        cases: &[Case],
        intents: &[Intent],
        memory: &mut Memory<P>,
    ) -> Option<Time> {
        let now = self.clock.now();
        let error = self.last_error(shard);
        let mut again = None;
        let mut counts = PortCount::default();
        for case in cases {
            let Case::Ours(wanted) = case else { continue };
            let key = &wanted.service.spec.key;
            let intent = intents.iter().find(|i| i.service == *key);
            let outcome = intent
                .zip(memory.seen.as_ref())
                .map(|(intent, seen)| self.provider.outcome(intent, seen, now));
            for count in outcome.iter().flat_map(|outcome| outcome.ports.values()) {
                counts.join(*count);
            }
            let of = memory.services.entry(key.clone()).or_default();
            self.events_of(wanted, outcome.as_ref(), error.as_ref(), of);
            if let Some(intent) = intent.filter(|_| of.take_over.is_none()) {
                self.advise(&wanted.service.spec, &intent.spec, of);
            }
            let outcome = intent.zip(outcome.as_ref());
            let result = self.write_one(wanted, outcome, error.clone(), of).await;
            let next = result
                .unwrap_or_else(|error| Some(self.write_failed(shard, &error, &mut memory.writes)));
            again = again.into_iter().chain(next).min();
        }
        self.count_targets(shard, counts);
        again
    }

    /// The events that a group's success is worth.
    pub(super) fn tell_of(&self, group: &Group<P::Step>) {
        let index = lock(&self.index);
        let services = group.services.iter().filter_map(|key| index.service(key));
        for service in services {
            for (reason, message) in group.steps.iter().filter_map(Step::event) {
                self.tell(&service.spec, Severity::Normal, reason, &message);
            }
        }
    }

    fn last_error(&self, shard: &P::Shard) -> Option<LastError> {
        let lanes = self.lanes_of(shard);
        let lanes = lock(&lanes);
        let (part, failure) = lanes.failure()?;
        Some(LastError {
            part: part.to_owned(),
            class: failure.error.class.as_str().to_owned(),
            message: failure.error.to_string(),
            since: failure.since,
            next_try: failure.next_try,
        })
    }

    async fn write_one(
        &self,
        wanted: &Wanted,
        outcome: Option<(&Intent, &Outcome)>,
        error: Option<LastError>,
        of: &mut OfService,
    ) -> Result<Option<Time>, WriteError> {
        let now = self.clock.now();
        let (intent, outcome) = outcome.unzip();
        let key = &wanted.service.spec.key;
        // The newest view: the finalizer was perhaps added a moment ago.
        let known = lock(&self.index).service(key).cloned();
        let service = known.as_ref().unwrap_or(&wanted.service);
        let mut notices = wanted.notices.clone();
        notices.extend(self.rights_notice());
        let tail_seconds = self.longest_tail(&service.spec);
        let spec = wanted.spec.as_ref();
        notices.extend(spec.and_then(|spec| tail_at_limit(spec, tail_seconds)));
        let facts = Facts {
            service: &service.spec,
            spec: wanted.spec.as_ref(),
            refusals: &wanted.refusals,
            notices: &notices,
            outcome,
            error,
            take_over: of.take_over.clone(),
            tail_seconds,
        };
        let again = self.write_object(wanted, &facts, of, now).await?;
        if of.take_over.is_some() {
            // The Service's status is another program's.
            return Ok(again);
        }
        let condition = facts.service_condition(&service.conditions, now);
        let (ingress, look) = self.publishable(&service.spec, intent, facts.ingress(), of);
        let conditions = &service.conditions;
        let host = facts.host();
        let spec = &service.spec;
        let body =
            status::service_status(spec, conditions, &ingress, host.as_ref(), Some(condition));
        if let Some(body) = body {
            let written = self.writer.service_status(key, &body).await?;
            self.take_in(|index| index.wrote_service(&written));
            let mut list: Vec<_> = ingress.iter().map(ToString::to_string).collect();
            list.extend(host.map(|host| host.name));
            if service.spec.ingress.is_empty() && !list.is_empty() {
                let message = format!("Ensured load balancer: {}", list.join(", "));
                self.tell(
                    &service.spec,
                    Severity::Normal,
                    "EnsuredLoadBalancer",
                    &message,
                );
            }
        }
        Ok(again.into_iter().chain(look).min())
    }

    async fn write_object(
        &self,
        wanted: &Wanted,
        facts: &Facts<'_>,
        of: &mut OfService,
        now: Time,
    ) -> Result<Option<Time>, WriteError> {
        let Some(spec) = facts.spec else {
            return Ok(None);
        };
        let Some(object) = self.ensure_object(wanted, facts, spec).await? else {
            return Ok(None);
        };
        let status = facts.balancer_status(object.status.as_ref(), now);
        let due = match status::difference(object.status.as_ref(), &status) {
            Difference::None => return Ok(None),
            Difference::Content => now,
            Difference::Counts => of.counts_at.map_or(now, |at| at + COUNTS_EVERY),
        };
        if due > now {
            return Ok(Some(due));
        }
        let written = self.writer.balancer_status(&object, &status).await?;
        self.take_in(|index| index.wrote_balancer(&written));
        of.counts_at = Some(now);
        Ok(None)
    }

    /// The `LoadBalancer` object as it should be, status apart; `None` while it cannot be ours.
    async fn ensure_object(
        &self,
        wanted: &Wanted,
        facts: &Facts<'_>,
        spec: &onehop_core::crd::LoadBalancerSpec,
    ) -> Result<Option<Arc<LoadBalancer>>, WriteError> {
        let key = &facts.service.key;
        let there = lock(&self.index).balancer(key).cloned();
        if let Some(foreign) = there.as_ref().filter(|o| !self.settings.claim.made(o)) {
            let name = foreign.metadata.name.as_deref();
            tracing::warn!(service = %key, name, "a LoadBalancer of another install is in the way");
            return Ok(None);
        }
        let object = status::balancer_object(&self.settings.claim.install, facts.service, spec);
        match there {
            // Somebody deletes it: let it go, the next pass makes a new one.
            Some(there) if there.metadata.deletion_timestamp.is_some() => {
                self.writer.release_balancer(&there).await?;
                Ok(None)
            }
            Some(there) if status::same_object(&there, &object) => Ok(Some(there)),
            _ if wanted.service.spec.deleted.is_some() => Ok(None),
            _ => {
                let written = self.writer.balancer(&object).await?;
                self.take_in(|index| index.wrote_balancer(&written));
                Ok(Some(Arc::new(written)))
            }
        }
    }

    fn events_of(
        &self,
        wanted: &Wanted,
        outcome: Option<&Outcome>,
        error: Option<&LastError>,
        of: &mut OfService,
    ) {
        let service = &wanted.service.spec;
        for (reason, (severity, message)) in by_reason(wanted, outcome) {
            if of.said.is_news(reason, &message) {
                self.tell(service, severity, reason, &message);
            }
        }
        let begun = outcome.is_some_and(|o| matches!(o.programmed, Programmed::Waiting(_)));
        if begun && service.ingress.is_empty() {
            let (reason, message) = ("EnsuringLoadBalancer", "Ensuring load balancer");
            if of.said.is_news(reason, message) {
                self.tell(service, Severity::Normal, reason, message);
            }
        }
        let published = |address| service.ingress.iter().any(|i| i.address == Some(address));
        let fresh = !wanted.addresses.iter().all(|address| published(*address));
        if fresh && outcome.is_some() {
            let list: Vec<_> = wanted.addresses.iter().map(ToString::to_string).collect();
            let message = format!("Assigned {}", list.join(", "));
            if of.said.is_news("IPAllocated", &message) {
                self.tell(service, Severity::Normal, "IPAllocated", &message);
            }
        }
        let reason = error.map(|error| failure(&error.class));
        for over in FAILURES.into_iter().filter(|known| Some(*known) != reason) {
            of.said.over(over);
        }
        if let Some((error, reason)) = error.zip(reason)
            && of.said.is_news(reason, &error.message)
        {
            let message = format!("{}: {}", error.part, error.message);
            self.tell(service, Severity::Warning, reason, &message);
        }
        if let Some(Programmed::Failed(what)) = outcome.map(|o| &o.programmed)
            && of.said.is_news("LoadBalancerFailed", what)
        {
            self.tell(service, Severity::Warning, "LoadBalancerFailed", what);
        }
    }
}

/// Reasons of events about a cloud that did not do what it was asked for (C-100).
const FAILURES: [&str; 2] = ["SyncLoadBalancerFailed", "QuotaExceeded"];

fn failure(class: &str) -> &'static str {
    let [failed, quota] = FAILURES;
    if class == Class::Quota.as_str() {
        quota
    } else {
        failed
    }
}

/// What is refused and what is worth saying, as one message for each reason: what is new is told by the
/// last message of its reason.
fn by_reason(
    wanted: &Wanted,
    outcome: Option<&Outcome>,
) -> BTreeMap<&'static str, (Severity, String)> {
    let refusals = wanted.refusals.iter();
    let refusals = refusals.map(|r| (r.reason, Severity::Warning, &r.message));
    let seen = outcome.into_iter().flat_map(|o| &o.notices);
    let notices = wanted.notices.iter().chain(seen).map(|n| {
        let severity = if n.degrades {
            Severity::Warning
        } else {
            Severity::Normal
        };
        (n.reason, severity, &n.message)
    });
    let mut all: BTreeMap<&'static str, (Severity, String)> = BTreeMap::new();
    for (reason, severity, message) in refusals.chain(notices) {
        let (_, text) = all.entry(reason).or_insert((severity, String::new()));
        if !text.is_empty() {
            text.push_str("; ");
        }
        text.push_str(message);
    }
    all
}
