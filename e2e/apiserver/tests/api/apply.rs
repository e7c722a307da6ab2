//! Server-side apply: ownership of fields, conflicts and removal.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::support::{client, raw, raw_as, typed};

const APPLY: &str = "application/apply-patch+yaml";

fn maps() -> Api<ConfigMap> {
    Api::default_namespaced(client())
}

fn config(data: Value) -> Patch<Value> {
    Patch::Apply(
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data}),
    )
}

fn data(map: ConfigMap) -> Value {
    serde_json::to_value(map.data).unwrap()
}

#[tokio::test]
async fn a_field_that_is_applied_no_longer_is_removed_and_those_of_others_stay() {
    let api = maps();
    api.patch(
        "a",
        &PatchParams::apply("one"),
        &config(json!({"x": "1", "y": "1"})),
    )
    .await
    .unwrap();
    api.patch("a", &PatchParams::apply("two"), &config(json!({"z": "2"})))
        .await
        .unwrap();
    let after = api
        .patch("a", &PatchParams::apply("one"), &config(json!({"x": "1"})))
        .await
        .unwrap();
    assert_eq!(data(after), json!({"x": "1", "z": "2"}));
}

#[tokio::test]
async fn a_field_of_another_manager_is_a_conflict_unless_forced() {
    let api = maps();
    api.patch("a", &PatchParams::apply("one"), &config(json!({"x": "1"})))
        .await
        .unwrap();
    let error = api
        .patch("a", &PatchParams::apply("two"), &config(json!({"x": "2"})))
        .await
        .unwrap_err();
    let kube::Error::Api(status) = error else {
        panic!("{error}")
    };
    assert_eq!(status.code, 409);
    assert_eq!(
        status.message,
        "Apply failed with 1 conflict: conflict with \"one\": .data.x"
    );
    let forced = api
        .patch(
            "a",
            &PatchParams::apply("two").force(),
            &config(json!({"x": "2"})),
        )
        .await
        .unwrap();
    assert_eq!(forced.managed_fields().len(), 1);
    assert_eq!(data(forced), json!({"x": "2"}));
    // One lost the field, so giving it up removes nothing.
    let after = api
        .patch("a", &PatchParams::apply("one"), &config(json!({})))
        .await
        .unwrap();
    assert_eq!(data(after), json!({"x": "2"}));
}

#[tokio::test]
async fn two_appliers_of_the_same_value_share_the_field() {
    let api = maps();
    api.patch("a", &PatchParams::apply("one"), &config(json!({"x": "1"})))
        .await
        .unwrap();
    api.patch("a", &PatchParams::apply("two"), &config(json!({"x": "1"})))
        .await
        .unwrap();
    let after = api
        .patch("a", &PatchParams::apply("one"), &config(json!({})))
        .await
        .unwrap();
    assert_eq!(data(after), json!({"x": "1"}));
    let after = api
        .patch("a", &PatchParams::apply("two"), &config(json!({})))
        .await
        .unwrap();
    assert_eq!(data(after), Value::Null);
}

#[tokio::test]
async fn a_plain_write_takes_ownership_and_conflicts_name_it() {
    let api = maps();
    api.patch("a", &PatchParams::apply("one"), &config(json!({"x": "1"})))
        .await
        .unwrap();
    let by = PatchParams {
        field_manager: Some("editor".into()),
        ..PatchParams::default()
    };
    api.patch("a", &by, &Patch::Merge(json!({"data": {"x": "2"}})))
        .await
        .unwrap();
    let error = api
        .patch("a", &PatchParams::apply("one"), &config(json!({"x": "1"})))
        .await
        .unwrap_err();
    let kube::Error::Api(status) = error else {
        panic!("{error}")
    };
    assert_eq!(
        status.message,
        "Apply failed with 1 conflict: conflict with \"editor\" using v1: .data.x"
    );
}

#[tokio::test]
async fn applying_the_same_again_writes_nothing() {
    let api = maps();
    let first = api
        .patch("a", &PatchParams::apply("one"), &config(json!({"x": "1"})))
        .await
        .unwrap();
    let again = api
        .patch("a", &PatchParams::apply("one"), &config(json!({"x": "1"})))
        .await
        .unwrap();
    assert_eq!(again, first);
}

#[tokio::test]
async fn items_of_keyed_lists_have_owners_of_their_own() {
    let api: Api<Service> = Api::default_namespaced(client());
    let service = |ports: Value| {
        Patch::Apply(json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"ports": ports}
        }))
    };
    let (http, https) = (
        json!({"name": "http", "port": 80}),
        json!({"name": "https", "port": 443}),
    );
    api.patch("a", &PatchParams::apply("one"), &service(json!([http])))
        .await
        .unwrap();
    api.patch("a", &PatchParams::apply("two"), &service(json!([https])))
        .await
        .unwrap();
    let ports = |service: Service| -> Vec<i32> {
        service
            .spec
            .unwrap()
            .ports
            .unwrap()
            .into_iter()
            .map(|port| port.port)
            .collect()
    };
    let both = api.get("a").await.unwrap();
    assert_eq!(ports(both), [80, 443]);
    let after = api
        .patch("a", &PatchParams::apply("two"), &service(json!([])))
        .await
        .unwrap();
    assert_eq!(ports(after), [80]);
}

#[tokio::test]
async fn status_and_spec_have_separate_entries() {
    let client = client();
    let api: Api<Service> = Api::default_namespaced(client.clone());
    let made = typed(
        json!({"metadata": {"name": "a"}, "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}}),
    );
    api.create(&PostParams::default(), &made).await.unwrap();
    let status = |ingress: Value| {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"},
            "status": {"loadBalancer": {"ingress": ingress}}
        })
    };
    let apply = PatchParams::apply("lb").force();
    let shown = api
        .patch_status(
            "a",
            &apply,
            &Patch::Apply(status(json!([{"ip": "198.51.100.1"}]))),
        )
        .await
        .unwrap();
    let entry = shown
        .managed_fields()
        .iter()
        .find(|entry| entry.manager.as_deref() == Some("lb"))
        .unwrap();
    assert_eq!(entry.subresource.as_deref(), Some("status"));
    let ingress = shown
        .status
        .unwrap()
        .load_balancer
        .unwrap()
        .ingress
        .unwrap();
    assert_eq!(ingress[0].ip_mode.as_deref(), Some("VIP"));
    // C-04: an explicit empty list takes the address away.
    let cleared = api
        .patch_status("a", &apply, &Patch::Apply(status(json!([]))))
        .await
        .unwrap();
    assert!(
        cleared
            .status
            .unwrap()
            .load_balancer
            .unwrap_or_default()
            .ingress
            .unwrap_or_default()
            .is_empty()
    );
}

#[tokio::test]
async fn a_plain_creation_owns_what_it_set_as_the_real_server_records_it() {
    let client = client();
    let path = "/apis/apps/v1/namespaces/default/deployments?fieldManager=kubectl-create";
    let body = json!({
        "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}]}
            }
        }
    });
    let (code, made) = raw(&client, "POST", path, &body).await;
    assert_eq!(code, 201, "{made:#}");
    let entry = &made["metadata"]["managedFields"][0];
    assert_eq!(
        (entry["manager"].as_str(), entry["operation"].as_str()),
        (Some("kubectl-create"), Some("Update"))
    );
    // Taken from a Deployment on a real server.
    let expected = json!({
        "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
        "f:spec": {
            "f:progressDeadlineSeconds": {}, "f:replicas": {}, "f:revisionHistoryLimit": {}, "f:selector": {},
            "f:strategy": {
                "f:rollingUpdate": {".": {}, "f:maxSurge": {}, "f:maxUnavailable": {}}, "f:type": {}
            },
            "f:template": {
                "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
                "f:spec": {
                    "f:containers": {"k:{\"name\":\"c\"}": {
                        ".": {}, "f:image": {}, "f:imagePullPolicy": {}, "f:name": {},
                        "f:ports": {".": {}, "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {
                            ".": {}, "f:containerPort": {}, "f:protocol": {}
                        }},
                        "f:resources": {}, "f:terminationMessagePath": {}, "f:terminationMessagePolicy": {}
                    }},
                    "f:dnsPolicy": {}, "f:restartPolicy": {}, "f:schedulerName": {}, "f:securityContext": {},
                    "f:terminationGracePeriodSeconds": {}
                }
            }
        }
    });
    assert_eq!(entry["fieldsV1"], expected, "{:#}", entry["fieldsV1"]);
}

#[tokio::test]
async fn several_conflicts_are_listed_by_manager() {
    let client = client();
    let path = "/apis/apps/v1/namespaces/default/deployments/web";
    let deployment = |replicas: i64, image: &str| {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {
                "replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
                "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": image}]}}
            }
        })
    };
    let (code, _) = raw_as(
        &client,
        "PATCH",
        &format!("{path}?fieldManager=one"),
        APPLY,
        &deployment(1, "i"),
    )
    .await;
    assert_eq!(code, 201);
    let (code, status) = raw_as(
        &client,
        "PATCH",
        &format!("{path}?fieldManager=two"),
        APPLY,
        &deployment(2, "j"),
    )
    .await;
    assert_eq!(code, 409);
    assert_eq!(
        status["message"],
        "Apply failed with 2 conflicts: conflicts with \"one\":\n- .spec.replicas\n- .spec.template.spec.containers[name=\"c\"].image"
    );
    assert_eq!(
        status["details"]["causes"][0]["reason"],
        "FieldManagerConflict"
    );
    let api: Api<Deployment> = Api::default_namespaced(client);
    assert_eq!(
        api.get("web").await.unwrap().spec.unwrap().replicas,
        Some(1)
    );
}

#[tokio::test]
async fn apply_needs_a_manager_and_refuses_managed_fields() {
    let client = client();
    let path = "/api/v1/namespaces/default/configmaps/a";
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    let (code, status) = raw_as(&client, "PATCH", path, APPLY, &body).await;
    assert_eq!(code, 422);
    assert_eq!(
        status["message"],
        "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch"
    );
    let managed = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "managedFields": [{"manager": "x"}]}});
    let (code, status) = raw_as(
        &client,
        "PATCH",
        &format!("{path}?fieldManager=me"),
        APPLY,
        &managed,
    )
    .await;
    assert_eq!(
        (code, status["message"].as_str()),
        (400, Some("metadata.managedFields must be nil"))
    );
}

/// What kubectl does before the first server-side apply of an object that client-side apply made.
#[tokio::test]
async fn a_write_may_hand_fields_from_one_manager_to_another() {
    let client = client();
    let maps = "/api/v1/namespaces/default/configmaps";
    let made = json!({"metadata": {"name": "a"}, "data": {"x": "1", "y": "1"}});
    let (code, made) = raw(
        &client,
        "POST",
        &format!("{maps}?fieldManager=client-side"),
        &made,
    )
    .await;
    assert_eq!(code, 201, "{made:#}");
    let mut entry = made["metadata"]["managedFields"][0].clone();
    assert_eq!(entry["manager"], "client-side");
    entry["manager"] = json!("applier");
    entry["operation"] = json!("Apply");
    let handed = json!([
        {"op": "replace", "path": "/metadata/managedFields", "value": [entry]},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": made["metadata"]["resourceVersion"]},
    ]);
    let path = format!("{maps}/a");
    let (code, handed) = raw_as(
        &client,
        "PATCH",
        &format!("{path}?fieldManager=other"),
        "application/json-patch+json",
        &handed,
    )
    .await;
    assert_eq!(code, 200, "{handed:#}");
    assert_eq!(
        handed["metadata"]["managedFields"].as_array().map(Vec::len),
        Some(1),
        "{handed:#}"
    );
    // The applier has them now, so that what it names no longer goes.
    let applied = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "1"},
    });
    let (code, applied) = raw_as(
        &client,
        "PATCH",
        &format!("{path}?fieldManager=applier"),
        APPLY,
        &applied,
    )
    .await;
    assert_eq!(code, 200, "{applied:#}");
    assert_eq!(applied["data"], json!({"x": "1"}));
    // Whoever knows nothing of managers takes nothing away from them.
    let plain = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "1"}});
    let (code, plain) = raw(&client, "PUT", &path, &plain).await;
    assert_eq!(code, 200, "{plain:#}");
    assert_eq!(plain["metadata"]["managedFields"][0]["manager"], "applier");
}
