//! Events on Services: a fact once it has happened (C-101), each said once until something else is.

use std::collections::{BTreeMap, VecDeque};

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{self as meta, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use onehop_core::service::ServiceSpec;
use onehop_core::time::Time;
use onehop_runtime::clock::Clock;
use serde_json::json;
use tokio::sync::mpsc;

use crate::lease::Fence;

/// Whether an event is good or bad news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// Something went as it should.
    Normal,
    /// Somebody should look.
    Warning,
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

/// One event to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Namespace, name and UID of the Service.
    pub service: (String, String, String),
    /// Good or bad.
    pub news: News,
    /// Reason code.
    pub reason: String,
    /// Message for people.
    pub message: String,
}

/// Takes events and writes them in the background. Clones share one queue; when it is full an event is
/// lost rather than a pass held up.
#[derive(Clone, Debug)]
pub struct Publisher {
    notes: mpsc::Sender<Note>,
}

/// Events waiting to be written.
const QUEUE: usize = 256;
/// Events remembered, so that a repeated one counts up instead of making another object.
const REMEMBERED: usize = 1024;

impl Publisher {
    /// A publisher, and what has to be run for it.
    pub fn new() -> (Self, mpsc::Receiver<Note>) {
        let (notes, queue) = mpsc::channel(QUEUE);
        (Self { notes }, queue)
    }

    /// Says it.
    pub fn publish(&self, service: &ServiceSpec, news: News, reason: &str, message: &str) {
        let (key, uid) = (&service.key, service.uid.to_string());
        let note = Note {
            service: (key.namespace.clone(), key.name.clone(), uid),
            news,
            reason: reason.to_owned(),
            message: message.to_owned(),
        };
        tracing::info!(service = %key, reason, message, "event");
        if self.notes.try_send(note).is_err() {
            tracing::warn!(service = %key, reason, "event lost: too many are waiting");
        }
    }
}

/// Writes events until every publisher is gone.
pub async fn write(mut queue: mpsc::Receiver<Note>, client: Client, clock: Clock, fence: Fence) {
    let mut written: VecDeque<(Note, Event)> = VecDeque::new();
    while let Some(note) = queue.recv().await {
        if fence.check().is_err() {
            continue;
        }
        let api: Api<Event> = Api::namespaced(client.clone(), &note.service.0);
        let at = written.iter().position(|(known, _)| *known == note);
        let result = match at.and_then(|at| written.remove(at)) {
            Some((_, event)) => repeat(&api, &event, clock.now()).await,
            None => {
                api.create(&PostParams::default(), &event(&note, clock.now()))
                    .await
            }
        };
        match result {
            Ok(event) => {
                written.push_back((note, event));
                if written.len() > REMEMBERED {
                    written.pop_front();
                }
            }
            // An event is never worth a retry: the condition says the same.
            Err(error) => tracing::warn!(%error, reason = note.reason, "cannot write an event"),
        }
    }
}

async fn repeat(api: &Api<Event>, event: &Event, now: Time) -> kube::Result<Event> {
    let name = event.metadata.name.as_deref().unwrap_or_default();
    let count = event.count.unwrap_or(1) + 1;
    let last: meta::Time = now.into();
    let patch = json!({ "count": count, "lastTimestamp": last });
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
}

fn event(note: &Note, now: Time) -> Event {
    let (namespace, name, uid) = note.service.clone();
    let time: meta::Time = now.into();
    Event {
        metadata: ObjectMeta {
            // As client-go names them: the object and the time, in hexadecimal.
            name: Some(format!(
                "{name}.{:x}.{}",
                now.as_millis(),
                note.reason.to_lowercase()
            )),
            namespace: Some(namespace.clone()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Service".to_owned()),
            name: Some(name),
            namespace: Some(namespace),
            uid: Some(uid),
            ..ObjectReference::default()
        },
        type_: Some(match note.news {
            News::Normal => "Normal".to_owned(),
            News::Warning => "Warning".to_owned(),
        }),
        reason: Some(note.reason.clone()),
        message: Some(note.message.clone()),
        source: Some(EventSource {
            component: Some(COMPONENT.to_owned()),
            host: None,
        }),
        reporting_component: Some(COMPONENT.to_owned()),
        count: Some(1),
        first_timestamp: Some(time.clone()),
        last_timestamp: Some(time),
        ..Event::default()
    }
}

const COMPONENT: &str = "onehop-controller";
