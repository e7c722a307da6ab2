//! Counts and times the requests to the API server by the names that Kubernetes' own programs use, so that dashboards
//! made for them work (S-301).

use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use tower::{Layer, Service};

use crate::clock::Clock;
use crate::metrics::Metrics;

/// Upper bounds of the times, in seconds; those of Kubernetes' own clients.
const BUCKETS: [f64; 12] = [
    0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0,
];
/// What stands for the status of a request without an answer.
const NO_ANSWER: &str = "<error>";

/// Labels of a request's count.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Counted {
    code: String,
    host: String,
    method: String,
}

/// Labels of a request's time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Timed {
    host: String,
    verb: String,
}

/// Requests to the API server, as metrics. A layer of the client.
#[derive(Clone, Debug)]
pub struct Requests {
    clock: Clock,
    count: Family<Counted, Counter>,
    time: Family<Timed, Histogram, fn() -> Histogram>,
}

impl Requests {
    /// Registers `rest_client_requests_total` and `rest_client_request_duration_seconds`.
    pub fn new(metrics: &Metrics, clock: Clock) -> Self {
        let requests = Self {
            clock,
            count: Family::default(),
            time: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
        };
        metrics.register(|registry| {
            registry.register(
                "rest_client_requests",
                "Requests to the API server, by status, method and host",
                requests.count.clone(),
            );
            registry.register(
                "rest_client_request_duration_seconds",
                "Time until an answer of the API server began, by verb and host",
                requests.time.clone(),
            );
        });
        requests
    }

    fn note(&self, host: String, method: &str, code: String, took: Duration) {
        let method = method.to_owned();
        let time = Timed {
            host: host.clone(),
            verb: method.clone(),
        };
        let seconds = took.as_secs_f64();
        self.time.get_or_create(&time).observe(seconds);
        let count = Counted { code, host, method };
        self.count.get_or_create(&count).inc();
    }
}

impl<S> Layer<S> for Requests {
    type Service = Noted<S>;

    fn layer(&self, inner: S) -> Noted<S> {
        Noted {
            inner,
            requests: self.clone(),
        }
    }
}

/// A client whose requests are noted.
#[derive(Clone, Debug)]
pub struct Noted<S> {
    inner: S,
    requests: Requests,
}

impl<S, A, B> Service<Request<A>> for Noted<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let requests = self.requests.clone();
        let began = requests.clock.now();
        let host = request.uri().authority().map(ToString::to_string);
        let method = request.method().clone();
        let answer = self.inner.call(request);
        async move {
            let answer = answer.await;
            let code = answer.as_ref().map_or_else(
                |_| NO_ANSWER.to_owned(),
                |answer| answer.status().as_str().to_owned(),
            );
            let took = requests.clock.now().since(began);
            requests.note(host.unwrap_or_default(), method.as_str(), code, took);
            answer
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use tower::{ServiceExt, service_fn};

    use super::*;

    #[tokio::test]
    async fn s301_requests_are_counted_by_the_names_of_kubernetes_own_clients() {
        let metrics = Metrics::default();
        let requests = Requests::new(&metrics, Clock::system());
        let answer = |request: Request<&'static str>| async move {
            match *request.body() {
                "fails" => Err("no connection"),
                _ => Ok(Response::builder()
                    .status(StatusCode::NOT_FOUND)
                    .body(())
                    .unwrap_or_default()),
            }
        };
        let client = requests.layer(service_fn(answer));
        for body in ["answered", "answered", "fails"] {
            let request = Request::get("https://10.0.0.1:6443/api/v1/services");
            let request = request.body(body).expect("a request");
            let answered = client.clone().oneshot(request).await;
            assert_eq!(answered.is_ok(), body == "answered");
        }
        let page = metrics.page();
        for line in [
            r#"rest_client_requests_total{code="404",host="10.0.0.1:6443",method="GET"} 2"#,
            r#"rest_client_requests_total{code="<error>",host="10.0.0.1:6443",method="GET"} 1"#,
            r#"rest_client_request_duration_seconds_count{host="10.0.0.1:6443",verb="GET"} 3"#,
        ] {
            assert!(page.lines().any(|have| have == line), "{line}: {page}");
        }
    }
}
