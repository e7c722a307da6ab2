//! Load balancers of aws-load-balancer-controller: looked at, taken over, given back.

use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use onehop_controller::cloud::aws::settings::PeerServices;
use onehop_core::crd::{
    LoadBalancer, RELEASE_ANNOTATION, SERVICE_FINALIZER, TakeOver, TakeOverStage,
};
use serde_json::json;

use crate::gated::{gated_pod, says};
use crate::peer::{FINALIZER, Peer, Targets, bindings, tags};
use crate::world::{Flags, INSTALL, OWN_CLASS, PEER_CLASS, World};

const QUIET: Duration = Duration::from_secs(2);
const INSTALL_TAG: &str = "onehop.dev/install";

/// What is said of a Service's take-over.
async fn said(world: &World, name: &str) -> Option<TakeOver> {
    world.balancer(name).await?.status?.take_over
}

async fn at_stage(world: &World, name: &str, stage: TakeOverStage) -> TakeOver {
    let what = format!("{name} is {}", stage.as_str());
    world
        .eventually(&what, async |w| {
            said(w, name).await.is_some_and(|t| t.stage == stage)
        })
        .await;
    said(world, name).await.unwrap()
}

/// Waits until a Service is ours.
async fn taken(world: &World, name: &str) -> Service {
    let what = format!("{name} is taken over");
    world
        .eventually(&what, async |w| {
            let ours = w
                .get(name)
                .await
                .finalizers()
                .iter()
                .any(|f| f == SERVICE_FINALIZER);
            ours && w
                .balancer(name)
                .await
                .is_some_and(|b| b.status.is_some_and(|s| s.take_over.is_none()))
        })
        .await;
    world.get(name).await
}

#[tokio::test(flavor = "multi_thread")]
async fn aws120_k04_k05_instances_of_the_peer_are_looked_at_first_and_nothing_is_written() {
    looked_at(Targets::Instances).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn aws120_k04_k05_pods_of_the_peer_are_looked_at_first_and_nothing_is_written() {
    looked_at(Targets::Pods).await;
}

async fn looked_at(targets: Targets) {
    let world = World::start().await;
    let peer = Peer::serves(&world, "web", targets).await;
    let (before, service) = (peer.picture(&world.aws), world.get("web").await);
    let controller = world.controller(Flags::default()).await;
    let report = at_stage(&world, "web", TakeOverStage::Observing).await;
    assert_eq!(
        report.differences, [""; 0],
        "AWS-120: by the peer's own recipes"
    );
    assert_eq!(report.blocked, [""; 0]);
    world.quiet(QUIET).await;
    assert_eq!(world.aws.writes(), [""; 0], "AWS-120: no write to AWS");
    assert_eq!(peer.picture(&world.aws), before, "K-05");
    let now = world.get("web").await;
    assert_eq!(
        now.resource_version(),
        service.resource_version(),
        "AWS-120: no write to the Service"
    );
    // AWS-129: told in the order in which it would be done.
    let order = [
        "create-security-group",
        "authorize sg-0000nodes",
        "set-security-groups",
        "add-tags",
        "create-tags",
        "and its listeners",
        "wait",
        "TargetGroupBindings",
        "finalizer",
        "off",
    ];
    let mut steps = report.steps.iter();
    for part in order {
        assert!(
            steps.any(|step| step.contains(part)),
            "AWS-129: {part} in its place: {:#?}",
            report.steps
        );
    }
    controller.kill().await;
    // K-04: a claim that goes without anything taken over leaves nothing behind, and takes nothing.
    let own = Flags {
        classes: vec![OWN_CLASS],
        ..Flags::default()
    };
    let _controller = world.controller(own).await;
    world
        .eventually("our object is gone", async |w| {
            w.balancer("web").await.is_none()
        })
        .await;
    assert_eq!(world.aws.writes(), [""; 0], "K-04");
    assert_eq!(
        world.get("web").await.resource_version(),
        service.resource_version(),
        "K-04"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn aws129_aws121_aws960_k03_a_take_over_of_instances_moves_no_target_and_replaces_nothing() {
    taken_over(Targets::Instances).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn aws129_aws121_aws960_k03_a_take_over_of_pods_moves_no_target_and_replaces_nothing() {
    taken_over(Targets::Pods).await;
}

async fn taken_over(targets: Targets) {
    let world = World::start().await;
    let peer = Peer::serves(&world, "web", targets).await;
    let registered = peer.registered(&world.aws);
    let host = world.get("web").await.status.unwrap().load_balancer;
    let _controller = world.controller(Flags::taking("default/web")).await;
    let service = taken(&world, "web").await;
    assert_eq!(
        service.finalizers(),
        [SERVICE_FINALIZER],
        "K-03, AWS-129: one patch swaps them"
    );
    let left = bindings(&world).list(&ListParams::default()).await.unwrap();
    assert_eq!(left.items.len(), 0, "AWS-129: its bindings are gone");
    world
        .eventually(
            "AWS-129: the peer's shared group is off the load balancer",
            async |w| {
                let groups = peer.security_groups(&w.aws);
                groups.len() == 2
                    && groups.contains(&peer.frontend)
                    && !groups.contains(&peer.backend)
            },
        )
        .await;
    world.quiet(QUIET).await;
    let writes = world.aws.writes();
    let order = [
        "ec2:CreateSecurityGroup",
        "ec2:AuthorizeSecurityGroupIngress",
        "elasticloadbalancing:SetSecurityGroups",
    ];
    assert_eq!(
        writes[..3],
        order,
        "AWS-129: our group and rules come first"
    );
    assert_eq!(
        writes.last().unwrap(),
        "elasticloadbalancing:SetSecurityGroups",
        "AWS-129: and the peer's goes last"
    );
    let known = [
        &order[..],
        &["ec2:CreateTags", "elasticloadbalancing:AddTags"],
    ]
    .concat();
    let others: Vec<_> = writes
        .iter()
        .filter(|w| !known.contains(&w.as_str()))
        .collect();
    assert!(
        others.is_empty(),
        "AWS-129, AWS-960: no membership call and no replacement: {writes:?}"
    );
    assert_eq!(peer.registered(&world.aws), registered, "AWS-960");
    assert_eq!(
        world.get("web").await.status.unwrap().load_balancer,
        host,
        "AWS-120"
    );
    for arn in [&peer.balancer, &peer.group, &peer.listener] {
        let found = tags(&world.aws, arn);
        assert_eq!(
            found.get(INSTALL_TAG).map(String::as_str),
            Some(INSTALL),
            "AWS-129: {arn}"
        );
        assert!(
            found.contains_key("service.k8s.aws/stack"),
            "AWS-121: {arn}"
        );
        assert!(
            found.contains_key("elbv2.k8s.aws/cluster"),
            "AWS-114: {arn}"
        );
    }
    let told = world.told("web").await;
    assert!(
        told.iter().any(|(reason, _)| reason == "TakenOver"),
        "{told:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn aws129_aws013_what_would_change_the_data_path_and_a_peer_that_may_act_stop_a_take_over() {
    let world = World::start().await;
    let peer = Peer::serves(&world, "web", Targets::Pods).await;
    peer.checks_every(&world.aws, 30);
    let may_act = Flags {
        peer: PeerServices::MayAct,
        ..Flags::default()
    };
    let controller = world.controller(may_act).await;
    let report = at_stage(&world, "web", TakeOverStage::Observing).await;
    assert!(
        report.blocked[0].contains("lbcServiceControllerDisabled"),
        "AWS-013: {report:?}"
    );
    // One that nobody has made yet is not made either: both would.
    world.service("new", PEER_CLASS, json!({})).await;
    at_stage(&world, "new", TakeOverStage::Observing).await;
    world.quiet(QUIET).await;
    assert_eq!(world.aws.writes(), [""; 0], "AWS-013");
    controller.kill().await;
    let controller = world.controller(Flags::taking("*")).await;
    let differs = "modify-target-group";
    world
        .eventually("AWS-129: the difference stops it", async |w| {
            let report = said(w, "web").await.unwrap_or_default();
            report.blocked.iter().any(|why| why.contains(differs)) && report.differences.len() == 1
        })
        .await;
    assert!(
        world
            .get("web")
            .await
            .finalizers()
            .iter()
            .all(|f| f != SERVICE_FINALIZER)
    );
    assert!(
        !tags(&world.aws, &peer.balancer).contains_key(INSTALL_TAG),
        "AWS-129"
    );
    let told = world.told("web").await;
    assert!(
        told.iter()
            .any(|(reason, text)| reason == "TakeOverBlocked" && text.contains(differs)),
        "{told:?}"
    );
    controller.kill().await;
    let accepts = Flags {
        accepted: vec!["default/web".to_owned()],
        ..Flags::taking("*")
    };
    let _controller = world.controller(accepts).await;
    taken(&world, "web").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn aws130_aws960_giving_instances_back_takes_off_what_is_ours_and_leaves_the_rest() {
    given_back(Targets::Instances).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn aws130_aws960_giving_pods_back_takes_off_what_is_ours_and_leaves_the_rest() {
    given_back(Targets::Pods).await;
}

async fn given_back(targets: Targets) {
    let world = World::start().await;
    let peer = Peer::serves(&world, "web", targets).await;
    let (before, service) = (tags(&world.aws, &peer.group), world.get("web").await);
    let _controller = world.controller(Flags::taking("*")).await;
    taken(&world, "web").await;
    world
        .eventually("the take-over has ended", async |w| {
            !peer.security_groups(&w.aws).contains(&peer.backend)
        })
        .await;
    let (registered, written) = (peer.registered(&world.aws), world.aws.writes().len());
    let release =
        Patch::Merge(json!({ "metadata": { "annotations": { RELEASE_ANNOTATION: "now" } } }));
    let objects = world.api::<LoadBalancer>();
    objects
        .patch("web", &PatchParams::default(), &release)
        .await
        .unwrap();
    at_stage(&world, "web", TakeOverStage::Returned).await;
    let now = world.get("web").await;
    assert_eq!(
        now.finalizers(),
        [FINALIZER],
        "AWS-130: one patch swaps them"
    );
    let status = now.status.clone().unwrap();
    assert_eq!(
        status.load_balancer,
        service.status.as_ref().unwrap().load_balancer,
        "AWS-130"
    );
    assert!(
        status.conditions.unwrap_or_default().is_empty(),
        "AWS-130: our condition goes"
    );
    for arn in [&peer.balancer, &peer.group, &peer.listener] {
        let found = tags(&world.aws, arn);
        assert!(
            found.keys().all(|key| !key.starts_with("onehop.dev/")),
            "AWS-130: {found:?}"
        );
    }
    assert_eq!(tags(&world.aws, &peer.group), before, "AWS-130");
    let groups = peer.security_groups(&world.aws);
    assert!(
        groups.contains(&peer.backend) && groups.len() == 3,
        "AWS-130: ours stays beside it: {groups:?}"
    );
    // The peer binds again: only then does ours go.
    let (word, port) = peer.bound;
    peer.bind(&world, &now, (word, port)).await;
    world
        .eventually("AWS-130: our security group is off", async |w| {
            let groups = peer.security_groups(&w.aws);
            groups.len() == 2 && groups.contains(&peer.frontend) && groups.contains(&peer.backend)
        })
        .await;
    world.quiet(QUIET).await;
    let writes = world.aws.writes();
    let members = |call: &&String| {
        call.contains("Targets") || call.contains("Delete") && !call.contains("DeleteTags")
    };
    assert_eq!(
        writes[written..].iter().filter(members).count(),
        0,
        "AWS-130: {:?}",
        &writes[written..]
    );
    assert_eq!(peer.registered(&world.aws), registered, "AWS-960");
    assert_eq!(
        world.get("web").await.finalizers(),
        [FINALIZER],
        "it is not taken over again"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn aws013_a_peer_that_comes_back_stops_every_write() {
    let world = World::start().await;
    let peer = Peer::serves(&world, "web", Targets::Pods).await;
    let _controller = world.controller(Flags::taking("*")).await;
    taken(&world, "web").await;
    world
        .eventually("the take-over has ended", async |w| {
            !peer.security_groups(&w.aws).contains(&peer.backend)
        })
        .await;
    let both =
        Patch::Merge(json!({ "metadata": { "finalizers": [SERVICE_FINALIZER, FINALIZER] } }));
    let services = world.api::<Service>();
    services
        .patch("web", &PatchParams::default(), &both)
        .await
        .unwrap();
    at_stage(&world, "web", TakeOverStage::Conflict).await;
    let written = world.aws.writes().len();
    world.endpoints("web", &[2, 3, 4]).await;
    world.quiet(QUIET).await;
    assert_eq!(world.aws.writes().len(), written, "AWS-013");
    let told = world.told("web").await;
    assert!(
        told.iter()
            .any(|(reason, text)| reason == "OwnershipConflict" && text.contains(FINALIZER)),
        "{told:?}"
    );
    let ours = Patch::Merge(json!({ "metadata": { "finalizers": [SERVICE_FINALIZER] } }));
    services
        .patch("web", &PatchParams::default(), &ours)
        .await
        .unwrap();
    world
        .eventually("AWS-013: it goes on", async |w| {
            peer.registered(&w.aws).contains(&"10.244.1.4".to_owned())
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn aws129_i6_a_take_over_that_is_killed_after_any_call_is_carried_on() {
    let world = World::start().await;
    let peer = Peer::serves(&world, "web", Targets::Pods).await;
    let registered = peer.registered(&world.aws);
    let mut seen = 0;
    loop {
        let controller = world.controller(Flags::taking("*")).await;
        world
            .eventually("another call, or the end", async |w| {
                w.aws.writes().len() > seen
                    || w.get("web").await.finalizers() == [SERVICE_FINALIZER]
            })
            .await;
        controller.kill().await;
        if world.get("web").await.finalizers() == [SERVICE_FINALIZER] {
            break;
        }
        seen = world.aws.writes().len();
    }
    let _controller = world.controller(Flags::taking("*")).await;
    world
        .eventually("I6: the take-over has ended", async |w| {
            let groups = peer.security_groups(&w.aws);
            groups.len() == 2 && !groups.contains(&peer.backend)
        })
        .await;
    world.quiet(QUIET).await;
    assert_eq!(peer.registered(&world.aws), registered, "AWS-129");
    assert_eq!(world.aws.counts(), (1, 1, 3), "I6: nothing was made twice");
}

/// Pods outlive a take-over: their gates are still turned, by us, and those of groups that are gone are opened.
#[tokio::test(flavor = "multi_thread")]
async fn aws504_aws505_the_peers_gates_of_a_service_that_is_ours_now_are_turned() {
    let world = World::start().await;
    let peer = Peer::serves(&world, "web", Targets::Pods).await;
    let of = |name: &str| format!("target-health.elbv2.k8s.aws/{name}");
    let known = of(peer.group.split('/').nth(1).unwrap());
    let gone = of("k8s-default-web-0000000000");
    let others = of("k8s-default-ingress-0000000000");
    gated_pod(&world.client(), 4, &[&known, &gone, &others]).await;
    world.endpoints("web", &[1, 2, 3, 4]).await;
    let controller = world.controller(Flags::default()).await;
    at_stage(&world, "web", TakeOverStage::Observing).await;
    world.quiet(QUIET).await;
    for gate in [&known, &gone, &others] {
        assert_eq!(
            says(&world.client(), 4, gate).await,
            None,
            "AWS-504: not ours yet"
        );
    }
    controller.kill().await;
    let _controller = world.controller(Flags::taking("default/web")).await;
    taken(&world, "web").await;
    let comes_to = async |gate: &str, reason: &str| {
        let said = Some(("True".to_owned(), reason.to_owned()));
        let what = format!("{gate} says {reason}");
        world
            .eventually(&what, async |w| says(&w.client(), 4, gate).await == said)
            .await;
    };
    comes_to(&known, "Healthy").await;
    comes_to(&gone, "NoTargetGroup").await;
    assert_eq!(
        says(&world.client(), 4, &others).await,
        None,
        "AWS-504: it is the peer's"
    );
}
