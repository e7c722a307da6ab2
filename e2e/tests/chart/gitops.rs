//! Services in Git: applied as Argo CD and Flux apply (server side, by merge), healed, pruned and replaced, with the
//! controller at work, on both control planes. No field of ours fights with theirs, and a second sync finds no difference.

use crate::user::{User, said};
use anyhow::{Context, Result, ensure};
use k8s_openapi::{api::core::v1::Service, apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry};
use onehop_e2e::{
    controlplane::{BackEnd, OnLoopback},
    world::{Cluster, ServiceManifest, World, WorldConfig, eventually},
};
use serde_json::{Value, json};
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(30);
/// As Argo CD applies with `ServerSideApply=true`.
const SYNC: [&str; 6] = [
    "apply",
    "--server-side",
    "--force-conflicts",
    "--field-manager=argocd-controller",
    "-f",
    "-",
];
/// As a three-way merge.
const MERGE: [&str; 3] = ["apply", "-f", "-"];
const TARGET: &str = "onehop.dev/target";
const CONDITION: &str = "onehop.dev/LoadBalancerReady";

struct Site {
    world: World,
    user: User,
    _open: OnLoopback,
}

impl Site {
    async fn start(back_end: BackEnd) -> Result<Self> {
        let config = WorldConfig {
            cluster: Cluster::on(back_end),
            ..WorldConfig::default()
        };
        let world = World::start(config).await?;
        let (open, kubeconfig) = world.on_loopback()?;
        let user = User {
            kubeconfig,
            home: world.folder().to_owned(),
        };
        Ok(Self {
            world,
            user,
            _open: open,
        })
    }

    /// The Service once the controller has dealt with what it says now.
    async fn settled(&self, name: &str, well: bool) -> Result<Service> {
        let what = format!("{name} is dealt with, well: {well}");
        eventually(&self.world.clock, &what, WITHIN, async || {
            let service = self.world.objects.service(name).await;
            let service = service.map_err(|e| e.to_string())?;
            let conditions = service.status.as_ref().and_then(|s| s.conditions.as_ref());
            let ours = conditions
                .into_iter()
                .flatten()
                .find(|c| c.type_ == CONDITION);
            let wanted = if well { "True" } else { "False" };
            match ours {
                Some(condition) if condition.status == wanted => Ok(service),
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }

    /// Who applied the Service, which fields, and when: what a sync that finds a difference changes.
    async fn applied(&self, name: &str) -> Result<Vec<ManagedFieldsEntry>> {
        let metadata = self.world.objects.service(name).await?.metadata;
        let mut all = metadata.managed_fields.unwrap_or_default();
        all.retain(|entry| {
            let manager = entry.manager.as_deref().unwrap_or_default();
            ["argocd-controller", "kubectl-client-side-apply"].contains(&manager)
        });
        Ok(all)
    }

    /// A second sync of the same changes nothing.
    async fn in_sync(&self, args: &[&str], manifest: &Value, name: &str) -> Result<()> {
        let before = self.applied(name).await?;
        ensure!(!before.is_empty(), "nobody applied {name}");
        self.user
            .kubectl(args, std::slice::from_ref(manifest))
            .await?;
        let after = self.applied(name).await?;
        ensure!(before == after, "C-11: {before:?} {after:?}");
        Ok(())
    }
}

fn web(name: &str) -> ServiceManifest {
    ServiceManifest::load_balancer(name, "nobody")
}

/// What a user wrote and what is there now, without what the API server adds.
fn keeps(service: &Service, manifest: &Value) -> Result<()> {
    let now = serde_json::to_value(service)?;
    for field in ["annotations", "labels"] {
        let written = manifest["metadata"][field].as_object();
        for (key, value) in written.into_iter().flatten() {
            ensure!(now["metadata"][field][key] == *value, "{key}: {now}");
        }
    }
    Ok(())
}

/// C-01, C-07, C-08, C-11, C-T10 and C-T11: an annotation is added, mistyped, reverted and removed in Git.
async fn synced(back_end: BackEnd) -> Result<()> {
    let site = Site::start(back_end).await?;
    let plain = web("web").json();
    site.user
        .kubectl(&SYNC, std::slice::from_ref(&plain))
        .await?;
    let address = site.world.lb_address("web").await?;
    site.settled("web", true).await?;
    site.in_sync(&SYNC, &plain, "web").await?;
    let added = web("web").annotated(TARGET, "pod").json();
    let wrong = web("web").annotated(TARGET, "pods").json();
    for (manifest, well) in [
        (&added, true),
        (&wrong, false),
        (&added, true),
        (&plain, true),
    ] {
        site.user
            .kubectl(&SYNC, std::slice::from_ref(manifest))
            .await?;
        let service = site.settled("web", well).await?;
        keeps(&service, manifest)?;
        ensure!(
            site.world.lb_address("web").await? == address,
            "C-08, C-T10"
        );
        site.in_sync(&SYNC, manifest, "web").await?;
    }
    // Somebody's edit is healed, and ours is none of it.
    let edit = [
        "patch",
        "service",
        "web",
        "--type=merge",
        "-p",
        r#"{"spec":{"ports":[{"name":"odd","port":99}]}}"#,
    ];
    site.user.kubectl(&edit, &[]).await?;
    site.user
        .kubectl(&SYNC, std::slice::from_ref(&plain))
        .await?;
    let service = site.settled("web", true).await?;
    let ports = service.spec.and_then(|spec| spec.ports).unwrap_or_default();
    ensure!(ports.iter().any(|port| port.port == 80), "{ports:?}");
    ensure!(site.world.lb_address("web").await? == address);
    pruned(&site, "web").await?;
    site.world.end().await
}

/// C-01 and C-11: the same by a three-way merge, as kubectl and older tools apply.
async fn merged(back_end: BackEnd) -> Result<()> {
    let site = Site::start(back_end).await?;
    let plain = web("web").json();
    let added = web("web").annotated(TARGET, "pod").json();
    for manifest in [&plain, &added, &plain] {
        site.user
            .kubectl(&MERGE, std::slice::from_ref(manifest))
            .await?;
        let service = site.settled("web", true).await?;
        let target = service.metadata.annotations.unwrap_or_default();
        ensure!(
            target.contains_key(TARGET) == (manifest == &added),
            "{target:?}"
        );
        ensure!(
            service.metadata.finalizers.unwrap_or_default() == ["onehop.dev/load-balancer"],
            "a merge leaves our finalizer alone"
        );
        site.in_sync(&MERGE, manifest, "web").await?;
    }
    pruned(&site, "web").await?;
    site.world.end().await
}

/// L-40: a class is changed by making the Service anew, and refused otherwise.
async fn class_changed(back_end: BackEnd) -> Result<()> {
    let site = Site::start(back_end).await?;
    let ours = web("web").json();
    site.user
        .kubectl(&SYNC, std::slice::from_ref(&ours))
        .await?;
    site.world.lb_address("web").await?;
    let other = web("web")
        .with("loadBalancerClass", json!("example.com/other"))
        .json();
    let refused = site.user.run("kubectl", &SYNC, &other.to_string()).await?;
    ensure!(!refused.status.success(), "{}", said(&refused));
    ensure!(
        said(&refused).contains("loadBalancerClass"),
        "{}",
        said(&refused)
    );
    let replace = ["replace", "--force", "-f", "-"];
    site.user
        .kubectl(&replace, std::slice::from_ref(&other))
        .await?;
    let service = site.world.objects.service("web").await?;
    ensure!(
        service.metadata.finalizers.unwrap_or_default().is_empty(),
        "left to its owner"
    );
    site.user
        .kubectl(&replace, std::slice::from_ref(&ours))
        .await?;
    site.world.lb_address("web").await?;
    pruned(&site, "web").await?;
    site.world.end().await
}

/// Taken out of Git: in the foreground, as Argo CD prunes. It ends, with everything that was ours.
async fn pruned(site: &Site, name: &str) -> Result<()> {
    let delete = [
        "delete",
        "service",
        name,
        "--cascade=foreground",
        "--timeout=60s",
    ];
    site.user.kubectl(&delete, &[]).await.context("prune")?;
    let left = ["get", "loadbalancers.onehop.dev", "-A", "-o", "name"];
    eventually(
        &site.world.clock,
        "its LoadBalancer goes too",
        WITHIN,
        async || match site.user.kubectl(&left, &[]).await {
            Ok(names) if names.is_empty() => Ok(()),
            other => Err(format!("{other:?}")),
        },
    )
    .await
}

macro_rules! on {
    ($module:ident, $back_end:expr) => {
        mod $module {
            use super::*;

            #[tokio::test(flavor = "multi_thread")]
            async fn c01_c07_c08_c11_ct10_ct11_an_annotation_in_git() -> Result<()> {
                synced($back_end).await
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn c01_c11_a_merge_fights_with_nobody() -> Result<()> {
                merged($back_end).await
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn l40_a_class_is_changed_by_a_new_service() -> Result<()> {
                class_changed($back_end).await
            }
        }
    };
}

on!(embedded, BackEnd::Embedded);
on!(real, BackEnd::Real);
