//! What the agent tells people about their Services, as Events. The app only queues; creating
//! Events is I/O and never happens in the commit path (S-131).

use onehop_core::id::{ServiceKey, ServiceUid};
use onehop_core::service::ServiceSpec;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::health::ports::BindFailure;
use crate::planner::Notice;

/// Events that may wait; what exceeds that is only logged.
const QUEUE: usize = 256;

/// One thing to tell about a Service. All of them are warnings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification {
    /// The Service.
    pub service: ServiceKey,
    /// Its UID.
    pub uid: ServiceUid,
    /// Reason code.
    pub reason: &'static str,
    /// What was being done.
    pub action: &'static str,
    /// The whole sentence.
    pub message: String,
}

/// Queue of things to tell.
#[derive(Debug, Clone)]
pub struct Notifier {
    queue: Sender<Notification>,
}

impl Notifier {
    /// A notifier, and the end from which the publisher reads.
    pub fn new() -> (Self, Receiver<Notification>) {
        let (queue, notifications) = channel(QUEUE);
        (Self { queue }, notifications)
    }

    /// A health check node port cannot be opened (S-105; upstream's reason).
    pub fn health_port_failed(&self, service: &ServiceSpec, failure: &BindFailure) {
        let addr = failure.listen.addr;
        let error = &failure.error;
        let message = format!(
            "node health check port {addr} cannot be opened: {error}; it is tried again until it can"
        );
        self.send(
            service,
            "FailedToStartServiceHealthcheck",
            "Listen",
            message,
        );
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
            self.send(service, reason, "Program", message);
        }
    }

    fn send(
        &self,
        service: &ServiceSpec,
        reason: &'static str,
        action: &'static str,
        message: String,
    ) {
        tracing::warn!(service = %service.key, reason, "{message}");
        let notification = Notification {
            service: service.key.clone(),
            uid: service.uid.clone(),
            reason,
            action,
            message,
        };
        if let Err(TrySendError::Full(lost)) = self.queue.try_send(notification) {
            tracing::warn!(service = %lost.service, "too many events wait; this one was only logged");
        }
    }
}
