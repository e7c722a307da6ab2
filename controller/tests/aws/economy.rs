//! What the controller spends, counted at the cloud (AWS-700 to AWS-712, AWS-953).

use std::collections::BTreeMap;
use std::time::Duration;

use e2e_cloud::aws::Aws;
use e2e_cloud::engine::{Engine, TargetState};
use onehop_controller::cloud::aws::client::{Limit, Limits};
use serde_json::{Value, json};

use crate::world::{Flags, OWN_CLASS, World};

/// Services of the larger tests.
const MANY: u64 = 100;
/// AWS-844: one of each read that is in use at start, and the dry runs.
const RIGHTS: u64 = 8 + 8;
const HEALTH: &str = "elasticloadbalancing:DescribeTargetHealth";
const REGISTER: &str = "elasticloadbalancing:RegisterTargets";
const DEREGISTER: &str = "elasticloadbalancing:DeregisterTargets";

/// Pods as targets: what is registered follows the endpoints.
fn pods() -> Value {
    json!({
        "service.beta.kubernetes.io/aws-load-balancer-nlb-target-type": "ip",
        "service.beta.kubernetes.io/aws-load-balancer-healthcheck-interval": "5",
        "service.beta.kubernetes.io/aws-load-balancer-healthcheck-healthy-threshold": "2",
    })
}

/// No limits of our own, to come to the point of a test.
fn fast() -> Flags {
    let limit = Limit {
        rate: 1000.0,
        burst: 1000.0,
    };
    Flags {
        limits: Limits {
            describe: limit,
            members: limit,
            change: limit,
            ec2: limit,
        },
        // As installed: with hundreds of calls at once one is not answered within a short lease's share.
        lease: Duration::from_secs(15),
        ..Flags::default()
    }
}

/// Calls since `before`, by name.
fn spent(aws: &Aws, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let now = aws.calls().into_iter();
    let spent = now.map(|(call, n)| {
        let n = n - before.get(&call).unwrap_or(&0);
        (call, n)
    });
    spent.filter(|(_, n)| *n > 0).collect()
}

fn of(spent: &BTreeMap<String, u64>, call: &str) -> u64 {
    spent.get(call).copied().unwrap_or_default()
}

fn is_read(call: &str) -> bool {
    call.contains(":Describe") || call == "ec2:DryRun"
}

/// Targets that the cloud has in this state.
fn count(world: &World, state: TargetState) -> usize {
    let inventory = world.cloud.look(Engine::inventory);
    let targets = inventory.groups.iter().flat_map(|(_, targets)| targets);
    targets.filter(|target| target.state == state).count()
}

/// Waits until so many targets are healthy and no other is on its way.
async fn healthy(world: &World, wanted: usize) {
    let what = format!("{wanted} targets are healthy");
    world
        .within(Duration::from_mins(5), &what, async |w| {
            count(w, TargetState::Healthy) == wanted && count(w, TargetState::Initial) == 0
        })
        .await;
}

/// Waits until nothing was called for longer than the controller waits between two polls.
async fn at_rest(world: &World) {
    let mut last = world.aws.calls();
    world
        .eventually("Services at rest cost no call", async |w| {
            w.quiet(Duration::from_secs(6)).await;
            let quiet = spent(&w.aws, &last).is_empty();
            last = w.aws.calls();
            quiet
        })
        .await;
}

/// Makes many Services, each with these endpoints.
async fn many(world: &World, services: u64, endpoints: &[u8]) {
    for n in 0..services {
        let name = format!("web-{n}");
        world.endpoints(&name, endpoints).await;
        world.service(&name, OWN_CLASS, pods()).await;
    }
    let targets = usize::try_from(services).unwrap() * endpoints.len();
    healthy(world, targets).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn aws703_a_service_with_one_port_and_three_targets_costs_at_most_fourteen_calls() {
    let world = World::start().await;
    let _controller = world.controller(Flags::default()).await;
    at_rest(&world).await;
    let before = world.aws.calls();
    world.endpoints("web", &[1, 2, 3]).await;
    world.service("web", OWN_CLASS, pods()).await;
    healthy(&world, 3).await;
    at_rest(&world).await;
    let spent = spent(&world.aws, &before);
    let all: u64 = spent.values().sum();
    // Of aws-load-balancer-controller 22 were measured.
    assert!(all <= 14, "AWS-703: {all}: {spent:?}");
    assert_eq!(of(&spent, REGISTER), 1, "AWS-702: {spent:?}");
    let listings = of(&spent, "elasticloadbalancing:DescribeTargetGroups");
    assert_eq!(listings, 0, "AWS-701: {spent:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn aws701_aws953_ai13_ai58_a_restart_with_a_hundred_services_writes_nothing_and_reads_twice_for_each()
 {
    let world = World::start().await;
    let controller = world.controller(fast()).await;
    many(&world, MANY, &[1]).await;
    at_rest(&world).await;
    controller.kill().await;
    let before = world.aws.calls();
    let _controller = world.controller(fast()).await;
    world
        .eventually("every Service was looked at", async |w| {
            of(&spent(&w.aws, &before), HEALTH) >= MANY
        })
        .await;
    at_rest(&world).await;
    let spent = spent(&world.aws, &before);
    let (reads, writes): (BTreeMap<_, _>, BTreeMap<_, _>) =
        spent.into_iter().partition(|(call, _)| is_read(call));
    assert!(writes.is_empty(), "AWS-953: {writes:?}");
    // Load balancers, groups, subnets, VPC, security groups, interfaces; and the tags, twenty objects a call.
    let pages = 6 + (2 * MANY).div_ceil(20);
    let all: u64 = reads.values().sum();
    assert!(
        all <= 2 * MANY + pages + RIGHTS,
        "AWS-701: {all}: {reads:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn aws421_aws702_a_rollout_of_a_hundred_pods_by_quarters_costs_at_most_twenty_calls() {
    const PODS: u8 = 100;
    const SURGE: u8 = 25;
    const TOGETHER: u8 = 5;
    let world = World::start().await;
    let _controller = world.controller(Flags::default()).await;
    let (old, all): (Vec<u8>, Vec<u8>) = ((1..=PODS).collect(), (1..=2 * PODS).collect());
    // So that the pods are there, and the rollout is as quick as it says.
    world.endpoints("other", &all).await;
    world.endpoints("web", &old).await;
    world.service("web", OWN_CLASS, pods()).await;
    healthy(&world, PODS.into()).await;
    at_rest(&world).await;
    let before = world.aws.calls();
    // A quarter of the new pods starts at a time. Within a second they get ready, some together, and an old one goes for each;
    // a pod takes two seconds to get ready.
    for new in (TOGETHER..=PODS).step_by(TOGETHER.into()) {
        let ready: Vec<u8> = (new + 1..=PODS).chain(PODS + 1..=PODS + new).collect();
        world.endpoints("web", &ready).await;
        let wave_ends = new.is_multiple_of(SURGE);
        let next = if wave_ends { 2000 } else { 200 };
        world.quiet(Duration::from_millis(next)).await;
    }
    healthy(&world, PODS.into()).await;
    world
        .eventually("the old ones are out", async |w| {
            count(w, TargetState::Unhealthy) == 0
                && count(w, TargetState::Healthy) == usize::from(PODS)
        })
        .await;
    at_rest(&world).await;
    let spent = spent(&world.aws, &before);
    let members = of(&spent, REGISTER) + of(&spent, DEREGISTER);
    assert!(members <= 20, "AWS-421: {members}: {spent:?}");
}
