//! What was read last, shared by all Services: a look costs nothing while it is fresh (AZ-106, AZ-375).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onehop_core::crd::LoadBalancerSpec;
use onehop_core::id::{ServiceKey, ServiceUid};
use onehop_core::time::Time;
use serde_json::Value;

use super::measures::Measures;
use crate::cloud::azure::document::{name, text};
use crate::cloud::azure::model::{Documents, Met, Observed, Roster, Standing, Times};
use crate::cloud::azure::rights::Missing;
use crate::cloud::azure::settings::{Kind, Side};

/// How old what was read may be. Others' changes are seen this late; Azure's own controllers keep it for 120 s (AZ-375).
const FRESH: Duration = Duration::from_secs(45);

/// What was read, and whom we have met.
#[derive(Debug, Default)]
pub(super) struct Store {
    state: Mutex<State>,
    measures: Measures,
}

#[derive(Debug, Default)]
struct State {
    documents: Arc<Documents>,
    times: Arc<Times>,
    roster: Roster,
    read_at: Option<Time>,
    version: u64,
    /// Services that are not yet served as they ask, each since when it asks so.
    asked: BTreeMap<ServiceKey, Time>,
    missing: Arc<Vec<Missing>>,
    looked_for_rights: bool,
    zones: Option<(Vec<String>, Time)>,
    /// What was found out of them, until documents or roster change.
    standing: Option<Arc<Standing>>,
}

impl Store {
    fn state(&self) -> MutexGuard<'_, State> {
        // No critical section can leave it half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// With metrics of what is read.
    pub(super) fn measured_by(&mut self, measures: Measures) {
        self.measures = measures;
    }

    /// Whether everything has to be read again.
    pub(super) fn is_stale(&self, now: Time) -> bool {
        self.state().read_at.is_none_or(|at| now.since(at) >= FRESH)
    }

    /// What was read may no longer be true.
    pub(super) fn doubt(&self) {
        self.state().read_at = None;
    }

    /// Counts changes, so that a reading that was overtaken by a write is known.
    pub(super) fn version(&self) -> u64 {
        self.state().version
    }

    /// Everything, as it was read after `version`. Where something was written meanwhile, that is newer.
    pub(super) fn replace(&self, documents: Documents, version: u64, now: Time) {
        let mut state = self.state();
        if state.version == version && state.set(documents, now) {
            self.measures.show(&state.documents);
        }
        state.read_at = Some(now);
    }

    /// A load balancer as it is now.
    pub(super) fn set_balancer(&self, kind: Kind, document: Option<Value>, now: Time) {
        self.change(now, |documents| match document {
            Some(document) => drop(documents.balancers.insert(kind, document)),
            None => drop(documents.balancers.remove(&kind)),
        });
    }

    /// A public IP.
    pub(super) fn public_ip(&self, id: &str) -> Option<Value> {
        let documents = self.documents();
        let is_it = |pip: &&Value| text(pip, &["id"]).is_some_and(|it| it.eq_ignore_ascii_case(id));
        documents.public_ips.iter().find(is_it).cloned()
    }

    /// A public IP as it is now.
    pub(super) fn set_public_ip(&self, id: &str, document: Option<Value>, now: Time) {
        self.change(now, |documents| {
            let all = &mut documents.public_ips;
            all.retain(|pip| text(pip, &["id"]).is_none_or(|it| !it.eq_ignore_ascii_case(id)));
            all.extend(document);
            all.sort_by(|a, b| name(a).cmp(name(b)));
        });
    }

    /// A security group as it is now.
    pub(super) fn set_security(&self, side: Side, document: Option<Value>, now: Time) {
        self.change(now, |documents| match side {
            Side::Nodes => documents.security = document,
            Side::Pods => documents.pod_security = document,
        });
    }

    fn change(&self, now: Time, change: impl FnOnce(&mut Documents)) {
        let mut state = self.state();
        state.version += 1;
        let mut documents = Documents::clone(&state.documents);
        change(&mut documents);
        if state.set(documents, now) {
            self.measures.show(&state.documents);
        }
    }

    pub(super) fn documents(&self) -> Arc<Documents> {
        Arc::clone(&self.state().documents)
    }

    pub(super) fn roster(&self) -> Roster {
        self.state().roster.clone()
    }

    /// Notes a Service, so that what it has is known by its name.
    pub(super) fn meet(&self, service: &ServiceKey, uid: &ServiceUid) {
        if !uid.as_str().is_empty() {
            self.state().met(service).uids.insert(uid.clone());
        }
    }

    /// Notes what a Service asks for; says whether that is something else than before.
    pub(super) fn wishes(&self, service: &ServiceKey, spec: &LoadBalancerSpec) -> bool {
        let mut state = self.state();
        let met = state.met(service);
        met.uids.insert(spec.service_uid.clone());
        if met.spec.as_deref() == Some(spec) {
            return false;
        }
        met.spec = Some(Arc::new(spec.clone()));
        state.standing = None;
        true
    }

    /// A Service asks for something else since then.
    pub(super) fn changed(&self, service: &ServiceKey, at: Time) {
        self.state().asked.insert(service.clone(), at);
    }

    /// Since when a Service asked for what it has now, if nobody has asked that before.
    pub(super) fn served(&self, service: &ServiceKey) -> Option<Time> {
        self.state().asked.remove(service)
    }

    /// A Service asks for nothing any more.
    pub(super) fn wishes_nothing(&self, service: &ServiceKey) {
        let mut state = self.state();
        state.asked.remove(service);
        if state.met(service).spec.take().is_some() {
            state.standing = None;
        }
    }

    /// Resource groups beside our own that have public IPs of Services (AZ-049).
    pub(super) fn resource_groups(&self) -> Vec<String> {
        let state = self.state();
        let specs = state
            .roster
            .services
            .values()
            .filter_map(|met| met.spec.as_ref());
        let groups =
            specs.filter_map(|spec| crate::cloud::azure::model::wishes(spec).resource_group);
        let mut groups: Vec<String> = groups.map(|group| group.to_lowercase()).collect();
        groups.sort();
        groups.dedup();
        groups
    }

    /// A look at one Service.
    pub(super) fn look(&self, service: &ServiceKey) -> Observed {
        let mut state = self.state();
        let standing = state.standing();
        let (uids, asks) = {
            let met = state.met(service);
            (met.uids.clone(), met.spec.is_some())
        };
        Observed {
            service: service.clone(),
            uids,
            asks,
            documents: Arc::clone(&state.documents),
            times: Arc::clone(&state.times),
            missing: Arc::clone(&state.missing),
            standing,
        }
    }

    /// The zones of the region, and when that was found out.
    pub(super) fn zones(&self) -> Option<(Vec<String>, Time)> {
        self.state().zones.clone()
    }

    /// The zones of the region.
    pub(super) fn set_zones(&self, zones: Vec<String>, at: Time) {
        self.state().zones = Some((zones, at));
    }

    /// What we may not do, if that was found out.
    pub(super) fn missing(&self) -> Option<Arc<Vec<Missing>>> {
        let state = self.state();
        state.looked_for_rights.then(|| Arc::clone(&state.missing))
    }

    /// What we may not do.
    pub(super) fn set_missing(&self, missing: Vec<Missing>) {
        let mut state = self.state();
        state.looked_for_rights = true;
        state.missing = Arc::new(missing);
    }
}

impl State {
    fn standing(&mut self) -> Arc<Standing> {
        let roster = &self.roster;
        let make = || Arc::new(Standing::new(roster.clone()));
        Arc::clone(self.standing.get_or_insert_with(make))
    }

    fn met(&mut self, service: &ServiceKey) -> &mut Met {
        self.roster.services.entry(service.clone()).or_default()
    }

    /// Says whether anything is another one now.
    fn set(&mut self, documents: Documents, now: Time) -> bool {
        if *self.documents == documents {
            return false;
        }
        let mut times = Times::clone(&self.times);
        times.note(&documents, now);
        self.documents = Arc::new(documents);
        self.times = Arc::new(times);
        self.standing = None;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn az375_what_was_read_is_kept_for_two_minutes_at_most_and_no_longer_once_it_is_doubted() {
        let now = Time::from_millis(1_000_000);
        let store = Store::default();
        assert!(store.is_stale(now), "nothing was read");
        store.replace(Documents::default(), store.version(), now);
        assert!(!store.is_stale(now + Duration::from_secs(1)), "AZ-375");
        assert!(store.is_stale(now + Duration::from_mins(2)), "AZ-375");
        store.doubt();
        assert!(store.is_stale(now), "AZ-366: after a write that lost");
        // A reading that a write has overtaken does not undo it.
        let version = store.version();
        let written = serde_json::json!({"name": "lb", "etag": "2"});
        store.set_balancer(Kind::External, Some(written.clone()), now);
        store.replace(Documents::default(), version, now);
        let there = store.documents().balancers.get(&Kind::External).cloned();
        assert_eq!(there, Some(written), "AZ-375: as it was read after its PUT");
    }
}
