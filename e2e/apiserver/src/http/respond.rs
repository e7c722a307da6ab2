//! From objects to answers: content negotiation and bodies.

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use onehop_core::time::Time;
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
pub(crate) fn json(code: StatusCode, body: &Value) -> Response<Body> {
    let bytes = Bytes::from(body.to_string());
    with_type(code, "application/json", bytes)
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
    pub(crate) fn object(self, kind: &Kind, stored: &Value, now: Time) -> Value {
        match self.form {
            Form::Whole => meta::encode(kind, stored),
            Form::Metadata => partial(stored),
            Form::Table => {
                let meta = json!({"resourceVersion": stored["metadata"]["resourceVersion"]});
                print::table(kind, std::iter::once(stored), self.include, now, &meta)
            }
        }
    }

    /// A list.
    pub(crate) fn list<'a>(
        self,
        kind: &Kind,
        items: impl Iterator<Item = &'a Value>,
        now: Time,
        list_meta: &Value,
    ) -> Value {
        match self.form {
            Form::Table => print::table(kind, items, self.include, now, list_meta),
            Form::Metadata => json!({
                "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": list_meta,
                "items": items.map(partial).collect::<Vec<_>>()
            }),
            Form::Whole => json!({
                "kind": kind.list_kind, "apiVersion": kind.api_version(), "metadata": list_meta,
                "items": items.map(|item| list_item(kind, item)).collect::<Vec<_>>()
            }),
        }
    }
}

/// Items of typed lists don't repeat their kind; those of custom kinds do.
fn list_item(kind: &Kind, stored: &Value) -> Value {
    let mut item = meta::encode(kind, stored);
    if let (false, Some(fields)) = (kind.is_custom(), item.as_object_mut()) {
        fields.remove("apiVersion");
        fields.remove("kind");
    }
    item
}

fn partial(stored: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": stored["metadata"]})
}
