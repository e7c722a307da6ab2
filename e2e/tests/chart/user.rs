//! Someone with an administrator's kubeconfig and the programs that users have: kubectl and Helm.

use anyhow::{Context, Result, ensure};
use onehop_e2e::world::Programs;
use serde_json::Value;
use std::{
    io::Write,
    path::PathBuf,
    process::{Command, Output, Stdio},
};

pub(crate) struct User {
    pub(crate) kubeconfig: PathBuf,
    /// Where programs keep what they keep.
    pub(crate) home: PathBuf,
}

impl User {
    /// Runs a program with this input, without blocking the connections that this process forwards.
    pub(crate) async fn run(&self, program: &str, args: &[&str], input: &str) -> Result<Output> {
        let path = Programs::of_the_control_plane()?.path(program)?;
        let mut command = Command::new(&path);
        command
            .args(args)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", &self.home)
            .env("TMPDIR", &self.home)
            .env("KUBECONFIG", &self.kubeconfig)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let input = input.to_owned();
        let ran = tokio::task::spawn_blocking(move || -> Result<Output> {
            let mut child = command.spawn()?;
            let mut stdin = child.stdin.take().context("an input")?;
            stdin.write_all(input.as_bytes())?;
            drop(stdin);
            Ok(child.wait_with_output()?)
        });
        ran.await?.with_context(|| format!("run {program}"))
    }

    /// kubectl on these objects, which has to succeed; gives what it printed.
    pub(crate) async fn kubectl(&self, args: &[&str], objects: &[Value]) -> Result<String> {
        let documents: Vec<String> = objects.iter().map(Value::to_string).collect();
        let output = self
            .run("kubectl", args, &documents.join("\n---\n"))
            .await?;
        ensure!(
            output.status.success(),
            "kubectl {args:?}: {}",
            said(&output)
        );
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}

pub(crate) fn said(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}
