//! Writes to an object that may be there: PUT and every form of patch.

use crate::{
    generate::MANAGERS,
    kinds::KindRow,
    request::{Body, OLD_VERSION, Request, UID, VERSION},
    side::edit,
};
use http::Method;
use rand::{Rng, rngs::SmallRng, seq::IndexedRandom};
use serde_json::{Value, json};

/// An object, or its status.
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) path: String,
    pub(crate) status: bool,
}

fn draw<'a>(rng: &mut SmallRng, words: &[&'a str]) -> &'a str {
    words.choose(rng).copied().unwrap_or_default()
}

/// Some fields under one root.
fn partial(rng: &mut SmallRng, kind: &KindRow, target: &Target) -> Value {
    let mut body = json!({});
    for _ in 0..rng.random_range(1..4) {
        let (at, value) = kind.field(rng, target.status);
        let value = if rng.random_bool(0.15) {
            Value::Null
        } else {
            value
        };
        edit(&mut body, &at, Some(value));
    }
    if rng.random_bool(0.12) {
        edit(
            &mut body,
            "/metadata/resourceVersion",
            Some(draw(rng, &[VERSION, VERSION, OLD_VERSION]).into()),
        );
    }
    if rng.random_bool(0.06) {
        edit(
            &mut body,
            "/metadata/uid",
            Some(draw(rng, &[UID, "11111111-2222-3333-4444-555555555555"]).into()),
        );
    }
    body
}

fn patch(target: &Target, content_type: &'static str, body: Value) -> Request {
    let mut request = Request::new(Method::PATCH, target.path.as_str()).with(Body::Json(body));
    request.content_type = content_type;
    request
}

/// JSON merge patch.
pub(crate) fn merge(rng: &mut SmallRng, kind: &KindRow, target: &Target) -> Request {
    let body = partial(rng, kind, target);
    patch(target, "application/merge-patch+json", body)
}

/// Strategic merge patch.
pub(crate) fn strategic(rng: &mut SmallRng, kind: &KindRow, target: &Target) -> Request {
    let own = kind
        .patches
        .choose(rng)
        .cloned()
        .filter(|_| !target.status && rng.random_bool(0.5));
    let body = own.unwrap_or_else(|| partial(rng, kind, target));
    patch(target, "application/strategic-merge-patch+json", body)
}

/// JSON patch.
pub(crate) fn json(rng: &mut SmallRng, kind: &KindRow, target: &Target) -> Request {
    let mut operations = Vec::new();
    for _ in 0..rng.random_range(1..3) {
        let (at, value) = kind.field(rng, target.status);
        operations.push(match rng.random_range(0..10) {
            0..4 => json!({"op": "add", "path": at, "value": value}),
            4..6 => json!({"op": "replace", "path": at, "value": value}),
            6..8 => json!({"op": "remove", "path": at}),
            8 => json!({"op": "test", "path": at, "value": value}),
            _ => {
                json!({"op": "test", "path": "/metadata/uid", "value": draw(rng, &[UID, "other"])})
            }
        });
    }
    patch(target, "application/json-patch+json", operations.into())
}

/// Server-side apply.
pub(crate) fn apply(rng: &mut SmallRng, kind: &KindRow, target: &Target) -> Request {
    let mut body = kind.bare(&target.name);
    if rng.random_bool(0.5) && !target.status {
        body = kind.object(&target.name);
    }
    for _ in 0..rng.random_range(0..4) {
        let (at, value) = kind.field(rng, target.status);
        edit(&mut body, &at, Some(value));
    }
    match rng.random_range(0..30) {
        0 => edit(&mut body, "/metadata/resourceVersion", Some(VERSION.into())),
        1 => edit(
            &mut body,
            "/metadata/resourceVersion",
            Some(OLD_VERSION.into()),
        ),
        2 => edit(&mut body, "/metadata/uid", Some(UID.into())),
        3 => edit(
            &mut body,
            "/metadata/managedFields",
            Some(json!([{"manager": "x"}])),
        ),
        4 => edit(&mut body, "/metadata/name", Some("other".into())),
        5 => edit(&mut body, "/apiVersion", None),
        _ => {}
    }
    let yaml = rng.random_bool(0.4);
    let body = if yaml {
        Body::Yaml(body)
    } else {
        Body::Json(body)
    };
    let mut request = Request::new(Method::PATCH, target.path.as_str()).with(body);
    request.content_type = "application/apply-patch+yaml";
    if rng.random_bool(0.97) {
        request = request.ask("fieldManager", draw(rng, &MANAGERS));
    }
    match rng.random_range(0..10) {
        0..4 => request.ask("force", "true"),
        4 => request.ask("force", "false"),
        _ => request,
    }
}

/// PUT: what was seen with changes, or a body of its own.
pub(crate) fn replace(rng: &mut SmallRng, kind: &KindRow, target: &Target) -> Request {
    let request = Request::new(Method::PUT, target.path.as_str());
    let fresh = rng.random_bool(0.35);
    let version = match rng.random_range(0..10) {
        0..5 => Some(Some(json!(VERSION))),
        5 => Some(Some(json!(OLD_VERSION))),
        // Of an object that was seen, its UID may be wrong as well.
        6 if fresh => Some(Some(json!("not-a-number"))),
        7..9 => Some(None),
        _ => None,
    };
    let mut edits: Vec<(String, Option<Value>)> = Vec::new();
    for _ in 0..rng.random_range(0..4) {
        let (at, value) = kind.field(rng, target.status);
        edits.push((at, (!rng.random_bool(0.15)).then_some(value)));
    }
    edits.extend(version.map(|version| ("/metadata/resourceVersion".to_owned(), version)));
    match rng.random_range(0..25) {
        0 => edits.push(("/metadata/name".into(), Some("other".into()))),
        1 if !fresh => edits.push((
            "/metadata/uid".into(),
            Some("11111111-2222-3333-4444-555555555555".into()),
        )),
        2 => edits.push(("/metadata/managedFields".into(), Some(json!([{}])))),
        3 => edits.push(("/metadata/managedFields".into(), None)),
        4 => edits.push(("/metadata/creationTimestamp".into(), None)),
        5 => edits.push(("/metadata/generation".into(), Some(json!(99)))),
        _ => {}
    }
    if !fresh {
        return request.with(Body::Live(edits));
    }
    let mut body = kind.object(&target.name);
    for (at, value) in edits {
        edit(&mut body, &at, value);
    }
    request.with(if rng.random_bool(0.1) {
        Body::Yaml(body)
    } else {
        Body::Json(body)
    })
}

/// The scale subresource.
pub(crate) fn scale(rng: &mut SmallRng, target: &Target) -> Request {
    let path = format!("{}/scale", target.path.trim_end_matches("/status"));
    let replicas = [json!(1), json!(3), json!(-1)];
    let replicas = replicas.choose(rng).cloned().unwrap_or_default();
    match rng.random_range(0..4) {
        0 => Request::new(Method::GET, path),
        1 => {
            let body = json!({
                "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": target.name}, "spec": {"replicas": replicas}
            });
            Request::new(Method::PUT, path).with(Body::Json(body))
        }
        _ => {
            let mut request = Request::new(Method::PATCH, path)
                .with(Body::Json(json!({"spec": {"replicas": replicas}})));
            request.content_type = "application/merge-patch+json";
            request
        }
    }
}
