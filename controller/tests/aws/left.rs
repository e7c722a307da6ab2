//! What nobody needs any more goes, and what is ours is remembered in our own object.

use std::time::Duration;

use e2e_cloud::engine::Lag;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use onehop_core::crd::PROGRAMMED;
use serde_json::json;

use crate::account::{arns, balancers, pods, served, serves, targets};
use crate::peer::{bindings, call};
use crate::world::{Flags, OWN_CLASS, World};

fn groups(world: &World) -> Vec<String> {
    arns(world, "DescribeTargetGroups", "TargetGroupArn")
}

/// Descriptions of the rules on the machines' security group.
fn rules(world: &World) -> usize {
    let xml = call(&world.aws, "ec2", "DescribeSecurityGroups", &[]);
    xml.matches("onehop.dev/install=my-install</description>")
        .count()
}

#[tokio::test]
async fn aws321_aws330_aws436_aws329_rules_and_shared_group_go_with_the_last_service_that_needs_them()
 {
    let world = served().await;
    let _controller = world.controller(Flags::patient()).await;
    world.service("web", OWN_CLASS, pods()).await;
    world.service("two", OWN_CLASS, pods()).await;
    world.endpoints("two", &[3]).await;
    world
        .eventually("both are there", async |w| {
            balancers(w).len() == 2 && targets(w) == [1, 2, 3].into()
        })
        .await;
    let services = world.api::<Service>();
    let delete = async |name: &str| {
        services
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
        world
            .eventually("it is gone", async |_| {
                services.get_opt(name).await.unwrap().is_none()
            })
            .await;
    };
    // Both have the same target port: the first one leaves the rules to the second one.
    let there = rules(&world);
    delete("web").await;
    world.pass_time(Duration::from_mins(4)).await;
    assert!(rules(&world) > 0, "AWS-321");
    delete("two").await;
    world.pass_time(Duration::from_mins(6)).await;
    assert_eq!(rules(&world), 0, "AWS-436: of {there}");
    let xml = call(&world.aws, "ec2", "DescribeSecurityGroups", &[]);
    assert!(!xml.contains("onehop-backend-"), "AWS-330");
}

#[tokio::test(flavor = "multi_thread")]
async fn aws127_aws801_aws803_aws715_aws442_ids_are_remembered_in_our_object_and_the_name_is_published_at_once()
 {
    let world = World::provisioning(Lag::secs(200)).await;
    world.endpoints("web", &[1, 2]).await;
    let _controller = world.controller(Flags::default()).await;
    world.service("web", OWN_CLASS, pods()).await;
    world
        .eventually("AWS-801: named while it is provisioning", async |w| {
            let service = w.get("web").await;
            let ingress = service.status.and_then(|s| s.load_balancer?.ingress);
            let named = ingress.is_some_and(|all| all.iter().any(|i| i.hostname.is_some()));
            let balancer = w.balancer("web").await.and_then(|b| b.status);
            let mut conditions = balancer.into_iter().flat_map(|s| s.conditions);
            let provisioning = conditions.any(|c| {
                c.type_ == PROGRAMMED && c.status == "False" && c.message.contains("provisioning")
            });
            named && provisioning
        })
        .await;
    let ports = json!([
        { "name": "http", "port": 80, "targetPort": 8080 },
        { "name": "more", "port": 81, "targetPort": 8080 },
    ]);
    let patch = Patch::Merge(json!({ "spec": { "ports": ports } }));
    let services = world.api::<Service>();
    services
        .patch("web", &PatchParams::default(), &patch)
        .await
        .unwrap();
    world
        .eventually("AWS-715: an edit is followed", async |w| {
            let service = w.get("web").await;
            let ingress = service.status.and_then(|s| s.load_balancer?.ingress);
            let ports = ingress.into_iter().flatten().filter_map(|i| i.ports);
            ports.flatten().any(|p| p.port == 81)
        })
        .await;
    let balancer = world.balancer("web").await.and_then(|b| b.status);
    let mut conditions = balancer.into_iter().flat_map(|s| s.conditions);
    let waits = conditions.any(|c| c.type_ == PROGRAMMED && c.status == "False");
    assert!(waits, "AWS-715: it is still provisioning");
    serves(&world).await;
    let bound = bindings(&world).list(&ListParams::default()).await.unwrap();
    assert!(bound.items.is_empty(), "AWS-442: no binding is needed");
    let ids = [balancers(&world), groups(&world)].concat();
    world
        .eventually("AWS-127: the record", async |w| {
            let status = w.balancer("web").await.and_then(|b| b.status);
            let known = status.map(|s| s.resources).unwrap_or_default();
            ids.iter().all(|id| known.iter().any(|r| r.id == *id))
        })
        .await;
    let service = world.get("web").await;
    assert_eq!(
        json!(service.annotations()),
        pods(),
        "AWS-127, AWS-803: annotations are the user's"
    );
}
