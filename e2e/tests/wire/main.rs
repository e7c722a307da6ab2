//! What the controller sends to Azure and what the fake answers, judged by Azure's own Python package. Run by
//! `./e2e/run test wire`, which installs it and names its Python by the environment.
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
mod bodies;
mod clients;
#[path = "../../../controller/tests/shared/cluster.rs"]
#[allow(
    dead_code,
    reason = "the piece of the tests of all providers, which need more of it"
)]
mod cluster;
mod deviations;
mod difference;
mod launcher;

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

/// The Python that has azure-mgmt-network.
const JUDGE: &str = "ONEHOP_AZURE_JUDGE";
const PREFIX: &str = "service.beta.kubernetes.io/azure-";

/// A script beside boto3's, to be run by that Python.
fn python(script: &str) -> Command {
    let python = std::env::var(JUDGE).unwrap_or_else(|_| {
        panic!("{JUDGE} names no Python with azure-mgmt-network: run ./e2e/run test wire")
    });
    let mut command = Command::new(python);
    command.arg(
        PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("wire")
            .join(script),
    );
    command
}

/// Annotations of a Service; keys without a prefix are Azure's.
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
