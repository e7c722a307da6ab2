//! Metrics of what is written to Azure and of how full it is (AZ-374, AZ-471), as `onehop_azure_*`. Label values come from
//! fixed lists only (C-112).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use http::HeaderMap;
use onehop_runtime::metrics::Metrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use serde_json::Value;

use super::throttle::Direction;
use crate::cloud::azure::balancer::{is_down, member_address};
use crate::cloud::azure::document::{
    FRONTENDS, MEMBERS, POOLS, RULES, SECURITY_RULES, at, children, name, referred,
};
use crate::cloud::azure::model::Documents;
use crate::cloud::azure::settings::{Kind, Side};

/// Kinds of resource that are written.
const KINDS: [&str; 4] = [
    "loadBalancers",
    "backendAddressPools",
    "publicIPAddresses",
    "networkSecurityGroups",
];
/// Answers that are counted: somebody else was faster, or there were too many requests.
const STATUSES: [(u16, &str); 3] = [(409, "409"), (412, "412"), (429, "429")];
/// What is left of the subscription's requests, by direction (AZ-374).
const REMAINING: [(&str, Direction); 2] = [
    (
        "x-ms-ratelimit-remaining-subscription-global-reads",
        Direction::Read,
    ),
    (
        "x-ms-ratelimit-remaining-subscription-global-writes",
        Direction::Write,
    ),
];

/// Handles of all of them.
#[derive(Clone, Debug)]
pub(super) struct Measures {
    writes: Family<Written, Counter>,
    answers: Family<Answered, Counter>,
    remaining: Family<Left, Gauge>,
    operations: Family<OfKind, Histogram, Buckets>,
    together: Family<OfKind, Histogram, Buckets>,
    to_healthy: Family<OfKind, Histogram, Buckets>,
    members: Family<InState, Gauge>,
    used: Family<Used, Gauge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Written {
    kind: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    status: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Left {
    direction: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKind {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InState {
    balancer: &'static str,
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Used {
    of: &'static str,
    what: &'static str,
}

impl Default for Measures {
    /// Of nobody who looks.
    fn default() -> Self {
        let histograms = || Family::new_with_constructor(Buckets);
        Self {
            writes: Family::default(),
            answers: Family::default(),
            remaining: Family::default(),
            operations: histograms(),
            together: histograms(),
            to_healthy: histograms(),
            members: Family::default(),
            used: Family::default(),
        }
    }
}

/// Up to an hour, and for counts of Services up to a thousand: both are far apart at the end.
#[derive(Clone, Copy, Debug)]
struct Buckets;

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new([
            1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 3600.0,
        ])
    }
}

/// The label of a resource: that of a child with a path of its own is the child's.
fn kind_of(id: &str) -> &'static str {
    let has = |kind: &&&str| id.split('/').any(|part| part.eq_ignore_ascii_case(kind));
    // A pool's path names its load balancer, too.
    let mut kinds = KINDS.iter();
    kinds.rfind(has).map_or("other", |kind| *kind)
}

const fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::External => "external",
        Kind::Internal => "internal",
    }
}

impl Measures {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let new = Self::default();
        metrics.register(|registry| {
            let r = registry.sub_registry_with_prefix("onehop_azure");
            r.register("writes", "Writes, by kind of resource", new.writes.clone());
            r.register(
                "refused_answers",
                "Answers by which Azure asks to come again",
                new.answers.clone(),
            );
            r.register(
                "remaining_requests",
                "Requests that the subscription has left, as the last answer said",
                new.remaining.clone(),
            );
            r.register(
                "operation_seconds",
                "How long writes took with their operations",
                new.operations.clone(),
            );
            r.register(
                "services_per_write",
                "Services whose parts went out in one write",
                new.together.clone(),
            );
            r.register(
                "change_to_healthy_seconds",
                "From a change of a Service until it is written and has a member past its probe time",
                new.to_healthy.clone(),
            );
            r.register(
                "members",
                "Members of the pools of our load balancers",
                new.members.clone(),
            );
            r.register(
                "used",
                "What is used of what Azure takes, of a load balancer or of the security group",
                new.used.clone(),
            );
        });
        new
    }

    /// An answer of any kind.
    pub(super) fn answered(&self, status: u16, headers: &HeaderMap) {
        if let Some((_, status)) = STATUSES.iter().find(|(known, _)| *known == status) {
            self.answers.get_or_create(&Answered { status }).inc();
        }
        for (header, direction) in REMAINING {
            let left = headers.get(header).and_then(|left| left.to_str().ok());
            if let Some(left) = left.and_then(|left| left.trim().parse().ok()) {
                let direction = match direction {
                    Direction::Read => "read",
                    Direction::Write => "write",
                };
                self.remaining.get_or_create(&Left { direction }).set(left);
            }
        }
    }

    /// A write, with the time that its operation took.
    pub(super) fn wrote(&self, id: &str, took: Duration, done: bool) {
        let kind = kind_of(id);
        let result = if done { "ok" } else { "failed" };
        self.writes.get_or_create(&Written { kind, result }).inc();
        let seconds = self.operations.get_or_create(&OfKind { kind });
        seconds.observe(took.as_secs_f64());
    }

    /// So many Services' parts went out in one write of a load balancer.
    pub(super) fn together(&self, services: usize) {
        let of = OfKind { kind: KINDS[0] };
        let services = u32::try_from(services).unwrap_or(u32::MAX);
        self.together.get_or_create(&of).observe(services.into());
    }

    /// A Service is served as it asked so long ago.
    pub(super) fn served(&self, after: Duration) {
        let of = OfKind { kind: "service" };
        self.to_healthy
            .get_or_create(&of)
            .observe(after.as_secs_f64());
    }

    /// What there is now.
    pub(super) fn show(&self, documents: &Documents) {
        let none = Value::Null;
        for kind in Kind::ALL {
            let balancer = documents.balancers.get(&kind).unwrap_or(&none);
            let of = word(kind);
            let pools = children(balancer, POOLS);
            let members = || pools.iter().flat_map(|pool| children(pool, MEMBERS));
            let down = members().filter(|member| is_down(member)).count();
            for (state, count) in [("down", down), ("up", members().count() - down)] {
                let balancer = of;
                let gauge = self.members.get_or_create(&InState { balancer, state });
                gauge.set(number(count));
            }
            let counts = [
                ("rules", children(balancer, RULES).len()),
                ("frontends", children(balancer, FRONTENDS).len()),
                ("rules-of-busiest-member", busiest(balancer)),
            ];
            self.use_of(of, &counts);
        }
        let groups = [
            (Side::Nodes, "security-group"),
            (Side::Pods, "pod-security-group"),
        ];
        for (side, of) in groups {
            let rules = children(documents.group(side).unwrap_or(&none), SECURITY_RULES);
            let listed = |list: &str| {
                let lists = rules.iter().filter_map(|it| at(it, &["properties", list]));
                lists.filter_map(Value::as_array).map(Vec::len).sum()
            };
            let counts = [
                ("rules", rules.len()),
                ("source-prefixes", listed("sourceAddressPrefixes")),
                ("destination-prefixes", listed("destinationAddressPrefixes")),
            ];
            self.use_of(of, &counts);
        }
    }

    fn use_of(&self, of: &'static str, counts: &[(&'static str, usize)]) {
        for (what, count) in counts {
            let gauge = self.used.get_or_create(&Used { of, what });
            gauge.set(number(*count));
        }
    }
}

/// Most rules that one member takes part in: Azure counts them by network interface (AZ-431).
fn busiest(balancer: &Value) -> usize {
    let mut rules: BTreeMap<String, usize> = BTreeMap::new();
    for rule in children(balancer, RULES) {
        if let Some(pool) = referred(rule, "backendAddressPool") {
            *rules.entry(pool.to_ascii_lowercase()).or_default() += 1;
        }
    }
    let mut members: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for pool in children(balancer, POOLS) {
        let of_pool = rules.get(&name(pool).to_ascii_lowercase());
        let Some(of_pool) = of_pool.copied() else {
            continue;
        };
        for address in children(pool, MEMBERS).iter().filter_map(member_address) {
            *members.entry(address).or_default() += of_pool;
        }
    }
    members.into_values().max().unwrap_or_default()
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(metrics: &Metrics, line: &str) {
        let page = metrics.page();
        assert!(
            page.lines().any(|it| it == line),
            "{line} is not in\n{page}"
        );
    }

    #[test]
    fn az374_what_azure_says_that_is_left_is_on_the_page() {
        let metrics = Metrics::default();
        let measures = Measures::new(&metrics);
        let mut headers = HeaderMap::new();
        for ((header, _), left) in REMAINING.iter().zip(["16499", "11998"]) {
            headers.insert(*header, left.parse().unwrap());
        }
        measures.answered(200, &headers);
        said(
            &metrics,
            "onehop_azure_remaining_requests{direction=\"read\"} 16499",
        );
        said(
            &metrics,
            "onehop_azure_remaining_requests{direction=\"write\"} 11998",
        );
        // An answer without them takes nothing back.
        measures.answered(429, &HeaderMap::new());
        said(
            &metrics,
            "onehop_azure_remaining_requests{direction=\"read\"} 16499",
        );
        said(
            &metrics,
            "onehop_azure_refused_answers_total{status=\"429\"} 1",
        );
    }

    #[test]
    fn az471_az431_how_full_load_balancers_and_the_security_group_are() {
        let metrics = Metrics::default();
        let measures = Measures::new(&metrics);
        let member = |n: u8, state: Option<&str>| {
            let address = format!("10.0.0.{n}");
            json!({"name": address, "properties": {"ipAddress": address, "adminState": state}})
        };
        let pool =
            |name: &str, members: Value| json!({"name": name, "properties": {MEMBERS: members}});
        let rule = |pool: &str| json!({"properties": {"backendAddressPool": {"id": format!("/lb/backendAddressPools/{pool}")}}});
        let balancer = json!({"properties": {
            FRONTENDS: [{"name": "f"}],
            POOLS: [
                pool("one", json!([member(1, None), member(2, Some("Down"))])),
                pool("Two", json!([member(1, Some("Up"))])),
                pool("unused", json!([member(3, None)])),
            ],
            RULES: [rule("one"), rule("ONE"), rule("two")],
        }});
        let group = json!({"properties": {SECURITY_RULES: [
            {"properties": {"sourceAddressPrefixes": ["a", "b"], "destinationAddressPrefixes": ["c"]}},
            {"properties": {"sourceAddressPrefix": "Internet", "destinationAddressPrefixes": ["c", "d"]}},
        ]}});
        let documents = Documents {
            balancers: [(Kind::External, balancer)].into(),
            security: Some(group),
            ..Documents::default()
        };
        measures.show(&documents);
        for line in [
            "members{balancer=\"external\",state=\"up\"} 3",
            "members{balancer=\"external\",state=\"down\"} 1",
            "members{balancer=\"internal\",state=\"up\"} 0",
            "used{of=\"external\",what=\"rules\"} 3",
            "used{of=\"external\",what=\"frontends\"} 1",
            "used{of=\"external\",what=\"rules-of-busiest-member\"} 3",
            "used{of=\"security-group\",what=\"rules\"} 2",
            "used{of=\"security-group\",what=\"source-prefixes\"} 2",
            "used{of=\"security-group\",what=\"destination-prefixes\"} 3",
        ] {
            said(&metrics, &format!("onehop_azure_{line}"));
        }
        // What is gone is not full.
        measures.show(&Documents::default());
        said(
            &metrics,
            "onehop_azure_used{of=\"external\",what=\"rules\"} 0",
        );
    }

    #[test]
    fn az471_writes_are_counted_by_what_their_path_names() {
        let metrics = Metrics::default();
        let measures = Measures::new(&metrics);
        let of = |rest: &str| {
            format!("/subscriptions/s/resourceGroups/r/providers/Microsoft.Network/{rest}")
        };
        let took = Duration::from_secs(7);
        measures.wrote(&of("loadBalancers/lb"), took, true);
        measures.wrote(&of("loadBalancers/lb/backendAddressPools/p"), took, true);
        measures.wrote(&of("networkSecurityGroups/g"), took, false);
        for line in [
            "writes_total{kind=\"loadBalancers\",result=\"ok\"} 1",
            "writes_total{kind=\"backendAddressPools\",result=\"ok\"} 1",
            "writes_total{kind=\"networkSecurityGroups\",result=\"failed\"} 1",
            "operation_seconds_bucket{le=\"5.0\",kind=\"loadBalancers\"} 0",
            "operation_seconds_bucket{le=\"10.0\",kind=\"loadBalancers\"} 1",
        ] {
            said(&metrics, &format!("onehop_azure_{line}"));
        }
    }
}
