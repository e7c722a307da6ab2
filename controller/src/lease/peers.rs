//! The Leases of other installs, for as long as we want to lead: who is alive, and what they claim.

use std::collections::BTreeMap;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use onehop_core::crd::INSTALL_LABEL;
use onehop_runtime::clock::Clock;

use super::claims::Claims;
use super::elector::Election;
use super::evaluate::{Record, Sighting, Timing};

type Place = (String, String);

/// The other installs.
pub(super) struct Peers {
    leases: Api<Lease>,
    ours: Place,
    seen: BTreeMap<Place, Sighting>,
}

impl Peers {
    pub(super) fn new(client: &Client, election: &Election) -> Self {
        Self {
            leases: Api::all(client.clone()),
            ours: (election.namespace.clone(), election.name.clone()),
            seen: BTreeMap::new(),
        }
    }

    /// Lists them; the answer names one that is alive and claims what we claim. One that we see for
    /// the first time counts as alive: whether it renews takes its lease duration to find out.
    pub(super) async fn overlap(
        &mut self,
        claims: &Claims,
        timing: &Timing,
        clock: Clock,
    ) -> Result<Option<String>, kube::Error> {
        let list = self
            .leases
            .list(&ListParams::default().labels(INSTALL_LABEL))
            .await?;
        let now = clock.now();
        let mut before = std::mem::take(&mut self.seen);
        let mut found = None;
        for lease in &list.items {
            let place = (lease.namespace().unwrap_or_default(), lease.name_any());
            if place == self.ours {
                continue;
            }
            let seen = Sighting::after(before.remove(&place), Record::from(lease), now);
            let alive = seen.expires(timing).is_some_and(|until| now < until);
            let theirs = Claims::read(lease.annotations()).filter(|_| alive);
            if let Some(what) = theirs.and_then(|theirs| claims.overlap(&theirs)) {
                found.get_or_insert_with(|| words(lease, &place, &seen, &what));
            }
            self.seen.insert(place, seen);
        }
        Ok(found)
    }
}

fn words(lease: &Lease, place: &Place, seen: &Sighting, what: &str) -> String {
    let install = lease.labels().get(INSTALL_LABEL).map_or("", String::as_str);
    let holder = seen.record.holder.as_deref().unwrap_or_default();
    let (namespace, name) = place;
    format!(
        "install {install} (Lease {namespace}/{name}, held by {holder}) claims {what} too; \
         change --load-balancer-class or --claim-classless of one of them"
    )
}
