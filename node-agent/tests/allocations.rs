//! What a change of endpoints, a load and what is known of the cluster cost, counted: allocations from the watch event to
//! the kernel, which must not grow with the number of Services (S-281), and the bytes that stay (S-285). Times are the
//! bench's.
//! Needs root: the kernel is that of a network namespace of the test.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]
#![allow(
    unsafe_code,
    reason = "an allocator is unsafe to write; it only counts, and the system's does the work"
)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::IpAddr;

use common::*;
use nix::sched::{CloneFlags, unshare};
use onehop_core::endpoint::SliceText;
use onehop_core::time::Time;
use onehop_nft::Socket;
use onehop_node_agent::args::Mode;
use onehop_node_agent::commit::{Features, Kernel};
use onehop_node_agent::planner::Planner;
use onehop_node_agent::state::{Change, State};
use onehop_node_agent::table::element::{Dataplane, Elements};
use onehop_node_agent::table::layout::{Detector, Options};

/// Endpoints of each Service, as in the benches.
const ENDPOINTS: u32 = 10;
/// Changes that are counted one by one.
const CHANGES: u32 = 40;
/// Most allocations that one change may need after it was decoded.
const MOST: usize = 450;
/// Most bytes in them.
const MOST_BYTES: usize = 96 << 10;

/// Most allocations of a first load for each endpoint, from what was read to the kernel.
const MOST_OF_A_LOAD: usize = 7;
/// Most bytes that stay for each endpoint: its part of a slice, of a Service, of what the kernel holds and for whom.
const MOST_KEPT: isize = 520;

/// Counts for each thread.
struct Counting;

thread_local! {
    static SPENT: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    /// Bytes that are in use.
    static KEPT: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: every call is handed to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise is that of this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        keep(-layout.size().cast_signed());
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        keep(-layout.size().cast_signed());
        // SAFETY: as above.
        unsafe { System.realloc(place, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(bytes: usize) {
    // A thread that ends has no count any more, but may still allocate.
    let _ = SPENT.try_with(|spent| {
        let (times, all) = spent.get();
        spent.set((times + 1, all + bytes));
    });
    keep(bytes.cast_signed());
}

fn keep(bytes: isize) {
    let _ = KEPT.try_with(|kept| kept.set(kept.get() + bytes));
}

/// Allocations and their bytes.
fn spent(work: impl FnOnce()) -> (usize, usize) {
    let before = SPENT.get();
    work();
    let after = SPENT.get();
    (after.0 - before.0, after.1 - before.1)
}

fn options() -> Options {
    Options {
        masquerade_mark: 0x4000,
        masquerade_all: false,
        masquerade_ports: Vec::new(),
        detector: Detector::Ranges(Vec::new()),
        beside_kube_proxy: false,
        before_iptables: false,
        service_cidrs: Vec::new(),
    }
}

struct Agent {
    state: State,
    planner: Planner,
    kernel: Kernel,
}

impl Agent {
    /// With so many Services in the kernel.
    fn with(services: u32) -> Self {
        let mut agent = Self::knowing(services, ENDPOINTS);
        agent.commit();
        agent
    }

    /// With so many Services that are read, and not in the kernel yet.
    fn knowing(services: u32, endpoints: u32) -> Self {
        let mut state = synced(Mode::Beside);
        for number in 0..services {
            let name = name(number);
            let mut spec = service(&name, 1);
            spec.cluster_ips = vec![IpAddr::from((0x0a61_0000 + number).to_be_bytes())];
            state.apply(put(spec));
            state.apply(slice_with(number, endpoints, 0));
        }
        let mut kernel =
            Kernel::open(&options(), Features::detect(), Box::new(|| Time::EPOCH)).unwrap();
        assert_eq!(kernel.read_back().unwrap(), Some(Elements::new()));
        Self {
            state,
            planner: Planner::new(Elements::new()),
            kernel,
        }
    }

    fn commit(&mut self) -> usize {
        let batch = self.planner.plan(&mut self.state, &[], usize::MAX);
        self.kernel.commit(&batch.change).unwrap();
        batch.change.add.len() + batch.change.remove.len()
    }

    /// One endpoint of a Service in the middle is replaced, again and again: the most that one change spent.
    fn most(&mut self, services: u32) -> (usize, usize) {
        let number = services / 2;
        let one = |version| {
            let change = slice_of(number, version);
            spent(|| {
                self.state.apply(change);
                assert_eq!(self.commit(), 4, "a slot and a hairpin pair");
            })
        };
        let all: Vec<_> = (1..=CHANGES).map(one).collect();
        let (times, bytes): (Vec<usize>, Vec<usize>) = all.into_iter().unzip();
        (
            times.into_iter().max().unwrap(),
            bytes.into_iter().max().unwrap(),
        )
    }
}

fn name(number: u32) -> String {
    format!("s{number:05}")
}

/// The endpoints of a Service; of the last one there are two versions.
fn slice_of(number: u32, version: u32) -> Change {
    slice_with(number, ENDPOINTS, version)
}

fn slice_with(number: u32, endpoints: u32, version: u32) -> Change {
    let first = number * (endpoints + 1);
    let last = first + endpoints - 1 + version % 2;
    let all = (first..first + endpoints - 1).chain([last]);
    put_addresses(&name(number), &name(number), all)
}

/// In a network namespace of its own, which goes with the thread.
fn in_namespace<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let work = move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace needs root");
        work()
    };
    match std::thread::spawn(work).join() {
        Ok(found) => found,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

#[test]
fn s281_a_change_of_endpoints_costs_the_same_allocations_at_any_number_of_services() {
    let spent = in_namespace(|| {
        [100, 3_000].map(|services| {
            let most = Agent::with(services).most(services);
            onehop_node_agent::commit::cleanup().unwrap();
            most
        })
    });
    let [few, many] = spent;
    // A map that grows is a node or a table more.
    assert!(many.0 <= few.0 + few.0 / 20, "S-281: {spent:?}");
    assert!(many.1 <= few.1 + few.1 / 20, "S-281: {spent:?}");
    assert!(many.0 <= MOST && many.1 <= MOST_BYTES, "S-281: {spent:?}");
}

#[test]
fn s280_s282_s285_a_load_costs_as_much_as_it_has_endpoints_and_keeps_little_of_each() {
    let load = |services: u32, endpoints: u32| {
        in_namespace(move || {
            let before = KEPT.get();
            let mut agent = Agent::knowing(services, endpoints);
            let mut generations = Socket::open().unwrap();
            let generation = generations.generation().unwrap();
            let (times, _) = spent(|| {
                agent.commit();
            });
            let batches = generations.generation().unwrap() - generation;
            assert_eq!(batches, 1, "S-280: in one batch");
            let kept = KEPT.get() - before;
            let all = services * endpoints;
            (
                times / usize::try_from(all).unwrap(),
                kept / isize::try_from(all).unwrap(),
            )
        })
    };
    let loads = [load(300, 10), load(3_000, 10), load(300, 50)];
    let [few, many, long] = loads;
    assert!(few.0 <= MOST_OF_A_LOAD, "S-280: {loads:?}");
    assert!(many.0 <= few.0 + 1, "S-280, S-282: {loads:?}");
    // The kernel's socket and its buffers are in the few, too.
    // DI-43: long lists cost no more for each endpoint than short ones.
    assert!(long.0 <= few.0, "S-282: {loads:?}");
    assert!(many.1 <= MOST_KEPT, "S-285: {loads:?}");
}

#[test]
fn s281_a_slice_is_decoded_with_few_allocations_an_endpoint() {
    let text = |endpoints: u8| {
        let endpoints: Vec<_> = (0..endpoints)
            .map(|n| {
                serde_json::json!({
                    "addresses": [format!("10.244.0.{n}")], "conditions": {"ready": true, "serving": true},
                    "nodeName": "node-1", "zone": "a",
                    "targetRef": {"kind": "Pod", "name": format!("pod-{n}"), "namespace": "default", "uid": format!("u{n}")},
                })
            })
            .collect();
        serde_json::json!({
            "metadata": {"name": "s", "namespace": "default", "labels": {"kubernetes.io/service-name": "s"}},
            "addressType": "IPv4", "endpoints": endpoints,
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        })
        .to_string()
    };
    let decode = |endpoints| {
        let text = text(endpoints);
        spent(|| {
            let slice: SliceText<'_> = serde_json::from_str(&text).unwrap();
            let (slice, problems) = slice.read().unwrap();
            assert!(problems.is_empty(), "{slice:?}");
        })
        .0
    };
    let (one, hundred) = (decode(1), decode(101));
    let each = (hundred - one) / 100;
    // The pod behind it: itself, its UID and its name.
    assert!(each <= 3, "{each} allocations an endpoint");
}
