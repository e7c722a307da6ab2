//! The controller as a supervised child, as a Deployment would keep it: it is started again when it ends.

use anyhow::{Context, Result};
use e2e_fabric::Netns;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use onehop_runtime::clock::Clock;
use std::{fs::OpenOptions, path::PathBuf, process::Command, sync::Arc, time::Duration};
use tokio::{sync::watch, task::JoinHandle};

/// Pause before a controller that ended is started again.
const RESTART_AFTER: Duration = Duration::from_millis(500);

/// A controller that is kept running.
#[derive(Debug)]
pub struct Controller {
    stop: watch::Sender<bool>,
    pid: watch::Receiver<Option<u32>>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Recipe {
    netns: Netns,
    program: PathBuf,
    args: Vec<String>,
    log: PathBuf,
}

impl Recipe {
    fn spawn(&self) -> Result<e2e_fabric::Child> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)
            .context("open the controller's log")?;
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            // Only providers aws and azure look at these, and must not ask a machine's metadata service.
            .envs(super::azure::ENVIRONMENT)
            .envs([
                ("AWS_ACCESS_KEY_ID", super::aws::KEY.0),
                ("AWS_SECRET_ACCESS_KEY", super::aws::KEY.1),
                ("AWS_EC2_METADATA_DISABLED", "true"),
            ])
            .stdout(log.try_clone()?)
            .stderr(log);
        Ok(self.netns.spawn(command)?)
    }
}

impl Controller {
    /// Starts the program in the management namespace.
    pub fn start(
        netns: Netns,
        program: PathBuf,
        args: Vec<String>,
        log: PathBuf,
        clock: Clock,
    ) -> Result<Self> {
        let recipe = Arc::new(Recipe {
            netns,
            program,
            args,
            log,
        });
        let first = recipe.spawn()?;
        let (stop, stopped) = watch::channel(false);
        let (set_pid, pid) = watch::channel(first.id());
        let task = tokio::spawn(supervise(recipe, first, set_pid, stopped, clock));
        Ok(Self { stop, pid, task })
    }

    /// None of this world's own: pods are the controller.
    pub(super) fn of_pods() -> Self {
        let (stop, _) = watch::channel(false);
        let (_, pid) = watch::channel(None);
        let task = tokio::spawn(async {});
        Self { stop, pid, task }
    }

    /// Kills the process (SIGKILL); the supervisor starts another one.
    pub fn kill(&self) -> Result<()> {
        self.signal(Signal::SIGKILL)
    }

    /// Sends a signal to the process; if that ends it, the supervisor starts another one.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.pid().context("the controller is not running")?;
        let pid = Pid::from_raw(i32::try_from(pid)?);
        kill(pid, signal).with_context(|| format!("send {signal} to the controller"))
    }

    /// The process's id, while there is a process.
    pub fn pid(&self) -> Option<u32> {
        *self.pid.borrow()
    }

    /// Ends the process for good.
    pub async fn stop(self) {
        // A supervisor that is gone has no process left to stop.
        let _ = self.stop.send(true);
        let _ = self.task.await;
    }
}

async fn supervise(
    recipe: Arc<Recipe>,
    mut child: e2e_fabric::Child,
    pid: watch::Sender<Option<u32>>,
    mut stopped: watch::Receiver<bool>,
    clock: Clock,
) {
    loop {
        tokio::select! {
            _ = child.wait() => {}
            _ = stopped.changed() => {
                // Already gone is as good.
                let _ = child.kill().await;
                return;
            }
        }
        pid.send_replace(None);
        tokio::select! {
            () = clock.sleep(RESTART_AFTER) => {}
            _ = stopped.changed() => return,
        }
        match recipe.spawn() {
            Ok(next) => child = next,
            Err(error) => {
                tracing::error!(%error, "the controller cannot be started again");
                return;
            }
        }
        pid.send_replace(child.id());
    }
}
