//! A server to test, and short ways to make objects.

use e2e_apiserver::{ApiServer, Clock, Config, Identity};
use kube::Client;
use onehop_core::time::Time;
use serde_json::Value;

/// A fresh server.
pub(crate) fn server() -> ApiServer {
    server_with(Config::default())
}

/// A fresh server of a configuration.
pub(crate) fn server_with(config: Config) -> ApiServer {
    // 2026-01-01T00:00:00Z
    ApiServer::start(Clock::fixed(Time::from_millis(1_767_225_600_000)), config)
}

/// A client of a fresh server.
pub(crate) fn client() -> Client {
    server().client(&Identity::admin())
}

/// Any object, typed by the caller.
pub(crate) fn typed<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("the object has the shape of its kind")
}

/// Sends a request with a JSON body and reads the JSON answer, whatever its code.
pub(crate) async fn raw(client: &Client, method: &str, path: &str, body: &Value) -> (u16, Value) {
    raw_as(client, method, path, "application/json", body).await
}

/// The same with another content type.
pub(crate) async fn raw_as(
    client: &Client,
    method: &str,
    path: &str,
    content_type: &str,
    body: &Value,
) -> (u16, Value) {
    let bytes = if body.is_null() {
        Vec::new()
    } else {
        body.to_string().into_bytes()
    };
    let request = ::http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content_type)
        .header("user-agent", "test/1")
        .body(kube::client::Body::from(bytes))
        .expect("the request is well-formed");
    let response = client.send(request).await.expect("the server answers");
    let code = response.status().as_u16();
    let bytes = response
        .into_body()
        .collect_bytes()
        .await
        .expect("the body is whole");
    (code, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}
