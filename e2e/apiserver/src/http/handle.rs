//! One request: route, verb, body, answer.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{HeaderValue, WARNING};
use http::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};

use super::input::{parse, parse_yaml};
use super::query::Query;
use super::respond::{self, Form, View};
use super::route::{ResourcePath, Route};
use super::{Body, discovery, review, watch};
use crate::audit;
use crate::error::{ApiError, FieldError, GroupResource, Result};
use crate::kind::{Kind, Trait};
use crate::object;
use crate::selector::Selector;
use crate::server::{ApiServer, Identity};
use crate::state::{Part, State};
use crate::verbs::delete::Deleted;
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
    let part = part_of(&kind, path)?;
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
    context.answer(part)
}

/// Objects of namespaced kinds are reached through their namespace; their collection also without.
fn fits_scope(kind: &Kind, path: &ResourcePath) -> bool {
    if kind.namespaced {
        !path.namespace.is_empty() || path.name.is_empty()
    } else {
        path.namespace.is_empty()
    }
}

fn part_of(kind: &Kind, path: &ResourcePath) -> Result<Part> {
    let pods = kind.table == "pods";
    match path.part.as_str() {
        "" => Ok(Part::Main),
        "status" if kind.has(Trait::Status) => Ok(Part::Status),
        "scale" if kind.has(Trait::Scale) => Ok(Part::Scale),
        "finalize" if kind.table == "namespaces" => Ok(Part::Finalize),
        "binding" if pods => Ok(Part::Binding),
        "eviction" if pods => Ok(Part::Eviction),
        _ => Err(ApiError::no_such_path()),
    }
}

/// A request about a resource.
pub(super) struct Context<'a> {
    pub(super) server: &'a ApiServer,
    pub(super) kind: Arc<Kind>,
    pub(super) path: &'a ResourcePath,
    pub(super) request: &'a Request<Bytes>,
    pub(super) view: View,
    pub(super) query: Query,
}

impl Context<'_> {
    fn answer(&self, part: Part) -> Result<Response<Body>> {
        let named = !self.path.name.is_empty();
        match (self.request.method(), part) {
            (&Method::GET, _) if !named => self.collection(),
            (&Method::GET, Part::Main) if self.query.flag("watch") => self.watch_one(),
            (&Method::GET, Part::Scale) => {
                let scale = self.server.state().scale(&self.call(part)?)?;
                Ok(respond::json(StatusCode::OK, &scale))
            }
            (&Method::GET, Part::Main | Part::Status) => {
                let version = self.query.text("resourceVersion");
                if !version.is_empty() && version.parse::<u64>().is_err() {
                    return Err(ApiError::unknown(format!(
                        "resourceVersion: Invalid value: {version:?}: strconv.ParseUint: parsing {version:?}: invalid syntax"
                    )));
                }
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

    /// Runs a write; the answer carries its warnings.
    fn write(
        &self,
        work: impl FnOnce(&mut State) -> Result<(StatusCode, Arc<Value>)>,
    ) -> Response<Body> {
        self.warning(work, |(code, object)| self.object(code, &object))
    }

    /// A write of a scale, which is shown in one form only.
    fn write_scale(&self, work: impl FnOnce(&mut State) -> Result<Value>) -> Response<Body> {
        self.warning(work, |scale| respond::json(StatusCode::OK, &scale))
    }

    /// Does work and answers with the warnings that came up in it.
    fn warning<T>(
        &self,
        work: impl FnOnce(&mut State) -> Result<T>,
        answer: impl FnOnce(T) -> Response<Body>,
    ) -> Response<Body> {
        let mut state = self.server.state();
        state.warnings.clear();
        let done = work(&mut state);
        let warnings = std::mem::take(&mut state.warnings);
        drop(state);
        let mut response = match done {
            Ok(done) => answer(done),
            Err(error) => respond::error(&error),
        };
        for warning in warnings {
            let text = format!("299 - {warning:?}");
            if let Ok(value) = HeaderValue::from_str(&text) {
                response.headers_mut().append(WARNING, value);
            }
        }
        response
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
        let mut options = ListOptions {
            selector: Selector::default(),
            limit: usize::try_from(self.query.number("limit")?.unwrap_or(0)).unwrap_or(usize::MAX),
            continue_token: self.query.text("continue").to_owned(),
            version: self.query.text("resourceVersion").to_owned(),
            version_match: self.query.text("resourceVersionMatch").to_owned(),
        };
        Selector::check_syntax(
            self.query.text("labelSelector"),
            self.query.text("fieldSelector"),
        )?;
        options.check()?;
        options.selector = self.selector()?;
        let page = self
            .server
            .state()
            .list(&self.kind, &self.path.namespace, &options)?;
        let items = page.items.iter().map(Arc::as_ref);
        Ok(self.view.list(
            &self.kind,
            items,
            self.server.clock().now(),
            &list_meta(self.untyped(), &page),
        ))
    }

    /// Whether the answer is written without a Go type.
    fn untyped(&self) -> bool {
        self.kind.is_custom() && self.view.form == Form::Whole
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
        self.check_options("CreateOptions")?;
        let (call, body) = (self.call(Part::Main)?, self.body()?);
        Ok(self.write(|state| Ok((StatusCode::CREATED, state.create(&call, body)?))))
    }

    fn replace(&self, part: Part) -> Result<Response<Body>> {
        self.check_options("UpdateOptions")?;
        let (call, body) = (self.call(part)?, self.body()?);
        match part {
            Part::Scale => Ok(self.write_scale(|state| state.replace_scale(&call, body))),
            Part::Finalize => {
                Ok(self.write(|state| Ok((StatusCode::OK, state.finalize(&call, body)?))))
            }
            Part::Main | Part::Status if object::name(&body).is_empty() => {
                Err(ApiError::bad_request(format!(
                    "the name of the object ({} based on URL) was undeterminable: name must be provided",
                    call.name
                )))
            }
            Part::Main | Part::Status => Ok(self.write(|state| {
                let written = state.replace(&call, body)?;
                Ok((code_of(written.created), written.object))
            })),
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
        self.check_options("PatchOptions")?;
        let patch = if form == PatchKind::Apply {
            parse_yaml(self.request.body())?
        } else {
            parse(self.request.body())?
        };
        let call = self.call(part)?;
        match part {
            Part::Scale => Ok(self.write_scale(|state| state.patch_scale(&call, form, &patch))),
            Part::Main | Part::Status => Ok(self.write(|state| {
                let written = state.patch(&call, form, &patch, self.query.flag("force"))?;
                Ok((code_of(written.created), written.object))
            })),
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    fn delete(&self) -> Result<Response<Body>> {
        let options = self.delete_options()?;
        let deleted = self.server.state().delete(&self.delete_call()?, &options)?;
        let stays = matches!(deleted, Deleted::Pending(_));
        let code = if stays && options.cascades {
            StatusCode::ACCEPTED
        } else {
            StatusCode::OK
        };
        Ok(respond::json(code, &deleted.body(&self.kind)))
    }

    fn delete_collection(&self) -> Result<Response<Body>> {
        let (options, selector) = (self.delete_options()?, self.selector()?);
        let mut state = self.server.state();
        let objects = state.delete_collection(&self.delete_call()?, &options, &selector)?;
        let mut meta = json!({"resourceVersion": state.store.version().to_string()});
        if self.untyped() {
            meta["continue"] = "".into();
        }
        let items = objects.iter().map(Arc::as_ref);
        Ok(self
            .view
            .list(&self.kind, items, self.server.clock().now(), &meta))
    }
}

fn code_of(created: bool) -> StatusCode {
    if created {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    }
}

fn list_meta(untyped: bool, page: &Page) -> Value {
    let mut meta = json!({"resourceVersion": page.version.to_string()});
    if untyped {
        // Lists of custom objects have no Go type that leaves it out.
        meta["continue"] = "".into();
    }
    if let Some(token) = &page.continue_token {
        meta["continue"] = token.clone().into();
    }
    if let Some(remaining) = page.remaining {
        meta["remainingItemCount"] = remaining.into();
    }
    meta
}
