//! The cloud as Azure shows it: Resource Manager with Microsoft.Network, and a token endpoint, over the one engine
//! (profile `azure`).
//!
//! Documents are kept as they were sent, with what the server adds: ids, `ETag`s, states, back-references. Writes answer at
//! once and go on as operations, as the specification of the Azure provider has recorded (AZ-360 to AZ-369). Only what the
//! controller and its judges call is served.

mod check;
mod complete;
mod error;
mod links;
mod operations;
mod resources;
mod rights;
mod serve;
mod store;
mod tls;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use ipnet::{IpNet, Ipv4Net};
use onehop_core::time::Time;
use serde_json::Value;

use crate::cloud::Cloud;
use resources::Subscription;

pub use tls::Certificate;

/// Azure over a cloud. Clones share it.
#[derive(Clone)]
pub struct Azure {
    cloud: Cloud,
    subscription: Arc<Mutex<Subscription>>,
}

/// How a subscription begins.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Id of the subscription.
    pub subscription: String,
    /// Region.
    pub location: String,
    /// Resource groups that there are.
    pub resource_groups: Vec<String>,
    /// Client ids with their secrets.
    pub clients: BTreeMap<String, String>,
    /// From where public IPs are given.
    pub public: Ipv4Net,
    /// Availability zones of the region.
    pub zones: Vec<String>,
    /// Subnets by id, each with its range: of internal frontends.
    pub subnets: BTreeMap<String, Ipv4Net>,
    /// The IPv6 address that is given in place of an IPv4 one of these ranges.
    pub twin: fn(Ipv4Addr) -> Ipv6Addr,
    /// Documents that are there: id and document.
    pub documents: Vec<(String, Value)>,
    /// Ranges of pods.
    pub pods: Vec<IpNet>,
    /// Actions that the caller may do; all if none are given (AZ-231).
    pub actions: Option<BTreeSet<String>>,
    /// How long an operation takes, in time of the cloud.
    pub operation: Duration,
}

/// One write, as it was asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// `PUT` or `DELETE`.
    pub method: String,
    /// Path of the resource.
    pub id: String,
    /// Its `ETag` condition.
    pub if_match: Option<String>,
    /// Its document.
    pub body: Value,
    /// What a GET showed just before.
    pub before: Option<Value>,
    /// Status of the answer.
    pub status: u16,
    /// When, in time of the cloud.
    pub at: Time,
}

/// How a PUT says that it goes on after its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GoesOn {
    /// By the URL of an operation (AZ-360).
    #[default]
    Operation,
    /// By its own `provisioningState`, and no header (AZ-362).
    Resource,
    /// By 202 and a URL that answers so until it is done (AZ-363).
    Location,
}

/// What the cloud does that it should not, or not always.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Refuses writes of existing resources without `If-Match` (AZ-493).
    pub need_if_match: bool,
    /// Codes with which the next writes to a kind of resource fail: at once, with this status. Of `permissions` and
    /// `denyAssignments` the next looks.
    pub refuse: Vec<(String, u16, &'static str)>,
    /// Kinds of resource of which the next operation ends as failed, with this code (AZ-365).
    pub fail_operation: Vec<(String, &'static str)>,
    /// Kinds of resource of which the next write is made and its answer lost (AZ-409).
    pub lose_answer: Vec<String>,
    /// The next answer asks for a token with claims (AZ-376).
    pub challenge: bool,
    /// How writes say that they go on.
    pub goes_on: GoesOn,
    /// Actions that the caller may not do.
    pub denied: Vec<String>,
    /// Deny assignments: scope, and a pattern of actions there (AZ-496).
    pub deny_assignments: Vec<(String, String)>,
}

/// The actions of a custom role, as its file lists them.
pub fn actions_of_role(role: &Value) -> BTreeSet<String> {
    let actions = role["Actions"].as_array().into_iter().flatten();
    actions
        .filter_map(|action| action.as_str().map(str::to_owned))
        .collect()
}

impl Azure {
    /// A subscription with what `setup` says.
    pub fn new(cloud: Cloud, setup: Setup) -> Self {
        Self {
            cloud,
            subscription: Arc::new(Mutex::new(Subscription::new(setup))),
        }
    }

    /// Serves everything on `listener` until the task is dropped, in plain HTTP.
    pub async fn serve(self, listener: tokio::net::TcpListener) -> std::io::Result<()> {
        axum::serve(listener, self.router()).await
    }

    /// The same over TLS.
    pub async fn serve_tls(
        self,
        listener: tokio::net::TcpListener,
        certificate: Certificate,
    ) -> std::io::Result<()> {
        let listener = tls::TlsListener::new(listener, &certificate)?;
        axum::serve(listener, self.router_of("https")).await
    }

    /// Everything, in plain HTTP.
    pub fn router(self) -> Router {
        self.router_of("http")
    }

    fn router_of(self, scheme: &'static str) -> Router {
        Router::new()
            .fallback(serve::handle)
            .with_state((self, scheme))
    }

    /// Calls so far by method and kind, `PUT loadBalancers` and so on, refused ones too. Looks at operations are apart.
    pub fn calls(&self) -> BTreeMap<String, u64> {
        self.subscription().calls.clone()
    }

    /// Writes so far, oldest first (AZ-496).
    pub fn writes(&self) -> Vec<Request> {
        self.subscription().writes.clone()
    }

    /// Sets what goes wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.subscription().faults = faults;
    }

    /// A document, as a GET shows it; not a call.
    pub fn document(&self, id: &str) -> Option<Value> {
        self.subscription().show(id)
    }

    /// Ids of all documents of a kind.
    pub fn ids(&self, kind: &str) -> Vec<String> {
        self.subscription().ids(kind)
    }

    /// Changes a document behind the back of everybody, as another writer would (AZ-496). Its `ETag` is another one then.
    pub fn edit(&self, id: &str, edit: impl FnOnce(&mut Value)) {
        self.cloud
            .with(|engine, now| self.subscription().edit(id, edit, engine, now));
    }

    /// What another program writes, with every right and at once; what is said against it otherwise.
    pub fn put(&self, id: &str, body: &Value) -> Result<(), String> {
        let ask = resources::Ask {
            method: axum::http::Method::PUT,
            base: String::new(),
            path: id.to_owned(),
            page: 0,
            if_match: None,
            body: body.clone(),
        };
        let answer = self
            .cloud
            .with(|engine, now| self.subscription().answer(&ask, engine, now));
        answer
            .map(drop)
            .map_err(|refusal| refusal.body().to_string())
    }

    /// Addresses of a load balancer's frontends.
    pub fn frontends(&self, id: &str) -> Vec<IpAddr> {
        self.subscription().frontends(id)
    }

    fn subscription(&self) -> MutexGuard<'_, Subscription> {
        self.subscription
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
