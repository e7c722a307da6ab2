//! Which endpoint a namespace chose for whom, and when: a record of every translated flow, kept when the kernel has
//! long forgotten it. A reset that answers a SYN ends the entry of connection tracking at once, so the table itself
//! cannot explain a refused connection.
//!
//! Each node has one from its start, the fake cloud starts one in each LB node; reports of failures ask it.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use onehop_core::time::Time;
use onehop_nft::conntrack::STATUS_DNAT;
use onehop_nft::{Flow, FlowChange, FlowChanges, Told};
use onehop_runtime::clock::Clock;

use crate::fabric::lock;
use crate::netns::Netns;
use crate::{Result, io};

/// Flows kept, newest last.
const KEPT: usize = 20_000;

/// A flow whose destination the namespace translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    /// When its first packet had passed, within the delay of a thread's wake-up.
    pub at: Time,
    /// IP protocol number.
    pub protocol: u8,
    /// Source of the first packet as it arrived.
    pub client: SocketAddr,
    /// Where the first packet was sent.
    pub destination: SocketAddr,
    /// Where it was translated to.
    pub endpoint: SocketAddr,
    /// The source that the endpoint sees.
    pub source: SocketAddr,
}

impl FlowRecord {
    /// None for a flow that goes where it was sent, such as a probe.
    fn new(at: Time, flow: &Flow) -> Option<Self> {
        let (original, reply) = (&flow.original, &flow.reply);
        (flow.status & STATUS_DNAT != 0).then(|| Self {
            at,
            protocol: original.protocol,
            client: SocketAddr::new(original.src, original.src_port),
            destination: SocketAddr::new(original.dst, original.dst_port),
            endpoint: SocketAddr::new(reply.src, reply.src_port),
            source: SocketAddr::new(reply.dst, reply.dst_port),
        })
    }
}

/// What a hook is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowEvent {
    /// A first packet passed.
    Started(FlowRecord),
    /// The kernel forgot the flow: reset, deleted, or closed and its time over. `at` is the time of that.
    Ended(FlowRecord),
}

/// Called on the log's thread, without any lock of the log's.
pub type FlowHook = Arc<dyn Fn(FlowEvent) + Send + Sync>;

/// The record of one namespace's flows. Its thread ends when it is dropped.
#[must_use = "flows are recorded until this is dropped"]
pub struct FlowLog {
    shared: Arc<Shared>,
    // Written to wake the thread, closed to end it.
    wake: Option<UnixStream>,
    thread: Option<JoinHandle<Result<()>>>,
}

struct Shared {
    namespace: String,
    clock: Clock,
    hook: Option<FlowHook>,
    state: Mutex<State>,
}

struct State {
    changes: FlowChanges,
    kept: VecDeque<FlowRecord>,
    untold: Vec<FlowEvent>,
    lost: u64,
}

impl FlowLog {
    /// Starts to record the flows of `ns`.
    pub fn start(ns: &Netns, clock: Clock) -> Result<Self> {
        Self::begin(ns, clock, None)
    }

    /// As [`FlowLog::start`]; `hook` is told of each flow's start and end.
    pub fn start_with(ns: &Netns, clock: Clock, hook: FlowHook) -> Result<Self> {
        Self::begin(ns, clock, Some(hook))
    }

    fn begin(ns: &Netns, clock: Clock, hook: Option<FlowHook>) -> Result<Self> {
        ns.sysctl(&[("net/netfilter/nf_conntrack_events", "1")])?;
        let told = match hook {
            Some(_) => Told::All,
            None => Told::Beginnings,
        };
        let what = |what: &str| io(format!("{what} of flows in {}", ns.name()));
        let changes = ns
            .run(move || FlowChanges::open(told))
            .map_err(what("open the notifications"))?;
        let readable = changes
            .as_fd()
            .try_clone_to_owned()
            .map_err(what("share the notifications"))?;
        let (wake, woken) = UnixStream::pair().map_err(what("make the wake-up"))?;
        // A full wake-up is as good as another byte; and the thread may find fewer bytes than it was woken for.
        for end in [&wake, &woken] {
            end.set_nonblocking(true)
                .map_err(what("make the wake-up"))?;
        }
        let shared = Arc::new(Shared {
            namespace: ns.name().to_owned(),
            clock,
            hook,
            state: Mutex::new(State {
                changes,
                kept: VecDeque::new(),
                untold: Vec::new(),
                lost: 0,
            }),
        });
        let of_thread = Arc::clone(&shared);
        let thread = ns.thread("flows", move || of_thread.follow(&readable, woken))?;
        Ok(Self {
            shared,
            wake: Some(wake),
            thread: Some(thread),
        })
    }

    /// The flow that `client` began last. One whose first packet was answered before this call is always found, unless
    /// 20,000 came after it.
    pub fn last_of(&self, protocol: u8, client: SocketAddr) -> Option<FlowRecord> {
        let of = |record: &&FlowRecord| record.protocol == protocol && record.client == client;
        self.read(|kept| kept.iter().rev().find(of).copied())
    }

    /// The endpoint chosen for the flow that `client` began last, and when.
    pub fn endpoint_of(&self, protocol: u8, client: SocketAddr) -> Option<(SocketAddr, Time)> {
        self.last_of(protocol, client)
            .map(|record| (record.endpoint, record.at))
    }

    /// The kept flows of `client`, of any protocol, newest first.
    pub fn all_of(&self, client: SocketAddr) -> Vec<FlowRecord> {
        let of = |record: &&FlowRecord| record.client == client;
        self.read(|kept| kept.iter().rev().filter(of).copied().collect())
    }

    /// How often the kernel told faster than it was read, and flows are missing.
    pub fn lost(&self) -> u64 {
        lock(&self.shared.state).lost
    }

    fn read<T>(&self, look: impl FnOnce(&VecDeque<FlowRecord>) -> T) -> T {
        let mut state = lock(&self.shared.state);
        // The notification is there before the first packet leaves; the thread may not have read it yet.
        self.shared.catch_up(&mut state);
        if let Some(wake) = self.wake.as_ref().filter(|_| !state.untold.is_empty()) {
            let _ = (&*wake).write(&[0]);
        }
        look(&state.kept)
    }
}

impl Drop for FlowLog {
    fn drop(&mut self) {
        // Not only closed: a child that is just being started elsewhere has a copy of it.
        if let Some(wake) = self.wake.take() {
            let _ = wake.shutdown(Shutdown::Both);
        }
        if let Some(thread) = self.thread.take() {
            // A hook may hold the last handle to what owns this log.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Shared {
    /// Reads and tells until the other end of `woken` is closed.
    fn follow(&self, changes: &impl AsFd, mut woken: UnixStream) {
        loop {
            let mut fds = [
                PollFd::new(changes.as_fd(), PollFlags::POLLIN),
                PollFd::new(woken.as_fd(), PollFlags::POLLIN),
            ];
            // An interrupted wait is one that found nothing.
            let _ = poll(&mut fds, PollTimeout::NONE);
            if matches!(woken.read(&mut [0; 64]), Ok(0)) {
                return;
            }
            let untold = {
                let mut state = lock(&self.state);
                self.catch_up(&mut state);
                std::mem::take(&mut state.untold)
            };
            for event in untold {
                self.hook.iter().for_each(|hook| hook(event));
            }
        }
    }

    /// Takes in everything that the kernel has told so far.
    fn catch_up(&self, state: &mut State) {
        loop {
            let at = self.clock.now();
            match state.changes.poll() {
                Ok(None) => return,
                Ok(Some(FlowChange::Began(flow))) => {
                    if let Some(record) = FlowRecord::new(at, &flow) {
                        state.keep(record);
                        self.tell_later(state, FlowEvent::Started(record));
                    }
                }
                Ok(Some(FlowChange::Ended(flow))) => {
                    if let Some(record) = FlowRecord::new(at, &flow) {
                        self.tell_later(state, FlowEvent::Ended(record));
                    }
                }
                Ok(Some(FlowChange::Lost)) => {
                    state.lost += 1;
                    tracing::warn!(namespace = self.namespace, "flows were not recorded");
                }
                Err(error) => {
                    tracing::warn!(namespace = self.namespace, %error, "flows cannot be read");
                    return;
                }
            }
        }
    }

    fn tell_later(&self, state: &mut State, event: FlowEvent) {
        if self.hook.is_some() {
            state.untold.push(event);
        }
    }
}

impl State {
    fn keep(&mut self, record: FlowRecord) {
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(record);
    }
}
