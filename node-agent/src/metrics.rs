//! Metrics: kube-proxy's names for what dashboards expect (S-300) and `onehop_node_*` for the rest
//! (S-302), and the handler of the port that serves them with `/proxyMode` (S-310).

mod late;
mod register;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;
use onehop_core::time::Time;
use onehop_runtime::metrics::CONTENT_TYPE;
use onehop_runtime::scrape::{self, Asked, Scrapes};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as MetricFamily;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use crate::http::{Answer, Handler, response};
use crate::questions::Questions;
use crate::sys::process::usage;
use crate::table::element::Family;

type Label = [(&'static str, &'static str); 1];
type CodeLabel = [(&'static str, String); 1];
type Counters = MetricFamily<Label, Counter>;
type Gauges = MetricFamily<Label, Gauge>;
type FloatGauge = Gauge<f64, AtomicU64>;
type Histograms = MetricFamily<Label, Histogram>;

/// Why a frontend that a Service asks for is not programmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrontendCounts {
    /// Frontends in the kernel.
    pub programmed: usize,
    /// Frontends left out: claimed by an older Service, or refused by the kernel.
    pub skipped: usize,
}

/// All metrics of the agent.
#[derive(Debug)]
pub struct Metrics {
    registry: onehop_runtime::metrics::Metrics,
    sync_duration: Histograms,
    full_sync_duration: Histograms,
    partial_sync_duration: Histograms,
    network_programming: Histograms,
    last_sync: MetricFamily<Label, FloatGauge>,
    last_queued: MetricFamily<Label, FloatGauge>,
    endpoint_changes: Counter,
    endpoint_pending: Gauge,
    service_changes: Counter,
    service_pending: Gauge,
    no_local_endpoints: Gauges,
    sync_failures: Counters,
    cleanup_failures: Counters,
    healthz: MetricFamily<CodeLabel, Counter>,
    livez: MetricFamily<CodeLabel, Counter>,
    pod_health: MetricFamily<CodeLabel, Counter>,
    conntrack_duration: Histograms,
    conntrack_deleted: Counters,
    programmed_frontends: Gauge,
    skipped_frontends: Gauge,
    batches: Counter,
    elements: Counters,
    repairs: Counters,
    health_ports: Gauge,
    kube_proxy_overlap: Gauge,
    guards: Gauge,
    late: late::Late,
    cpu_seconds: Counter<f64, AtomicU64>,
    resident_bytes: Gauge,
}

impl Metrics {
    /// Registers all of them.
    pub fn new(registry: onehop_runtime::metrics::Metrics) -> Self {
        let metrics = Self {
            registry,
            sync_duration: Histograms::new_with_constructor(sync_buckets),
            full_sync_duration: Histograms::new_with_constructor(sync_buckets),
            partial_sync_duration: Histograms::new_with_constructor(sync_buckets),
            network_programming: Histograms::new_with_constructor(programming_buckets),
            last_sync: MetricFamily::default(),
            last_queued: MetricFamily::default(),
            endpoint_changes: Counter::default(),
            endpoint_pending: Gauge::default(),
            service_changes: Counter::default(),
            service_pending: Gauge::default(),
            no_local_endpoints: Gauges::default(),
            sync_failures: Counters::default(),
            cleanup_failures: Counters::default(),
            healthz: MetricFamily::default(),
            livez: MetricFamily::default(),
            pod_health: MetricFamily::default(),
            conntrack_duration: Histograms::new_with_constructor(sync_buckets),
            conntrack_deleted: Counters::default(),
            programmed_frontends: Gauge::default(),
            skipped_frontends: Gauge::default(),
            batches: Counter::default(),
            elements: Counters::default(),
            repairs: Counters::default(),
            health_ports: Gauge::default(),
            kube_proxy_overlap: Gauge::default(),
            guards: Gauge::default(),
            late: late::Late::default(),
            cpu_seconds: Counter::default(),
            resident_bytes: Gauge::default(),
        };
        metrics
            .registry
            .register(|registry| metrics.register_upstream(registry));
        metrics
            .registry
            .register(|registry| metrics.register_own(registry));
        metrics
    }
}

fn sync_buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}

fn programming_buckets() -> Histogram {
    let seconds = (1..60)
        .chain((60..120).step_by(5))
        .chain((120..=300).step_by(30));
    Histogram::new(std::iter::once(0.25).chain(seconds.map(f64::from)))
}

fn family_label(family: Family) -> Label {
    let name = match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    };
    [("ip_family", name)]
}

fn seconds(time: Time) -> f64 {
    Duration::from_millis(time.as_millis().unsigned_abs()).as_secs_f64()
}

impl Metrics {
    /// One commit was done.
    pub fn committed(&self, families: &[Family], full: bool, took: Duration, now: Time) {
        self.batches.inc();
        for family in families {
            let label = family_label(*family);
            self.sync_duration
                .get_or_create(&label)
                .observe(took.as_secs_f64());
            let kind = if full {
                &self.full_sync_duration
            } else {
                &self.partial_sync_duration
            };
            kind.get_or_create(&label).observe(took.as_secs_f64());
            self.last_sync.get_or_create(&label).set(seconds(now));
        }
    }

    /// A commit (or a part of it) failed.
    pub fn commit_failed(&self, families: &[Family]) {
        for family in families {
            self.sync_failures
                .get_or_create(&family_label(*family))
                .inc();
        }
    }

    /// Something that is out of use could not be deleted.
    pub fn cleanup_failed(&self, family: Family) {
        self.cleanup_failures
            .get_or_create(&family_label(family))
            .inc();
    }

    /// An update was queued.
    pub fn queued(&self, now: Time) {
        for family in Family::ALL {
            self.last_queued
                .get_or_create(&family_label(family))
                .set(seconds(now));
        }
    }

    /// From the change of the endpoints, as their controller stamped it, to the commit.
    pub fn programmed_after(&self, family: Family, took: Duration) {
        let label = family_label(family);
        self.network_programming
            .get_or_create(&label)
            .observe(took.as_secs_f64());
    }

    /// A change of a Service came in.
    pub fn service_changed(&self) {
        self.service_changes.inc();
        self.service_pending.inc();
    }

    /// A change of endpoints came in.
    pub fn endpoints_changed(&self) {
        self.endpoint_changes.inc();
        self.endpoint_pending.inc();
    }

    /// All changes that came in are part of a commit.
    pub fn nothing_pending(&self) {
        self.service_pending.set(0);
        self.endpoint_pending.set(0);
    }

    /// Service ports whose Local policy finds no endpoint here (S-52).
    pub fn no_local_endpoints(&self, internal: usize, external: usize) {
        for (policy, count) in [("internal", internal), ("external", external)] {
            self.no_local_endpoints
                .get_or_create(&[("traffic_policy", policy)])
                .set(gauge(count));
        }
    }

    /// Frontends by whether they are in the kernel (S-11).
    pub fn frontends(&self, counts: FrontendCounts) {
        self.programmed_frontends.set(gauge(counts.programmed));
        self.skipped_frontends.set(gauge(counts.skipped));
    }

    /// Elements that a commit added and removed.
    pub fn elements(&self, added: usize, removed: usize) {
        for (operation, count) in [("add", added), ("remove", removed)] {
            self.elements
                .get_or_create(&[("operation", operation)])
                .inc_by(u64::try_from(count).unwrap_or(u64::MAX));
        }
    }

    /// The kernel was read back and differed from what it should hold.
    pub fn repaired(&self, cause: &'static str) {
        self.repairs.get_or_create(&[("cause", cause)]).inc();
    }

    /// Open or wanted health ports.
    pub fn health_ports(&self, count: usize) {
        self.health_ports.set(gauge(count));
    }

    /// Targets that are guarded.
    pub fn guards(&self, count: usize) {
        self.guards.set(gauge(count));
    }

    /// Guards, the Local window, and what came late.
    pub fn late(&self) -> &late::Late {
        &self.late
    }

    /// Services that were given up because kube-proxy programs them too (S-126).
    pub fn kube_proxy_overlap(&self, count: usize) {
        self.kube_proxy_overlap.set(gauge(count));
    }

    /// A pass of the connection tracking clean-up was done.
    pub fn conntrack(&self, family: Family, took: Duration, deleted: u64) {
        let label = family_label(family);
        self.conntrack_duration
            .get_or_create(&label)
            .observe(took.as_secs_f64());
        self.conntrack_deleted.get_or_create(&label).inc_by(deleted);
    }

    /// `/healthz` was answered.
    pub fn healthz(&self, status: StatusCode) {
        self.healthz.get_or_create(&code(status)).inc();
    }

    /// The health of a pod was asked for.
    pub fn pod_health(&self, status: StatusCode) {
        self.pod_health.get_or_create(&code(status)).inc();
    }

    /// `/livez` was answered.
    pub fn livez(&self, status: StatusCode) {
        self.livez.get_or_create(&code(status)).inc();
    }

    /// Handler of the metrics port. `configz` is what the agent runs with, as JSON; `questions` are taken by the app.
    pub fn handler(self: Arc<Self>, configz: String, questions: Questions) -> Handler {
        Arc::new(move |request| match request.uri().path() {
            scrape::PATH => response(StatusCode::OK, CONTENT_TYPE, self.page()).into(),
            "/configz" => response(StatusCode::OK, "application/json", configz.clone()).into(),
            "/proxyMode" => response(StatusCode::OK, "text/plain", "nftables").into(),
            _ => questions.answer(request).unwrap_or_else(|| {
                response(StatusCode::NOT_FOUND, "text/plain", "404 page not found\n").into()
            }),
        })
    }

    /// Handler of the metrics port on addresses of the node: the page for who may read it, and nothing else (S-300).
    pub fn for_scrapers(self: Arc<Self>, scrapes: &Scrapes) -> Handler {
        let scrapes = scrapes.clone();
        Arc::new(move |request| {
            let (asked, scrapes, metrics) = (Asked::of(request), scrapes.clone(), self.clone());
            Answer::Later(Box::pin(async move {
                scrapes.answer(asked, || metrics.page()).await
            }))
        })
    }

    fn page(&self) -> String {
        self.look_at_process();
        self.late.look_at_kernel();
        self.registry.page()
    }

    fn look_at_process(&self) {
        let Some(usage) = usage() else {
            return;
        };
        // What is told is a sum already.
        self.cpu_seconds
            .inner()
            .store(usage.cpu_seconds.to_bits(), Ordering::Relaxed);
        let bytes = i64::try_from(usage.resident_bytes);
        self.resident_bytes.set(bytes.unwrap_or(i64::MAX));
    }
}

fn code(status: StatusCode) -> CodeLabel {
    [("code", status.as_str().to_owned())]
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
