//! The end of a Service for us: nothing of it is left in the cloud, so its address, its object and our
//! finalizer go, in this order.

use std::collections::BTreeSet;
use std::sync::Arc;

use onehop_core::crd::{LoadBalancer, SERVICE_FINALIZER};
use onehop_core::id::{ServiceKey, ServiceUid};
use onehop_core::time::Time;

use super::lanes::Mark;
use onehop_runtime::events::Severity;

use super::cases::Case;
use super::memory::Memory;
use super::{Reconciler, lock};
use crate::plan::Provider;
use crate::writes::WriteError;

impl<P: Provider> Reconciler<P> {
    /// Finishes what is leaving, once the cloud has nothing of it. A look counts only if no call was
    /// under way when it began: a create may have ended just after it.
    pub(super) async fn clean_up(
        &self,
        shard: &P::Shard,
        cases: &[Case],
        mark: &Mark,
        seen: &P::Observed,
        memory: &mut Memory<P>,
    ) -> Option<Time> {
        let mut left = false;
        for case in cases {
            let key = match case {
                Case::Leaving(service, _) => &service.spec.key,
                Case::Absent(key, _) => key,
                Case::Ours(wanted) => {
                    let spec = &wanted.service.spec;
                    if mark.is_quiet() {
                        let mut keep = self.provider.left_of(&spec.key, seen);
                        keep.insert(spec.uid.clone());
                        self.free(&spec.key, &keep);
                    }
                    left = true;
                    continue;
                }
                Case::Foreign => continue,
            };
            // What another program has, stays: our marks are all that has to be gone.
            let theirs =
                matches!(case, Case::Leaving(service, _) if self.provider.is_theirs(&service.spec));
            let left_of = if theirs {
                !self.provider.disown(shard, seen).is_empty()
            } else {
                !self.provider.left_of(key, seen).is_empty()
            };
            if !mark.is_quiet() || left_of {
                left = true;
                continue;
            }
            if let Err(error) = self.finish(case).await {
                return Some(self.write_failed(shard, &error, &mut memory.writes));
            }
        }
        if !left {
            self.forget(memory);
        }
        None
    }

    async fn finish(&self, case: &Case) -> Result<(), WriteError> {
        // Taken from nodes last (K-27): the cloud sends nothing any more.
        match case {
            Case::Leaving(service, _) => self.unlist_targets(&service.spec.key),
            Case::Absent(key, _) => self.unlist_targets(key),
            Case::Ours(_) | Case::Foreign => {}
        }
        match case {
            Case::Leaving(service, object) => {
                let spec = &service.spec;
                self.release(&spec.key, object.as_ref()).await?;
                if spec.finalizers.iter().any(|f| f == SERVICE_FINALIZER) {
                    self.writer.remove_finalizer(spec).await?;
                }
                if !self.provider.is_theirs(spec) {
                    let message = "Deleted load balancer";
                    self.tell(spec, Severity::Normal, "DeletedLoadBalancer", message);
                }
            }
            Case::Absent(key, Some(object)) => self.release(key, Some(object)).await?,
            Case::Absent(..) | Case::Ours(_) | Case::Foreign => {}
        }
        Ok(())
    }

    async fn release(
        &self,
        key: &ServiceKey,
        object: Option<&Arc<LoadBalancer>>,
    ) -> Result<(), WriteError> {
        self.free(key, &BTreeSet::new());
        match object {
            Some(object) => self.writer.release_balancer(object).await,
            None => Ok(()),
        }
    }

    /// Frees the addresses of all Services that had this name, but of those UIDs: an earlier one may
    /// have gone without our finalizer. A freed address may be what others wait for (C-23).
    fn free(&self, key: &ServiceKey, keep: &BTreeSet<ServiceUid>) {
        if lock(&self.book).release(key, keep) {
            self.pass_on_news();
        }
    }

    /// Forgets a shard.
    pub(super) fn forget(&self, memory: &mut Memory<P>) {
        let mut index = lock(&self.index);
        for (key, of) in &memory.services {
            index.set_interest(key, &of.interest, &BTreeSet::new());
        }
        *memory = Memory::default();
    }
}
