//! Requests: who asks, for what, and what is answered.

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::Azure;
use super::error::Refusal;
use super::resources::{Answer, Ask};

/// Versions of the API that are understood (AZ-492).
const VERSIONS: std::ops::RangeInclusive<&str> = "2022-09-01"..="2026-03-01";
/// How long a token lasts, in seconds.
const TOKEN_SECONDS: u64 = 3600;

/// Answers one request.
pub(super) async fn handle(
    State((azure, scheme)): State<(Azure, &'static str)>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if method == Method::POST && uri.path().ends_with("/oauth2/v2.0/token") {
        return token(&azure, &body);
    }
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let ask = Asked {
        method,
        base: host.map_or_else(String::new, |host| format!("{scheme}://{host}")),
        uri,
        headers,
    };
    let mut response = response(answer(&azure, &ask, &body));
    for (name, left) in azure.subscription().left() {
        let name = HeaderName::from_static(name);
        response.headers_mut().insert(name, left.into());
    }
    response
}

fn response(answer: Result<Answer, Refusal>) -> Response {
    match answer {
        Ok(answer) => respond(answer),
        Err(refusal) if refusal.status == StatusCode::UNAUTHORIZED => {
            let mut response = (refusal.status, axum::Json(refusal.body())).into_response();
            let claims =
                "Bearer error=\"insufficient_claims\", claims=\"eyJhY2Nlc3NfdG9rZW4iOnt9fQ==\"";
            if refusal.detail.is_some()
                && let Ok(value) = claims.parse()
            {
                response
                    .headers_mut()
                    .insert(header::WWW_AUTHENTICATE, value);
            }
            response
        }
        Err(refusal) => {
            let mut response = (refusal.status, axum::Json(refusal.body())).into_response();
            if refusal.status == StatusCode::TOO_MANY_REQUESTS {
                response.headers_mut().insert(header::RETRY_AFTER, 1.into());
            }
            response
        }
    }
}

/// AZ-451, AZ-452: a client with its secret, or with any assertion.
fn token(azure: &Azure, body: &[u8]) -> Response {
    let text = String::from_utf8_lossy(body);
    let field = |wanted: &str| {
        let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
        pairs
            .into_iter()
            .find(|(key, _)| *key == wanted)
            .map(|(_, value)| value.to_owned())
    };
    let mut subscription = azure.subscription();
    let client = field("client_id").unwrap_or_default();
    let secret = subscription.setup.clients.get(&client).cloned();
    let known = secret.is_some_and(|secret| {
        let trusted = field("client_assertion").is_some_and(|assertion| !assertion.is_empty());
        field("client_secret") == Some(secret) || trusted
    });
    if !known || field("scope").is_none_or(|scope| !scope.ends_with(".default")) {
        let body = json!({"error": "invalid_client", "error_description": "unknown client, wrong secret or no scope"});
        return (StatusCode::UNAUTHORIZED, axum::Json(body)).into_response();
    }
    let token = subscription.new_token(field("claims").is_some());
    let body = json!({"token_type": "Bearer", "expires_in": TOKEN_SECONDS, "access_token": token});
    axum::Json(body).into_response()
}

/// A request as it came.
struct Asked {
    method: Method,
    base: String,
    uri: Uri,
    headers: HeaderMap,
}

fn answer(azure: &Azure, asked: &Asked, body: &[u8]) -> Result<Answer, Refusal> {
    let Asked {
        method,
        base,
        uri,
        headers,
    } = asked;
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let token = text(header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
    azure.cloud.with(|engine, now| {
        let mut subscription = azure.subscription();
        subscription.authenticate(token)?;
        let version = uri.query().and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("api-version=")));
        let of_network = !uri.path().contains("/providers/Microsoft.Authorization/")
            && !uri.path().ends_with("/providers/Microsoft.Network");
        if !version.is_some_and(|version| !of_network || VERSIONS.contains(&version)) {
            let message = "The api-version query parameter (?api-version=) is required, in a version that is known.";
            return Err(Refusal::bad("MissingApiVersionParameter", message));
        }
        let body = if body.is_empty() { Ok(Value::Null) } else { serde_json::from_slice(body) };
        let body = body.map_err(|error| Refusal::bad("InvalidRequestContent", error.to_string()))?;
        let ask = Ask {
            method: method.clone(),
            base: base.clone(),
            path: uri.path().to_owned(),
            page: uri.query().and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("$skip=")))
                .and_then(|page| page.parse().ok())
                .unwrap_or_default(),
            if_match: text(header::IF_MATCH).map(str::to_owned),
            body,
        };
        subscription.answer(&ask, engine, now)
    })
}

fn respond(answer: Answer) -> Response {
    if answer.lost {
        // The server drops the connection when a body fails before anything was sent.
        let fails = futures::stream::iter([Err::<Vec<u8>, _>(std::io::Error::other("lost"))]);
        return (StatusCode::OK, Body::from_stream(fails)).into_response();
    }
    let mut response = match answer.body {
        Value::Null => answer.status.into_response(),
        body => (answer.status, axum::Json(body)).into_response(),
    };
    for (name, value) in answer.headers {
        if let Ok(value) = value.parse() {
            response.headers_mut().insert(name, value);
        }
    }
    response
}
