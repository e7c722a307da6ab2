//! The chart, rendered by the real Helm: what is applied to a cluster, so that RBAC and arguments are those that users
//! get. Used by the chart's tests and by worlds on the real control plane; the demo needs no Helm.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use crate::world::Programs;

/// The chart's folder.
const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/onehop");
/// Release and namespace of every rendering.
const RELEASE: &str = "onehop";
/// Where the chart is installed.
pub const NAMESPACE: &str = "onehop-system";

/// Helm and the chart.
#[derive(Clone, Debug)]
pub struct Chart {
    helm: PathBuf,
}

impl Chart {
    /// With the Helm that the launcher built or was given.
    pub fn of_this_build() -> Result<Self> {
        let helm = Programs::of_the_control_plane()?.path("helm")?;
        Ok(Self { helm })
    }

    /// The chart's folder.
    pub fn folder() -> &'static Path {
        Path::new(CHART)
    }

    /// The text that `helm template` prints, with CRDs; an error holds what Helm said.
    pub fn template(&self, values: &Value) -> Result<String> {
        self.template_for("1.33.0", values)
    }

    /// The same for a cluster of another version than the oldest supported one.
    pub fn template_for(&self, version: &str, values: &Value) -> Result<String> {
        let args = [
            "template",
            RELEASE,
            CHART,
            "--namespace",
            NAMESPACE,
            "--include-crds",
            "--kube-version",
            version,
            "--values",
            "-",
        ];
        let output = self.run(&args, values)?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr));
        }
        String::from_utf8(output.stdout).context("what helm printed")
    }

    /// Strict lint; an error holds what Helm said.
    pub fn lint(&self, values: &Value) -> Result<String> {
        let output = self.run(&["lint", "--strict", CHART, "--values", "-"], values)?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            bail!("{said}{}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(said)
    }

    /// Everything that an installation applies.
    pub fn render(&self, values: &Value) -> Result<Rendered> {
        let text = self.template(values)?;
        let objects: Vec<Value> =
            serde_saphyr::from_multiple(&text).context("read what helm rendered")?;
        let objects = objects.into_iter().filter(Value::is_object).collect();
        Ok(Rendered { objects })
    }

    fn run(&self, args: &[&str], values: &Value) -> Result<Output> {
        let mut child = Command::new(&self.helm)
            .args(args)
            // Neither plugins nor repositories of whoever runs this.
            .env_clear()
            .env("HOME", "/nonexistent")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {}", self.helm.display()))?;
        let mut stdin = child.stdin.take().context("helm's input")?;
        stdin
            .write_all(values.to_string().as_bytes())
            .context("hand the values to helm")?;
        drop(stdin);
        child.wait_with_output().context("wait for helm")
    }
}

/// The least that the chart needs.
pub fn minimal_values() -> Value {
    json!({"clusterName": "demo", "local": {"endpoint": "http://10.0.0.1:9000"}})
}

/// Rendered manifests.
#[derive(Clone, Debug)]
pub struct Rendered {
    objects: Vec<Value>,
}

impl Rendered {
    /// All of them, in Helm's order of installation.
    pub fn objects(&self) -> &[Value] {
        &self.objects
    }

    /// Those of some kinds.
    pub fn of_kinds(&self, kinds: &[&str]) -> Vec<&Value> {
        let wanted = |object: &&Value| kinds.iter().any(|kind| object["kind"] == *kind);
        self.objects.iter().filter(wanted).collect()
    }

    /// What gives the programs their rights: accounts, roles, bindings and the policy on agents; not what hooks have for as
    /// long as they run.
    pub fn rights(&self) -> Vec<&Value> {
        let mut rights = self.of_kinds(&[
            "ServiceAccount",
            "Role",
            "RoleBinding",
            "ClusterRole",
            "ClusterRoleBinding",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
        ]);
        rights.retain(|object| object["metadata"]["annotations"]["helm.sh/hook"].is_null());
        rights
    }

    /// An object by kind and name.
    pub fn object(&self, kind: &str, name: &str) -> Result<&Value> {
        let mut all = self.objects.iter();
        all.find(|object| object["kind"] == kind && object["metadata"]["name"] == name)
            .with_context(|| format!("the chart renders no {kind} {name}"))
    }

    /// The controller's Deployment.
    pub fn controller(&self) -> Result<Program<'_>> {
        Program::of(self.object("Deployment", "onehop-controller")?)
    }

    /// The agent's `DaemonSet`.
    pub fn agent(&self) -> Result<Program<'_>> {
        Program::of(self.object("DaemonSet", "onehop-node-agent")?)
    }
}

/// A workload of one container.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// The pod's spec.
    pub pod: &'a Value,
    /// Its one container.
    pub container: &'a Value,
}

impl<'a> Program<'a> {
    /// The one container of a workload.
    pub fn of(workload: &'a Value) -> Result<Self> {
        let pod = &workload["spec"]["template"]["spec"];
        match pod["containers"].as_array().map(Vec::as_slice) {
            Some([container]) => Ok(Self { pod, container }),
            _ => bail!("{} should have one container", workload["metadata"]["name"]),
        }
    }

    /// The container's arguments.
    pub fn args(&self) -> Result<Vec<String>> {
        serde_json::from_value(self.container["args"].clone()).context("arguments of a container")
    }

    /// The command of its readiness probe.
    pub fn ready(&self) -> Result<Vec<String>> {
        let command = self.container["readinessProbe"]["exec"]["command"].clone();
        serde_json::from_value(command).context("a command that tells readiness")
    }

    /// Name of its `ServiceAccount`.
    pub fn account(&self) -> Result<&'a str> {
        self.pod["serviceAccountName"]
            .as_str()
            .context("a ServiceAccount")
    }
}
