//! A server behind the door, the API server as a function, and a scraper that speaks TLS.

use std::sync::Mutex;

use http_body_util::BodyExt;
use kube::client::Body;
use onehop_core::time::Time;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;

use super::*;

const NOW: Time = Time::from_millis(1_800_000_000_000);
const DAY: Duration = Duration::from_hours(24);

/// What the API server was asked, and how it answers: `good` may, `known` is somebody who may not.
#[derive(Clone, Default)]
struct Reviews {
    asked: Arc<Mutex<Vec<Value>>>,
    away: Arc<Mutex<bool>>,
}

impl Reviews {
    fn client(&self) -> Client {
        let reviews = self.clone();
        let answer = tower::service_fn(move |request: http::Request<Body>| {
            let reviews = reviews.clone();
            async move { reviews.answer(request).await }
        });
        Client::new(answer, "default")
    }

    async fn answer(self, request: http::Request<Body>) -> Result<Response<Body>, std::io::Error> {
        let bytes = request.into_body().collect().await.unwrap().to_bytes();
        let review: Value = serde_json::from_slice(&bytes).unwrap();
        if *self.away.lock().unwrap() {
            return Err(std::io::Error::other("nobody is there"));
        }
        let spec = &review["spec"];
        let status = if review["kind"] == "TokenReview" {
            let user = spec["token"].as_str().unwrap_or_default();
            let known = ["good", "known"].contains(&user);
            json!({"authenticated": known, "user": {"username": user, "groups": ["g"], "extra": {"a": ["b"]}}})
        } else {
            json!({"allowed": spec["user"] == "good"})
        };
        let mut answer = review.clone();
        answer["status"] = status;
        self.asked.lock().unwrap().push(review);
        Ok(Response::new(Body::from(answer.to_string().into_bytes())))
    }

    fn count(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

/// A scraper that takes whatever certificate is shown, as the chart's monitor says, and keeps it.
#[derive(Debug, Default)]
struct Lenient(Mutex<Option<Vec<u8>>>);

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _others: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        *self.0.lock().unwrap() = Some(shown.to_vec());
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

struct Port {
    at: std::net::SocketAddr,
    reviews: Reviews,
    clock: Clock,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Port {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Port {
    async fn open() -> Self {
        let (reviews, clock) = (Reviews::default(), Clock::fixed(NOW));
        let scrapes = Scrapes::new("node-a", reviews.client(), clock).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let server = tokio::spawn(scrapes.serve(listener, || "a 1".to_owned()));
        Self {
            at,
            reviews,
            clock,
            server,
        }
    }

    /// Status and body of an answer over TLS, and the certificate that was shown.
    async fn ask(&self, method: &str, path: &str, header: Option<&str>) -> (u16, String, Vec<u8>) {
        let seen = Arc::new(Lenient::default());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(seen.clone())
            .with_no_client_auth();
        let stream = TcpStream::connect(self.at).await.unwrap();
        let name = ServerName::try_from("node-a").unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        let mut stream = connector.connect(name, stream).await.unwrap();
        let header = header.map_or_else(String::new, |h| format!("Authorization: {h}\r\n"));
        let request =
            format!("{method} {path} HTTP/1.1\r\nHost: x\r\n{header}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        // A server that ends without saying so in TLS has said all in HTTP.
        let _ = stream.read_to_string(&mut text).await;
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let shown = seen.0.lock().unwrap().take().unwrap();
        (status, body.to_owned(), shown)
    }

    async fn status(&self, method: &str, path: &str, header: Option<&str>) -> u16 {
        self.ask(method, path, header).await.0
    }
}

#[tokio::test]
async fn s300_metrics_are_for_those_only_whom_the_api_server_lets_read_them() {
    let port = Port::open().await;
    let cases = [
        (None, 401),
        (Some("Basic good"), 401),
        (Some("Bearer "), 401),
        (Some("Bearer nobody"), 401),
        (Some("Bearer known"), 403),
        (Some("Bearer good"), 200),
        (Some("bearer good"), 200),
    ];
    for (header, wanted) in cases {
        let (status, body, _) = port.ask("GET", "/metrics", header).await;
        assert_eq!(status, wanted, "S-300: {header:?}");
        assert_eq!(body == "a 1", wanted == 200, "S-300: {header:?}: {body}");
    }
    // Nothing else is there, and who is not let in does not even learn that.
    for (method, path, header, wanted) in [
        ("GET", "/services", None, 401),
        ("GET", "/services", Some("Bearer good"), 404),
        ("POST", "/verify", Some("Bearer good"), 404),
        ("GET", "/configz", Some("Bearer known"), 403),
        ("POST", "/metrics", Some("Bearer good"), 405),
    ] {
        let status = port.status(method, path, header).await;
        assert_eq!(status, wanted, "S-300: {method} {path} {header:?}");
    }
    let asked = port.reviews.asked.lock().unwrap().clone();
    let access = asked
        .iter()
        .find(|one| one["kind"] == "SubjectAccessReview");
    let spec = &access.unwrap()["spec"];
    let wanted = json!({"path": "/metrics", "verb": "get"});
    assert_eq!(spec["nonResourceAttributes"], wanted, "S-300");
    assert_eq!(
        (&spec["groups"], &spec["extra"]),
        (&json!(["g"]), &json!({"a": ["b"]}))
    );
}

#[tokio::test(start_paused = true)]
async fn s300_an_answer_is_kept_for_a_while_and_what_is_kept_is_bounded() {
    let (reviews, clock) = (Reviews::default(), Clock::fixed(NOW));
    let access = Access::new(reviews.client(), clock);
    for _ in 0..3 {
        assert_eq!(access.of("good").await, StatusCode::OK);
        assert_eq!(access.of("nobody").await, StatusCode::UNAUTHORIZED);
    }
    assert_eq!(reviews.count(), 3, "two questions and one");
    clock.sleep(Duration::from_secs(11)).await;
    access.of("good").await;
    access.of("nobody").await;
    assert_eq!(reviews.count(), 4, "a no is asked for again sooner");
    clock.sleep(Duration::from_mins(1)).await;
    // No yes outlives its minute, also where nobody answers.
    *reviews.away.lock().unwrap() = true;
    let status = access.of("good").await;
    assert_eq!(
        status,
        StatusCode::SERVICE_UNAVAILABLE,
        "S-300: closed, not open"
    );
    *reviews.away.lock().unwrap() = false;
    assert_eq!(
        access.of("good").await,
        StatusCode::OK,
        "S-300: at once again"
    );
    let mut asked = Vec::new();
    for _ in 0..2 {
        let before = reviews.count();
        for number in 0..100 {
            access.of(&format!("token {number}")).await;
        }
        asked.push(reviews.count() - before);
    }
    // One of the 64 is the good one's.
    assert_eq!(asked, [100, 37]);
}

#[tokio::test(start_paused = true)]
async fn s300_the_certificate_is_made_anew_before_it_ends() {
    let clock = Clock::fixed(NOW);
    let own = OwnCertificate::new("node-a", clock);
    let shown = || own.shown().unwrap().cert[0].to_vec();
    let first = shown();
    assert_eq!(first, shown());
    clock.sleep(19 * DAY).await;
    assert_eq!(first, shown(), "S-300");
    clock.sleep(2 * DAY).await;
    let second = shown();
    assert_ne!(first, second, "S-300: ten days before its end");
    assert_eq!(second, shown());
    assert!(!format!("{own:?}").contains("KEY"));
}

#[tokio::test]
async fn s300_no_plain_http_is_answered() {
    let port = Port::open().await;
    let mut stream = TcpStream::connect(port.at).await.unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer good\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    let ended = stream.read_to_end(&mut answer);
    let ended = port.clock.within(Duration::from_secs(20), ended).await;
    assert!(ended.is_ok(), "S-300");
    let text = String::from_utf8_lossy(&answer);
    assert!(!text.contains("HTTP/1.1") && !text.contains("a 1"), "S-300");
    assert_eq!(port.reviews.count(), 0);
}
