//! What must hold at the end of every scenario, whatever it is about (FC-103). Rules over the cloud's log are pure and
//! live with the cloud; here they get the facts of this world.

use super::{World, eventually, witness::SeenService};
use crate::controlplane::INSTALL_ID;
use anyhow::{Context, Result, ensure};
use e2e_cloud::{
    assertions::{
        PodSpan, deregistered_first, groups_with, reused_early, without_owner, writes_after,
        zero_healthy,
    },
    engine::{Event, Mode, Tags},
};
use e2e_fabric::{Drop, DropReason, Fabric};
use e2e_kubelet::PodStep;
use k8s_openapi::api::core::v1::Service;
use kube::{Api, ResourceExt, api::ListParams};
use onehop_core::time::Time;
use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

/// Tag of our install, and tag that names the Service, as provider local writes them.
const INSTALL: (&str, &str) = ("onehop.dev/install", INSTALL_ID);
const OWNER: &str = "onehop.dev/service";
const OWNER_UID: &str = "onehop.dev/service-uid";
/// Who writes to the API server for us.
const OUR_ACCOUNTS: &str = "system:serviceaccount:onehop-system:";
/// How long nothing may be written until a world counts as at rest, and how long it may take to come there.
const REST: Duration = Duration::from_secs(1);
const REST_WITHIN: Duration = Duration::from_mins(1);
/// How long a pod may be ready until the controller must have acted on it (FC-103 (5)).
const NOTICE: Duration = Duration::from_secs(3);
/// How long what belongs to a deleted Service may stay: drain time, kept groups and a retry.
const CLEANED_WITHIN: Duration = Duration::from_secs(30);

impl World {
    /// What every scenario's end looks for, in the order in which it can be seen.
    pub(super) async fn check(&self, expected: impl Fn(&Drop) -> bool) -> Result<()> {
        self.no_leftovers().await?;
        self.at_rest(REST_WITHIN).await?;
        self.check_logs(expected)
    }

    /// No address had two owners, nothing that a node sent had a source that is not its own, and no pod got an address
    /// while a target with it was still in use. Every Service kept a healthy target while a pod of it was ready, and
    /// registered before it deregistered.
    fn check_logs(&self, expected: impl Fn(&Drop) -> bool) -> Result<()> {
        let violations = self.cloud.violations();
        ensure!(violations.is_empty(), "the cloud saw: {violations:?}");
        let mut drops = self.fabric.router().drops();
        drops.retain(|d| d.reason == DropReason::SrcCheckDrop && !expected(d));
        ensure!(
            drops.is_empty(),
            "the fabric's source check dropped: {drops:#?}"
        );
        let nodes = self.nodes.iter();
        let nobody: Vec<_> = nodes.flat_map(e2e_fabric::NodeNet::drops).collect();
        ensure!(
            nobody.is_empty(),
            "FC-29c: nodes got packets for load balancer addresses that nobody on them forwards: {nobody:#?}"
        );
        let events = self.cloud.events_after(0, usize::MAX);
        let reused = reused_early(&events, &self.addresses_given());
        ensure!(
            reused.is_empty(),
            "addresses were given to pods while targets with them were in use: {reused:?}"
        );
        let spans = self.journal.ready_spans(&self.zones);
        for service in self.witness.services() {
            let of_it = spans.iter();
            let of_it = of_it.filter(|(uid, _)| self.witness.selects(&service, uid));
            let pods: Vec<PodSpan> = of_it.map(|(_, span)| span.clone()).collect();
            self.check_service(&service, &pods, &events)?;
        }
        Ok(())
    }

    fn check_service(
        &self,
        service: &SeenService,
        pods: &[PodSpan],
        events: &[Arc<Event>],
    ) -> Result<()> {
        let end = service.until.unwrap_or_else(|| self.clock.now());
        let tags = [(OWNER, &service.key), (OWNER_UID, &service.uid)];
        let tags = tags.map(|(key, value)| (key.to_owned(), value.clone()));
        let groups = groups_with(events, &Tags::from(tags));
        let all: BTreeSet<_> = groups.iter().map(|group| group.id.clone()).collect();
        let gaps = zero_healthy(events, &all, pods, end);
        ensure!(
            gaps.is_empty(),
            "FC-103 (1): Service {} had no healthy target while a pod was ready: {gaps:?}",
            service.key
        );
        let of_pods = groups.into_iter().filter(|group| group.mode == Mode::Pod);
        let of_pods = of_pods.map(|group| group.id).collect();
        let early = deregistered_first(events, &of_pods, pods, NOTICE, end);
        ensure!(
            early.is_empty(),
            "FC-103 (5): targets of Service {} were deregistered before those that replace them were registered: {early:?}",
            service.key
        );
        Ok(())
    }

    /// FC-103 (6): nothing changes any more, so our programs come to write nothing any more, neither to the cloud nor
    /// to the API server. Leases are renewed all the same.
    pub async fn at_rest(&self, within: Duration) -> Result<()> {
        let mut requests = self.audit()?;
        let deadline = self.clock.now() + within;
        loop {
            let before = self.cloud.look(|engine| engine.log().last());
            self.clock.sleep(REST).await;
            let mut to_api = requests.writes()?;
            to_api.retain(|w| w.user.starts_with(OUR_ACCOUNTS) && w.resource != "leases");
            let to_cloud = writes_after(&self.cloud.events_after(before, usize::MAX), before);
            if to_api.is_empty() && to_cloud.is_empty() {
                return Ok(());
            }
            ensure!(
                self.clock.now() < deadline,
                "FC-103 (6): nothing changes, and our programs go on to write: {to_api:?}, {to_cloud:?}"
            );
        }
    }

    /// Addresses of the pod network, each with the time at which a pod got it.
    fn addresses_given(&self) -> Vec<(IpAddr, Time)> {
        let given = self.journal.events().into_iter();
        let given = given.filter_map(|event| match event.step {
            PodStep::Created { address } if Fabric::CLUSTER_CIDR.contains(&address) => {
                Some((IpAddr::V4(address), event.at))
            }
            _ => None,
        });
        given.collect()
    }

    /// Waits until no cloud object of our install is left whose Service is gone.
    async fn no_leftovers(&self) -> Result<()> {
        let services: Api<Service> = Api::all(self.kube());
        let install = Tags::from([(INSTALL.0.to_owned(), INSTALL.1.to_owned())]);
        let what = "no cloud object is left without its Service";
        eventually(&self.clock, what, CLEANED_WITHIN, async || {
            let all = services.list(&ListParams::default()).await;
            let name =
                |s: &Service| format!("{}/{}", s.namespace().unwrap_or_default(), s.name_any());
            let all = all.map_err(|e| e.to_string())?;
            let owners: BTreeSet<_> = all.iter().map(name).collect();
            let inventory = self.cloud.look(e2e_cloud::engine::Engine::inventory);
            match without_owner(&inventory, &install, OWNER, &owners).as_slice() {
                [] => Ok(()),
                left => Err(format!("{left:?}")),
            }
        })
        .await
        .context("FC-103 (7)")
    }
}
