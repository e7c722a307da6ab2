//! Writes that go on after their answer, in every style of Azure, and what is measured of them.

use e2e_cloud::azure::{Faults, GoesOn, Request};
use serde_json::json;

use crate::world::{OPERATION, World};
use crate::{all_gone, names};

/// The writes so far of documents that are there, each waited for before the next one.
fn one_by_one(world: &World) -> Vec<Request> {
    let writes = world.azure.writes();
    for pair in writes.windows(2) {
        let between = pair[1].at.since(pair[0].at);
        assert!(
            between >= OPERATION || pair[0].method == "DELETE",
            "{} was written while {} went on: {between:?}",
            pair[1].id,
            pair[0].id
        );
    }
    writes
}

#[tokio::test(start_paused = true)]
async fn az360_az362_az363_az406_a_write_is_waited_for_however_azure_says_that_it_goes_on() {
    for (goes_on, id) in [
        (GoesOn::Operation, "AZ-360"),
        (GoesOn::Resource, "AZ-362"),
        (GoesOn::Location, "AZ-363"),
    ] {
        let world = World::start().await;
        world.azure.set_faults(Faults {
            goes_on,
            ..Faults::default()
        });
        let _controller = world.controller().await;
        world.vip("web").await;
        world.has_address("web").await;
        // Then the same again for a child with a path of its own.
        world.node_in_pool(3).await;
        let writes = one_by_one(&world);
        let kinds = [
            "publicIPAddresses",
            "loadBalancers",
            "networkSecurity",
            "backendAddressPools",
        ];
        assert_eq!(writes.len(), kinds.len(), "{id}: {writes:#?}");
        for (write, kind) in writes.iter().zip(kinds) {
            assert!(write.id.contains(kind), "{id}: {}", write.id);
            let status = match goes_on {
                GoesOn::Location => 202,
                _ if write.before.is_none() => 201,
                _ => 200,
            };
            assert_eq!(write.status, status, "{id}: {}", write.id);
        }
        world.delete("web").await;
        all_gone(&world, "web").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn az362_az363_az365_a_write_that_fails_later_is_told_with_azures_words_and_holds_up_nothing()
{
    for (goes_on, said) in [
        (GoesOn::Operation, "PublicIPCountLimitReached"),
        (GoesOn::Resource, "Failed: so says its provisioningState"),
        (GoesOn::Location, "PublicIPCountLimitReached"),
    ] {
        let world = World::start().await;
        let kind = "publicIPAddresses".to_owned();
        world.azure.set_faults(Faults {
            goes_on,
            fail_operation: vec![(kind, "PublicIPCountLimitReached")],
            ..Faults::default()
        });
        let _controller = world.controller().await;
        world.vip("web").await;
        world.has_address("web").await;
        let told = world.told("web").await;
        assert!(
            told.iter().any(|(_, message)| message.contains(said)),
            "AZ-365: {goes_on:?}: {told:#?}"
        );
        let balancer = world.balancer().unwrap();
        assert_eq!(names(&balancer, "loadBalancingRules").len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn az374_az471_what_is_written_and_what_is_left_is_measured() {
    let world = World::start().await;
    let controller = world.controller().await;
    for name in ["one", "two"] {
        world.vip(name).await;
    }
    for name in ["one", "two"] {
        world.has_address(name).await;
    }
    let value = |name: &str| controller.metric(&format!("onehop_azure_{name}"));
    let balancers = world.calls("PUT loadBalancers");
    #[allow(clippy::cast_precision_loss, reason = "a handful")]
    let count = |count: u64| Some(count as f64);
    assert_eq!(
        value("writes_total{kind=\"loadBalancers\",result=\"ok\"}"),
        count(balancers),
        "AZ-471"
    );
    assert_eq!(
        value("writes_total{kind=\"publicIPAddresses\",result=\"ok\"}"),
        count(2)
    );
    let took = value("operation_seconds_sum{kind=\"publicIPAddresses\"}").unwrap();
    assert!(took >= 2.0 * OPERATION.as_secs_f64(), "AZ-471: {took}");
    assert_eq!(
        value("services_per_write_sum{kind=\"loadBalancers\"}"),
        count(2),
        "AZ-471"
    );
    assert_eq!(
        value("members{balancer=\"external\",state=\"up\"}"),
        count(2)
    );
    assert_eq!(value("used{of=\"external\",what=\"rules\"}"), count(2));
    assert_eq!(
        value("used{of=\"external\",what=\"rules-of-busiest-member\"}"),
        count(2),
        "AZ-431"
    );
    assert_eq!(
        value("used{of=\"security-group\",what=\"rules\"}"),
        count(3)
    );
    let left = value("remaining_requests{direction=\"write\"}").unwrap();
    #[allow(clippy::cast_precision_loss, reason = "a handful")]
    let writes = world.writes() as f64;
    assert!(
        (left - (12_000.0 - writes)).abs() < f64::EPSILON,
        "AZ-374: {left}"
    );
    assert!(value("remaining_requests{direction=\"read\"}").is_some());
    // Ready is who has a member past its probe time (AZ-472).
    world
        .eventually("both are served", async |_| {
            value("change_to_healthy_seconds_count{kind=\"service\"}") == count(2)
        })
        .await;
    let sum = value("change_to_healthy_seconds_sum{kind=\"service\"}").unwrap();
    assert!(
        sum >= 20.0,
        "AZ-471: two intervals of five seconds each: {sum}"
    );
    // A change of what is asked for is measured anew.
    let ports =
        json!({ "spec": { "ports": [{ "name": "http", "port": 81, "targetPort": 8080 }] } });
    world.patch("one", ports).await;
    world
        .eventually("the change is served", async |_| {
            value("change_to_healthy_seconds_count{kind=\"service\"}") == count(3)
        })
        .await;
}
