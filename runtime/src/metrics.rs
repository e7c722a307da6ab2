//! The registry of metrics and its page.
//!
//! Each part registers its own at start and keeps the handles; the HTTP server asks for the page.
//! Label values must come from fixed lists: a Service's name is never one.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

/// Content type of [`Metrics::page`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The process's metrics.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Arc<Mutex<Registry>>);

impl Metrics {
    /// Registers metrics.
    pub fn register<T>(&self, add: impl FnOnce(&mut Registry) -> T) -> T {
        add(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The page, in OpenMetrics' text format.
    pub fn page(&self) -> String {
        let mut page = String::new();
        let registry = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Writing to a `String` cannot fail; a metric that cannot be encoded ends the page early.
        if encode(&mut page, &registry).is_err() {
            tracing::error!("a metric could not be encoded: the page is not complete");
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::metrics::counter::Counter;

    #[test]
    fn a_registered_metric_is_on_the_page() {
        let metrics = Metrics::default();
        let counter = Counter::<u64>::default();
        metrics.register(|registry| registry.register("tries", "Tries", counter.clone()));
        counter.inc();
        assert!(metrics.page().contains("tries_total 1"));
    }
}
