//! Services that another program has, or is to have again: what is written about them is what the provider's custody says
//! and nothing else (AWS-129, AWS-130).

use onehop_core::crd::{RELEASE_ANNOTATION, SERVICE_FINALIZER, TakeOver, TakeOverStage};
use onehop_core::id::ServiceKey;
use onehop_core::service::ServiceSpec;
use onehop_core::time::Time;
use onehop_runtime::events::Severity;

use super::cases::Case;
use super::memory::Memory;
use super::{Reconciler, lock};
use crate::plan::custody::{Act, Custody, Handover, Release};
use crate::plan::{HostName, Intent, Notice, Plan, Provider};
use crate::writes::WriteError;

/// The calls to make instead of the usual plan, and when to come back.
type Theirs<P> = (Plan<<P as Provider>::Step>, Option<Time>);

impl<P: Provider> Reconciler<P> {
    /// Whose the shard's Services are; none where all are ours to act on.
    pub(super) async fn custody(
        &self,
        shard: &P::Shard,
        cases: &mut [Case],
        intents: &[Intent],
        memory: &mut Memory<P>,
    ) -> Result<Option<Theirs<P>>, WriteError> {
        let now = self.clock.now();
        let Some(seen) = memory.seen.as_ref() else {
            return Ok(None);
        };
        let mut theirs = None;
        for case in cases {
            let Case::Ours(wanted) = case else { continue };
            let service = wanted.service.spec.clone();
            let of = memory.services.entry(service.key.clone()).or_default();
            of.take_over = None;
            let Some(intent) = intents.iter().find(|i| i.service == service.key) else {
                continue;
            };
            let release = self.release_of(&service.key);
            match self.provider.custody(&service, intent, seen, release, now) {
                Custody::Ours => self.ensure_finalizer(&service).await?,
                Custody::Theirs(handover) => {
                    of.take_over = Some(handover.report.clone());
                    wanted.notices.push(notice(&handover.report));
                    theirs = Some(self.hand_over(shard, &service, *handover).await?);
                }
            }
        }
        Ok(theirs)
    }

    /// Whether somebody has asked for a Service's load balancer to be given back.
    fn release_of(&self, service: &ServiceKey) -> Release {
        let index = lock(&self.index);
        let object = index
            .balancer(service)
            .filter(|o| self.settings.claim.made(o));
        let annotations = object.and_then(|o| o.metadata.annotations.as_ref());
        if annotations.is_some_and(|all| all.contains_key(RELEASE_ANNOTATION)) {
            Release::GiveBack
        } else {
            Release::Keep
        }
    }

    async fn hand_over(
        &self,
        shard: &P::Shard,
        service: &ServiceSpec,
        handover: Handover<P::Step>,
    ) -> Result<Theirs<P>, WriteError> {
        let nothing = Plan::default();
        match handover.act {
            Act::Look => Ok((nothing, handover.again)),
            Act::Cloud(plan) => Ok((plan, handover.again)),
            Act::OnceBound(plan) => {
                let bound = !self.writer.bindings(&service.key).await?.is_empty();
                Ok(if bound {
                    (plan, None)
                } else {
                    (nothing, handover.again)
                })
            }
            Act::Take => {
                if self.provider.they_bind() {
                    for binding in self.writer.bindings(&service.key).await? {
                        self.writer.remove_binding(&binding).await?;
                    }
                }
                // Whatever became of its targets meanwhile is seen, and put right, by the next pass.
                self.provider.distrust_members(shard);
                let theirs = self.provider.their_finalizer();
                self.swap(service, theirs, Some(SERVICE_FINALIZER)).await?;
                let text = format!(
                    "Took over the load balancer from {}",
                    self.provider.their_name()
                );
                self.tell(service, Severity::Normal, "TakenOver", &text);
                Ok((nothing, Some(self.clock.now())))
            }
            Act::Give => {
                let theirs = self.provider.their_finalizer();
                self.swap(service, Some(SERVICE_FINALIZER), theirs).await?;
                self.forget_condition(service).await?;
                self.unlist_targets(&service.key);
                let text = format!(
                    "Gave the load balancer back to {}",
                    self.provider.their_name()
                );
                self.tell(service, Severity::Normal, "GivenBack", &text);
                Ok((nothing, Some(self.clock.now())))
            }
        }
    }

    async fn swap(
        &self,
        service: &ServiceSpec,
        from: Option<&str>,
        to: Option<&str>,
    ) -> Result<(), WriteError> {
        let (Some(from), Some(to)) = (from, to) else {
            // A provider without a peer asks for no swap.
            return Ok(());
        };
        let written = self.writer.swap_finalizers(service, from, to).await?;
        self.take_in(|index| index.wrote_service(&written));
        Ok(())
    }

    /// Takes our condition off a Service and leaves what is published.
    async fn forget_condition(&self, service: &ServiceSpec) -> Result<(), WriteError> {
        let conditions = lock(&self.index)
            .service(&service.key)
            .map(|s| s.conditions.clone());
        let published: Vec<_> = service.ingress.iter().filter_map(|i| i.address).collect();
        let host = service.ingress.iter().find_map(|entry| {
            let name = entry.hostname.clone()?;
            let ports = entry.ports.clone();
            Some(HostName { name, ports })
        });
        let conditions = conditions.unwrap_or_default();
        let body =
            crate::status::service_status(service, &conditions, &published, host.as_ref(), None);
        if let Some(body) = body {
            let written = self.writer.service_status(&service.key, &body).await?;
            self.take_in(|index| index.wrote_service(&written));
        }
        Ok(())
    }
}

/// What is said of a Service that another program has.
fn notice(report: &TakeOver) -> Notice {
    let blocked = !report.blocked.is_empty();
    let reason = match report.stage {
        TakeOverStage::Conflict => "OwnershipConflict",
        _ if blocked => "TakeOverBlocked",
        _ => "TakeOver",
    };
    let what = match (blocked, report.steps.is_empty()) {
        (true, _) => report.blocked.join("; "),
        (false, false) => format!("to do: {}", report.steps.join("; ")),
        (false, true) => "nothing is left to do".to_owned(),
    };
    let message = format!("{}: {what}", report.stage.as_str());
    Notice {
        reason,
        message,
        degrades: blocked,
    }
}
