//! Events on Services: a fact once it has happened (C-101), each said once until something else is.

use std::collections::BTreeMap;

use onehop_core::service::ServiceSpec;
use onehop_runtime::events::{Occurrence, Publisher, Severity, about_service};

/// Publishes an event about a Service.
pub fn publish(
    publisher: &Publisher,
    service: &ServiceSpec,
    severity: Severity,
    reason: &'static str,
    message: &str,
) {
    tracing::info!(service = %service.key, reason, message, "event");
    publisher.publish(Occurrence {
        about: about_service(&service.key, &service.uid),
        severity,
        reason,
        message: message.to_owned(),
    });
}

/// What was said last about a Service, by reason.
#[derive(Clone, Debug, Default)]
pub struct Said(BTreeMap<&'static str, String>);

impl Said {
    /// Whether this is news: another message for the reason than the last one.
    pub fn is_news(&mut self, reason: &'static str, message: &str) -> bool {
        if self.0.get(reason).is_some_and(|last| last == message) {
            return false;
        }
        self.0.insert(reason, message.to_owned());
        true
    }

    /// The reason no longer holds; if it comes back, that is news.
    pub fn over(&mut self, reason: &str) {
        self.0.remove(reason);
    }
}
