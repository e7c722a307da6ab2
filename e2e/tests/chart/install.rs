//! The real Helm against a real API server: install, upgrade, roll back and uninstall with the hook, and every rendering
//! and example judged by the server's own strict validation.

use crate::{
    examples::objects,
    sets::{examples, sets},
    user::{User, said},
};
use anyhow::{Context, Result, bail, ensure};
use e2e_fabric::{Fabric, FabricConfig, WorldTag};
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{Pod, Service},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use onehop_core::{crd::NodeTargets, id::InstallId};
use onehop_e2e::{
    chart::{Chart, NAMESPACE, minimal_values},
    controlplane::{Account, BackEnd, ControlPlane, OnLoopback},
    world::{Programs, eventually},
};
use onehop_runtime::clock::Clock;
use serde_json::{Value, json};
use std::{
    path::Path,
    process::{Command, Output},
    time::Duration,
};

const WITHIN: Duration = Duration::from_mins(1);
/// Object types of others, which no server here knows.
const FOREIGN: [&str; 6] = [
    "ServiceMonitor",
    "PodMonitor",
    "PrometheusRule",
    "Application",
    "GitRepository",
    "HelmRelease",
];

/// A real control plane with nothing of ours, and the clients of its users.
pub(crate) struct Site {
    pub(crate) clock: Clock,
    pub(crate) user: User,
    pub(crate) plane: ControlPlane,
    _open: OnLoopback,
    // Last: its end takes every process and namespace with it.
    pub(crate) fabric: Fabric,
}

impl Site {
    pub(crate) async fn start() -> Result<Self> {
        let clock = Clock::system();
        let tag = WorldTag::new()?;
        let folder = std::env::temp_dir().join(format!("onehop-site-{}", tag.as_str()));
        std::fs::create_dir_all(&folder)?;
        let fabric = Fabric::new(tag, FabricConfig::new(clock))?;
        let plane = ControlPlane::bare(BackEnd::Real, &fabric, clock, 1, &folder).await?;
        let (open, kubeconfig) = plane.on_loopback()?;
        let user = User {
            kubeconfig,
            home: folder,
        };
        Ok(Self {
            clock,
            user,
            plane,
            _open: open,
            fabric,
        })
    }

    pub(crate) fn end(self) -> Result<()> {
        self.plane.check()?;
        self.fabric.end()?;
        std::fs::remove_dir_all(&self.user.home).context("remove the folder")
    }

    /// Runs Helm on our release, which has to succeed.
    pub(crate) async fn helm(&self, args: &[&str]) -> Result<String> {
        let output = self.try_helm(args).await?;
        let said = said(&output);
        ensure!(output.status.success(), "helm {args:?}: {said}");
        Ok(said)
    }

    async fn try_helm(&self, args: &[&str]) -> Result<Output> {
        let namespace = ["--namespace", NAMESPACE, "--timeout", "60s"];
        let args = [args, &namespace].concat();
        // Only what asks for values on its input reads them.
        let values = args.contains(&"-").then(|| minimal_values().to_string());
        let values = values.unwrap_or_default();
        self.user.run("helm", &args, &values).await
    }

    async fn short_name(&self) -> Result<String> {
        let types: Api<CustomResourceDefinition> = Api::all(self.plane.client());
        let balancers = types.get("loadbalancers.onehop.dev").await?;
        let names = balancers.spec.names.short_names.unwrap_or_default();
        names.into_iter().next().context("a short name")
    }

    /// Lets the pod of the hook's Job run: the program that the image holds, with the pod's arguments and the rights of its
    /// account. Gives what it said.
    async fn run_hook(&self) -> Result<(bool, String)> {
        let pods: Api<Pod> = Api::namespaced(self.plane.client(), NAMESPACE);
        let of_job = ListParams::default().labels("batch.kubernetes.io/job-name");
        let waits = |pod: &Pod| {
            let phase = pod.status.as_ref().and_then(|s| s.phase.clone());
            phase.as_deref() == Some("Pending") && pod.metadata.deletion_timestamp.is_none()
        };
        let pod = eventually(&self.clock, "the hook's pod", WITHIN, async || {
            let all = pods.list(&of_job).await.map_err(|e| e.to_string())?.items;
            all.into_iter().find(waits).ok_or("none".to_owned())
        })
        .await?;
        let spec = pod.spec.context("a spec")?;
        let account = match spec.service_account_name.as_deref() {
            Some("onehop-controller") => Account::Controller {
                replica: "check".to_owned(),
            },
            Some("onehop-uninstall-clean-up") => Account::CleanUp,
            other => bail!("nobody knows account {other:?}"),
        };
        let kubeconfig = self.plane.kubeconfig(&account).await?;
        let log = self.user.home.join("hook.log");
        let file = std::fs::File::create(&log)?;
        let mut command = Command::new(Programs::of_this_build()?.path("onehop-controller")?);
        command
            .args(spec.containers[0].args.iter().flatten())
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .stdout(file.try_clone()?)
            .stderr(file);
        let mut child = self.fabric.management().spawn(command)?;
        let status = child.wait().await?;
        let phase = if status.success() {
            "Succeeded"
        } else {
            "Failed"
        };
        let code = status.code();
        let terminated = json!({"terminated": {"exitCode": code, "reason": phase}});
        let body = json!({"status": {"phase": phase, "containerStatuses": [{
            "name": "check", "image": "i", "imageID": "i", "ready": false, "restartCount": 0, "state": terminated,
        }]}});
        let name = pod.metadata.name.context("a name")?;
        pods.patch_status(&name, &PatchParams::default(), &Patch::Strategic(body))
            .await?;
        Ok((status.success(), std::fs::read_to_string(&log)?))
    }

    /// A Service with our finalizer, and its LoadBalancer object of an install.
    async fn held(&self, name: &str, install: &str) -> Result<()> {
        self.plane
            .objects
            .create(json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"name": name, "namespace": "default", "finalizers": ["onehop.dev/load-balancer"]},
                "spec": {"type": "LoadBalancer", "loadBalancerClass": "onehop.dev/local", "ports": [{"port": 80}]},
            }))
            .await?;
        let balancer = json!({
            "apiVersion": "onehop.dev/v1alpha1", "kind": "LoadBalancer",
            "metadata": {"name": name, "namespace": "default", "labels": {"onehop.dev/install": install}},
            "spec": {
                "provider": "local", "class": "onehop.dev/local", "serviceUID": "u", "scheme": "internal",
                "families": ["IPv4"], "ports": [], "sources": [],
                "membership": {"policy": "zero-drop", "floorPercent": 100, "holdMaxSeconds": 600, "tailMaxSeconds": 0, "lateFlows": "forward"},
            },
        });
        self.plane.objects.create(balancer).await?;
        Ok(())
    }

    /// What installs have told the agent of a node.
    async fn told(&self, node: &str, installs: Value) -> Result<()> {
        let told = json!({
            "apiVersion": "onehop.dev/v1alpha1", "kind": "NodeTargets", "metadata": {"name": node},
            "spec": {"installs": installs},
        });
        self.user
            .kubectl(&["create", "-f", "-"], &[told])
            .await
            .map(drop)
    }

    async fn release(&self, name: &str) -> Result<()> {
        let services: Api<Service> = self.plane.objects.api();
        let none = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        services.patch(name, &PatchParams::default(), &none).await?;
        services.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }
}

/// The chart as an earlier version may have been: another version number, and an object type with another short name.
pub(crate) fn earlier(folder: &Path) -> Result<String> {
    let to = folder.join("earlier");
    copy(Chart::folder(), &to)?;
    let edit = |file: &str, old: &str, new: &str| -> Result<()> {
        let path = to.join(file);
        let text = std::fs::read_to_string(&path)?;
        ensure!(text.contains(old), "{file} has no {old:?}");
        Ok(std::fs::write(&path, text.replace(old, new))?)
    };
    edit("Chart.yaml", "version: 0.1.0", "version: 0.0.9")?;
    edit("files/crds/loadbalancers.yaml", "- olb", "- earlier")?;
    Ok(to.display().to_string())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// C-69, C-63, C-80, C-82, C-T07 and C-T43: a life of a release.
#[tokio::test(flavor = "multi_thread")]
async fn c63_c69_c80_c82_ct07_ct43_install_upgrade_roll_back_and_uninstall() -> Result<()> {
    let site = Site::start().await?;
    let earlier = earlier(&site.user.home)?;
    let chart = Chart::folder().display().to_string();
    site.helm(&[
        "install",
        "onehop",
        &earlier,
        "--create-namespace",
        "--values",
        "-",
    ])
    .await?;
    assert_eq!(site.short_name().await?, "earlier");
    site.helm(&["upgrade", "onehop", &chart, "--values", "-"])
        .await?;
    assert_eq!(
        site.short_name().await?,
        "olb",
        "C-63: an upgrade brings the types along"
    );
    site.helm(&["rollback", "onehop", "1"]).await?;
    assert_eq!(
        site.short_name().await?,
        "earlier",
        "and a rollback takes them back"
    );
    site.helm(&["rollback", "onehop", "2"]).await?;

    site.held("web", "demo-local").await?;
    site.held("api", "demo-local").await?;
    site.held("green", "green").await?;
    let deployments: Api<Deployment> = Api::namespaced(site.plane.client(), NAMESPACE);
    let uninstall = ["uninstall", "onehop"];
    let (ended, hook) = tokio::join!(site.try_helm(&uninstall), site.run_hook());
    let (ended, (well, message)) = (ended?, hook?);
    assert!(!well);
    assert!(
        message.contains(
            "2 Services are still held by the load balancers of install demo-local: default/api, default/web. Delete them"
        ),
        "C-T07: {message}"
    );
    assert!(!ended.status.success(), "C-80: {}", said(&ended));
    assert!(
        deployments.get("onehop-controller").await.is_ok(),
        "C-80: it stays"
    );

    site.release("web").await?;
    site.release("api").await?;
    site.told("node-a", json!({"demo-local": {}})).await?;
    site.told("node-b", json!({"demo-local": {}, "green": {}}))
        .await?;
    let (ended, hooks) = tokio::join!(site.try_helm(&uninstall), async {
        let before = site.run_hook().await?;
        Ok::<_, anyhow::Error>([before, site.run_hook().await?])
    });
    let ended = ended?;
    let [(checked, message), (cleaned, said_last)] = hooks?;
    assert!(checked, "only another install has Services: {message}");
    assert!(cleaned, "C-82: {said_last}");
    assert!(ended.status.success(), "C-T43: {}", said(&ended));
    left_behind(&site).await?;
    let told: Api<NodeTargets> = Api::all(site.plane.client());
    let told = told.list(&ListParams::default()).await?.items;
    let entries = told.iter().flat_map(|of| of.spec.installs.keys());
    let entries: Vec<&str> = entries.map(InstallId::as_str).collect();
    assert_eq!((told.len(), entries), (1, vec!["green"]), "C-82");
    site.end()
}

/// What the chart made is gone, but for the object types that it keeps.
async fn left_behind(site: &Site) -> Result<()> {
    let rendered = Chart::of_this_build()?.render(&minimal_values())?;
    let mut kinds: Vec<String> = rendered
        .objects()
        .iter()
        .filter_map(|o| o["kind"].as_str().map(str::to_lowercase))
        .filter(|kind| kind != "customresourcedefinition")
        .collect();
    kinds.extend(["replicaset".to_owned(), "pod".to_owned()]);
    kinds.sort();
    kinds.dedup();
    let selector = "app.kubernetes.io/instance=onehop";
    let kinds = kinds.join(",");
    let get = ["get", &kinds, "-A", "-l", selector, "-o", "name"];
    eventually(&site.clock, "nothing is left", WITHIN, async || match site
        .user
        .kubectl(&get, &[])
        .await
    {
        Ok(names) if names.is_empty() => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await?;
    assert_eq!(site.short_name().await?, "olb", "C-63: crds.keep");
    Ok(())
}

/// C-72 and C-T05: the server's strict validation finds no unknown or wrong field in any rendering or example; what is
/// applied twice changes nothing the second time.
#[tokio::test(flavor = "multi_thread")]
async fn c72_ct05_the_api_server_takes_every_rendering_and_example_strictly() -> Result<()> {
    let site = Site::start().await?;
    let chart = Chart::of_this_build()?;
    site.helm(&[
        "install",
        "onehop",
        &Chart::folder().display().to_string(),
        "--create-namespace",
        "--values",
        "-",
    ])
    .await?;
    for set in sets()? {
        let rendered = chart.render(&set.values)?;
        let known: Vec<Value> = rendered
            .objects()
            .iter()
            .filter(|o| known(o))
            .cloned()
            .collect();
        let args = ["apply", "--dry-run=server", "--validate=strict", "-f", "-"];
        let namespaces = known
            .iter()
            .map(|object| object["metadata"]["namespace"].clone());
        for namespace in namespaces.filter_map(|n| n.as_str().map(str::to_owned)) {
            make_namespace(&site, &namespace).await?;
        }
        site.user
            .kubectl(&args, &known)
            .await
            .with_context(|| set.name.clone())?;
    }
    let mut count = 0;
    for folder in examples()? {
        let all = objects(&folder)?.into_iter().map(|(_, object)| object);
        let known: Vec<Value> = all.filter(known).collect();
        let args = ["apply", "--server-side", "--validate=strict", "-f", "-"];
        site.user
            .kubectl(&args, &known)
            .await
            .with_context(|| folder.display().to_string())?;
        let versions = versions(&site, &known).await?;
        site.user.kubectl(&args, &known).await?;
        assert_eq!(versions, self::versions(&site, &known).await?, "C-11");
        count += known.len();
    }
    assert!(count >= 8, "{count}");
    site.end()
}

/// Whether it is of a kind that Kubernetes or our own definitions have.
pub(crate) fn known(object: &Value) -> bool {
    object["kind"]
        .as_str()
        .is_some_and(|kind| !FOREIGN.contains(&kind))
}

async fn make_namespace(site: &Site, name: &str) -> Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    site.plane.objects.apply(namespace).await.map(drop)
}

/// Name and version of each object.
async fn versions(site: &Site, objects: &[Value]) -> Result<String> {
    let columns = "-o=jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.generation}{\"\\n\"}{end}";
    site.user
        .kubectl(&["get", "-f", "-", columns], objects)
        .await
}
