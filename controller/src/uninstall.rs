//! Before and after an uninstall. Here is the check before it (C-80): which Services still hold a load balancer of this
//! install. The chart's pre-delete hook runs it by `--uninstall-check`; it reads only, and never changes anything.

mod clean_up;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Service;
use kube::api::ListParams;
use kube::{Api, Client, Resource, ResourceExt};
use onehop_core::crd::{INSTALL_LABEL, LoadBalancer, SERVICE_FINALIZER};
use onehop_core::id::InstallId;
use serde::de::DeserializeOwned;

pub(crate) use clean_up::entries_and_leases;
pub use clean_up::{LeaseName, Removed, clean_up};

/// Objects of one list call.
const PAGE: u32 = 500;
/// Services that are named; of more, the number is told.
const NAMED: usize = 50;

/// Why an uninstall has to wait.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} still held by the load balancers of install {install}: {}. Delete {them}, or change {their} type or class, and \
     uninstall once they are gone: the controller then removes their load balancers. Without it nobody takes the \
     finalizer {SERVICE_FINALIZER} away, and they hang when they are deleted",
    count(held.len()),
    names(held),
    them = if held.len() == 1 { "it" } else { "them" },
    their = if held.len() == 1 { "its" } else { "their" },
)]
pub struct StillHeld {
    /// The install.
    pub install: InstallId,
    /// `namespace/name` of each Service, in order.
    pub held: Vec<String>,
}

/// Why an install cannot go, or cannot be cleaned up after.
#[derive(Debug, thiserror::Error)]
pub enum UninstallError {
    /// Not yet.
    #[error(transparent)]
    StillHeld(#[from] StillHeld),
    /// It cannot be told.
    #[error("cannot list {what}, so it is not known whether Services are left: {source}")]
    List {
        /// Kind of object.
        what: &'static str,
        /// What came back.
        source: Box<kube::Error>,
    },
    /// It cannot be removed.
    #[error("cannot {tried}: {source}")]
    Failed {
        /// What was tried.
        tried: String,
        /// What came back.
        source: Box<kube::Error>,
    },
    /// Somebody writes it all the time.
    #[error(
        "cannot delete NodeTargets {0}, which somebody changes all the time: is the install still running?"
    )]
    Changing(String),
}

/// Succeeds when no Service is left.
pub async fn check(client: &Client, install: &InstallId) -> Result<(), UninstallError> {
    let services: Vec<Service> = all(client, "Services").await?;
    let balancers: Vec<LoadBalancer> = all(client, "LoadBalancers").await?;
    let held = held(&services, &balancers, install);
    if held.is_empty() {
        return Ok(());
    }
    let install = install.clone();
    Err(StillHeld { install, held }.into())
}

/// The Services with our finalizer, but for those of another install: their `LoadBalancer` object says whose they are.
fn held(services: &[Service], balancers: &[LoadBalancer], install: &InstallId) -> Vec<String> {
    let balancers: BTreeMap<String, &LoadBalancer> =
        balancers.iter().map(|b| (place(b), b)).collect();
    let held = services
        .iter()
        .map(|service| (place(service), service))
        .filter(|(name, service)| is_held(service, balancers.get(name).copied(), install));
    let mut held: Vec<String> = held.map(|(name, _)| name).collect();
    held.sort();
    held
}

/// Whether a Service holds a load balancer of this install.
pub(crate) fn is_held(
    service: &Service,
    object: Option<&LoadBalancer>,
    install: &InstallId,
) -> bool {
    let owner = object.and_then(|object| object.labels().get(INSTALL_LABEL));
    // Without an owner nobody says that it is another's.
    let ours = owner.is_none_or(|owner| owner == install.as_str());
    ours && service.finalizers().iter().any(|f| f == SERVICE_FINALIZER)
}

fn place<K: ResourceExt>(object: &K) -> String {
    let namespace = object.namespace().unwrap_or_default();
    format!("{namespace}/{}", object.name_any())
}

fn count(services: usize) -> String {
    match services {
        1 => "1 Service is".to_owned(),
        more => format!("{more} Services are"),
    }
}

fn names(held: &[String]) -> String {
    let named = held[..held.len().min(NAMED)].join(", ");
    match held.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// Every object of a kind, page by page.
pub(crate) async fn all<K>(client: &Client, what: &'static str) -> Result<Vec<K>, UninstallError>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let api: Api<K> = Api::all(client.clone());
    let mut params = ListParams::default().limit(PAGE);
    let mut found = Vec::new();
    loop {
        let page = match api.list(&params).await {
            // Without the object type there is no such object.
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(found),
            page => page.map_err(|source| UninstallError::List {
                what,
                source: Box::new(source),
            })?,
        };
        found.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn service(name: &str, finalizers: &[&str]) -> Service {
        let metadata = json!({ "namespace": "shop", "name": name, "finalizers": finalizers });
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    fn balancer(name: &str, labels: Value) -> LoadBalancer {
        serde_json::from_value(json!({
            "apiVersion": "onehop.dev/v1alpha1", "kind": "LoadBalancer",
            "metadata": { "namespace": "shop", "name": name, "labels": labels },
            "spec": {
                "provider": "local", "class": "onehop.dev/local", "serviceUID": "u", "scheme": "internal",
                "families": ["IPv4"], "ports": [], "sources": [],
                "membership": {
                    "policy": "zero-drop", "floorPercent": 100, "holdMaxSeconds": 600,
                    "tailMaxSeconds": 0, "lateFlows": "forward",
                },
            },
        }))
        .unwrap()
    }

    #[test]
    fn c80_services_of_this_install_are_held_and_others_are_not() {
        let services = [
            service("web", &["example.com/other", SERVICE_FINALIZER]),
            service("api", &[SERVICE_FINALIZER]),
            service("green", &[SERVICE_FINALIZER]),
            service("peer", &["service.k8s.aws/resources"]),
            service("plain", &[]),
        ];
        let balancers = [
            balancer("web", json!({ INSTALL_LABEL: "blue" })),
            balancer("green", json!({ INSTALL_LABEL: "green" })),
        ];
        assert_eq!(
            held(&services, &balancers, &"blue".into()),
            ["shop/api", "shop/web"],
            "api has no LoadBalancer object yet: it may be ours"
        );
        assert_eq!(
            held(&services[3..], &balancers, &"blue".into()),
            [] as [&str; 0]
        );
    }

    #[test]
    fn c80_the_message_names_them_and_what_to_do() {
        let said = |held: usize| {
            let held = (0..held).map(|n| format!("shop/s{n}")).collect();
            let install = "blue".into();
            StillHeld { install, held }.to_string()
        };
        assert!(said(1).starts_with(
            "1 Service is still held by the load balancers of install blue: shop/s0. Delete it, or change its type"
        ));
        assert!(said(2).contains("2 Services are still held"));
        assert!(said(2).contains("shop/s0, shop/s1. Delete them"));
        assert!(said(60).contains("shop/s49 and 10 more."));
    }
}
