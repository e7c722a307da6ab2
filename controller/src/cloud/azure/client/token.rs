//! Tokens for ARM: client secret, workload identity and managed identity (AZ-451, AZ-452), each one POST or GET.
//!
//! One token is used until it is nearly over; a claims challenge asks for a new one (AZ-376).

use std::fmt;
use std::path::PathBuf;
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
            Credential::Workload {
                tenant,
                client,
                token_file,
            } => {
                let read = tokio::fs::read_to_string(token_file)
                    .await
                    .map_err(|error| {
                        let tried = format!("read the federated token {}", token_file.display());
                        CloudError::new(Class::Transient, tried, error.to_string())
                    })?;
                let assertion = read.trim().to_owned();
                let kind = JWT_BEARER.to_owned();
                (
                    tenant,
                    vec![
                        ("client_id", client.clone()),
                        ("client_assertion_type", kind),
                        ("client_assertion", assertion),
                    ],
                )
            }
        };
        form.push(("grant_type", "client_credentials".to_owned()));
        form.push(("scope", self.scope.clone()));
        form.extend(claims.map(|claims| ("claims", claims.to_owned())));
        let mut url = self.authority.clone();
        url.set_path(&format!(
            "{}/{tenant}/oauth2/v2.0/token",
            url.path().trim_end_matches('/')
        ));
        let body: String = form_urlencoded::Serializer::new(String::new())
            .extend_pairs(form)
            .finish();
        let request = self.http.post(url).body(body);
        Ok(request.header("content-type", "application/x-www-form-urlencoded"))
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
