//! The controller with provider azure against the API server and the fake Azure, in one process and over real HTTP; no
//! packets.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail the test"
)]

mod alone;
#[path = "../shared/cluster.rs"]
mod cluster;
mod datapath;
mod economy;
mod going;
mod lease;
mod made;
mod pods;
mod scenarios;
mod stale;
mod takeover;
mod world;
mod writers;

use std::time::Duration;

use e2e_cloud::azure::Faults;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use onehop_core::crd::SERVICE_FINALIZER;
use serde_json::{Value, json};
use world::{World, foreign_rules};

const QUIET: Duration = Duration::from_secs(3);

fn names<'a>(balancer: &'a Value, kind: &str) -> Vec<&'a str> {
    let children = balancer["properties"][kind]
        .as_array()
        .into_iter()
        .flatten();
    children
        .filter_map(|child| child["name"].as_str())
        .collect()
}

/// Waits until nothing of ours is left but what belongs to nobody of us.
async fn all_gone(world: &World, name: &str) {
    world
        .eventually(
            "load balancer, public IPs, rules and finalizer are gone",
            async |w| {
                let service = w.api::<Service>().get_opt(name).await.unwrap();
                let pips = w.azure.ids("publicIPAddresses");
                service.is_none()
                    && w.balancer().is_none()
                    && pips.is_empty()
                    && w.security_rules().len() == 2
            },
        )
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn za66_za99_az115_az116_a_service_comes_and_goes_and_at_rest_nothing_is_written() {
    let world = World::start().await;
    let _controller = world.controller().await;
    world.vip("web").await;
    let address = world.has_address("web").await;
    assert!(address.starts_with("20.0.0."), "{address}");
    let balancer = world.balancer().unwrap();
    assert_eq!(names(&balancer, "loadBalancingRules").len(), 1);
    assert_eq!(
        names(&balancer, "backendAddressPools"),
        ["demo-azure"],
        "AZ-099"
    );
    let pool = &balancer["properties"]["backendAddressPools"][0];
    let members: Vec<_> = pool["properties"]["loadBalancerBackendAddresses"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["name"].clone())
        .collect();
    assert_eq!(members, [json!("node-1"), json!("node-2")], "AZ-090");
    assert_eq!(world.security_rules().len(), 3);
    let service = world.api::<Service>().get("web").await.unwrap();
    assert!(
        service.finalizers().iter().any(|f| f == SERVICE_FINALIZER),
        "AZ-005"
    );
    let writes = world.writes();
    assert_eq!(
        (
            world.calls("PUT loadBalancers"),
            world.calls("PUT networkSecurityGroups"),
            world.calls("PUT publicIPAddresses")
        ),
        (1, 1, 1),
        "ZA-102"
    );
    world.quiet(QUIET).await;
    world
        .patch(
            "web",
            json!({ "metadata": { "annotations": { "note": "x" } } }),
        )
        .await;
    world.quiet(QUIET).await;
    assert_eq!(
        world.writes(),
        writes,
        "ZA-66, ZA-101: {:#?}",
        world.azure.writes()
    );
    world.delete("web").await;
    all_gone(&world, "web").await;
    assert_eq!(
        world.security_rules().len(),
        foreign_rules().as_array().unwrap().len()
    );
}

#[tokio::test(start_paused = true)]
async fn az405_az493_az118_az200_every_write_of_what_is_there_has_if_match() {
    let world = World::start().await;
    world.azure.set_faults(Faults {
        need_if_match: true,
        ..Faults::default()
    });
    let _controller = world.controller().await;
    world.vip("web").await;
    world.has_address("web").await;
    world.node_in_pool(3).await;
    assert_eq!(world.calls("PUT backendAddressPools"), 1, "AZ-106, ZA-76");
    assert_eq!(world.calls("PUT loadBalancers"), 1, "AZ-106");
    world.vip("other").await;
    world.has_address("other").await;
    world.delete("web").await;
    world.delete("other").await;
    all_gone(&world, "other").await;
    let refused: Vec<_> = world
        .azure
        .writes()
        .into_iter()
        .filter(|w| w.status == 400)
        .collect();
    assert_eq!(refused, [], "AZ-405");
    let group = world.azure.writes().into_iter();
    let group: Vec<_> = group
        .filter(|w| w.id.contains("/networkSecurityGroups/"))
        .collect();
    assert!(!group.is_empty());
    for write in group {
        let rules = write.body["properties"]["securityRules"].as_array();
        assert!(
            write.id.ends_with("/networkSecurityGroups/nsg"),
            "AZ-200: {}",
            write.id
        );
        assert!(
            rules.is_some_and(|all| all.len() >= 2),
            "AZ-200: one document"
        );
        assert_eq!(
            write.body["properties"]["other"],
            json!({"a": []}),
            "AZ-200: merged"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn az107_az035_az176_az365_a_service_that_azure_refuses_holds_up_nobody_and_the_event_has_its_words()
 {
    let world = World::start().await;
    let _controller = world.controller().await;
    world.azure.set_faults(Faults {
        fail_operation: vec![("publicIPAddresses".to_owned(), "PublicIPCountLimitReached")],
        ..Faults::default()
    });
    world.vip("web").await;
    world.has_address("web").await;
    // A frontend that cannot be: two Services pin one private address in another subnet.
    let internal = json!({
        "onehop.dev/target": "vip", "service.beta.kubernetes.io/azure-load-balancer-internal": "true",
        "service.beta.kubernetes.io/azure-load-balancer-ipv4": "10.9.9.9",
    });
    world.service("wrong", json!({}), internal).await;
    let good = json!({
        "onehop.dev/target": "vip", "service.beta.kubernetes.io/azure-load-balancer-internal": "true",
    });
    world.service("right", json!({}), good).await;
    let address = world.has_address("right").await;
    assert!(address.starts_with("10.0.4."), "{address}");
    assert_eq!(world.address("wrong").await, None);
    world
        .eventually("Azure's words are told", async |w| {
            w.told("wrong")
                .await
                .iter()
                .any(|(_, message)| message.contains("PrivateIPAddressNotInSubnet"))
        })
        .await;
    assert_eq!(
        world.security_rules().len(),
        3,
        "ZA-30: internal ones need no rule"
    );
}

#[tokio::test(start_paused = true)]
async fn az409_zi25_a_lost_answer_makes_no_second_one_and_leaks_nothing() {
    let world = World::start().await;
    let _controller = world.controller().await;
    let kinds = [
        "publicIPAddresses",
        "loadBalancers",
        "networkSecurityGroups",
    ];
    world.azure.set_faults(Faults {
        lose_answer: kinds.map(str::to_owned).to_vec(),
        ..Faults::default()
    });
    world.vip("web").await;
    world.has_address("web").await;
    assert_eq!(world.azure.ids("publicIPAddresses").len(), 1, "AZ-409");
    world.delete("web").await;
    all_gone(&world, "web").await;
}

#[tokio::test(start_paused = true)]
async fn az376_a_claims_challenge_is_answered_with_a_new_token() {
    let world = World::start().await;
    let _controller = world.controller().await;
    world.azure.set_faults(Faults {
        challenge: true,
        ..Faults::default()
    });
    world.vip("web").await;
    world.has_address("web").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn za94_za111_killed_during_create_and_during_delete_it_converges() {
    let world = World::start().await;
    for (call, count) in [
        ("PUT publicIPAddresses", 1),
        ("PUT loadBalancers", 1),
        ("PUT networkSecurityGroups", 1),
    ] {
        let name = format!("web-{}", call.len());
        let before = world.calls(call);
        let controller = world.controller().await;
        world.vip(&name).await;
        world
            .eventually(call, async |w| w.calls(call) >= before + count)
            .await;
        controller.kill().await;
        let controller = world.controller().await;
        world.has_address(&name).await;
        assert_eq!(
            world.azure.ids("publicIPAddresses").len(),
            1,
            "ZA-93, AZ-111"
        );
        let writes = world.writes();
        world.delete(&name).await;
        world
            .eventually("the removal has begun", async |w| w.writes() > writes)
            .await;
        controller.kill().await;
        let controller = world.controller().await;
        all_gone(&world, &name).await;
        controller.kill().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn za80_az291_pods_come_by_their_addresses_and_leave_down_first() {
    let world = World::start().await;
    let _controller = world.controller().await;
    world.endpoints("web", &[1, 2]).await;
    world.service("web", json!({}), json!({})).await;
    world.has_address("web").await;
    let members = |world: &World| -> Vec<String> {
        let balancer = world.balancer().unwrap();
        let pool = &balancer["properties"]["backendAddressPools"][0]["properties"]["loadBalancerBackendAddresses"];
        let one = |member: &Value| {
            let p = &member["properties"];
            format!(
                "{} {}",
                p["ipAddress"].as_str().unwrap(),
                p["adminState"].as_str().unwrap_or("-")
            )
        };
        pool.as_array().unwrap().iter().map(one).collect()
    };
    assert_eq!(
        members(&world),
        ["10.244.1.1 -", "10.244.1.2 -"],
        "AZ-131, ZA-89"
    );
    let before = world.calls("PUT loadBalancers");
    world.endpoints("web", &[2, 3]).await;
    world
        .eventually("the new pod is in", async |w| {
            members(w).iter().any(|m| m.starts_with("10.244.1.3"))
        })
        .await;
    world
        .eventually("the old one is out or Down", async |w| {
            !members(w).iter().any(|m| m == "10.244.1.1 -")
        })
        .await;
    assert_eq!(world.calls("PUT loadBalancers"), before, "AZ-106");
    let seen = world.azure.writes();
    let bodies: Vec<String> = seen
        .iter()
        .filter(|w| w.id.contains("backendAddressPools"))
        .map(|w| w.body.to_string())
        .collect();
    let added = bodies
        .iter()
        .position(|body| body.contains("10.244.1.3"))
        .unwrap();
    let left = bodies
        .iter()
        .position(|body| !body.contains("\"10.244.1.1\"") || body.contains("Down"));
    assert!(
        left.is_none_or(|left| left > added),
        "AZ-109, ZD-21: {bodies:#?}"
    );
}

#[tokio::test(start_paused = true)]
async fn az310_az315_a_service_gets_its_second_family_and_loses_it_again() {
    let world = World::start().await;
    let _controller = world.controller().await;
    world.vip("web").await;
    let first = world.has_address("web").await;
    let dual =
        json!({ "spec": { "ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"] } });
    world.patch("web", dual).await;
    world
        .eventually("it has an address of each family", async |w| {
            let all = w.addresses("web").await;
            all.len() == 2 && all[0] == first && all[1].contains(':')
        })
        .await;
    assert_eq!(world.azure.ids("publicIPAddresses").len(), 2);
    let balancer = world.balancer().unwrap();
    assert_eq!(
        names(&balancer, "backendAddressPools"),
        ["demo-azure", "demo-azure-IPv6"],
        "AZ-310"
    );
    assert_eq!(world.calls("PUT loadBalancers"), 2, "AZ-102: one more");
    assert_eq!(
        world.security_rules().len(),
        4,
        "ZA-29: a rule for each family"
    );
    let single = json!({ "spec": { "ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"] } });
    world.patch("web", single).await;
    world
        .eventually("the second family is gone", async |w| {
            w.addresses("web").await == [first.clone()]
                && w.azure.ids("publicIPAddresses").len() == 1
                && names(&w.balancer().unwrap(), "frontendIPConfigurations").len() == 1
                && w.security_rules().len() == 3
        })
        .await;
    world.delete("web").await;
    all_gone(&world, "web").await;
}

#[tokio::test(start_paused = true)]
async fn az184_a_public_ip_in_no_good_state_is_written_as_it_is_and_holds_up_nobody() {
    let world = World::start().await;
    let _controller = world.controller().await;
    world.vip("web").await;
    world.has_address("web").await;
    let pip = world.azure.ids("publicIPAddresses").remove(0);
    world.azure.edit(&pip, |document| {
        document["properties"]["provisioningState"] = json!("Failed");
        document["properties"]["mystery"] = json!([]);
    });
    let before = world.azure.document(&pip).unwrap();
    world.vip("other").await;
    world.has_address("other").await;
    let writes = world.azure.writes();
    let mends: Vec<_> = writes
        .iter()
        .filter(|write| write.id == pip && write.before.as_ref() == Some(&before))
        .collect();
    assert_eq!(mends.len(), 1, "AZ-184: {mends:?}");
    assert_eq!(mends[0].body, before, "as it is");
    assert_eq!(
        mends[0].if_match.as_deref(),
        before["etag"].as_str(),
        "AZ-405"
    );
    let refused = writes.iter().filter(|write| write.status == 429).count();
    assert_eq!(refused, 1, "the next one is taken");
}
