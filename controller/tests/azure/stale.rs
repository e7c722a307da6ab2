//! What nobody asks for any more, and what others write back.

use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use reqwest::Method;
use serde_json::{Value, json};

use crate::world::{Stands, World};
use crate::writers::Foreign;
use crate::{all_gone, names};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn az212_zi37_rules_that_somebody_writes_back_after_the_last_service_went_go_again() {
    let world = World::start().await;
    let _controller = world.controller().await;
    world.vip("web").await;
    world.has_address("web").await;
    let foreign = Foreign::new(&world).await;
    let group = world
        .place
        .security_group_id(world.place.security_group.as_ref().unwrap());
    let (_, mut old) = foreign.send(Method::GET, &group, None).await;
    old.as_object_mut().unwrap().remove("etag");
    world.delete("web").await;
    all_gone(&world, "web").await;
    // A program that has read it before writes what it has read.
    let (status, said) = foreign.send(Method::PUT, &group, Some(&old)).await;
    assert!(status.is_success(), "{said}");
    assert_eq!(world.security_rules().len(), 3);
    world
        .eventually("they are gone, with no Service there", async |w| {
            w.security_rules().len() == 2
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn az188_az312_za90_the_last_ipv4_frontend_outlives_its_service_until_those_of_ipv6_are_gone()
{
    let world = World::start().await;
    let _controller = world.controller().await;
    let six = json!({"ipFamilies": ["IPv6"], "ipFamilyPolicy": "SingleStack"});
    let vip = json!({"onehop.dev/target": "vip"});
    world.service("six", six, vip).await;
    world.tells("six", "IPv6WithoutIPv4").await;
    assert_eq!(world.writes(), 0, "AZ-188: before the PUT");
    world.vip("four").await;
    world.has_address("four").await;
    let address = world.has_address("six").await;
    assert!(address.contains(':'), "AZ-188: by itself: {address}");
    world.delete("four").await;
    world
        .eventually("its rule is gone", async |w| {
            names(&w.balancer().unwrap(), "loadBalancingRules").len() == 1
        })
        .await;
    world.quiet(Duration::from_secs(5)).await;
    let balancer = world.balancer().unwrap();
    assert_eq!(
        names(&balancer, "frontendIPConfigurations").len(),
        2,
        "AZ-188"
    );
    let four = world.api::<Service>().get_opt("four").await.unwrap();
    assert!(four.is_some(), "AZ-187: its finalizer holds it");
    let writes = world.writes();
    world.quiet(Duration::from_secs(3)).await;
    assert_eq!(world.writes(), writes, "I4: it is only waited for");
    world.delete("six").await;
    all_gone(&world, "six").await;
    all_gone(&world, "four").await;
    let refused: Vec<u16> = world
        .write_statuses()
        .into_iter()
        .filter(|status| *status == 400)
        .collect();
    assert_eq!(refused, [0; 0], "AZ-188: Azure never has to refuse");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn az149_az078_az186_a_changed_and_a_removed_annotation_cost_one_write_of_the_load_balancer_each()
 {
    let world = World::start().await;
    let _controller = world.controller().await;
    let key = "service.beta.kubernetes.io/azure-load-balancer-health-probe-interval";
    let more = "service.beta.kubernetes.io/azure-additional-public-ips";
    let annotations = json!({"onehop.dev/target": "vip", more: "20.9.9.9"});
    world.service("web", json!({}), annotations).await;
    let address = world.has_address("web").await;
    assert_eq!(
        world.addresses("web").await,
        [address.clone(), "20.9.9.9".to_owned()],
        "AZ-186"
    );
    let service = world.api::<Service>().get("web").await.unwrap();
    let ingress = service
        .status
        .unwrap()
        .load_balancer
        .unwrap()
        .ingress
        .unwrap();
    for entry in ingress {
        assert_eq!(entry.ip_mode.as_deref(), Some("VIP"), "AZ-186");
        assert_eq!(entry.hostname, None, "AZ-186");
    }
    let interval = |world: &World| {
        world.balancer().unwrap()["properties"]["probes"][0]["properties"]["intervalInSeconds"]
            .clone()
    };
    let (mut puts, mut all) = (world.calls("PUT loadBalancers"), world.writes());
    for (value, seconds) in [(json!("20"), 20), (json!("30"), 30), (Value::Null, 5)] {
        world
            .patch("web", json!({"metadata": {"annotations": {key: value}}}))
            .await;
        world
            .eventually("the probe follows", async |w| interval(w) == seconds)
            .await;
        world.quiet(Duration::from_secs(2)).await;
        (puts, all) = (puts + 1, all + 1);
        assert_eq!(
            (world.calls("PUT loadBalancers"), world.writes()),
            (puts, all),
            "AZ-149"
        );
    }
}

fn pools(world: &World) -> Vec<String> {
    let balancer = world.balancer().unwrap();
    let all = names(&balancer, "backendAddressPools");
    all.into_iter().map(str::to_owned).collect()
}

/// The pool that the one rule uses, if it has members.
fn serving(world: &World) -> Option<String> {
    let balancer = world.balancer()?;
    let rule = &balancer["properties"]["loadBalancingRules"][0];
    let used = rule["properties"]["backendAddressPool"]["id"].as_str()?;
    let used = used.rsplit('/').next()?.to_owned();
    let of = |pool: &&Value| pool["name"] == used.as_str();
    let all = balancer["properties"]["backendAddressPools"].as_array()?;
    let members = all.iter().find(of)?["properties"]["loadBalancerBackendAddresses"].as_array()?;
    (!members.is_empty()).then_some(used)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn za115_az112_az253_az109_killed_between_two_pools_of_a_service_it_serves_and_leaves_one() {
    let world = World::start().await;
    let mut controller = world.controller().await;
    world
        .pods("web", &[(1, Stands::Ready), (2, Stands::Ready)])
        .await;
    world
        .service("web", json!({}), json!({"onehop.dev/target": "vip"}))
        .await;
    let address = world.has_address("web").await;
    let mode = |word: &str| json!({"metadata": {"annotations": {"onehop.dev/target": word}}});
    // The end of each call of the switch, there and back: a pool that is filled, the rule that uses it, the pool that goes.
    for (word, calls, own) in [
        ("pod", 2, true),
        ("vip", 1, false),
        ("pod", 1, true),
        ("vip", 2, false),
    ] {
        let before = world.writes();
        world.patch("web", mode(word)).await;
        world
            .eventually("the switch has begun", async |w| {
                w.writes() >= before + calls
            })
            .await;
        controller.kill().await;
        let there = world.balancer();
        assert!(serving(&world).is_some(), "AZ-253: {word}: {there:#?}");
        controller = world.controller().await;
        world
            .eventually("the new pool alone is of the Service", async |w| {
                let used = serving(w).unwrap_or_default();
                let left = pools(w)
                    .iter()
                    .filter(|pool| pool.contains("-pods-"))
                    .count();
                used.contains("-pods-") == own && left == usize::from(own)
            })
            .await;
        assert_eq!(world.address("web").await, Some(address.clone()), "AZ-111");
    }
    let told = world.told("web").await;
    let refused = told
        .iter()
        .find(|(reason, _)| reason.contains("Conflict") || reason.contains("Foreign"));
    assert_eq!(refused, None, "AZ-112: never a reason to refuse");
}
