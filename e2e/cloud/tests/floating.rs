//! Floating load balancers with real packets: the destination stays the frontend address, answers go straight back.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail the test"
)]

mod common;
#[path = "common/world.rs"]
mod world;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::Duration;

use common::{FRONT, lb, tcp_group};
use e2e_cloud::engine::{GroupSpec, HealthCheck, LbSpec, Mode, Protocol, TargetState};
use e2e_fabric::DropReason;
use world::{PATIENCE, SILENCE, Target, World, ask, front};

/// A TCP group of members that probes ten times a second and drains for one second.
fn vip_group() -> GroupSpec {
    let mut spec = tcp_group("web");
    let quick = |check| HealthCheck {
        interval: Duration::from_millis(100),
        ..check
    };
    spec.health = spec.health.map(quick);
    spec.mode = Mode::Vip;
    // Long enough for sixty connections on a busy machine.
    spec.drain = Duration::from_secs(3);
    spec
}

fn floating() -> LbSpec {
    LbSpec {
        floating: true,
        ..lb("svc", &[FRONT])
    }
}

/// A member that has the frontend address on its loopback interface, as behind a floating load balancer.
fn member(world: &World, name: &str) -> Target {
    let mut target = Target::new(world, name);
    let address = format!("{FRONT}/32");
    let done = target.net.netns().run(move || {
        let add = ["addr", "add", &address, "dev", "lo"];
        std::process::Command::new("ip").args(add).status()
    });
    assert!(done.is_ok_and(|status| status.success()));
    let probed = std::mem::replace(&mut target.at, front(80));
    target.start();
    target.at = probed;
    target
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fc29b_fc62_floating_flows_reach_all_members_and_stay_where_they_went() {
    let world = World::new();
    let (one, two) = (member(&world, "one"), member(&world, "two"));
    let (_, group) = world.balance(vip_group(), floating(), &[&one, &two]).await;
    let mut seen = BTreeSet::new();
    let mut talks = Vec::new();
    for _ in 0..40 {
        let talk = world.connect().await.unwrap();
        // FC-29b: nothing is translated, neither way.
        assert_eq!(talk.seen, IpAddr::from(world.client.address()));
        seen.insert(talk.target.clone());
        talks.push(talk);
    }
    assert_eq!(seen, BTreeSet::from(["one".to_owned(), "two".to_owned()]));
    world.deregister(&group, &one).await;
    for _ in 0..20 {
        assert_eq!(world.connect().await.unwrap().target, "two");
    }
    for talk in &mut talks {
        // FC-62: whatever is chosen now, the flow stays.
        talk.echo().await.unwrap();
        let known = world.node.flow_target(talk.client).unwrap().unwrap();
        let at = if talk.target == "one" { one.at } else { two.at };
        assert_eq!(known.ip(), at.ip());
    }
    world.until(&group, one.at, TargetState::Unused).await;
    for talk in &mut talks {
        let echo = talk.echo().await;
        if talk.target == "one" {
            // FC-24: flows of a target that is gone end.
            assert_eq!(echo.unwrap_err().kind(), ErrorKind::ConnectionReset);
        } else {
            echo.unwrap();
        }
    }
    let dropped = world.fabric.router().drop_count(DropReason::SrcCheckDrop);
    assert_eq!(dropped.unwrap(), 0);
    assert!(world.cloud().violations().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fc29b_udp_floats_too_and_nothing_usable_is_silence() {
    let world = World::new();
    let one = member(&world, "one");
    let group = GroupSpec {
        protocol: Protocol::Udp,
        health: None,
        ..vip_group()
    };
    let (_, group) = world.balance(group, floating(), &[&one]).await;
    let socket = world.udp();
    for _ in 0..3 {
        let answer = ask(&socket, PATIENCE).await.unwrap();
        // FC-29b
        assert_eq!(answer, ("one".to_owned(), world.client.address().into()));
    }
    world.deregister(&group, &one).await;
    world.until(&group, one.at, TargetState::Unused).await;
    // FC-21
    assert_eq!(ask(&socket, SILENCE).await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rulesets_with_floating_frontends_can_be_listed() {
    let world = World::new();
    let one = member(&world, "one");
    world.balance(vip_group(), floating(), &[&one]).await;
    world.connect().await.unwrap();
    for ns in [world.lb.netns(), world.fabric.router().netns()] {
        let listed = ns.run(|| {
            let list = ["list", "ruleset"];
            std::process::Command::new("nft").args(list).output()
        });
        let listed = listed.unwrap();
        assert!(listed.status.success(), "{listed:?}");
    }
}
