//! Electors against the embedded API server, in virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use e2e_apiserver::{ApiServer, Config as ApiConfig, Identity};
use onehop_runtime::metrics::Metrics;
use rand::SeedableRng;
use tokio::task::JoinHandle;

use super::*;
use crate::snapshot::{Claim, Classless};

const START: Time = Time::from_millis(1_800_000_000_000);

struct World {
    server: ApiServer,
    clock: Clock,
}

struct Running {
    stop: CancellationToken,
    fence: Fence,
    position: watch::Receiver<Position>,
    leader: Gauge,
    task: JoinHandle<Result<(), Lost>>,
}

impl Running {
    async fn until(&mut self, wanted: impl Fn(&Position) -> bool) {
        self.position.wait_for(wanted).await.unwrap();
    }

    async fn leads(&mut self) {
        self.until(|p| *p == Position::Leading).await;
        assert_eq!(self.fence.check(), Ok(()));
        assert_eq!(self.leader.get(), 1);
    }
}

fn timing() -> Timing {
    let s = Duration::from_secs;
    Timing::new(s(15), s(10), s(2)).unwrap()
}

impl World {
    fn new() -> Self {
        let clock = Clock::fixed(START);
        let server = ApiServer::start(e2e_apiserver::Clock::fixed(START), ApiConfig::default());
        Self { server, clock }
    }

    fn client(&self) -> Client {
        self.server
            .client(&Identity::service_account("onehop-system", "controller"))
    }

    /// An elector of an install that owns one class, and what it is to be run with.
    fn elector(
        &self,
        install: &str,
        who: &str,
        class: &str,
        client: Client,
    ) -> (Elector, Fence, Gauge) {
        let install = InstallId::from(install);
        let election = Election {
            identity: who.to_owned(),
            namespace: "default".to_owned(),
            name: Election::lease_name(&install),
            timing: timing(),
        };
        let fence = Fence::new(self.clock, timing().call_limit(), CancellationToken::new());
        let claim = Claim {
            classes: [class.to_owned()].into(),
            classless: Classless::Ignore,
            install: install.clone(),
        };
        let leader = Gauge::default();
        let parts = Parts {
            client,
            clock: self.clock,
            fence: fence.clone(),
            claims: Claims::from(&claim),
            install,
            leader: leader.clone(),
            rng: SmallRng::seed_from_u64(who.len() as u64 + u64::from(who.as_bytes()[0])),
        };
        (Elector::new(election, parts), fence, leader)
    }

    fn start_of(&self, install: &str, who: &str, class: &str, client: Client) -> Running {
        let (elector, fence, leader) = self.elector(install, who, class, client);
        let stop = CancellationToken::new();
        let (sender, position) = watch::channel(Position::default());
        let metrics = WatchMetrics::new(&Metrics::default());
        let task = tokio::spawn(elector.run(stop.clone(), metrics, sender));
        Running {
            stop,
            fence,
            position,
            leader,
            task,
        }
    }

    fn start(&self, who: &str) -> Running {
        self.start_of("one", who, "onehop.dev/local", self.client())
    }

    async fn lease(&self, install: &str) -> Lease {
        let name = Election::lease_name(&install.into());
        let api = Api::namespaced(self.client(), "default");
        api.get(&name).await.unwrap()
    }
}

fn is_standby(position: &Position) -> bool {
    matches!(position, Position::Standby { leader } if leader == "a")
}

#[tokio::test(start_paused = true)]
async fn after_a_clean_release_the_standby_leads_at_once() {
    let world = World::new();
    let mut a = world.start("a");
    a.leads().await;
    let mut b = world.start("b");
    b.until(is_standby).await;
    assert!(b.fence.check().is_err(), "C-36: only the leader writes");
    // The Lease is held through many renewals.
    world.clock.sleep(Duration::from_mins(2)).await;
    assert_eq!(a.fence.check(), Ok(()));
    let before = world.clock.now();
    a.stop.cancel();
    b.leads().await;
    assert!(world.clock.now().since(before) < Duration::from_millis(200));
    assert!(a.fence.check().is_err());
    assert_eq!(a.leader.get(), 0);
    assert_eq!(a.task.await.unwrap(), Ok(()));
    let spec = world.lease("one").await.spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("b"));
    b.stop.cancel();
    assert_eq!(b.task.await.unwrap(), Ok(()));
    let spec = world.lease("one").await.spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some(""));
}

#[tokio::test(start_paused = true)]
async fn a_release_waits_for_the_call_under_way() {
    let world = World::new();
    let mut a = world.start("a");
    a.leads().await;
    let mut b = world.start("b");
    b.until(is_standby).await;
    let (fence, clock) = (a.fence.clone(), world.clock);
    let call = tokio::spawn(async move {
        fence
            .call(clock.sleep(Duration::from_secs(3)))
            .await
            .unwrap();
        clock.now()
    });
    tokio::task::yield_now().await;
    a.stop.cancel();
    b.leads().await;
    assert!(
        call.is_finished(),
        "the old one's call ends before the new one may write"
    );
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_the_standby_leads_once_the_lease_has_run_out_and_not_before() {
    let world = World::new();
    let mut a = world.start("a");
    a.leads().await;
    let mut b = world.start("b");
    b.until(is_standby).await;
    world.clock.sleep(Duration::from_secs(31)).await;
    let before = world.clock.now();
    a.task.abort();
    b.leads().await;
    let took = world.clock.now().since(before);
    assert!(took >= timing().deadline(), "{took:?}");
    assert!(took <= timing().lease() + 2 * timing().retry(), "{took:?}");
    assert!(a.fence.check().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_was_paused_finds_its_fence_down_and_ends() {
    let world = World::new();
    let (elector, fence, _) = world.elector("one", "a", "onehop.dev/local", world.client());
    let (sender, mut position) = watch::channel(Position::default());
    let metrics = WatchMetrics::new(&Metrics::default());
    let mut run = Box::pin(elector.run(CancellationToken::new(), metrics, sender));
    tokio::select! {
        _ = &mut run => panic!("it ended"),
        leads = position.wait_for(|p| *p == Position::Leading) => drop(leads.unwrap()),
    }
    assert_eq!(fence.check(), Ok(()));
    // From here on nobody polls it.
    let mut b = world.start("b");
    b.until(is_standby).await;
    b.until(|p| *p == Position::Leading).await;
    assert!(fence.check().is_err(), "before any task of it runs again");
    let lost = run.await.unwrap_err();
    assert!(matches!(lost, Lost::NotRenewed { .. }), "{lost:?}");
    assert_eq!(b.fence.check(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_its_api_server_gives_up_at_the_renew_deadline() {
    let world = World::new();
    let cut = Arc::new(AtomicBool::new(false));
    let (inner, is_cut) = (world.client(), Arc::clone(&cut));
    let service = tower::service_fn(move |request| {
        let (inner, is_cut) = (inner.clone(), is_cut.load(Ordering::SeqCst));
        async move {
            if is_cut {
                return std::future::pending().await;
            }
            inner.send(request).await.map_err(tower::BoxError::from)
        }
    });
    let client = Client::new(service, "default");
    let mut a = world.start_of("one", "a", "onehop.dev/local", client);
    a.leads().await;
    cut.store(true, Ordering::SeqCst);
    let before = world.clock.now();
    let lost = a.task.await.unwrap().unwrap_err();
    assert!(matches!(lost, Lost::NotRenewed { .. }), "{lost:?}");
    assert!(world.clock.now().since(before) <= timing().deadline());
    assert!(a.fence.check().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_lease_taken_by_hand_ends_the_leader_and_a_deleted_one_is_made_again() {
    let world = World::new();
    let mut a = world.start("a");
    a.leads().await;
    let leases: Api<Lease> = Api::namespaced(world.client(), "default");
    let name = Election::lease_name(&"one".into());
    leases
        .delete(&name, &kube::api::DeleteParams::default())
        .await
        .unwrap();
    world.clock.sleep(Duration::from_secs(5)).await;
    assert_eq!(a.fence.check(), Ok(()));
    let mut lease = world.lease("one").await;
    assert_eq!(
        lease.spec.as_ref().unwrap().holder_identity.as_deref(),
        Some("a")
    );
    lease.spec.as_mut().unwrap().holder_identity = Some("thief".to_owned());
    leases
        .replace(&name, &PostParams::default(), &lease)
        .await
        .unwrap();
    let lost = a.task.await.unwrap().unwrap_err();
    assert!(matches!(lost, Lost::Taken { holder, .. } if holder == "thief"));
}

#[tokio::test(start_paused = true)]
async fn c121_an_install_whose_claims_overlap_does_not_lead_and_looks_again() {
    let world = World::new();
    let mut one = world.start_of("one", "a", "onehop.dev/local", world.client());
    one.leads().await;
    let lease = world.lease("one").await;
    assert_eq!(
        lease.annotations()["onehop.dev/claim-classes"],
        "onehop.dev/local",
        "K-01"
    );
    assert_eq!(lease.labels()[INSTALL_LABEL], "one", "K-02");
    assert!(lease.name_any().contains("one"), "K-02");
    let mut other = world.start_of("two", "b", "onehop.dev/aws", world.client());
    other.leads().await;
    let mut two = world.start_of("three", "c", "onehop.dev/local", world.client());
    two.until(|p| match p {
        Position::Refused { why } => why.contains("install one") && why.contains("held by a"),
        _ => false,
    })
    .await;
    world.clock.sleep(Duration::from_mins(1)).await;
    assert!(two.fence.check().is_err(), "C-121");
    // The first one is gone without a word: its claim lasts as long as its Lease.
    one.task.abort();
    two.leads().await;
    assert!(one.fence.check().is_err(), "C-121");
}

#[tokio::test(start_paused = true)]
async fn c121_of_two_installs_that_start_at_once_one_leads_in_the_end_and_never_both() {
    let world = World::new();
    let one = world.start_of("one", "a", "onehop.dev/local", world.client());
    let two = world.start_of("two", "b", "onehop.dev/local", world.client());
    let leads = |p: &Position| *p == Position::Leading;
    let (mut first, mut second) = (one.position.clone(), two.position.clone());
    tokio::select! {
        position = first.wait_for(leads) => drop(position.unwrap()),
        position = second.wait_for(leads) => drop(position.unwrap()),
    }
    for _ in 0..60 {
        let up = [&one, &two].map(|e| u8::from(e.fence.check().is_ok()));
        assert_eq!(up.iter().sum::<u8>(), 1, "C-121");
        world.clock.sleep(Duration::from_secs(1)).await;
    }
}
