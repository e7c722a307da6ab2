//! One container: its process, its probe, its restarts, its end.
//!
//! A task of its own, so that an API server that hangs delays no SIGTERM. It reports to the pod's task
//! ([`crate::pod`]), which alone decides what the status says.

use std::fs::{File, OpenOptions};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use e2e_fabric::Netns;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use onehop_core::time::Time;
use tokio::sync::{mpsc, watch};

use crate::events::{Log, PodStep};
use crate::images::Image;
use crate::plan::{ContainerPlan, PreStop, RestartPolicy};
use crate::probe::{ProbeTarget, Verdict, exec};
use crate::status::Ended;

/// News of one container, with its place in the pod.
#[derive(Debug)]
pub(crate) enum Report {
    Started {
        pid: u32,
    },
    Ready(bool),
    Ended(Ended),
    Waiting {
        reason: &'static str,
        message: String,
    },
}

/// When the pod must have ended; none while it shall run.
pub(crate) type Deadline = Option<Time>;

pub(crate) struct Container {
    pub(crate) index: usize,
    pub(crate) plan: ContainerPlan,
    pub(crate) image: Option<Image>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) ns: Netns,
    pub(crate) target: ProbeTarget,
    pub(crate) restart: RestartPolicy,
    pub(crate) backoff: RestartBackoff,
    pub(crate) output: Option<PathBuf>,
    pub(crate) log: Log,
    pub(crate) reports: mpsc::UnboundedSender<(usize, Report)>,
}

/// Pauses before restarts: none before the first, then doubling; over again after a long run.
#[derive(Clone, Copy, Debug)]
pub struct RestartBackoff {
    /// Pause before the second restart.
    pub initial: Duration,
    /// Longest pause.
    pub max: Duration,
}

impl Default for RestartBackoff {
    fn default() -> Self {
        Self {
            initial: Duration::from_secs(10),
            max: Duration::from_mins(5),
        }
    }
}

impl RestartBackoff {
    /// The pause after a run of `ran`, when the last pause was `last`.
    fn next(self, last: Option<Duration>, ran: Duration) -> Duration {
        match last {
            _ if ran >= self.max * 2 => Duration::ZERO,
            None => Duration::ZERO,
            Some(Duration::ZERO) => self.initial,
            Some(last) => (last * 2).min(self.max),
        }
    }
}

impl Container {
    /// Runs the container until it shall run no more.
    pub(crate) async fn run(self, mut stop: watch::Receiver<Deadline>) {
        let mut pause = None;
        loop {
            let mut ran = None;
            match self.start() {
                Ok((child, pid)) => {
                    let ended = self.supervise(child, pid, stop.clone()).await;
                    self.report(Report::Ended(ended));
                    ran = Some(ended.finished.since(ended.started));
                    let again = match self.restart {
                        RestartPolicy::Always => true,
                        RestartPolicy::OnFailure => ended.code != 0,
                        RestartPolicy::Never => false,
                    };
                    if !again || stop.borrow().is_some() {
                        return;
                    }
                }
                Err((reason, message)) => {
                    self.log.write(PodStep::Trouble {
                        message: message.clone(),
                    });
                    self.report(Report::Waiting { reason, message });
                    // Nothing ran, so nothing may be restarted at once.
                    pause = pause.or(Some(Duration::ZERO));
                }
            }
            let next = self.backoff.next(pause, ran.unwrap_or_default());
            pause = Some(next);
            // What could not be started has said why already.
            if ran.is_some() && !next.is_zero() {
                let message = format!("back-off {} s", next.as_secs_f32());
                self.report(Report::Waiting {
                    reason: "CrashLoopBackOff",
                    message,
                });
            }
            tokio::select! {
                biased;
                _ = stop.wait_for(Option::is_some) => return,
                () = self.log.clock.sleep(next) => {}
            }
        }
    }

    fn start(&self) -> Result<(e2e_fabric::Child, u32), (&'static str, String)> {
        let command = self.command()?;
        let failed = |e: String| ("CreateContainerError", e);
        let child = self.ns.spawn(command).map_err(|e| failed(e.to_string()))?;
        let pid = child
            .id()
            .ok_or_else(|| failed("the process ended before it was seen".to_owned()))?;
        self.log.write(PodStep::Started {
            container: self.plan.name.clone(),
            pid,
        });
        self.report(Report::Started { pid });
        Ok((child, pid))
    }

    fn command(&self) -> Result<Command, (&'static str, String)> {
        let image = self.image.as_ref();
        let image = image.ok_or_else(|| {
            (
                "ErrImagePull",
                format!("no image {:?} in the table", self.plan.image),
            )
        })?;
        let expand = |text: &String| expand(text, &self.env);
        let mut command = if let Some((program, args)) = self.plan.command.split_first() {
            let mut command = Command::new(expand(program));
            command.args(args.iter().map(expand));
            command
        } else {
            let mut command = Command::new(&image.program);
            command.args(&image.args);
            command
        };
        command.args(self.plan.args.iter().map(expand)).env_clear();
        if let Some(path) = std::env::var_os("PATH") {
            command.env("PATH", path);
        }
        command
            .envs(self.env.iter().map(|(k, v)| (k, v)))
            .current_dir("/")
            .stdin(Stdio::null());
        let (out, err) = self
            .outputs()
            .map_err(|e| ("CreateContainerError", format!("open its log: {e}")))?;
        command.stdout(out).stderr(err);
        Ok(command)
    }

    fn outputs(&self) -> std::io::Result<(Stdio, Stdio)> {
        let Some(path) = &self.output else {
            return Ok((Stdio::null(), Stdio::null()));
        };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let file: File = OpenOptions::new().create(true).append(true).open(path)?;
        Ok((file.try_clone()?.into(), file.into()))
    }

    async fn supervise(
        &self,
        mut child: e2e_fabric::Child,
        pid: u32,
        stop: watch::Receiver<Deadline>,
    ) -> Ended {
        let started = self.log.clock.now();
        // The child is reaped by this select alone, so the pid stays its own while the others use it.
        let status = tokio::select! {
            biased;
            status = child.wait() => status,
            () = self.probe() => unreachable!("probing has no end"),
            () = self.end(pid, stop) => unreachable!("the end is the process's"),
        };
        let (code, signal) = outcome(status.unwrap_or_default());
        self.log.write(PodStep::Exited {
            container: self.plan.name.clone(),
            code,
        });
        Ended {
            code,
            signal,
            started,
            finished: self.log.clock.now(),
            pid,
        }
    }

    /// Reports each change of readiness; goes on until the process ends, also while it is being ended.
    async fn probe(&self) {
        let Some(plan) = &self.plan.readiness else {
            self.report(Report::Ready(true));
            return std::future::pending().await;
        };
        let mut verdict = Verdict::default();
        self.log.clock.sleep(plan.delay).await;
        loop {
            let due = self.log.clock.now() + plan.period;
            if let Some(ready) = verdict.take(self.target.ask(plan).await, plan) {
                self.report(Report::Ready(ready));
            }
            self.log.clock.sleep_until(due).await;
        }
    }

    /// Waits for the order to end, then: preStop, SIGTERM, and SIGKILL at the deadline.
    async fn end(&self, pid: u32, mut stop: watch::Receiver<Deadline>) {
        let clock = &self.log.clock;
        let ordered = stop
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|deadline| *deadline);
        let Some(deadline) = ordered else {
            // The pod's task is gone, as at the kubelet's own end: the process outlives it.
            return std::future::pending().await;
        };
        if let Some(handler) = &self.plan.pre_stop {
            tokio::select! {
                () = self.pre_stop(handler) => {}
                () = clock.sleep_until(deadline) => {}
            }
        }
        self.log.write(PodStep::Sigterm {
            container: self.plan.name.clone(),
        });
        self.signal(pid, Signal::SIGTERM);
        let floor = if self.plan.pre_stop.is_some() {
            self.plan.after_pre_stop
        } else {
            Duration::ZERO
        };
        clock.sleep_until(deadline.max(clock.now() + floor)).await;
        self.log.write(PodStep::Sigkill {
            container: self.plan.name.clone(),
        });
        self.signal(pid, Signal::SIGKILL);
        std::future::pending::<()>().await;
    }

    async fn pre_stop(&self, handler: &PreStop) {
        match handler {
            PreStop::Sleep(time) => self.log.clock.sleep(*time).await,
            PreStop::Exec(command) => {
                if !exec(&self.ns, command).await {
                    self.log.write(PodStep::Trouble {
                        message: format!("preStop {command:?} failed"),
                    });
                }
            }
        }
    }

    fn signal(&self, pid: u32, signal: Signal) {
        let sent = i32::try_from(pid)
            .map_err(|_| nix::Error::ESRCH)
            .and_then(|p| kill(Pid::from_raw(p), signal));
        if let Err(error) = sent {
            self.log.write(PodStep::Trouble {
                message: format!("{signal} to {pid}: {error}"),
            });
        }
    }

    fn report(&self, report: Report) {
        // The pod's task ends only after its containers.
        let _ = self.reports.send((self.index, report));
    }
}

fn outcome(status: ExitStatus) -> (i32, Option<i32>) {
    match (status.code(), status.signal()) {
        (Some(code), _) => (code, None),
        (None, Some(signal)) => (128 + signal, Some(signal)),
        (None, None) => (-1, None),
    }
}

/// `$(NAME)` in commands and arguments, as Kubernetes expands it; an unknown name stays as it is.
fn expand(text: &str, env: &[(String, String)]) -> String {
    // The last definition of a name wins.
    env.iter()
        .rev()
        .fold(text.to_owned(), |text, (name, value)| {
            text.replace(&format!("$({name})"), value)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_restart_is_at_once_and_the_next_ones_wait_twice_as_long_each() {
        let backoff = RestartBackoff::default();
        let short = Duration::from_secs(1);
        let mut pause = None;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            pause = Some(backoff.next(pause, short));
            pauses.extend(pause.map(|p| p.as_secs()));
        }
        assert_eq!(pauses, [0, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(backoff.next(pause, Duration::from_mins(10)), Duration::ZERO);
    }

    #[test]
    fn arguments_name_the_environment() {
        let env = vec![("POD_IP".to_owned(), "10.244.1.2".to_owned())];
        assert_eq!(
            expand("--listen=$(POD_IP):80 $(NOBODY)", &env),
            "--listen=10.244.1.2:80 $(NOBODY)"
        );
    }
}
