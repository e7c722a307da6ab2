//! From objects to answers: content negotiation and bodies.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use onehop_core::time::Time;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::Body;
use super::print::{self, Include};
use super::query::Query;
use crate::error::{ApiError, Result};
use crate::kind::Kind;
use crate::verbs::meta;

/// Form in which a client wants objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Whole,
    /// `PartialObjectMetadata`.
    Metadata,
    /// Rows and columns, as kubectl prints them.
    Table,
}

impl Form {
    /// The first acceptable form of the Accept header.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self> {
        let accept = headers
            .get(ACCEPT)
            .and_then(|value| value.to_str().ok())
            .unwrap_or("*/*");
        let offered = "application/json";
        for range in accept.split(',') {
            let mut words = range.split(';').map(str::trim);
            let json = matches!(
                words.next(),
                Some("application/json" | "application/*" | "*/*" | "")
            );
            if !json {
                continue;
            }
            let wanted = words.find_map(|word| word.strip_prefix("as="));
            match wanted {
                None => return Ok(Self::Whole),
                Some("Table") => return Ok(Self::Table),
                Some("PartialObjectMetadata" | "PartialObjectMetadataList") => {
                    return Ok(Self::Metadata);
                }
                Some(_) => {}
            }
        }
        Err(ApiError::not_acceptable(offered))
    }
}

/// A JSON answer.
pub(crate) fn json(code: StatusCode, body: &impl Serialize) -> Response<Body> {
    match serde_json::to_vec(body) {
        Ok(bytes) => with_type(code, "application/json", Bytes::from(bytes)),
        // Values have string keys only, so this cannot be; it must not take the server down either way.
        Err(why) => error(&ApiError::internal(why)),
    }
}

/// A plain text answer.
pub(crate) fn text(body: &'static str) -> Response<Body> {
    with_type(
        StatusCode::OK,
        "text/plain; charset=utf-8",
        Bytes::from_static(body.as_bytes()),
    )
}

/// An answer of any type.
pub(crate) fn with_type(
    code: StatusCode,
    content_type: &'static str,
    body: Bytes,
) -> Response<Body> {
    let mut response = Response::new(Full::new(body).boxed_unsync());
    *response.status_mut() = code;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    response
}

/// The answer of a failure.
pub(crate) fn error(error: &ApiError) -> Response<Body> {
    json(error.code, &error.body())
}

/// How objects of a kind are shown to a client.
#[derive(Clone, Copy)]
pub(crate) struct View {
    pub(crate) form: Form,
    /// What rows of a table carry.
    pub(crate) include: Include,
}

impl View {
    /// Reads headers and query of a request.
    pub(crate) fn of(headers: &HeaderMap, query: &Query) -> Result<Self> {
        let include = match query.text("includeObject") {
            "" | "Metadata" => Include::Metadata,
            "None" => Include::Nothing,
            "Object" => Include::Object,
            other => {
                let error = format!("unrecognized includeObject value: {other:?}");
                return Err(ApiError::bad_request(error));
            }
        };
        Ok(Self {
            form: Form::of(headers)?,
            include,
        })
    }

    /// One object.
    pub(crate) fn object<'a>(self, kind: &Kind, stored: &'a Value, now: Time) -> Cow<'a, Value> {
        match self.form {
            Form::Whole => meta::encode(kind, stored),
            Form::Metadata => Cow::Owned(partial(stored)),
            Form::Table => {
                let meta = json!({"resourceVersion": stored["metadata"]["resourceVersion"]});
                Cow::Owned(print::table(
                    kind,
                    std::iter::once(stored),
                    self.include,
                    now,
                    &meta,
                ))
            }
        }
    }

    /// The answer that lists objects.
    pub(crate) fn list<'a>(
        self,
        kind: &Kind,
        items: impl Iterator<Item = &'a Value>,
        now: Time,
        list_meta: &Value,
    ) -> Response<Body> {
        let code = StatusCode::OK;
        match self.form {
            Form::Table => json(
                code,
                &print::table(kind, items, self.include, now, list_meta),
            ),
            Form::Metadata => json(
                code,
                &List {
                    kind: "PartialObjectMetadataList",
                    api_version: "meta.k8s.io/v1".into(),
                    metadata: list_meta,
                    items: items.map(partial).collect(),
                },
            ),
            Form::Whole => json(
                code,
                &List {
                    kind: &kind.list_kind,
                    api_version: kind.api_version(),
                    metadata: list_meta,
                    items: items
                        .map(|item| Item {
                            object: meta::encode(kind, item),
                            named: kind.is_custom(),
                        })
                        .collect(),
                },
            ),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct List<'a, T> {
    kind: &'a str,
    api_version: String,
    metadata: &'a Value,
    items: Vec<T>,
}

/// Items of typed lists don't repeat their kind; those of custom kinds do.
struct Item<'a> {
    object: Cow<'a, Value>,
    named: bool,
}

impl Serialize for Item<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self.object.as_object() {
            Some(fields) if !self.named => serializer.collect_map(
                fields
                    .iter()
                    .filter(|(name, _)| *name != "apiVersion" && *name != "kind"),
            ),
            _ => self.object.serialize(serializer),
        }
    }
}

fn partial(stored: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": stored["metadata"]})
}
