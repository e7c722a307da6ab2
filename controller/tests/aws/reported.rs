//! Problems that users of aws-load-balancer-controller have reported (section 18), as far as the account and the API server
//! show them.

use std::time::Duration;

use e2e_cloud::aws::Rights;
use e2e_cloud::engine::Engine;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::PostParams;
use serde_json::json;

use crate::account::{pods, served, serves, targets};
use crate::cluster::read;
use crate::world::{Flags, OWN_CLASS, World};

#[tokio::test]
async fn ai08_aws511_aws843_a_refusal_that_lasted_long_delays_nothing_by_more_than_half_a_minute() {
    let world = served().await;
    let _controller = world.controller(Flags::patient()).await;
    world.service("web", OWN_CLASS, pods()).await;
    serves(&world).await;
    let policy = include_str!("../../../charts/onehop/files/aws-iam-policy.json");
    let Rights::Only(mut actions) = Rights::of_policy(&serde_json::from_str(policy).unwrap())
    else {
        panic!("the policy allows everything");
    };
    actions.remove("elasticloadbalancing:RegisterTargets");
    world.aws.set_rights(Rights::Only(actions));
    world.endpoints("web", &[1, 2, 3]).await;
    // Long enough for every pause to have grown as far as it does.
    world.pass_time(Duration::from_mins(4)).await;
    assert_eq!(targets(&world), [1, 2].into(), "AWS-843");
    world.aws.set_rights(Rights::All);
    world.pass_time(Duration::from_secs(31)).await;
    assert_eq!(targets(&world), [1, 2, 3].into(), "AI-08, AWS-511");
}

#[tokio::test(flavor = "multi_thread")]
async fn ai19_ai23_aws410_aws411_addresses_of_the_groups_family_count_whoever_made_their_slices() {
    let world = World::start().await;
    let _controller = world.controller(Flags::default()).await;
    let service = json!({
        "metadata": { "name": "web", "annotations": pods() },
        "spec": {
            "type": "LoadBalancer", "loadBalancerClass": OWN_CLASS,
            "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }],
        },
    });
    let services = world.api::<Service>();
    services
        .create(&PostParams::default(), &read(service))
        .await
        .unwrap();
    // No selector and no pod: hands made both slices.
    for (family, addresses) in [
        ("IPv4", ["10.244.1.1", "10.244.1.2"]),
        ("IPv6", ["fd00::1", "fd00::2"]),
    ] {
        let slice = json!({
            "metadata": {
                "name": format!("by-hand-{}", family.to_lowercase()),
                "labels": { "kubernetes.io/service-name": "web" },
            },
            "addressType": family,
            "endpoints": addresses.map(|address| json!({
                "addresses": [address], "conditions": { "ready": true },
            })),
            "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
        });
        let slices = world.api::<EndpointSlice>();
        slices
            .create(&PostParams::default(), &read(slice))
            .await
            .unwrap();
    }
    serves(&world).await;
    world.quiet(Duration::from_secs(1)).await;
    let inventory = world.cloud.look(Engine::inventory);
    let all = inventory.groups.iter().flat_map(|(_, targets)| targets);
    assert!(all.clone().count() == 2, "AI-23, AWS-411");
    assert!(all.clone().all(|t| t.target.is_ipv4()), "AI-19, AWS-410");
    // AI-19: and nothing of the other family was even tried.
    let told = world.told("web").await;
    let refused = told.iter().any(|(reason, _)| reason == "TargetInvalid");
    assert!(!refused, "AI-19: {told:?}");
}

/// Auto Mode has a load balancer controller of its own, which is in no pod and has a class of its own.
#[tokio::test]
async fn c133_beside_eks_auto_mode_our_class_serves_pods_and_its_class_is_left_alone() {
    let world = served().await;
    let theirs = world
        .service("theirs", "eks.amazonaws.com/nlb", pods())
        .await;
    world.endpoints("theirs", &[3]).await;
    let flags = Flags {
        classes: vec![OWN_CLASS],
        ..Flags::default()
    };
    let _controller = world.controller(flags).await;
    world.service("web", OWN_CLASS, pods()).await;
    serves(&world).await;
    assert_eq!(
        targets(&world),
        [1, 2].into(),
        "C-133: pods of our class only"
    );
    let now = world.get("theirs").await;
    assert_eq!(now, theirs, "C-133: not even a finalizer");
    assert_eq!(world.told("theirs").await, [], "C-133");
    assert!(world.balancer("theirs").await.is_none(), "C-133");
}
