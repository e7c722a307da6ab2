//! What the agent's own part of a load costs: from Services and slices as they were read to the kernel, without an API
//! server. `cargo bench -p onehop-node-agent --bench sync -- [SERVICES ...]`; needs root. Beside kube-proxy, and with all
//! of it: `./e2e/run bench datapath`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a program for measuring"
)]

#[path = "../tests/common/mod.rs"]
mod common;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use common::{put, put_addresses, service, synced};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use onehop_core::time::Time;
use onehop_node_agent::args::Mode;
use onehop_node_agent::commit::{Features, Kernel, cleanup};
use onehop_node_agent::planner::Planner;
use onehop_node_agent::state::{Change, State};
use onehop_node_agent::table::element::{Dataplane, Elements};
use onehop_node_agent::table::layout::{Detector, Options};

/// Endpoints of each Service.
const ENDPOINTS: u32 = 10;
/// Services in one batch, as in the agent.
const AT_ONCE: usize = 1000;
/// Changes of one endpoint each.
const CHANGES: u32 = 2000;

fn main() {
    let sizes: Vec<u32> = std::env::args()
        .filter_map(|arg| arg.parse().ok())
        .collect();
    let sizes = if sizes.is_empty() {
        vec![1_000, 10_000, 30_000]
    } else {
        sizes
    };
    unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace needs root");
    println!(
        "| Services | read, MiB | plan, ms | commit, ms | system, ms | of it all resident, MiB | read back, ms | change, us | system, us |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for services in sizes {
        row(services);
        cleanup().unwrap();
    }
}

fn row(services: u32) {
    let mut state = known(services);
    let read = resident_mib();
    let mut kernel = kernel();
    assert_eq!(kernel.read_back().unwrap(), Some(Elements::new()));
    let mut planner = Planner::new(Elements::new());
    let (mut plan, mut commit) = (Duration::ZERO, Duration::ZERO);
    let before = system();
    loop {
        let began = Instant::now();
        let batch = planner.plan(&mut state, &[], AT_ONCE);
        plan += began.elapsed();
        let began = Instant::now();
        kernel.commit(&batch.change).unwrap();
        commit += began.elapsed();
        if !batch.more {
            break;
        }
    }
    let load_system = system().saturating_sub(before);
    let loaded = resident_mib();
    let (began, before) = (Instant::now(), system());
    for number in 0..CHANGES {
        state.apply(slice_of(number % services, number / services + 1));
        let batch = planner.plan(&mut state, &[], AT_ONCE);
        kernel.commit(&batch.change).unwrap();
    }
    let (change, change_system) = (began.elapsed(), system().saturating_sub(before));
    drop(kernel);
    let began = Instant::now();
    let held = self::kernel().read_back().unwrap().unwrap();
    let read_back = began.elapsed();
    assert_eq!(held.len(), planner.elements().len());
    println!(
        "| {services} | {read:.0} | {:.0} | {:.0} | {:.0} | {loaded:.0} | {:.0} | {:.1} | {:.1} |",
        ms(plan),
        ms(commit),
        ms(load_system),
        ms(read_back),
        ms(change) * 1000.0 / f64::from(CHANGES),
        ms(change_system) * 1000.0 / f64::from(CHANGES),
    );
}

fn kernel() -> Kernel {
    let options = Options {
        masquerade_mark: 0x4000,
        masquerade_all: false,
        masquerade_ports: Vec::new(),
        detector: Detector::Ranges(Vec::new()),
        beside_kube_proxy: false,
        before_iptables: false,
        service_cidrs: Vec::new(),
    };
    Kernel::open(&options, Features::detect(), Box::new(|| Time::EPOCH)).unwrap()
}

fn known(services: u32) -> State {
    let mut state = synced(Mode::Beside);
    for number in 0..services {
        let mut spec = service(&name(number), 1);
        spec.cluster_ips = vec![IpAddr::from((0x0a61_0000 + number).to_be_bytes())];
        state.apply(put(spec));
        state.apply(slice_of(number, 0));
    }
    state
}

fn name(number: u32) -> String {
    format!("s{number:05}")
}

/// The endpoints of a Service; of the last one there are two versions.
fn slice_of(number: u32, version: u32) -> Change {
    let first = number * (ENDPOINTS + 1);
    let last = first + ENDPOINTS - 1 + version % 2;
    let all = (first..first + ENDPOINTS - 1).chain([last]);
    put_addresses(&name(number), &name(number), all)
}

fn system() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    Duration::from_micros(usage.system_time().num_microseconds().unsigned_abs())
}

fn resident_mib() -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.unwrap().trim().parse::<f64>().unwrap() / 1024.0
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
