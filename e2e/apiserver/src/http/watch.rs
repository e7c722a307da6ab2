//! Watch: initial events, changes, bookmarks and errors as one stream of JSON lines.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::unfold;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use onehop_core::time::Time;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch::Receiver;

use super::Body;
use super::query::Query;
use super::respond::{Form, View};
use crate::error::{ApiError, FieldError, GroupResource, Result};
use crate::kind::Kind;
use crate::object::{self, meta_mut};
use crate::selector::Selector;
use crate::server::ApiServer;
use crate::store::{Change, Compacted};

/// Time between bookmarks, and how long before its end a watch sends the last one.
const BOOKMARK_EVERY: Duration = Duration::from_mins(1);
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);
/// End of a watch that asks for none.
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(30);

/// One open watch.
struct Watch {
    server: ApiServer,
    kind: Arc<Kind>,
    namespace: String,
    selector: Selector,
    view: View,
    /// Everything up to this version was sent.
    cursor: u64,
    signal: Receiver<u64>,
    /// Changes when the server drops all watches.
    hang_up: Receiver<u64>,
    pending: VecDeque<Bytes>,
    bookmarks: bool,
    next_bookmark: Time,
    deadline: Time,
    ended: bool,
}

/// Opens a watch of a collection.
pub(crate) fn open(
    server: &ApiServer,
    kind: &Arc<Kind>,
    namespace: &str,
    selector: Selector,
    view: View,
    query: &Query,
) -> Result<Response<Body>> {
    let initial = Initial::of(query)?;
    let version: u64 = match query.text("resourceVersion") {
        "" => 0,
        text => text.parse().map_err(|_| {
            ApiError::bad_request(format!("invalid resource version: resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"))
        })?,
    };
    let timeout = query
        .number("timeoutSeconds")?
        .map_or(DEFAULT_TIMEOUT, Duration::from_secs);
    let now = server.clock().now();
    let bookmarks = query.flag("allowWatchBookmarks");
    let (signal, hang_up) = (server.state().store.signal(&kind.table), server.hang_up());
    let mut watch = Watch {
        server: server.clone(),
        kind: kind.clone(),
        namespace: namespace.to_owned(),
        selector,
        view,
        cursor: version,
        signal,
        hang_up,
        pending: VecDeque::new(),
        bookmarks,
        next_bookmark: first_bookmark(now, timeout),
        deadline: now + timeout,
        ended: false,
    };
    if version == 0 || initial == Initial::Asked {
        watch.send_present(initial);
    }
    let stream = unfold(watch, |mut watch| async move {
        let bytes = watch.next().await?;
        Some((Ok::<_, Infallible>(Frame::data(bytes)), watch))
    });
    let mut response = Response::new(StreamBody::new(stream).boxed_unsync());
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// What a client asks about the present state (`sendInitialEvents`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Initial {
    /// Old clients: state only if they name no version.
    Unsaid,
    /// State, then a bookmark that tells its end.
    Asked,
    Declined,
}

impl Initial {
    fn of(query: &Query) -> Result<Self> {
        let (word, version_match) = (
            query.text("sendInitialEvents"),
            query.text("resourceVersionMatch"),
        );
        let refuse = |field: &str, detail: &str| {
            let kind = GroupResource::new("meta.k8s.io", "ListOptions");
            Err(ApiError::invalid(
                &kind,
                "",
                &[FieldError::forbidden(field, detail)],
            ))
        };
        match (word, version_match) {
            ("", "") => Ok(Self::Unsaid),
            ("", _) => refuse(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            ),
            (_, "NotOlderThan") => Ok(if query.flag("sendInitialEvents") {
                Self::Asked
            } else {
                Self::Declined
            }),
            _ => refuse(
                "resourceVersionMatch",
                "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            ),
        }
    }
}

fn first_bookmark(now: Time, timeout: Duration) -> Time {
    now + BOOKMARK_EVERY.min(timeout.saturating_sub(BOOKMARK_BEFORE_END))
}

impl Watch {
    /// The present state as additions.
    fn send_present(&mut self, initial: Initial) {
        let server = self.server.clone();
        let state = server.state();
        self.cursor = state.store.version();
        if initial == Initial::Declined {
            return;
        }
        for object in state.store.list(&self.kind.table, &self.namespace) {
            if self.selector.matches(object) {
                self.push("ADDED", object);
            }
        }
        if initial == Initial::Asked && self.bookmarks {
            self.push_bookmark(true);
        }
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(line) = self.pending.pop_front() {
                return Some(line);
            }
            if self.ended {
                return None;
            }
            self.signal.borrow_and_update();
            self.collect();
            if self.pending.is_empty() && !self.ended {
                self.wait().await;
            }
        }
    }

    /// Waits for a change, a bookmark's time or the end.
    async fn wait(&mut self) {
        let clock = *self.server.clock();
        let wake = if self.bookmarks {
            self.next_bookmark.min(self.deadline)
        } else {
            self.deadline
        };
        tokio::select! {
            biased;
            _ = self.hang_up.changed() => self.ended = true,
            changed = self.signal.changed() => self.ended = changed.is_err(),
            () = clock.sleep_until(wake) => self.timed(clock.now()),
        }
    }

    fn timed(&mut self, now: Time) {
        self.collect();
        if now >= self.deadline {
            self.ended = true;
        } else if self.bookmarks {
            self.push_bookmark(false);
            let regular = now + BOOKMARK_EVERY;
            let last = self.deadline - BOOKMARK_BEFORE_END;
            self.next_bookmark = if now < last {
                regular.min(last)
            } else {
                self.deadline
            };
        }
    }

    /// Takes over the changes since the cursor.
    fn collect(&mut self) {
        let server = self.server.clone();
        let state = server.state();
        match state.store.since(&self.kind.table, self.cursor) {
            Ok(changes) => {
                self.cursor = self.cursor.max(state.store.version());
                for change in &changes {
                    self.send(change);
                }
            }
            Err(Compacted { oldest }) => {
                let error = ApiError::expired(format!(
                    "too old resource version: {} ({oldest})",
                    self.cursor
                ));
                self.pending.push_back(line("ERROR", &error.body()));
                self.ended = true;
            }
        }
    }

    /// One change, as it looks through the selector.
    fn send(&mut self, change: &Change) {
        if !self.namespace.is_empty() && object::namespace(change.object()) != self.namespace {
            return;
        }
        let before = change
            .old
            .as_ref()
            .filter(|old| self.selector.matches(old))
            .cloned();
        let after = change
            .new
            .as_ref()
            .filter(|new| self.selector.matches(new))
            .cloned();
        match (before, after) {
            (None, Some(new)) => self.push("ADDED", &new),
            (Some(_), Some(new)) => self.push("MODIFIED", &new),
            (Some(old), None) => {
                // The last state that was seen, at the version of its end.
                let mut last = Value::clone(&old);
                meta_mut(&mut last)
                    .insert("resourceVersion".into(), change.version.to_string().into());
                self.push("DELETED", &last);
            }
            (None, None) => {}
        }
    }

    fn push(&mut self, event: &str, object: &Value) {
        self.pending.push_back(line(
            event,
            &self
                .view
                .object(&self.kind, object, self.server.clock().now()),
        ));
    }

    fn push_bookmark(&mut self, initial_end: bool) {
        let mut meta =
            json!({"resourceVersion": self.cursor.to_string(), "creationTimestamp": null});
        if initial_end {
            meta["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let (kind, version) = match self.view.form {
            Form::Metadata => (
                "PartialObjectMetadata".to_owned(),
                "meta.k8s.io/v1".to_owned(),
            ),
            _ => (self.kind.kind.to_string(), self.kind.api_version()),
        };
        let bookmark = json!({"kind": kind, "apiVersion": version, "metadata": meta});
        self.pending.push_back(line("BOOKMARK", &bookmark));
    }
}

fn line(event: &str, object: &Value) -> Bytes {
    #[derive(Serialize)]
    struct Line<'a> {
        r#type: &'a str,
        object: &'a Value,
    }
    let mut text = serde_json::to_vec(&Line {
        r#type: event,
        object,
    })
    .unwrap_or_default();
    text.push(b'\n');
    Bytes::from(text)
}
