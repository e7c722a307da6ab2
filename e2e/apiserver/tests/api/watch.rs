//! Watches and lists: resuming, bookmarks, pages and what is gone.

use std::time::Duration;

use e2e_apiserver::{Config, Identity};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use kube::api::{
    Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::support::{client, raw, server, server_with, typed};

fn config_map(name: &str) -> ConfigMap {
    typed(json!({"metadata": {"name": name, "labels": {"app": name}}}))
}

async fn make(api: &Api<ConfigMap>, names: &[&str]) {
    for name in names {
        api.create(&PostParams::default(), &config_map(name))
            .await
            .unwrap();
    }
}

fn names<K: kube::Resource>(items: &[K]) -> Vec<String> {
    items.iter().map(ResourceExt::name_any).collect()
}

#[tokio::test]
async fn pages_show_the_version_of_the_first_whatever_changes_meanwhile() {
    let api: Api<ConfigMap> = Api::default_namespaced(client());
    make(&api, &["a", "b", "c", "d", "e"]).await;
    let first = api.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!(names(&first.items), ["a", "b"]);
    assert_eq!(first.metadata.remaining_item_count, Some(3));
    api.delete("d", &DeleteParams::default()).await.unwrap();
    make(&api, &["c0"]).await;
    let token = first.metadata.continue_.unwrap();
    let second = api
        .list(&ListParams::default().limit(2).continue_token(&token))
        .await
        .unwrap();
    assert_eq!(names(&second.items), ["c", "d"]);
    assert_eq!(
        second.metadata.resource_version,
        first.metadata.resource_version
    );
    let token = second.metadata.continue_.unwrap();
    let third = api
        .list(&ListParams::default().limit(2).continue_token(&token))
        .await
        .unwrap();
    assert_eq!(names(&third.items), ["e"]);
    assert_eq!(third.metadata.continue_, None);
}

#[tokio::test]
async fn a_page_whose_version_is_compacted_is_gone() {
    let server = server();
    let api: Api<ConfigMap> = Api::default_namespaced(server.client(&Identity::admin()));
    make(&api, &["a", "b"]).await;
    let token = api
        .list(&ListParams::default().limit(1))
        .await
        .unwrap()
        .metadata
        .continue_
        .unwrap();
    make(&api, &["c"]).await;
    server.compact();
    let error = api
        .list(&ListParams::default().limit(1).continue_token(&token))
        .await
        .unwrap_err();
    let kube::Error::Api(status) = error else {
        panic!("{error}")
    };
    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
}

#[tokio::test]
async fn a_watch_resumes_after_the_version_that_it_is_given() {
    let api: Api<ConfigMap> = Api::default_namespaced(client());
    make(&api, &["a"]).await;
    let version = api
        .list(&ListParams::default())
        .await
        .unwrap()
        .metadata
        .resource_version
        .unwrap();
    make(&api, &["b"]).await;
    api.patch(
        "a",
        &PatchParams::default(),
        &Patch::Merge(json!({"data": {"x": "y"}})),
    )
    .await
    .unwrap();
    api.delete("b", &DeleteParams::default()).await.unwrap();
    let events: Vec<String> = api
        .watch(&WatchParams::default(), &version)
        .await
        .unwrap()
        .take(3)
        .map_ok(|event| match event {
            WatchEvent::Added(one) => format!("added {}", one.name_any()),
            WatchEvent::Modified(one) => format!("modified {}", one.name_any()),
            WatchEvent::Deleted(one) => format!("deleted {}", one.name_any()),
            other => format!("{other:?}"),
        })
        .try_collect()
        .await
        .unwrap();
    assert_eq!(events, ["added b", "modified a", "deleted b"]);
}

#[tokio::test]
async fn a_deletion_event_carries_the_version_of_the_deletion() {
    let server = server();
    let api: Api<ConfigMap> = Api::default_namespaced(server.client(&Identity::admin()));
    make(&api, &["a"]).await;
    let version = server.resource_version().to_string();
    api.delete("a", &DeleteParams::default()).await.unwrap();
    let mut events = api
        .watch(&WatchParams::default(), &version)
        .await
        .unwrap()
        .boxed();
    let Some(WatchEvent::Deleted(last)) = events.try_next().await.unwrap() else {
        panic!("a deletion")
    };
    assert_eq!(
        last.resource_version().unwrap(),
        server.resource_version().to_string()
    );
}

#[tokio::test]
async fn an_old_version_is_answered_with_an_expired_event() {
    let server = server_with(Config {
        history: 3,
        ..Config::default()
    });
    let api: Api<ConfigMap> = Api::default_namespaced(server.client(&Identity::admin()));
    make(&api, &["a", "b", "c", "d", "e"]).await;
    let mut events = api
        .watch(&WatchParams::default(), "2")
        .await
        .unwrap()
        .boxed();
    let Some(WatchEvent::Error(status)) = events.try_next().await.unwrap() else {
        panic!("an error")
    };
    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
    assert!(status.message.starts_with("too old resource version: 2 ("));
    assert!(events.try_next().await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn an_idle_watch_gets_bookmarks_and_ends_at_its_timeout() {
    let server = server();
    let api: Api<ConfigMap> = Api::default_namespaced(server.client(&Identity::admin()));
    make(&api, &["a"]).await;
    let start = tokio::time::Instant::now();
    let mut events = api
        .watch(&WatchParams::default().timeout(100), "0")
        .await
        .unwrap()
        .boxed();
    let mut seen = Vec::new();
    while let Some(event) = events.try_next().await.unwrap() {
        if let WatchEvent::Bookmark(mark) = event {
            assert_eq!(
                mark.metadata.resource_version,
                server.resource_version().to_string()
            );
            seen.push(start.elapsed().as_secs());
        }
    }
    assert_eq!(seen, [60, 98]);
    assert_eq!(start.elapsed().as_secs(), 100);
}

#[tokio::test]
async fn a_selector_turns_changes_into_additions_and_deletions() {
    let api: Api<ConfigMap> = Api::default_namespaced(client());
    make(&api, &["a"]).await;
    let mut events = api
        .watch(&WatchParams::default().labels("app=z"), "0")
        .await
        .unwrap()
        .boxed();
    let label = |value: &str| Patch::Merge(json!({"metadata": {"labels": {"app": value}}}));
    api.patch("a", &PatchParams::default(), &label("z"))
        .await
        .unwrap();
    assert!(matches!(
        events.try_next().await.unwrap(),
        Some(WatchEvent::Added(_))
    ));
    api.patch("a", &PatchParams::default(), &label("a"))
        .await
        .unwrap();
    let Some(WatchEvent::Deleted(last)) = events.try_next().await.unwrap() else {
        panic!("a deletion")
    };
    assert_eq!(last.labels()["app"], "z");
}

#[tokio::test]
async fn field_selectors_work_for_the_fields_of_each_kind_and_no_others() {
    let client = client();
    for (name, node) in [("p", "n1"), ("q", "n2")] {
        let pod = json!({"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}});
        assert_eq!(
            raw(&client, "POST", "/api/v1/namespaces/default/pods", &pod)
                .await
                .0,
            201
        );
    }
    let pods: Api<Pod> = Api::all(client.clone());
    let found = |fields: &str| {
        let (pods, params) = (pods.clone(), ListParams::default().fields(fields));
        async move { names(&pods.list(&params).await.unwrap().items) }
    };
    assert_eq!(found("spec.nodeName=n1").await, ["p"]);
    assert_eq!(found("spec.nodeName!=n1,status.phase=Pending").await, ["q"]);
    assert_eq!(
        found("metadata.name=q,metadata.namespace=default").await,
        ["q"]
    );
    let services: Api<Service> = Api::all(client.clone());
    let headless = services
        .list(&ListParams::default().fields("spec.clusterIP!=None"))
        .await
        .unwrap();
    assert_eq!(names(&headless.items), ["kubernetes"]);
    let (code, status) = raw(
        &client,
        "GET",
        "/api/v1/pods?fieldSelector=spec.color%3Dred",
        &Value::Null,
    )
    .await;
    assert_eq!(
        (code, status["message"].as_str()),
        (400, Some("field label not supported: spec.color"))
    );
    let (code, status) = raw(
        &client,
        "GET",
        "/api/v1/configmaps?fieldSelector=data.x%3Dy",
        &Value::Null,
    )
    .await;
    let message =
        "\"data.x\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"";
    assert_eq!((code, status["message"].as_str()), (400, Some(message)));
}

/// Reads a reflector's store until it holds these names.
async fn reflects(client: Client, config: watcher::Config, server: &e2e_apiserver::ApiServer) {
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    make(&api, &["a", "b", "c"]).await;
    let (reader, writer) = reflector::store();
    let mut stream = reflector(writer, watcher(api.clone(), config))
        .default_backoff()
        .boxed();
    let wanted = |names: &[&str]| {
        let mut found: Vec<String> = reader.state().iter().map(|one| one.name_any()).collect();
        found.sort();
        found == names
    };
    while !wanted(&["a", "b", "c"]) {
        stream.try_next().await.unwrap();
    }
    // A restart of the connection and a lost history must be invisible.
    server.drop_watches();
    server.compact();
    make(&api, &["d"]).await;
    api.delete("a", &DeleteParams::default()).await.unwrap();
    while !wanted(&["b", "c", "d"]) {
        let _ = stream.next().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_reflector_follows_lists_and_watches_over_hang_ups_and_compaction() {
    let server = server();
    reflects(
        server.client(&Identity::admin()),
        watcher::Config::default().page_size(2),
        &server,
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_reflector_follows_a_streaming_list() {
    let server = server();
    reflects(
        server.client(&Identity::admin()),
        watcher::Config::default().streaming_lists(),
        &server,
    )
    .await;
}

#[tokio::test]
async fn metadata_alone_can_be_listed_and_watched() {
    let client = client();
    let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
    make(&api, &["a"]).await;
    let list = api.list_metadata(&ListParams::default()).await.unwrap();
    assert_eq!(names(&list.items), ["a"]);
    let mut events = api
        .watch_metadata(&WatchParams::default(), "0")
        .await
        .unwrap()
        .boxed();
    assert!(
        matches!(events.try_next().await.unwrap(), Some(WatchEvent::Added(one)) if one.name_any() == "a")
    );
}

#[tokio::test]
async fn writers_at_once_lose_nothing_and_are_seen_in_order() {
    let server = server();
    let api: Api<ConfigMap> = Api::default_namespaced(server.client(&Identity::admin()));
    make(&api, &["a"]).await;
    let version = server.resource_version();
    let writers = (0..8).map(|writer| {
        let api = api.clone();
        tokio::spawn(async move {
            for round in 0..10 {
                // Optimistic locking: read, change, write, again on conflict.
                loop {
                    let mut map = api.get("a").await.unwrap();
                    map.data
                        .get_or_insert_default()
                        .insert(format!("k{writer}-{round}"), "v".into());
                    match api.replace("a", &PostParams::default(), &map).await {
                        Ok(_) => break,
                        Err(kube::Error::Api(status)) if status.is_conflict() => {
                            tokio::task::yield_now().await;
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        })
    });
    futures::future::join_all(writers)
        .await
        .into_iter()
        .for_each(|done| done.unwrap());
    assert_eq!(api.get("a").await.unwrap().data.unwrap().len(), 80);
    let watch = api
        .watch(&WatchParams::default(), &version.to_string())
        .await
        .unwrap();
    let versions: Vec<u64> = watch
        .take(80)
        .map_ok(|event| match event {
            WatchEvent::Modified(map) => map.resource_version().unwrap().parse::<u64>().unwrap(),
            other => panic!("{other:?}"),
        })
        .try_collect()
        .await
        .unwrap();
    assert!(versions.is_sorted());
    tokio::time::sleep(Duration::ZERO).await;
}
