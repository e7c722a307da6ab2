//! Rules for targets go to the security groups that their own network interfaces carry, and what is not known of these
//! stops nothing (AWS-310, AWS-311, AWS-312, AWS-706, C-134).

use std::time::Duration;

use e2e_cloud::aws::{Interface, Machine, Rights};
use serde_json::json;

use crate::account::{all, pods, served, serves, targets};
use crate::peer::call;
use crate::world::{Flags, OWN_CLASS, World, machine};

const NODES: &str = "sg-0000nodes";
const READ: &str = "ec2:DescribeNetworkInterfaces";

/// A security group of somebody else, without tags.
fn group(world: &World, name: &str) -> String {
    let spec = [
        ("GroupName", name),
        ("GroupDescription", "of somebody else"),
        ("VpcId", "vpc-1"),
    ];
    let xml = call(&world.aws, "ec2", "CreateSecurityGroup", &spec);
    all(&xml, "groupId").pop().unwrap()
}

/// How many rules of ours a security group has.
fn ours(world: &World, group: &str) -> usize {
    let one = [("GroupId.1", group)];
    let xml = call(&world.aws, "ec2", "DescribeSecurityGroups", &one);
    xml.matches("onehop.dev/install=my-install</description>")
        .count()
}

fn interface(n: u8, groups: &[&str]) -> Interface {
    Interface {
        id: format!("eni-pod-{n}"),
        addresses: vec![[10, 244, 1, n].into()],
        prefixes: Vec::new(),
        security_groups: groups.iter().map(|id| (*id).to_owned()).collect(),
    }
}

#[tokio::test]
async fn aws310_machines_with_other_security_groups_get_their_rules_there() {
    let world = World::start().await;
    let other = group(&world, "other-nodes");
    world.aws.add_machine(Machine {
        id: machine(2),
        address: [10, 0, 1, 2].into(),
        zone: "a".to_owned(),
        security_groups: vec![other.clone()],
    });
    let _controller = world.controller(Flags::patient()).await;
    let instance =
        json!({ "service.beta.kubernetes.io/aws-load-balancer-nlb-target-type": "instance" });
    world.service("web", OWN_CLASS, instance).await;
    world
        .eventually("both kinds of machines let packets in", async |w| {
            ours(w, NODES) > 0 && ours(w, &other) > 0
        })
        .await;
    assert_eq!(ours(&world, NODES), ours(&world, &other), "AWS-310");
}

#[tokio::test]
async fn aws310_c134_a_pod_with_an_interface_of_its_own_gets_its_rules_there() {
    let world = served().await;
    let of_pods = group(&world, "of-pods");
    let there = vec![interface(1, &[&of_pods]), interface(2, &[NODES])];
    world.aws.set_interfaces(there.clone());
    let _controller = world.controller(Flags::patient()).await;
    world.service("web", OWN_CLASS, pods()).await;
    serves(&world).await;
    world
        .eventually("C-134: the pod lets packets in", async |w| {
            ours(w, &of_pods) > 0 && ours(w, NODES) > 0
        })
        .await;
    // AWS-706: pods that come later, of several Services, are looked for by one read.
    let later = group(&world, "of-later-pods");
    let new = [5, 6].map(|n| interface(n, &[&later]));
    world.aws.set_interfaces([there, new.into()].concat());
    world.pass_time(Duration::from_secs(30)).await;
    let before = world.aws.calls()[READ];
    world.endpoints("two", &[5]).await;
    world.endpoints("three", &[6]).await;
    world.service("two", OWN_CLASS, pods()).await;
    world.service("three", OWN_CLASS, pods()).await;
    world
        .eventually("AWS-310: so do those that come later", async |w| {
            targets(w) == [1, 2, 5, 6].into() && ours(w, &later) > 0
        })
        .await;
    let reads = world.aws.calls()[READ] - before;
    assert!(reads <= 3, "AWS-706: {reads} reads");
}

#[tokio::test]
async fn aws311_aws312_where_tags_do_not_decide_it_is_told_and_registered_all_the_same() {
    let world = served().await;
    let (one, two) = (group(&world, "one"), group(&world, "two"));
    let first = one.clone().min(two.clone());
    let both = [1, 2].map(|n| interface(n, &[&one, &two]));
    world.aws.set_interfaces(both.into());
    let _controller = world.controller(Flags::patient()).await;
    world.service("web", OWN_CLASS, pods()).await;
    serves(&world).await;
    world
        .eventually("AWS-311: it is told", async |w| {
            let told = w.told("web").await;
            let told = told.iter().find(|(why, _)| why == "SecurityGroupAmbiguous");
            told.is_some_and(|(_, text)| text.contains(&format!("rules go to {first}")))
        })
        .await;
    assert!(ours(&world, &first) > 0, "AWS-311");
    let last = one.max(two);
    assert_eq!(ours(&world, &last), 0, "AWS-311: the same one each time");
}

#[tokio::test]
async fn aws312_without_the_right_to_read_interfaces_rules_go_by_the_clusters_tag() {
    let world = served().await;
    let policy = include_str!("../../../charts/onehop/files/aws-iam-policy.json");
    let Rights::Only(mut actions) = Rights::of_policy(&serde_json::from_str(policy).unwrap())
    else {
        panic!("the policy allows everything");
    };
    assert!(actions.remove(READ), "AWS-842");
    world.aws.set_rights(Rights::Only(actions));
    let _controller = world.controller(Flags::patient()).await;
    world.service("web", OWN_CLASS, pods()).await;
    serves(&world).await;
    world
        .eventually("AWS-312: the machines let packets in", async |w| {
            ours(w, NODES) > 0
        })
        .await;
}
