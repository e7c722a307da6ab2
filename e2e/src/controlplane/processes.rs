//! The control plane's programs as children of the world. None is started again: one that ends is a finding.

use anyhow::{Context, Result, bail};
use e2e_fabric::{Child, Netns};
use futures::future::select_all;
use std::{
    fs::OpenOptions,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
};

/// Lines of a log that an error repeats.
const LAST_LINES: usize = 15;

/// The programs that were started.
#[derive(Debug)]
pub(super) struct Processes {
    netns: Netns,
    folder: PathBuf,
    running: Mutex<Vec<Process>>,
}

#[derive(Debug)]
struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Processes {
    /// For programs in this namespace, with logs in this folder.
    pub(super) fn new(netns: &Netns, folder: &Path) -> Self {
        Self {
            netns: netns.clone(),
            folder: folder.to_owned(),
            running: Mutex::default(),
        }
    }

    /// Starts one; it ends with the world.
    pub(super) fn start(&mut self, program: &Path, args: &[String]) -> Result<()> {
        let name = program.file_name().context("a program has a name")?;
        let name = name.to_string_lossy().into_owned();
        let log = self.folder.join(format!("{name}.log"));
        let output = OpenOptions::new().create(true).append(true).open(&log);
        let output = output.with_context(|| format!("open {}", log.display()))?;
        let mut command = Command::new(program);
        command
            .args(args)
            .stdin(std::process::Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        let child = self.netns.spawn(command)?;
        self.list().push(Process { name, child, log });
        Ok(())
    }

    /// Waits until `ready` is, or one of the programs has ended.
    pub(super) async fn all_while<T>(
        &mut self,
        ready: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let running = self
            .running
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let ends = running
            .iter_mut()
            .map(|process| Box::pin(process.child.wait()));
        let ended = tokio::select! {
            result = ready => return result,
            (_, index, _) = select_all(ends) => index,
        };
        bail!("{}", running[ended].last_words())
    }

    /// Whether all of them still run.
    pub(super) fn check(&self) -> Result<()> {
        for process in self.list().iter_mut() {
            if process.child.try_wait()?.is_some() {
                bail!("{}", process.last_words());
            }
        }
        Ok(())
    }

    fn list(&self) -> std::sync::MutexGuard<'_, Vec<Process>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Process {
    fn last_words(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n");
        format!("{} ended; the end of its log:\n{last}", self.name)
    }
}
