//! Who leads, of two controllers.

use super::{Controller, World};
use crate::chart::NAMESPACE;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;

impl World {
    /// The leader's process and its identity. An error says why there is none.
    pub async fn leader(&self) -> Result<(&Controller, String), String> {
        let leases: Api<Lease> = Api::namespaced(self.kube(), NAMESPACE);
        let lease = leases.get("onehop-controller-e2e").await;
        let lease = lease.map_err(|error| error.to_string())?;
        let holder = lease.spec.and_then(|spec| spec.holder_identity);
        let holder = holder.unwrap_or_default();
        if holder.is_empty() {
            return Err("nobody holds the Lease".to_owned());
        }
        if holder.starts_with("controller-1_") {
            return Ok((&self.controller, holder));
        }
        let second = self
            .second
            .as_ref()
            .ok_or("there is no second controller")?;
        Ok((second, holder))
    }
}
