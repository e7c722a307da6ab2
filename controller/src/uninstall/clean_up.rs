//! After an install is gone (C-82): its entries in `NodeTargets` and its Leases, which only it kept alive. The chart's
//! post-delete hook runs it by `--uninstall-clean-up`, and so does `kubectl onehop uninstall`. Must run after the
//! controller has lost its rights or ended: a leader would write all of it again.

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use onehop_core::crd::{LoadBalancer, NodeInstall, NodeTargets, TargetState};
use onehop_core::id::InstallId;
use onehop_core::time::Time;
use onehop_runtime::clock::Clock;
use serde_json::json;

use super::{UninstallError, all, held};
use crate::node_targets::RELEASED_FOR;

/// Tries for an object that somebody else changes meanwhile.
const TRIES: u32 = 5;

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Nodes whose `NodeTargets` had no other install's entry, and went.
    pub objects: usize,
    /// Nodes whose `NodeTargets` stay for other installs.
    pub entries: usize,
    /// Leases.
    pub leases: usize,
}

/// A Lease, by namespace and name.
pub type LeaseName = (String, String);

/// Removes the install's entries and these Leases. Nothing is removed as long as Services hold load balancers of the
/// install: those still send to what the entries list.
pub async fn clean_up(
    client: &Client,
    install: &InstallId,
    leases: &[LeaseName],
    clock: Clock,
) -> Result<Removed, UninstallError> {
    let services = all(client, "Services").await?;
    let balancers: Vec<LoadBalancer> = all(client, "LoadBalancers").await?;
    let held = held(&services, &balancers, install);
    if !held.is_empty() {
        let install = install.clone();
        return Err(super::StillHeld { install, held }.into());
    }
    entries_and_leases(client, install, leases, clock).await
}

/// The same without asking for Services: whoever lets load balancers go on without a controller has decided so.
pub(crate) async fn entries_and_leases(
    client: &Client,
    install: &InstallId,
    leases: &[LeaseName],
    clock: Clock,
) -> Result<Removed, UninstallError> {
    let mut removed = Removed::default();
    let objects: Vec<NodeTargets> = all(client, "NodeTargets").await?;
    let others = objects.iter().filter(|o| !is_last(o, install));
    let said = others.filter_map(|o| released_until(o.spec.installs.get(install)?));
    if let Some(until) = said.max() {
        // An agent that serves other installs, too, has to see that targets are released (K-21).
        clock
            .sleep_until(until.min(clock.now() + RELEASED_FOR))
            .await;
    }
    for object in objects {
        match remove_entry(client, object, install).await? {
            Some(Entry::Last) => removed.objects += 1,
            Some(Entry::OneOfMany) => removed.entries += 1,
            None => {}
        }
    }
    for (namespace, name) in leases {
        let api: Api<Lease> = Api::namespaced(client.clone(), namespace);
        let what = format!("delete Lease {namespace}/{name}");
        if gone(api.delete(name, &DeleteParams::default()).await, what)?.is_some() {
            removed.leases += 1;
        }
    }
    Ok(removed)
}

/// What an install had of an object.
enum Entry {
    /// All of it.
    Last,
    /// One entry.
    OneOfMany,
}

/// Whether no other install has an entry.
fn is_last(object: &NodeTargets, install: &InstallId) -> bool {
    object.spec.installs.keys().all(|id| id == install)
}

/// Until when released targets are to be seen.
fn released_until(entry: &NodeInstall) -> Option<Time> {
    let targets = entry.targets.iter().map(|t| (t.state, t.since));
    let local = entry.local.iter().map(|l| (l.state, l.since));
    let released = targets
        .chain(local)
        .filter(|(s, _)| *s == TargetState::Released);
    released.map(|(_, since)| since + RELEASED_FOR).max()
}

async fn remove_entry(
    client: &Client,
    mut object: NodeTargets,
    install: &InstallId,
) -> Result<Option<Entry>, UninstallError> {
    let api: Api<NodeTargets> = Api::all(client.clone());
    let name = object.name_any();
    for _ in 0..TRIES {
        let ours = object.spec.installs.contains_key(install);
        if !ours && !object.spec.installs.is_empty() {
            return Ok(None);
        }
        if !is_last(&object, install) {
            let patch = Patch::Merge(json!({
                "metadata": { "uid": object.uid() }, "spec": { "installs": { install.as_str(): null } },
            }));
            let patched = api.patch(&name, &PatchParams::default(), &patch).await;
            let patched = gone(patched, format!("take our entry out of NodeTargets {name}"))?;
            return Ok(patched.map(|_| Entry::OneOfMany));
        }
        let params = DeleteParams {
            // Another install may come meanwhile.
            preconditions: Some(Preconditions {
                uid: object.uid(),
                resource_version: object.resource_version(),
            }),
            ..DeleteParams::default()
        };
        let what = format!("delete NodeTargets {name}");
        match api.delete(&name, &params).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            deleted => return Ok(gone(deleted, what)?.map(|_| Entry::Last)),
        }
        match gone(api.get(&name).await, format!("read NodeTargets {name}"))? {
            Some(now) => object = now,
            None => return Ok(None),
        }
    }
    Err(UninstallError::Changing(name))
}

/// What a call gave; none if the object is not there (any more).
fn gone<T>(result: Result<T, kube::Error>, tried: String) -> Result<Option<T>, UninstallError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(source) => Err(UninstallError::Failed {
            tried,
            source: Box::new(source),
        }),
    }
}
