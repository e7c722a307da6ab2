//! One named network namespace with a thread of its own.
//!
//! `setns` for a network namespace is per thread, so the harness stays where it is and sends closures to that
//! thread. A socket belongs to the namespace in which it was made, whoever uses it later: [`Netns::tcp_socket`] and
//! its like hand plain std sockets out.

use std::fs::File;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{setsockopt, sockopt::IpBindAddressNoPort};
use socket2::{Domain, Protocol, Socket, Type};

use crate::ip::Batch;
use crate::process::{Child, Processes};
use crate::tag::WorldTag;
use crate::{Result, io};

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace of a world. Clones share it; it is removed when the last one goes.
#[derive(Clone)]
pub struct Netns {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    // Keeps the namespace reachable for threads and children, also while its name is being removed.
    file: Arc<File>,
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    worker: Mutex<Option<JoinHandle<()>>>,
    processes: Arc<Processes>,
    // The world's lock must outlive the namespace's name.
    _tag: WorldTag,
}

impl std::fmt::Debug for Netns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Netns").field(&self.inner.name).finish()
    }
}

impl Netns {
    /// Makes the namespace `<tag>-<role>`, its loopback up.
    pub(crate) fn new(tag: &WorldTag, role: &str, processes: Arc<Processes>) -> Result<Self> {
        let name = tag.namespace(role);
        let mut batch = Batch::default();
        batch.line(format!("netns add {name}"));
        batch.run_on_host()?;
        let path = format!("/run/netns/{name}");
        let file = Arc::new(File::open(&path).map_err(io(format!("open {path}")))?);
        let (jobs, worker) = start_worker(&name, &file)?;
        let ns = Self {
            inner: Arc::new(Inner {
                name,
                file,
                jobs: Mutex::new(Some(jobs)),
                worker: Mutex::new(Some(worker)),
                processes,
                _tag: tag.clone(),
            }),
        };
        // Nobody else is on these links: an address that waits to be found unique only delays its world.
        ns.sysctl(&[
            ("net/ipv6/conf/all/accept_dad", "0"),
            ("net/ipv6/conf/default/accept_dad", "0"),
            ("net/ipv6/conf/default/accept_ra", "0"),
        ])?;
        Batch::default().line("link set lo up").run(&ns)?;
        Ok(ns)
    }

    /// Its name, as `ip netns list` shows it.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Runs `f` on the namespace's thread and waits for it. A panic in `f` is raised in the caller.
    ///
    /// Calls are served one after the other: what blocks for long belongs on [`Netns::thread`].
    pub fn run<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> T {
        let (answer, result) = mpsc::sync_channel(1);
        let job: Job = Box::new(move || {
            let _ = answer.send(catch_unwind(AssertUnwindSafe(f)));
        });
        let sent = {
            let jobs = self
                .inner
                .jobs
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok())
        };
        match (sent, result.recv()) {
            (true, Ok(Ok(value))) => value,
            (true, Ok(Err(panic))) => resume_unwind(panic),
            // The worker ends only in Drop, when no clone is left to call this.
            _ => unreachable!(
                "the worker of {} lives as long as the namespace's handle",
                self.inner.name
            ),
        }
    }

    /// Starts a thread joined to the namespace, for work that blocks or runs its own tokio runtime.
    pub fn thread<T: Send + 'static>(
        &self,
        name: &str,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<Result<T>>> {
        let file = Arc::clone(&self.inner.file);
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                join(&file)?;
                Ok(f())
            })
            .map_err(io(format!("start thread {name}")))
    }

    /// A listening TCP socket in the namespace (backlog 1024, address reusable).
    pub fn tcp_listener(&self, addr: SocketAddr) -> Result<TcpListener> {
        self.open(move || {
            let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
            socket.set_reuse_address(true)?;
            socket.bind(&addr.into())?;
            socket.listen(1024)?;
            Ok(socket.into())
        })
        .map_err(io(format!("listen on tcp {addr} in {}", self.name())))
    }

    /// A UDP socket in the namespace, bound to `addr` (port 0: any).
    pub fn udp_socket(&self, addr: SocketAddr) -> Result<UdpSocket> {
        self.open(move || UdpSocket::bind(addr))
            .map_err(io(format!("bind udp {addr} in {}", self.name())))
    }

    /// An unconnected TCP socket in the namespace, bound to `local` if given. Connect it from any thread.
    pub fn tcp_socket(&self, local: Option<SocketAddr>, family: IpAddr) -> Result<Socket> {
        self.open(move || {
            let socket = Socket::new(
                Domain::for_address((family, 0).into()),
                Type::STREAM,
                Some(Protocol::TCP),
            )?;
            if let Some(local) = local {
                socket.bind(&local.into())?;
            }
            Ok(socket)
        })
        .map_err(io(format!("open tcp in {}", self.name())))
    }

    /// Connects to `to` within `timeout`, blocking the caller and not the namespace's thread. The error keeps the
    /// kernel's own kind (refused, timed out).
    pub fn tcp_connect(&self, to: SocketAddr, timeout: Duration) -> Result<TcpStream> {
        let socket = self.tcp_socket(None, to.ip())?;
        socket
            .connect_timeout(&to.into(), timeout)
            .map_err(io(format!("connect to {to} from {}", self.name())))?;
        Ok(socket.into())
    }

    /// As [`Netns::tcp_connect`], for callers in a tokio runtime; the time-out is the caller's.
    pub async fn tcp_stream(&self, to: SocketAddr) -> Result<tokio::net::TcpStream> {
        let socket = self.tcp_socket(None, to.ip())?;
        let what = format!("connect to {to} from {}", self.name());
        socket.set_nonblocking(true).map_err(io(what.clone()))?;
        let socket = tokio::net::TcpSocket::from_std_stream(socket.into());
        socket.connect(to).await.map_err(io(what))
    }

    /// As [`Netns::tcp_stream`], from an address of the namespace. The port is chosen with the destination in view, so that
    /// as many connections as there are ports go to each.
    pub async fn tcp_stream_from(
        &self,
        from: IpAddr,
        to: SocketAddr,
    ) -> Result<tokio::net::TcpStream> {
        let what = format!("connect to {to} from {from} in {}", self.name());
        let socket = self.tcp_socket(None, to.ip())?;
        setsockopt(&socket, IpBindAddressNoPort, &true)
            .map_err(|errno| io(what.clone())(errno.into()))?;
        let bound = socket.bind(&SocketAddr::new(from, 0).into());
        bound.map_err(io(what.clone()))?;
        socket.set_nonblocking(true).map_err(io(what.clone()))?;
        let socket = tokio::net::TcpSocket::from_std_stream(socket.into());
        socket.connect(to).await.map_err(io(what))
    }

    /// Starts a process in this namespace and in the world's PID namespace. Needs a tokio runtime.
    ///
    /// It dies with the world, however the world dies. Dropping the [`Child`] does not kill it.
    pub fn spawn(&self, command: Command) -> Result<Child> {
        self.inner
            .processes
            .spawn(Arc::clone(&self.inner.file), command)
    }

    /// Makes it forward packets of both families, without a source check of its own and without redirects. To be
    /// called before it has interfaces: writing these resets what they have of their own.
    pub(crate) fn forward(&self) -> Result<()> {
        self.sysctl(&[
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv6/conf/all/forwarding", "1"),
            ("net/ipv4/conf/all/rp_filter", "0"),
            ("net/ipv4/conf/default/rp_filter", "0"),
            ("net/ipv4/conf/all/send_redirects", "0"),
            ("net/ipv4/conf/default/send_redirects", "0"),
        ])
    }

    /// Sets a sysctl of the namespace, as `net/ipv4/ip_forward`.
    pub fn sysctl(&self, settings: &[(&str, &str)]) -> Result<()> {
        let settings: Vec<(String, String)> = settings
            .iter()
            .map(|(k, v)| (format!("/proc/sys/{k}"), (*v).to_owned()))
            .collect();
        self.run(move || {
            settings.into_iter().try_for_each(|(path, value)| {
                std::fs::write(&path, &value).map_err(io(format!("write {value} to {path}")))
            })
        })
    }

    fn open<T: Send + 'static>(
        &self,
        f: impl FnOnce() -> std::io::Result<T> + Send + 'static,
    ) -> std::io::Result<T> {
        self.run(f)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.jobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(worker) = self
            .worker
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        {
            // A closure may hold the last clone; then this runs on the worker itself, which cannot wait for itself.
            if worker.thread().id() != std::thread::current().id() {
                let _ = worker.join();
            }
        }
        // Already gone when the fabric removed the world's names in one sweep.
        if std::path::Path::new("/run/netns").join(&self.name).exists() {
            let removed = Batch::default()
                .line(format!("netns del {}", self.name))
                .run_on_host();
            if let Err(error) = removed {
                tracing::warn!(namespace = self.name, %error, "namespace not removed");
            }
        }
    }
}

fn start_worker(name: &str, file: &Arc<File>) -> Result<(mpsc::Sender<Job>, JoinHandle<()>)> {
    let (jobs, queue) = mpsc::channel::<Job>();
    let (joined, ready) = mpsc::sync_channel(1);
    let file = Arc::clone(file);
    let worker = std::thread::Builder::new()
        .name(format!("ns-{name}"))
        .spawn(move || {
            let outcome = join(&file);
            let ok = outcome.is_ok();
            let _ = joined.send(outcome);
            if ok {
                for job in queue {
                    job();
                }
            }
        })
        .map_err(io(format!("start the thread of {name}")))?;
    match ready.recv() {
        Ok(outcome) => outcome.map(|()| (jobs, worker)),
        Err(_) => unreachable!("the thread sends its outcome before anything else"),
    }
}

/// Moves the calling thread into the namespace, for good.
pub(crate) fn join(file: &File) -> Result<()> {
    setns(file, CloneFlags::CLONE_NEWNET).map_err(|e| io("join network namespace")(e.into()))
}
