//! The order of things between watches, kernel and health answers, with a kernel under the test's
//! hand: every commit waits until the test lets it through.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail the test"
)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use common::*;
use kube::Client;
use kube::client::Body;
use onehop_core::id::{Frontend, Protocol};
use onehop_core::service::{ServiceSpec, TrafficPolicy};
use onehop_core::time::Time;
use onehop_node_agent::app::{App, Outlets};
use onehop_node_agent::args::{Mode, NodePortAddresses};
use onehop_node_agent::claims::Front;
use onehop_node_agent::collection::Step;
use onehop_node_agent::flows::{FlowCleaner, Inbox as FlowInbox};
use onehop_node_agent::health::board::Board;
use onehop_node_agent::health::pods::{HealthPath, PodAnswer};
use onehop_node_agent::health::ports::Listen;
use onehop_node_agent::http::Tables;
use onehop_node_agent::metrics::Metrics;
use onehop_node_agent::node_file::{Keeper, NodeFile, PortAnswer};
use onehop_node_agent::notify::Notifier;
use onehop_node_agent::peer::Sighting;
use onehop_node_agent::questions::Question;
use onehop_node_agent::ready::Readiness;
use onehop_node_agent::state::{Change, Ownership, State};
use onehop_node_agent::table::element::{
    CommitFailure, Dataplane, ElementChange, ElementKey, Elements, Family, Key, SetId,
};
use onehop_node_agent::tails::Tails;
use onehop_node_agent::writer::{Report, Writer};
use onehop_runtime::clock::Clock;
use onehop_runtime::events::{Publisher, Reporter};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;

/// Longest that any step may take before the test is wrong.
const PATIENCE: Duration = Duration::from_secs(10);

/// A kernel that commits when it is told to: a stand-in behind the same trait (S-250).
struct Gated {
    held: Arc<Mutex<Elements>>,
    go: mpsc::Receiver<Result<(), CommitFailure>>,
    commits: mpsc::Sender<ElementChange>,
}

impl Dataplane for Gated {
    fn read_back(&mut self) -> Result<Option<Elements>, CommitFailure> {
        Ok(Some(self.held.lock().expect("lock").clone()))
    }

    fn commit(&mut self, change: &ElementChange) -> Result<(), CommitFailure> {
        self.commits.send(change.clone()).expect("the test listens");
        self.go
            .recv_timeout(PATIENCE)
            .expect("the test lets the commit through")?;
        change.apply(&mut self.held.lock().expect("lock"));
        Ok(())
    }
}

/// A notifier whose events go nowhere: the task that would write them never runs.
fn notifier(clock: Clock) -> Notifier {
    let nobody = tower::service_fn(|_: http::Request<Body>| async {
        Err::<http::Response<Body>, _>(std::io::Error::other("nobody is there"))
    });
    let reporter = Reporter {
        component: "test".to_owned(),
        instance: NODE.to_owned(),
    };
    let metrics = onehop_runtime::metrics::Metrics::default();
    let client = Client::new(nobody, "default");
    Notifier::new(Publisher::new(client, clock, reporter, &metrics).0)
}

struct World {
    clock: Clock,
    app: App,
    board: Arc<Board>,
    listens: watch::Receiver<BTreeSet<Listen>>,
    ready: watch::Receiver<Readiness>,
    reports: UnboundedReceiver<Report>,
    go: mpsc::Sender<Result<(), CommitFailure>>,
    _flows: FlowInbox,
    held: Arc<Mutex<Elements>>,
    /// Every commit when it begins.
    commits: mpsc::Receiver<ElementChange>,
}

impl World {
    fn new(held: Elements) -> Self {
        let clock = Clock::fixed(Time::EPOCH);
        let (go, gate) = mpsc::channel();
        let held = Arc::new(Mutex::new(held));
        let (begun, commits) = mpsc::channel();
        let kernel = Gated {
            held: held.clone(),
            go: gate,
            commits: begun,
        };
        let (report_sender, reports) = tokio::sync::mpsc::unbounded_channel();
        let writer = Writer::spawn(Box::new(kernel), report_sender).expect("a thread");
        let board = Arc::new(Board::new(clock));
        let metrics = Arc::new(Metrics::new(onehop_runtime::metrics::Metrics::default()));
        let (listens_sender, listens) = watch::channel(BTreeSet::new());
        let (ready_sender, ready) = watch::channel(Readiness::Starting);
        let (flows, flow_inbox) = FlowCleaner::new();
        let out = Outlets {
            board: board.clone(),
            listens: listens_sender,
            tables: watch::channel(Tables::NotOurs).0,
            pod_answers: watch::channel(Tables::NotOurs).0,
            ready: ready_sender,
            metrics,
            notifier: notifier(clock),
            flows,
            tails: Tails::new().0,
            targets: watch::channel(None).0,
        };
        let ownership = Ownership {
            mode: Mode::Beside,
            proxy_name: "onehop".to_owned(),
        };
        let state = State::new(ownership, NODE.into());
        let app = App::new(state, writer, out, NodePortAddresses::Primary, clock);
        Self {
            clock,
            app,
            board,
            listens,
            ready,
            reports,
            go,
            _flows: flow_inbox,
            held,
            commits,
        }
    }

    fn apply(&mut self, changes: impl IntoIterator<Item = Change>) {
        changes
            .into_iter()
            .for_each(|change| self.app.change(change));
        self.app.advance().expect("the writer lives");
    }

    /// Takes the next report of the writer.
    async fn reported(&mut self) {
        let report = tokio::time::timeout(PATIENCE, self.reports.recv()).await;
        self.app
            .report(report.expect("in time").expect("the writer lives"));
        self.app.advance().expect("the writer lives");
    }

    /// Lets the commit under way end, and takes its report.
    async fn finish(&mut self, result: Result<(), CommitFailure>) {
        self.go.send(result).expect("the kernel lives");
        self.reported().await;
    }

    /// A world in which everything is committed.
    async fn settled(changes: impl IntoIterator<Item = Change>) -> Self {
        let mut world = Self::new(Elements::new());
        world.apply(lists(node(Some("a"))));
        world.apply(changes);
        world.reported().await;
        world.finish(Ok(())).await;
        assert!(!world.app.is_busy());
        world
    }

    fn status(&self, name: &str) -> (u16, usize) {
        let answer = self.board.port(&key(name));
        (answer.status(), answer.local_endpoints)
    }

    /// Commits since the last call. The writer must be idle.
    fn commits(&self) -> usize {
        self.commits.try_iter().count()
    }
}

fn failure(refused: BTreeSet<ElementKey>) -> CommitFailure {
    CommitFailure {
        refused,
        message: "said the test".to_owned(),
        standby: false,
    }
}

#[tokio::test]
async fn i1_s09_nothing_is_programmed_before_every_list_is_complete() {
    let mut world = World::new(Elements::new());
    world.app.advance().expect("the writer lives");
    world.reported().await;
    let mut lists = lists(node(None));
    let last = lists.split_off(3);
    world.apply(lists);
    world.apply([put(local_lb("s0", 1))]);
    assert_eq!(world.commits(), 0);
    assert!(world.listens.borrow().is_empty());
    assert_eq!(*world.ready.borrow(), Readiness::Starting);
    world.apply(last);
    world.finish(Ok(())).await;
    assert_eq!(world.commits(), 1);
    assert_eq!(*world.ready.borrow(), Readiness::InSync);
    assert_eq!(world.listens.borrow().len(), 1);
}

#[tokio::test]
async fn s107_i3_raised_after_the_commit_lowered_at_once() {
    let mut world = World::settled([put(local_lb("s0", 1))]).await;
    // DI-18: the count is that of this node.
    assert_eq!(world.status("s0"), (503, 0));

    world.apply([put_slice("e0", "s0", &[local(1), local(2), ep(3)])]);
    // DI-15: not before the rules are there.
    assert_eq!(world.status("s0"), (503, 0), "the commit is under way");
    world.finish(Ok(())).await;
    assert_eq!(world.status("s0"), (200, 2));

    world.apply([put_slice("e0", "s0", &[ep(3)])]);
    // DI-20: no moment between the answer and the loss of the endpoint.
    assert_eq!(world.status("s0"), (503, 0), "lowered before the commit");
    world.finish(Ok(())).await;
    assert_eq!(world.status("s0"), (503, 0));
}

#[tokio::test]
async fn s107_what_left_during_a_commit_is_not_raised_by_it() {
    let mut world = World::settled([put(local_lb("s0", 1))]).await;
    world.apply([put_slice("e0", "s0", &[local(1)])]);
    world.apply([put_slice("e0", "s0", &[])]);
    world.finish(Ok(())).await;
    assert_eq!(world.status("s0"), (503, 0));
    world.finish(Ok(())).await;
    assert_eq!(world.status("s0"), (503, 0));
}

#[tokio::test]
async fn i3_one_local_pod_in_the_place_of_another_is_not_healthy_before_its_rules_are_there() {
    let mut world = World::settled([put(local_lb("s0", 1))]).await;
    world.apply([put_slice("e0", "s0", &[local(1)])]);
    world.finish(Ok(())).await;
    assert_eq!(world.status("s0"), (200, 1));
    // The number stays the same; what the kernel has is nobody who is ready.
    world.apply([put_slice("e0", "s0", &[local(2)])]);
    assert_eq!(world.status("s0"), (503, 0), "S-107");
    world.finish(Ok(())).await;
    assert_eq!(world.status("s0"), (200, 1));
    // And in one commit under way: what it carries has left by the time it ends.
    world.apply([put_slice("e0", "s0", &[local(3)])]);
    world.apply([put_slice("e0", "s0", &[local(4)])]);
    world.finish(Ok(())).await;
    assert_eq!(world.status("s0"), (503, 0), "S-107");
    world.finish(Ok(())).await;
    assert_eq!(world.status("s0"), (200, 1));
}

#[tokio::test]
async fn s101_terminating_endpoints_serve_but_do_not_count() {
    let stands = Stands::ServingTerminating;
    let draining = Ep { stands, ..local(1) };
    let world = World::settled([put(local_lb("s0", 1)), put_slice("e0", "s0", &[draining])]).await;
    // DI-19
    assert_eq!(world.status("s0"), (503, 0));
    let held = world.held.lock().expect("lock");
    assert!(
        held.keys()
            .any(|(_, set, _)| *set == SetId::ServiceIpsLocal),
        "still delivered to"
    );
}

#[tokio::test]
async fn s120_changes_during_a_commit_go_into_one_batch() {
    // S-248
    let mut world = World::settled([put(service("s0", 1))]).await;
    world.commits();
    for last in 1..9 {
        world.apply([put_slice("e0", "s0", &[ep(last)])]);
    }
    world.finish(Ok(())).await;
    world.finish(Ok(())).await;
    assert!(!world.app.is_busy());
    assert_eq!(world.commits(), 2);
}

/// A thousand Services and some more, with an endpoint each.
fn thousands() -> Vec<Change> {
    let one = |number: u16| {
        let name = format!("many-{number:04}");
        let mut spec = service(&name, 1);
        let [high, low] = number.to_be_bytes();
        spec.cluster_ips = vec![IpAddr::from([10, 97, high, low])];
        [put(spec), put_slice(&name, &name, &[ep(1)])]
    };
    (0..1_500).flat_map(one).collect()
}

#[tokio::test]
async fn s133_i3_a_large_first_load_goes_in_batches_and_counts_once_all_of_it_is_there() {
    let mut world = World::new(Elements::new());
    world.apply(lists(node(Some("a"))));
    world.apply(thousands());
    world.apply([put(local_lb("zz", 1)), put_slice("zz", "zz", &[local(1)])]);
    world.reported().await;
    world.finish(Ok(())).await;
    assert_eq!(*world.ready.borrow(), Readiness::Starting, "a part of it");
    assert_eq!(world.status("zz"), (503, 0), "I3: not there yet");
    assert!(!world.board.proxy().programmed, "S-112");
    world.finish(Ok(())).await;
    assert_eq!(*world.ready.borrow(), Readiness::InSync);
    assert_eq!(world.status("zz"), (200, 1));
    assert!(!world.app.is_busy());
    let sizes: Vec<usize> = world.commits.try_iter().map(|c| c.add.len()).collect();
    let held = world.held.lock().expect("lock").len();
    assert_eq!((sizes.len(), sizes.iter().sum::<usize>()), (2, held));
}

#[tokio::test]
async fn s261_what_was_there_once_comes_back_in_one_batch() {
    let mut world = World::settled([put(service("s0", 1))]).await;
    world.apply(thousands());
    while world.app.is_busy() {
        world.finish(Ok(())).await;
    }
    let before = world.held.lock().expect("lock").clone();
    world.held.lock().expect("lock").clear();
    world.commits();
    world.app.sighted(Sighting {
        tampered: Some("nft".to_owned()),
        ..Sighting::default()
    });
    world.app.advance().expect("the writer lives");
    world.reported().await;
    world.finish(Ok(())).await;
    assert_eq!((world.commits(), world.app.is_busy()), (1, false));
    assert_eq!(*world.held.lock().expect("lock"), before);
}

#[tokio::test]
async fn i4_nothing_changed_nothing_sent() {
    let mut world =
        World::settled([put(local_lb("s0", 1)), put_slice("e0", "s0", &[local(1)])]).await;
    world.commits();
    let mut annotated = local_lb("s0", 1);
    annotated
        .annotations
        .insert("example.org/a".to_owned(), "b".to_owned());
    world.apply([put(annotated), put_slice("e0", "s0", &[local(1)])]);
    world.apply([Change::Service(Step::ListStarts)]);
    world.apply([put(local_lb("s0", 1)), Change::Service(Step::ListEnds)]);
    assert!(!world.app.is_busy());
    assert_eq!(world.commits(), 0);
    assert_eq!(world.status("s0"), (200, 1));
}

#[tokio::test]
async fn s121_a_restart_on_unchanged_state_sends_nothing() {
    let changes = || {
        [
            put(local_lb("s0", 1)),
            put_slice("e0", "s0", &[local(1), ep(2)]),
        ]
    };
    let world = World::settled(changes()).await;
    let held = world.held.lock().expect("lock").clone();
    let mut again = World::new(held);
    again.apply(lists(node(Some("a"))));
    again.apply(changes());
    assert_eq!(again.status("s0"), (503, 0), "tables were not read yet");
    again.reported().await;
    // The static part is compared with what it should be in this network; no element is sent.
    again.reported().await;
    assert_eq!(again.commits(), 0);
    assert_eq!(again.status("s0"), (200, 1));
    assert_eq!(*again.ready.borrow(), Readiness::InSync);
}

#[tokio::test]
async fn s106_s100_health_port_goes_with_its_reason() {
    let mut world =
        World::settled([put(local_lb("s0", 1)), put_slice("e0", "s0", &[local(1)])]).await;
    let wanted: Vec<String> = world
        .listens
        .borrow()
        .iter()
        .map(|listen| listen.addr.to_string())
        .collect();
    assert_eq!(wanted, ["10.0.1.1:31001"]);
    let mut cluster = local_lb("s0", 1);
    cluster.external_policy = TrafficPolicy::Cluster;
    world.apply([put(cluster)]);
    assert!(
        world.listens.borrow().is_empty(),
        "closed without waiting for the commit"
    );
    assert_eq!(
        world.status("s0"),
        (503, 0),
        "a listener that is still open"
    );
    world.finish(Ok(())).await;
    world.apply([remove("s0")]);
    world.finish(Ok(())).await;
    assert!(world.listens.borrow().is_empty());
}

#[tokio::test]
async fn s28_node_ports_follow_the_node_address() {
    let mut world = World::settled([put(local_lb("s0", 1))]).await;
    let mut moved = node(Some("a"));
    moved.addresses = vec![addr("10.0.1.7")];
    world.apply([Change::Node(Step::Apply(NODE.into(), moved))]);
    world.finish(Ok(())).await;
    let held = world.held.lock().expect("lock").clone();
    let key = |text| (Family::V4, SetId::NodePortIps, Key::Addr(addr(text)));
    assert!(held.contains_key(&key("10.0.1.7")) && !held.contains_key(&key("10.0.1.1")));
    let wanted = world
        .listens
        .borrow()
        .iter()
        .next()
        .map(|listen| listen.addr.to_string());
    assert_eq!(wanted.as_deref(), Some("10.0.1.7:31001"));
}

#[tokio::test]
async fn s124_a_refused_service_does_not_stop_the_others() {
    let mut world = World::settled([]).await;
    world.commits();
    world.apply([put(service("bad", 1)), put(service("good", 2))]);
    let last = world.commits.recv_timeout(PATIENCE).expect("a commit");
    let of = |name: &'static str| move |key: &&ElementKey| matches!(key.2, Key::Frontend(front) if front.address == addr(name));
    let refused: BTreeSet<ElementKey> = last.add.keys().filter(of("10.96.0.1")).copied().collect();
    assert!(!refused.is_empty());
    world.finish(Err(failure(refused))).await;
    // Reads back, and commits what is left.
    world.reported().await;
    world.finish(Ok(())).await;
    let held = world.held.lock().expect("lock").clone();
    assert!(held.keys().any(|key| of("10.96.0.2")(&key)));
    assert!(!held.keys().any(|key| of("10.96.0.1")(&key)));
    assert!(
        world.app.next_look().is_some(),
        "the refused one is tried again"
    );
}

#[tokio::test]
async fn s130_a_failed_commit_is_followed_by_reading_back() {
    let mut world = World::settled([]).await;
    world.apply([put(local_lb("s0", 1)), put_slice("e0", "s0", &[local(1)])]);
    world.finish(Err(failure(BTreeSet::new()))).await;
    assert_eq!(world.status("s0"), (503, 0), "nothing was committed");
    let again = world.app.next_look().expect("it is tried again");
    assert!(again > Time::EPOCH);
}

#[tokio::test]
async fn s104_a_deleted_node_keeps_its_health_answers_and_node_ports() {
    let mut world =
        World::settled([put(local_lb("s0", 1)), put_slice("e0", "s0", &[local(1)])]).await;
    world.commits();
    let before = world.held.lock().expect("lock").clone();
    let listens = world.listens.borrow().clone();
    assert!(world.board.proxy().node_eligible);
    world.apply([Change::Node(Step::Delete(NODE.into()))]);
    assert!(!world.app.is_busy(), "nothing to commit");
    assert_eq!(world.status("s0"), (200, 1));
    assert_eq!(*world.listens.borrow(), listens);
    assert_eq!(*world.held.lock().expect("lock"), before);
    // S-111: but new load balancer traffic shall go elsewhere.
    assert!(!world.board.proxy().node_eligible);
    world.apply([Change::Node(Step::Apply(NODE.into(), node(Some("a"))))]);
    assert!(world.board.proxy().node_eligible);
}

#[tokio::test]
async fn s264_once_an_hour_the_tables_are_compared_and_only_differences_are_written() {
    let objects = [
        put(local_lb("s0", 1)),
        put_slice("e0", "s0", &[local(1), ep(2)]),
    ];
    let mut world = World::settled(objects).await;
    world.commits();
    let hour = Duration::from_hours(1);
    assert!(
        world
            .app
            .next_look()
            .is_some_and(|at| at <= world.clock.now() + hour),
        "S-264"
    );
    let whole = world.held.lock().expect("lock").clone();
    for missing in [None, whole.keys().next_back().copied()] {
        if let Some(key) = missing {
            world.held.lock().expect("lock").remove(&key);
        }
        tokio::time::pause();
        tokio::time::advance(hour).await;
        tokio::time::resume();
        world.app.advance().expect("the writer lives");
        assert!(world.app.is_busy(), "the tables are read");
        world.reported().await;
        if missing.is_some() {
            world.finish(Ok(())).await;
        }
        let written: Vec<_> = world
            .commits
            .try_iter()
            .flat_map(|change| change.add)
            .collect();
        assert_eq!(
            written.len(),
            usize::from(missing.is_some()),
            "S-264, I4: {written:?}"
        );
        assert_eq!(*world.held.lock().expect("lock"), whole, "S-264");
        assert_eq!(world.status("s0"), (200, 1), "no answer changes by it");
    }
}

/// Asked for by somebody on the node: at once, and the answer says how much was not as it should be.
#[tokio::test]
async fn s264_s312_a_comparison_is_made_when_it_is_asked_for() {
    let objects = [
        put(local_lb("s0", 1)),
        put_slice("e0", "s0", &[local(1), ep(2)]),
    ];
    let mut world = World::settled(objects).await;
    let whole = world.held.lock().expect("lock").clone();
    for missing in [0, 2] {
        for key in whole.keys().rev().take(missing) {
            world.held.lock().expect("lock").remove(key);
        }
        let (answer, mut answered) = tokio::sync::oneshot::channel();
        world.app.asked(Question::Verify { answer });
        world.app.advance().expect("the writer lives");
        assert!(world.app.is_busy(), "S-312: the tables are read");
        world.reported().await;
        if missing > 0 {
            assert!(answered.try_recv().is_err(), "not before it is mended");
            world.finish(Ok(())).await;
        }
        assert_eq!(answered.await, Ok(missing), "S-264");
        assert_eq!(*world.held.lock().expect("lock"), whole, "S-264");
    }
}

/// The label is taken off, which the watch shows as a deletion: the health port is free at once, and connections are
/// served until kube-proxy serves them, or until it had time enough.
#[tokio::test]
async fn s345_what_goes_to_kube_proxy_stays_programmed_until_it_serves_it() {
    let objects = || {
        [
            put(local_lb("s0", 1)),
            put_slice("e0", "s0", &[local(1), ep(2)]),
        ]
    };
    let serves = |world: &World| {
        let held = world.held.lock().expect("lock");
        held.keys().any(|(_, set, _)| *set == SetId::ServiceIps)
    };
    let seen = |fronts: &[Front]| Sighting {
        tables: true,
        fronts: fronts.iter().copied().collect(),
        ..Sighting::default()
    };
    let front = Front::Vip(Frontend {
        address: addr("10.96.0.1"),
        protocol: Protocol::Tcp,
        port: 80,
    });
    for takes in [true, false] {
        let mut world = World::settled(objects()).await;
        // It has had it before; what was seen then tells nothing of now.
        world.app.sighted(seen(&[front]));
        world.apply([remove("s0")]);
        assert!(
            !world.app.is_busy() && serves(&world),
            "S-345: it is served"
        );
        world.app.sighted(seen(&[]));
        world.app.advance().expect("the writer lives");
        assert!(!world.app.is_busy() && serves(&world), "S-345: and goes on");
        assert!(world.listens.borrow().is_empty(), "S-345: the port is free");
        if takes {
            world.app.sighted(seen(&[front]));
        } else {
            let at = world.app.next_look().expect("S-345: not for ever");
            assert!(at <= world.clock.now() + Duration::from_secs(5));
            while world.clock.now() < at {
                world.clock.sleep_until(at).await;
            }
        }
        world.app.advance().expect("the writer lives");
        world.finish(Ok(())).await;
        assert!(!serves(&world), "S-345: kube-proxy's, takes: {takes}");
    }
    // Nobody is there to take it, it is being deleted, or its slices went with it.
    let mut world = World::settled(objects()).await;
    world.apply([remove("s0")]);
    world.finish(Ok(())).await;
    assert!(!serves(&world));
    for with_mark in [true, false] {
        let mut world = World::settled(objects()).await;
        world.app.sighted(seen(&[]));
        if with_mark {
            let marked = ServiceSpec {
                deleted: Some(Time::EPOCH),
                ..local_lb("s0", 1)
            };
            world.apply([put(marked)]);
            if world.app.is_busy() {
                world.finish(Ok(())).await;
            }
            world.apply([remove("s0")]);
        } else {
            world.apply([remove("s0"), remove_slice("e0")]);
        }
        world.finish(Ok(())).await;
        assert!(!serves(&world), "S-02: deleted, with a mark: {with_mark}");
    }
}

/// What is programmed is told Service by Service, in words.
#[tokio::test]
async fn s207_frontends_lists_and_verdicts_are_told_by_service() {
    let mut sticky = service("s1", 2);
    sticky.affinity = Some(Duration::from_hours(3));
    let objects = [
        put(local_lb("s0", 1)),
        put_slice("e0", "s0", &[local(1), ep(2)]),
        put(sticky),
        put_slice("e1", "s1", &[ep(3)]),
        put(service("s2", 3)),
    ];
    let mut world = World::settled(objects).await;
    let mut ask = |only: Option<&str>| {
        let (answer, mut answered) = tokio::sync::oneshot::channel();
        let only = only.map(key);
        world.app.asked(Question::Services { only, answer });
        answered.try_recv().expect("S-207: from memory")
    };
    insta::assert_snapshot!(ask(None));
    let one = ask(Some("s2"));
    assert!(
        one.contains("nobody: refused") && !one.contains("s1"),
        "S-207: {one}"
    );
    let unknown = ask(Some("nobody"));
    assert!(
        unknown.contains("is not proxied by this agent"),
        "{unknown}"
    );
}

#[tokio::test]
async fn s124_a_refused_frontend_gets_its_next_chance_by_a_timer() {
    let mut world = World::settled([]).await;
    world.commits();
    world.apply([put(service("s0", 1)), put_slice("e0", "s0", &[ep(1)])]);
    let first = world.commits.recv_timeout(PATIENCE).expect("a commit");
    let refused: BTreeSet<ElementKey> = first.add.keys().copied().collect();
    world.finish(Err(failure(refused))).await;
    world.reported().await;
    // What is left of it: nothing has a frontend of its own but the cluster IP and the pair.
    world.finish(Ok(())).await;
    let at = world.app.next_look().expect("a time");
    while world.clock.now() < at {
        world.clock.sleep_until(at).await;
    }
    world.app.advance().expect("the writer lives");
    assert!(world.app.next_look().is_none(), "the commit is under way");
    world.finish(Ok(())).await;
    let held = world.held.lock().expect("lock").clone();
    assert!(held.keys().any(|(_, set, _)| *set == SetId::ServiceIps));
}

/// A world as after a restart: the tables are in place, and an earlier process kept this file.
fn restarted(held: Elements, file: NodeFile) -> World {
    let mut world = World::new(held);
    world.app = world.app.with_node_file(Keeper::default(), Some(file));
    world
}

#[tokio::test]
async fn s109_a_restart_without_the_api_server_keeps_health_answers_while_the_tables_are_in_place()
{
    let objects = || [put(local_lb("s0", 1)), put_slice("e0", "s0", &[local(1)])];
    let world = World::settled(objects()).await;
    let held = world.held.lock().expect("lock").clone();
    let file = |tables| NodeFile {
        written: 0,
        tables,
        addresses: vec![addr("10.0.1.1")],
        ports: vec![PortAnswer {
            namespace: "default".to_owned(),
            name: "s0".to_owned(),
            port: 31_001,
            ready: vec![addr("10.244.0.1")],
            held: false,
        }],
        pods: vec![PodAnswer {
            path: HealthPath::parse("/t/e2e/default/s0/http").expect("a path"),
            address: addr("10.244.0.1"),
            healthy: true,
        }],
        installs: BTreeMap::new(),
    };
    let digest = onehop_node_agent::planner::Planner::new(held.clone()).digest();

    let mut other = restarted(held.clone(), file(digest + 1));
    other.app.advance().expect("the writer lives");
    other.reported().await;
    assert_eq!(other.status("s0"), (503, 0), "S-109: other tables");
    let pod = |world: &World| {
        let path = HealthPath::parse("/t/e2e/default/s0/http").expect("a path");
        world.board.pod(addr("10.244.0.1"), &path)
    };
    assert!(!pod(&other), "S-109: other tables");

    let mut again = restarted(held, file(digest));
    again.app.advance().expect("the writer lives");
    again.reported().await;
    assert_eq!(again.status("s0"), (200, 1), "S-109");
    assert!(pod(&again), "ZD-18");
    assert_eq!(again.listens.borrow().len(), 1, "S-109: the port is open");
    // The lists come in, one after the other; half of them is no reason to change an answer.
    let mut lists = lists(node(Some("a")));
    let slices = lists.split_off(3);
    again.apply(
        [Change::Service(Step::ListStarts)]
            .into_iter()
            .chain(objects().into_iter().take(1)),
    );
    again.apply([Change::Service(Step::ListEnds)]);
    assert_eq!(again.status("s0"), (200, 1), "I1");
    // In sync, with nobody local any more.
    again.apply([
        Change::Slice(Step::ListStarts),
        Change::Slice(Step::ListEnds),
    ]);
    again.apply(slices);
    assert_eq!(again.status("s0"), (503, 0), "S-107");
}
