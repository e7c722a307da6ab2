//! What comes first, what waits, and for how long (AWS-424, AWS-760, AWS-952).

use std::time::Duration;

use e2e_cloud::engine::{Engine, TargetState};
use k8s_openapi::api::core::v1::Service;
use kube::api::DeleteParams;
use onehop_controller::cloud::aws::client::{Limit, Limits};
use onehop_controller::plan::gates;
use onehop_core::id::{PortKey, Protocol, ServiceKey};

use crate::account::{balancers, pods, targets};
use crate::gated::{gated_pod, says};
use crate::world::{Flags, INSTALL, OWN_CLASS, World};

const HEALTH: &str = "elasticloadbalancing:DescribeTargetHealth";
const REGISTER: &str = "elasticloadbalancing:RegisterTargets";
const CREATE: &str = "elasticloadbalancing:CreateLoadBalancer";

fn calls(world: &World, call: &str) -> u64 {
    world.aws.calls().get(call).copied().unwrap_or_default()
}

#[tokio::test]
async fn aws424_ai14_after_a_change_of_leaders_what_has_changed_is_looked_at_first() {
    const SERVICES: u8 = 8;
    let world = World::start().await;
    let controller = world.controller(Flags::default()).await;
    for n in 1..=SERVICES {
        let name = format!("web-{n}");
        world.endpoints(&name, &[n]).await;
        world.service(&name, OWN_CLASS, pods()).await;
    }
    world
        .eventually("all are in", async |w| {
            targets(w).len() == usize::from(SERVICES)
        })
        .await;
    controller.kill().await;
    // The last one by its name, so that it is not the first one anyway.
    world.endpoints("web-8", &[8, 9]).await;
    let (looked, registered) = (calls(&world, HEALTH), calls(&world, REGISTER));
    let slow = Limit {
        rate: 4.0,
        burst: 1.0,
    };
    let flags = Flags {
        limits: Limits {
            describe: slow,
            ..Limits::default()
        },
        ..Flags::default()
    };
    let _controller = world.controller(flags).await;
    world
        .eventually("it is registered", async |w| {
            calls(w, REGISTER) > registered
        })
        .await;
    assert!(targets(&world).contains(&9), "AWS-424");
    let others = calls(&world, HEALTH) - looked - 1;
    assert!(
        others <= 3,
        "AWS-424, AI-14: {others} others were looked at first"
    );
}

#[tokio::test]
async fn aws760_what_has_no_room_is_named_tried_slowly_and_at_once_when_something_of_ours_goes() {
    let world = World::start().await;
    let _controller = world.controller(Flags::patient()).await;
    world.endpoints("web", &[1]).await;
    world.endpoints("two", &[2]).await;
    world.service("web", OWN_CLASS, pods()).await;
    world
        .eventually("one is there", async |w| balancers(w).len() == 1)
        .await;
    world.cloud.with(|engine: &mut Engine, now| {
        let mut faults = engine.faults().clone();
        faults.quotas.load_balancers = Some(1);
        engine.set_faults(now, faults);
    });
    world.service("two", OWN_CLASS, pods()).await;
    let quota = "TooManyLoadBalancers";
    world
        .eventually("AWS-760: the condition names it", async |w| {
            let status = w.balancer("two").await.and_then(|b| b.status);
            let mut conditions = status.into_iter().flat_map(|s| s.conditions);
            conditions.any(|c| c.type_ == "Degraded" && c.message.contains(quota))
        })
        .await;
    world
        .eventually("AWS-760: an event names it", async |w| {
            let told = w.told("two").await;
            told.iter()
                .any(|(reason, message)| reason == "QuotaExceeded" && message.contains(quota))
        })
        .await;
    let tried = calls(&world, CREATE);
    world.pass_time(Duration::from_mins(10)).await;
    let again = calls(&world, CREATE) - tried;
    // Half a minute to five minutes apart.
    assert!((2..=12).contains(&again), "AWS-760: {again}");
    let services = world.api::<Service>();
    services
        .delete("web", &DeleteParams::default())
        .await
        .unwrap();
    let made = |w: &World| targets(w) == [2].into() && balancers(w).len() == 1;
    let since = world.clock.now();
    while !made(&world) || calls(&world, CREATE) == tried + again {
        world.pass_time(Duration::from_secs(2)).await;
        let waited = world.clock.now().since(since);
        assert!(
            waited < Duration::from_secs(30),
            "AWS-760: {:?}",
            world.aws.writes()
        );
    }
    world
        .eventually("AWS-760: it is told no longer", async |w| {
            let status = w.balancer("two").await.and_then(|b| b.status);
            let mut conditions = status.into_iter().flat_map(|s| s.conditions);
            !conditions.any(|c| c.message.contains(quota))
        })
        .await;
}

#[tokio::test]
async fn aws952_ai07_a_gate_follows_the_load_balancer_within_a_health_interval_and_a_poll() {
    const INTERVAL: Duration = Duration::from_secs(10);
    const POLL: Duration = Duration::from_secs(5);
    let world = World::at_speed(1).await;
    let port = PortKey {
        name: "http".into(),
        protocol: Protocol::Tcp,
    };
    let key = ServiceKey::new("default", "web");
    let gate = gates::name(&INSTALL.into(), &key, 80, &port);
    gated_pod(&world.client(), 1, &[&gate]).await;
    world.endpoints("web", &[1]).await;
    let _controller = world.controller(Flags::patient()).await;
    world.service("web", OWN_CLASS, pods()).await;
    let healthy = |w: &World| {
        let inventory = w.cloud.look(Engine::inventory);
        let mut targets = inventory.groups.iter().flat_map(|(_, targets)| targets);
        targets.any(|target| target.state == TargetState::Healthy)
    };
    let until = world.clock.now() + Duration::from_mins(10);
    while !healthy(&world) {
        let said = says(&world.client(), 1, &gate).await;
        assert!(said.is_none_or(|(status, _)| status != "True"), "AWS-952");
        assert!(world.clock.now() < until, "it never gets healthy");
        world.pass_time(Duration::from_secs(1)).await;
    }
    let since = world.clock.now();
    let open = Some(("True".to_owned(), "Healthy".to_owned()));
    while says(&world.client(), 1, &gate).await != open {
        let waited = world.clock.now().since(since);
        assert!(waited <= INTERVAL + POLL, "AWS-952, AI-07: {waited:?}");
        world.pass_time(Duration::from_secs(1)).await;
    }
}
