//! The HTTP face: codes, content types, discovery and dry runs.

use kube::runtime::finalizer::{Event, finalizer};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, PostParams};
use kube::runtime::controller::Action;

use crate::support::{client, raw, raw_as, typed};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn errors_have_the_code_and_reason_of_the_real_server() {
    let client = client();
    let named = |name: &str| json!({"metadata": {"name": name}});
    raw(&client, "POST", MAPS, &named("a")).await;
    let versioned = json!({"metadata": {"name": "b", "resourceVersion": "1"}});
    let elsewhere = json!({"metadata": {"name": "b", "namespace": "other"}});
    let wrong_type = json!({"metadata": {"name": "b"}, "data": 1});
    let wrong_kind = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "b"}});
    for (method, path, body, code, reason) in [
        ("GET", format!("{MAPS}/none"), Value::Null, 404, "NotFound"),
        (
            "GET",
            "/api/v1/nothings".to_owned(),
            Value::Null,
            404,
            "NotFound",
        ),
        (
            "GET",
            "/apis/no.such/v1".to_owned(),
            Value::Null,
            404,
            "NotFound",
        ),
        (
            "POST",
            format!("{MAPS}/a"),
            named("a"),
            405,
            "MethodNotAllowed",
        ),
        ("POST", MAPS.to_owned(), versioned, 500, ""),
        ("POST", MAPS.to_owned(), elsewhere, 400, "BadRequest"),
        ("POST", MAPS.to_owned(), wrong_type, 400, "BadRequest"),
        ("POST", MAPS.to_owned(), wrong_kind, 400, "BadRequest"),
        ("POST", MAPS.to_owned(), named("Not_A_Name"), 422, "Invalid"),
        ("POST", MAPS.to_owned(), json!({}), 422, "Invalid"),
        (
            "POST",
            "/api/v1/namespaces/none/configmaps".to_owned(),
            named("a"),
            404,
            "NotFound",
        ),
        ("PUT", format!("{MAPS}/a"), named("b"), 400, "BadRequest"),
        (
            "PUT",
            format!("{MAPS}/none"),
            named("none"),
            404,
            "NotFound",
        ),
        (
            "GET",
            format!("{MAPS}?labelSelector=a%20b"),
            Value::Null,
            400,
            "BadRequest",
        ),
        (
            "GET",
            format!("{MAPS}?continue=!"),
            Value::Null,
            400,
            "BadRequest",
        ),
        (
            "GET",
            format!("{MAPS}?resourceVersion=99999999"),
            Value::Null,
            504,
            "Timeout",
        ),
    ] {
        let (found, status) = raw(&client, method, &path, &body).await;
        assert_eq!(found, code, "{method} {path}: {status:#}");
        assert_eq!(
            status["reason"].as_str().unwrap_or_default(),
            reason,
            "{method} {path}"
        );
        assert_eq!(status["kind"], "Status", "{method} {path}");
    }
}

#[tokio::test]
async fn unknown_content_types_are_refused() {
    let client = client();
    raw(&client, "POST", MAPS, &json!({"metadata": {"name": "a"}})).await;
    let (code, _) = raw_as(
        &client,
        "PATCH",
        &format!("{MAPS}/a"),
        "application/json",
        &json!({}),
    )
    .await;
    assert_eq!(code, 415);
    let (code, _) = raw_as(&client, "POST", MAPS, "application/xml", &json!({})).await;
    assert_eq!(code, 415);
}

#[tokio::test]
async fn a_json_patch_whose_test_fails_is_unprocessable_and_changes_nothing() {
    let client = client();
    let (_, made) = raw(
        &client,
        "POST",
        MAPS,
        &json!({"metadata": {"name": "a"}, "data": {"x": "1"}}),
    )
    .await;
    let patch = json!([
        {"op": "replace", "path": "/data/x", "value": "2"},
        {"op": "test", "path": "/metadata/uid", "value": "other"}
    ]);
    let (code, status) = raw_as(
        &client,
        "PATCH",
        &format!("{MAPS}/a"),
        "application/json-patch+json",
        &patch,
    )
    .await;
    assert_eq!((code, status["reason"].as_str()), (422, Some("Invalid")));
    assert_eq!(
        status["message"],
        "the server rejected our request due to an error in our request"
    );
    assert_eq!(
        raw(&client, "GET", &format!("{MAPS}/a"), &Value::Null)
            .await
            .1,
        made
    );
}

#[tokio::test]
async fn generated_names_extend_their_base() {
    let client = client();
    let body = json!({"metadata": {"generateName": "base-"}});
    let (_, one) = raw(&client, "POST", MAPS, &body).await;
    let (_, two) = raw(&client, "POST", MAPS, &body).await;
    let names = [one, two].map(|made| made["metadata"]["name"].as_str().unwrap().to_owned());
    assert!(
        names
            .iter()
            .all(|name| name.starts_with("base-") && name.len() == 10),
        "{names:?}"
    );
    assert_ne!(names[0], names[1]);
}

#[tokio::test]
async fn equal_seeds_give_equal_objects() {
    let body = json!({"metadata": {"generateName": "x-"}});
    let (_, one) = raw(&client(), "POST", MAPS, &body).await;
    let (_, two) = raw(&client(), "POST", MAPS, &body).await;
    assert_eq!(one["metadata"]["name"], two["metadata"]["name"]);
    assert_eq!(one["metadata"]["uid"], two["metadata"]["uid"]);
}

#[tokio::test]
async fn a_dry_run_answers_and_stores_nothing() {
    let client = client();
    let service =
        json!({"metadata": {"name": "a"}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}});
    let path = "/api/v1/namespaces/default/services";
    let (code, shown) = raw(&client, "POST", &format!("{path}?dryRun=All"), &service).await;
    assert_eq!(code, 201);
    assert!(shown["spec"]["clusterIP"].is_string());
    assert_eq!(
        raw(&client, "GET", &format!("{path}/a"), &Value::Null)
            .await
            .0,
        404
    );
    raw(&client, "POST", path, &service).await;
    assert_eq!(
        raw(
            &client,
            "DELETE",
            &format!("{path}/a?dryRun=All"),
            &Value::Null
        )
        .await
        .0,
        200
    );
    assert_eq!(
        raw(&client, "GET", &format!("{path}/a"), &Value::Null)
            .await
            .0,
        200
    );
}

#[tokio::test]
async fn discovery_names_every_kind_and_its_parts() {
    let client = client();
    let groups = client.list_api_groups().await.unwrap();
    let names: Vec<&str> = groups
        .groups
        .iter()
        .map(|group| group.name.as_str())
        .collect();
    for group in [
        "apps",
        "discovery.k8s.io",
        "coordination.k8s.io",
        "apiextensions.k8s.io",
        "events.k8s.io",
    ] {
        assert!(names.contains(&group), "{group} in {names:?}");
    }
    let core = client.list_core_api_resources("v1").await.unwrap();
    let names: Vec<&str> = core
        .resources
        .iter()
        .map(|resource| resource.name.as_str())
        .collect();
    for resource in [
        "pods",
        "pods/status",
        "pods/eviction",
        "services",
        "services/status",
        "nodes",
        "namespaces",
    ] {
        assert!(names.contains(&resource), "{resource} in {names:?}");
    }
    assert_eq!(client.apiserver_version().await.unwrap().major, "1");
    let discovery = kube::discovery::Discovery::new(client.clone())
        .run()
        .await
        .unwrap();
    assert!(discovery.groups().count() > 8);
}

#[tokio::test]
async fn an_event_is_seen_by_both_of_its_apis() {
    let client = client();
    let event = json!({
        "metadata": {"name": "e"}, "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
        "reason": "Because", "note": "words", "type": "Normal", "action": "Do",
        "reportingController": "onehop.dev/x", "reportingInstance": "i", "eventTime": "2026-01-01T00:00:00.000000Z"
    });
    let (code, made) = raw(
        &client,
        "POST",
        "/apis/events.k8s.io/v1/namespaces/default/events",
        &event,
    )
    .await;
    assert_eq!((code, made["note"].as_str()), (201, Some("words")));
    let select =
        "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dp,reason%3DBecause";
    let (_, list) = raw(&client, "GET", select, &Value::Null).await;
    let core = &list["items"][0];
    assert_eq!(
        (
            core["message"].as_str(),
            core["involvedObject"]["name"].as_str()
        ),
        (Some("words"), Some("p"))
    );
    assert_eq!(core["reportingComponent"], "onehop.dev/x");
}

#[tokio::test]
async fn the_finalizer_helper_of_kube_rs_works() {
    let api: Api<ConfigMap> = Api::default_namespaced(client());
    let made = typed(json!({"metadata": {"name": "a"}}));
    api.create(&PostParams::default(), &made).await.unwrap();
    let run = |map: ConfigMap| {
        finalizer(
            &api,
            "test.dev/cleanup",
            Arc::new(map),
            |event| async move {
                Ok::<_, std::convert::Infallible>(match event {
                    Event::Apply(_) | Event::Cleanup(_) => Action::await_change(),
                })
            },
        )
    };
    run(api.get("a").await.unwrap()).await.unwrap();
    assert_eq!(
        api.get("a").await.unwrap().finalizers(),
        ["test.dev/cleanup"]
    );
    api.delete("a", &DeleteParams::default()).await.unwrap();
    run(api.get("a").await.unwrap()).await.unwrap();
    assert!(api.get_opt("a").await.unwrap().is_none());
}

#[tokio::test]
async fn the_audit_tells_every_request_with_its_user_and_answer() {
    let server = crate::support::server();
    let mut audit = server.audit();
    let client = server.client(&e2e_apiserver::Identity::service_account("onehop", "agent"));
    raw(&client, "POST", MAPS, &json!({"metadata": {"name": "a"}})).await;
    raw(&client, "POST", MAPS, &json!({"metadata": {"name": "a"}})).await;
    raw(&client, "GET", MAPS, &Value::Null).await;
    let mut seen = Vec::new();
    while let Ok(record) = audit.try_recv() {
        assert_eq!(record.user, "system:serviceaccount:onehop:agent");
        seen.push((
            record.verb,
            record.resource.clone(),
            record.code,
            record.is_write(),
        ));
    }
    let maps = || "configmaps".to_owned();
    assert_eq!(
        seen,
        [
            ("create", maps(), 201, true),
            ("create", maps(), 409, false),
            ("list", maps(), 200, false)
        ]
    );
}

#[tokio::test]
async fn the_server_publishes_its_own_address() {
    let server = crate::support::server();
    for port in [6443, 7443] {
        server.publish(format!("172.30.0.1:{port}").parse().unwrap());
    }
    let client = server.client(&e2e_apiserver::Identity::admin());
    let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
    let (code, slice) = raw(&client, "GET", path, &Value::Null).await;
    assert_eq!((code, &slice["ports"][0]["port"]), (200, &json!(7443)));
}

#[tokio::test]
async fn what_people_write_loosely_is_kept_as_the_real_server_keeps_it() {
    let client = client();
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"a": "text"}});
    let (_, made) = raw(
        &client,
        "POST",
        "/api/v1/namespaces/default/secrets",
        &secret,
    )
    .await;
    assert_eq!(
        (&made["data"]["a"], &made["type"], &made["stringData"]),
        (&json!("dGV4dA=="), &json!("Opaque"), &Value::Null)
    );
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [
        {"name": "c", "image": "i", "resources": {"limits": {"cpu": 1}}}
    ]}});
    let (code, made) = raw(&client, "POST", "/api/v1/namespaces/default/pods", &pod).await;
    assert_eq!(code, 201, "{made:#}");
    let resources = &made["spec"]["containers"][0]["resources"];
    assert_eq!(
        resources,
        &json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1"}})
    );
    assert_eq!(made["status"]["qosClass"], "Burstable");
}
