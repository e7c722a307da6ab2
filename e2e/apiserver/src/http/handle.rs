//! One request: route, verb, body, answer.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, USER_AGENT, WARNING};
use http::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};

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
use crate::state::{Call, Part, State};
use crate::verbs::delete::DeleteOptions;
use crate::verbs::list::{ListOptions, Page};
use crate::verbs::patch::PatchKind;
use crate::verbs::strict::FieldValidation;

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

struct Context<'a> {
    server: &'a ApiServer,
    kind: Arc<Kind>,
    path: &'a ResourcePath,
    request: &'a Request<Bytes>,
    view: View,
    query: Query,
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

    fn call(&self, part: Part) -> Result<Call> {
        Ok(Call {
            kind: self.kind.clone(),
            namespace: self.path.namespace.clone(),
            name: self.path.name.clone(),
            part,
            manager: self.manager()?,
            dry_run: self.query.dry_run(),
            validation: match self.query.text("fieldValidation") {
                "Ignore" => FieldValidation::Ignore,
                "Strict" => FieldValidation::Strict,
                _ => FieldValidation::Warn,
            },
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
        match self.content_type() {
            "" | "application/json" | "*/*" => parse(self.request.body()),
            "application/yaml" => parse_yaml(self.request.body()),
            _ => Err(ApiError::unsupported_media_type(
                "application/json, application/yaml",
            )),
        }
    }

    /// Refuses options of a write that are not of its kind's (`CreateOptions` and so on).
    fn check_options(&self, kind: &str) -> Result<()> {
        let mut errors = Vec::new();
        let dry = self.query.text("dryRun");
        if !["", "All"].contains(&dry) {
            errors.push(FieldError::not_supported("dryRun", json!([dry]), &["All"]));
        }
        let way = self.query.text("fieldValidation");
        let ways = ["", "Ignore", "Strict", "Warn"];
        if !ways.contains(&way) {
            errors.push(FieldError::not_supported("fieldValidation", way, &ways));
        }
        if errors.is_empty() {
            return Ok(());
        }
        let kind = GroupResource::new("meta.k8s.io", kind);
        Err(ApiError::invalid(&kind, "", &errors))
    }

    /// Runs a write; the answer carries its warnings.
    fn write(
        &self,
        work: impl FnOnce(&mut State) -> Result<(StatusCode, Arc<Value>)>,
    ) -> Result<Response<Body>> {
        let mut state = self.server.state();
        state.warnings.clear();
        let done = work(&mut state);
        let warnings = std::mem::take(&mut state.warnings);
        drop(state);
        let mut response = match done {
            Ok((code, object)) => self.object(code, &object),
            Err(error) => respond::error(&error),
        };
        for warning in warnings {
            let text = format!("299 - {warning:?}");
            if let Ok(value) = HeaderValue::from_str(&text) {
                response.headers_mut().append(WARNING, value);
            }
        }
        Ok(response)
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
        self.write(|state| Ok((StatusCode::CREATED, state.create(&call, body)?)))
    }

    fn replace(&self, part: Part) -> Result<Response<Body>> {
        self.check_options("UpdateOptions")?;
        let (call, body) = (self.call(part)?, self.body()?);
        match part {
            Part::Scale => {
                let scale = self.server.state().replace_scale(&call, &body)?;
                Ok(respond::json(StatusCode::OK, &scale))
            }
            Part::Finalize => {
                self.write(|state| Ok((StatusCode::OK, state.finalize(&call, body)?)))
            }
            Part::Main | Part::Status if object::name(&body).is_empty() => {
                Err(ApiError::bad_request(format!(
                    "the name of the object ({} based on URL) was undeterminable: name must be provided",
                    call.name
                )))
            }
            Part::Main | Part::Status => self.write(|state| {
                let written = state.replace(&call, body)?;
                Ok((code_of(written.created), written.object))
            }),
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
            Part::Scale => {
                let scale = self.server.state().patch_scale(&call, form, &patch)?;
                Ok(respond::json(StatusCode::OK, &scale))
            }
            Part::Main | Part::Status => self.write(|state| {
                let written = state.patch(&call, form, &patch, self.query.flag("force"))?;
                Ok((code_of(written.created), written.object))
            }),
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

/// JSON or YAML; the first is a form of the second, but much faster to read.
fn parse_yaml(body: &Bytes) -> Result<Value> {
    serde_json::from_slice(body).or_else(|_| {
        serde_saphyr::from_slice(body)
            .map_err(|error| ApiError::bad_request(format!("error decoding YAML: {error}")))
    })
}

fn parse(body: &Bytes) -> Result<Value> {
    serde_json::from_slice(body).map_err(|error| {
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type json): {error}"
        ))
    })
}
