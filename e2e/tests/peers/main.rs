//! The same packet scenarios with our agent and with a real kube-proxy (nftables mode) as every node's only Service
//! proxy: `./e2e/run test peers` prints the table. A difference that the list does not explain fails.
//!
//! A program of its own instead of tests: the table needs both outcomes of a scenario.
#![allow(clippy::print_stdout, reason = "the table is what this program is for")]

#[path = "../net/scenarios.rs"]
#[macro_use]
mod scenarios;

#[path = "../net/affinity.rs"]
mod affinity;
#[path = "../net/cells.rs"]
mod cells;
#[path = "../net/choices.rs"]
mod choices;
#[path = "../net/coexistence.rs"]
mod coexistence;
#[path = "../net/conntrack.rs"]
mod conntrack;
#[path = "../net/dual_stack.rs"]
mod dual_stack;
#[path = "../net/empty.rs"]
mod empty;
#[path = "../net/external.rs"]
mod external;
#[path = "../net/flood.rs"]
mod flood;
#[path = "../net/frontends.rs"]
mod frontends;
#[path = "../net/hairpin.rs"]
mod hairpin;
#[path = "../net/health_port.rs"]
mod health_port;
#[path = "../net/lab.rs"]
mod lab;
#[path = "../net/labels.rs"]
mod labels;
#[path = "../net/local_policy.rs"]
mod local_policy;
#[path = "../net/node_faults.rs"]
mod node_faults;
#[path = "../net/node_gone.rs"]
mod node_gone;
#[path = "../net/node_ports.rs"]
mod node_ports;
#[path = "../net/removal.rs"]
mod removal;
#[path = "../net/sctp.rs"]
mod sctp;
#[path = "../net/sharing.rs"]
mod sharing;
#[path = "../net/signals.rs"]
mod signals;
#[path = "../net/slices.rs"]
mod slices;
#[path = "../net/source_ranges.rs"]
mod source_ranges;
#[path = "../net/support.rs"]
mod support;
#[path = "../net/terminating.rs"]
mod terminating;
#[path = "../net/topology.rs"]
mod topology;
#[path = "../net/udp.rs"]
mod udp;
#[path = "../net/vip.rs"]
mod vip;
#[path = "../net/ways_to_run.rs"]
mod ways_to_run;
#[path = "../net/zones.rs"]
mod zones;

mod run;
mod table;

use anyhow::Result;
use onehop_e2e::world::Cluster;
use std::{pin::Pin, process::ExitCode};

/// What a real kube-proxy makes of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    /// What the agent makes of it.
    Same,
    /// Something else, by this requirement and for this reason: it has to fail with kube-proxy.
    Differs(&'static str, &'static str),
    /// Nothing: it is about our own programs, by this requirement. It runs as one of `packets` only.
    Ours(&'static str, &'static str),
}

type Running = Pin<Box<dyn Future<Output = Result<()>>>>;

/// A scenario that can be run on any cluster.
#[derive(Clone, Copy)]
struct Scenario {
    name: &'static str,
    peer: Peer,
    run: fn(Cluster) -> Running,
}

macro_rules! list {
    ($($module:ident { $($name:ident: $weight:ident, $peer:expr;)* })*) => {
        fn all() -> Vec<Scenario> {
            let of_modules = [$(vec![$(Scenario {
                name: concat!(stringify!($module), "::", stringify!($name)),
                peer: $peer,
                run: |on| Box::pin($module::$name(on)),
            }),*]),*];
            of_modules.concat()
        }
    };
}

scenarios! { list }

fn main() -> ExitCode {
    let asked = run::Asked::from_args(std::env::args().skip(1));
    let rows = run::rows(all(), &asked);
    println!("{}", table::text(&rows));
    let (passed, failed) = table::counts(&rows);
    // As libtest ends, so that the launcher counts both alike.
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {verdict}. {passed} passed; {failed} failed");
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
