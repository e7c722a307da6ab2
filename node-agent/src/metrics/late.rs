//! Flows that a load balancer still sends to who is leaving: what guards and Local windows did for them (ZD-122). The
//! numbers of flows lie in the kernel and are read when somebody asks.

use std::sync::atomic::Ordering;
use std::time::Duration;

use onehop_core::id::Protocol;
use onehop_nft::Socket;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::guard::End;
use crate::table::counts::{self, Counted, Counts};

type Labels = [(&'static str, &'static str); 2];
type Label = [(&'static str, &'static str); 1];

/// All of them.
#[derive(Debug)]
pub struct Late {
    steered: Family<Labels, Counter>,
    refused: Family<Label, Counter>,
    window: Family<Label, Counter>,
    address_lost: Counter,
    ends: Family<Label, Counter>,
    guarded_after: Histogram,
    last_flow_after: Histogram,
}

impl Default for Late {
    fn default() -> Self {
        Self {
            steered: Family::default(),
            refused: Family::default(),
            window: Family::default(),
            address_lost: Counter::default(),
            ends: Family::default(),
            // 1 ms to 16 s: the goal is 100 ms (ZD-48).
            guarded_after: Histogram::new(exponential_buckets(0.001, 2.0, 15)),
            // 1 s to 17 min: the longest bound is 13 min (ZD-51).
            last_flow_after: Histogram::new(exponential_buckets(1.0, 2.0, 11)),
        }
    }
}

impl Late {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "steered_flows",
            "New flows to a guarded target that went to another endpoint",
            self.steered.clone(),
        );
        registry.register(
            "refused_flows",
            "New flows to a target that is gone, refused since no other endpoint serves",
            self.refused.clone(),
        );
        registry.register(
            "window_flows",
            "New flows that came after the last local endpoint of a Service left, and went to another node",
            self.window.clone(),
        );
        registry.register(
            "client_address_lost",
            "New flows that went to another node with an address of this one as their source",
            self.address_lost.clone(),
        );
        registry.register(
            "guard_ends",
            "Guards that ended, by cause",
            self.ends.clone(),
        );
        registry.register(
            "guarded_after_seconds",
            "From the sight of a pod's deletion to the commit of its guard",
            self.guarded_after.clone(),
        );
        registry.register(
            "last_flow_after_seconds",
            "From a target's deregistration to the last new flow that came to it",
            self.last_flow_after.clone(),
        );
    }

    /// A guard ended.
    pub fn ended(&self, cause: End) {
        self.ends.get_or_create(&[("cause", cause.as_str())]).inc();
    }

    /// From the sight of a deletion to the commit of the guard.
    pub fn guarded_after(&self, took: Duration) {
        self.guarded_after.observe(took.as_secs_f64());
    }

    /// From a target's deregistration to the last new flow that came to it.
    pub fn last_flow_after(&self, took: Duration) {
        self.last_flow_after.observe(took.as_secs_f64());
    }

    pub(super) fn look_at_kernel(&self) {
        let counts = Socket::open().map_err(onehop_nft::DumpError::from);
        match counts.and_then(|mut socket| counts::read(&mut socket)) {
            Ok(counts) => self.set(&counts),
            Err(error) => tracing::debug!(%error, "the counts of flows cannot be read"),
        }
    }

    /// Takes over what the kernel counted.
    pub(super) fn set(&self, counts: &Counts) {
        let mut lost = 0;
        for ((counted, protocol), flows) in counts {
            let of_protocol = ("protocol", protocol_label(*protocol));
            let to = |to| {
                self.steered
                    .get_or_create(&[("to", to), of_protocol])
                    .clone()
            };
            let counter = match counted {
                Counted::SteeredHere => to("same_node"),
                Counted::SteeredElsewhere => to("other_node"),
                Counted::Refused => self.refused.get_or_create(&[of_protocol]).clone(),
                Counted::Window => self.window.get_or_create(&[of_protocol]).clone(),
            };
            // What is told is a sum already.
            counter.inner().store(*flows, Ordering::Relaxed);
            if matches!(counted, Counted::SteeredElsewhere | Counted::Window) {
                lost += flows;
            }
        }
        self.address_lost.inner().store(lost, Ordering::Relaxed);
    }
}

const fn protocol_label(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}
