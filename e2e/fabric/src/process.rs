//! The processes of a world: one PID namespace, whose init dies with the world.
//!
//! Why not `PR_SET_PDEATHSIG`: it fires when the *thread* that spawned the child ends, and threads here are short.
//! Instead init is a `cat` that reads a pipe held by this process alone. When the harness ends, by whatever signal,
//! the pipe closes, init ends, and the kernel kills everything in its PID namespace. Init ignores SIGCHLD, so the
//! kernel reaps orphans by itself.

use std::fs::File;
use std::process::{Child as StdChild, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sched::{CloneFlags, setns, unshare};
use tokio::runtime::Handle;

use crate::{Error, Result, io, netns};

/// A process of the world. Its [`tokio::process::Child::id`] is valid in the harness's own PID namespace.
pub type Child = tokio::process::Child;

/// The world's PID namespace. Made before the first namespace, ended after the last.
pub(crate) struct Processes {
    pid_namespace: Arc<File>,
    init: Mutex<Option<Init>>,
}

struct Init {
    child: StdChild,
    life: ChildStdin,
}

impl Processes {
    /// Makes the PID namespace and its init.
    pub(crate) fn start() -> Result<Self> {
        // The namespace of a thread's children is per thread too: a thread of its own keeps it from every other.
        let thread = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWPID)
                .map_err(|e| io("make a PID namespace (is this root?)")(e.into()))?;
            Command::new("sh")
                .args(["-c", "trap '' CHLD; exec cat"])
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .current_dir("/")
                .spawn()
                .map_err(io("start the world's init"))
        });
        let mut child = joined(thread)?;
        let path = format!("/proc/{}/ns/pid", child.id());
        let pid_namespace = Arc::new(File::open(&path).map_err(io(format!("open {path}")))?);
        let Some(life) = child.stdin.take() else {
            unreachable!("stdin was asked to be piped")
        };
        Ok(Self {
            pid_namespace,
            init: Mutex::new(Some(Init { child, life })),
        })
    }

    /// Starts `command` in the network namespace `net` and in the world's PID namespace.
    pub(crate) fn spawn(&self, net: Arc<File>, command: Command) -> Result<Child> {
        let runtime = Handle::try_current().map_err(|e| {
            Error::Invalid(format!(
                "processes are started from within a tokio runtime: {e}"
            ))
        })?;
        let pid_namespace = Arc::clone(&self.pid_namespace);
        // Not the namespace's own thread: one that has set a PID namespace for its children can start no threads.
        let thread = std::thread::spawn(move || {
            netns::join(&net)?;
            setns(&*pid_namespace, CloneFlags::CLONE_NEWPID)
                .map_err(|e| io("join the world's PID namespace")(e.into()))?;
            let what = format!("start {}", command.get_program().display());
            let _context = runtime.enter();
            tokio::process::Command::from(command)
                .spawn()
                .map_err(io(what))
        });
        joined(thread)
    }

    /// Kills every process of the world. They end at once, but not before this returns; their owners reap them.
    pub(crate) fn end(&self) {
        let init = self
            .init
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(Init { mut child, life }) = init {
            drop(life);
            let _ = child.kill();
            // Init is a zombie only after the last process of its namespace was reaped, and their reapers may be
            // tasks of the very thread that runs this. So it is waited for aside.
            std::thread::spawn(move || child.wait());
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.end();
    }
}

fn joined<T>(thread: std::thread::JoinHandle<Result<T>>) -> Result<T> {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
