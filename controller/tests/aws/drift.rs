//! What somebody else changes in the account is put right within five minutes, and looking for it costs what it may
//! (AWS-326, AWS-423, AWS-426, AWS-660, AWS-704, AWS-954).

use std::collections::BTreeMap;
use std::time::Duration;

use onehop_runtime::clock::Clock;

use crate::account::{ELB, all, arns, balancers, pods, served, serves, targets};
use crate::peer::call;
use crate::world::{Flags, OWN_CLASS, World};

/// In which what others do is noticed and put right (AWS-660).
const REPAIRED: Duration = Duration::from_mins(5);
const STEP: Duration = Duration::from_secs(5);
const NODES: &str = "sg-0000nodes";

fn groups(world: &World) -> Vec<String> {
    arns(world, "DescribeTargetGroups", "TargetGroupArn")
}

fn listeners(world: &World) -> Vec<String> {
    let of = |arn: &String| {
        let own = [("LoadBalancerArn", arn.as_str())];
        let xml = call(&world.aws, ELB, "DescribeListeners", &own);
        all(&xml, "ListenerArn")
    };
    balancers(world).iter().flat_map(of).collect()
}

fn delete(world: &World, action: &str, key: &str, arn: &str) {
    call(&world.aws, ELB, action, &[(key, arn)]);
}

/// The id of a security group by the start of its name, and how many rules it has.
fn security(world: &World, stem: &str) -> (String, usize) {
    let xml = call(&world.aws, "ec2", "DescribeSecurityGroups", &[]);
    let mut groups = xml.split("<groupId>").filter_map(|rest| {
        let (id, rest) = rest.split_once("</groupId><groupName>")?;
        rest.starts_with(stem).then_some(id)
    });
    let id = groups.next().unwrap().to_owned();
    let one = [("GroupId.1", id.as_str())];
    let xml = call(&world.aws, "ec2", "DescribeSecurityGroups", &one);
    (id, xml.matches("<ipProtocol>").count())
}

fn revoke(world: &World, group: &str, port: &str, source: (&str, &str)) {
    let rule = [
        ("GroupId", group),
        ("IpPermissions.1.IpProtocol", "tcp"),
        ("IpPermissions.1.FromPort", port),
        ("IpPermissions.1.ToPort", port),
        source,
    ];
    call(&world.aws, "ec2", "RevokeSecurityGroupIngress", &rule);
}

/// Lets minutes pass until it is so, which may take no longer than it may.
async fn repaired(world: &World, what: &str, holds: impl Fn(&World) -> bool) {
    assert!(!holds(world), "{what}: nothing was changed");
    let since = world.clock.now();
    while !holds(world) {
        let passed = world.clock.now().since(since);
        assert!(passed <= REPAIRED, "{what}: {:?}", world.aws.writes());
        world.pass_time(STEP).await;
    }
}

#[tokio::test]
async fn aws660_aws326_ai31_aws954_what_is_deleted_by_hand_is_made_again() {
    let world = served().await;
    let _controller = world.controller(Flags::patient()).await;
    world.service("web", OWN_CLASS, pods()).await;
    serves(&world).await;
    world.pass_time(Duration::from_secs(30)).await;

    let listener = listeners(&world).pop().unwrap();
    delete(&world, "DeleteListener", "ListenerArn", &listener);
    let another = |w: &World| listeners(w).len() == 1;
    repaired(&world, "AWS-660: the listener", another).await;

    let group = groups(&world).pop().unwrap();
    let out = [
        ("TargetGroupArn", group.as_str()),
        ("Targets.member.1.Id", "10.244.1.1"),
        ("Targets.member.1.Port", "8080"),
    ];
    call(&world.aws, ELB, "DeregisterTargets", &out);
    let both = |w: &World| targets(w) == [1, 2].into();
    repaired(&world, "AWS-660, AWS-423: the target", both).await;

    let (backend, _) = security(&world, "onehop-backend-");
    let source = ("IpPermissions.1.Groups.1.GroupId", backend.as_str());
    revoke(&world, NODES, "8080", source);
    let again = |w: &World| security(w, NODES).1 == 1;
    repaired(&world, "AWS-326: the rule on machines", again).await;

    let (front, _) = security(&world, "oh-default-web-");
    let anybody = ("IpPermissions.1.IpRanges.1.CidrIp", "0.0.0.0/0");
    revoke(&world, &front, "80", anybody);
    let again = |w: &World| security(w, "oh-default-web-").1 == 1;
    repaired(&world, "AWS-326: the rule for clients", again).await;

    let balancer = balancers(&world).pop().unwrap();
    delete(&world, "DeleteLoadBalancer", "LoadBalancerArn", &balancer);
    delete(&world, "DeleteTargetGroup", "TargetGroupArn", &group);
    let anew = |w: &World| balancers(w).len() == 1 && listeners(w).len() == 1 && both(w);
    repaired(&world, "AI-31: load balancer and targets", anew).await;
}

#[tokio::test]
async fn aws704_aws326_aws954_a_quarter_of_an_hour_at_rest_costs_a_few_listings_and_a_read_a_minute()
 {
    const MINUTES: u64 = 15;
    let world = served().await;
    let _controller = world.controller(Flags::patient()).await;
    world.service("web", OWN_CLASS, pods()).await;
    serves(&world).await;
    world.pass_time(Duration::from_mins(5)).await;
    let before = world.aws.calls();
    world.pass_time(Duration::from_mins(MINUTES)).await;
    let now = world.aws.calls().into_iter();
    let spent: BTreeMap<String, u64> = now
        .map(|(call, n)| (call.clone(), n - before.get(&call).unwrap_or(&0)))
        .filter(|(_, n)| *n > 0)
        .collect();
    let of = |call: &str| spent.get(call).copied().unwrap_or_default();
    let written: Vec<_> = spent.keys().filter(|c| !c.contains(":Describe")).collect();
    assert!(written.is_empty(), "AWS-954: {written:?}");
    // Often enough for five minutes.
    for listing in ["LoadBalancers", "TargetGroups", "Tags", "Listeners"] {
        let times = of(&format!("{ELB}:Describe{listing}"));
        assert!((3..=5).contains(&times), "AWS-704: {spent:?}");
    }
    for listing in ["SecurityGroups", "Subnets", "Vpcs"] {
        let times = of(&format!("ec2:Describe{listing}"));
        assert!(
            (3..=5).contains(&times),
            "AWS-326, AWS-426, AWS-704: {spent:?}"
        );
    }
    let health = of(&format!("{ELB}:DescribeTargetHealth"));
    assert!((10..=MINUTES + 1).contains(&health), "AWS-423: {spent:?}");
    for attributes in ["LoadBalancerAttributes", "TargetGroupAttributes"] {
        let times = of(&format!("{ELB}:Describe{attributes}"));
        assert!(times <= 1, "AWS-704: about once an hour: {spent:?}");
    }
}

#[tokio::test]
async fn aws905_a_machine_whose_clock_is_wrong_is_refused_once_and_then_signs_by_the_clouds() {
    let world = World::start().await;
    let hour = Duration::from_hours(1);
    let now = world.clock.now();
    for wrong in [now - hour, now + hour] {
        let client = world.aws_client_at(Clock::fixed(wrong)).await;
        assert!(client.inventory().await.is_err());
        let found = client.inventory().await;
        assert_eq!(found.unwrap(), [], "AWS-905");
    }
}
