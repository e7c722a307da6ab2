//! Keeps the Secret with the webhook's certificates and what API servers are told to trust, and gives the server what it
//! shows (C-64, C-77, C-78).
//!
//! The chart makes the Secret without content and the configuration without `caBundle`; both are filled here, by the leader
//! alone. Every replica reads the Secret: all show the same certificate, and none reads it from anywhere else.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use onehop_core::id::InstallId;
use onehop_core::time::Time;
use onehop_runtime::backoff::{Backoff, Policy};
use onehop_runtime::clock::Clock;
use onehop_runtime::log::Chain;
use rand::rngs::SmallRng;
use serde_json::json;

use super::certificates::{MakeError, Pair, State, Times};
use super::server::Shown;
use crate::lease::Fence;
use crate::metrics::Measures;

/// Between two looks at who may write, and at what time has done.
const LOOK: Duration = Duration::from_secs(5);
/// Key of the Secret under which everything is kept.
const STATE: &str = "state.json";

/// Why nothing could be kept.
#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error(transparent)]
    Make(#[from] MakeError),
    #[error("cannot write {0}: {1}")]
    Write(&'static str, #[source] kube::Error),
    #[error("cannot read what is kept: {0}")]
    Read(#[from] serde_json::Error),
}

/// The keeper of one replica.
pub struct Keeper {
    /// Behind the fence.
    pub client: Client,
    /// The right to write.
    pub fence: Fence,
    /// The time.
    pub clock: Clock,
    /// Namespace of Service and Secret.
    pub namespace: String,
    /// Name of Service, Secret and configuration.
    pub name: String,
    /// How long certificates last.
    pub times: Times,
    /// Whose writes they are.
    pub install: InstallId,
    /// Metrics.
    pub measures: Measures,
    /// For spacing.
    pub rng: SmallRng,
}

impl Keeper {
    /// Keeps until dropped; `shown` is what the server shows from then on.
    pub async fn run(mut self, shown: Shown) {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        let (for_secret, for_configuration) = (self.watching(), self.watching());
        let secret = watch_object(secrets.clone(), &self.name).backoff(for_secret);
        let configuration =
            watch_object(configurations.clone(), &self.name).backoff(for_configuration);
        let (mut secret, mut configuration) = (pin!(secret), pin!(configuration));
        let (mut kept, mut told) = (None::<Secret>, None::<MutatingWebhookConfiguration>);
        let (mut has_secret, mut has_configuration) = (false, false);
        let mut backoff = Policy::RETRY.start(&mut self.rng);
        loop {
            let mut again = None;
            if let Some(object) = &kept {
                let state = read(object);
                if let Some(state) = &state {
                    self.show(state, &shown);
                }
                // Both or nothing: what is trusted decides what may be served (I1).
                if has_secret && has_configuration {
                    again = match self.keep(object, state, told.as_ref()).await {
                        Ok(next) => {
                            backoff.reset();
                            Some(next)
                        }
                        Err(error) => {
                            self.failed(&error);
                            Some(self.clock.now() + backoff.next_delay())
                        }
                    };
                }
            }
            let wait = async {
                match again {
                    Some(at) => self.clock.sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(seen) = secret.next() => match seen {
                    Ok(object) => {
                        if object.is_none() {
                            tracing::warn!(name = self.name, "the webhook's Secret is not there: install the chart's");
                        }
                        (kept, has_secret) = (object, true);
                    }
                    Err(error) => tracing::warn!(error = %Chain(&error), "cannot watch the webhook's Secret"),
                },
                Some(seen) = configuration.next() => match seen {
                    Ok(object) => (told, has_configuration) = (object, true),
                    Err(error) => tracing::warn!(error = %Chain(&error), "cannot watch the webhook's configuration"),
                },
                () = wait => {}
            }
        }
    }

    fn watching(&mut self) -> Backoff {
        Policy::WATCH.start(&mut self.rng)
    }

    fn show(&self, state: &State, shown: &Shown) {
        let expires = state.serving.expires.as_millis() / 1000;
        self.measures.webhook_expiry.set(expires);
        if let Err(error) = shown.show(&state.serving) {
            tracing::error!(%error, "the webhook's certificate cannot be served");
        }
    }

    fn failed(&self, error: &KeepError) {
        // Who may not write has nobody to tell; the leader does it.
        if self.fence.check().is_ok() {
            self.measures.write_failures.inc();
            tracing::warn!(error = %Chain(error), "the webhook's certificate is not kept, trying again");
        }
    }

    /// Brings Secret and configuration on; the answer is when time has something to say again.
    async fn keep(
        &self,
        secret: &Secret,
        state: Option<State>,
        told: Option<&MutatingWebhookConfiguration>,
    ) -> Result<Time, KeepError> {
        let now = self.clock.now();
        let look = now + LOOK;
        if self.fence.check().is_err() {
            return Ok(look);
        }
        let names = [
            format!("{}.{}.svc", self.name, self.namespace),
            format!("{}.{}.svc.cluster.local", self.name, self.namespace),
        ];
        let trusted = told.map(trusted).unwrap_or_default();
        let common = trusted
            .first()
            .filter(|first| trusted.iter().all(|t| t == *first));
        let common = common.cloned().unwrap_or_default();
        let make = || Pair::make(&names, now, self.times.lifetime);
        if let Some(new) = State::after(state.as_ref(), &common, now, &self.times, make)? {
            self.write(secret, &new).await?;
            // The watch brings it back, and what has to be trusted with it.
            return Ok(look);
        }
        let Some((state, told)) = state.zip(told) else {
            return Ok(look);
        };
        let bundle = state.bundle();
        if trusted.iter().any(|is| *is != bundle) {
            self.tell(told, &bundle).await?;
        }
        Ok(state
            .next_change(&self.times)
            .min(now + self.times.settle)
            .max(look))
    }

    /// Replaces what is kept, if nobody was faster.
    async fn write(&self, secret: &Secret, state: &State) -> Result<(), KeepError> {
        let mut new = secret.clone();
        let bytes = ByteString(serde_json::to_vec(state)?);
        new.data = Some(BTreeMap::from([(STATE.to_owned(), bytes)]));
        new.metadata.managed_fields = None;
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let params = PostParams {
            field_manager: Some(self.manager()),
            ..PostParams::default()
        };
        match api.replace(&self.name, &params, &new).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            written => written
                .map(drop)
                .map_err(|e| KeepError::Write("the webhook's Secret", e)),
        }
    }

    /// Tells API servers whom to trust, by our own field manager (C-62).
    async fn tell(
        &self,
        told: &MutatingWebhookConfiguration,
        bundle: &str,
    ) -> Result<(), KeepError> {
        let webhooks = told.webhooks.iter().flatten();
        let webhooks: Vec<_> = webhooks
            .map(|webhook| {
                let bundle = ByteString(bundle.as_bytes().to_vec());
                json!({ "name": webhook.name, "clientConfig": { "caBundle": bundle } })
            })
            .collect();
        let body = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": { "name": self.name, "uid": told.metadata.uid },
            "webhooks": webhooks,
        });
        let api: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        let params = PatchParams {
            field_manager: Some(self.manager()),
            ..PatchParams::default()
        };
        // Merged by name: a webhook that has gone meanwhile would come back as half of one, which is refused.
        let written = api
            .patch(&self.name, &params, &Patch::Strategic(body))
            .await;
        written
            .map(drop)
            .map_err(|e| KeepError::Write("the webhook's configuration", e))
    }

    fn manager(&self) -> String {
        format!("onehop-{}-webhook", self.install)
    }
}

/// What is kept; nothing where somebody has put something else there, which is replaced.
fn read(secret: &Secret) -> Option<State> {
    let bytes = secret.data.as_ref()?.get(STATE)?;
    serde_json::from_slice(&bytes.0)
        .inspect_err(
            |error| tracing::warn!(%error, "the webhook's Secret cannot be read and is made anew"),
        )
        .ok()
}

/// Whom API servers trust, for each webhook.
fn trusted(told: &MutatingWebhookConfiguration) -> Vec<String> {
    let webhooks = told.webhooks.iter().flatten();
    webhooks
        .map(|webhook| {
            let bundle = webhook.client_config.ca_bundle.as_ref();
            bundle.map_or_else(String::new, |b| String::from_utf8_lossy(&b.0).into_owned())
        })
        .collect()
}
