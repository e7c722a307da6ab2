//! Requests to documents of the subscription: what they name, who may, and what is answered.

use std::collections::BTreeMap;

use axum::http::{HeaderName, Method, StatusCode};
use onehop_core::time::Time;
use serde_json::{Value, json};

use super::error::Refusal;
use super::links::Links;
use super::operations::Operation;
use super::store::{child, remove_child, set_child};
use super::{Faults, Request, Setup, check};
use crate::engine::Engine;

/// Documents of one page of a list.
const PAGE: usize = 50;
/// Children that are written by a path of their own.
const ALONE: [(&str, &str); 2] = [
    ("loadBalancers", "backendAddressPools"),
    ("networkSecurityGroups", "securityRules"),
];

/// A request.
#[derive(Debug)]
pub(super) struct Ask {
    /// Scheme and host that it was sent to, if it says so.
    pub(super) base: String,
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) page: usize,
    pub(super) if_match: Option<String>,
    pub(super) body: Value,
}

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: Vec<(HeaderName, String)>,
    pub(super) body: Value,
    pub(super) lost: bool,
}

impl Answer {
    pub(super) fn of(status: StatusCode, body: Value) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body,
            lost: false,
        }
    }
}

/// The subscription.
#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) setup: Setup,
    pub(super) faults: Faults,
    pub(super) calls: BTreeMap<String, u64>,
    pub(super) writes: Vec<Request>,
    /// By id in lower case.
    pub(super) documents: BTreeMap<String, Value>,
    pub(super) links: Links,
    pub(super) operations: BTreeMap<String, Operation>,
    tokens: BTreeMap<String, bool>,
    number: u64,
}

/// What a path names.
pub(super) struct Target {
    pub(super) kind: String,
    /// Id of the document.
    pub(super) id: String,
    /// A child of it that has a path of its own: list and name.
    pub(super) child: Option<(&'static str, String)>,
}

impl Target {
    /// What is counted, and what a right is for.
    pub(super) fn kind(&self) -> &str {
        self.child.as_ref().map_or(&self.kind, |(list, _)| list)
    }
}

impl Subscription {
    pub(super) fn new(setup: Setup) -> Self {
        let mut new = Self {
            faults: Faults::default(),
            calls: BTreeMap::new(),
            writes: Vec::new(),
            documents: BTreeMap::new(),
            links: Links::default(),
            operations: BTreeMap::new(),
            tokens: BTreeMap::new(),
            number: 0,
            setup,
        };
        for (id, document) in new.setup.documents.clone() {
            new.store(&id, document);
        }
        new
    }

    fn next(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    pub(super) fn guid(&mut self) -> String {
        format!("00000000-0000-4000-8000-{:012x}", self.next())
    }

    pub(super) fn new_token(&mut self, with_claims: bool) -> String {
        let token = format!("token-{}", self.next());
        self.tokens.insert(token.clone(), with_claims);
        token
    }

    pub(super) fn authenticate(&mut self, token: Option<&str>) -> Result<(), Refusal> {
        let known = token.and_then(|token| self.tokens.get(token).copied());
        let refusal = Refusal::new(
            StatusCode::UNAUTHORIZED,
            "InvalidAuthenticationToken",
            "The access token is invalid.",
        );
        match known {
            None => Err(refusal),
            Some(false) if self.faults.challenge => Err(Refusal {
                detail: Some("InsufficientClaims"),
                ..refusal
            }),
            Some(_) => Ok(()),
        }
    }

    /// Answers a request that came with a good token.
    pub(super) fn answer(
        &mut self,
        ask: &Ask,
        engine: &mut Engine,
        now: Time,
    ) -> Result<Answer, Refusal> {
        for of in ["/operations/", "/operationResults/"] {
            if let Some((_, operation)) = ask.path.rsplit_once(of) {
                return self.look_at(ask, operation, now);
            }
        }
        if let Some((scope, list)) = ask.path.split_once("/providers/Microsoft.Authorization/") {
            return self.rights(scope, list);
        }
        if let Some(scope) = ask.path.strip_suffix("/providers/Microsoft.Network") {
            return self.provider(scope);
        }
        let target = self.target(&ask.path)?;
        let call = format!("{} {}", ask.method, target.kind());
        *self.calls.entry(call).or_default() += 1;
        self.allowed(ask, &target)?;
        let before = self.shown(&target);
        let answer = match ask.method {
            Method::GET => return self.read(ask, &target, now),
            Method::PUT => self.put(ask, &target, engine, now),
            Method::DELETE => self.delete(ask, &target, engine, now),
            _ => Err(Refusal::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "MethodNotAllowed",
                "only GET, PUT and DELETE are here",
            )),
        };
        let status = match &answer {
            Ok(answer) => answer.status,
            Err(refusal) => refusal.status,
        };
        self.writes.push(Request {
            method: ask.method.to_string(),
            id: ask.path.clone(),
            if_match: ask.if_match.clone(),
            body: ask.body.clone(),
            before,
            status: status.as_u16(),
            at: now,
        });
        answer
    }

    /// What Azure says of the region: where public IPs can be (AZ-175).
    fn provider(&self, scope: &str) -> Result<Answer, Refusal> {
        self.may("Microsoft.Resources/subscriptions/providers/read", scope)?;
        let here = json!({"location": self.setup.location, "zones": self.setup.zones});
        let kind = json!({"resourceType": "publicIPAddresses", "locations": [self.setup.location], "zoneMappings": [here]});
        let body = json!({
            "id": format!("{scope}/providers/Microsoft.Network"),
            "namespace": "Microsoft.Network",
            "resourceTypes": [kind],
        });
        Ok(Answer::of(StatusCode::OK, body))
    }

    fn target(&self, path: &str) -> Result<Target, Refusal> {
        let unknown = || Refusal::not_found(path);
        let (scope, rest) = path
            .split_once("/providers/Microsoft.Network/")
            .ok_or_else(unknown)?;
        let mut scope = scope.trim_start_matches('/').split('/');
        let (_, subscription, _, group) = (scope.next(), scope.next(), scope.next(), scope.next());
        if subscription != Some(self.setup.subscription.as_str()) {
            return Err(Refusal::new(
                StatusCode::NOT_FOUND,
                "SubscriptionNotFound",
                path,
            ));
        }
        let known = |name: &str| {
            self.setup
                .resource_groups
                .iter()
                .any(|group| group.eq_ignore_ascii_case(name))
        };
        if !group.is_some_and(known) {
            let message = format!(
                "Resource group '{}' could not be found.",
                group.unwrap_or_default()
            );
            return Err(Refusal::new(
                StatusCode::NOT_FOUND,
                "ResourceGroupNotFound",
                message,
            ));
        }
        let parts: Vec<&str> = rest.split('/').collect();
        let target = |id: &str, child| Target {
            kind: parts[0].to_owned(),
            id: id.to_owned(),
            child,
        };
        match parts.as_slice() {
            [_] | [_, _] => Ok(target(path, None)),
            [kind, _, list, name] => {
                let mut alone = ALONE.into_iter();
                let (_, list) = alone.find(|it| *it == (*kind, *list)).ok_or_else(unknown)?;
                let id = path.strip_suffix(&format!("/{list}/{name}"));
                let child = (list, (*name).to_owned());
                Ok(target(id.unwrap_or(path), Some(child)))
            }
            _ => Err(unknown()),
        }
    }

    fn read(&self, ask: &Ask, target: &Target, now: Time) -> Result<Answer, Refusal> {
        if ask.path.ends_with(&target.kind) {
            return Ok(self.page(ask, target));
        }
        let document = self.shown(target).ok_or_else(|| match &target.child {
            Some((list, name)) if self.show(&target.id).is_some() => {
                let message = format!("{list} has no {name}");
                Refusal::new(StatusCode::NOT_FOUND, "NotFound", message)
            }
            _ => Refusal::not_found(&target.id),
        })?;
        let mut answer = Answer::of(StatusCode::OK, document);
        if let Some(state) = self.state_of(&target.id, now) {
            answer.body["properties"]["provisioningState"] = json!(state);
        }
        let etag = answer.body["etag"].as_str().unwrap_or_default().to_owned();
        answer.headers.push((axum::http::header::ETAG, etag));
        Ok(answer)
    }

    /// What a GET of it shows.
    fn shown(&self, target: &Target) -> Option<Value> {
        let document = self.show(&target.id)?;
        match &target.child {
            None => Some(document),
            Some((list, name)) => child(&document, list, name).cloned(),
        }
    }

    fn page(&self, ask: &Ask, target: &Target) -> Answer {
        let stem = format!("{}/", target.id.to_lowercase());
        let all: Vec<&Value> = self
            .documents
            .iter()
            .filter(|(id, _)| id.starts_with(&stem))
            .map(|(_, d)| d)
            .collect();
        let page: Vec<&Value> = all.iter().skip(ask.page).take(PAGE).copied().collect();
        let mut body = json!({"value": page});
        if ask.page + PAGE < all.len() {
            body["nextLink"] = json!(format!(
                "{}{}?api-version=2025-05-01&$skip={}",
                ask.base,
                ask.path,
                ask.page + PAGE
            ));
        }
        Answer::of(StatusCode::OK, body)
    }

    fn put(
        &mut self,
        ask: &Ask,
        target: &Target,
        engine: &mut Engine,
        now: Time,
    ) -> Result<Answer, Refusal> {
        self.injected(&target.kind)?;
        let there = self.show(&target.id);
        if there.is_none() && target.child.is_some() {
            return Err(Refusal::not_found(&target.id));
        }
        let old = self.shown(target);
        self.matches(ask, old.as_ref(), &target.id)?;
        let document = match (&target.child, there) {
            (Some((list, name)), Some(mut document)) => {
                if !ask.body.is_object() {
                    return Err(Refusal::bad("InvalidRequestContent", "not an object"));
                }
                let mut body = ask.body.clone();
                body["name"] = json!(name);
                set_child(&mut document, list, body);
                document
            }
            _ => ask.body.clone(),
        };
        let document = self.completed(&target.kind, &target.id, document)?;
        check::document(self, &target.kind, &target.id, &document)?;
        self.superseded(&target.id, now);
        self.store(&target.id, document);
        self.carry_out(engine, now)?;
        let status = if old.is_some() {
            StatusCode::OK
        } else {
            StatusCode::CREATED
        };
        let mut body = self.shown(target).unwrap_or_default();
        // AZ-361: a load balancer says Succeeded at once, the others while they are being worked on do not.
        if target.kind != "loadBalancers" || target.child.is_some() {
            body["properties"]["provisioningState"] = json!("Updating");
        }
        Ok(self.operation(ask, target, Answer::of(status, body), now))
    }

    fn delete(
        &mut self,
        ask: &Ask,
        target: &Target,
        engine: &mut Engine,
        now: Time,
    ) -> Result<Answer, Refusal> {
        self.injected(&target.kind)?;
        let (Some(mut document), Some(there)) = (self.show(&target.id), self.shown(target)) else {
            return Ok(Answer::of(StatusCode::NO_CONTENT, Value::Null));
        };
        self.matches(ask, Some(&there), &target.id)?;
        if let Some((list, name)) = &target.child {
            remove_child(&mut document, list, name);
            check::document(self, &target.kind, &target.id, &document)?;
            self.store(&target.id, document);
        } else {
            check::delete(&target.kind, &document)?;
            self.documents.remove(&target.id.to_lowercase());
            self.refer_back();
        }
        self.carry_out(engine, now)?;
        let gone = Answer::of(StatusCode::ACCEPTED, Value::Null);
        let mut answer = self.operation(ask, target, gone, now);
        let operation = answer
            .headers
            .iter()
            .find(|(name, _)| name.as_str() == "azure-asyncoperation")
            .cloned();
        if let Some((_, url)) = operation {
            answer.headers.push((
                axum::http::header::LOCATION,
                url.replace("/operations/", "/operationResults/"),
            ));
        }
        Ok(answer)
    }

    /// AZ-366, AZ-493.
    fn matches(&self, ask: &Ask, old: Option<&Value>, id: &str) -> Result<(), Refusal> {
        match (&ask.if_match, old) {
            (Some(wanted), Some(old)) if Some(wanted.as_str()) != old["etag"].as_str() => {
                Err(Refusal::precondition(id))
            }
            (Some(_), None) => Err(Refusal::precondition(id)),
            (None, Some(_)) if self.faults.need_if_match && ask.method == Method::PUT => {
                Err(Refusal::bad(
                    "IfMatchMissing",
                    format!("{id} is there and the write has no If-Match"),
                ))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn injected(&mut self, kind: &str) -> Result<(), Refusal> {
        let found = self.faults.refuse.iter().position(|(of, ..)| of == kind);
        let Some(found) = found else { return Ok(()) };
        let (_, status, code) = self.faults.refuse.remove(found);
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Err(Refusal::new(status, code, "as the test asks for"))
    }
}
