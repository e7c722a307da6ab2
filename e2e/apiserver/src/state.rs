//! Everything the server knows, behind one lock: store, served kinds and allocations.
//!
//! Verbs (`verbs/`) are methods of `State`; each runs to its end under the lock, so a request is one transaction.

use std::sync::Arc;

use onehop_core::time::Time;
use serde_json::Value;

use crate::alloc::Allocations;
use crate::error::{ApiError, Result};
use crate::kind::Kind;
use crate::kinds::Kinds;
use crate::object;
use crate::owners::Owners;
use crate::store::Store;
use crate::verbs::strict::FieldValidation;

/// The server's state.
pub(crate) struct State {
    pub(crate) store: Store,
    pub(crate) kinds: Kinds,
    pub(crate) allocations: Allocations,
    pub(crate) owners: Owners,
    /// What the answer of the request under way will warn of.
    pub(crate) warnings: Vec<String>,
}

/// Part of an object that a request addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Main,
    Status,
    Scale,
    /// `namespaces/finalize`.
    Finalize,
    /// `pods/ephemeralcontainers` and `pods/resize` are not served; `binding` and `eviction` are creations.
    Binding,
    Eviction,
}

impl Part {
    /// As the URL and managedFields name it; empty for the object itself.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Main => "",
            Self::Status => "status",
            Self::Scale => "scale",
            Self::Finalize => "finalize",
            Self::Binding => "binding",
            Self::Eviction => "eviction",
        }
    }
}

/// One object that a request addresses, and in whose name.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) kind: Arc<Kind>,
    pub(crate) namespace: String,
    /// Empty on create.
    pub(crate) name: String,
    pub(crate) part: Part,
    /// Field manager.
    pub(crate) manager: String,
    pub(crate) dry_run: bool,
    pub(crate) validation: FieldValidation,
    /// Time of the request.
    pub(crate) now: Time,
}

impl Call {
    pub(crate) fn key(&self) -> String {
        object::key(&self.namespace, &self.name)
    }

    pub(crate) fn not_found(&self) -> ApiError {
        ApiError::not_found(&self.kind.resource(), &self.name)
    }
}

impl State {
    /// The stored object of a call.
    pub(crate) fn fetch(&self, call: &Call) -> Result<Arc<Value>> {
        self.store
            .get(&call.kind.table, &call.key())
            .cloned()
            .ok_or_else(|| call.not_found())
    }

    /// Stores an object, or on a dry run only shows it.
    pub(crate) fn commit(&mut self, call: &Call, object: Value) -> Arc<Value> {
        if call.dry_run {
            return Arc::new(object);
        }
        let old = self
            .store
            .get(&call.kind.table, &object::key_of(&object))
            .cloned();
        let new = self.store.put(&call.kind.table, object);
        self.follow(&call.kind, old.as_deref(), Some(&new));
        new
    }

    /// Removes an object for good.
    pub(crate) fn purge(&mut self, call: &Call, key: &str) -> Option<Arc<Value>> {
        let old = self.store.get(&call.kind.table, key).cloned()?;
        if call.dry_run {
            return Some(old);
        }
        let last = self.store.remove(&call.kind.table, key)?;
        self.follow(&call.kind, Some(&old), None);
        Some(last)
    }

    /// Keeps allocations and served kinds in step with the objects.
    fn follow(&mut self, kind: &Kind, old: Option<&Value>, new: Option<&Value>) {
        let key = new.or(old).map(object::key_of).unwrap_or_default();
        self.owners.follow(&kind.table, &key, old, new);
        match kind.table.as_str() {
            "services" => self.allocations.follow(old, new),
            crate::hooks::crd::TABLE => crate::hooks::crd::follow(self, old, new),
            _ => {}
        }
    }
}
