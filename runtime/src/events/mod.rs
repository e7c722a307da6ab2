//! Kubernetes Events: published on change, aggregated as kubectl's users expect, bounded.
//!
//! One Event object per (object, reason, message); a repeat raises its count at most once a minute.
//! What to publish is decided by the caller, and an event states a fact that has happened (C-101).
//! (kube's own recorder reads the system's clock.)

mod ledger;

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use onehop_core::id::{ServiceKey, ServiceUid};
use onehop_core::time::Time;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc;

use self::ledger::{Entry, Key, Ledger, Verdict};
use crate::clock::Clock;
use crate::log::Chain;
use crate::metrics::Metrics;

/// Occurrences that wait to be written.
const QUEUE: usize = 1024;
/// What the API accepts as a message.
const MESSAGE: usize = 1024;

/// Whether an event tells of something normal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// Yes.
    Normal,
    /// No: somebody should look.
    Warning,
}

/// Something that happened to an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Occurrence {
    /// The object.
    pub about: ObjectReference,
    /// Whether it is a warning.
    pub severity: Severity,
    /// The reason, a word from a fixed list (C-100).
    pub reason: &'static str,
    /// What happened, in a sentence without times or counters, so that repeats are seen as such.
    pub message: String,
}

/// Who reports events.
#[derive(Clone, Debug)]
pub struct Reporter {
    /// The component, such as `onehop-controller`: also the field manager.
    pub component: String,
    /// The instance: pod or node name.
    pub instance: String,
}

/// A reference to a Service for [`Occurrence::about`].
pub fn about_service(key: &ServiceKey, uid: &ServiceUid) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Service".to_owned()),
        namespace: Some(key.namespace.clone()),
        name: Some(key.name.clone()),
        uid: Some(uid.to_string()),
        ..ObjectReference::default()
    }
}

/// Takes occurrences; never blocks. Clones share one queue.
#[derive(Clone, Debug)]
pub struct Publisher {
    queue: mpsc::Sender<(Time, Occurrence)>,
    clock: Clock,
    lost: Counter,
}

impl Publisher {
    /// A publisher and the task that writes; the task ends when the last clone is dropped.
    pub fn new(
        client: Client,
        clock: Clock,
        reporter: Reporter,
        metrics: &Metrics,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (queue, occurrences) = mpsc::channel(QUEUE);
        let lost = Counter::default();
        metrics.register(|r| r.register("events_lost", "Events not written", lost.clone()));
        let writer = Writer {
            client,
            reporter,
            ledger: Ledger::default(),
            lost: lost.clone(),
        };
        (Self { queue, clock, lost }, writer.run(occurrences))
    }

    /// Publishes. An occurrence is dropped and counted if too many wait already.
    pub fn publish(&self, occurrence: Occurrence) {
        if self.queue.try_send((self.clock.now(), occurrence)).is_err() {
            self.lost.inc();
        }
    }
}

struct Writer {
    client: Client,
    reporter: Reporter,
    ledger: Ledger,
    lost: Counter,
}

impl Writer {
    async fn run(mut self, mut occurrences: mpsc::Receiver<(Time, Occurrence)>) {
        while let Some((now, occurrence)) = occurrences.recv().await {
            let key = Key::of(&occurrence);
            match self.ledger.note(key, &occurrence.about, now) {
                Verdict::Write(entry) => {
                    if let Err(error) = self.write(key, entry, occurrence).await {
                        self.lost.inc();
                        self.ledger.forget(key);
                        tracing::warn!(error = %Chain(&error), "event was not written");
                    }
                }
                Verdict::Later => {}
                Verdict::TooMany => {
                    self.lost.inc();
                }
            }
        }
    }

    async fn write(&self, key: Key, entry: Entry, of: Occurrence) -> Result<(), kube::Error> {
        // Events about cluster-scoped objects live in the default namespace.
        let namespace = of
            .about
            .namespace
            .clone()
            .unwrap_or_else(|| "default".to_owned());
        let about = of.about.name.as_deref().unwrap_or_default();
        let name = format!("{}.{:016x}", shortened(about, 230), key.0);
        let event = Event {
            metadata: ObjectMeta {
                namespace: Some(namespace.clone()),
                name: Some(name.clone()),
                ..ObjectMeta::default()
            },
            involved_object: of.about,
            type_: Some(format!("{:?}", of.severity)),
            reason: Some(of.reason.to_owned()),
            message: Some(shortened(&of.message, MESSAGE).to_owned()),
            count: Some(i32::try_from(entry.count).unwrap_or(i32::MAX)),
            first_timestamp: Some(entry.first.into()),
            last_timestamp: Some(entry.last.into()),
            source: Some(EventSource {
                component: Some(self.reporter.component.clone()),
                host: None,
            }),
            reporting_component: Some(self.reporter.component.clone()),
            reporting_instance: Some(self.reporter.instance.clone()),
            ..Event::default()
        };
        let params = PatchParams::apply(&self.reporter.component).force();
        let events = Api::<Event>::namespaced(self.client.clone(), &namespace);
        events
            .patch(&name, &params, &Patch::Apply(event))
            .await
            .map(drop)
    }
}

/// The text, cut to so many bytes at most.
fn shortened(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_is_cut_between_characters() {
        assert_eq!(shortened("aéé", 4), "aé");
        assert_eq!(shortened("short", 100), "short");
    }
}
