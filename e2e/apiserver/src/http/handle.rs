//! One request: route, verb, body, answer.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};

use super::query::Query;
use super::respond::{self, View};
use super::route::{ResourcePath, Route};
use super::{Body, discovery, review, watch};
use crate::audit;
use crate::error::{ApiError, FieldError, GroupResource, Result};
use crate::kind::{Kind, Trait};
use crate::selector::Selector;
use crate::server::{ApiServer, Identity};
use crate::state::{Call, Part};
use crate::verbs::delete::DeleteOptions;
use crate::verbs::list::{ListOptions, Page};
use crate::verbs::patch::PatchKind;

/// Answers a request.
pub(crate) fn handle(
    server: &ApiServer,
    identity: &Identity,
    request: &Request<Bytes>,
) -> Response<Body> {
    let outcome = match Route::parse(request.uri().path()) {
        Route::Resource(path) => {
            let outcome = resource(server, identity, &path, request);
            note(server, identity, &path, request, &outcome);
            outcome
        }
        route => discovery::answer(server, &route, request),
    };
    outcome.unwrap_or_else(|error| respond::error(&error))
}

/// Tells those who listen.
fn note(
    server: &ApiServer,
    identity: &Identity,
    path: &ResourcePath,
    request: &Request<Bytes>,
    outcome: &Result<Response<Body>>,
) {
    let mut audit = server.audit_log();
    if audit.is_heard() {
        let code = outcome
            .as_ref()
            .map_or_else(|error| error.code, Response::status);
        let now = server.clock().now();
        audit.tell(&audit::record(now, identity, path, request, code.as_u16()));
    }
}

fn resource(
    server: &ApiServer,
    identity: &Identity,
    path: &ResourcePath,
    request: &Request<Bytes>,
) -> Result<Response<Body>> {
    if let Some(answer) = review::answer(server, identity, path, request) {
        return answer;
    }
    let kind = server
        .state()
        .kinds
        .get(&path.group, &path.version, &path.plural)
        .cloned();
    let kind = kind
        .filter(|kind| fits_scope(kind, path))
        .ok_or_else(ApiError::no_such_path)?;
    let query = Query::parse(request.uri().query());
    let view = View::of(request.headers(), &query)?;
    let context = Context {
        server,
        kind,
        path,
        request,
        view,
        query,
    };
    context.answer()
}

/// Objects of namespaced kinds are reached through their namespace; their collection also without.
fn fits_scope(kind: &Kind, path: &ResourcePath) -> bool {
    if kind.namespaced {
        !path.namespace.is_empty() || path.name.is_empty()
    } else {
        path.namespace.is_empty()
    }
}

struct Context<'a> {
    server: &'a ApiServer,
    kind: Arc<Kind>,
    path: &'a ResourcePath,
    request: &'a Request<Bytes>,
    view: View,
    query: Query,
}

impl Context<'_> {
    fn answer(&self) -> Result<Response<Body>> {
        let part = self.part()?;
        let named = !self.path.name.is_empty();
        match (self.request.method(), part) {
            (&Method::GET, _) if !named => self.collection(),
            (&Method::GET, Part::Main) if self.query.flag("watch") => self.watch_one(),
            (&Method::GET, Part::Scale) => {
                let scale = self.server.state().scale(&self.call(part)?)?;
                Ok(respond::json(StatusCode::OK, &scale))
            }
            (&Method::GET, Part::Main | Part::Status) => {
                let object = self.server.state().fetch(&self.call(part)?)?;
                Ok(self.object(StatusCode::OK, &object))
            }
            (&Method::POST, Part::Main) if !named => self.create(),
            (&Method::POST, Part::Binding) => {
                let body = self.body()?;
                let answer = self.server.state().bind(&self.call(part)?, &body)?;
                Ok(respond::json(StatusCode::CREATED, &answer))
            }
            (&Method::POST, Part::Eviction) => {
                let body = self.body()?;
                let answer = self.server.state().evict(&self.call(part)?, &body)?;
                Ok(respond::json(StatusCode::CREATED, &answer))
            }
            (&Method::PUT, _) if named => self.replace(part),
            (&Method::PATCH, _) if named => self.patch(part),
            (&Method::DELETE, Part::Main) if named => self.delete(),
            (&Method::DELETE, Part::Main) => self.delete_collection(),
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    fn part(&self) -> Result<Part> {
        let kind = &self.kind;
        let pods = kind.table == "pods";
        match self.path.part.as_str() {
            "" => Ok(Part::Main),
            "status" if kind.has(Trait::Status) => Ok(Part::Status),
            "scale" if kind.has(Trait::Scale) => Ok(Part::Scale),
            "finalize" if kind.table == "namespaces" => Ok(Part::Finalize),
            "binding" if pods => Ok(Part::Binding),
            "eviction" if pods => Ok(Part::Eviction),
            _ => Err(ApiError::no_such_path()),
        }
    }

    fn call(&self, part: Part) -> Result<Call> {
        Ok(Call {
            kind: self.kind.clone(),
            namespace: self.path.namespace.clone(),
            name: self.path.name.clone(),
            part,
            manager: self.manager()?,
            dry_run: self.query.dry_run(),
            now: self.server.clock().now(),
        })
    }

    /// Field manager: as told, else the client's name.
    fn manager(&self) -> Result<String> {
        let told = self.query.text("fieldManager");
        if told.len() > 128 {
            let error = FieldError::new(
                crate::error::Problem::TooLong,
                "fieldManager",
                "",
                "may not be more than 128 bytes",
            );
            return Err(ApiError::invalid(
                &GroupResource::new("meta.k8s.io", "PatchOptions"),
                "",
                &[error],
            ));
        }
        if !told.is_empty() {
            return Ok(told.to_owned());
        }
        let agent = self
            .request
            .headers()
            .get(USER_AGENT)
            .and_then(|agent| agent.to_str().ok())
            .unwrap_or_default();
        let name = agent.split('/').next().unwrap_or_default();
        Ok(if name.is_empty() {
            "unknown".to_owned()
        } else {
            name.chars().take(128).collect()
        })
    }

    fn body(&self) -> Result<Value> {
        let content_type = self.content_type();
        if !matches!(content_type, "" | "application/json" | "*/*") {
            return Err(ApiError::unsupported_media_type("application/json"));
        }
        parse(self.request.body())
    }

    fn content_type(&self) -> &str {
        let header = self
            .request
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok());
        header
            .and_then(|header| header.split(';').next())
            .unwrap_or_default()
            .trim()
    }

    fn object(&self, code: StatusCode, stored: &Value) -> Response<Body> {
        respond::json(
            code,
            &self
                .view
                .object(&self.kind, stored, self.server.clock().now()),
        )
    }

    fn selector(&self) -> Result<Selector> {
        Selector::parse(
            &self.kind,
            self.query.text("labelSelector"),
            self.query.text("fieldSelector"),
        )
    }

    fn collection(&self) -> Result<Response<Body>> {
        if self.query.flag("watch") {
            let selector = self.selector()?;
            return watch::open(
                self.server,
                &self.kind,
                &self.path.namespace,
                selector,
                self.view,
                &self.query,
            );
        }
        let options = ListOptions {
            selector: self.selector()?,
            limit: usize::try_from(self.query.number("limit")?.unwrap_or(0)).unwrap_or(usize::MAX),
            continue_token: self.query.text("continue").to_owned(),
            version: self.query.text("resourceVersion").to_owned(),
            version_match: self.query.text("resourceVersionMatch").to_owned(),
        };
        let page = self
            .server
            .state()
            .list(&self.kind, &self.path.namespace, &options)?;
        let items = page.items.iter().map(Arc::as_ref);
        Ok(self.view.list(
            &self.kind,
            items,
            self.server.clock().now(),
            &list_meta(&page),
        ))
    }

    fn watch_one(&self) -> Result<Response<Body>> {
        let by_name = format!("metadata.name={}", self.path.name);
        let selector = Selector::parse(&self.kind, "", &by_name)?;
        watch::open(
            self.server,
            &self.kind,
            &self.path.namespace,
            selector,
            self.view,
            &self.query,
        )
    }

    fn create(&self) -> Result<Response<Body>> {
        if self.kind.namespaced && self.path.namespace.is_empty() {
            return Err(ApiError::method_not_allowed());
        }
        let body = self.body()?;
        let object = self.server.state().create(&self.call(Part::Main)?, body)?;
        Ok(self.object(StatusCode::CREATED, &object))
    }

    fn replace(&self, part: Part) -> Result<Response<Body>> {
        let (call, body) = (self.call(part)?, self.body()?);
        let mut state = self.server.state();
        match part {
            Part::Scale => Ok(respond::json(
                StatusCode::OK,
                &state.replace_scale(&call, &body)?,
            )),
            Part::Finalize => {
                let object = state.finalize(&call, body)?;
                Ok(self.object(StatusCode::OK, &object))
            }
            Part::Main | Part::Status => {
                let written = state.replace(&call, body)?;
                Ok(self.object(code_of(written.created), &written.object))
            }
            Part::Binding | Part::Eviction => Err(ApiError::method_not_allowed()),
        }
    }

    fn patch(&self, part: Part) -> Result<Response<Body>> {
        let form = PatchKind::of(self.content_type(), &self.kind)?;
        if form == PatchKind::Apply && self.query.text("fieldManager").is_empty() {
            let error = FieldError::required("fieldManager", "is required for apply patch");
            return Err(ApiError::invalid(
                &GroupResource::new("meta.k8s.io", "PatchOptions"),
                "",
                &[error],
            ));
        }
        if form != PatchKind::Apply && self.query.flag("force") {
            let error = FieldError::forbidden("force", "may not be specified for non-apply patch");
            return Err(ApiError::invalid(
                &GroupResource::new("meta.k8s.io", "PatchOptions"),
                "",
                &[error],
            ));
        }
        let (call, patch) = (self.call(part)?, parse(self.request.body())?);
        let mut state = self.server.state();
        match part {
            Part::Scale => Ok(respond::json(
                StatusCode::OK,
                &state.patch_scale(&call, form, &patch)?,
            )),
            Part::Main | Part::Status => {
                let written = state.patch(&call, form, &patch, self.query.flag("force"))?;
                Ok(self.object(code_of(written.created), &written.object))
            }
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    fn delete_options(&self) -> Result<DeleteOptions> {
        let mut body = if self.request.body().is_empty() {
            json!({})
        } else {
            parse(self.request.body())?
        };
        for name in ["propagationPolicy", "gracePeriodSeconds"] {
            let told = self.query.text(name);
            if !told.is_empty() {
                body[name] = told
                    .parse::<i64>()
                    .map_or_else(|_| told.into(), Value::from);
            }
        }
        DeleteOptions::parse(&body)
    }

    fn delete_call(&self) -> Result<Call> {
        let mut call = self.call(Part::Main)?;
        let body: Value = serde_json::from_slice(self.request.body()).unwrap_or_default();
        call.dry_run |= body["dryRun"]
            .as_array()
            .is_some_and(|all| all.iter().any(|one| one == "All"));
        Ok(call)
    }

    fn delete(&self) -> Result<Response<Body>> {
        let options = self.delete_options()?;
        let deleted = self.server.state().delete(&self.delete_call()?, &options)?;
        Ok(respond::json(StatusCode::OK, &deleted.body(&self.kind)))
    }

    fn delete_collection(&self) -> Result<Response<Body>> {
        let (options, selector) = (self.delete_options()?, self.selector()?);
        let mut state = self.server.state();
        let objects = state.delete_collection(&self.delete_call()?, &options, &selector)?;
        let version = state.store.version().to_string();
        let items = objects.iter().map(Arc::as_ref);
        Ok(self.view.list(
            &self.kind,
            items,
            self.server.clock().now(),
            &json!({"resourceVersion": version}),
        ))
    }
}

fn code_of(created: bool) -> StatusCode {
    if created {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    }
}

fn list_meta(page: &Page) -> Value {
    let mut meta = json!({"resourceVersion": page.version.to_string()});
    if let Some(token) = &page.continue_token {
        meta["continue"] = token.clone().into();
    }
    if let Some(remaining) = page.remaining {
        meta["remainingItemCount"] = remaining.into();
    }
    meta
}

fn parse(body: &Bytes) -> Result<Value> {
    serde_json::from_slice(body).map_err(|error| {
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type json): {error}"
        ))
    })
}
