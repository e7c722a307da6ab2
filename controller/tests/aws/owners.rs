//! Objects in the account that are nobody's any more, and names that are somebody else's (AWS-116, AWS-117, AWS-128).

use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::account::{ELB, all, arns, balancers, pods, served, serves};
use crate::peer::call;
use crate::world::{Flags, OWN_CLASS, World};

fn groups(world: &World) -> Vec<String> {
    arns(world, "DescribeTargetGroups", "TargetGroupArn")
}

#[tokio::test(flavor = "multi_thread")]
async fn ai27_aws128_aws007_what_is_left_of_a_service_is_told_and_kept_until_a_value_allows_its_end()
 {
    let world = served().await;
    let controller = world.controller(Flags::default()).await;
    world.service("web", OWN_CLASS, pods()).await;
    serves(&world).await;
    controller.kill().await;
    // Somebody takes our finalizer off while nobody looks, and the Service goes.
    let services = world.api::<Service>();
    let none = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    let params = PatchParams::default();
    services.patch("web", &params, &none).await.unwrap();
    services
        .delete("web", &DeleteParams::default())
        .await
        .unwrap();
    world.forget_balancer("web").await;
    let written = world.aws.writes().len();
    let controller = world.controller(Flags::default()).await;
    world
        .eventually("AWS-128: it is told", async |_| {
            controller.metrics().contains("onehop_orphans 1")
        })
        .await;
    world.quiet(Duration::from_secs(2)).await;
    assert_eq!(world.aws.writes().len(), written, "AWS-128: and kept");
    controller.kill().await;
    let deletes = Flags {
        orphans: onehop_controller::reconcile::Orphans::Delete,
        ..Flags::default()
    };
    let _controller = world.controller(deletes).await;
    world
        .eventually("AWS-128: a value lets it go", async |w| {
            balancers(w).is_empty() && groups(w).is_empty()
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ai29_ai30_aws116_aws117_aws042_a_name_that_is_taken_is_told_with_its_owner_and_the_difference()
 {
    let world = World::start().await;
    let theirs = [
        ("Name", "shared"),
        ("Type", "network"),
        ("Scheme", "internal"),
        ("Subnets.member.1", "subnet-1"),
        ("Tags.member.1.Key", "team"),
        ("Tags.member.1.Value", "another"),
    ];
    call(&world.aws, ELB, "CreateLoadBalancer", &theirs);
    let before = call(&world.aws, ELB, "DescribeLoadBalancers", &[]);
    let _controller = world.controller(Flags::default()).await;
    let named = |scheme: &str| {
        let mut annotations = pods();
        let key = |name: &str| format!("service.beta.kubernetes.io/aws-load-balancer-{name}");
        annotations[key("name")] = json!("shared");
        annotations[key("scheme")] = json!(scheme);
        // As theirs: without security groups.
        annotations[key("disable-nlb-sg")] = json!("true");
        annotations
    };
    world.endpoints("other", &[1]).await;
    world.endpoints("same", &[1]).await;
    world
        .service("other", OWN_CLASS, named("internet-facing"))
        .await;
    world.service("same", OWN_CLASS, named("internal")).await;
    let differs = "scheme internal instead of internet-facing";
    for (service, parts) in [
        (
            "other",
            &["DuplicateLoadBalancerName", "team=another", differs][..],
        ),
        ("same", &["team=another", "left alone"]),
    ] {
        world
            .eventually(&format!("{service}: the owner is named"), async |w| {
                let told = w.told(service).await;
                told.iter()
                    .any(|(_, text)| parts.iter().all(|part| text.contains(part)))
            })
            .await;
    }
    let after = call(&world.aws, ELB, "DescribeLoadBalancers", &[]);
    let picture = |xml: &str| (all(xml, "LoadBalancerArn"), all(xml, "Scheme"));
    assert_eq!(picture(&after), picture(&before), "AWS-116");
}
