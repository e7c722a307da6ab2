//! The server on a socket.

use std::net::TcpListener;

use e2e_apiserver::{Identity, Serving};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, ListParams, PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;

use crate::support::{server, typed};

async fn connect(kubeconfig: &str) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    Client::try_from(config).unwrap()
}

fn serve(server: &e2e_apiserver::ApiServer) -> Serving {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    server
        .serve_tls(listener, &["kube.test".to_owned()])
        .unwrap()
}

#[tokio::test]
async fn a_kubeconfig_is_enough_to_list_create_and_watch_over_tls() {
    let server = server();
    let serving = serve(&server);
    let url = format!("https://{}", serving.address());
    let client = connect(&server.kubeconfig(&url, &Identity::admin()).unwrap()).await;
    let namespaces = Api::<Namespace>::all(client.clone())
        .list(&ListParams::default())
        .await
        .unwrap();
    assert_eq!(namespaces.items.len(), 4);
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    let mut watch = api
        .watch(&WatchParams::default(), "0")
        .await
        .unwrap()
        .boxed();
    let made = typed(json!({"metadata": {"name": "a"}}));
    api.create(&PostParams::default(), &made).await.unwrap();
    let event = watch.try_next().await.unwrap().unwrap();
    assert!(matches!(event, WatchEvent::Added(map) if map.metadata.name.as_deref() == Some("a")));
}

#[tokio::test]
async fn an_unknown_token_is_unauthorized() {
    let server = server();
    let serving = serve(&server);
    let url = format!("https://{}", serving.address());
    let good = server.kubeconfig(&url, &Identity::admin()).unwrap();
    let bad = good.replace(&server.token(&Identity::admin()), "wrong");
    let api = Api::<Namespace>::all(connect(&bad).await);
    let error = api.list(&ListParams::default()).await.unwrap_err();
    assert!(matches!(error, kube::Error::Api(status) if status.code == 401));
}

#[tokio::test]
async fn dropping_the_guard_ends_connections_and_open_watches() {
    let server = server();
    let serving = serve(&server);
    let url = format!("https://{}", serving.address());
    let client = connect(&server.kubeconfig(&url, &Identity::admin()).unwrap()).await;
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    let mut watch = api
        .watch(&WatchParams::default(), "0")
        .await
        .unwrap()
        .boxed();
    drop(serving);
    assert!(!matches!(watch.try_next().await, Ok(Some(_))));
    assert!(api.list(&ListParams::default()).await.is_err());
}
