//! What the agent tells people about their Services, as Events. The app only queues; writing Events
//! is I/O and never happens in the commit path (S-131).

use onehop_core::service::ServiceSpec;
use onehop_runtime::events::{Occurrence, Publisher, Severity, about_service};

use crate::health::ports::BindFailure;
use crate::planner::Notice;

/// Tells about Services. All of it is warnings.
#[derive(Debug, Clone)]
pub struct Notifier {
    publisher: Publisher,
}

impl Notifier {
    /// Tells by this publisher.
    pub fn new(publisher: Publisher) -> Self {
        Self { publisher }
    }

    /// A health check node port cannot be opened (S-105; upstream's reason).
    pub fn health_port_failed(&self, service: &ServiceSpec, failure: &BindFailure) {
        let addr = failure.listen.addr;
        let error = &failure.error;
        let message = format!(
            "node health check port {addr} cannot be opened: {error}; it is tried again until it can"
        );
        self.warn(service, "FailedToStartServiceHealthcheck", message);
    }

    /// Frontends of a Service cannot be programmed as wanted.
    pub fn notices(&self, service: &ServiceSpec, notices: &[Notice]) {
        for notice in notices {
            let (reason, message) = match notice {
                Notice::Lost { front, winner } => (
                    "FrontendConflict",
                    format!(
                        "{front} belongs to the older Service {winner}; it is not programmed for this one"
                    ),
                ),
                Notice::Cut { front, left_out } => (
                    "TooManyEndpoints",
                    format!(
                        "{front} has more endpoints than a list can hold; {left_out} are left out"
                    ),
                ),
                Notice::Refused { front } => (
                    "FrontendRefused",
                    format!("the kernel refused {front}; it is tried again"),
                ),
            };
            self.warn(service, reason, message);
        }
    }

    fn warn(&self, service: &ServiceSpec, reason: &'static str, message: String) {
        tracing::warn!(service = %service.key, reason, "{message}");
        self.publisher.publish(Occurrence {
            about: about_service(&service.key, &service.uid),
            severity: Severity::Warning,
            reason,
            message,
        });
    }
}
