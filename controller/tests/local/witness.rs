//! Stands before the cloud's API and notes pods that are registered before their nodes are told of them; and what stands
//! between a controller and the nodes.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use e2e_apiserver::{ApiServer, Identity};
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::client::Body as KubeBody;
use kube::{Api, Client};
use onehop_core::crd::{NodeTargets, TargetState};
use onehop_runtime::clock::Clock;
use serde_json::Value;
use tower::Service as _;

/// What it has seen.
#[derive(Clone)]
pub(crate) struct Witness {
    client: Client,
    untold: Arc<Mutex<Vec<IpAddr>>>,
}

impl Witness {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            untold: Arc::default(),
        }
    }

    /// The cloud's API, watched.
    pub(crate) fn over(&self, api: Router) -> Router {
        api.layer(from_fn_with_state(self.clone(), look))
    }

    pub(crate) fn untold(&self) -> Vec<IpAddr> {
        self.untold.lock().unwrap().clone()
    }

    /// Addresses that this moment's `NodeTargets` list, and those of nodes, which need no listing.
    async fn known(&self) -> BTreeSet<IpAddr> {
        let all = ListParams::default();
        let objects: Api<NodeTargets> = Api::all(self.client.clone());
        // None where a test took the kind away: then nobody is told of anything.
        let objects = objects
            .list(&all)
            .await
            .map(|l| l.items)
            .unwrap_or_default();
        let installs = objects.iter().flat_map(|o| o.spec.installs.values());
        let targets = installs.flat_map(|install| &install.targets);
        let listed = targets.filter(|t| t.state != TargetState::Released);
        let listed = listed.map(|t| t.address);
        let nodes: Api<Node> = Api::all(self.client.clone());
        let nodes = nodes.list(&all).await.unwrap().items;
        let addresses = nodes.into_iter().filter_map(|n| n.status?.addresses);
        let addresses = addresses.flatten().filter_map(|a| a.address.parse().ok());
        listed.chain(addresses).collect()
    }
}

async fn look(State(witness): State<Witness>, request: Request, next: Next) -> Response {
    let registers = request.method() == Method::POST && request.uri().path().ends_with("/targets");
    if !registers {
        return next.run(request).await;
    }
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let asked: Value = serde_json::from_slice(&body).unwrap();
    let asked = asked["targets"].as_array().unwrap().iter();
    let asked = asked.map(|t| t["address"].as_str().unwrap().parse().unwrap());
    let known = witness.known().await;
    let untold = asked.filter(|address| !known.contains(address));
    witness.untold.lock().unwrap().extend(untold);
    next.run(Request::from_parts(parts, Body::from(body))).await
}

/// How what a controller writes to nodes arrives.
#[derive(Clone, Copy)]
pub(crate) enum ToNodes {
    AtOnce,
    After(Duration),
    Never,
    /// At once; but what they were told before is listed that late.
    ListedAfter(Duration),
}

impl ToNodes {
    /// A client of the API server whose writes to nodes are that slow.
    pub(crate) fn client(self, server: &ApiServer, identity: &Identity, clock: Clock) -> Client {
        let transport = server.transport(identity);
        let service = tower::service_fn(move |request: http::Request<KubeBody>| {
            let mut transport = transport.clone();
            let to_node =
                request.method() == Method::PATCH && request.uri().path().contains("/nodetargets/");
            let lists = request.uri().path().ends_with("/nodetargets");
            async move {
                match self {
                    Self::After(time) if to_node => clock.sleep(time).await,
                    Self::ListedAfter(time) if lists => clock.sleep(time).await,
                    Self::Never if to_node => std::future::pending().await,
                    _ => {}
                }
                transport.call(request).await
            }
        });
        Client::new(service, "default")
    }
}
