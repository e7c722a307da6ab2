//! Whether a token may read metrics, as the API server says. Its answers are kept for a short time: a scraper comes again and
//! again. Whoever floods the port with tokens has few questions asked at a time.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::StatusCode;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use onehop_core::time::Time;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use super::PATH;
use crate::clock::Clock;
use crate::log::Chain;

/// How long a yes holds: who loses the right may read for so long.
const ALLOWED_FOR: Duration = Duration::from_mins(1);
/// How long a no holds.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// Tokens of which an answer is kept.
const KNOWN: usize = 64;
/// Questions to the API server at a time.
const AT_ONCE: usize = 2;
/// Time for both questions, with the wait for others.
const PATIENCE: Duration = Duration::from_secs(10);

/// Of a token; the token itself is not kept.
type Print = [u8; 32];

/// An answer, and until when it holds.
type Held = (StatusCode, Time);

pub(super) struct Access {
    client: Client,
    clock: Clock,
    asking: Semaphore,
    known: Mutex<HashMap<Print, Held>>,
}

impl Access {
    pub(super) fn new(client: Client, clock: Clock) -> Self {
        Self {
            client,
            clock,
            asking: Semaphore::new(AT_ONCE),
            known: Mutex::default(),
        }
    }

    /// OK for whoever may; 401 for a token of nobody, 403 for who may not, 503 where the API server does not say.
    pub(super) async fn of(&self, token: &str) -> StatusCode {
        let print: Print = Sha256::digest(token.as_bytes()).into();
        if let Some(status) = self.held(&print) {
            return status;
        }
        let asked = async {
            // It is never closed.
            let _turn = self.asking.acquire().await.ok();
            match self.held(&print) {
                Some(status) => Ok(status),
                None => self.ask(token).await,
            }
        };
        match self.clock.within(PATIENCE, asked).await {
            Ok(Ok(status)) => {
                self.hold(print, status);
                status
            }
            Ok(Err(error)) => {
                let error = Chain(&error);
                tracing::warn!(
                    %error,
                    "a scrape of metrics is refused: the API server does not say whether it may (rights to create \
                     tokenreviews and subjectaccessreviews)"
                );
                StatusCode::SERVICE_UNAVAILABLE
            }
            Err(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn held(&self, print: &Print) -> Option<StatusCode> {
        let now = self.clock.now();
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (status, until) = known.get(print)?;
        (*until > now).then_some(*status)
    }

    fn hold(&self, print: Print, status: StatusCode) {
        let now = self.clock.now();
        let holds = if status == StatusCode::OK {
            ALLOWED_FOR
        } else {
            REFUSED_FOR
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, (_, until)| *until > now);
        if known.len() < KNOWN {
            known.entry(print).or_insert((status, now + holds));
        }
    }

    async fn ask(&self, token: &str) -> Result<StatusCode, kube::Error> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: Some(token.to_owned()),
                ..TokenReviewSpec::default()
            },
            ..TokenReview::default()
        };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let answer = api.create(&PostParams::default(), &review).await?;
        let status = answer.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true));
        let Some(user) = user else {
            return Ok(StatusCode::UNAUTHORIZED);
        };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let answer = api.create(&PostParams::default(), &may_read(user)).await?;
        let allowed = answer.status.is_some_and(|status| status.allowed);
        Ok(if allowed {
            StatusCode::OK
        } else {
            StatusCode::FORBIDDEN
        })
    }
}

/// The question whether somebody may read metrics.
fn may_read(user: UserInfo) -> SubjectAccessReview {
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: user.username,
            uid: user.uid,
            groups: user.groups,
            extra: user.extra,
            non_resource_attributes: Some(NonResourceAttributes {
                path: Some(PATH.to_owned()),
                verb: Some("get".to_owned()),
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}
