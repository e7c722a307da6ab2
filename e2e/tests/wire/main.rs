//! What the controller sends, judged by clients that were not written here. Run by `./e2e/run test wire`, which installs
//! the judges and names them by the environment.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail the test"
)]

#[path = "../../../controller/tests/azure/world.rs"]
#[allow(
    dead_code,
    reason = "the world of the controller's own tests, which need more of it"
)]
mod azure;

use azure::World;
use serde_json::{Value, json};
use std::{
    io::Write,
    process::{Command, Stdio},
};

/// The Python that has azure-mgmt-network.
const JUDGE: &str = "ONEHOP_AZURE_JUDGE";
const PREFIX: &str = "service.beta.kubernetes.io/azure-";

/// Judges documents, each with its kind; gives what the judge says.
fn judged(documents: &[(String, Value)]) -> String {
    let python = std::env::var(JUDGE).unwrap_or_else(|_| {
        panic!("{JUDGE} names no Python with azure-mgmt-network: run ./e2e/run test wire")
    });
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/wire/azure_bodies.py");
    let mut child = Command::new(python)
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = child.stdin.take().unwrap();
    for (kind, body) in documents {
        writeln!(lines, "{}", json!({ "kind": kind, "body": body })).unwrap();
    }
    drop(lines);
    let output = child.wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// The kind of what a path names.
fn kind(path: &str) -> String {
    let mut parts = path.rsplit('/');
    parts.nth(1).unwrap().to_owned()
}

fn annotations(pairs: &[(&str, &str)]) -> Value {
    let pair = |(key, value): &(&str, &str)| {
        let key = if key.contains('/') {
            (*key).to_owned()
        } else {
            format!("{PREFIX}{key}")
        };
        (key, json!(value))
    };
    Value::Object(pairs.iter().map(pair).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn az501_every_body_that_is_sent_and_every_answer_has_keys_and_types_of_azures_own_package() {
    let world = World::start().await;
    let _controller = world.controller().await;
    world.endpoints("pods", &[1, 2]).await;
    let vip = ("onehop.dev/target", "vip");
    let services = [
        ("plain", annotations(&[vip, ("dns-label-name", "web")])),
        (
            "closed",
            annotations(&[
                vip,
                ("allowed-ip-ranges", "30.0.0.0/8,31.0.0.0/8"),
                ("deny-all-except-load-balancer-source-ranges", "true"),
                ("load-balancer-health-probe-protocol", "http"),
                (
                    "service.beta.kubernetes.io/port_80_health-probe_port",
                    "8080",
                ),
                ("load-balancer-tcp-idle-timeout", "10"),
            ]),
        ),
        (
            "internal",
            annotations(&[
                vip,
                ("load-balancer-internal", "true"),
                ("load-balancer-ipv4", "10.0.4.20"),
            ]),
        ),
        ("pods", annotations(&[("pip-tags", "team=net")])),
    ];
    for (name, annotations) in services {
        world.service(name, json!({}), annotations).await;
        world.has_address(name).await;
    }
    world.endpoints("pods", &[2, 3]).await;
    world
        .eventually("a pool was written", async |w| {
            w.calls("PUT backendAddressPools") > 0
        })
        .await;
    let writes = world.azure.writes();
    let puts = writes.into_iter().filter(|write| write.method == "PUT");
    let mut documents: Vec<(String, Value)> = puts.map(|put| (kind(&put.id), put.body)).collect();
    for kind in ["loadBalancers", "publicIPAddresses"] {
        let ids = world.azure.ids(kind);
        let stored = ids.iter().filter_map(|id| world.azure.document(id));
        documents.extend(stored.map(|document| (kind.to_owned(), document)));
    }
    let said = judged(&documents);
    assert_eq!(
        said.lines().last(),
        Some(format!("{} judged, 0 faults", documents.len()).as_str()),
        "AZ-501: {said}"
    );
    let mut wrong = documents[0].1.clone();
    wrong["properties"]["misspelt"] = json!(1);
    let said = judged(&[(documents[0].0.clone(), wrong)]);
    assert!(
        said.contains("misspelt") && said.contains("1 faults"),
        "the judge sees what is wrong: {said}"
    );
}
