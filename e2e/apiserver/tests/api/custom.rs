//! Custom kinds: a CRD makes its kind served, pruned, defaulted, validated and patched.

use kube::Client;
use serde_json::{Value, json};

use crate::support::{client, raw, raw_as};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const THINGS: &str = "/apis/test.dev/v1/namespaces/default/things";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

fn crd() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.test.dev"},
        "spec": {
            "group": "test.dev", "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing", "shortNames": ["th"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}, "scale": {
                    "specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"
                }},
                "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
                "selectableFields": [{"jsonPath": ".spec.color"}],
                "schema": {"openAPIV3Schema": {"type": "object", "required": ["spec"], "properties": {
                    "spec": {"type": "object", "required": ["color"], "properties": {
                        "color": {"type": "string", "enum": ["red", "blue"]},
                        "size": {"type": "integer", "default": 1, "minimum": 0},
                        "ports": {
                            "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port"],
                            "items": {"type": "object", "required": ["port"], "properties": {
                                "port": {"type": "integer"}, "note": {"type": "string"}
                            }}
                        },
                        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}
                    }},
                    "status": {"type": "object", "properties": {"size": {"type": "integer"}}}
                }}}
            }]
        }
    })
}

async fn served() -> Client {
    let client = client();
    assert_eq!(raw(&client, "GET", THINGS, &Value::Null).await.0, 404);
    let (code, made) = raw(&client, "POST", CRDS, &crd()).await;
    assert_eq!(code, 201, "{made:#}");
    let conditions = made["status"]["conditions"].as_array().unwrap();
    for kind in ["NamesAccepted", "Established"] {
        assert!(
            conditions
                .iter()
                .any(|one| one["type"] == kind && one["status"] == "True"),
            "{kind}"
        );
    }
    client
}

fn thing(spec: Value) -> Value {
    json!({"apiVersion": "test.dev/v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": spec})
}

#[tokio::test]
async fn objects_are_pruned_and_defaulted_and_keep_what_is_free() {
    let client = served().await;
    let spec = json!({"color": "red", "unknown": 1, "free": {"x": {"y": null}}});
    let (code, made) = raw(&client, "POST", THINGS, &thing(spec)).await;
    assert_eq!(code, 201);
    assert_eq!(
        made["spec"],
        json!({"color": "red", "size": 1, "free": {"x": {"y": null}}})
    );
    assert_eq!(made["metadata"]["generation"], 1);
}

#[tokio::test]
async fn objects_that_break_the_schema_are_refused() {
    let client = served().await;
    for (spec, message) in [
        (
            json!({}),
            "Thing.test.dev \"a\" is invalid: spec.color: Required value",
        ),
        (
            json!({"color": "green"}),
            "Thing.test.dev \"a\" is invalid: spec.color: Unsupported value: \"green\": supported values: \"red\", \"blue\"",
        ),
        (
            json!({"color": "red", "size": -1}),
            "Thing.test.dev \"a\" is invalid: spec.size: Invalid value: -1: spec.size in body should be greater than or equal to 0",
        ),
        (
            json!({"color": "red", "size": "x"}),
            "Thing.test.dev \"a\" is invalid: spec.size: Invalid value: \"string\": spec.size in body must be of type integer: \"string\"",
        ),
        (
            json!({"color": "red", "ports": [{"port": 1}, {"port": 1}]}),
            "Thing.test.dev \"a\" is invalid: spec.ports[1]: Duplicate value: {\"port\":1}",
        ),
    ] {
        let (code, status) = raw(&client, "POST", THINGS, &thing(spec)).await;
        assert_eq!((code, status["message"].as_str()), (422, Some(message)));
    }
}

#[tokio::test]
async fn status_and_spec_are_written_apart_and_only_spec_counts_as_generation() {
    let client = served().await;
    let mut body = thing(json!({"color": "red"}));
    body["status"] = json!({"size": 9});
    let (_, made) = raw(&client, "POST", THINGS, &body).await;
    assert_eq!(made["status"], Value::Null);
    let path = format!("{THINGS}/a");
    let change =
        json!({"spec": {"size": 5}, "status": {"size": 5}, "metadata": {"labels": {"x": "y"}}});
    let (_, status) = raw_as(&client, "PATCH", &format!("{path}/status"), MERGE, &change).await;
    assert_eq!(
        (&status["spec"]["size"], &status["status"]["size"]),
        (&json!(1), &json!(5))
    );
    assert_eq!(
        (
            &status["metadata"]["generation"],
            &status["metadata"]["labels"]
        ),
        (&json!(1), &Value::Null)
    );
    let (_, main) = raw_as(
        &client,
        "PATCH",
        &path,
        MERGE,
        &json!({"spec": {"size": 2}, "status": {"size": 7}}),
    )
    .await;
    assert_eq!(
        (&main["spec"]["size"], &main["status"]["size"]),
        (&json!(2), &json!(5))
    );
    assert_eq!(main["metadata"]["generation"], 2);
    let (_, scaled) = raw_as(
        &client,
        "PATCH",
        &format!("{path}/scale"),
        MERGE,
        &json!({"spec": {"replicas": 3}}),
    )
    .await;
    assert_eq!(
        (&scaled["spec"]["replicas"], &scaled["status"]["replicas"]),
        (&json!(3), &json!(5))
    );
}

#[tokio::test]
async fn an_update_needs_a_version_and_strategic_patches_are_not_spoken() {
    let client = served().await;
    raw(&client, "POST", THINGS, &thing(json!({"color": "red"}))).await;
    let (code, status) = raw(
        &client,
        "PUT",
        &format!("{THINGS}/a"),
        &thing(json!({"color": "blue"})),
    )
    .await;
    let message = "things.test.dev \"a\" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update";
    assert_eq!((code, status["message"].as_str()), (422, Some(message)));
    let strategic = "application/strategic-merge-patch+json";
    let (code, status) = raw_as(
        &client,
        "PATCH",
        &format!("{THINGS}/a"),
        strategic,
        &json!({}),
    )
    .await;
    assert_eq!(
        (code, status["reason"].as_str()),
        (415, Some("UnsupportedMediaType"))
    );
}

#[tokio::test]
async fn apply_merges_keyed_lists_by_the_keys_of_the_schema() {
    let client = served().await;
    let path = format!("{THINGS}/a");
    let apply = |manager: &str, spec: Value| {
        let (client, path) = (client.clone(), format!("{path}?fieldManager={manager}"));
        async move { raw_as(&client, "PATCH", &path, APPLY, &thing(spec)).await }
    };
    let (code, _) = apply(
        "one",
        json!({"color": "red", "ports": [{"port": 1, "note": "x"}]}),
    )
    .await;
    assert_eq!(code, 201);
    let (_, both) = apply("two", json!({"color": "red", "ports": [{"port": 2}]})).await;
    assert_eq!(
        both["spec"]["ports"],
        json!([{"port": 1, "note": "x"}, {"port": 2}])
    );
    let (_, less) = apply("one", json!({"color": "red"})).await;
    assert_eq!(less["spec"]["ports"], json!([{"port": 2}]));
}

#[tokio::test]
async fn selectable_fields_select_and_tables_have_the_columns_of_the_crd() {
    let client = served().await;
    raw(
        &client,
        "POST",
        THINGS,
        &thing(json!({"color": "red", "size": 4})),
    )
    .await;
    let select = |color: &str| format!("{THINGS}?fieldSelector=spec.color%3D{color}");
    let (_, red) = raw(&client, "GET", &select("red"), &Value::Null).await;
    let (_, blue) = raw(&client, "GET", &select("blue"), &Value::Null).await;
    assert_eq!(
        (
            red["items"].as_array().unwrap().len(),
            blue["items"].as_array().unwrap().len()
        ),
        (1, 0)
    );
    assert_eq!(red["kind"], "ThingList");
    let request = ::http::Request::get(THINGS)
        .header(
            "accept",
            "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
        )
        .body(Vec::new())
        .unwrap();
    let table: Value = client.request(request).await.unwrap();
    assert_eq!(table["columnDefinitions"][1]["name"], "Size");
    assert_eq!(table["rows"][0]["cells"], json!(["a", 4]));
}

#[tokio::test]
async fn a_kind_whose_crd_is_gone_is_not_served() {
    let client = served().await;
    let (code, _) = raw(
        &client,
        "DELETE",
        &format!("{CRDS}/things.test.dev"),
        &Value::Null,
    )
    .await;
    assert_eq!(code, 200);
    assert_eq!(raw(&client, "GET", THINGS, &Value::Null).await.0, 404);
}
