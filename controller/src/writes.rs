//! Every write to the API server, each one behind the fence. No decisions: what to write comes from
//! `status` and `reconcile`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, Preconditions,
};
use kube::{Api, Client, ResourceExt};
use onehop_core::crd::{
    AddressPool, AddressPoolStatus, LoadBalancer, LoadBalancerStatus, NodeInstall, NodeTargets,
    POOL_FINALIZER, SERVICE_FINALIZER, TARGETS_FINALIZER,
};
use onehop_core::id::{InstallId, NodeName, PodUid, ServiceKey};
use onehop_core::service::ServiceSpec;
use onehop_core::time::Time;
use onehop_runtime::watch::ObjectKey;
use serde::Serialize;
use serde_json::{Value, json};

use crate::lease::{Fence, Fenced};
use crate::plan::gates::Said;

/// The peer's finalizer on its bindings (AWS-123).
const BINDING_FINALIZER: &str = "elbv2.k8s.aws/resources";

/// A write that failed.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// This process may not write.
    #[error(transparent)]
    Fenced(#[from] Fenced),
    /// The API server refused or did not answer.
    #[error("{tried}: {source}")]
    Api {
        /// What was tried, on what.
        tried: String,
        /// What came back.
        source: Box<kube::Error>,
    },
}

impl WriteError {
    /// Whether somebody was faster: the next pass starts from what is there now.
    pub fn is_conflict(&self) -> bool {
        let Self::Api { source, .. } = self else {
            return false;
        };
        matches!(&**source, kube::Error::Api(status) if matches!(status.code, 409 | 422))
    }

    /// Its kind in one word, for logs (C-113): the API server's reason, where that is one.
    pub fn cause(&self) -> &str {
        match self {
            Self::Fenced(_) => "fenced",
            Self::Api { source, .. } => match &**source {
                kube::Error::Api(status) => &status.reason,
                _ => "unreachable",
            },
        }
    }
}

/// Operations that give an object other finalizers, if it is the one that was read and has had no others since.
pub(crate) fn finalizers_patch(
    uid: &impl Serialize,
    old: &(impl Serialize + ?Sized),
    wanted: &(impl Serialize + ?Sized),
) -> Value {
    json!([
        { "op": "test", "path": "/metadata/uid", "value": uid },
        { "op": "test", "path": "/metadata/finalizers", "value": old },
        { "op": "add", "path": "/metadata/finalizers", "value": wanted },
    ])
}

/// Writes as this install.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    fence: Fence,
    manager: String,
}

type Done = Result<(), WriteError>;
type Written<K> = Result<K, WriteError>;

impl Writer {
    /// A writer with this install's field managers.
    pub fn new(client: Client, fence: Fence, install: &InstallId) -> Self {
        Self {
            client,
            fence,
            manager: format!("onehop-{install}"),
        }
    }

    /// Puts our finalizer on a Service (K-03).
    pub async fn add_finalizer(&self, service: &ServiceSpec) -> Written<Service> {
        let mut wanted = service.finalizers.clone();
        wanted.push(SERVICE_FINALIZER.to_owned());
        self.set_finalizers(service, &wanted, "add finalizer").await
    }

    /// Takes our finalizer off a Service.
    pub async fn remove_finalizer(&self, service: &ServiceSpec) -> Done {
        let keep = service
            .finalizers
            .iter()
            .filter(|f| *f != SERVICE_FINALIZER);
        let wanted: Vec<String> = keep.cloned().collect();
        match self
            .set_finalizers(service, &wanted, "remove finalizer")
            .await
        {
            Err(error) if is_gone(&error) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Puts one finalizer in the place of another, in one patch (AWS-129, AWS-130).
    pub async fn swap_finalizers(
        &self,
        service: &ServiceSpec,
        from: &str,
        to: &str,
    ) -> Written<Service> {
        let keep = service.finalizers.iter().filter(|f| *f != from && *f != to);
        let wanted: Vec<String> = keep.cloned().chain([to.to_owned()]).collect();
        let what = format!("put finalizer {to} in place of {from}");
        self.set_finalizers(service, &wanted, &what).await
    }

    /// The peer's bindings of a Service; none where their kind is not served.
    pub async fn bindings(&self, service: &ServiceKey) -> Written<Vec<DynamicObject>> {
        let selector = format!(
            "service.k8s.aws/stack-namespace={},service.k8s.aws/stack-name={}",
            service.namespace, service.name
        );
        let params = ListParams::default().labels(&selector);
        match self.bindings_of(&service.namespace).list(&params).await {
            Ok(list) => Ok(list.items),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
            Err(error) => Err(failed(
                format!("list TargetGroupBindings of {service}"),
                error,
            )),
        }
    }

    /// Removes one of them without the peer's taking its targets away (AWS-129): its finalizer goes first, and the delete
    /// is refused if it is put back in between.
    pub async fn remove_binding(&self, binding: &DynamicObject) -> Done {
        let name = binding.name_any();
        let api = self.bindings_of(&binding.namespace().unwrap_or_default());
        let old = binding.metadata.finalizers.clone().unwrap_or_default();
        let keep: Vec<_> = old.iter().filter(|f| *f != BINDING_FINALIZER).collect();
        let mut version = binding.metadata.resource_version.clone();
        if keep.len() < old.len() {
            let operations = finalizers_patch(&binding.metadata.uid, &old, &keep);
            let what = "remove the finalizer of TargetGroupBinding";
            let stripped: Written<DynamicObject> =
                self.json_patch(api.clone(), &name, operations, what).await;
            match stripped {
                Err(error) if is_gone(&error) => return Ok(()),
                stripped => version = stripped?.metadata.resource_version,
            }
        }
        self.fence.check()?;
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: binding.metadata.uid.clone(),
                resource_version: version,
            }),
            ..DeleteParams::default()
        };
        match api.delete(&name, &params).await {
            Ok(_) => Ok(()),
            Err(error) => {
                let error = failed(format!("delete TargetGroupBinding {name}"), error);
                if is_gone(&error) { Ok(()) } else { Err(error) }
            }
        }
    }

    fn bindings_of(&self, namespace: &str) -> Api<DynamicObject> {
        let kind = ApiResource {
            group: "elbv2.k8s.aws".to_owned(),
            version: "v1beta1".to_owned(),
            api_version: "elbv2.k8s.aws/v1beta1".to_owned(),
            kind: "TargetGroupBinding".to_owned(),
            plural: "targetgroupbindings".to_owned(),
        };
        Api::namespaced_with(self.client.clone(), namespace, &kind)
    }

    async fn set_finalizers(
        &self,
        service: &ServiceSpec,
        wanted: &[String],
        what: &str,
    ) -> Written<Service> {
        let old = if service.finalizers.is_empty() {
            Value::Null
        } else {
            json!(service.finalizers)
        };
        let operations = finalizers_patch(&service.uid, &old, wanted);
        self.json_patch(
            self.services(&service.key),
            &service.key.name,
            operations,
            what,
        )
        .await
    }

    async fn json_patch<K>(
        &self,
        api: Api<K>,
        name: &str,
        operations: Value,
        what: &str,
    ) -> Written<K>
    where
        K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        self.fence.check()?;
        let tried = format!("{what} on {name}");
        let operations = serde_json::from_value(operations)
            .map_err(|e| failed(&tried, kube::Error::SerdeError(e)))?;
        let patch: Patch<()> = Patch::Json(operations);
        api.patch(name, &PatchParams::default(), &patch)
            .await
            .map_err(|e| failed(&tried, e))
    }

    /// Sets one condition of a pod, if it still is that pod (AWS-506); none: it is gone.
    pub async fn pod_condition(
        &self,
        pod: &ObjectKey,
        uid: &PodUid,
        kind: &str,
        said: &Said,
        since: Time,
    ) -> Written<Option<Pod>> {
        self.fence.check()?;
        // Merged by type: other conditions are the kubelet's.
        let body = json!({
            "metadata": { "uid": uid },
            "status": { "conditions": [{
                "type": kind, "status": said.status, "reason": said.reason, "message": said.message,
                "lastTransitionTime": since.whole_seconds(),
            }] },
        });
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let params = PatchParams {
            field_manager: Some(self.manager.clone()),
            ..PatchParams::default()
        };
        let written = api
            .patch_status(&pod.name, &params, &Patch::Strategic(&body))
            .await
            .map_err(|e| failed(format!("set condition {kind} of pod {}", pod.name), e));
        match written {
            Ok(pod) => Ok(Some(pod)),
            // A pod of another UID is a conflict.
            Err(error) if is_gone(&error) || error.is_conflict() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Applies a Service's status, whole.
    pub async fn service_status(&self, service: &ServiceKey, body: &Value) -> Written<Service> {
        self.fence.check()?;
        let params = PatchParams::apply(&self.manager).force();
        let api = self.services(service);
        let written = api
            .patch_status(&service.name, &params, &Patch::Apply(body))
            .await;
        written.map_err(|e| failed(format!("apply status of Service {service}"), e))
    }

    /// Applies a `LoadBalancer` object without its status, whole.
    pub async fn balancer(&self, object: &LoadBalancer) -> Written<LoadBalancer> {
        self.fence.check()?;
        let params = PatchParams::apply(&self.manager).force();
        let (key, api) = self.balancers_of(object);
        let written = api.patch(&key.name, &params, &Patch::Apply(object)).await;
        written.map_err(|e| failed(format!("apply LoadBalancer {key}"), e))
    }

    /// Applies the status of a `LoadBalancer` object, whole.
    pub async fn balancer_status(
        &self,
        object: &LoadBalancer,
        status: &LoadBalancerStatus,
    ) -> Written<LoadBalancer> {
        self.fence.check()?;
        let params = PatchParams::apply(&self.manager).force();
        let (key, api) = self.balancers_of(object);
        let body = json!({
            "apiVersion": "onehop.dev/v1alpha1",
            "kind": "LoadBalancer",
            "metadata": { "name": key.name, "namespace": key.namespace },
            "status": status,
        });
        let written = api
            .patch_status(&key.name, &params, &Patch::Apply(&body))
            .await;
        written.map_err(|e| failed(format!("apply status of LoadBalancer {key}"), e))
    }

    /// Lets a `LoadBalancer` object go: takes our finalizer off and, unless somebody has done so,
    /// deletes it.
    pub async fn release_balancer(&self, object: &LoadBalancer) -> Done {
        let (key, api) = self.balancers_of(object);
        let finalizers = object.metadata.finalizers.clone().unwrap_or_default();
        if finalizers.iter().any(|f| f == TARGETS_FINALIZER) {
            let keep: Vec<_> = finalizers
                .iter()
                .filter(|f| *f != TARGETS_FINALIZER)
                .collect();
            let operations = finalizers_patch(&object.metadata.uid, &finalizers, &keep);
            let what = format!("remove finalizer of LoadBalancer {key}");
            match self
                .json_patch(api.clone(), &key.name, operations, &what)
                .await
            {
                Err(error) if is_gone(&error) => return Ok(()),
                other => drop(other?),
            }
        }
        if object.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        self.fence.check()?;
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: object.metadata.uid.clone(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match api.delete(&key.name, &params).await {
            Ok(_) => Ok(()),
            Err(error) => {
                let error = failed(format!("delete LoadBalancer {key}"), error);
                if is_gone(&error) { Ok(()) } else { Err(error) }
            }
        }
    }

    /// Applies what this install says to the agent of a node, whole.
    pub async fn node_targets(
        &self,
        node: &NodeName,
        entries: &BTreeMap<InstallId, NodeInstall>,
    ) -> Written<NodeTargets> {
        self.fence.check()?;
        let params = PatchParams::apply(&self.manager).force();
        let api: Api<NodeTargets> = Api::all(self.client.clone());
        let body = json!({
            "apiVersion": "onehop.dev/v1alpha1",
            "kind": "NodeTargets",
            "metadata": { "name": node },
            "spec": { "installs": entries },
        });
        let name = node.to_string();
        let written = api.patch(&name, &params, &Patch::Apply(&body)).await;
        written.map_err(|e| failed(format!("apply NodeTargets {node}"), e))
    }

    /// Deletes the `NodeTargets` of a node that is gone.
    pub async fn delete_node_targets(&self, object: &NodeTargets) -> Done {
        self.fence.check()?;
        let api: Api<NodeTargets> = Api::all(self.client.clone());
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: object.metadata.uid.clone(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        let name = object.name_any();
        match api.delete(&name, &params).await {
            Ok(_) => Ok(()),
            Err(error) => {
                let error = failed(format!("delete NodeTargets {name}"), error);
                if is_gone(&error) { Ok(()) } else { Err(error) }
            }
        }
    }

    /// Puts our finalizer on a pool that is used, or takes it off.
    pub async fn pool_finalizer(&self, pool: &AddressPool, on: bool) -> Written<AddressPool> {
        let old = pool
            .metadata
            .finalizers
            .clone()
            .filter(|list| !list.is_empty());
        let others = old.iter().flatten().filter(|f| *f != POOL_FINALIZER);
        let wanted: Vec<_> = others
            .map(String::as_str)
            .chain(on.then_some(POOL_FINALIZER))
            .collect();
        let operations = finalizers_patch(&pool.metadata.uid, &old, &wanted);
        let name = pool.name_any();
        let what = format!("set finalizers of AddressPool {name}");
        self.json_patch(Api::all(self.client.clone()), &name, operations, &what)
            .await
    }

    /// Applies the status of a pool, whole.
    pub async fn pool_status(
        &self,
        pool: &AddressPool,
        status: &AddressPoolStatus,
    ) -> Written<AddressPool> {
        self.fence.check()?;
        let name = pool.name_any();
        let params = PatchParams::apply(&self.manager).force();
        let body = json!({
            "apiVersion": "onehop.dev/v1alpha1",
            "kind": "AddressPool",
            "metadata": { "name": name, "uid": pool.metadata.uid },
            "status": status,
        });
        let api: Api<AddressPool> = Api::all(self.client.clone());
        let written = api.patch_status(&name, &params, &Patch::Apply(&body)).await;
        written.map_err(|e| failed(format!("apply status of AddressPool {name}"), e))
    }

    fn services(&self, key: &ServiceKey) -> Api<Service> {
        Api::namespaced(self.client.clone(), &key.namespace)
    }

    fn balancers_of(&self, object: &LoadBalancer) -> (ServiceKey, Api<LoadBalancer>) {
        let namespace = object.namespace().unwrap_or_default();
        let api = Api::namespaced(self.client.clone(), &namespace);
        (ServiceKey::new(namespace, object.name_any()), api)
    }
}

fn failed(tried: impl Into<String>, source: kube::Error) -> WriteError {
    WriteError::Api {
        tried: tried.into(),
        source: Box::new(source),
    }
}

fn is_gone(error: &WriteError) -> bool {
    let WriteError::Api { source, .. } = error else {
        return false;
    };
    matches!(&**source, kube::Error::Api(status) if status.code == 404)
}
