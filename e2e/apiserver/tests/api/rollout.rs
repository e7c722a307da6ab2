//! Deployments: rollouts keep their bounds at every step.

use std::collections::BTreeMap;
use std::time::Duration;

use e2e_apiserver::{ApiServer, ControllerOptions, Controllers, Identity};
use futures::TryStreamExt;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::kubelet;
use crate::support::{server, typed};

const START: Duration = Duration::from_secs(2);
const STOP: Duration = Duration::from_secs(5);

struct Cluster {
    server: ApiServer,
    client: Client,
    _controllers: Controllers,
}

async fn cluster() -> Cluster {
    let server = server();
    let client = server.client(&Identity::admin());
    let controllers = server.run_controllers(&ControllerOptions::default());
    kubelet::add_nodes(&client, 3).await;
    kubelet::run(client.clone(), START, STOP);
    Cluster {
        server,
        client,
        _controllers: controllers,
    }
}

fn deployment(replicas: i32, strategy: Value) -> Deployment {
    typed(json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas, "strategy": strategy,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": "server:1"}]}
            }
        }
    }))
}

fn is_complete(deployment: &Deployment) -> bool {
    let status = deployment.status.clone().unwrap_or_default();
    let wanted = deployment.spec.as_ref().unwrap().replicas;
    status.observed_generation == deployment.metadata.generation
        && [
            status.replicas,
            status.updated_replicas,
            status.available_replicas,
        ]
        .iter()
        .all(|count| *count == wanted)
        && status
            .conditions
            .iter()
            .flatten()
            .any(|one| one.reason.as_deref() == Some("NewReplicaSetAvailable"))
}

impl Cluster {
    fn deployments(&self) -> Api<Deployment> {
        Api::default_namespaced(self.client.clone())
    }

    /// Waits until the rollout of `web` is complete.
    async fn rolled_out(&self) -> Deployment {
        let api = self.deployments();
        let version = "0";
        let wait = async {
            let mut events = Box::pin(
                api.watch(&WatchParams::default().timeout(290), version)
                    .await
                    .unwrap(),
            );
            while let Some(event) = events.try_next().await.unwrap() {
                if let WatchEvent::Added(found) | WatchEvent::Modified(found) = event
                    && is_complete(&found)
                {
                    return found;
                }
            }
            panic!("the watch ended: {:#?}", api.get("web").await);
        };
        tokio::time::timeout(Duration::from_secs(280), wait)
            .await
            .expect("the rollout ends")
    }

    /// Follows a rollout: the most pods that all sets together ever ask for, and the fewest pods ready.
    ///
    /// Surge bounds what is asked for: a set may create its pod a moment before another deletes one.
    fn follow(&self) -> (JoinHandle<i64>, JoinHandle<i64>) {
        let sets: Api<ReplicaSet> = Api::all(self.client.clone());
        let pods: Api<Pod> = Api::all(self.client.clone());
        let asked = |sets: &BTreeMap<String, ReplicaSet>| {
            sets.values()
                .map(|set| i64::from(set.spec.as_ref().unwrap().replicas.unwrap()))
                .sum()
        };
        let ready = |pods: &BTreeMap<String, Pod>| {
            let ready = pods
                .values()
                .filter(|pod| pod.metadata.deletion_timestamp.is_none() && is_ready(pod));
            i64::try_from(ready.count()).unwrap()
        };
        let version = self.server.resource_version();
        (
            tokio::spawn(extreme(sets, version, asked, i64::max)),
            tokio::spawn(extreme(pods, version, ready, i64::min)),
        )
    }
}

/// The extreme of a number that is read from all objects of a kind after every event.
async fn extreme<K>(
    api: Api<K>,
    version: u64,
    number: impl Fn(&BTreeMap<String, K>) -> i64,
    pick: impl Fn(i64, i64) -> i64,
) -> i64
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let present = api.list(&ListParams::default()).await.unwrap();
    let mut known: BTreeMap<String, K> = present
        .items
        .into_iter()
        .map(|one| (one.name_any(), one))
        .collect();
    let mut events = Box::pin(
        api.watch(&WatchParams::default().timeout(120), &version.to_string())
            .await
            .unwrap(),
    );
    let mut extreme = number(&known);
    while let Ok(Some(event)) = events.try_next().await {
        match event {
            WatchEvent::Added(one) | WatchEvent::Modified(one) => {
                drop(known.insert(one.name_any(), one));
            }
            WatchEvent::Deleted(one) => drop(known.remove(&one.name_any())),
            _ => {}
        }
        extreme = pick(extreme, number(&known));
    }
    extreme
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|one| one.type_ == "Ready" && one.status == "True")
}

async fn restart(cluster: &Cluster) {
    let patch = json!({"spec": {"template": {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}}}});
    cluster
        .deployments()
        .patch("web", &PatchParams::default(), &Patch::Strategic(patch))
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn rollouts_never_leave_the_bounds_of_surge_and_unavailable() {
    for (replicas, surge, unavailable, most, least) in [
        (4, json!(1), json!(0), 5, 4),
        (4, json!(0), json!(1), 4, 3),
        (5, json!("25%"), json!("25%"), 7, 4),
        (3, json!("100%"), json!("0%"), 6, 3),
    ] {
        let cluster = cluster().await;
        let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}});
        cluster
            .deployments()
            .create(&PostParams::default(), &deployment(replicas, strategy))
            .await
            .unwrap();
        cluster.rolled_out().await;
        let (asked, ready) = cluster.follow();
        restart(&cluster).await;
        cluster.rolled_out().await;
        let seen = (asked.await.unwrap(), ready.await.unwrap());
        assert_eq!(
            seen,
            (most, least),
            "replicas {replicas} surge {surge} unavailable {unavailable}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn recreate_starts_nothing_before_the_last_old_pod_is_gone() {
    let cluster = cluster().await;
    cluster
        .deployments()
        .create(
            &PostParams::default(),
            &deployment(3, json!({"type": "Recreate"})),
        )
        .await
        .unwrap();
    cluster.rolled_out().await;
    let (asked, ready) = cluster.follow();
    restart(&cluster).await;
    cluster.rolled_out().await;
    assert_eq!((asked.await.unwrap(), ready.await.unwrap()), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn a_rollout_counts_revisions_and_a_rollback_uses_the_old_set_again() {
    let cluster = cluster().await;
    let api = cluster.deployments();
    api.create(&PostParams::default(), &deployment(2, json!({})))
        .await
        .unwrap();
    cluster.rolled_out().await;
    let image = |image: &str| {
        Patch::Strategic(
            json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}}),
        )
    };
    api.patch("web", &PatchParams::default(), &image("server:2"))
        .await
        .unwrap();
    cluster.rolled_out().await;
    api.patch("web", &PatchParams::default(), &image("server:1"))
        .await
        .unwrap();
    let done = cluster.rolled_out().await;
    assert_eq!(done.annotations()["deployment.kubernetes.io/revision"], "3");
    let sets: Api<ReplicaSet> = Api::default_namespaced(cluster.client.clone());
    let sets = sets.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(sets.len(), 2);
    let again = sets
        .iter()
        .find(|set| set.annotations()["deployment.kubernetes.io/revision"] == "3")
        .unwrap();
    assert_eq!(
        again.annotations()["deployment.kubernetes.io/revision-history"],
        "1"
    );
}

#[tokio::test(start_paused = true)]
async fn pods_are_spread_over_nodes_and_a_cordoned_node_gets_none() {
    let cluster = cluster().await;
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(cluster.client.clone());
    nodes.cordon("n2").await.unwrap();
    cluster
        .deployments()
        .create(&PostParams::default(), &deployment(4, json!({})))
        .await
        .unwrap();
    cluster.rolled_out().await;
    let pods: Api<Pod> = Api::default_namespaced(cluster.client.clone());
    let mut on: BTreeMap<String, usize> = BTreeMap::new();
    for pod in pods.list(&ListParams::default()).await.unwrap() {
        *on.entry(pod.spec.unwrap().node_name.unwrap()).or_default() += 1;
    }
    assert_eq!(
        on,
        BTreeMap::from([("n0".to_owned(), 2), ("n1".to_owned(), 2)])
    );
}

#[tokio::test(start_paused = true)]
async fn scaling_changes_the_set_without_a_new_revision() {
    let cluster = cluster().await;
    let api = cluster.deployments();
    api.create(&PostParams::default(), &deployment(2, json!({})))
        .await
        .unwrap();
    cluster.rolled_out().await;
    let scale = Patch::Merge(json!({"spec": {"replicas": 5}}));
    api.patch_scale("web", &PatchParams::default(), &scale)
        .await
        .unwrap();
    let done = cluster.rolled_out().await;
    assert_eq!(done.status.unwrap().available_replicas, Some(5));
    assert_eq!(
        done.metadata.annotations.unwrap()["deployment.kubernetes.io/revision"],
        "1"
    );
}

#[tokio::test(start_paused = true)]
async fn a_deployment_that_makes_no_progress_says_so_after_its_deadline() {
    let server = server();
    let client = server.client(&Identity::admin());
    let controllers = server.run_controllers(&ControllerOptions::default());
    let api: Api<Deployment> = Api::default_namespaced(client);
    let mut stuck = deployment(1, json!({}));
    stuck.spec.as_mut().unwrap().progress_deadline_seconds = Some(30);
    api.create(&PostParams::default(), &stuck).await.unwrap();
    tokio::time::sleep(Duration::from_secs(40)).await;
    let conditions = api
        .get("web")
        .await
        .unwrap()
        .status
        .unwrap()
        .conditions
        .unwrap();
    let progressing = conditions
        .iter()
        .find(|one| one.type_ == "Progressing")
        .unwrap();
    assert_eq!(
        progressing.reason.as_deref(),
        Some("ProgressDeadlineExceeded")
    );
    drop(controllers);
}
