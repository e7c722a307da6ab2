//! The kubelet's writes to its pods: status and final deletion, never of another pod of the same name.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Client, ResourceExt};
use onehop_core::time::Time;
use serde_json::json;

use crate::events::PodRef;
use crate::status::Facts;

pub(crate) struct PodApi {
    api: Api<Pod>,
    name: String,
    uid: String,
    // The newest object that the watch or an own write has shown.
    current: Arc<Pod>,
    gone: bool,
}

impl PodApi {
    pub(crate) fn new(client: &Client, pod: &PodRef, object: Arc<Pod>) -> Self {
        Self {
            api: Api::namespaced(client.clone(), &pod.namespace),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            current: object,
            gone: false,
        }
    }

    /// The status as the server has it, as far as known.
    pub(crate) fn status(&self) -> PodStatus {
        self.current.status.clone().unwrap_or_default()
    }

    /// Takes an object from the watch, unless an own write has already seen a newer one.
    pub(crate) fn observe(&mut self, pod: Arc<Pod>) {
        if version(&pod) >= version(&self.current) {
            self.current = pod;
        }
    }

    /// Writes the status that the facts amount to, if the server's differs. The write is tied to the version it was
    /// made from, so that conditions of others written meanwhile are never lost.
    pub(crate) async fn write_status(
        &mut self,
        facts: &Facts,
        now: Time,
    ) -> Result<(), kube::Error> {
        for _ in 0..5 {
            let last = self.status();
            let wanted = facts.status(&last, now);
            if self.gone || wanted == last {
                return Ok(());
            }
            let patch = json!({
                "metadata": { "uid": self.uid, "resourceVersion": self.current.resource_version() },
                "status": wanted,
            });
            match self
                .api
                .patch_status(&self.name, &PatchParams::default(), &Patch::Merge(patch))
                .await
            {
                Ok(pod) => {
                    self.current = Arc::new(pod);
                    return Ok(());
                }
                Err(kube::Error::Api(answer)) if answer.code == 409 => self.reload().await?,
                Err(kube::Error::Api(answer)) if answer.code == 404 => self.gone = true,
                Err(error) => return Err(error),
            }
        }
        // Another writer was faster five times; the next change or retry comes soon enough.
        Ok(())
    }

    async fn reload(&mut self) -> Result<(), kube::Error> {
        match self.api.get_opt(&self.name).await? {
            Some(pod) if pod.uid().as_deref() == Some(&self.uid) => self.current = Arc::new(pod),
            _ => self.gone = true,
        }
        Ok(())
    }

    /// Deletes the object for good, if it is still the one with this UID.
    pub(crate) async fn remove(&self, uid: &str) -> Result<(), kube::Error> {
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match self.api.delete(&self.name, &params).await {
            Ok(_) => Ok(()),
            // Gone already, or a successor has the name.
            Err(kube::Error::Api(answer)) if matches!(answer.code, 404 | 409) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn version(pod: &Pod) -> u64 {
    pod.resource_version()
        .and_then(|v| v.parse().ok())
        .unwrap_or(0)
}
