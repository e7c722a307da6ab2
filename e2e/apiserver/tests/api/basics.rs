//! Create, read, replace, patch and delete.

use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::support::{client, raw, typed};

fn config_map(name: &str, value: &str) -> ConfigMap {
    typed(json!({"metadata": {"name": name}, "data": {"key": value}}))
}

#[tokio::test]
async fn an_object_gets_uid_time_and_version_and_is_found_again() {
    let api: Api<ConfigMap> = Api::default_namespaced(client());
    let made = api
        .create(&PostParams::default(), &config_map("a", "1"))
        .await
        .unwrap();
    assert_eq!(made.metadata.uid.as_ref().unwrap().len(), 36);
    assert!(made.metadata.creation_timestamp.is_some());
    assert_eq!(api.get("a").await.unwrap(), made);
}

#[tokio::test]
async fn a_second_object_of_a_name_is_refused_as_the_real_server_words_it() {
    let client = client();
    let body = json!({"metadata": {"name": "a"}});
    let path = "/api/v1/namespaces/default/configmaps";
    assert_eq!(raw(&client, "POST", path, &body).await.0, 201);
    let (code, status) = raw(&client, "POST", path, &body).await;
    assert_eq!(code, 409);
    let expected = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "configmaps \"a\" already exists", "reason": "AlreadyExists",
        "details": {"name": "a", "kind": "configmaps"}, "code": 409
    });
    assert_eq!(status, expected);
}

#[tokio::test]
async fn a_replace_with_an_old_version_is_a_conflict_and_one_without_change_keeps_the_version() {
    let api: Api<ConfigMap> = Api::default_namespaced(client());
    let first = api
        .create(&PostParams::default(), &config_map("a", "1"))
        .await
        .unwrap();
    let mut next = first.clone();
    next.data.as_mut().unwrap().insert("key".into(), "2".into());
    let second = api
        .replace("a", &PostParams::default(), &next)
        .await
        .unwrap();
    assert_ne!(
        second.metadata.resource_version,
        first.metadata.resource_version
    );
    let error = api
        .replace("a", &PostParams::default(), &next)
        .await
        .unwrap_err();
    let kube::Error::Api(status) = error else {
        panic!("{error}")
    };
    assert!(status.is_conflict());
    let same = api
        .replace("a", &PostParams::default(), &second)
        .await
        .unwrap();
    assert_eq!(
        same.metadata.resource_version,
        second.metadata.resource_version
    );
}

#[tokio::test]
async fn every_form_of_patch_changes_its_field() {
    let api: Api<ConfigMap> = Api::default_namespaced(client());
    api.create(&PostParams::default(), &config_map("a", "1"))
        .await
        .unwrap();
    let json_patch = serde_json::from_value(json!([
        {"op": "test", "path": "/data/key", "value": "1"},
        {"op": "add", "path": "/data/json", "value": "yes"}
    ]))
    .unwrap();
    let own = PatchParams::default();
    api.patch("a", &own, &Patch::<ConfigMap>::Json(json_patch))
        .await
        .unwrap();
    api.patch(
        "a",
        &own,
        &Patch::Merge(json!({"data": {"merge": "yes", "key": null}})),
    )
    .await
    .unwrap();
    api.patch(
        "a",
        &own,
        &Patch::Strategic(json!({"data": {"strategic": "yes"}})),
    )
    .await
    .unwrap();
    let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"applied": "yes"}});
    let done = api
        .patch("a", &PatchParams::apply("me"), &Patch::Apply(applied))
        .await
        .unwrap();
    let keys: Vec<String> = done.data.unwrap().into_keys().collect();
    assert_eq!(keys, ["applied", "json", "merge", "strategic"]);
}

#[tokio::test]
async fn a_deletion_answers_with_a_status_and_the_object_is_gone() {
    let api: Api<ConfigMap> = Api::default_namespaced(client());
    api.create(&PostParams::default(), &config_map("a", "1"))
        .await
        .unwrap();
    let answer = api.delete("a", &DeleteParams::default()).await.unwrap();
    assert!(answer.is_right());
    assert!(api.get_opt("a").await.unwrap().is_none());
}

#[tokio::test]
async fn a_load_balancer_service_gets_address_node_port_and_health_port() {
    let api: Api<Service> = Api::default_namespaced(client());
    let service = typed(json!({
        "metadata": {"name": "web"},
        "spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": [{"port": 80}]}
    }));
    let spec = api
        .create(&PostParams::default(), &service)
        .await
        .unwrap()
        .spec
        .unwrap();
    assert!(spec.cluster_ip.unwrap().starts_with("10.96."));
    assert!((30000..=32767).contains(&spec.ports.unwrap()[0].node_port.unwrap()));
    assert!((30000..=32767).contains(&spec.health_check_node_port.unwrap()));
}
