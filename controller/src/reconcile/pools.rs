//! Saying how pools stand: their status, the finalizer that keeps a pool in use (C-27), and the numbers of
//! addresses for alerts (C-35, C-38). Woken by every change of the book.

use std::collections::BTreeSet;
use std::time::Duration;

use onehop_core::crd::{AddressPoolStatus, POOL_FINALIZER};

use super::{Reconciler, lock};
use crate::index::KnownPool;
use crate::metrics::{OfFamily, PoolsAbove};
use crate::plan::Provider;
use crate::writes::WriteError;

/// Between two rounds: many changes at once are one write.
const ROUND_EVERY: Duration = Duration::from_millis(250);
/// Shares of a pool in use that alerts ask for.
pub const LEVELS: [u32; 4] = [75, 85, 95, 100];

impl<P: Provider> Reconciler<P> {
    /// Goes on for ever.
    pub(super) async fn keep_pools(&self) {
        loop {
            tokio::select! {
                () = self.pools_changed.notified() => {}
                () = self.clock.sleep(self.settings.sweep) => {}
            }
            self.try_taken_again();
            self.measure_leaks();
            self.say_pools().await;
            self.clock.sleep(ROUND_EVERY).await;
        }
    }

    async fn say_pools(&self) {
        let pools: Vec<KnownPool> = lock(&self.index).pools().cloned().collect();
        let objects: Vec<_> = pools.iter().map(|pool| pool.object.clone()).collect();
        let statuses = self.provider.pool_statuses(&objects, &lock(&self.book));
        for level in LEVELS {
            let above = statuses
                .values()
                .filter(|status| is_above(status, level))
                .count();
            let above = i64::try_from(above).unwrap_or(i64::MAX);
            self.measures
                .pools_above
                .get_or_create(&PoolsAbove { percent: level })
                .set(above);
        }
        let by_family = self.provider.pool_use(&objects, &lock(&self.book));
        for (family, (size, used)) in by_family {
            let family = OfFamily {
                family: family.as_str(),
            };
            let measures = &self.measures;
            measures.pool_addresses.get_or_create(&family).set(size);
            measures
                .pool_addresses_in_use
                .get_or_create(&family)
                .set(used);
        }
        for pool in &pools {
            let status = pool
                .object
                .metadata
                .name
                .as_ref()
                .and_then(|name| statuses.get(name));
            let Some(status) = status else { continue };
            if let Err(error) = self.say_pool(pool, status).await {
                self.measures.write_failures.inc();
                tracing::warn!(%error, "an AddressPool was not written, trying again");
                self.pools_changed.notify_one();
            }
        }
    }

    async fn say_pool(
        &self,
        pool: &KnownPool,
        status: &AddressPoolStatus,
    ) -> Result<(), WriteError> {
        let mut pool = pool.clone();
        let finalizers = pool
            .object
            .metadata
            .finalizers
            .as_deref()
            .unwrap_or_default();
        let kept = finalizers.iter().any(|f| f == POOL_FINALIZER);
        let wanted = status.assigned > 0;
        // Nothing can be put on what is being deleted.
        if kept != wanted && (kept || pool.object.metadata.deletion_timestamp.is_none()) {
            let written = self.writer.pool_finalizer(&pool.object, wanted).await?;
            let gone = pool.object.metadata.deletion_timestamp.is_some();
            if gone {
                return Ok(());
            }
            pool.object.metadata = written.metadata;
        }
        if pool.status.as_ref() != Some(status) {
            let written = self.writer.pool_status(&pool.object, status).await?;
            self.take_in(|index| index.wrote_pool(&written));
        }
        Ok(())
    }

    /// Addresses that the book has for Services which are not there and of which the cloud has nothing.
    fn measure_leaks(&self) {
        let index = lock(&self.index);
        let suspects: BTreeSet<_> = lock(&self.suspects).keys().cloned().collect();
        let book = lock(&self.book);
        let leaked = book.holders().filter(|holder| {
            let key = &holder.service;
            let there = index.service(key).is_some_and(|s| s.spec.uid == holder.uid);
            let leaving = index
                .balancer(key)
                .is_some_and(|o| o.spec.service_uid == holder.uid);
            let in_cloud = self
                .provider
                .shards(key)
                .iter()
                .any(|s| suspects.contains(s));
            !there && !leaving && !in_cloud
        });
        let leaked = i64::try_from(leaked.count()).unwrap_or(i64::MAX);
        self.measures.leaked.set(leaked);
    }
}

fn is_above(status: &AddressPoolStatus, percent: u32) -> bool {
    let all = status.assigned.saturating_add(status.available);
    all > 0 && status.assigned.saturating_mul(100) >= all.saturating_mul(i64::from(percent))
}
