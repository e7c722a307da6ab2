//! Every body that the controller sends, and what the fake answers, by the typed dictionaries of Azure's package.

use std::io::Write as _;
use std::process::Stdio;

use e2e_cloud::azure::Request;
use serde_json::{Value, json};

use crate::azure::World;
use crate::difference::added;
use crate::{annotations, python};

/// Judges documents, each with its kind; gives what the judge says.
pub(crate) fn judged(documents: &[(String, Value)]) -> String {
    let mut child = python("azure_bodies.py")
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

/// What a write says, by its kind; what it only carries along is not ours.
fn said(write: &Request) -> Option<(String, Value)> {
    let kind = write.id.rsplit('/').nth(1).unwrap().to_owned();
    Some((kind, added(write.before.as_ref(), &write.body)?))
}

/// Services of every shape that comes and goes, with members that change.
async fn busy(world: &World) {
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
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn az501_every_body_that_is_sent_and_every_answer_has_keys_and_types_of_azures_own_package() {
    let world = World::start().await;
    let group = world.place.security_group.clone().unwrap();
    let group = world.place.security_group_id(&group);
    let at_first = world.azure.document(&group);
    let _controller = world.controller().await;
    busy(&world).await;
    let writes = world.azure.writes();
    let puts = writes.iter().filter(|write| write.method == "PUT");
    let mut documents: Vec<(String, Value)> = puts.filter_map(said).collect();
    for kind in [
        "loadBalancers",
        "publicIPAddresses",
        "networkSecurityGroups",
    ] {
        let sent = documents.iter().filter(|(of, _)| of == kind).count();
        assert!(sent > 0, "{kind} were written");
        for id in world.azure.ids(kind) {
            let stored = world.azure.document(&id).unwrap();
            let before = (id == group).then_some(at_first.as_ref()).flatten();
            let part = added(before, &stored);
            documents.extend(part.map(|part| (kind.to_owned(), part)));
        }
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
