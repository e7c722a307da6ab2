//! Documents of the subscription, operations on them, and what the server adds to both.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use axum::http::{HeaderName, Method, StatusCode};
use onehop_core::time::Time;
use serde_json::{Value, json};

use super::error::Refusal;
use super::links::Links;
use super::{Faults, Request, Setup, check};
use crate::engine::Engine;

/// Documents of one page of a list.
const PAGE: usize = 50;
/// Lists of a load balancer whose items are children.
pub(super) const CHILDREN: [&str; 7] = [
    "frontendIPConfigurations",
    "backendAddressPools",
    "loadBalancingRules",
    "probes",
    "inboundNatRules",
    "inboundNatPools",
    "outboundRules",
];

/// A request.
#[derive(Debug)]
pub(super) struct Ask {
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
    fn of(status: StatusCode, body: Value) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body,
            lost: false,
        }
    }
}

/// A write that goes on after its answer.
#[derive(Debug)]
struct Operation {
    ends: Time,
    subject: String,
    failed: Option<Refusal>,
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
    links: Links,
    operations: BTreeMap<String, Operation>,
    tokens: BTreeMap<String, bool>,
    number: u64,
}

/// What a path names.
struct Target {
    kind: String,
    /// Id of the document.
    id: String,
    /// A pool of a load balancer.
    pool: Option<String>,
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

    fn guid(&mut self) -> String {
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

    pub(super) fn show(&self, id: &str) -> Option<Value> {
        self.documents.get(&id.to_lowercase()).cloned()
    }

    pub(super) fn ids(&self, kind: &str) -> Vec<String> {
        let of_kind = format!("/{}/", kind.to_lowercase());
        let ids = self
            .documents
            .iter()
            .filter(|(id, _)| id.contains(&of_kind));
        ids.filter_map(|(_, document)| document["id"].as_str().map(str::to_owned))
            .collect()
    }

    pub(super) fn frontends(&self, id: &str) -> Vec<IpAddr> {
        let Some(document) = self.show(id) else {
            return Vec::new();
        };
        let frontends = list(&document, "frontendIPConfigurations").iter();
        frontends
            .filter_map(|frontend| check::address(self, frontend))
            .collect()
    }

    pub(super) fn edit(
        &mut self,
        id: &str,
        edit: impl FnOnce(&mut Value),
        engine: &mut Engine,
        now: Time,
    ) {
        if let Some(mut document) = self.show(id) {
            edit(&mut document);
            self.store(id, document);
            // What cannot be carried out shows as packets that go astray.
            let _ = self.carry_out(engine, now);
        }
    }

    /// Answers a request that came with a good token.
    pub(super) fn answer(
        &mut self,
        ask: &Ask,
        engine: &mut Engine,
        now: Time,
    ) -> Result<Answer, Refusal> {
        if let Some(operation) = ask.path.rsplit_once("/operations/") {
            return self.look_at(operation.1, now);
        }
        let target = self.target(&ask.path)?;
        let call = format!(
            "{} {}",
            ask.method,
            target
                .pool
                .as_ref()
                .map_or(&*target.kind, |_| "backendAddressPools")
        );
        *self.calls.entry(call).or_default() += 1;
        self.allowed(ask, &target)?;
        let answer = match ask.method {
            Method::GET => return self.read(ask, &target),
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
            status: status.as_u16(),
        });
        answer
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
        let target = |pool: Option<&str>, depth: usize| Target {
            kind: parts[0].to_owned(),
            id: path
                .split('/')
                .take(path.split('/').count() - depth)
                .collect::<Vec<_>>()
                .join("/"),
            pool: pool.map(str::to_owned),
        };
        match parts.as_slice() {
            [_] | [_, _] => Ok(target(None, 0)),
            ["loadBalancers", _, "backendAddressPools", pool] => Ok(target(Some(pool), 2)),
            _ => Err(unknown()),
        }
    }

    /// AZ-231, AZ-381: a missing action is named.
    fn allowed(&self, ask: &Ask, target: &Target) -> Result<(), Refusal> {
        let verb = match ask.method {
            Method::GET => "read",
            Method::DELETE => "delete",
            _ => "write",
        };
        let kind = match &target.pool {
            None => target.kind.clone(),
            Some(_) => format!("{}/backendAddressPools", target.kind),
        };
        let mut needed = vec![format!("Microsoft.Network/{kind}/{verb}")];
        if ask.method == Method::PUT {
            needed.extend(check::joins(&ask.body).into_iter().map(str::to_owned));
        }
        let may = |action: &String| {
            let listed = self.setup.actions.as_ref();
            !self.faults.denied.contains(action)
                && listed.is_none_or(|listed| listed.contains(action))
        };
        let Some(action) = needed.iter().find(|action| !may(action)) else {
            return Ok(());
        };
        let message = format!(
            "The client does not have authorization to perform action '{action}' over scope '{}'.",
            target.id
        );
        Err(Refusal::new(
            StatusCode::FORBIDDEN,
            "AuthorizationFailed",
            message,
        ))
    }

    fn look_at(&mut self, id: &str, now: Time) -> Result<Answer, Refusal> {
        *self.calls.entry("GET operations".to_owned()).or_default() += 1;
        let operation = self
            .operations
            .get(id)
            .ok_or_else(|| Refusal::not_found(id))?;
        if now < operation.ends {
            let mut answer = Answer::of(StatusCode::OK, json!({"status": "InProgress"}));
            answer
                .headers
                .push((axum::http::header::RETRY_AFTER, self.retry_after()));
            return Ok(answer);
        }
        Ok(match &operation.failed {
            None => Answer::of(StatusCode::OK, json!({"status": "Succeeded"})),
            Some(refusal) => {
                let status = if refusal.code.starts_with("Canceled") {
                    "Canceled"
                } else {
                    "Failed"
                };
                Answer::of(
                    StatusCode::OK,
                    json!({"status": status, "error": refusal.body()["error"]}),
                )
            }
        })
    }

    fn retry_after(&self) -> String {
        self.setup.operation.as_secs_f64().ceil().to_string()
    }

    fn read(&self, ask: &Ask, target: &Target) -> Result<Answer, Refusal> {
        if ask.path.ends_with(&target.kind) {
            return Ok(self.page(ask, target));
        }
        let document = self
            .show(&target.id)
            .ok_or_else(|| Refusal::not_found(&target.id))?;
        let document = match &target.pool {
            None => document,
            Some(pool) => child(&document, "backendAddressPools", pool)
                .cloned()
                .ok_or_else(|| {
                    Refusal::new(StatusCode::NOT_FOUND, "NotFound", format!("no pool {pool}"))
                })?,
        };
        let mut answer = Answer::of(StatusCode::OK, document);
        let etag = answer.body["etag"].as_str().unwrap_or_default().to_owned();
        answer.headers.push((axum::http::header::ETAG, etag));
        Ok(answer)
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
                "{}?api-version=2025-05-01&$skip={}",
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
        let old = match (&there, &target.pool) {
            (Some(document), Some(pool)) => child(document, "backendAddressPools", pool).cloned(),
            (there, None) => there.clone(),
            (None, Some(_)) => return Err(Refusal::not_found(&target.id)),
        };
        self.matches(ask, old.as_ref(), &target.id)?;
        let document = match (&target.pool, there) {
            (Some(pool), Some(mut balancer)) => {
                let mut body = ask.body.clone();
                body["name"] = json!(pool);
                set_child(&mut balancer, "backendAddressPools", body);
                balancer
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
        let body = self.show(&target.id).unwrap_or_default();
        let mut body = match &target.pool {
            None => body,
            Some(pool) => child(&body, "backendAddressPools", pool)
                .cloned()
                .unwrap_or_default(),
        };
        // AZ-361: a load balancer says Succeeded at once, the others while they are being worked on do not.
        if target.kind != "loadBalancers" || target.pool.is_some() {
            body["properties"]["provisioningState"] = json!("Updating");
        }
        Ok(self.operation(target, Answer::of(status, body), now))
    }

    fn delete(
        &mut self,
        ask: &Ask,
        target: &Target,
        engine: &mut Engine,
        now: Time,
    ) -> Result<Answer, Refusal> {
        self.injected(&target.kind)?;
        let Some(document) = self.show(&target.id) else {
            return Ok(Answer::of(StatusCode::NO_CONTENT, Value::Null));
        };
        self.matches(ask, Some(&document), &target.id)?;
        check::delete(&target.kind, &document)?;
        self.documents.remove(&target.id.to_lowercase());
        self.refer_back();
        self.carry_out(engine, now)?;
        let mut answer = self.operation(target, Answer::of(StatusCode::ACCEPTED, Value::Null), now);
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

    fn injected(&mut self, kind: &str) -> Result<(), Refusal> {
        let found = self.faults.refuse.iter().position(|(of, ..)| of == kind);
        let Some(found) = found else { return Ok(()) };
        let (_, status, code) = self.faults.refuse.remove(found);
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Err(Refusal::new(status, code, "as the test asks for"))
    }

    /// A write cancels the one that is still going on (AZ-380).
    fn superseded(&mut self, id: &str, now: Time) {
        for operation in self.operations.values_mut() {
            if operation.subject.eq_ignore_ascii_case(id)
                && now < operation.ends
                && operation.failed.is_none()
            {
                let message = "The operation was canceled by a later one.";
                let code = "CanceledAndSupersededDueToAnotherOperation";
                operation.failed = Some(Refusal::new(StatusCode::CONFLICT, code, message));
                operation.ends = now;
            }
        }
    }

    fn operation(&mut self, target: &Target, mut answer: Answer, now: Time) -> Answer {
        let guid = self.guid();
        let take = |list: &mut Vec<(String, &'static str)>| {
            let found = list.iter().position(|(kind, _)| *kind == target.kind)?;
            Some(list.remove(found).1)
        };
        let failed = take(&mut self.faults.fail_operation);
        let failed = failed.map(|code| Refusal::bad(code, "as the test asks for"));
        let operation = Operation {
            ends: now + self.setup.operation,
            subject: target.id.clone(),
            failed,
        };
        self.operations.insert(guid.clone(), operation);
        let url = format!(
            "/subscriptions/{}/providers/Microsoft.Network/locations/{}/operations/{guid}?api-version=2025-05-01",
            self.setup.subscription, self.setup.location
        );
        answer
            .headers
            .push((HeaderName::from_static("azure-asyncoperation"), url));
        answer
            .headers
            .push((axum::http::header::RETRY_AFTER, self.retry_after()));
        let lost = self
            .faults
            .lose_answer
            .iter()
            .position(|kind| *kind == target.kind);
        answer.lost = lost.map(|at| self.faults.lose_answer.remove(at)).is_some();
        answer
    }

    /// What the server adds: names, ids, states, and addresses that it gives.
    fn completed(&mut self, kind: &str, id: &str, mut document: Value) -> Result<Value, Refusal> {
        if !document.is_object() || !document["properties"].is_object() {
            return Err(Refusal::bad(
                "InvalidRequestContent",
                "a resource is an object with properties",
            ));
        }
        let name = id.rsplit('/').next().unwrap_or_default();
        document["id"] = json!(id);
        document["name"] = json!(name);
        document["type"] = json!(format!("Microsoft.Network/{kind}"));
        document["properties"]["provisioningState"] = json!("Succeeded");
        if document["properties"]["resourceGuid"].is_null() {
            document["properties"]["resourceGuid"] = json!(self.guid());
        }
        match kind {
            "loadBalancers" => self.complete_balancer(id, &mut document)?,
            "publicIPAddresses" => self.complete_public_ip(id, &mut document)?,
            "networkSecurityGroups" => {
                for rule in list_mut(&mut document, "securityRules") {
                    rule["id"] = json!(format!(
                        "{id}/securityRules/{}",
                        rule["name"].as_str().unwrap_or_default()
                    ));
                    rule["properties"]["provisioningState"] = json!("Succeeded");
                }
            }
            _ => {}
        }
        Ok(document)
    }

    fn complete_balancer(&mut self, id: &str, document: &mut Value) -> Result<(), Refusal> {
        for kind in CHILDREN {
            for child in list_mut(document, kind) {
                let name = child["name"].as_str().unwrap_or_default().to_owned();
                child["id"] = json!(format!("{id}/{kind}/{name}"));
                child["type"] = json!(format!("Microsoft.Network/loadBalancers/{kind}"));
                child["properties"]["provisioningState"] = json!("Succeeded");
            }
        }
        let mut taken: BTreeSet<IpAddr> = BTreeSet::new();
        for (other, balancer) in self
            .documents
            .iter()
            .filter(|(_, d)| d["type"] == "Microsoft.Network/loadBalancers")
        {
            if other != &id.to_lowercase() {
                let frontends = list(balancer, "frontendIPConfigurations").iter();
                taken.extend(frontends.filter_map(check::private_address));
            }
        }
        taken.extend(
            list(document, "frontendIPConfigurations")
                .iter()
                .filter_map(check::private_address),
        );
        let subnets = self.setup.subnets.clone();
        for frontend in list_mut(document, "frontendIPConfigurations") {
            let Some(subnet) = frontend["properties"]["subnet"]["id"].as_str() else {
                continue;
            };
            let range = subnets
                .iter()
                .find(|(id, _)| id.eq_ignore_ascii_case(subnet))
                .map(|(_, range)| *range);
            let Some(range) = range else {
                return Err(Refusal::bad(
                    "InvalidResourceReference",
                    format!("there is no subnet {subnet}"),
                ));
            };
            if check::private_address(frontend).is_none() {
                let free = range
                    .hosts()
                    .skip(3)
                    .map(IpAddr::V4)
                    .find(|address| !taken.contains(address));
                let free = free.ok_or_else(|| Refusal::bad("SubnetIsFull", subnet))?;
                taken.insert(free);
                frontend["properties"]["privateIPAddress"] = json!(free.to_string());
                frontend["properties"]["privateIPAllocationMethod"] = json!("Dynamic");
            }
        }
        Ok(())
    }

    fn complete_public_ip(&mut self, id: &str, document: &mut Value) -> Result<(), Refusal> {
        if let Some(old) = self.show(id) {
            for key in ["ipAddress", "ipConfiguration"] {
                if !old["properties"][key].is_null() {
                    document["properties"][key] = old["properties"][key].clone();
                }
            }
        }
        if document["properties"]["ipAddress"].is_null() {
            let taken: BTreeSet<&str> = self
                .documents
                .values()
                .filter_map(|document| document["properties"]["ipAddress"].as_str())
                .collect();
            let free = self
                .setup
                .public
                .hosts()
                .find(|address: &Ipv4Addr| !taken.contains(address.to_string().as_str()));
            let free = free
                .ok_or_else(|| Refusal::bad("PublicIPCountLimitReached", "no public IP is left"))?;
            document["properties"]["ipAddress"] = json!(free.to_string());
        }
        Ok(())
    }

    /// Stores a document under a new `ETag`, which its children have too (AZ-367).
    fn store(&mut self, id: &str, mut document: Value) {
        let etag = format!("W/\"{}\"", self.guid());
        document["etag"] = json!(etag);
        if document["id"].is_null() {
            document["id"] = json!(id);
            document["name"] = json!(id.rsplit('/').next());
        }
        for kind in CHILDREN {
            if document["properties"][kind].is_array() {
                for child in list_mut(&mut document, kind) {
                    child["etag"] = json!(etag);
                }
            }
        }
        self.documents.insert(id.to_lowercase(), document);
        self.refer_back();
    }

    /// Back-references: rules on what they use, and the frontend on the public IP that it holds. Whose holder changes gets
    /// another `ETag` (AZ-367).
    fn refer_back(&mut self) {
        let mut holders: BTreeMap<String, String> = BTreeMap::new();
        for document in self.documents.values_mut() {
            check::back_references(document);
            for frontend in list(document, "frontendIPConfigurations") {
                if let (Some(pip), Some(id)) = (
                    frontend["properties"]["publicIPAddress"]["id"].as_str(),
                    frontend["id"].as_str(),
                ) {
                    holders.insert(pip.to_lowercase(), id.to_owned());
                }
            }
        }
        let guid = self.guid();
        for (id, document) in self
            .documents
            .iter_mut()
            .filter(|(id, _)| id.contains("/publicipaddresses/"))
        {
            let holder = holders
                .get(id)
                .map_or(Value::Null, |holder| json!({"id": holder}));
            let Some(properties) = document["properties"].as_object_mut() else {
                continue;
            };
            if properties.get("ipConfiguration").unwrap_or(&Value::Null) == &holder {
                continue;
            }
            match holder {
                Value::Null => drop(properties.remove("ipConfiguration")),
                holder => drop(properties.insert("ipConfiguration".to_owned(), holder)),
            }
            document["etag"] = json!(format!("W/\"{guid}\""));
        }
    }

    /// Makes the engine do what the documents say.
    fn carry_out(&mut self, engine: &mut Engine, now: Time) -> Result<(), Refusal> {
        let mut links = std::mem::take(&mut self.links);
        let done = links.carry_out(self, engine, now);
        self.links = links;
        done
    }
}

/// Children of a kind.
pub(super) fn list<'a>(document: &'a Value, kind: &str) -> &'a [Value] {
    document["properties"][kind]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
}

fn list_mut<'a>(document: &'a mut Value, kind: &str) -> &'a mut [Value] {
    document["properties"][kind]
        .as_array_mut()
        .map(Vec::as_mut_slice)
        .unwrap_or_default()
}

/// The child of this name.
pub(super) fn child<'a>(document: &'a Value, kind: &str, name: &str) -> Option<&'a Value> {
    let named = |child: &&Value| {
        child["name"]
            .as_str()
            .is_some_and(|it| it.eq_ignore_ascii_case(name))
    };
    list(document, kind).iter().find(named)
}

fn set_child(document: &mut Value, kind: &str, child: Value) {
    let name = child["name"].as_str().unwrap_or_default().to_owned();
    let named = |it: &Value| {
        it["name"]
            .as_str()
            .is_some_and(|it| it.eq_ignore_ascii_case(&name))
    };
    match document["properties"][kind].as_array_mut() {
        Some(list) => match list.iter_mut().find(|it| named(it)) {
            Some(there) => *there = child,
            None => list.push(child),
        },
        None => document["properties"][kind] = json!([child]),
    }
}
