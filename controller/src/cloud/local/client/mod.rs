//! The local cloud over HTTP. No decisions: it looks, and makes one call per step.
//!
//! Every mutating call asks the fence first. Calls have a time-out and are never retried here; the next
//! plan is made from a fresh look.

mod convert;
mod wire;

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::stream::{self, StreamExt, TryStreamExt};
use http::{Method, StatusCode};
use onehop_core::id::{InstallId, ServiceKey};
use reqwest::{RequestBuilder, Url};
use serde::de::DeserializeOwned;

use super::model::{Group, Observed};
use super::names::{self, Tags};
use super::step::LocalStep;
use crate::cloud::{Class, CloudError, https};
use crate::lease::Fence;
use crate::plan::{Depth, Effect, Existing, Look, Step};
use wire::{ErrorBody, GroupView, Items, LbView, ListenerBody, TargetsView};

/// Longest time for one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Groups of one Service that are looked at side by side.
const LOOKS_AT_ONCE: usize = 16;

/// A client of one endpoint for one install.
#[derive(Debug)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    install: InstallId,
    ids: Mutex<Ids>,
}

/// Cloud ids by our names: filled by what is seen and made.
#[derive(Debug, Default)]
struct Ids {
    balancers: HashMap<String, String>,
    groups: HashMap<String, String>,
}

impl Client {
    /// A client for the API at `base`; `caller` names us in the cloud's log.
    pub fn new(base: Url, install: InstallId, caller: &str) -> Result<Self, CloudError> {
        let builder = https::builder(&base, None)?
            .user_agent(format!("onehop-controller ({caller})"))
            .timeout(CALL_TIMEOUT)
            .connect_timeout(CONNECT_TIMEOUT)
            .no_proxy();
        let http = https::build(builder)?;
        Ok(Self {
            http,
            base,
            install,
            ids: Mutex::default(),
        })
    }

    /// Everything of this install, by Service and UID.
    pub async fn inventory(&self) -> Result<Vec<Existing<ServiceKey>>, CloudError> {
        let tags = Tags::from([(names::INSTALL.to_owned(), self.install.to_string())]);
        let (balancers, groups) = self.list(&tags).await?;
        Ok(convert::existing(balancers, groups))
    }

    /// Looks at one Service.
    pub async fn observe(
        &self,
        service: &ServiceKey,
        look: Look<'_, Observed>,
    ) -> Result<Observed, CloudError> {
        if let (Depth::Members, Some(last)) = (look.depth, look.last) {
            match self.with_targets(last.groups.clone()).await {
                // A group is gone behind our back: look at everything.
                Err(error) if error.class == Class::NotFound => {}
                other => {
                    return Ok(Observed {
                        groups: other?,
                        ..last.clone()
                    });
                }
            }
        }
        let tags = names::service_tags(&self.install, service);
        let (balancers, groups) = self.list(&tags).await?;
        let groups: Vec<Group> = groups.into_iter().filter_map(convert::group).collect();
        let balancers: Vec<_> = balancers
            .into_iter()
            .filter_map(convert::balancer)
            .collect();
        let groups = convert::told_apart(groups, &balancers);
        let observed = Observed {
            balancers,
            groups: self.with_targets(groups).await?,
        };
        self.remember(&observed);
        Ok(observed)
    }

    async fn list(&self, tags: &Tags) -> Result<(Vec<LbView>, Vec<GroupView>), CloudError> {
        let query: Vec<_> = tags
            .iter()
            .map(|(k, v)| ("tag", format!("{k}={v}")))
            .collect();
        let (balancers, groups) = futures::join!(
            self.get::<Items<LbView>>("list load balancers", "loadbalancers", &query),
            self.get::<Items<GroupView>>("list groups", "groups", &query),
        );
        Ok((balancers?.items, groups?.items))
    }

    async fn with_targets(&self, groups: Vec<Group>) -> Result<Vec<Group>, CloudError> {
        let looks = groups.into_iter().map(|group| async move {
            let path = format!("groups/{}/targets", group.id);
            let tried = format!("read targets of {}", group.spec.name);
            let seen = self.get::<TargetsView>(&tried, &path, &[]).await?;
            Ok(convert::with_targets(group, seen))
        });
        stream::iter(looks)
            .buffered(LOOKS_AT_ONCE)
            .try_collect()
            .await
    }

    /// Makes one call.
    pub async fn execute(&self, step: &LocalStep, fence: &Fence) -> Result<Effect, CloudError> {
        let answer = fence.call(self.make(step)).await;
        answer
            .unwrap_or_else(|unanswered| Err(CloudError::unanswered(step.to_string(), unanswered)))
    }

    async fn make(&self, step: &LocalStep) -> Result<Effect, CloudError> {
        match step {
            LocalStep::CreateBalancer(spec) => {
                let body = convert::balancer_body(spec);
                let made: LbView = self
                    .create(step, "loadbalancers", &spec.name, &body)
                    .await?;
                self.ids().balancers.insert(spec.name.clone(), made.id);
                Ok(Effect::Changed)
            }
            LocalStep::CreateGroup(spec) => {
                let body = convert::group_body(spec);
                let made: GroupView = self.create(step, "groups", &spec.name, &body).await?;
                self.ids().groups.insert(spec.name.clone(), made.id);
                Ok(Effect::Changed)
            }
            LocalStep::AdjustBalancer(spec) => {
                let path = format!("loadbalancers/{}", self.balancer_id(step, &spec.name)?);
                self.change(
                    step,
                    Method::PUT,
                    &path,
                    Some(&convert::balancer_body(spec)),
                )
                .await
            }
            LocalStep::AdjustGroup(spec) => {
                let path = format!("groups/{}", self.group_id(step, &spec.name)?);
                self.change(step, Method::PUT, &path, Some(&convert::group_body(spec)))
                    .await
            }
            LocalStep::Register { group, targets } => {
                let path = format!("groups/{}/targets", self.group_id(step, group)?);
                let body = convert::targets_body(targets.iter().cloned());
                self.change(step, Method::POST, &path, Some(&body)).await
            }
            LocalStep::Deregister { group, targets, .. } => {
                let path = format!("groups/{}/targets", self.group_id(step, group)?);
                let body = convert::targets_body(targets.iter().map(|(key, _)| (*key, None)));
                gone_is_done(self.change(step, Method::DELETE, &path, Some(&body)).await)
            }
            LocalStep::PutListener {
                balancer,
                listener,
                group,
                ..
            } => {
                let id = self.balancer_id(step, balancer)?;
                let body = ListenerBody {
                    group: self.group_id(step, group)?,
                };
                let path = format!("loadbalancers/{id}/listeners/{listener}");
                self.change(step, Method::PUT, &path, Some(&body)).await
            }
            LocalStep::DeleteListener {
                balancer, listener, ..
            } => {
                let id = self.balancer_id(step, balancer)?;
                self.delete(step, &format!("loadbalancers/{id}/listeners/{listener}"))
                    .await
            }
            LocalStep::DeleteBalancer { name } => {
                let id = self.balancer_id(step, name)?;
                self.delete(step, &format!("loadbalancers/{id}")).await
            }
            LocalStep::DeleteGroup { name } => {
                let id = self.group_id(step, name)?;
                self.delete(step, &format!("groups/{id}")).await
            }
        }
    }

    async fn get<T: DeserializeOwned>(
        &self,
        tried: &str,
        path: &str,
        query: &[(&str, String)],
    ) -> Result<T, CloudError> {
        let request = self.request(tried, Method::GET, path)?.query(query);
        let answer = send(tried, request).await?;
        parse(tried, answer).await
    }

    /// Creates by the name as idempotency key: a repeated create finds what the first one made.
    async fn create<T: DeserializeOwned>(
        &self,
        step: &LocalStep,
        path: &str,
        name: &str,
        body: &impl serde::Serialize,
    ) -> Result<T, CloudError> {
        let tried = step.to_string();
        let request = self.request(&tried, Method::POST, path)?;
        let request = request.header("Idempotency-Key", name).json(body);
        let answer = send(&tried, request).await?;
        parse(&tried, answer).await
    }

    async fn change(
        &self,
        step: &LocalStep,
        method: Method,
        path: &str,
        body: Option<&impl serde::Serialize>,
    ) -> Result<Effect, CloudError> {
        let tried = step.to_string();
        let mut request = self.request(&tried, method, path)?;
        if let Some(body) = body {
            request = request.json(body);
        }
        send(&tried, request).await.map(|_| Effect::Changed)
    }

    async fn delete(&self, step: &LocalStep, path: &str) -> Result<Effect, CloudError> {
        gone_is_done(self.change(step, Method::DELETE, path, None::<&()>).await)
    }

    fn request(
        &self,
        tried: &str,
        method: Method,
        path: &str,
    ) -> Result<RequestBuilder, CloudError> {
        let url = self
            .base
            .join(&format!("v1/{path}"))
            .map_err(|e| CloudError::new(Class::WrongInput, tried, format!("{path}: {e}")))?;
        Ok(self.http.request(method, url))
    }

    fn ids(&self) -> std::sync::MutexGuard<'_, Ids> {
        // Whole maps only: what a panicking thread left behind is still right.
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, seen: &Observed) {
        let mut ids = self.ids();
        for balancer in &seen.balancers {
            ids.balancers
                .insert(balancer.spec.name.clone(), balancer.id.clone());
        }
        for group in &seen.groups {
            ids.groups.insert(group.spec.name.clone(), group.id.clone());
        }
    }

    fn balancer_id(&self, step: &LocalStep, name: &str) -> Result<String, CloudError> {
        self.ids()
            .balancers
            .get(name)
            .cloned()
            .ok_or_else(|| unknown(step, name))
    }

    fn group_id(&self, step: &LocalStep, name: &str) -> Result<String, CloudError> {
        self.ids()
            .groups
            .get(name)
            .cloned()
            .ok_or_else(|| unknown(step, name))
    }
}

fn unknown(step: &LocalStep, name: &str) -> CloudError {
    CloudError::new(
        Class::NotFound,
        step.verb(),
        format!("{name} was never seen or made"),
    )
}

/// What is not there needs no removal.
fn gone_is_done(result: Result<Effect, CloudError>) -> Result<Effect, CloudError> {
    match result {
        Err(error) if error.class == Class::NotFound => Ok(Effect::AlreadySo),
        other => other,
    }
}

async fn send(tried: &str, request: RequestBuilder) -> Result<reqwest::Response, CloudError> {
    let answer = request
        .send()
        .await
        .map_err(|e| CloudError::new(Class::Transient, tried, format!("no answer: {e:?}")))?;
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let after = answer
        .headers()
        .get("retry-after")
        .and_then(|v| v.to_str().ok()?.parse().ok());
    let error: ErrorBody = answer.json().await.unwrap_or_default();
    let text = format!("{status} {}: {}", error.code, error.message);
    let mut failed = CloudError::new(class(status, &error.code), tried, text);
    failed.retry_after = after.map(Duration::from_secs);
    failed.taken = error.taken().map(Box::new);
    Err(failed)
}

async fn parse<T: DeserializeOwned>(
    tried: &str,
    answer: reqwest::Response,
) -> Result<T, CloudError> {
    let wrong = |e: reqwest::Error| {
        CloudError::new(
            Class::Transient,
            tried,
            format!("an answer that cannot be read: {e:?}"),
        )
    };
    answer.json().await.map_err(wrong)
}

fn class(status: StatusCode, code: &str) -> Class {
    match (status, code) {
        (StatusCode::NOT_FOUND, _) => Class::NotFound,
        (StatusCode::CONFLICT, "group_in_use") => Class::InUse,
        (StatusCode::CONFLICT, _) => Class::Conflict,
        (StatusCode::TOO_MANY_REQUESTS, _) => Class::Throttled,
        (_, "quota_exceeded") => Class::Quota,
        (status, _) if status.is_client_error() => Class::WrongInput,
        _ => Class::Transient,
    }
}
