//! The end of an install (C-81): its Services are let go while its controller runs, or after it has gone. Writes to them
//! only where people ask for it by `--yes`.

use std::io::Write;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Service;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client, Resource, ResourceExt};
use onehop_core::crd::{
    AddressPool, INSTALL_LABEL, LoadBalancer, POOL_FINALIZER, ProviderKind, SERVICE_FINALIZER,
    TARGETS_FINALIZER,
};
use onehop_core::id::InstallId;
use onehop_runtime::clock::Clock;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::removal::{Controller, judge};
use super::run::{CliError, POLL, Pair, chosen, failed, is_well, print, with_object};
use super::{Finding, How, Output, State, Which};
use crate::lease::evaluate::Record;
use crate::uninstall::{LeaseName, Removed, all, entries_and_leases, is_held};
use crate::writes::finalizers_patch;

/// Beyond a Lease's duration, for the time that a renewal takes.
const MORE: Duration = Duration::from_secs(1);

/// The end of an install.
pub(super) struct End {
    pub(super) client: Client,
    pub(super) which: Which,
    pub(super) install: InstallId,
    pub(super) how: Option<How>,
}

impl End {
    /// Whether all is well then.
    pub(super) async fn run(
        &self,
        yes: bool,
        timeout: u32,
        out: &mut (impl Write + Send),
    ) -> Result<bool, CliError> {
        let leases = self.leases().await?;
        let controller = match self.how {
            None => Controller::Gone,
            Some(_) => self.controller(&leases).await?,
        };
        let concerns = |service: &Service, object: Option<&LoadBalancer>| {
            is_held(service, object, &self.install)
        };
        let pairs = chosen(&self.client, &self.which, concerns).await?;
        let judge = |pair: &Pair| self.judge(pair, &controller);
        let mut findings: Vec<Finding> = pairs.iter().map(judge).collect();
        if yes {
            for (pair, finding) in pairs.iter().zip(&mut findings) {
                if finding.state == State::Ready {
                    finding.state = self.let_go(pair).await?;
                }
            }
            self.wait(&pairs, &mut findings, &controller, timeout)
                .await?;
        }
        let none = format!(
            "No Service holds a load balancer of install {}.",
            self.install
        );
        print(out, self.which.output, &findings, &none)?;
        let text = self.which.output == Output::Text;
        let ends = self.ends_all(&controller) && is_well(&findings);
        if yes && ends {
            let removed = self.clean_up(&leases).await?;
            if text {
                writeln!(out, "{}", words(&removed))?;
            }
        }
        let ready = findings.iter().any(|f| f.state == State::Ready);
        if text && !yes && (ready || ends) {
            if ends {
                let rest = "the install's entries of NodeTargets, its Leases";
                writeln!(out, "Once no Service holds anything: remove {rest}.")?;
            }
            writeln!(out, "Nothing was done: give --yes to do it.")?;
        }
        let done = |f: &Finding| f.state == State::LetGo || timeout == 0;
        Ok(is_well(&findings) && (!yes || findings.iter().all(done)))
    }

    /// Whether this is the end of all that the install has: of every Service, without a controller.
    fn ends_all(&self, controller: &Controller) -> bool {
        let all = self.which.all_namespaces && self.how == Some(How::Keep);
        all && *controller == Controller::Gone
    }

    fn judge(&self, (service, object): &Pair, controller: &Controller) -> Finding {
        judge(
            (service, object.as_ref()),
            &self.install,
            self.how,
            controller,
        )
    }

    async fn leases(&self) -> Result<Vec<Lease>, CliError> {
        let api: Api<Lease> = Api::all(self.client.clone());
        let ours = ListParams::default().labels(&format!("{INSTALL_LABEL}={}", self.install));
        let list = api.list(&ours).await.map_err(failed("list Leases"))?;
        Ok(list.items)
    }

    /// Whether somebody renews one of the Leases. Its times are another clock's, so that is seen, not calculated.
    async fn controller(&self, leases: &[Lease]) -> Result<Controller, CliError> {
        let clock = Clock::system();
        for lease in leases {
            let seen = Record::from(lease);
            let Some(holder) = seen.holder.clone() else {
                continue;
            };
            let (namespace, name) = place(lease);
            let api: Api<Lease> = Api::namespaced(self.client.clone(), &namespace);
            let until = clock.now() + seen.duration + MORE;
            while clock.now() < until {
                clock.sleep(POLL).await;
                let tried = format!("read Lease {namespace}/{name}");
                let now = api.get_opt(&name).await.map_err(failed(tried))?;
                let now = now.as_ref().map(Record::from);
                match now {
                    Some(now) if now.holder.is_some() && now != seen => {
                        let who = format!("Lease {namespace}/{name} is held by {holder}");
                        return Ok(Controller::Runs(who));
                    }
                    Some(now) if now.holder.is_some() => {}
                    _ => break,
                }
            }
        }
        Ok(Controller::Gone)
    }

    async fn let_go(&self, (service, object): &Pair) -> Result<State, CliError> {
        let (namespace, name) = (service.namespace().unwrap_or_default(), service.name_any());
        let api: Api<Service> = Api::namespaced(self.client.clone(), &namespace);
        let tried = |what: &str| failed(format!("{what} Service {namespace}/{name}"));
        match self.how {
            None => return Ok(State::Held),
            Some(How::Delete) => {
                let params = DeleteParams {
                    preconditions: Some(Preconditions {
                        uid: service.uid(),
                        resource_version: None,
                    }),
                    ..DeleteParams::default()
                };
                let deleted = api.delete(&name, &params).await;
                deleted.map(drop).map_err(tried("delete"))?;
            }
            Some(How::Convert) => {
                // What only a load balancer may have.
                let spec = json!({
                    "type": "ClusterIP", "loadBalancerClass": null, "loadBalancerSourceRanges": null,
                    "allocateLoadBalancerNodePorts": null, "externalTrafficPolicy": null,
                });
                let patch = json!({ "metadata": { "uid": service.uid() }, "spec": spec });
                let patch = Patch::Merge(patch);
                let params = PatchParams::default();
                let converted = api.patch(&name, &params, &patch).await;
                converted.map(drop).map_err(tried("convert"))?;
            }
            Some(How::Keep) => {
                strip(&api, service, SERVICE_FINALIZER).await?;
                if let Some(object) = object {
                    let api = Api::<LoadBalancer>::namespaced(self.client.clone(), &namespace);
                    strip(&api, object, TARGETS_FINALIZER).await?;
                }
                return Ok(State::LetGo);
            }
        }
        Ok(State::UnderWay)
    }

    /// Waits until the controller has let all of them go.
    async fn wait(
        &self,
        pairs: &[Pair],
        findings: &mut [Finding],
        controller: &Controller,
        timeout: u32,
    ) -> Result<(), CliError> {
        let clock = Clock::system();
        let deadline = clock.now() + Duration::from_secs(timeout.into());
        let waits = |f: &Finding| f.state == State::UnderWay;
        while findings.iter().any(waits) && clock.now() < deadline {
            clock.sleep(POLL).await;
            for ((service, _), finding) in pairs.iter().zip(&mut *findings) {
                if !waits(finding) {
                    continue;
                }
                let api = Api::<Service>::namespaced(self.client.clone(), &finding.namespace);
                let tried = format!("read Service {}/{}", finding.namespace, finding.name);
                let now = api.get_opt(&finding.name).await.map_err(failed(tried))?;
                *finding = match now.filter(|now| now.uid() == service.uid()) {
                    Some(now) => {
                        let pair = with_object(&self.client, now).await?;
                        self.judge(&pair, controller)
                    }
                    None => Finding {
                        state: State::LetGo,
                        steps: Vec::new(),
                        ..finding.clone()
                    },
                };
            }
        }
        Ok(())
    }

    /// What only a controller would let go, when there is none any more.
    async fn clean_up(&self, leases: &[Lease]) -> Result<Removed, CliError> {
        let balancers: Vec<LoadBalancer> = all(&self.client, "LoadBalancers").await?;
        let ours = |balancer: &&LoadBalancer| {
            balancer.labels().get(INSTALL_LABEL).map(String::as_str) == Some(self.install.as_str())
        };
        let (ours, others): (Vec<_>, Vec<_>) = balancers.iter().partition(ours);
        for balancer in ours {
            let namespace = balancer.namespace().unwrap_or_default();
            let api = Api::<LoadBalancer>::namespaced(self.client.clone(), &namespace);
            strip(&api, balancer, TARGETS_FINALIZER).await?;
        }
        // Pools are those of all installs of provider local.
        if !others
            .iter()
            .any(|o| o.spec.provider == ProviderKind::Local)
        {
            let pools: Vec<AddressPool> = all(&self.client, "AddressPools").await?;
            for pool in &pools {
                strip(&Api::all(self.client.clone()), pool, POOL_FINALIZER).await?;
            }
        }
        let leases: Vec<LeaseName> = leases.iter().map(place).collect();
        let clock = Clock::system();
        Ok(entries_and_leases(&self.client, &self.install, &leases, clock).await?)
    }
}

fn place(lease: &Lease) -> LeaseName {
    (lease.namespace().unwrap_or_default(), lease.name_any())
}

fn words(removed: &Removed) -> String {
    let Removed {
        objects,
        entries,
        leases,
    } = removed;
    format!(
        "Removed: {objects} NodeTargets, the install's entry in {entries} more, {leases} Leases. Rules on nodes go by \
         onehop-node-agent --cleanup."
    )
}

/// Takes a finalizer off an object, if it has it.
async fn strip<K>(api: &Api<K>, object: &K, finalizer: &str) -> Result<(), CliError>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let old = object.finalizers();
    if !old.iter().any(|f| f == finalizer) {
        return Ok(());
    }
    let keep: Vec<_> = old.iter().filter(|f| *f != finalizer).collect();
    let operations = finalizers_patch(&object.meta().uid, old, &keep);
    let name = object.name_any();
    let patch: Patch<()> = Patch::Json(serde_json::from_value(operations)?);
    match api.patch(&name, &PatchParams::default(), &patch).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        stripped => {
            let tried = format!("take {finalizer} off {} {name}", K::kind(&()));
            stripped.map(drop).map_err(failed(tried))
        }
    }
}
