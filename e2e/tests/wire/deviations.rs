//! What the judges are known to do otherwise than Azure, or than the controller (AZ-508). Each is asserted, so that a judge
//! that changes shows up here; the controller is never bent to one.
//!
//! | Judge | What it does |
//! | --- | --- |
//! | azure-mgmt-network, its client | sends no `If-Match`; validates no body; refuses 202 for a PUT |
//! | azure-mgmt-network, its types | words of enumerations are open, ranges unchecked, what is missing is no fault |
//! | azure_mgmt_network, a crate | loses fields that it does not know, and empty lists |

use std::io::Write as _;
use std::process::{Command, Stdio};

use e2e_cloud::azure::{Faults, GoesOn};
use serde_json::{Value, json};

use crate::azure::World;
use crate::bodies::judged;
use crate::clients::{READER, case};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn az508_az405_azures_client_sends_no_etag_and_whatever_it_is_given() {
    let world = World::start().await;
    case(&world, "deviations").await;
    let writes = world.azure.writes();
    assert!(writes.len() >= 3, "{writes:#?}");
    let guarded: Vec<_> = writes.iter().filter(|it| it.if_match.is_some()).collect();
    assert!(guarded.is_empty(), "AZ-508, AZ-493: {guarded:#?}");
    let wrong = writes.iter().find(|it| it.id.ends_with("/wrong"));
    let rule = &wrong.unwrap().body["properties"]["loadBalancingRules"][0];
    assert_eq!(rule["properties"]["frontendPort"], "eighty", "AZ-508");
    assert_eq!(rule["properties"]["protocol"], "Bogus", "AZ-508");
    assert_eq!(rule["misspelt"], 1, "AZ-508");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn az508_az363_azures_client_refuses_202_for_a_put() {
    let world = World::start().await;
    world.azure.set_faults(Faults {
        goes_on: GoesOn::Location,
        ..Faults::default()
    });
    case(&world, "by_location").await;
}

#[test]
fn az508_az506_azures_types_leave_words_and_ranges_to_others() {
    let rule = |protocol: Value, port: Value| {
        let properties = json!({"protocol": protocol, "frontendPort": port});
        let rules = json!([{"name": "r", "properties": properties}]);
        let body = json!({"properties": {"loadBalancingRules": rules}});
        judged(&[("loadBalancers".to_owned(), body)])
    };
    for (protocol, port, faults) in [
        (json!("Tcp"), json!(80), 0),
        // AZ-508: passed, though Azure takes neither.
        (json!("Bogus"), json!(80), 0),
        (json!("Tcp"), json!(99_999), 0),
        (json!("Tcp"), json!("eighty"), 1),
    ] {
        let said = rule(protocol.clone(), port.clone());
        let last = said.lines().last().unwrap_or_default();
        let none = last.ends_with(" 0 faults");
        assert_eq!(none, faults == 0, "AZ-508: {protocol} {port}: {said}");
    }
}

#[test]
fn az508_az410_the_crate_loses_what_it_does_not_know() {
    let reader = std::env::var(READER)
        .unwrap_or_else(|_| panic!("{READER} names no reader: run ./e2e/run test wire"));
    let document = json!({"name": "lb", "unknown": 1, "properties": {
        "scope": "Public", "probes": [],
        "loadBalancingRules": [{"name": "r", "properties": {
            "protocol": "Tcp", "frontendPort": 80, "enableConnectionTracking": true,
        }}],
    }});
    let mut child = Command::new(reader)
        .arg("carry")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut into = child.stdin.take().unwrap();
    into.write_all(document.to_string().as_bytes()).unwrap();
    drop(into);
    let output = child.wait_with_output().unwrap();
    let left: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rule = &left["properties"]["loadBalancingRules"][0]["properties"];
    assert_eq!(rule["frontendPort"], 80);
    let lost = [
        (&left["unknown"], "a field at the top"),
        (&left["properties"]["scope"], "one of a later version"),
        (&rule["enableConnectionTracking"], "one of a rule"),
        (&left["properties"]["probes"], "an empty list"),
    ];
    for (there, what) in lost {
        assert!(there.is_null(), "AZ-508: {what} is kept by now: {left}");
    }
}
