//! What was asked of the server, for tests that count or order requests.

use http::{Method, Request};
use onehop_core::time::Time;
use tokio::sync::mpsc;

use crate::http::query::Query;
use crate::http::route::ResourcePath;
use crate::server::Identity;

/// One answered request for a resource. The built-in controllers write without requests and are not seen here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// When it was answered; a watch is answered when it opens.
    pub at: Time,
    /// User name of the identity.
    pub user: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: &'static str,
    /// API group, empty for core.
    pub group: String,
    /// Plural name.
    pub resource: String,
    /// Subresource, empty for the object itself.
    pub part: String,
    /// Namespace, empty for cluster-scoped kinds and for all namespaces.
    pub namespace: String,
    /// Name, empty for collections.
    pub name: String,
    /// HTTP status code of the answer.
    pub code: u16,
}

impl Record {
    /// True for a request that may have changed something.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch") && (200..300).contains(&self.code)
    }
}

/// Those who listen.
#[derive(Default)]
pub(crate) struct Audit {
    listeners: Vec<mpsc::UnboundedSender<Record>>,
}

impl Audit {
    pub(crate) fn listen(&mut self) -> mpsc::UnboundedReceiver<Record> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.listeners.push(sender);
        receiver
    }

    pub(crate) fn is_heard(&self) -> bool {
        !self.listeners.is_empty()
    }

    pub(crate) fn tell(&mut self, record: &Record) {
        self.listeners
            .retain(|listener| listener.send(record.clone()).is_ok());
    }
}

/// The record of a request and its answer.
pub(crate) fn record<B>(
    at: Time,
    identity: &Identity,
    path: &ResourcePath,
    request: &Request<B>,
    code: u16,
) -> Record {
    let watch = Query::parse(request.uri().query()).flag("watch");
    let named = !path.name.is_empty();
    let verb = match *request.method() {
        Method::GET if watch => "watch",
        Method::GET if named => "get",
        Method::GET => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if named => "delete",
        Method::DELETE => "deletecollection",
        _ => "other",
    };
    Record {
        at,
        user: identity.user().to_owned(),
        verb,
        group: path.group.clone(),
        resource: path.plural.clone(),
        part: path.part.clone(),
        namespace: path.namespace.clone(),
        name: path.name.clone(),
        code,
    }
}
