//! The second look of the mass-removal check (K-33): a fresh list from the API server, some time after
//! the check was raised, has to say the same as the watch.

use std::collections::BTreeSet;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::ListParams;
use onehop_core::endpoint::{Endpoints, SERVICE_NAME_LABEL, Slice};
use onehop_core::id::ServiceKey;
use onehop_core::time::Time;

use onehop_runtime::events::Severity;

use super::memory::Memory;
use super::{Reconciler, lock};
use crate::plan::membership::View;
use crate::plan::{Intent, Provider};

impl<P: Provider> Reconciler<P> {
    /// Notes whether removals wait, and looks again when it is time.
    pub(super) async fn second_look(
        &self,
        intents: &[Intent],
        seen: &P::Observed,
        memory: &mut Memory<P>,
    ) -> Option<Time> {
        let now = self.clock.now();
        memory.view = View::Watched;
        let raised: Vec<_> = intents
            .iter()
            .filter_map(|intent| {
                Some((
                    intent,
                    self.provider.outcome(intent, seen, now).mass_removal?,
                ))
            })
            .collect();
        if raised.is_empty() {
            memory.mass_since = None;
            return None;
        }
        let since = *memory.mass_since.get_or_insert_with(|| {
            self.measures.mass_removals.inc();
            now
        });
        for (intent, removal) in &raised {
            let message = format!(
                "{} of {} targets would leave for no known reason: kept until a fresh list says so",
                removal.leaving, removal.registered
            );
            let service = lock(&self.index).service(&intent.service).cloned();
            let of = memory.services.entry(intent.service.clone()).or_default();
            if let Some(service) = service
                && of.said.is_news("MassRemovalCheck", &message)
            {
                self.tell(
                    &service.spec,
                    Severity::Warning,
                    "MassRemovalCheck",
                    &message,
                );
            }
        }
        let due = since + self.settings.second_look;
        if due > now {
            return Some(due);
        }
        for (intent, _) in &raised {
            if !self.watch_is_right(&intent.service).await {
                memory.mass_since = Some(now);
                return Some(now + self.settings.second_look);
            }
        }
        memory.view = View::Confirmed;
        Some(now)
    }

    async fn watch_is_right(&self, service: &ServiceKey) -> bool {
        let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &service.namespace);
        let params =
            ListParams::default().labels(&format!("{SERVICE_NAME_LABEL}={}", service.name));
        let listed = match api.list(&params).await {
            Ok(listed) => listed,
            Err(error) => {
                tracing::warn!(%service, %error, "no fresh list of endpoints, removals go on waiting");
                return false;
            }
        };
        let slices: Vec<Slice> = listed
            .items
            .iter()
            .filter_map(|s| Some(Slice::read(s).ok()?.0))
            .collect();
        let addresses = |endpoints: &Endpoints| -> BTreeSet<_> {
            endpoints.iter().map(|(_, e)| (e.address, e.port)).collect()
        };
        let watched = lock(&self.index).endpoints(service);
        addresses(&Endpoints::merge(&slices)) == addresses(&watched)
    }
}
