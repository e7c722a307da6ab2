//! Alerts and dashboards ask only for metrics and labels that the programs expose (C-110, C-111), by registries that
//! hold a sample of everything.

use crate::promql::{Use, uses};
use crate::sets::{monitoring, with};
use anyhow::{Context, Result, bail};
use http::{Request, Response, StatusCode};
use k8s_openapi::api::core::v1::Service;
use kube::{Client, client::Body, runtime::watcher};
use onehop_controller::{
    cloud::Class,
    metrics::{Call, LaneFailure, Measures, OfFamily, PoolsAbove},
    plan::Lane,
};
use onehop_e2e::{chart::Chart, world::eventually};
use onehop_node_agent::{
    metrics::{FrontendCounts, Metrics as AgentMetrics},
    table::element::Family,
};
use onehop_runtime::{
    backoff::Policy,
    clock::Clock,
    events::{Publisher, Reporter},
    metrics::Metrics,
    watch::{WatchMetrics, watch},
};
use rand::{SeedableRng, rngs::SmallRng};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Time for a watch of a server in this process to fail.
const WITHIN: Duration = Duration::from_secs(20);

/// Labels that a Prometheus puts on what it scrapes, and one that the chart's `PodMonitor` adds.
const OF_THE_SCRAPE: [&str; 5] = ["namespace", "pod", "job", "instance", "node"];

/// Labels of each metric, and the values that each label has.
type Exposed = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

fn exposed(page: &str) -> Exposed {
    let mut found = Exposed::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        let labels = found.entry(name.to_owned()).or_default();
        let Some((_, list)) = line.split_once('{') else {
            continue;
        };
        let list = list.split('}').next().unwrap_or_default();
        for (label, value) in list.split(',').filter_map(|pair| pair.split_once('=')) {
            let value = value.trim_matches('"').to_owned();
            labels.entry(label.to_owned()).or_default().insert(value);
        }
    }
    found
}

/// An API server that lists one Service that can be read and one that cannot, and that refuses to watch.
fn failing() -> Client {
    let list = json!({
        "apiVersion": "v1", "kind": "ServiceList", "metadata": {"resourceVersion": "1"},
        "items": [{"metadata": {"name": "good"}}, {"metadata": {"name": "bad"}, "spec": 7}],
    });
    let answer = move |request: Request<Body>| {
        let watches = request.uri().query().is_some_and(|q| q.contains("watch="));
        let (status, body) = if watches {
            (StatusCode::FORBIDDEN, "no".to_owned())
        } else {
            (StatusCode::OK, list.to_string())
        };
        let response = Response::builder().status(status);
        std::future::ready(response.body(Body::from(body.into_bytes())))
    };
    Client::new(tower::service_fn(answer), "default")
}

/// What watches and events count, in one registry with everything else of a program.
async fn shared(metrics: &Metrics) -> Result<()> {
    let watches = WatchMetrics::new(metrics);
    let policy = Policy {
        first: Duration::from_millis(1),
        most: Duration::from_millis(2),
    };
    let backoff = policy.start(&mut SmallRng::seed_from_u64(1));
    let mut seen = watch::<Service>(failing(), watcher::Config::default(), backoff, &watches);
    let reporter = Reporter {
        component: "test".to_owned(),
        instance: "test".to_owned(),
    };
    let clock = Clock::system();
    let (_events, _writer) = Publisher::new(failing(), clock, reporter, metrics);
    let goes_on = async { while futures::StreamExt::next(&mut seen).await.is_some() {} };
    let failed = eventually(&clock, "the watch fails", WITHIN, async || {
        let page = metrics.page();
        if page.contains("watch_errors_total{") {
            Ok(())
        } else {
            Err(page)
        }
    });
    tokio::select! {
        failed = failed => failed,
        () = goes_on => bail!("the watch ended"),
    }
}

async fn of_the_controller() -> Result<Exposed> {
    let metrics = Metrics::default();
    shared(&metrics).await?;
    let measures = Measures::new(&metrics);
    let classes = [
        Class::WrongInput,
        Class::Throttled,
        Class::Conflict,
        Class::Transient,
    ];
    for class in classes {
        let (operation, result) = ("register", class.as_str());
        measures
            .calls
            .get_or_create(&Call { operation, result })
            .inc();
        for lane in Lane::ALL {
            let (lane, class) = (lane.as_str(), class.as_str());
            measures
                .lane_failures
                .get_or_create(&LaneFailure { lane, class })
                .inc();
        }
    }
    for percent in onehop_controller::reconcile::POOL_LEVELS {
        measures
            .pools_above
            .get_or_create(&PoolsAbove { percent })
            .set(1);
    }
    let family = OfFamily { family: "IPv4" };
    measures.pool_addresses.get_or_create(&family).set(1);
    measures.pool_addresses_in_use.get_or_create(&family).set(1);
    Ok(exposed(&metrics.page()))
}

async fn of_the_agent() -> Result<Exposed> {
    let metrics = Metrics::default();
    shared(&metrics).await?;
    let agent = AgentMetrics::new(metrics.clone());
    let clock = Clock::system();
    for full in [true, false] {
        agent.committed(&Family::ALL, full, Duration::ZERO, clock.now());
    }
    agent.commit_failed(&Family::ALL);
    agent.queued(clock.now());
    agent.programmed_after(Family::V4, Duration::ZERO);
    agent.no_local_endpoints(1, 1);
    agent.frontends(FrontendCounts {
        programmed: 1,
        skipped: 1,
    });
    agent.elements(1, 1);
    agent.repaired("foreign");
    agent.conntrack(Family::V4, Duration::ZERO, 1);
    agent.healthz(StatusCode::OK);
    agent.livez(StatusCode::OK);
    Ok(exposed(&metrics.page()))
}

/// What is asked and not exposed.
fn missing(asked: &[Use], exposed: &[&Exposed]) -> Vec<String> {
    let mut wrong = Vec::new();
    for Use {
        metric,
        labels,
        equal,
    } in asked
    {
        let Some(have) = exposed.iter().find_map(|page| page.get(metric)) else {
            wrong.push(format!("no program exposes {metric}"));
            continue;
        };
        let known =
            |label: &&String| have.contains_key(*label) || OF_THE_SCRAPE.contains(&label.as_str());
        for label in labels.iter().filter(|label| !known(label)) {
            wrong.push(format!("{metric} has no label {label}"));
        }
        for (label, value) in equal {
            if have.get(label).is_some_and(|all| !all.contains(value)) {
                wrong.push(format!("{metric}: {label} is never {value:?}"));
            }
        }
    }
    wrong
}

/// C-111: the expression of every alert.
#[tokio::test]
async fn c111_alerts_ask_for_metrics_that_exist() -> Result<()> {
    let (controller, agent) = (of_the_controller().await?, of_the_agent().await?);
    let rendered = Chart::of_this_build()?.render(&with(monitoring()))?;
    let rule = rendered.object("PrometheusRule", "onehop")?;
    let mut count = 0;
    for group in rule["spec"]["groups"].as_array().context("groups")? {
        let page = match group["name"].as_str() {
            Some("onehop-controller") => &controller,
            Some("onehop-node-agent") => &agent,
            other => bail!("whose metrics are those of group {other:?}?"),
        };
        for alert in group["rules"].as_array().context("rules")? {
            let expression = alert["expr"].as_str().context("an expression")?;
            let asked = uses(expression);
            assert!(!asked.is_empty(), "{expression}");
            assert_eq!(missing(&asked, &[page]), [] as [&str; 0], "{alert}");
            count += 1;
        }
    }
    let values = std::fs::read_to_string(Chart::folder().join("values.yaml"))?;
    let values: Value = serde_saphyr::from_str(&values)?;
    let alerts = values["prometheusRule"]["alerts"].as_object();
    assert_eq!(Some(count), alerts.map(serde_json::Map::len));
    Ok(())
}

/// C-110: every query and every variable of every dashboard.
#[tokio::test]
async fn c110_dashboards_ask_for_metrics_that_exist() -> Result<()> {
    let (controller, agent) = (of_the_controller().await?, of_the_agent().await?);
    let rendered = Chart::of_this_build()?.render(&with(monitoring()))?;
    let maps = rendered.of_kinds(&["ConfigMap"]);
    assert_eq!(maps.len(), 3, "controller, datapath, zero-drop");
    for map in maps {
        let data = map["data"].as_object().context("data")?;
        for (file, text) in data {
            let dashboard: Value = serde_json::from_str(text.as_str().context("text")?)
                .with_context(|| file.clone())?;
            let mut asked = Vec::new();
            for panel in dashboard["panels"].as_array().context("panels")? {
                for target in panel["targets"].as_array().into_iter().flatten() {
                    let found = uses(target["expr"].as_str().context("an expression")?);
                    assert!(!found.is_empty(), "{file}: {target}");
                    asked.extend(found);
                }
            }
            for variable in dashboard["templating"]["list"]
                .as_array()
                .into_iter()
                .flatten()
            {
                let query = variable["query"].as_str().unwrap_or_default();
                let Some(inner) = query.strip_prefix("label_values(") else {
                    assert_eq!(variable["type"], "datasource", "{file}: {variable}");
                    continue;
                };
                let (of, label) = inner.rsplit_once(',').context("a metric and a label")?;
                let mut found = uses(of);
                let label = label.trim().trim_end_matches(')').to_owned();
                for one in &mut found {
                    one.labels.insert(label.clone());
                }
                asked.extend(found);
            }
            assert!(asked.len() > 5, "{file}");
            assert_eq!(
                missing(&asked, &[&controller, &agent]),
                [] as [&str; 0],
                "{file}"
            );
        }
    }
    Ok(())
}

/// What is not there is found: the judge of the tests above.
#[test]
fn an_unknown_metric_label_or_value_is_found() {
    let page = exposed("a_total{x=\"1\"} 1\n");
    let of = |expression: &str| missing(&uses(expression), &[&page]).len();
    assert_eq!(of("rate(a_total{x=\"1\",pod=~\".+\"}[5m])"), 0);
    assert_eq!(of("rate(b_total[5m])"), 1);
    assert_eq!(of("sum by (y) (a_total)"), 1);
    assert_eq!(of("a_total{x=\"2\"}"), 1);
}
