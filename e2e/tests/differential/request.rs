//! A request before it is sent: what differs between the servers (versions, UIDs, tokens) is named, not written.

use http::Method;
use serde_json::Value;
use std::fmt;

/// Stands for the object's UID on the server that is asked.
pub(crate) const UID: &str = "$UID";
/// The version that the object had when it was last seen.
pub(crate) const VERSION: &str = "$VERSION";
/// The one before.
pub(crate) const OLD_VERSION: &str = "$OLD-VERSION";
/// The version of the last list.
pub(crate) const MARK: &str = "$MARK";
/// The token of the last page.
pub(crate) const CONTINUE: &str = "$CONTINUE";

/// The sequence's namespace.
const NAMESPACE: &str = "$NS";

/// A body.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    Empty,
    Json(Value),
    Yaml(Value),
    /// The object as it was last seen, with edits by JSON pointer (`None`: removed).
    Live(Vec<(String, Option<Value>)>),
}

/// How the answer is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Whole,
    /// A watch, until it shows the sentinel with this value.
    Events {
        sentinel: u64,
    },
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: Vec<(&'static str, String)>,
    pub(crate) content_type: &'static str,
    pub(crate) accept: &'static str,
    pub(crate) body: Body,
    /// Path of the object whose UID and versions are meant.
    pub(crate) about: String,
    pub(crate) answer: Answer,
}

impl Request {
    /// A request of a path, without a body.
    pub(crate) fn new(method: Method, path: impl Into<String>) -> Self {
        let path = path.into();
        Self {
            method,
            about: object_path(&path),
            path,
            query: Vec::new(),
            content_type: "application/json",
            accept: "application/json",
            body: Body::Empty,
            answer: Answer::Whole,
        }
    }

    pub(crate) fn with(mut self, body: Body) -> Self {
        if matches!(body, Body::Yaml(_)) {
            self.content_type = "application/yaml";
        }
        self.body = body;
        self
    }

    pub(crate) fn ask(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.query.push((name, value.into()));
        self
    }

    /// Fills in the sequence's namespace.
    pub(crate) fn within(mut self, namespace: &str) -> Self {
        match &mut self.body {
            Body::Json(body) | Body::Yaml(body) => name_namespace(body, namespace),
            Body::Live(edits) => {
                for value in edits.iter_mut().filter_map(|(_, value)| value.as_mut()) {
                    name_namespace(value, namespace);
                }
            }
            Body::Empty => {}
        }
        self
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.query.iter().any(|(known, _)| *known == name)
    }
}

fn name_namespace(value: &mut Value, namespace: &str) {
    match value {
        Value::String(text) if text == NAMESPACE => namespace.clone_into(text),
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| name_namespace(item, namespace)),
        Value::Object(fields) => fields
            .values_mut()
            .for_each(|field| name_namespace(field, namespace)),
        _ => {}
    }
}

/// Without the subresource.
fn object_path(path: &str) -> String {
    let parts = ["/status", "/scale", "/eviction", "/binding", "/finalize"];
    let found = parts.iter().find_map(|part| path.strip_suffix(part));
    found.unwrap_or(path).to_owned()
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.path)?;
        for (index, (name, value)) in self.query.iter().enumerate() {
            write!(f, "{}{name}={value}", if index == 0 { '?' } else { '&' })?;
        }
        if self.accept != "application/json" {
            write!(f, " accept {}", self.accept)?;
        }
        match &self.body {
            Body::Empty => Ok(()),
            Body::Json(body) => write!(f, " [{}] {body}", self.content_type),
            Body::Yaml(body) => write!(f, " [{} as YAML] {body}", self.content_type),
            Body::Live(edits) => {
                write!(f, " [{}] as last seen", self.content_type)?;
                for (at, value) in edits {
                    match value {
                        Some(value) => write!(f, ", {at} = {value}")?,
                        None => write!(f, ", without {at}")?,
                    }
                }
                Ok(())
            }
        }
    }
}
