//! Metrics of programs that Helm has installed, as a Prometheus reads them: with the token that the chart has made, and with
//! none but such a one.

use crate::{
    installed::{AGENT, CONTROLLER, Installed, WITHIN, values},
    sets::overlay,
    used::{scraped, unused},
};
use anyhow::{Context, Result};
use e2e_fabric::Netns;
use onehop_e2e::{
    chart::{Chart, NAMESPACE},
    world::eventually,
};
use serde_json::{Value, json};
use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// Of agents, and of controllers.
const PORTS: [(&str, u16); 2] = [(AGENT, 10_349), (CONTROLLER, 8080)];

/// A kind of the Prometheus operator's, whose schema is nothing to us.
fn monitors(kind: &str) -> Value {
    let plural = format!("{}s", kind.to_lowercase());
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.monitoring.coreos.com")},
        "spec": {
            "group": "monitoring.coreos.com", "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    })
}

/// Status and body of a page over TLS, whoever vouches for it, asked from a namespace.
fn page(netns: &Netns, to: SocketAddr, path: &str, token: Option<&str>) -> Result<(u16, String)> {
    let (url, token) = (format!("https://{to}{path}"), token.map(str::to_owned));
    netns.run(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let client = reqwest::Client::builder()
                .danger_accept_invalid_certs(true)
                .timeout(Duration::from_secs(10))
                .no_proxy()
                .build()?;
            let request = client.get(url);
            let request = match token {
                Some(token) => request.bearer_auth(token),
                None => request,
            };
            let answer = request.send().await?;
            Ok((answer.status().as_u16(), answer.text().await?))
        })
    })
}

/// Where the metrics of a component's pods would be.
async fn places(installed: &Installed, component: &str, port: u16) -> Result<Vec<SocketAddr>> {
    let mut places = Vec::new();
    for pod in installed.pods(component).await?.values() {
        let ip = pod.status.as_ref().and_then(|status| status.pod_ip.clone());
        let ip: IpAddr = ip.context("an address")?.parse()?;
        places.push(SocketAddr::new(ip, port));
    }
    places.sort();
    places.dedup();
    assert_eq!(places.len(), 2, "{component}: {places:?}");
    Ok(places)
}

/// The token that the cluster has put into the Secret of a component's reader.
async fn token(installed: &Installed, component: &str) -> Result<String> {
    let name = format!("onehop-{component}-metrics-reader");
    let data = "-o=jsonpath={.data.token}";
    let secret = ["-n", NAMESPACE, "get", "secret", &name, data];
    let clock = &installed.world.clock;
    let token = eventually(
        clock,
        "the reader's token",
        WITHIN,
        async || match installed.kubectl(&secret).await {
            Ok(token) if !token.is_empty() => Ok(token),
            other => Err(format!("{other:?}")),
        },
    )
    .await?;
    decoded(&token)
}

/// What a place answers: metrics to the reader, nothing to anybody else, and nothing else to the reader.
async fn judged(installed: &Installed, at: SocketAddr, reader: &str, other: &str) -> Result<()> {
    let world = &installed.world;
    let outside = world.lb_node().netns();
    eventually(
        &world.clock,
        &format!("metrics of {at}"),
        WITHIN,
        async || match page(outside, at, "/metrics", Some(reader)) {
            Ok((200, text)) if text.contains("# EOF") => Ok(()),
            other => Err(format!("{other:?}")),
        },
    )
    .await?;
    for (path, token, wanted) in [
        ("/metrics", None, 401),
        ("/metrics", Some("made-up"), 401),
        ("/metrics", Some(other), 403),
        ("/configz", None, 401),
        ("/services", Some(other), 403),
        ("/services", Some(reader), 404),
        ("/verify", Some(reader), 404),
        ("/proxyMode", Some(reader), 404),
    ] {
        let (status, text) = page(outside, at, path, token)?;
        assert_eq!(status, wanted, "S-300: {at}{path}: {text}");
        assert!(!text.contains("# EOF"), "S-300: {at}{path}");
    }
    let plain = world.http_get(at, "/metrics");
    assert!(plain.is_err(), "S-300: no plain HTTP: {plain:?}");
    Ok(())
}

/// S-300, S-313, C-53: outside of a pod or on a node's address only over TLS and only for who may; on loopback as ever.
#[tokio::test(flavor = "multi_thread")]
async fn s300_s313_c53_installed_programs_give_metrics_to_whom_the_chart_lets_read_them()
-> Result<()> {
    let chart = Chart::folder().display().to_string();
    let installed = Installed::start(&chart).await?;
    let world = &installed.world;
    for (component, port) in PORTS {
        for at in places(&installed, component, port).await? {
            let refused = world.lb_node().netns();
            let refused = refused.tcp_connect(at, Duration::from_secs(1));
            assert!(
                refused.is_err(),
                "S-300: nobody listens at {at} unless asked to"
            );
        }
    }
    for kind in ["PodMonitor", "ServiceMonitor"] {
        world.objects.create(monitors(kind)).await?;
    }
    let established = [
        "wait",
        "--for=condition=Established",
        "--timeout=60s",
        "crd",
        "--all",
    ];
    installed.kubectl(&established).await?;
    let mut values = values();
    overlay(&mut values, &scraped());
    let upgrade = ["upgrade", "onehop", &chart, "--wait"];
    installed.helm(&upgrade, &values).await?;
    let account = ["create", "token", "onehop-controller", "-n", NAMESPACE];
    let other = installed.kubectl(&account).await?;
    let mut readers = Vec::new();
    for (component, port) in PORTS {
        let reader = token(&installed, component).await?;
        // Those of before may still be on their way out.
        eventually(&world.clock, "two pods", WITHIN, async || {
            match installed.pods(component).await {
                Ok(pods) if pods.len() == 2 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await?;
        for at in places(&installed, component, port).await? {
            judged(&installed, at, &reader, &other).await?;
        }
        readers.push(reader);
    }
    for node in &world.nodes {
        let loopback = SocketAddr::from(([127, 0, 0, 1], PORTS[0].1));
        let mode = world.http_get_on_node(node.name(), loopback, "/proxyMode")?;
        assert_eq!(
            (mode.status, mode.body.as_str()),
            (200, "nftables"),
            "S-310"
        );
    }
    let asked = world.asked()?;
    for account in ["onehop-node-agent", "onehop-controller"] {
        let unused = unused(&asked, account, scraped())?;
        assert_eq!(unused, [] as [&str; 0], "C-53: {account}");
    }
    assert_eq!(world.refused()?, [], "C-53");
    let logs = logs(&installed)?;
    for token in readers.iter().chain([&other]) {
        assert!(!logs.contains(token.as_str()), "tokens are logged nowhere");
    }
    installed.end().await
}

/// What agents and controllers have logged.
fn logs(installed: &Installed) -> Result<String> {
    let mut all = String::new();
    for entry in std::fs::read_dir(installed.world.folder())? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if !path.is_dir() || !name.is_some_and(|name| name.starts_with(NAMESPACE)) {
            continue;
        }
        for log in std::fs::read_dir(&path)? {
            let log = log?.path();
            if log.extension().is_some_and(|is| is == "log") {
                all += &std::fs::read_to_string(log)?;
            }
        }
    }
    anyhow::ensure!(!all.is_empty(), "there are logs");
    Ok(all)
}

/// What is under base64, as Secrets hold their data.
fn decoded(text: &str) -> Result<String> {
    let bytes: k8s_openapi::ByteString =
        serde_json::from_value(json!(text)).context("what the Secret holds")?;
    Ok(String::from_utf8(bytes.0)?)
}
