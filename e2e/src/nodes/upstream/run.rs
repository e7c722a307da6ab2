//! Starts upstream's test program in the client's namespace, from where it reaches load balancers as a client outside and
//! the API server as an administrator.

use crate::world::{Programs, World};
use anyhow::{Context, Result, ensure};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A run of the suite.
pub(super) struct Suite<'a> {
    pub(super) focus: &'a str,
    pub(super) skip: &'a str,
    pub(super) procs: u16,
    pub(super) folder: &'a Path,
}

impl Suite<'_> {
    /// Runs it to its end; gives the path of its report. That specs failed is no error.
    pub(super) async fn run(&self, world: &World) -> Result<PathBuf> {
        fs::create_dir_all(self.folder)
            .with_context(|| format!("make {}", self.folder.display()))?;
        let folder = self
            .folder
            .canonicalize()
            .context("find the folder of results")?;
        let report = folder.join("report.json");
        match fs::remove_file(&report) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e.into()),
            _ => {}
        }
        let log = File::create(folder.join("e2e.log")).context("make the suite's log")?;
        let programs = Programs::of_the_control_plane()?;
        let mut command = Command::new(programs.path("ginkgo")?);
        command
            .arg(format!("--procs={}", self.procs))
            .arg(format!("--focus={}", self.focus))
            .arg(format!("--skip={}", self.skip))
            .arg(format!("--output-dir={}", folder.display()))
            .args([
                "--json-report=report.json",
                "--no-color",
                "--timeout=4h",
                "--silence-skips",
                "--v",
            ])
            .arg(programs.path("e2e.test")?)
            .arg("--")
            .arg(format!(
                "--kubeconfig={}",
                world.kubeconfig_inside()?.display()
            ))
            .arg(format!(
                "--kubectl-path={}",
                programs.path("kubectl")?.display()
            ))
            .arg(format!("--e2e-output-dir={}", folder.display()))
            .args([
                "--provider=skeleton",
                "--disable-log-dump",
                "--dump-logs-on-failure=true",
            ])
            .arg("--cluster-ip-range=10.244.0.0/16")
            // Only the first of its processes would find out; specs that want two nodes skip in the others.
            .arg(format!("--num-nodes={}", world.nodes.len()))
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let mut child = world.client.netns().spawn(command)?;
        let status = child.wait().await.context("wait for the suite")?;
        ensure!(
            report.exists(),
            "the suite wrote no report ({status}); its log is {}",
            folder.join("e2e.log").display()
        );
        Ok(report)
    }
}
