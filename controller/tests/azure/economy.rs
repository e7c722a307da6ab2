//! What changes cost, counted in writes (ZA-101, ZA-102).

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use e2e_cloud::azure::Request;
use serde_json::{Value, json};

use crate::world::{Stands, World};
use crate::{QUIET, names};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn zi41_za101_za102_az101_hundreds_of_services_cost_few_writes_and_a_restart_none() {
    const SERVICES: u16 = 250;
    let world = World::start().await;
    let controller = world.controller().await;
    for n in 0..SERVICES {
        world.vip(&format!("web-{n}")).await;
    }
    for n in 0..SERVICES {
        world.has_address(&format!("web-{n}")).await;
    }
    let (balancers, groups) = (
        world.calls("PUT loadBalancers"),
        world.calls("PUT networkSecurityGroups"),
    );
    assert_eq!(
        world.calls("PUT publicIPAddresses"),
        u64::from(SERVICES),
        "ZA-102"
    );
    assert!(
        balancers <= 10 && groups <= 10,
        "ZA-102: {balancers} of load balancers, {groups} of security groups"
    );
    assert_eq!(
        names(&world.balancer().unwrap(), "loadBalancingRules").len(),
        usize::from(SERVICES)
    );
    let addresses: BTreeSet<String> = world
        .azure
        .frontends(world.balancer().unwrap()["id"].as_str().unwrap())
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(addresses.len(), usize::from(SERVICES));
    let writes = world.writes();
    controller.kill().await;
    let _again = world.controller().await;
    world.quiet(Duration::from_secs(10)).await;
    assert_eq!(
        world.writes(),
        writes,
        "ZA-101, AZ-105: {:#?}",
        world.azure.writes().get(writes..)
    );
    world
        .patch(
            "web-7",
            json!({ "spec": { "ports": [{ "name": "http", "port": 81, "targetPort": 8080 }] } }),
        )
        .await;
    world
        .eventually("the port is another one", async |w| {
            w.balancer().unwrap().to_string().contains("-TCP-81\"")
                && w.security_rules()
                    .iter()
                    .any(|rule| rule.to_string().contains("\"81\""))
        })
        .await;
    world.quiet(QUIET).await;
    assert_eq!(world.calls("PUT loadBalancers"), balancers + 1, "AZ-141");
    assert!(world.calls("PUT networkSecurityGroups") <= groups + 1);
}

/// Addresses in a pool, those set Down apart.
fn members_of(pool: &Value) -> (BTreeSet<String>, BTreeSet<String>) {
    let pool = &pool["properties"]["loadBalancerBackendAddresses"];
    let is_down = |member: &&Value| member["properties"]["adminState"] == "Down";
    let (down, up): (Vec<_>, Vec<_>) = pool.as_array().unwrap().iter().partition(is_down);
    let addresses = |members: Vec<&Value>| {
        let of = |member: &Value| {
            member["properties"]["ipAddress"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        members.into_iter().map(of).collect()
    };
    (addresses(up), addresses(down))
}

fn members(world: &World) -> (BTreeSet<String>, BTreeSet<String>) {
    members_of(&world.balancer().unwrap()["properties"]["backendAddressPools"][0])
}

/// Each write of a pool in short: `+in vdown -out`.
fn pool_writes(world: &World) -> Vec<String> {
    let writes = world.azure.writes();
    let pools = writes
        .iter()
        .filter(|write| write.id.contains("/backendAddressPools/"));
    let line = |write: &Request| {
        let (up, down) = write.before.as_ref().map(members_of).unwrap_or_default();
        let (now_up, now_down) = members_of(&write.body);
        let before: BTreeSet<_> = up.union(&down).collect();
        let after: BTreeSet<_> = now_up.union(&now_down).collect();
        format!(
            "+{} v{} -{}",
            after.difference(&before).count(),
            now_down.difference(&down).count(),
            before.difference(&after).count()
        )
    };
    pools.map(line).collect()
}

#[tokio::test(start_paused = true)]
async fn az102_az293_a_rollout_of_a_hundred_pods_costs_twenty_writes_at_most() {
    const PODS: u8 = 100;
    /// How many old pods are going at once, as with a maxSurge of a quarter.
    const SURGE: usize = 25;
    /// How many become ready at once.
    const BURST: usize = 5;
    let world = World::start().await;
    let _controller = world.controller().await;
    let mut ready: VecDeque<u8> = (1..=PODS).collect();
    let all: Vec<u8> = ready.iter().copied().collect();
    world.endpoints("web", &all).await;
    world.service("web", json!({}), json!({})).await;
    world.has_address("web").await;
    assert_eq!(members(&world).0.len(), usize::from(PODS));
    let before = (
        world.calls("PUT backendAddressPools"),
        world.calls("PUT loadBalancers"),
    );
    let mut going: VecDeque<u8> = VecDeque::new();
    let new: Vec<u8> = (PODS + 1..=2 * PODS).collect();
    for burst in new.chunks(BURST) {
        ready.extend(burst);
        going.extend(ready.drain(..burst.len()));
        while going.len() > SURGE {
            world.pod_gone(going.pop_front().unwrap()).await;
        }
        let pods = ready.iter().map(|n| (*n, Stands::Ready));
        let pods = pods.chain(going.iter().map(|n| (*n, Stands::Terminating)));
        let pods: Vec<_> = pods.collect();
        world.pods("web", &pods).await;
        world.quiet(Duration::from_millis(100)).await;
    }
    for gone in going {
        world.pod_gone(gone).await;
    }
    let left: Vec<u8> = ready.into_iter().collect();
    world.endpoints("web", &left).await;
    let new: BTreeSet<String> = left.iter().map(|n| format!("10.244.1.{n}")).collect();
    world
        .eventually("the new pods alone are members", async |w| {
            members(w) == (new.clone(), BTreeSet::new())
        })
        .await;
    let pools = world.calls("PUT backendAddressPools") - before.0;
    assert!(pools <= 20, "ZA-102: {pools}: {:?}", pool_writes(&world));
    assert_eq!(world.calls("PUT loadBalancers"), before.1, "AZ-106");
}

#[tokio::test(start_paused = true)]
async fn az106_az367_pools_that_change_together_are_written_one_after_the_other_without_a_refusal()
{
    let world = World::start().await;
    let _controller = world.controller().await;
    let services = ["one", "two", "three"];
    for name in services {
        world.endpoints(name, &[1]).await;
        world.service(name, json!({}), json!({})).await;
        world.has_address(name).await;
    }
    let before = world.calls("PUT loadBalancers");
    for name in services {
        world.endpoints(name, &[1, 2]).await;
    }
    world
        .eventually("every pool has both pods", async |w| {
            let pools = w.balancer().unwrap()["properties"]["backendAddressPools"].clone();
            let pools = pools.as_array().unwrap();
            pools.len() == 3 && pools.iter().all(|pool| members_of(pool).0.len() == 2)
        })
        .await;
    assert_eq!(world.calls("PUT loadBalancers"), before, "AZ-106");
    let refused: Vec<u16> = world
        .azure
        .writes()
        .iter()
        .map(|write| write.status)
        .collect();
    assert!(!refused.contains(&412), "AZ-367: {refused:?}");
}
