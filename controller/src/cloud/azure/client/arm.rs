//! Azure Resource Manager over HTTPS: reads, writes with `If-Match`, and long-running operations in every style (section 16
//! of the specification). No decisions.
//!
//! A write is sent once: what comes back, or does not, is for the next plan to look at (AZ-409). Only the write itself is
//! behind the fence; waiting for its operation is reading.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{HeaderMap, Method, StatusCode};
use onehop_runtime::clock::Clock;
use reqwest::{Response, Url};
use serde_json::Value;

use super::error::Refused;
use super::measures::Measures;
use super::throttle::{Direction, Throttle, Way};
use super::token::Tokens;
use crate::cloud::azure::document::text;
use crate::cloud::{Class, CloudError};
use crate::lease::Fence;

/// The api-version of each kind of resource (AZ-378).
const VERSIONS: [(&str, &str); 5] = [
    ("loadBalancers", NETWORK),
    ("publicIPAddresses", NETWORK),
    ("networkSecurityGroups", NETWORK),
    ("virtualNetworks", NETWORK),
    ("locations", NETWORK),
];
const NETWORK: &str = "2025-05-01";
const AUTHORIZATION: &str = "2022-04-01";
const RESOURCES: &str = "2021-04-01";
/// Pages of one list that are read (AZ-373).
const MOST_PAGES: usize = 200;
/// Between two looks at an operation, where Azure does not say (AZ-360).
const POLL: Duration = Duration::from_secs(5);
/// Status of a write that was accepted and whose operation failed.
const BAD_REQUEST: u16 = 400;
/// Longest time for one operation.
const OPERATION_LIMIT: Duration = Duration::from_mins(10);

/// A client of one endpoint.
#[derive(Debug)]
pub(super) struct Arm {
    http: reqwest::Client,
    base: Url,
    tokens: Tokens,
    clock: Clock,
    throttle: Mutex<Throttle>,
    measures: Measures,
}

/// A write.
pub(super) struct Write<'a> {
    /// Id of the resource.
    pub(super) id: &'a str,
    /// Its document; none deletes it.
    pub(super) body: Option<&'a Value>,
    /// `ETag` of what it replaces; none for what is new.
    pub(super) etag: Option<&'a str>,
    /// What is said of it.
    pub(super) tried: &'a str,
}

/// Why a write was not made.
#[derive(Clone, Debug)]
pub(super) enum Failed {
    /// ARM refused it, at once or in its operation.
    Refused(Refused),
    /// It has no answer: it may have been made.
    Lost(CloudError),
}

impl Failed {
    /// In the words of all clouds.
    pub(super) fn error(&self, tried: &str) -> CloudError {
        match self {
            Self::Refused(refused) => refused.error(tried),
            Self::Lost(error) => error.clone(),
        }
    }
}

/// What tells that a write is done.
enum Awaited<'a> {
    /// An operation.
    Operation(&'a str),
    /// A URL that answers 202 until then.
    Location(&'a str),
    /// The resource itself.
    Resource(&'a str),
}

/// A look at it.
enum Looked {
    Done,
    /// It goes on: when Azure asks to look again.
    GoesOn(Option<Duration>),
}

impl Arm {
    pub(super) fn new(http: reqwest::Client, base: Url, tokens: Tokens, clock: Clock) -> Self {
        Self {
            measures: Measures::default(),
            http,
            base,
            tokens,
            clock,
            throttle: Mutex::default(),
        }
    }

    /// With metrics of what is asked.
    pub(super) fn measured_by(&mut self, measures: Measures) {
        self.measures = measures;
    }

    /// A document, if it is there.
    pub(super) async fn get(&self, id: &str, tried: &str) -> Result<Option<Value>, CloudError> {
        let answer = self
            .send(Method::GET, self.url(id), None, None, tried)
            .await?;
        match read(answer, tried).await {
            Ok((_, _, body)) => Ok(Some(body)),
            Err(Failed::Refused(refused)) if refused.status == 404 => Ok(None),
            Err(failed) => Err(failed.error(tried)),
        }
    }

    /// Every document of a list; a list in a resource group that is not there is empty.
    pub(super) async fn list(&self, id: &str, tried: &str) -> Result<Vec<Value>, CloudError> {
        let mut all = Vec::new();
        let mut next = self.url(id);
        for _ in 0..MOST_PAGES {
            let answer = self.send(Method::GET, next, None, None, tried).await?;
            let page = match read(answer, tried).await {
                Ok((_, _, page)) => page,
                Err(Failed::Refused(refused)) if refused.status == 404 => return Ok(all),
                Err(failed) => return Err(failed.error(tried)),
            };
            all.extend(
                page.get("value")
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten()
                    .cloned(),
            );
            match text(&page, &["nextLink"]) {
                None => return Ok(all),
                Some(link) => next = self.link(link, tried)?,
            }
        }
        Err(CloudError::new(
            Class::Transient,
            tried,
            format!("more than {MOST_PAGES} pages"),
        ))
    }

    /// Makes one write and waits for its operation.
    pub(super) async fn write(&self, write: &Write<'_>, fence: &Fence) -> Result<(), Failed> {
        let begun = self.clock.now();
        let written = self.write_unmeasured(write, fence).await;
        let took = self.clock.now().since(begun);
        self.measures.wrote(write.id, took, written.is_ok());
        written
    }

    async fn write_unmeasured(&self, write: &Write<'_>, fence: &Fence) -> Result<(), Failed> {
        let method = if write.body.is_some() {
            Method::PUT
        } else {
            Method::DELETE
        };
        let call = async {
            let answer = self
                .send(
                    method.clone(),
                    self.url(write.id),
                    write.body,
                    write.etag,
                    write.tried,
                )
                .await;
            read(answer.map_err(Failed::Lost)?, write.tried).await
        };
        let answered = fence.call(call).await;
        let lost = |unanswered| Failed::Lost(CloudError::unanswered(write.tried, unanswered));
        let answer = answered.map_err(lost)?;
        match answer {
            // What is to go is gone already.
            Err(Failed::Refused(refused)) if method == Method::DELETE && refused.status == 404 => {
                Ok(())
            }
            Err(Failed::Refused(refused)) => {
                // Said with 429 as well, and no sign of too much (AZ-184, AZ-371).
                if refused.is_unprovisioned() {
                    self.throttle().lift(&way(&method, &self.url(write.id)));
                }
                Err(Failed::Refused(refused))
            }
            Err(lost) => Err(lost),
            Ok((status, headers, body)) => self.finish(write, status, &headers, body).await,
        }
    }

    /// AZ-360 to AZ-365: the header decides, not the body.
    async fn finish(
        &self,
        write: &Write<'_>,
        status: StatusCode,
        headers: &HeaderMap,
        body: Value,
    ) -> Result<(), Failed> {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        if let Some(operation) = header("azure-asyncoperation") {
            return self
                .wait(
                    Awaited::Operation(operation),
                    retry_after(headers),
                    write.tried,
                )
                .await;
        }
        if let (StatusCode::ACCEPTED, Some(location)) = (status, header("location")) {
            return self
                .wait(
                    Awaited::Location(location),
                    retry_after(headers),
                    write.tried,
                )
                .await;
        }
        if write.body.is_none() {
            return Ok(());
        }
        match state_of(&body)? {
            Looked::Done => Ok(()),
            Looked::GoesOn(_) => {
                let resource = Awaited::Resource(write.id);
                self.wait(resource, None, write.tried).await
            }
        }
    }

    /// Looks until there is an end. Looks that get no answer are made again: the operation goes on without us.
    async fn wait(
        &self,
        awaited: Awaited<'_>,
        first: Option<Duration>,
        tried: &str,
    ) -> Result<(), Failed> {
        let end = self.clock.now() + OPERATION_LIMIT;
        let mut wait = first;
        while self.clock.now() < end {
            self.clock.sleep(wait.unwrap_or(POLL)).await;
            match self.look(&awaited, tried).await {
                Ok(Looked::Done) => return Ok(()),
                Ok(Looked::GoesOn(next)) => wait = next,
                Err(Failed::Refused(refused)) if refused.is_passing() => wait = refused.retry_after,
                Err(Failed::Lost(error)) if error.class == Class::Transient => {
                    tracing::warn!(%error, "cannot look at an operation, looking again");
                    wait = None;
                }
                Err(failed) => return Err(failed),
            }
        }
        let answer = "its operation did not end in time";
        Err(Failed::Lost(CloudError::new(
            Class::Transient,
            tried,
            answer,
        )))
    }

    async fn look(&self, awaited: &Awaited<'_>, tried: &str) -> Result<Looked, Failed> {
        let url = match awaited {
            Awaited::Operation(url) | Awaited::Location(url) => {
                self.link(url, tried).map_err(Failed::Lost)?
            }
            Awaited::Resource(id) => self.url(id),
        };
        let answer = self
            .send(Method::GET, url, None, None, tried)
            .await
            .map_err(Failed::Lost)?;
        let (status, headers, body) = read(answer, tried).await?;
        let looked = match awaited {
            Awaited::Operation(_) => judged(text(&body, &["status"]), &body)?,
            Awaited::Resource(_) => state_of(&body)?,
            Awaited::Location(_) if status == StatusCode::ACCEPTED => Looked::GoesOn(None),
            Awaited::Location(_) => Looked::Done,
        };
        Ok(match looked {
            Looked::Done => Looked::Done,
            Looked::GoesOn(_) => Looked::GoesOn(retry_after(&headers)),
        })
    }

    /// One request, with a new token and once more where ARM asks for claims (AZ-376).
    async fn send(
        &self,
        method: Method,
        url: Url,
        body: Option<&Value>,
        etag: Option<&str>,
        tried: &str,
    ) -> Result<Response, CloudError> {
        let way = way(&method, &url);
        if let Some(wait) = self.throttle().wait(&way, self.clock.now()) {
            let answer = "Azure has asked for a pause of such requests";
            return Err(CloudError {
                retry_after: Some(wait),
                ..CloudError::new(Class::Throttled, tried, answer)
            });
        }
        let mut claims = None;
        loop {
            let token = self.tokens.token(claims.as_deref()).await?;
            let mut request = self
                .http
                .request(method.clone(), url.clone())
                .bearer_auth(token);
            if let Some(body) = body {
                request = request.json(body);
            }
            if let Some(etag) = etag {
                request = request.header("If-Match", etag);
            }
            let answer = request.send().await;
            let lost =
                |error: reqwest::Error| CloudError::new(Class::Transient, tried, said(&error));
            let answer = answer.map_err(lost)?;
            self.measures
                .answered(answer.status().as_u16(), answer.headers());
            if answer.status() == StatusCode::TOO_MANY_REQUESTS {
                let after = retry_after(answer.headers());
                self.throttle()
                    .refused(way.clone(), after, self.clock.now());
            }
            let challenge = challenge(&answer);
            match (&claims, challenge) {
                (None, Some(asked)) => claims = Some(asked),
                _ => return Ok(answer),
            }
        }
    }

    fn throttle(&self) -> MutexGuard<'_, Throttle> {
        // No critical section can leave it half-way.
        self.throttle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn url(&self, id: &str) -> Url {
        let mut url = self.base.clone();
        let path = format!("{}{id}", url.path().trim_end_matches('/'));
        url.set_path(&path);
        if id.contains("/providers/Microsoft.Authorization/") {
            url.query_pairs_mut()
                .append_pair("api-version", AUTHORIZATION);
            return url;
        }
        if id.ends_with("/providers/Microsoft.Network") {
            url.query_pairs_mut().append_pair("api-version", RESOURCES);
            return url;
        }
        let kind = kind_of(id);
        let version = VERSIONS
            .iter()
            .find(|(name, _)| Some(*name) == kind)
            .map_or(NETWORK, |(_, version)| version);
        url.query_pairs_mut().append_pair("api-version", version);
        url
    }

    /// A link of an answer. Our token goes to no other host.
    fn link(&self, link: &str, tried: &str) -> Result<Url, CloudError> {
        let wrong = |why: &str| {
            CloudError::new(
                Class::Transient,
                tried,
                format!("the answer links to {link:?}: {why}"),
            )
        };
        let url = self
            .base
            .join(link)
            .map_err(|error| wrong(&error.to_string()))?;
        if url.origin() == self.base.origin() {
            Ok(url)
        } else {
            Err(wrong("another host than that of Azure Resource Manager"))
        }
    }
}

/// The kind of resource that a path names.
fn kind_of(path: &str) -> Option<&str> {
    let rest = path.split("/providers/Microsoft.Network/").nth(1)?;
    rest.split('/').next()
}

fn way(method: &Method, url: &Url) -> Way {
    let direction = if *method == Method::GET {
        Direction::Read
    } else {
        Direction::Write
    };
    let kind = kind_of(url.path()).unwrap_or_default();
    (kind.to_owned(), direction)
}

impl Refused {
    /// Whether the same look may do better in a moment.
    fn is_passing(&self) -> bool {
        matches!(self.status, 408 | 429 | 500 | 502 | 503 | 504)
    }
}

/// What a resource says of its own last write, where no header tells (AZ-362); one without a state is as it was asked to
/// be.
fn state_of(resource: &Value) -> Result<Looked, Failed> {
    let state = text(resource, &["properties", "provisioningState"]).unwrap_or("Succeeded");
    // A resource does not say why.
    let said = serde_json::json!({"code": state, "message": "so says its provisioningState"});
    judged(Some(state), &said)
}

/// What failed after it was accepted is refused for what is said about it (AZ-365).
fn judged(state: Option<&str>, said: &Value) -> Result<Looked, Failed> {
    match state {
        Some("Succeeded") => Ok(Looked::Done),
        Some("Failed" | "Canceled") => Err(Failed::Refused(Refused::read(BAD_REQUEST, said, None))),
        _ => Ok(Looked::GoesOn(None)),
    }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers
        .get("retry-after")?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()?;
    Some(Duration::from_secs(seconds))
}

/// The claims that ARM asks for: base64 in the header, JSON towards the authority.
fn challenge(answer: &Response) -> Option<String> {
    if answer.status() != StatusCode::UNAUTHORIZED {
        return None;
    }
    let header = answer.headers().get("www-authenticate")?.to_str().ok()?;
    let encoded = header.split_once("claims=\"")?.1.split('"').next()?;
    let decoded =
        base64::Engine::decode(&base64::engine::general_purpose::STANDARD, encoded).ok()?;
    String::from_utf8(decoded).ok()
}

/// An error with its causes, without the URL.
fn said(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

async fn read(answer: Response, tried: &str) -> Result<(StatusCode, HeaderMap, Value), Failed> {
    let (status, headers) = (answer.status(), answer.headers().clone());
    let lost = |error: &dyn std::fmt::Display| {
        Failed::Lost(CloudError::new(Class::Transient, tried, error.to_string()))
    };
    let bytes = answer.bytes().await.map_err(|error| lost(&said(&error)))?;
    let body = if bytes.is_empty() {
        Ok(Value::Null)
    } else {
        serde_json::from_slice(&bytes)
    };
    if status.is_success() {
        let body = body.map_err(|error| lost(&error))?;
        return Ok((status, headers, body));
    }
    // An error that is no JSON comes from something between: its text is all there is.
    let body =
        body.unwrap_or_else(|_| serde_json::json!({"message": String::from_utf8_lossy(&bytes)}));
    Err(Failed::Refused(Refused::read(
        status.as_u16(),
        &body,
        retry_after(&headers),
    )))
}

#[cfg(test)]
mod tests;
