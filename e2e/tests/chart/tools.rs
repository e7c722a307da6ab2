//! The judges themselves: Helm and kubectl as users have them, without a cluster.

use crate::user::{User, said};
use anyhow::{Context, Result, ensure};
use onehop_e2e::chart::{Chart, minimal_values};
use serde_json::json;
use std::path::{Path, PathBuf};

/// A chart of one template that uses what ours may, and what it must not.
const TEMPLATE: &str = r#"
kind: ConfigMap
apiVersion: v1
metadata: {name: {{ include "name" . }}}
data:
  sum: {{ "a" | sha256sum }}
  later: {{ semverCompare ">=1.33.0-0" .Capabilities.KubeVersion.Version | quote }}
  looked: {{ empty (lookup "v1" "Namespace" "" "default") | quote }}
"#;
/// SHA-256 of `a`.
const SUM: &str = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb";

/// A folder that goes when it is dropped.
struct Home(PathBuf);

impl Home {
    fn new(name: &str) -> Result<Self> {
        let pid = std::process::id();
        let home = Self(std::env::temp_dir().join(format!("onehop-tools-{name}-{pid}")));
        std::fs::create_dir_all(&home.0)?;
        Ok(home)
    }

    /// Somebody without a cluster.
    fn user(&self) -> User {
        User {
            kubeconfig: self.0.join("none"),
            home: self.0.clone(),
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // What stays lies in the machine's folder for such things.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn chart(home: &Path) -> Result<String> {
    let folder = home.join("small");
    std::fs::create_dir_all(folder.join("templates"))?;
    let write = |file: &str, text: &str| std::fs::write(folder.join(file), text);
    write(
        "Chart.yaml",
        "apiVersion: v2\nname: small\nversion: 0.1.0\n",
    )?;
    write(
        "values.schema.json",
        r#"{"properties": {"count": {"type": "integer"}}}"#,
    )?;
    write(
        "templates/_helpers.tpl",
        "{{- define \"name\" -}}small{{- end -}}",
    )?;
    write("templates/map.yaml", TEMPLATE)?;
    Ok(folder.display().to_string())
}

/// C-70 and C-71: Helm renders, lints, enforces a schema and says what it would install, all without a cluster, where
/// `lookup` finds nothing.
#[tokio::test(flavor = "multi_thread")]
async fn c70_c71_helm_judges_without_a_cluster() -> Result<()> {
    let home = Home::new("helm")?;
    let (user, small) = (home.user(), chart(&home.0)?);
    let helm = async |args: &[&str], input: &str| user.run("helm", args, input).await;
    let version = said(&helm(&["version", "--short"], "").await?);
    ensure!(version.starts_with("v4."), "C-70, C-71: {version}");
    let render = ["template", "small", &small, "--kube-version", "1.33.0"];
    let rendered = helm(&render, "").await?;
    ensure!(rendered.status.success(), "{}", said(&rendered));
    let map: serde_json::Value = serde_saphyr::from_slice(&rendered.stdout)?;
    let wanted = json!({"sum": SUM, "later": "true", "looked": "true"});
    assert_eq!(
        (&map["metadata"]["name"], &map["data"]),
        (&json!("small"), &wanted),
        "C-70"
    );
    let wrong = helm(&[&render[..], &["--set", "count=two"]].concat(), "").await?;
    ensure!(
        !wrong.status.success() && said(&wrong).contains("count"),
        "C-70"
    );
    let lint = helm(&["lint", "--strict", &small, "--set", "count=two"], "").await?;
    ensure!(!lint.status.success(), "C-70: {}", said(&lint));
    let ours = Chart::folder().display().to_string();
    let dry = [
        "install",
        "onehop",
        &ours,
        "--dry-run=client",
        "--values",
        "-",
    ];
    let dry = helm(&dry, &minimal_values().to_string()).await?;
    let text = said(&dry);
    ensure!(dry.status.success(), "C-70: {text}");
    for kind in [
        "kind: Deployment",
        "kind: DaemonSet",
        "kind: ValidatingAdmissionPolicy",
    ] {
        ensure!(text.contains(kind), "C-70: {kind}: {text}");
    }
    Ok(())
}

/// C-73: the real kubectl of a supported version, with kustomize in it.
#[tokio::test(flavor = "multi_thread")]
async fn c73_kubectl_makes_manifests_without_a_cluster() -> Result<()> {
    let home = Home::new("kubectl")?;
    let user = home.user();
    let version = user
        .kubectl(&["version", "--client", "-o", "json"], &[])
        .await?;
    let version: serde_json::Value = serde_json::from_str(&version)?;
    let minor = version["clientVersion"]["minor"]
        .as_str()
        .context("a version")?;
    ensure!(minor == "37", "C-73: {version}");
    ensure!(version["kustomizeVersion"].is_string(), "C-73: {version}");
    let make = ["create", "service", "loadbalancer", "web", "--tcp=80:8080"];
    let made = [&make[..], &["--dry-run=client", "-o", "json"]].concat();
    let made: serde_json::Value = serde_json::from_str(&user.kubectl(&made, &[]).await?)?;
    assert_eq!(made["spec"]["type"], "LoadBalancer", "C-73");
    let folder = home.0.join("kustomize");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("web.yaml"), made.to_string())?;
    let kustomization = "resources: [web.yaml]\nnamePrefix: green-\n";
    std::fs::write(folder.join("kustomization.yaml"), kustomization)?;
    let built = user
        .kubectl(&["kustomize", &folder.display().to_string()], &[])
        .await?;
    ensure!(built.contains("name: green-web"), "C-73: {built}");
    Ok(())
}
