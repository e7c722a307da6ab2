//! The real kubectl as an administrator's shell, and a world for it.

use anyhow::{Context, Result, ensure};
use onehop_e2e::{
    controlplane::OnLoopback,
    world::{
        Cluster, OnTerm, Programs, ServiceManifest, World, WorldConfig, deployment, first_answer,
    },
};
use serde_json::Value;
use std::{
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};
use tokio::{io::AsyncWriteExt, process::Command};

/// How long a command may take that waits for nothing.
const WITHIN: Duration = Duration::from_mins(2);

/// kubectl with an administrator's kubeconfig.
pub(crate) struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    folder: PathBuf,
    _open: OnLoopback,
}

/// What a command said.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    /// Its exit status.
    pub(crate) status: Option<i32>,
    /// Standard output, without spaces at its end.
    pub(crate) out: String,
    /// Standard error, without spaces at its end.
    pub(crate) err: String,
}

impl Kubectl {
    /// Of this world's control plane.
    pub(crate) fn of(world: &World) -> Result<Self> {
        let (open, kubeconfig) = world.on_loopback()?;
        Ok(Self {
            program: Programs::of_the_control_plane()?.path("kubectl")?,
            kubeconfig,
            folder: world.folder().to_owned(),
            _open: open,
        })
    }

    /// Runs a command, its words separated by spaces, and says what came of it.
    pub(crate) async fn run(&self, line: &str) -> Result<Said> {
        self.run_with(line, "", None).await
    }

    async fn run_with(&self, line: &str, input: &str, editor: Option<&Path>) -> Result<Said> {
        let mut command = Command::new(&self.program);
        command
            .args(line.split_whitespace())
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("KUBECONFIG", &self.kubeconfig)
            // Its cache of what a server has, and the copies that `edit` keeps, go with this world.
            .env("HOME", &self.folder)
            .env("TMPDIR", &self.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        if let Some(editor) = editor {
            command.env("KUBE_EDITOR", editor);
        }
        let mut child = command.spawn().context("start kubectl")?;
        let mut stdin = child.stdin.take().context("kubectl's input")?;
        stdin.write_all(input.as_bytes()).await?;
        drop(stdin);
        let output = tokio::time::timeout(WITHIN, child.wait_with_output()).await;
        let output = output.with_context(|| format!("kubectl {line} does not end"))??;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        Ok(Said {
            status: output.status.code(),
            out: text(&output.stdout),
            err: text(&output.stderr),
        })
    }

    /// What a command prints that has to succeed.
    pub(crate) async fn ok(&self, line: &str) -> Result<String> {
        self.run(line).await?.ok().context(line.to_owned())
    }

    /// What a command complains about that has to fail.
    pub(crate) async fn refused(&self, line: &str) -> Result<String> {
        self.run(line).await?.refused().context(line.to_owned())
    }

    /// Runs a command that reads a manifest (`-f -`).
    pub(crate) async fn with(&self, line: &str, manifest: &Value) -> Result<Said> {
        self.run_with(&format!("{line} -f -"), &manifest.to_string(), None)
            .await
    }

    /// Runs a command whose editor is this `sed` script.
    pub(crate) async fn edit(&self, line: &str, script: &str) -> Result<Said> {
        let editor = self.folder.join("editor");
        let text = format!("#!/bin/sh\nexec sed -i '{script}' \"$1\"\n");
        std::fs::write(&editor, text)?;
        std::fs::set_permissions(&editor, std::fs::Permissions::from_mode(0o755))?;
        self.run_with(line, "", Some(&editor)).await
    }

    /// A table without its headers, a row for each line.
    pub(crate) async fn rows(&self, line: &str) -> Result<Vec<Vec<String>>> {
        let text = self.ok(line).await?;
        Ok(text.lines().skip(1).map(cells).collect())
    }

    /// The headers of a table.
    pub(crate) async fn headers(&self, line: &str) -> Result<Vec<String>> {
        let text = self.ok(line).await?;
        Ok(cells(text.lines().next().context("no table")?))
    }
}

impl Said {
    /// Its output, if it succeeded.
    pub(crate) fn ok(self) -> Result<String> {
        ensure!(self.status == Some(0), "it failed: {self:#?}");
        Ok(self.out)
    }

    /// Its complaint, if it failed.
    pub(crate) fn refused(self) -> Result<String> {
        ensure!(
            self.status.is_some_and(|status| status != 0),
            "it succeeded: {self:#?}"
        );
        Ok(self.err)
    }
}

/// Columns are three spaces apart, words of one cell a single one.
fn cells(line: &str) -> Vec<String> {
    let cells = line.split("   ").map(str::trim);
    cells.filter(|c| !c.is_empty()).map(str::to_owned).collect()
}

/// Text with each run of blanks as one space, lines apart: descriptions align their columns.
pub(crate) fn squeezed(text: &str) -> String {
    let lines = text.lines();
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    lines.map(words).collect::<Vec<_>>().join("\n")
}

/// All of these lines are in a text.
pub(crate) fn has_lines(text: &str, wanted: &[&str]) -> Result<()> {
    let text = squeezed(text);
    for wanted in wanted {
        ensure!(
            text.lines().any(|line| line == *wanted),
            "no line {wanted:?} in\n{text}"
        );
    }
    Ok(())
}

/// A world in which Deployment and Service `web` were applied by kubectl and answer.
pub(crate) struct Applied {
    pub(crate) world: World,
    pub(crate) kubectl: Kubectl,
    pub(crate) address: SocketAddr,
}

/// Applies Deployment `web` with so many pods, and a Service for it, and waits as a person would.
pub(crate) async fn applied(
    on: Cluster,
    replicas: u32,
    service: ServiceManifest,
) -> Result<Applied> {
    let config = WorldConfig {
        cluster: on,
        ..WorldConfig::default()
    };
    let world = World::start(config).await?;
    let kubectl = Kubectl::of(&world)?;
    let pods = deployment("web", replicas, OnTerm::ServeSeconds(5));
    let said = kubectl.with("apply", &pods).await?.ok()?;
    ensure!(said == "deployment.apps/web created", "{said}");
    let said = kubectl.with("apply", &service.json()).await?.ok()?;
    ensure!(said == "service/web created", "{said}");
    kubectl
        .ok("rollout status deployment/web --timeout=60s")
        .await?;
    let ip = "jsonpath={.status.loadBalancer.ingress[0].ip}";
    kubectl
        .ok(&format!("wait service/web --for={ip} --timeout=30s"))
        .await?;
    let ip = kubectl.ok(&format!("get service web -o {ip}")).await?;
    let address = SocketAddr::new(ip.parse().with_context(|| ip.clone())?, 80);
    first_answer(&world, address).await?;
    Ok(Applied {
        world,
        kubectl,
        address,
    })
}
