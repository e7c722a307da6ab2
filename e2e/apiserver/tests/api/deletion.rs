//! Deletion: grace, finalizers, preconditions, owners and namespaces.

use std::time::Duration;

use e2e_apiserver::{ApiServer, ControllerOptions, Controllers, Identity};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::api::{
    Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy,
};
use kube::{Client, Resource, ResourceExt};
use serde_json::{Value, json};

use crate::support::{client, raw, server, typed};

fn pod(node: Option<&str>) -> Pod {
    typed(
        json!({"metadata": {"name": "p"}, "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}}),
    )
}

fn map(value: Value) -> ConfigMap {
    typed(value)
}

#[tokio::test]
async fn a_bound_pod_is_marked_with_its_grace_and_gone_when_the_kubelet_says_so() {
    let api: Api<Pod> = Api::default_namespaced(client());
    let made = api
        .create(&PostParams::default(), &pod(Some("n")))
        .await
        .unwrap();
    let marked = api
        .delete("p", &DeleteParams::default())
        .await
        .unwrap()
        .left()
        .unwrap();
    assert_eq!(marked.metadata.deletion_grace_period_seconds, Some(30));
    let left = marked
        .meta()
        .deletion_timestamp
        .clone()
        .unwrap()
        .0
        .duration_since(made.creation_timestamp().unwrap().0);
    assert_eq!(left.as_secs(), 30);
    assert_eq!(marked.metadata.generation, Some(2));
    let shorter = api
        .delete("p", &DeleteParams::default().grace_period(5))
        .await
        .unwrap()
        .left()
        .unwrap();
    assert_eq!(shorter.metadata.deletion_grace_period_seconds, Some(5));
    let same = api
        .delete("p", &DeleteParams::default().grace_period(10))
        .await
        .unwrap()
        .left()
        .unwrap();
    assert_eq!(
        same.metadata.resource_version,
        shorter.metadata.resource_version
    );
    api.delete("p", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    assert!(api.get_opt("p").await.unwrap().is_none());
}

#[tokio::test]
async fn a_pod_that_is_nowhere_or_over_goes_at_once() {
    let api: Api<Pod> = Api::default_namespaced(client());
    api.create(&PostParams::default(), &pod(None))
        .await
        .unwrap();
    api.delete("p", &DeleteParams::default()).await.unwrap();
    assert!(api.get_opt("p").await.unwrap().is_none());
    api.create(&PostParams::default(), &pod(Some("n")))
        .await
        .unwrap();
    api.patch_status(
        "p",
        &PatchParams::default(),
        &Patch::Merge(json!({"status": {"phase": "Succeeded"}})),
    )
    .await
    .unwrap();
    api.delete("p", &DeleteParams::default()).await.unwrap();
    assert!(api.get_opt("p").await.unwrap().is_none());
}

#[tokio::test]
async fn a_finalizer_keeps_a_marked_object_until_it_is_removed() {
    let client = client();
    let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
    api.create(
        &PostParams::default(),
        &map(json!({"metadata": {"name": "a", "finalizers": ["test.dev/x"]}})),
    )
    .await
    .unwrap();
    let marked = api
        .delete("a", &DeleteParams::default())
        .await
        .unwrap()
        .left()
        .unwrap();
    assert!(marked.metadata.deletion_timestamp.is_some());
    assert_eq!(marked.metadata.deletion_grace_period_seconds, Some(0));
    let more = json!({"metadata": {"finalizers": ["test.dev/x", "test.dev/y"]}});
    let path = "/api/v1/namespaces/default/configmaps/a";
    let (code, status) = crate::support::raw_as(
        &client,
        "PATCH",
        path,
        "application/merge-patch+json",
        &more,
    )
    .await;
    assert_eq!(code, 422);
    let message = "ConfigMap \"a\" is invalid: metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{\"test.dev/y\"}";
    assert_eq!(status["message"], message);
    let (code, status) = raw(
        &client,
        "POST",
        "/api/v1/namespaces/default/configmaps",
        &json!({"metadata": {"name": "a"}}),
    )
    .await;
    assert_eq!(
        (code, status["message"].as_str()),
        (
            409,
            Some("object is being deleted: configmaps \"a\" already exists")
        )
    );
    let none = json!({"metadata": {"finalizers": null}});
    api.patch("a", &PatchParams::default(), &Patch::Merge(none))
        .await
        .unwrap();
    assert!(api.get_opt("a").await.unwrap().is_none());
}

#[tokio::test]
async fn a_deletion_of_another_uid_or_version_is_a_conflict() {
    let api: Api<ConfigMap> = Api::default_namespaced(client());
    let made = api
        .create(
            &PostParams::default(),
            &map(json!({"metadata": {"name": "a"}})),
        )
        .await
        .unwrap();
    let wrong = |preconditions| DeleteParams {
        preconditions: Some(preconditions),
        ..DeleteParams::default()
    };
    for preconditions in [
        Preconditions {
            uid: Some("other".into()),
            resource_version: None,
        },
        Preconditions {
            uid: None,
            resource_version: Some("1".into()),
        },
    ] {
        let error = api.delete("a", &wrong(preconditions)).await.unwrap_err();
        assert!(matches!(error, kube::Error::Api(status) if status.is_conflict()));
    }
    let right = Preconditions {
        uid: made.metadata.uid,
        resource_version: made.metadata.resource_version,
    };
    api.delete("a", &wrong(right)).await.unwrap();
}

#[tokio::test]
async fn a_collection_is_deleted_by_selector() {
    let api: Api<ConfigMap> = Api::default_namespaced(client());
    for (name, app) in [("a", "x"), ("b", "x"), ("c", "y")] {
        let labelled = map(json!({"metadata": {"name": name, "labels": {"app": app}}}));
        api.create(&PostParams::default(), &labelled).await.unwrap();
    }
    api.delete_collection(
        &DeleteParams::default(),
        &ListParams::default().labels("app=x"),
    )
    .await
    .unwrap();
    let left = api.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(left.len(), 1);
}

struct Collected {
    client: Client,
    _server: ApiServer,
    _controllers: Controllers,
}

async fn with_owner() -> (Collected, Api<ConfigMap>) {
    let server = server();
    let controllers = server.run_controllers(&ControllerOptions::default());
    let client = server.client(&Identity::admin());
    let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let owner = api
        .create(
            &PostParams::default(),
            &map(json!({"metadata": {"name": "owner"}})),
        )
        .await
        .unwrap();
    let reference = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.uid().unwrap(), "blockOwnerDeletion": true
    });
    let owned = map(json!({"metadata": {"name": "owned", "ownerReferences": [reference]}}));
    api.create(&PostParams::default(), &owned).await.unwrap();
    (
        Collected {
            client,
            _server: server,
            _controllers: controllers,
        },
        api,
    )
}

async fn settle() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

fn with(policy: PropagationPolicy) -> DeleteParams {
    DeleteParams {
        propagation_policy: Some(policy),
        ..DeleteParams::default()
    }
}

#[tokio::test(start_paused = true)]
async fn background_deletion_takes_dependents_afterwards() {
    let (_cluster, api) = with_owner().await;
    api.delete("owner", &DeleteParams::background())
        .await
        .unwrap();
    assert!(api.get_opt("owner").await.unwrap().is_none());
    settle().await;
    assert!(api.get_opt("owned").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn foreground_deletion_waits_for_blocking_dependents() {
    let (_cluster, api) = with_owner().await;
    let hold = json!({"metadata": {"finalizers": ["test.dev/x"]}});
    api.patch("owned", &PatchParams::default(), &Patch::Merge(hold))
        .await
        .unwrap();
    api.delete("owner", &with(PropagationPolicy::Foreground))
        .await
        .unwrap();
    settle().await;
    let waiting = api.get("owner").await.unwrap();
    assert_eq!(waiting.finalizers(), ["foregroundDeletion"]);
    assert!(
        api.get("owned")
            .await
            .unwrap()
            .metadata
            .deletion_timestamp
            .is_some()
    );
    api.patch(
        "owned",
        &PatchParams::default(),
        &Patch::Merge(json!({"metadata": {"finalizers": null}})),
    )
    .await
    .unwrap();
    settle().await;
    assert!(api.get_opt("owner").await.unwrap().is_none());
    assert!(api.get_opt("owned").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn orphaning_deletion_frees_dependents() {
    let (_cluster, api) = with_owner().await;
    api.delete("owner", &with(PropagationPolicy::Orphan))
        .await
        .unwrap();
    settle().await;
    assert!(api.get_opt("owner").await.unwrap().is_none());
    assert!(
        api.get("owned")
            .await
            .unwrap()
            .owner_references()
            .is_empty()
    );
}

#[tokio::test(start_paused = true)]
async fn a_dependent_of_an_owner_that_never_was_is_collected() {
    let (_cluster, api) = with_owner().await;
    let reference =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": "not-its-uid"});
    let stray = map(json!({"metadata": {"name": "stray", "ownerReferences": [reference]}}));
    api.create(&PostParams::default(), &stray).await.unwrap();
    settle().await;
    assert!(api.get_opt("stray").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_namespace_ends_with_its_content_and_takes_nothing_new_meanwhile() {
    let (cluster, _) = with_owner().await;
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    namespaces
        .create(
            &PostParams::default(),
            &typed(json!({"metadata": {"name": "ns"}})),
        )
        .await
        .unwrap();
    let api: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), "ns");
    let held = map(json!({"metadata": {"name": "a", "finalizers": ["test.dev/x"]}}));
    api.create(&PostParams::default(), &held).await.unwrap();
    let ending = namespaces
        .delete("ns", &DeleteParams::default())
        .await
        .unwrap()
        .left()
        .unwrap();
    assert_eq!(ending.status.unwrap().phase.as_deref(), Some("Terminating"));
    settle().await;
    let (code, status) = raw(
        &cluster.client,
        "POST",
        "/api/v1/namespaces/ns/configmaps",
        &json!({"metadata": {"name": "b"}}),
    )
    .await;
    assert_eq!((code, status["reason"].as_str()), (403, Some("Forbidden")));
    assert_eq!(
        status["details"]["causes"][0]["reason"],
        "NamespaceTerminating"
    );
    api.patch(
        "a",
        &PatchParams::default(),
        &Patch::Merge(json!({"metadata": {"finalizers": null}})),
    )
    .await
    .unwrap();
    settle().await;
    assert!(namespaces.get_opt("ns").await.unwrap().is_none());
    let (code, status) = raw(
        &cluster.client,
        "POST",
        "/api/v1/namespaces/ns/configmaps",
        &json!({"metadata": {"name": "b"}}),
    )
    .await;
    assert_eq!(
        (code, status["message"].as_str()),
        (404, Some("namespaces \"ns\" not found"))
    );
}
