//! The webhook on new pods with a real API server that calls it over TLS, and the program with exactly the rights, names
//! and arguments of the chart. That the API server reaches it without a service proxy is the only thing that differs.

use crate::{
    install::Site,
    used::{unused, webhook},
};
use anyhow::{Context, Result};
use e2e_fabric::Child;
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::MutatingWebhookConfiguration,
        apps::v1::Deployment,
        core::v1::{Namespace, Pod, Secret},
    },
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use onehop_e2e::{
    chart::{Chart, NAMESPACE},
    controlplane::Account,
    world::{Programs, eventually},
};
use serde_json::{Value, json};
use std::{process::Command, time::Duration};

const WITHIN: Duration = Duration::from_mins(1);
const NAME: &str = "onehop-webhook";
const GATES: &str = "onehop.dev/pod-readiness-gate-inject";
/// The port that the configuration names; without a service proxy it has to be the program's own.
const PORT: u16 = 443;

/// A replica of the controller, at an address of its own.
struct Replica(Child);

impl Drop for Replica {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.start_kill();
    }
}

impl Site {
    /// Runs the controller as the chart's Deployment says, but for where it listens.
    async fn replica(&self, address: &str) -> Result<Replica> {
        let deployments: Api<Deployment> = Api::namespaced(self.plane.client(), NAMESPACE);
        let deployment = deployments.get("onehop-controller").await?;
        let pod = deployment.spec.context("a spec")?.template.spec;
        let args = pod.context("a pod")?.containers[0].args.clone();
        let mut args = args.context("arguments")?;
        for (flag, port) in [("webhook", PORT), ("metrics", 8080), ("health", 8081)] {
            let flag = format!("--{flag}-address=");
            let at = args.iter_mut().find(|arg| arg.starts_with(&flag));
            *at.with_context(|| flag.clone())? = format!("{flag}{address}:{port}");
        }
        let account = Account::Controller {
            replica: address.to_owned(),
        };
        let kubeconfig = self.plane.kubeconfig(&account).await?;
        let log = std::fs::File::create(self.user.home.join(format!("{address}.log")))?;
        let mut command = Command::new(Programs::of_this_build()?.path("onehop-controller")?);
        command
            .args(args)
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .env("POD_NAME", address)
            .stdout(log.try_clone()?)
            .stderr(log);
        Ok(Replica(self.fabric.management().spawn(command)?))
    }

    /// API servers find the webhook at this address from now on.
    async fn answers_at(&self, address: &str) -> Result<()> {
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": NAME, "namespace": NAMESPACE},
            "spec": {"type": "ExternalName", "externalName": address},
        });
        self.user
            .kubectl(&["replace", "--force", "-f", "-"], &[service])
            .await?;
        Ok(())
    }

    /// The readiness gates of a pod that is made now.
    async fn gates(&self, namespace: &str) -> Result<Vec<String>, kube::Error> {
        let pods: Api<Pod> = Api::namespaced(self.plane.client(), namespace);
        let pod = json!({
            "metadata": {"generateName": "web-", "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": "i"}], "automountServiceAccountToken": false},
        });
        let pod: Pod = serde_json::from_value(pod).map_err(kube::Error::SerdeError)?;
        let made = pods.create(&PostParams::default(), &pod).await?;
        let name = made.metadata.name.clone().unwrap_or_default();
        pods.delete(&name, &DeleteParams::default().grace_period(0))
            .await?;
        let gates = made.spec.and_then(|s| s.readiness_gates);
        let gates = gates.into_iter().flatten();
        Ok(gates.map(|gate| gate.condition_type).collect())
    }

    /// Waits until pods get this many gates.
    async fn gets(&self, what: &str, number: usize) -> Result<()> {
        eventually(&self.clock, what, WITHIN, async || {
            let gates = self.gates("shop").await.map_err(|e| e.to_string())?;
            (gates.len() == number)
                .then_some(())
                .ok_or(format!("{gates:?}"))
        })
        .await
    }

    async fn kept(&self) -> Result<Option<Value>> {
        let secrets: Api<Secret> = Api::namespaced(self.plane.client(), NAMESPACE);
        let data = secrets.get(NAME).await?.data.unwrap_or_default();
        let kept = data.get("state.json");
        kept.map(|bytes| serde_json::from_slice(&bytes.0))
            .transpose()
            .context("what is kept")
    }

    /// Somebody, or time, changes what is kept.
    async fn change(&self, edit: impl Fn(&mut Value)) -> Result<()> {
        let mut kept = self.kept().await?.context("nothing is kept")?;
        edit(&mut kept);
        let secrets: Api<Secret> = Api::namespaced(self.plane.client(), NAMESPACE);
        let bytes = ByteString(serde_json::to_vec(&kept)?);
        let patch = Patch::Merge(json!({"data": {"state.json": bytes}}));
        secrets.patch(NAME, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Whom API servers trust, for each webhook.
    async fn trusted(&self) -> Result<Vec<String>> {
        let all: Api<MutatingWebhookConfiguration> = Api::all(self.plane.client());
        let webhooks = all.get(NAME).await?.webhooks.unwrap_or_default();
        let bundles = webhooks.into_iter().map(|w| w.client_config.ca_bundle);
        Ok(bundles
            .map(|b| b.map_or_else(String::new, |b| String::from_utf8_lossy(&b.0).into_owned()))
            .collect())
    }

    /// Waits until something holds of what is kept, while every new pod gets its gate.
    async fn comes_to(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Result<Value> {
        eventually(&self.clock, what, WITHIN, async || {
            let gates = self.gates("shop").await.map_err(|e| e.to_string())?;
            if gates.len() != 1 {
                return Err(format!("C-77: a pod was made with {gates:?}"));
            }
            let kept = self.kept().await.map_err(|e| e.to_string())?;
            kept.filter(|kept| holds(kept)).ok_or("not yet".to_owned())
        })
        .await
    }
}

/// A namespace with these labels.
async fn namespace(site: &Site, name: &str, labels: Value) -> Result<()> {
    let all: Api<Namespace> = Api::all(site.plane.client());
    let object = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels},
    });
    let params = PatchParams::apply("test").force();
    all.patch(name, &params, &Patch::Apply(object)).await?;
    Ok(())
}

/// What Helm is told, at the installation as at an upgrade.
fn values(port: &str) -> [&str; 6] {
    let on = "webhook.enabled=true";
    ["--set", on, "--set", port, "--values", "-"]
}

async fn installed() -> Result<Site> {
    let site = Site::start().await?;
    let chart = Chart::folder().display().to_string();
    let port = format!("webhook.port={PORT}");
    let flags = values(&port);
    let install = [
        &["install", "onehop", &chart, "--create-namespace"][..],
        &flags,
    ];
    site.helm(&install.concat()).await?;
    for (name, labels) in [
        ("shop", json!({GATES: "enabled"})),
        ("quiet", json!({})),
        // Whatever labels these carry.
        ("kube-system", json!({GATES: "enabled"})),
        (NAMESPACE, json!({GATES: "enabled"})),
    ] {
        namespace(&site, name, labels).await?;
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": name},
            "spec": {
                "type": "LoadBalancer", "loadBalancerClass": "onehop.dev/local", "selector": {"app": "web"},
                "allocateLoadBalancerNodePorts": false, "ports": [{"name": "http", "port": 80}],
            },
        });
        site.plane.objects.create(service).await?;
    }
    site.answers_at("127.0.0.1").await?;
    Ok(site)
}

#[tokio::test(flavor = "multi_thread")]
async fn aws500_c64_c75_the_api_server_calls_it_and_pods_are_made_where_it_is_away() -> Result<()> {
    let site = installed().await?;
    assert!(
        site.kept().await?.is_none(),
        "C-64: the chart's has no content"
    );
    assert!(
        site.trusted().await?.iter().all(String::is_empty),
        "C-62, L-13"
    );
    let all: Api<MutatingWebhookConfiguration> = Api::all(site.plane.client());
    // C-76, L-43: no write to a Service, an endpoint or an object of ours ever waits for it.
    for webhook in all.get(NAME).await?.webhooks.unwrap_or_default() {
        for rule in webhook.rules.unwrap_or_default() {
            assert_eq!(rule.resources, Some(vec!["pods".to_owned()]), "C-76");
            assert_eq!(
                rule.operations,
                Some(vec!["CREATE".to_owned()]),
                "C-16, C-76"
            );
        }
        assert_eq!(
            webhook.failure_policy.as_deref(),
            Some("Ignore"),
            "C-75, L-44, AWS-959, AI-57"
        );
    }
    site.gets("ZD-94: a pod is made where it is away", 0)
        .await?;
    let first = site.replica("127.0.0.1").await?;
    site.gets("AWS-500: a pod gets its gate", 1).await?;
    let gates = site.gates("shop").await?;
    assert!(
        gates[0].starts_with("target-health.onehop.dev/shop-web-"),
        "{gates:?}"
    );
    for exempt in ["quiet", "kube-system", NAMESPACE] {
        assert_eq!(site.gates(exempt).await?, [""; 0], "C-75: {exempt}");
    }
    // Two replicas, one certificate: the other one is believed as well, by the same trust.
    let trusted = site.trusted().await?;
    let _second = site.replica("127.0.0.2").await?;
    site.answers_at("127.0.0.2").await?;
    site.gets("the second replica is believed", 1).await?;
    assert_eq!(site.trusted().await?, trusted, "C-64: one certificate");
    // ZD-94: and it serves on without the first, which led.
    drop(first);
    assert_eq!(
        site.gates("shop").await?.len(),
        1,
        "a replica in standby serves"
    );
    // Nobody there: pods are made, without a gate.
    site.answers_at("127.0.0.3").await?;
    site.gets("ZD-94: pods are made", 0).await?;
    // Somebody took the trust away: it comes back, once there is a leader again.
    let nobody = json!([{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]);
    let nobody: Patch<()> = Patch::Json(serde_json::from_value(nobody)?);
    all.patch(NAME, &PatchParams::default(), &nobody).await?;
    site.answers_at("127.0.0.2").await?;
    site.gets("C-62: the controller puts it back", 1).await?;
    // C-53: what the webhook needs more, and nothing else.
    let unused = unused(&site.plane.asked()?, "onehop-controller", webhook())?;
    assert_eq!(unused, [""; 0], "C-53");
    site.end()
}

#[tokio::test(flavor = "multi_thread")]
async fn c77_c78_certificates_follow_each_other_without_a_pod_that_misses_its_gate() -> Result<()> {
    let site = installed().await?;
    let _replica = site.replica("127.0.0.1").await?;
    site.gets("a pod gets its gate", 1).await?;
    let first = site.kept().await?.context("kept")?["serving"].clone();
    // Its end comes near.
    let near = (std::time::SystemTime::now() + Duration::from_hours(24))
        .duration_since(std::time::UNIX_EPOCH)?
        .as_millis();
    let near = onehop_core::time::Time::from_millis(near.try_into()?);
    site.change(|kept| kept["serving"]["expires"] = json!(near))
        .await?;
    let made = site
        .comes_to("C-77: the next one is made and trusted", |kept| {
            kept["next"]["trustedSince"].is_string()
        })
        .await?;
    assert_eq!(
        made["serving"]["certificate"], first["certificate"],
        "C-77: not served yet"
    );
    let next = made["next"]["pair"].clone();
    for bundle in site.trusted().await? {
        for pair in [&first, &next] {
            let authority = pair["authority"].as_str().context("an authority")?;
            assert!(bundle.contains(authority), "C-77, L-44: both are trusted");
        }
    }
    // It has been trusted for long enough.
    let past = onehop_core::time::Time::from_millis(near.as_millis() - 2 * 24 * 3600 * 1000);
    site.change(|kept| kept["next"]["trustedSince"] = json!(past))
        .await?;
    let served = site
        .comes_to("C-77: it is served", |kept| {
            kept["serving"]["certificate"] == next["certificate"]
        })
        .await?;
    assert_eq!(served["former"][0]["authority"], first["authority"], "C-77");
    for bundle in site.trusted().await? {
        let authority = first["authority"].as_str().context("an authority")?;
        assert!(
            bundle.contains(authority),
            "C-77: a replica may show it still"
        );
    }
    // C-78: what a GitOps sync applies again, changes nothing of it.
    let chart = Chart::folder().display().to_string();
    let port = format!("webhook.port={PORT}");
    let flags = values(&port);
    site.helm(&[&["upgrade", "onehop", &chart][..], &flags].concat())
        .await?;
    assert_eq!(site.kept().await?, Some(served), "C-78, L-43");
    assert!(site.trusted().await?.iter().all(|b| !b.is_empty()), "C-62");
    site.end()
}
