//! Tokens for ARM: client secret or certificate, workload identity and managed identity (AZ-451, AZ-452), each one POST or GET.
//!
//! One token is used until it is nearly over; a claims challenge asks for a new one (AZ-376).

mod certificate;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use onehop_core::time::Time;
use onehop_runtime::clock::Clock;
use reqwest::Url;
use serde::Deserialize;
use tokio::sync::Mutex;

use crate::cloud::{Class, CloudError};

/// A token is renewed this long before it ends.
const EARLY: Duration = Duration::from_mins(5);
/// Kind of a client assertion.
const JWT_BEARER: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
/// Where a machine asks for its identity's tokens.
const MACHINE: &str = "http://169.254.169.254/metadata/identity/oauth2/token";

/// Who we are.
#[derive(Clone)]
pub enum Credential {
    /// An application with a secret.
    Secret {
        /// Its tenant.
        tenant: String,
        /// Its client id.
        client: String,
        /// Its secret.
        secret: String,
    },
    /// An application with a certificate.
    Certificate {
        /// Its tenant.
        tenant: String,
        /// Its client id.
        client: String,
        /// File with the certificate and its private key as PEM, which may be renewed there.
        file: PathBuf,
    },
    /// An application that trusts the cluster's service account tokens.
    Workload {
        /// Its tenant.
        tenant: String,
        /// Its client id.
        client: String,
        /// File with the token, which is renewed there.
        token_file: PathBuf,
    },
    /// The identity of the machine.
    Managed {
        /// Client id of a user-assigned one.
        client: Option<String>,
    },
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Secret { .. } => "Secret",
            Self::Certificate { .. } => "Certificate",
            Self::Workload { .. } => "Workload",
            Self::Managed { .. } => "Managed",
        })
    }
}

/// Where tokens come from.
#[derive(Debug)]
pub(super) struct Tokens {
    http: reqwest::Client,
    authority: Url,
    scope: String,
    credential: Credential,
    clock: Clock,
    last: Mutex<Option<(String, Time)>>,
}

#[derive(Deserialize)]
struct Answer {
    access_token: String,
    expires_in: Seconds,
}

/// Machines answer with text, everybody else with a number.
#[derive(Deserialize)]
#[serde(untagged)]
enum Seconds {
    Number(u64),
    Text(String),
}

impl Seconds {
    fn duration(&self) -> Duration {
        Duration::from_secs(match self {
            Self::Number(seconds) => *seconds,
            // A token of unknown length is used once.
            Self::Text(text) => text.parse().unwrap_or_default(),
        })
    }
}

impl Tokens {
    pub(super) fn new(
        http: reqwest::Client,
        authority: Url,
        resource: &Url,
        credential: Credential,
        clock: Clock,
    ) -> Self {
        let scope = format!("{}/.default", resource.as_str().trim_end_matches('/'));
        Self {
            http,
            authority,
            scope,
            credential,
            clock,
            last: Mutex::new(None),
        }
    }

    /// A token that holds for a while; a new one where ARM has answered with claims.
    pub(super) async fn token(&self, claims: Option<&str>) -> Result<String, CloudError> {
        // Held over the request: whoever comes meanwhile gets the same one.
        let mut last = self.last.lock().await;
        if let (Some((token, until)), None) = (&*last, claims)
            && self.clock.now() < *until
        {
            return Ok(token.clone());
        }
        let asked_at = self.clock.now();
        let answer = self.ask(claims).await?;
        let lasts = answer.expires_in.duration();
        let until = asked_at + lasts.saturating_sub(EARLY.min(lasts / 2));
        *last = Some((answer.access_token.clone(), until));
        Ok(answer.access_token)
    }

    async fn ask(&self, claims: Option<&str>) -> Result<Answer, CloudError> {
        let tried = "get a token for Azure Resource Manager";
        let failed = |error: reqwest::Error| {
            CloudError::new(Class::Transient, tried, error.without_url().to_string())
        };
        let request = self.request(claims).await?;
        let answer = request.send().await.map_err(failed)?;
        let status = answer.status();
        let body = answer.bytes().await.map_err(failed)?;
        if !status.is_success() {
            let text = String::from_utf8_lossy(&body);
            let class = if status.is_client_error() {
                Class::WrongInput
            } else {
                Class::Transient
            };
            return Err(CloudError::new(class, tried, format!("{status}: {text}")));
        }
        serde_json::from_slice(&body)
            .map_err(|error| CloudError::new(Class::Transient, tried, error.to_string()))
    }

    async fn request(&self, claims: Option<&str>) -> Result<reqwest::RequestBuilder, CloudError> {
        let (tenant, mut form) = match &self.credential {
            Credential::Managed { client } => return Ok(self.of_machine(client.as_deref())),
            Credential::Secret {
                tenant,
                client,
                secret,
            } => (
                tenant,
                vec![
                    ("client_id", client.clone()),
                    ("client_secret", secret.clone()),
                ],
            ),
            Credential::Certificate {
                tenant,
                client,
                file,
            } => {
                let what = "the client certificate";
                let read = read(file, what).await?;
                let endpoint = self.endpoint(tenant);
                let made = certificate::assertion(
                    read.as_bytes(),
                    endpoint.as_str(),
                    client,
                    self.clock.now(),
                );
                let assertion = made.map_err(|why| {
                    let tried = format!("use {what} {}", file.display());
                    CloudError::new(Class::WrongInput, tried, why)
                })?;
                (tenant, asserted(client, assertion))
            }
            Credential::Workload {
                tenant,
                client,
                token_file,
            } => {
                let read = read(token_file, "the federated token").await?;
                (tenant, asserted(client, read.trim().to_owned()))
            }
        };
        form.push(("grant_type", "client_credentials".to_owned()));
        form.push(("scope", self.scope.clone()));
        form.extend(claims.map(|claims| ("claims", claims.to_owned())));
        let url = self.endpoint(tenant);
        let body: String = form_urlencoded::Serializer::new(String::new())
            .extend_pairs(form)
            .finish();
        let request = self.http.post(url).body(body);
        Ok(request.header("content-type", "application/x-www-form-urlencoded"))
    }

    /// Where a tenant's tokens are asked for.
    fn endpoint(&self, tenant: &str) -> Url {
        let mut url = self.authority.clone();
        url.set_path(&format!(
            "{}/{tenant}/oauth2/v2.0/token",
            url.path().trim_end_matches('/')
        ));
        url
    }

    fn of_machine(&self, client: Option<&str>) -> reqwest::RequestBuilder {
        let resource = self.scope.trim_end_matches("/.default");
        let mut query = vec![("api-version", "2018-02-01"), ("resource", resource)];
        query.extend(client.map(|client| ("client_id", client)));
        self.http
            .get(MACHINE)
            .header("Metadata", "true")
            .query(&query)
    }
}

async fn read(file: &Path, what: &str) -> Result<String, CloudError> {
    tokio::fs::read_to_string(file).await.map_err(|error| {
        let tried = format!("read {what} {}", file.display());
        CloudError::new(Class::Transient, tried, error.to_string())
    })
}

fn asserted(client: &str, assertion: String) -> Vec<(&'static str, String)> {
    vec![
        ("client_id", client.to_owned()),
        ("client_assertion_type", JWT_BEARER.to_owned()),
        ("client_assertion", assertion),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn az407_the_scope_is_the_endpoints_and_one_token_is_used_until_it_is_nearly_over() {
        let now = Time::from_millis(1_000_000);
        for (resource, scope) in [
            (
                "https://management.azure.com/",
                "https://management.azure.com/.default",
            ),
            (
                "https://management.usgovcloudapi.net",
                "https://management.usgovcloudapi.net/.default",
            ),
        ] {
            let resource: Url = resource.parse().unwrap();
            let credential = Credential::Managed { client: None };
            let http = reqwest::Client::new();
            let clock = Clock::fixed(now);
            let tokens = Tokens::new(http, resource.clone(), &resource, credential, clock);
            assert_eq!(tokens.scope, scope, "AZ-407");
            // Nobody is asked again while there is one.
            *tokens.last.lock().await = Some(("t".to_owned(), now + Duration::from_hours(1)));
            for _ in 0..2 {
                assert_eq!(tokens.token(None).await.unwrap(), "t", "AZ-407");
            }
        }
    }
}
