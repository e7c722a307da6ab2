//! Rights that are missing are found at start, and each refusal names its action.

use std::collections::BTreeSet;

use e2e_cloud::aws::Rights;
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;
use onehop_core::crd::DEGRADED;
use serde_json::{Value, json};

use crate::world::{Flags, OWN_CLASS, World};

/// The actions of the chart's policy.
fn actions() -> BTreeSet<String> {
    let policy = include_str!("../../../charts/onehop/files/aws-iam-policy.json");
    match Rights::of_policy(&serde_json::from_str::<Value>(policy).unwrap()) {
        Rights::Only(actions) => actions,
        Rights::All => panic!("the policy allows everything"),
    }
}

/// What a check at start can find out: reads, and what EC2 answers of a dry run.
fn can_be_checked(action: &str) -> bool {
    action.contains(":Describe") || action.starts_with("ec2:") && action != "ec2:DeleteTags"
}

#[tokio::test(flavor = "multi_thread")]
async fn aws844_every_right_that_is_missing_is_found_by_a_call_that_changes_nothing() {
    let world = World::start().await;
    let client = world.aws_client().await;
    let all = actions();
    world.aws.set_rights(Rights::Only(all.clone()));
    assert_eq!(
        client.missing_rights().await,
        [],
        "AWS-844: the chart's policy is enough"
    );
    for action in &all {
        let mut rest = all.clone();
        rest.remove(action);
        world.aws.set_rights(Rights::Only(rest));
        let found = client.missing_rights().await;
        let mut named = found.iter().map(|right| right.action.as_str());
        if can_be_checked(action) {
            assert_eq!(named.next(), Some(action.as_str()), "AWS-844");
            assert!(
                found[0].answer.contains(action.as_str()),
                "AWS-844: {found:?}"
            );
        }
        assert_eq!(named.next(), None, "AWS-844: {action}: {found:?}");
    }
    assert_eq!(world.aws.writes(), [""; 0], "AWS-844: nothing was written");
}

#[tokio::test(flavor = "multi_thread")]
async fn aws844_aws843_what_is_missing_is_event_of_the_install_condition_and_metric_and_the_rest_goes_on()
 {
    let world = World::start().await;
    let mut some = actions();
    let missing = "elasticloadbalancing:DescribeTargetGroupAttributes";
    some.remove(missing);
    some.remove("elasticloadbalancing:ModifyTargetGroupAttributes");
    world.aws.set_rights(Rights::Only(some));
    let controller = world.controller(Flags::default()).await;
    let annotations =
        json!({ "service.beta.kubernetes.io/aws-load-balancer-nlb-target-type": "ip" });
    world.endpoints("web", &[1, 2]).await;
    world.service("web", OWN_CLASS, annotations).await;
    world
        .eventually("AWS-843: what can be made is made", async |w| {
            w.aws.counts().0 == 1
        })
        .await;
    world
        .eventually("AWS-844: the condition names it", async |w| {
            let status = w
                .balancer("web")
                .await
                .and_then(|b| b.status)
                .unwrap_or_default();
            let degraded = status
                .conditions
                .iter()
                .find(|c| c.type_ == DEGRADED && c.status == "True");
            degraded.is_some_and(|c| c.message.contains("TargetGroupAttributes"))
        })
        .await;
    world
        .eventually("AWS-844: an event of the install names it", async |w| {
            let events: Api<Event> = Api::all(w.client());
            let events = events.list(&ListParams::default()).await.unwrap();
            events.items.iter().any(|event| {
                event.involved_object.kind.as_deref() == Some("Lease")
                    && event.reason.as_deref() == Some("RightMissing")
                    && event
                        .message
                        .as_ref()
                        .is_some_and(|text| text.contains(missing))
            })
        })
        .await;
    world
        .eventually("AWS-843: a write's refusal names the action", async |w| {
            let told = w.told("web").await;
            let action = "elasticloadbalancing:ModifyTargetGroupAttributes";
            told.iter()
                .any(|(_, text)| text.contains(action) && text.contains("IAM policy"))
        })
        .await;
    let metrics = controller.metrics();
    let gauge = format!("onehop_missing_rights{{action=\"{missing}\"}} 1");
    assert!(metrics.contains(&gauge), "AWS-844: {metrics}");
}
