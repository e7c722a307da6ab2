//! Objects in the API server, as scenarios need them: apply a manifest, wait for a pod, roll a Deployment.

use super::{Cluster, Family, wait::eventually};
use anyhow::{Context, Result};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Pod, Service, ServiceAccount},
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use onehop_core::service::PROXY_NAME_LABEL;
use onehop_runtime::clock::Clock;
use serde_json::{Value, json};
use std::time::Duration;

/// Who scenarios write as.
const MANAGER: &str = "scenario";

/// Whether the Services that scenarios write carry the label which gives them to our agents beside a kube-proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProxyLabel {
    /// As the manifest says.
    #[default]
    AsWritten,
    /// Removed: every Service is the node's own proxy's, whoever that is.
    Removed,
}

/// Objects of one world.
#[derive(Clone)]
pub struct Objects {
    client: Client,
    clock: Clock,
    label: ProxyLabel,
    family: Family,
}

impl Objects {
    pub(crate) fn new(client: Client, clock: Clock) -> Self {
        Self {
            client,
            clock,
            label: ProxyLabel::AsWritten,
            family: Family::V4,
        }
    }

    /// The same objects, by manifests whose Services are treated as the cluster says.
    pub(super) fn of(self, cluster: Cluster) -> Self {
        Self {
            label: cluster.label,
            family: cluster.family,
            ..self
        }
    }

    /// Namespaced objects of a type in `default`.
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Applies a manifest (server side, forced).
    pub async fn apply(&self, manifest: Value) -> Result<DynamicObject> {
        let (api, object) = self.dynamic(manifest)?;
        let name = object.name_any();
        let patch = PatchParams::apply(MANAGER).force();
        api.patch(&name, &patch, &Patch::Apply(&object))
            .await
            .with_context(|| format!("apply {name}"))
    }

    /// Applies a manifest in YAML.
    pub async fn apply_yaml(&self, manifest: &str) -> Result<DynamicObject> {
        self.apply(serde_saphyr::from_str(manifest).context("read a manifest")?)
            .await
    }

    /// Creates an object.
    pub async fn create(&self, manifest: Value) -> Result<DynamicObject> {
        let (api, object) = self.dynamic(manifest)?;
        api.create(&PostParams::default(), &object)
            .await
            .with_context(|| format!("create {}", object.name_any()))
    }

    /// A Service of `default`.
    pub async fn service(&self, name: &str) -> Result<Service> {
        self.api::<Service>()
            .get(name)
            .await
            .with_context(|| format!("get Service {name}"))
    }

    /// Asks for a Service's deletion.
    pub async fn delete_service(&self, name: &str) -> Result<()> {
        self.api::<Service>()
            .delete(name, &DeleteParams::default())
            .await
            .with_context(|| format!("delete Service {name}"))?;
        Ok(())
    }

    /// Waits until a pod has the Ready condition.
    pub async fn pod_ready(&self, namespace: &str, name: &str, within: Duration) -> Result<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        eventually(
            &self.clock,
            &format!("pod {name} is ready"),
            within,
            async || {
                let pod = pods.get(name).await.map_err(|e| e.to_string())?;
                let conditions = pod
                    .status
                    .as_ref()
                    .and_then(|s| s.conditions.clone())
                    .unwrap_or_default();
                if conditions
                    .iter()
                    .any(|c| c.type_ == "Ready" && c.status == "True")
                {
                    Ok(pod)
                } else {
                    Err(format!("{conditions:?}"))
                }
            },
        )
        .await
    }

    /// Waits until a Deployment's rollout is complete, as `kubectl rollout status` judges it, and its old pods are gone.
    pub async fn rolled_out(&self, name: &str, within: Duration) -> Result<()> {
        let (deployments, pods) = (self.api::<Deployment>(), self.api::<Pod>());
        let of_it = ListParams::default().labels(&format!("app={name}"));
        eventually(
            &self.clock,
            &format!("Deployment {name} is rolled out"),
            within,
            async || {
                let deployment = deployments.get(name).await.map_err(|e| e.to_string())?;
                let wanted = deployment
                    .spec
                    .as_ref()
                    .and_then(|s| s.replicas)
                    .unwrap_or(1);
                let generation = deployment.metadata.generation;
                let status = deployment.status.unwrap_or_default();
                let all = [
                    status.replicas,
                    status.updated_replicas,
                    status.ready_replicas,
                    status.available_replicas,
                ];
                let pods = pods
                    .list(&of_it)
                    .await
                    .map_err(|e| e.to_string())?
                    .items
                    .len();
                let settled = status.observed_generation >= generation
                    && all.iter().all(|n| *n == Some(wanted));
                if settled && usize::try_from(wanted) == Ok(pods) {
                    Ok(())
                } else {
                    Err(format!("{pods} pods, {status:?}"))
                }
            },
        )
        .await
    }

    /// Starts a rollout as `kubectl rollout restart` does.
    pub async fn restart(&self, name: &str) -> Result<()> {
        let stamp = self.clock.now().as_millis().to_string();
        let patch = json!({"spec": {"template": {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": stamp}}}}});
        self.api::<Deployment>()
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .context("restart")?;
        Ok(())
    }

    /// Waits until a namespace has a `ServiceAccount`.
    pub(crate) async fn account_exists(
        &self,
        namespace: &str,
        name: &str,
        within: Duration,
    ) -> Result<()> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        let what = format!("namespace {namespace} has the ServiceAccount {name}");
        eventually(&self.clock, &what, within, async || {
            let found = accounts.get(name).await;
            found.map(drop).map_err(|e| e.to_string())
        })
        .await
    }

    /// Waits until a kind of ours is served, as it is some time after its definition was accepted.
    pub(crate) async fn kind_served(&self, kind: &str, within: Duration) -> Result<()> {
        let kind = GroupVersionKind::gvk("onehop.dev", "v1alpha1", kind);
        let mut resource = ApiResource::from_gvk(&kind);
        if kind.kind == "NodeTargets" {
            // A plural already.
            "nodetargets".clone_into(&mut resource.plural);
        }
        let all: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let what = format!("{} are served", resource.plural);
        eventually(&self.clock, &what, within, async || {
            let list = all.list(&ListParams::default().limit(1)).await;
            list.map(drop).map_err(|e| e.to_string())
        })
        .await
    }

    fn dynamic(&self, mut manifest: Value) -> Result<(Api<DynamicObject>, DynamicObject)> {
        if manifest["kind"] == "Service" && manifest["spec"]["ipFamilies"].is_null() {
            manifest["spec"]["ipFamilies"] = json!([self.family.word()]);
        }
        if self.label == ProxyLabel::Removed
            && manifest["kind"] == "Service"
            && let Some(labels) = manifest["metadata"]["labels"].as_object_mut()
        {
            labels.remove(PROXY_NAME_LABEL);
        }
        let object: DynamicObject = serde_json::from_value(manifest).context("read a manifest")?;
        let types = object.types.clone().context("the manifest has no kind")?;
        let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types)?);
        let api = match object.namespace() {
            Some(namespace) => Api::namespaced_with(self.client.clone(), &namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        };
        Ok((api, object))
    }
}
