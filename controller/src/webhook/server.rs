//! The port of the webhook: TLS with whatever certificate is shown at the moment, and reviews of new pods.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::extract::DefaultBodyLimit;
use axum::routing::post;
use axum::{Json, Router};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper_util::service::TowerToHyperService;
use onehop_runtime::clock::Clock;
use onehop_runtime::http::{converse, serve_each};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::admit::{Ask, Injection, patch};
use super::certificates::Pair;
use crate::metrics::{Measures, Reviewed};

/// Largest review that is read: the API server's own limit for an object is lower.
const BODY: usize = 8 << 20;
/// Time for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// A certificate that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ShowError {
    /// It is no PEM.
    #[error("no certificate or key: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    /// Its key is of no kind that is known.
    #[error(transparent)]
    Key(#[from] rustls::Error),
}

/// What the server shows. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Shown(Arc<RwLock<Option<Arc<CertifiedKey>>>>);

impl Shown {
    /// Shows this from the next connection on.
    pub fn show(&self, pair: &Pair) -> Result<(), ShowError> {
        let chain = CertificateDer::pem_slice_iter(pair.certificate.as_bytes());
        let chain = chain.collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes())?;
        let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key)?;
        let new = Arc::new(CertifiedKey::new(chain, key));
        let mut shown = self.0.write().unwrap_or_else(PoisonError::into_inner);
        *shown = Some(new);
        Ok(())
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let shown = self.0.read().unwrap_or_else(PoisonError::into_inner);
        shown.clone()
    }
}

/// What is known of a new pod: its namespace and labels.
pub type Decide = dyn Fn(&str, &BTreeMap<String, String>, Ask) -> Injection + Send + Sync;

/// The port.
pub struct Server {
    /// Where it listens.
    pub listener: TcpListener,
    /// The time.
    pub clock: Clock,
    /// What it shows.
    pub shown: Shown,
    /// What a new pod is to have.
    pub decide: Arc<Decide>,
    /// Metrics.
    pub measures: Measures,
}

impl Server {
    /// Serves until dropped.
    pub async fn run(self) -> Result<(), rustls::Error> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(self.shown));
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let mut router = Router::new();
        for ask in [Ask::Gates, Ask::PeersGates, Ask::Pause] {
            let (decide, measures) = (Arc::clone(&self.decide), self.measures.clone());
            let answer = move |Json(asked): Json<Value>| async move {
                let (answer, result) = review(&asked, ask, &*decide);
                measures.reviews.get_or_create(&Reviewed { result }).inc();
                Json(answer)
            };
            router = router.route(ask.path(), post(answer));
        }
        let service = TowerToHyperService::new(router.layer(DefaultBodyLimit::max(BODY)));
        let (clock, measures) = (self.clock, self.measures);
        serve_each(self.listener, clock, |stream| {
            let (acceptor, service) = (acceptor.clone(), service.clone());
            let refused = measures.webhook_handshakes_failed.clone();
            async move {
                match clock.within(HANDSHAKE, acceptor.accept(stream)).await {
                    Ok(Ok(stream)) => converse(stream, service).await,
                    Ok(Err(error)) => {
                        refused.inc();
                        tracing::debug!(%error, "a handshake with the webhook failed");
                    }
                    Err(_) => tracing::debug!("a handshake with the webhook took too long"),
                }
            }
        })
        .await;
        Ok(())
    }
}

/// The answer to a review, and one word for it. A pod is never refused.
fn review(asked: &Value, ask: Ask, decide: &Decide) -> (Value, &'static str) {
    let request = &asked["request"];
    let pod = &request["object"];
    let labels = pod["metadata"]["labels"].as_object().into_iter().flatten();
    let labels = labels
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect();
    let namespace = request["namespace"].as_str().unwrap_or_default();
    let operations = patch(pod, &decide(namespace, &labels, ask));
    let mut response = json!({ "uid": request["uid"], "allowed": true });
    let result = if operations.is_empty() {
        "unchanged"
    } else {
        response["patchType"] = "JSONPatch".into();
        let operations = Value::from(operations).to_string();
        response["patch"] = STANDARD.encode(operations).into();
        "patched"
    };
    let answer = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response,
    });
    (answer, result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zd94_a_pod_is_never_refused_whatever_the_review_looks_like() {
        let gate = |namespace: &str, labels: &BTreeMap<String, String>, ask: Ask| {
            let ours = namespace == "shop" && labels.get("app").is_some_and(|app| app == "web");
            Injection {
                gates: (ours && ask == Ask::Gates)
                    .then(|| "g".to_owned())
                    .into_iter()
                    .collect(),
                pause: Duration::ZERO,
            }
        };
        let review_of = |request: Value| review(&json!({ "request": request }), Ask::Gates, &gate);
        let pod = json!({ "metadata": { "labels": { "app": "web" } }, "spec": {} });
        let (answer, result) = review_of(json!({ "uid": "u", "namespace": "shop", "object": pod }));
        let response = &answer["response"];
        assert_eq!((result, &response["uid"]), ("patched", &json!("u")));
        assert_eq!(response["patchType"], "JSONPatch");
        let patch = STANDARD
            .decode(response["patch"].as_str().unwrap())
            .unwrap();
        let patch: Value = serde_json::from_slice(&patch).unwrap();
        assert_eq!(patch[0]["path"], "/spec/readinessGates", "AWS-501");
        let odd = [
            json!({}),
            json!({ "namespace": "shop", "object": { "metadata": { "labels": [1] }, "spec": 3 } }),
            json!({ "uid": "u", "namespace": "other", "object": pod }),
        ];
        for request in odd {
            let (answer, result) = review_of(request);
            assert_eq!(answer["response"]["allowed"], true, "ZD-94");
            assert_eq!(
                (result, answer["response"].get("patch")),
                ("unchanged", None)
            );
        }
    }
}
