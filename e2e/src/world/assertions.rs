//! What must hold at the end of every scenario, whatever it is about (FC-103). Rules over the cloud's log are pure and
//! live with the cloud; here they get the facts of this world.

use super::{World, eventually};
use anyhow::{Context, Result, ensure};
use e2e_cloud::{
    assertions::{reused_early, without_owner},
    engine::Tags,
};
use e2e_fabric::{Drop, DropReason, Fabric};
use e2e_kubelet::PodStep;
use k8s_openapi::api::core::v1::Service;
use kube::{Api, ResourceExt, api::ListParams};
use onehop_core::time::Time;
use std::{collections::BTreeSet, net::IpAddr, time::Duration};

/// Tag of our install, and tag that names the Service, as provider local writes them.
const INSTALL: (&str, &str) = ("onehop.dev/install", "e2e");
const OWNER: &str = "onehop.dev/service";
/// How long what belongs to a deleted Service may stay: drain time, kept groups and a retry.
const CLEANED_WITHIN: Duration = Duration::from_secs(30);

impl World {
    /// No address had two owners, nothing that a node sent had a source that is not its own, and no pod got an address
    /// while a target with it was still in use.
    pub(super) fn check(&self, expected: impl Fn(&Drop) -> bool) -> Result<()> {
        let violations = self.cloud.violations();
        ensure!(violations.is_empty(), "the cloud saw: {violations:?}");
        let mut drops = self.fabric.router().drops();
        drops.retain(|d| d.reason == DropReason::SrcCheckDrop && !expected(d));
        ensure!(
            drops.is_empty(),
            "the fabric's source check dropped: {drops:#?}"
        );
        let events = self.cloud.events_after(0, usize::MAX);
        let reused = reused_early(&events, &self.addresses_given());
        ensure!(
            reused.is_empty(),
            "addresses were given to pods while targets with them were in use: {reused:?}"
        );
        Ok(())
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
    pub async fn no_leftovers(&self) -> Result<()> {
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
