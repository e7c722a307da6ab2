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

use common::{FRONT, START, lb, tcp_group};
use e2e_cloud::engine::{
    Choice, GroupId, GroupSpec, HealthCheck, LbId, LbSpec, ListenerKey, Mode, Protocol, TargetState,
};
use e2e_fabric::DropReason;
use tokio::net::UdpSocket;
use world::{PATIENCE, SILENCE, Talk, Target, World, ask, front};

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

fn balancer() -> LbSpec {
    lb("svc", &[FRONT])
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
    let (_, group) = world.balance(vip_group(), balancer(), &[&one, &two]).await;
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
async fn fc26_fc27_a_client_stays_with_a_member_where_the_choice_depends_on_addresses_only() {
    let world = World::new();
    let (one, two) = (member(&world, "one"), member(&world, "two"));
    let sticky = GroupSpec {
        choice: Choice::Addresses,
        ..vip_group()
    };
    let (_, group) = world.balance(sticky, balancer(), &[&one, &two]).await;
    let mut seen = BTreeSet::new();
    for _ in 0..20 {
        seen.insert(world.connect().await.unwrap().target);
    }
    assert_eq!(seen.len(), 1, "{seen:?}");
    world.update(&group, vip_group()).await;
    for _ in 0..40 {
        seen.insert(world.connect().await.unwrap().target);
    }
    assert_eq!(seen.len(), 2, "{seen:?}");
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
    let (_, group) = world.balance(group, balancer(), &[&one]).await;
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

/// A group of this mode with one target, healthy, behind no listener yet.
async fn second_group(world: &World, spec: GroupSpec, target: &Target) -> GroupId {
    let key = format!("{:?}-{}", spec.mode, spec.protocol);
    let made = world
        .cloud()
        .with(|engine, now| engine.create_group(now, &key, spec));
    let group = made.unwrap().id;
    world.register(&group, &[target]);
    world.until(&group, target.at, TargetState::Healthy).await;
    group
}

async fn switch(world: &World, lb: &LbId, protocol: Protocol, group: &GroupId) {
    let key = ListenerKey { port: 80, protocol };
    let put = world
        .cloud()
        .with(|engine, now| engine.put_listener(now, lb, key, group));
    put.unwrap();
    world.driver.settled().await;
}

fn translated_group() -> GroupSpec {
    GroupSpec {
        mode: Mode::Pod,
        ..vip_group()
    }
}

async fn talks(world: &World, count: usize, target: &str) -> Vec<Talk> {
    let mut talks = Vec::new();
    for _ in 0..count {
        let talk = world.connect().await.unwrap();
        assert_eq!(talk.target, target);
        talks.push(talk);
    }
    talks
}

async fn all_go_on(talks: &mut [Talk]) {
    for talk in talks {
        talk.echo().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fc29b_fc62_a_listener_changes_between_modes_and_tcp_flows_stay_where_they_went() {
    let world = World::new();
    // Both could be chosen either way: only the group's mode decides.
    let (plain, kept) = (member(&world, "plain"), member(&world, "kept"));
    let (lb, translated) = world
        .balance(translated_group(), balancer(), &[&plain])
        .await;
    let floating = second_group(&world, vip_group(), &kept).await;
    let mut old = talks(&world, 10, "plain").await;
    switch(&world, &lb, Protocol::Tcp, &floating).await;
    let mut new = talks(&world, 10, "kept").await;
    all_go_on(&mut old).await;
    switch(&world, &lb, Protocol::Tcp, &translated).await;
    let mut newest = talks(&world, 10, "plain").await;
    all_go_on(&mut old).await;
    all_go_on(&mut new).await;
    all_go_on(&mut newest).await;
    // FC-24: a target that leaves takes its own flows with it, of either kind, and no others.
    world.deregister(&floating, &kept).await;
    world.until(&floating, kept.at, TargetState::Unused).await;
    for talk in &mut new {
        assert_eq!(
            talk.echo().await.unwrap_err().kind(),
            ErrorKind::ConnectionReset
        );
    }
    all_go_on(&mut old).await;
    all_go_on(&mut newest).await;
    world.register(&floating, &[&kept]);
    world.until(&floating, kept.at, TargetState::Healthy).await;
    switch(&world, &lb, Protocol::Tcp, &floating).await;
    world.deregister(&translated, &plain).await;
    world
        .until(&translated, plain.at, TargetState::Unused)
        .await;
    for talk in &mut old {
        assert_eq!(
            talk.echo().await.unwrap_err().kind(),
            ErrorKind::ConnectionReset
        );
    }
    talks(&world, 5, "kept").await;
    let dropped = world.fabric.router().drop_count(DropReason::SrcCheckDrop);
    assert_eq!(dropped.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fc29b_fc62_a_listener_changes_between_modes_and_udp_flows_stay_until_their_target_leaves()
{
    let world = World::new();
    let (plain, kept) = (member(&world, "plain"), member(&world, "kept"));
    let udp = |spec| GroupSpec {
        protocol: Protocol::Udp,
        health: None,
        ..spec
    };
    let (lb, translated) = world
        .balance(udp(translated_group()), balancer(), &[&plain])
        .await;
    let floating = second_group(&world, udp(vip_group()), &kept).await;
    let answers = async |socket: &UdpSocket| ask(socket, PATIENCE).await.map(|(name, _)| name);
    let (one, two) = (world.udp(), world.udp());
    assert_eq!(answers(&one).await.as_deref(), Some("plain"));
    switch(&world, &lb, Protocol::Udp, &floating).await;
    assert_eq!(answers(&two).await.as_deref(), Some("kept"));
    assert_eq!(answers(&one).await.as_deref(), Some("plain"), "FC-62");
    switch(&world, &lb, Protocol::Udp, &translated).await;
    assert_eq!(answers(&two).await.as_deref(), Some("kept"), "FC-62");
    assert_eq!(answers(&one).await.as_deref(), Some("plain"), "FC-62");
    // A flow whose target leaves chooses anew, from one kind to the other and back.
    world.deregister(&floating, &kept).await;
    world.until(&floating, kept.at, TargetState::Unused).await;
    assert_eq!(answers(&two).await.as_deref(), Some("plain"));
    world.register(&floating, &[&kept]);
    world.until(&floating, kept.at, TargetState::Healthy).await;
    switch(&world, &lb, Protocol::Udp, &floating).await;
    world.deregister(&translated, &plain).await;
    world
        .until(&translated, plain.at, TargetState::Unused)
        .await;
    for socket in [&one, &two] {
        assert_eq!(answers(socket).await.as_deref(), Some("kept"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fc29b_changes_of_mode_under_load_fail_no_connection() {
    let world = World::new();
    let (plain, kept) = (member(&world, "plain"), member(&world, "kept"));
    let (lb, translated) = world
        .balance(translated_group(), balancer(), &[&plain])
        .await;
    let floating = second_group(&world, vip_group(), &kept).await;
    let over = std::sync::atomic::AtomicBool::new(false);
    let load = async {
        let mut targets = Vec::new();
        while !over.load(std::sync::atomic::Ordering::Relaxed) {
            let mut talk = world.connect().await.unwrap();
            talk.echo().await.unwrap();
            targets.push(talk.target);
        }
        targets
    };
    let changes = async {
        for group in [&floating, &translated].into_iter().cycle().take(20) {
            switch(&world, &lb, Protocol::Tcp, group).await;
            // Some flows of each kind between two changes.
            talks(&world, 3, if group == &floating { "kept" } else { "plain" }).await;
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
    };
    let (targets, ()) = tokio::join!(load, changes);
    let seen: BTreeSet<_> = targets.iter().map(String::as_str).collect();
    assert_eq!(seen, BTreeSet::from(["kept", "plain"]), "{}", targets.len());
}

#[test]
fn fc29b_members_that_answer_clients_themselves_need_the_clients_address() {
    let mut sim = common::Sim::local();
    let hidden = LbSpec {
        preserve_client_ip: false,
        ..balancer()
    };
    let engine = &mut sim.engine;
    let group = engine.create_group(START, "g", vip_group()).unwrap().id;
    let lb = engine.create_lb(START, "lb", hidden.clone()).unwrap().id;
    let key = ListenerKey {
        port: 80,
        protocol: Protocol::Tcp,
    };
    let refused = engine.put_listener(START, &lb, key, &group).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("preserveClientIP: must be true"),
        "{refused}"
    );
    engine.update_lb(START, &lb, balancer()).unwrap();
    engine.put_listener(START, &lb, key, &group).unwrap();
    assert_eq!(
        engine.update_lb(START, &lb, hidden).unwrap_err().code(),
        "invalid"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rulesets_with_floating_frontends_can_be_listed() {
    let world = World::new();
    let one = member(&world, "one");
    world.balance(vip_group(), balancer(), &[&one]).await;
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
