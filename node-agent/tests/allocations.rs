//! What one change of endpoints costs, counted: allocations from the watch event to the kernel, which must not grow with
//! the number of Services (S-281). Times are the bench's.
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
use k8s_openapi::api::discovery::v1::EndpointSlice;
use nix::sched::{CloneFlags, unshare};
use onehop_core::endpoint::Slice;
use onehop_core::time::Time;
use onehop_node_agent::args::Mode;
use onehop_node_agent::commit::{Features, Kernel};
use onehop_node_agent::planner::Planner;
use onehop_node_agent::state::State;
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

/// Counts for each thread.
struct Counting;

thread_local! {
    static SPENT: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

// SAFETY: every call is handed to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise is that of this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
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
        masquerade_ports: None,
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
        let mut state = synced(Mode::Beside);
        for number in 0..services {
            let name = name(number);
            let mut spec = service(&name, 1);
            spec.cluster_ips = vec![IpAddr::from((0x0a61_0000 + number).to_be_bytes())];
            state.apply(put(spec));
            state.apply(slice_of(number, 0));
        }
        let mut kernel =
            Kernel::open(&options(), Features::detect(), Box::new(|| Time::EPOCH)).unwrap();
        assert_eq!(kernel.read_back().unwrap(), Some(Elements::new()));
        let mut agent = Self {
            state,
            planner: Planner::new(Elements::new()),
            kernel,
        };
        agent.commit();
        agent
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
fn slice_of(number: u32, version: u32) -> onehop_node_agent::state::Change {
    let first = number * (ENDPOINTS + 1);
    let last = first + ENDPOINTS - 1 + version % 2;
    let all = (first..first + ENDPOINTS - 1).chain([last]);
    put_addresses(&name(number), &name(number), all)
}

#[test]
fn s281_a_change_of_endpoints_costs_the_same_allocations_at_any_number_of_services() {
    let thread = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace needs root");
        let spent = [100, 3_000].map(|services| {
            let most = Agent::with(services).most(services);
            onehop_node_agent::commit::cleanup().unwrap();
            most
        });
        let [few, many] = spent;
        // A map that grows is a node or a table more.
        assert!(many.0 <= few.0 + few.0 / 20, "S-281: {spent:?}");
        assert!(many.1 <= few.1 + few.1 / 20, "S-281: {spent:?}");
        assert!(many.0 <= MOST && many.1 <= MOST_BYTES, "S-281: {spent:?}");
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
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
            let slice: EndpointSlice = serde_json::from_str(&text).unwrap();
            let (slice, problems) = Slice::read(&slice).unwrap();
            assert!(problems.is_empty(), "{slice:?}");
        })
        .0
    };
    let (one, hundred) = (decode(1), decode(101));
    let each = (hundred - one) / 100;
    assert!(each <= 20, "{each} allocations an endpoint");
}
