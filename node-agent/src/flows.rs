//! Clean-up of connection tracking for UDP (S-91 to S-96) and guarded targets (ZD-45, S-418), on a thread of its own,
//! out of the commit path.
//!
//! A UDP "connection" lives as long as its client keeps sending, so one that was made for an
//! endpoint which is gone, or before the rules existed, would never reach a living endpoint. What
//! is stale follows from the wanted state alone, never from single events. TCP and SCTP flows are
//! never touched (S-90), but for attempts to connect that were let through before their frontend was
//! programmed, all resends of which would go the same way (S-134), and for first packets of TCP that went to a pod
//! which is gone: without their entry the resend is steered.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use onehop_nft::DumpError;
use onehop_nft::conntrack::{
    Conntrack, Filter, Flow, STATUS_DNAT, STATUS_SEEN_REPLY, TCP_SYN_SENT,
};
use onehop_runtime::clock::Clock;

use crate::claims::Front;
use crate::metrics::Metrics;
use crate::table::element::{Family, Frontend, Protocol};

/// Pause before a clean-up that failed is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// Endpoints that serve, by UDP frontend; empty: the frontend is gone or serves nobody (S-92). With
/// their ports: a pod that goes on under another target port answers nobody on the old one.
pub type Servers = BTreeMap<Front, BTreeSet<SocketAddr>>;

/// Frontends to look at.
#[derive(Debug, Default)]
pub struct Task {
    /// UDP frontends whose servers changed.
    pub servers: Servers,
    /// TCP frontends that were not there before, after a start or a repair.
    pub fresh: BTreeSet<Front>,
    /// Targets whose pods are gone.
    pub gone: BTreeSet<Frontend>,
    /// Addresses on which node ports answer.
    pub node_addresses: Vec<IpAddr>,
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

    /// Asks for a clean-up of the flows of these frontends. Without any it costs nothing (S-96).
    pub fn clean(&self, task: Task) {
        if task.is_empty() {
            return;
        }
        if self.tasks.send(task).is_err() {
            tracing::error!("the connection tracking thread has ended; stale UDP flows stay");
        }
    }
}

fn work(mut conntrack: Conntrack, inbox: &Receiver<Task>, clock: Clock, metrics: &Metrics) {
    let mut pending = Task::default();
    loop {
        match next(inbox, !pending.is_empty()) {
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
    fn is_empty(&self) -> bool {
        self.servers.is_empty() && self.fresh.is_empty() && self.gone.is_empty()
    }

    fn merge(&mut self, newer: Self) {
        self.servers.extend(newer.servers);
        self.fresh.extend(newer.fresh);
        self.gone.extend(newer.gone);
        self.node_addresses = newer.node_addresses;
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
                protocol: Some(Protocol::Tcp.number()),
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
        let udp = narrowest(family, Protocol::Udp, self.servers.keys());
        let tcp = narrowest(family, Protocol::Tcp, self.fresh.iter());
        let any = udp.is_some() || tcp.is_some();
        let mut deleted = 0;
        if let Some(filter) = udp {
            deleted += conntrack.delete_where(&filter, |flow| self.is_stale(family, flow))?;
            self.servers.retain(|front, _| front.family() != family);
        }
        if let Some(filter) = tcp {
            deleted += conntrack.delete_where(&filter, |flow| self.is_lost(family, flow))?;
            self.fresh.retain(|front| front.family() != family);
        }
        Ok(any.then_some(deleted))
    }

    /// Whether an attempt to connect went by a frontend untranslated and without an answer (S-134).
    fn is_lost(&self, family: Family, flow: &Flow) -> bool {
        let to = flow.original;
        flow.status & (STATUS_SEEN_REPLY | STATUS_DNAT) == 0
            && self
                .fronts_at(family, Protocol::Tcp, to.dst, to.dst_port)
                .any(|front| self.fresh.contains(&front))
    }

    /// The frontends that a destination may be: its address, and a node port only on our own addresses. A pod may talk
    /// to any other host on the same number (S-95).
    fn fronts_at(
        &self,
        family: Family,
        protocol: Protocol,
        address: IpAddr,
        port: u16,
    ) -> impl Iterator<Item = Front> {
        let vip = Front::Vip(Frontend {
            address,
            protocol,
            port,
        });
        let own = self.node_addresses.contains(&address);
        let node_port = own.then_some(Front::NodePort(family, protocol, port));
        std::iter::once(vip).chain(node_port)
    }

    /// Whether a flow goes to one of the frontends and to somebody who does not serve it. A flow
    /// that was never translated answers from the frontend itself, which is stale too (S-93).
    fn is_stale(&self, family: Family, flow: &Flow) -> bool {
        let (original, reply) = (&flow.original, &flow.reply);
        let from = SocketAddr::new(reply.src, reply.src_port);
        self.is_stale_tuple(family, original.dst, original.dst_port, from)
    }

    fn is_stale_tuple(&self, family: Family, addr: IpAddr, port: u16, from: SocketAddr) -> bool {
        let mut fronts = self.fronts_at(family, Protocol::Udp, addr, port);
        let servers = fronts.find_map(|front| self.servers.get(&front));
        servers.is_some_and(|servers| !servers.contains(&from))
    }
}

/// The narrowest filter that the kernel can apply for these frontends (S-96); `None`: none is of the family.
fn narrowest<'a>(
    family: Family,
    protocol: Protocol,
    fronts: impl Iterator<Item = &'a Front>,
) -> Option<Filter> {
    let mut of_family = fronts.filter(|front| front.family() == family);
    let first = *of_family.next()?;
    let (dst, port) = match (first, of_family.next()) {
        (Front::Vip(front), None) => (Some(front.address), Some(front.port)),
        (Front::NodePort(_, _, port), None) => (None, Some(port)),
        (_, Some(_)) => (None, None),
    };
    Some(Filter {
        v6: family == Family::V6,
        protocol: Some(protocol.number()),
        original_dst: dst,
        original_dst_port: port,
        ..Filter::default()
    })
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
            fresh: BTreeSet::new(),
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
    fn s99_a_node_port_without_node_addresses_is_nobodys_destination() {
        let node_port = Front::NodePort(Family::V4, Protocol::Udp, 30053);
        let task = Task {
            node_addresses: Vec::new(),
            ..task(node_port, &[])
        };
        // DI-11
        assert!(!stale(&task, "10.0.1.1", 30053, "10.244.0.9:5353"), "S-99");
        assert!(!stale(&task, "0.0.0.0", 30053, "10.244.0.9:5353"), "S-99");
    }

    #[test]
    fn s96_a_single_frontend_is_filtered_in_the_kernel() {
        let of = |fronts: &[Front]| narrowest(Family::V4, Protocol::Udp, fronts.iter());
        let filter = of(&[vip("10.96.0.10"), vip("fd00::1")]).expect("one of the family");
        assert_eq!(filter.original_dst, Some(addr("10.96.0.10")));
        assert_eq!(
            (filter.protocol, filter.original_dst_port),
            (Some(17), Some(53))
        );
        let several = of(&[vip("10.96.0.10"), vip("10.96.0.11")]).expect("two of the family");
        assert_eq!((several.protocol, several.original_dst), (Some(17), None));
        assert_eq!(
            of(&[vip("fd00::1")]),
            None,
            "S-96: nothing changed, no dump"
        );
    }
}
