//! One server, and what was seen of it: fills in what a request only names, and puts answers into a common form.

use crate::{
    normal::Names,
    request::{Answer, Body, CONTINUE, MARK, OLD_VERSION, Request, UID, VERSION},
};
use anyhow::{Context, Result};
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use kube::Client;
use serde_json::{Value, json};
use std::{collections::BTreeMap, time::Duration};

/// Longest wait for an answer or for an event.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest wait for the last event of a watch.
const WATCH_PATIENCE: Duration = Duration::from_secs(15);
/// Annotation by which a watch knows that it has seen everything.
pub(crate) const SENTINEL: &str = "sentinel";

/// An answer in common form.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) code: u16,
    /// `Warning` headers.
    pub(crate) warnings: Vec<String>,
    pub(crate) body: Value,
    /// How many names were given so far, by what they stand for.
    pub(crate) named: BTreeMap<&'static str, usize>,
}

#[derive(Default)]
struct Known {
    live: Value,
    versions: Vec<String>,
}

/// A server in one sequence of requests.
pub(crate) struct Side<'a> {
    client: &'a Client,
    known: BTreeMap<String, Known>,
    mark: String,
    token: String,
    names: Names,
}

impl<'a> Side<'a> {
    pub(crate) fn new(client: &'a Client) -> Self {
        Self {
            client,
            known: BTreeMap::new(),
            mark: "0".into(),
            token: String::new(),
            names: Names::default(),
        }
    }

    /// Sends a request and remembers what the answer shows.
    pub(crate) async fn send(&mut self, request: &Request) -> Result<Seen> {
        let work = self.exchange(request);
        let exchanged = tokio::time::timeout(PATIENCE, work).await;
        exchanged
            .with_context(|| format!("no answer: {request}"))?
            .with_context(|| request.to_string())
    }

    async fn exchange(&mut self, request: &Request) -> Result<Seen> {
        let (parts, mut body) = loop {
            let response = self.client.send(self.fill_in(request)?).await?;
            let (parts, body) = response.into_parts();
            if parts.status != StatusCode::TOO_MANY_REQUESTS {
                break (parts, body);
            }
            // Its cache of a new kind is not there yet, and it says when to ask again; any other reason is an answer.
            let bytes = body.collect().await?.to_bytes();
            if !String::from_utf8_lossy(&bytes).contains("storage is (re)initializing") {
                break (parts, bytes.to_vec().into());
            }
            let wait = parts.headers.get(http::header::RETRY_AFTER);
            let wait = wait.and_then(|seconds| seconds.to_str().ok()?.parse().ok());
            tokio::time::sleep(Duration::from_secs(wait.unwrap_or(1))).await;
        };
        let mut warnings: Vec<String> = parts
            .headers
            .get_all(http::header::WARNING)
            .iter()
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
            .collect();
        warnings.sort();
        let body = match request.answer {
            Answer::Events { sentinel } if parts.status == StatusCode::OK => {
                events(&mut body, sentinel).await?
            }
            _ => {
                let bytes = body.collect().await?.to_bytes();
                serde_json::from_slice(&bytes)
                    .unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into_owned().into())
            }
        };
        if parts.status.is_success() {
            self.remember(request, &body);
        }
        let body = self.names.common(&body);
        Ok(Seen {
            code: parts.status.as_u16(),
            warnings,
            body,
            named: self.names.counts(),
        })
    }

    fn remember(&mut self, request: &Request, body: &Value) {
        let version = body["metadata"]["resourceVersion"].as_str();
        if request.method == Method::GET && request.path == request.about && version.is_some() {
            // With a version in the request the answer may come from a cache that is behind.
            if !request.has("resourceVersion") && !request.has("continue") {
                version.unwrap_or("0").clone_into(&mut self.mark);
            }
            body["metadata"]["continue"]
                .as_str()
                .unwrap_or_default()
                .clone_into(&mut self.token);
        }
        let (Some(version), Some(name)) = (version, body["metadata"]["name"].as_str()) else {
            return;
        };
        let whole = request.accept == "application/json"
            && !request.has("dryRun")
            && !request.path.ends_with("/scale");
        if !whole || !body["metadata"]["uid"].is_string() {
            return;
        }
        let path = if request.method == Method::POST && request.path == request.about {
            format!("{}/{name}", request.path)
        } else {
            request.about.clone()
        };
        let known = self.known.entry(path).or_default();
        known.live = body.clone();
        if known.versions.last().is_none_or(|last| last != version) {
            known.versions.push(version.to_owned());
        }
    }

    fn fill_in(&self, request: &Request) -> Result<http::Request<kube::client::Body>> {
        let known = self.known.get(&request.about);
        let mut query = form_urlencoded::Serializer::new(String::new());
        for (name, value) in &request.query {
            query.append_pair(name, &self.text(value, known));
        }
        let body = match &request.body {
            Body::Empty => Vec::new(),
            Body::Json(body) => serde_json::to_vec(&self.value(body, known))?,
            Body::Yaml(body) => serde_saphyr::to_string(&self.value(body, known))?.into_bytes(),
            Body::Live(edits) => {
                let mut body = known.map_or_else(|| json!({}), |known| known.live.clone());
                for (at, value) in edits {
                    edit(
                        &mut body,
                        at,
                        value.as_ref().map(|value| self.value(value, known)),
                    );
                }
                serde_json::to_vec(&body)?
            }
        };
        let built = http::Request::builder()
            .method(request.method.clone())
            .uri(format!("{}?{}", request.path, query.finish()))
            .header(http::header::USER_AGENT, "differential/1")
            .header(http::header::ACCEPT, request.accept)
            .header(http::header::CONTENT_TYPE, request.content_type);
        Ok(built.body(body.into())?)
    }

    fn text(&self, text: &str, known: Option<&Known>) -> String {
        let version = |back: usize| {
            let versions = known
                .map(|known| known.versions.as_slice())
                .unwrap_or_default();
            let index = versions.len().checked_sub(back);
            index
                .map_or("1", |index| versions[index].as_str())
                .to_owned()
        };
        match text {
            UID => known
                .and_then(|known| known.live["metadata"]["uid"].as_str())
                .unwrap_or("unknown")
                .to_owned(),
            VERSION => version(1),
            OLD_VERSION => version(2),
            MARK => self.mark.clone(),
            CONTINUE => self.token.clone(),
            plain => plain.to_owned(),
        }
    }

    fn value(&self, value: &Value, known: Option<&Known>) -> Value {
        match value {
            Value::String(text) => self.text(text, known).into(),
            Value::Array(items) => items.iter().map(|item| self.value(item, known)).collect(),
            Value::Object(fields) => {
                let fields = fields
                    .iter()
                    .map(|(name, field)| (name.clone(), self.value(field, known)));
                Value::Object(fields.collect())
            }
            plain => plain.clone(),
        }
    }
}

/// Sets or removes what a JSON pointer names; parents are made.
pub(crate) fn edit(body: &mut Value, at: &str, value: Option<Value>) {
    let mut place = body;
    let mut steps = at
        .split('/')
        .skip(1)
        .map(|step| step.replace("~1", "/").replace("~0", "~"))
        .peekable();
    while let Some(step) = steps.next() {
        if !place.is_object() {
            *place = json!({});
        }
        let Value::Object(fields) = place else { return };
        if steps.peek().is_none() {
            match value {
                Some(value) => drop(fields.insert(step, value)),
                None => drop(fields.remove(&step)),
            }
            return;
        }
        place = fields.entry(step).or_insert(Value::Null);
    }
}

/// Reads a watch until the sentinel comes by. One that never shows it ends with a word that says so.
async fn events(body: &mut kube::client::Body, sentinel: u64) -> Result<Value> {
    let mut seen = Vec::new();
    let read = read_events(body, sentinel, &mut seen);
    let ended = tokio::time::timeout(WATCH_PATIENCE, read).await;
    match ended {
        Ok(Ok(true)) => {}
        Ok(Ok(false)) => seen.push("the watch ended before it showed the last write".into()),
        Ok(Err(error)) => return Err(error),
        Err(_) => seen.push("the watch did not show the last write".into()),
    }
    Ok(Value::Array(seen))
}

/// True once the sentinel, or an error, came by.
async fn read_events(
    body: &mut kube::client::Body,
    sentinel: u64,
    seen: &mut Vec<Value>,
) -> Result<bool> {
    let sentinel = Value::from(sentinel.to_string());
    let mut buffer = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        buffer.extend_from_slice(&data);
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            let event: Value = serde_json::from_slice(&line).context("an event")?;
            let mark = &event["object"]["metadata"]["annotations"][SENTINEL];
            let last = *mark == sentinel || event["type"] == "ERROR";
            seen.push(event);
            if last {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
