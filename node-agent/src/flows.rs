//! Clean-up of connection tracking for UDP (S-91 to S-96) and guarded targets (ZD-45, S-418), on a thread of its own, out of the
//! commit path.
//!
//! A UDP "connection" lives as long as its client keeps sending, so one that was made for an
//! endpoint which is gone, or before the rules existed, would never reach a living endpoint. What
//! is stale follows from the wanted state alone, never from single events. TCP and SCTP flows are
//! never touched (S-90), but for first packets of TCP that went to a pod which is gone: without their entry
//! the resend is steered.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use onehop_nft::DumpError;
use onehop_nft::conntrack::{Conntrack, Filter, Flow, TCP_SYN_SENT};
use onehop_runtime::clock::Clock;

use crate::claims::Front;
use crate::metrics::Metrics;
use crate::table::element::{Family, Frontend, Protocol};

/// IP protocol number of UDP.
const UDP: u8 = 17;
/// IP protocol number of TCP.
const TCP: u8 = 6;
/// Pause before a clean-up that failed is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// Endpoints that serve, by UDP frontend; empty: the frontend is gone or serves nobody (S-92). With
/// their ports: a pod that goes on under another target port answers nobody on the old one.
pub type Servers = BTreeMap<Front, BTreeSet<SocketAddr>>;

/// Frontends to look at.
#[derive(Debug, Default)]
struct Task {
    servers: Servers,
    /// Targets whose pods are gone.
    gone: BTreeSet<Frontend>,
    node_addresses: Vec<IpAddr>,
}

/// Handle of the thread; it ends when this is dropped.
#[derive(Debug)]
pub struct FlowCleaner {
    tasks: Sender<Task>,
}

/// Where the thread takes its work from.
#[derive(Debug)]
pub struct Inbox {
    tasks: Receiver<Task>,
}

impl Inbox {
    /// Starts the thread in the network namespace of the caller.
    pub fn spawn(self, clock: Clock, metrics: Arc<Metrics>) -> io::Result<()> {
        let conntrack = Conntrack::open()?;
        thread::Builder::new()
            .name("conntrack".to_owned())
            .spawn(move || work(conntrack, &self.tasks, clock, &metrics))?;
        Ok(())
    }
}

impl FlowCleaner {
    /// A handle, and where its work arrives.
    pub fn new() -> (Self, Inbox) {
        let (sender, tasks) = channel();
        (Self { tasks: sender }, Inbox { tasks })
    }

    /// Asks for a clean-up of the flows of these frontends, and of half-open ones to targets that are gone.
    /// `node_addresses` are those on which node ports answer.
    pub fn clean(&self, servers: Servers, gone: BTreeSet<Frontend>, node_addresses: Vec<IpAddr>) {
        if servers.is_empty() && gone.is_empty() {
            return;
        }
        let task = Task {
            servers,
            gone,
            node_addresses,
        };
        if self.tasks.send(task).is_err() {
            tracing::error!("the connection tracking thread has ended; stale UDP flows stay");
        }
    }
}

fn work(mut conntrack: Conntrack, inbox: &Receiver<Task>, clock: Clock, metrics: &Metrics) {
    let mut pending = Task::default();
    loop {
        match next(inbox, !pending.is_done()) {
            Ok(task) => pending.merge(task),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        // Whatever came meanwhile costs no dump of its own.
        for task in inbox.try_iter() {
            pending.merge(task);
        }
        for family in Family::ALL {
            let start = clock.now();
            let cleaned = pending.run(&mut conntrack, family);
            let half_open = pending.forget_half_open(&mut conntrack, family);
            match half_open.and(cleaned) {
                Ok(None) => {}
                Ok(Some(deleted)) => {
                    let took = clock.now().since(start);
                    metrics.conntrack(family, took, u64::try_from(deleted).unwrap_or(u64::MAX));
                }
                Err(error) => {
                    tracing::warn!(%error, ?family, "cannot clean up flows; it is tried again");
                }
            }
        }
    }
}

fn next(inbox: &Receiver<Task>, failed: bool) -> Result<Task, RecvTimeoutError> {
    if failed {
        return inbox.recv_timeout(RETRY);
    }
    inbox.recv().map_err(|_| RecvTimeoutError::Disconnected)
}

impl Task {
    fn merge(&mut self, newer: Self) {
        self.servers.extend(newer.servers);
        self.gone.extend(newer.gone);
        self.node_addresses = newer.node_addresses;
    }

    fn is_done(&self) -> bool {
        self.servers.is_empty() && self.gone.is_empty()
    }

    /// Deletes entries of first packets to targets that are gone.
    fn forget_half_open(
        &mut self,
        conntrack: &mut Conntrack,
        family: Family,
    ) -> Result<(), DumpError> {
        let of_family = |key: &&Frontend| Family::of(key.address) == family;
        let keys: Vec<Frontend> = self.gone.iter().filter(of_family).copied().collect();
        for key in keys {
            let filter = Filter {
                v6: family == Family::V6,
                protocol: Some(TCP),
                original_dst: Some(key.address),
                original_dst_port: Some(key.port),
                ..Filter::default()
            };
            let to_itself = |flow: &Flow| {
                flow.tcp_state == Some(TCP_SYN_SENT)
                    && (flow.reply.src, flow.reply.src_port) == (key.address, key.port)
            };
            conntrack.delete_where(&filter, to_itself)?;
            self.gone.remove(&key);
        }
        Ok(())
    }

    /// Deletes the stale flows of one family, and forgets its frontends if that worked. `None`:
    /// there were none to look at.
    fn run(
        &mut self,
        conntrack: &mut Conntrack,
        family: Family,
    ) -> Result<Option<usize>, DumpError> {
        let mut of_family = self.servers.keys().filter(|front| front.family() == family);
        let Some(first) = of_family.next().copied() else {
            return Ok(None);
        };
        let alone = of_family.next().is_none();
        let filter = filter(family, alone.then_some(first));
        let deleted = conntrack.delete_where(&filter, |flow| self.is_stale(family, flow))?;
        self.servers.retain(|front, _| front.family() != family);
        Ok(Some(deleted))
    }

    /// Whether a flow goes to one of the frontends and to somebody who does not serve it. A flow
    /// that was never translated answers from the frontend itself, which is stale too (S-93).
    fn is_stale(&self, family: Family, flow: &Flow) -> bool {
        let (original, reply) = (&flow.original, &flow.reply);
        let from = SocketAddr::new(reply.src, reply.src_port);
        self.is_stale_tuple(family, original.dst, original.dst_port, from)
    }

    fn is_stale_tuple(&self, family: Family, addr: IpAddr, port: u16, from: SocketAddr) -> bool {
        let protocol = Protocol::Udp;
        let vip = Front::Vip(Frontend {
            address: addr,
            protocol,
            port,
        });
        // Only on our own addresses: a pod may talk to any other host on the same number (S-95).
        let node_port = || {
            let front = Front::NodePort(family, protocol, port);
            self.servers
                .get(&front)
                .filter(|_| self.node_addresses.contains(&addr))
        };
        let servers = self.servers.get(&vip).or_else(node_port);
        servers.is_some_and(|servers| !servers.contains(&from))
    }
}

/// The narrowest filter that the kernel can apply (S-96).
fn filter(family: Family, only: Option<Front>) -> Filter {
    let (dst, port) = match only {
        Some(Front::Vip(front)) => (Some(front.address), Some(front.port)),
        Some(Front::NodePort(_, _, port)) => (None, Some(port)),
        None => (None, None),
    };
    Filter {
        v6: family == Family::V6,
        protocol: Some(UDP),
        original_dst: dst,
        original_dst_port: port,
        ..Filter::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn vip(text: &str) -> Front {
        let (addr, protocol, port) = (addr(text), Protocol::Udp, 53);
        Front::Vip(Frontend {
            address: addr,
            protocol,
            port,
        })
    }

    fn server(text: &str) -> SocketAddr {
        text.parse().expect("an address and a port")
    }

    fn task(front: Front, servers: &[&str]) -> Task {
        let servers = servers.iter().map(|text| server(text)).collect();
        Task {
            servers: [(front, servers)].into(),
            gone: BTreeSet::new(),
            node_addresses: vec![addr("10.0.1.1")],
        }
    }

    fn stale(task: &Task, dst: &str, port: u16, reply: &str) -> bool {
        task.is_stale_tuple(Family::V4, addr(dst), port, server(reply))
    }

    #[test]
    fn s91_only_flows_to_somebody_who_does_not_serve_are_stale() {
        let task = task(vip("10.96.0.10"), &["10.244.0.1:5353", "10.244.0.2:5353"]);
        assert!(!stale(&task, "10.96.0.10", 53, "10.244.0.2:5353"));
        assert!(stale(&task, "10.96.0.10", 53, "10.244.0.3:5353"));
        assert!(
            stale(&task, "10.96.0.10", 53, "10.244.0.2:5300"),
            "the target port was changed"
        );
        assert!(
            !stale(&task, "10.96.0.11", 53, "10.244.0.3:5353"),
            "another Service"
        );
        assert!(
            !stale(&task, "10.96.0.10", 54, "10.244.0.3:5353"),
            "another port"
        );
    }

    #[test]
    fn s92_s93_without_servers_and_before_the_rules_every_flow_is_stale() {
        assert!(stale(
            &task(vip("10.96.0.10"), &[]),
            "10.96.0.10",
            53,
            "10.244.0.1:5353"
        ));
        let served = task(vip("10.96.0.10"), &["10.244.0.1:5353"]);
        assert!(
            stale(&served, "10.96.0.10", 53, "10.96.0.10:53"),
            "never translated"
        );
    }

    #[test]
    fn s95_a_node_port_counts_on_node_addresses_only() {
        let task = task(
            Front::NodePort(Family::V4, Protocol::Udp, 30053),
            &["10.244.0.1:5353"],
        );
        assert!(stale(&task, "10.0.1.1", 30053, "10.244.0.9:5353"));
        assert!(
            !stale(&task, "192.0.2.1", 30053, "192.0.2.1:30053"),
            "an unrelated host"
        );
    }

    #[test]
    fn s96_a_single_frontend_is_filtered_in_the_kernel() {
        let filter = filter(Family::V4, Some(vip("10.96.0.10")));
        assert_eq!(filter.original_dst, Some(addr("10.96.0.10")));
        assert_eq!(
            (filter.protocol, filter.original_dst_port),
            (Some(UDP), Some(53))
        );
    }
}
