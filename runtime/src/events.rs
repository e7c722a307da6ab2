//! Kubernetes Events: published on change, aggregated as kubectl's users expect, bounded.
//!
//! One Event object per (object, reason, message); a repeat raises its count at most once a minute.
//! What to publish is decided by the caller, and an event states a fact that has happened (C-101).
//! (kube's own recorder reads the system's clock.)

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use onehop_core::id::{ServiceKey, ServiceUid};
use onehop_core::time::Time;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::log::Chain;
use crate::metrics::Metrics;

/// Shortest time between two writes of one Event object.
const REPEAT: Duration = Duration::from_mins(1);
/// Silence after which a repeat counts from one again; the API server keeps an Event for an hour.
const FORGET: Duration = Duration::from_hours(1);
/// Writes about one object that may come at once, and the time that gives one more.
const BURST: u32 = 25;
const REFILL: Duration = Duration::from_secs(30);
/// Keys and objects that are remembered.
const REMEMBERED: usize = 4096;
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

/// One Event object's identity. The same in every process, so that a restart finds the old object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key(u64);

impl Key {
    fn of(occurrence: &Occurrence) -> Self {
        let about = &occurrence.about;
        let mut hasher = DefaultHasher::new();
        (&about.uid, &about.kind, &about.namespace, &about.name).hash(&mut hasher);
        (occurrence.severity, occurrence.reason, &occurrence.message).hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// What has been published, and how often.
#[derive(Debug, Default)]
struct Ledger {
    entries: HashMap<Key, Entry>,
    buckets: HashMap<Option<String>, Bucket>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    first: Time,
    last: Time,
    written: Time,
    count: u32,
}

/// Tokens for writes about one object.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: u32,
    refilled: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Write(Entry),
    /// Written a moment ago: the count goes out with a later repeat.
    Later,
    /// There were too many about this object.
    TooMany,
}

impl Ledger {
    fn note(&mut self, key: Key, about: &ObjectReference, now: Time) -> Verdict {
        self.make_room(now);
        let known = self
            .entries
            .get(&key)
            .filter(|e| now.since(e.last) < FORGET)
            .copied();
        let entry = match known {
            Some(entry) => {
                let entry = Entry {
                    last: now,
                    count: entry.count.saturating_add(1),
                    ..entry
                };
                self.entries.insert(key, entry);
                if now.since(entry.written) < REPEAT {
                    return Verdict::Later;
                }
                entry
            }
            None => Entry {
                first: now,
                last: now,
                written: now,
                count: 1,
            },
        };
        if !self.take_token(about, now) {
            return Verdict::TooMany;
        }
        let entry = Entry {
            written: now,
            ..entry
        };
        self.entries.insert(key, entry);
        Verdict::Write(entry)
    }

    fn forget(&mut self, key: Key) {
        self.entries.remove(&key);
    }

    fn take_token(&mut self, about: &ObjectReference, now: Time) -> bool {
        let full = Bucket {
            tokens: BURST,
            refilled: now,
        };
        let bucket = self.buckets.entry(about.uid.clone()).or_insert(full);
        let earned = now.since(bucket.refilled).as_secs() / REFILL.as_secs();
        if earned > 0 {
            let earned = u32::try_from(earned).unwrap_or(BURST);
            bucket.tokens = bucket.tokens.saturating_add(earned).min(BURST);
            bucket.refilled = now;
        }
        let allowed = bucket.tokens > 0;
        bucket.tokens = bucket.tokens.saturating_sub(1);
        allowed
    }

    /// Drops what is old, or everything if that is not enough: a flood must not grow the memory.
    fn make_room(&mut self, now: Time) {
        if self.entries.len() >= REMEMBERED {
            self.entries.retain(|_, e| now.since(e.last) < REPEAT);
            if self.entries.len() >= REMEMBERED {
                self.entries.clear();
            }
        }
        if self.buckets.len() >= REMEMBERED {
            self.buckets
                .retain(|_, b| now.since(b.refilled) < REFILL * BURST);
            if self.buckets.len() >= REMEMBERED {
                self.buckets.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn occurrence(message: &str) -> Occurrence {
        Occurrence {
            about: about_service(&ServiceKey::new("shop", "web"), &"u1".into()),
            severity: Severity::Warning,
            reason: "SyncLoadBalancerFailed",
            message: message.to_owned(),
        }
    }

    fn note(ledger: &mut Ledger, message: &str, seconds: u64) -> Verdict {
        let occurrence = occurrence(message);
        let now = Time::EPOCH + Duration::from_secs(seconds);
        ledger.note(Key::of(&occurrence), &occurrence.about, now)
    }

    #[test]
    fn a_repeat_raises_the_count_of_one_object_at_most_once_a_minute() {
        let mut ledger = Ledger::default();
        let Verdict::Write(first) = note(&mut ledger, "a", 0) else {
            panic!()
        };
        assert_eq!(first.count, 1);
        assert_eq!(note(&mut ledger, "a", 10), Verdict::Later);
        assert_eq!(note(&mut ledger, "a", 59), Verdict::Later);
        let Verdict::Write(again) = note(&mut ledger, "a", 60) else {
            panic!()
        };
        assert_eq!((again.count, again.first), (4, first.first));
        assert!(matches!(
            note(&mut ledger, "b", 60),
            Verdict::Write(Entry { count: 1, .. })
        ));
    }

    #[test]
    fn after_an_hour_of_silence_counting_begins_anew() {
        let mut ledger = Ledger::default();
        note(&mut ledger, "a", 0);
        assert!(matches!(
            note(&mut ledger, "a", 3600),
            Verdict::Write(Entry { count: 1, .. })
        ));
    }

    #[test]
    fn a_flood_about_one_object_is_bounded() {
        let mut ledger = Ledger::default();
        let verdicts = (0..100).map(|n| note(&mut ledger, &format!("message {n}"), 0));
        let written = verdicts.filter(|v| matches!(v, Verdict::Write(_))).count();
        assert_eq!(written, BURST as usize);
        assert!(matches!(
            note(&mut ledger, "later", REFILL.as_secs()),
            Verdict::Write(_)
        ));
        assert_eq!(
            note(&mut ledger, "too soon", REFILL.as_secs()),
            Verdict::TooMany
        );
    }

    #[test]
    fn memory_is_bounded() {
        let mut ledger = Ledger::default();
        for n in 0..3 * REMEMBERED {
            let mut occurrence = occurrence(&n.to_string());
            occurrence.about.uid = Some(n.to_string());
            ledger.note(Key::of(&occurrence), &occurrence.about, Time::EPOCH);
        }
        assert!(ledger.entries.len() <= REMEMBERED && ledger.buckets.len() <= REMEMBERED);
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        assert_eq!(shortened("aéé", 4), "aé");
        assert_eq!(shortened("short", 100), "short");
    }
}
