//! One container: its process, its probe, its restarts, its end.
//!
//! A task of its own, so that an API server that hangs delays no SIGTERM. It reports to the pod's task
//! ([`crate::pod`]), which alone decides what the status says.

use std::collections::BTreeMap;
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
use crate::plan::{ContainerPlan, MountPlan, PreStop, RestartPolicy};
use crate::probe::{ProbeAction, ProbeTarget, Verdict, exec};
use crate::sandbox::{Mount, Sandbox};
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
    /// Folders of the pod's volumes.
    pub(crate) volumes: BTreeMap<String, PathBuf>,
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
        let mut words: Vec<String> = if self.plan.command.is_empty() {
            let program = image.program.to_string_lossy().into_owned();
            std::iter::once(program).chain(image.args.clone()).collect()
        } else {
            self.plan.command.iter().map(expand).collect()
        };
        words.extend(self.plan.args.iter().map(expand));
        let mut command = self.as_image(image, words, None)?;
        command.stdin(Stdio::null());
        let (out, err) = self
            .outputs()
            .map_err(|e| ("CreateContainerError", format!("open its log: {e}")))?;
        command.stdout(out).stderr(err);
        Ok(command)
    }

    /// A command in this container's environment, and of an image with files of its own in its sandbox: a new one, or that
    /// of the process.
    fn as_image(
        &self,
        image: &Image,
        words: Vec<String>,
        within: Option<u32>,
    ) -> Result<Command, (&'static str, String)> {
        let mut command = if let Some(own) = &image.own {
            let security = &self.plan.security;
            if let Some(why) = security.refused {
                return Err(("CreateContainerConfigError", why.to_owned()));
            }
            let sandbox = Sandbox {
                root: own.root.clone(),
                read_only: security.read_only_root,
                mounts: self.mounts()?,
                identity: security.identity.clone(),
                command: words,
                within,
            };
            let text = serde_json::to_string(&sandbox)
                .map_err(|e| ("CreateContainerError", e.to_string()))?;
            let mut command = Command::new(&own.starter);
            command.arg(text).env_clear().env("PATH", &own.path);
            command
        } else {
            let mut words = words.into_iter();
            let mut command = Command::new(words.next().unwrap_or_default());
            command.args(words).env_clear();
            if let Some(path) = std::env::var_os("PATH") {
                command.env("PATH", path);
            }
            command
        };
        command
            .envs(self.env.iter().map(|(k, v)| (k, v)))
            .current_dir("/");
        Ok(command)
    }

    fn mounts(&self) -> Result<Vec<Mount>, (&'static str, String)> {
        let mount = |plan: &MountPlan| {
            let source = self.volumes.get(&plan.volume).cloned();
            let source = source.ok_or_else(|| {
                let why = format!("no volume {:?}", plan.volume);
                ("CreateContainerConfigError", why)
            })?;
            Ok(Mount {
                source,
                target: plan.path.clone().into(),
                read_only: plan.read_only,
            })
        };
        self.plan.mounts.iter().map(mount).collect()
    }

    /// A command of a probe or a handler: in the sandbox of the process where there is one, else among the machine's files
    /// with the kubelet's own environment.
    fn inside(&self, pid: u32, words: &[String]) -> Option<Command> {
        match &self.image {
            Some(image) if image.own.is_some() => {
                self.as_image(image, words.to_vec(), Some(pid)).ok()
            }
            _ => {
                let (program, args) = words.split_first()?;
                let mut command = Command::new(program);
                command.args(args);
                Some(command)
            }
        }
    }

    async fn exec(&self, pid: u32, words: &[String]) -> bool {
        match self.inside(pid, words) {
            Some(command) => exec(&self.ns, command).await,
            None => false,
        }
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
            () = self.probe(pid) => unreachable!("probing has no end"),
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
    async fn probe(&self, pid: u32) {
        let Some(plan) = &self.plan.readiness else {
            self.report(Report::Ready(true));
            return std::future::pending().await;
        };
        let mut verdict = Verdict::default();
        self.log.clock.sleep(plan.delay).await;
        loop {
            let due = self.log.clock.now() + plan.period;
            let good = match &plan.action {
                ProbeAction::Exec { command } => {
                    let answer = self.exec(pid, command);
                    self.target.in_time(plan, answer).await
                }
                _ => self.target.ask(plan).await,
            };
            if let Some(ready) = verdict.take(good, plan) {
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
                () = self.pre_stop(pid, handler) => {}
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

    async fn pre_stop(&self, pid: u32, handler: &PreStop) {
        match handler {
            PreStop::Sleep(time) => self.log.clock.sleep(*time).await,
            PreStop::Exec(command) => {
                if !self.exec(pid, command).await {
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
