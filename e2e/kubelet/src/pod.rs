//! One pod on the node: network, containers, status, end. A task per pod, told of its object by the kubelet's watch.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use e2e_fabric::{Netns, PodNet};
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::api::PodApi;
use crate::container::{Container, Deadline, Report};
use crate::env::environment;
use crate::events::{Log, PodRef, PodStep};
use crate::kubelet::{Shared, lock};
use crate::plan::{ContainerPlan, PodPlan, RestartPolicy, deletion_grace};
use crate::probe::ProbeTarget;
use crate::status::{ContainerFacts, ContainerState, Facts};
use crate::volumes::Place;

/// What the watch says of a pod.
#[derive(Clone, Debug)]
pub(crate) enum Seen {
    Object(Arc<Pod>),
    /// The object is gone although the pod is not: forced deletion.
    Gone,
}

/// Process ids of running containers, for tests that kill them.
pub(crate) type Pids = Arc<Mutex<BTreeMap<(PodRef, String), u32>>>;

/// Network namespaces of pods that have one, for tests that ask from inside.
pub(crate) type Namespaces = Arc<Mutex<BTreeMap<PodRef, Netns>>>;

/// Pause before an API call or a network that failed is tried again.
const RETRY: Duration = Duration::from_millis(500);
/// Time that a pod whose object was deleted by force gets.
const FORCED_GRACE: Duration = Duration::from_secs(1);

pub(crate) struct PodTask {
    plan: PodPlan,
    shared: Arc<Shared>,
    seen: watch::Receiver<Seen>,
    api: PodApi,
    log: Log,
    facts: Facts,
    stop: watch::Sender<Deadline>,
    was_ready: bool,
    /// Folders of its volumes, by their names.
    volumes: BTreeMap<String, PathBuf>,
    /// The last write of the status failed and is due again.
    unwritten: bool,
}

impl PodTask {
    pub(crate) fn new(
        shared: Arc<Shared>,
        pod: Arc<Pod>,
        plan: PodPlan,
        seen: watch::Receiver<Seen>,
    ) -> Self {
        let log = Log {
            node: shared.node.name().to_owned(),
            pod: plan.pod.clone(),
            clock: shared.clock,
            hook: Arc::clone(&shared.hook),
        };
        let facts = Facts {
            uid: plan.pod.uid.clone(),
            host: shared.node.address(),
            address: None,
            seen: shared.clock.now(),
            gates: plan.gates.clone(),
            containers: plan
                .containers
                .iter()
                .map(|c| ContainerFacts::new(&c.name, &c.image))
                .collect(),
            over: false,
        };
        let api = PodApi::new(&shared.client, &plan.pod, pod);
        let (stop, _) = watch::channel(None);
        Self {
            plan,
            shared,
            seen,
            api,
            log,
            facts,
            stop,
            was_ready: false,
            volumes: BTreeMap::new(),
            unwritten: false,
        }
    }

    /// From the first sight of the pod to the last trace of it.
    pub(crate) async fn run(mut self) {
        if let Some(message) = self.plan.not_done {
            self.log.write(PodStep::Trouble {
                message: message.to_owned(),
            });
        }
        let net = self.network().await;
        if let Some((_, ns, address)) = &net {
            self.facts.address = Some(*address);
            lock(&self.shared.namespaces).insert(self.plan.pod.clone(), ns.clone());
            self.log.write(PodStep::Created { address: *address });
            if self.volumes().await && self.init(ns, *address).await {
                self.containers(ns.clone(), *address).await;
            }
        }
        self.facts.over = true;
        self.sync().await;
        lock(&self.shared.namespaces).remove(&self.plan.pod);
        if let Some((Some(pod_net), ..)) = net {
            self.remove_network(pod_net).await;
        }
        self.until_deleted().await;
        let uid = &self.plan.pod.uid;
        while let Err(error) = self.api.remove(uid).await {
            self.log.write(PodStep::Trouble {
                message: format!("delete from the API: {error}"),
            });
            self.shared.clock.sleep(RETRY).await;
        }
        self.log.write(PodStep::Gone);
    }

    /// The pod's own network, or the node's. `None`: deleted before there was one.
    async fn network(&mut self) -> Option<(Option<PodNet>, Netns, Ipv4Addr)> {
        let node = self.shared.node.clone();
        if self.plan.host_network {
            self.follow();
            return self
                .stop
                .borrow()
                .is_none()
                .then(|| (None, node.netns().clone(), node.address()));
        }
        // The UID's start keeps a pod apart from its successor of the same name.
        let PodRef {
            namespace,
            name,
            uid,
        } = &self.plan.pod;
        let label = format!("{namespace}-{name}-{}", uid.get(..5).unwrap_or(uid));
        loop {
            self.follow();
            if self.stop.borrow().is_some() {
                return None;
            }
            let (at, label) = (node.clone(), label.clone());
            let made = tokio::task::spawn_blocking(move || at.add_pod(&label, None)).await;
            match made {
                Ok(Ok(net)) => {
                    let (ns, address) = (net.netns().clone(), net.address());
                    return Some((Some(net), ns, address));
                }
                Ok(Err(error)) => self.log.write(PodStep::Trouble {
                    message: error.to_string(),
                }),
                Err(error) => self.log.write(PodStep::Trouble {
                    message: error.to_string(),
                }),
            }
            self.shared.clock.sleep(RETRY).await;
        }
    }

    fn folder_name(&self) -> String {
        let PodRef {
            namespace,
            name,
            uid,
        } = &self.plan.pod;
        format!("{namespace}_{name}_{uid}")
    }

    /// Whether one of its images has files of its own; only then its volumes are mounted and its init containers run.
    fn contained(&self) -> bool {
        let images = self.plan.containers.iter();
        images
            .filter_map(|c| self.shared.images.get(&c.image))
            .any(|image| image.own.is_some())
    }

    /// Makes its volumes; `false` if it was deleted before.
    async fn volumes(&mut self) -> bool {
        let Some(folder) = self.shared.log_folder.clone().filter(|_| self.contained()) else {
            return true;
        };
        loop {
            self.follow();
            if self.stop.borrow().is_some() {
                return false;
            }
            let place = Place {
                client: &self.shared.client,
                pod: &self.plan.pod,
                account: &self.plan.account,
                fs_group: self.plan.fs_group,
                folder: folder.join(self.folder_name()),
                host: folder.join(format!("paths-of-{}", self.shared.node.name())),
            };
            match place.prepare(&self.plan.volumes).await {
                Ok(volumes) => {
                    self.volumes = volumes;
                    return true;
                }
                Err(error) => self.log.write(PodStep::Trouble {
                    message: format!("{error:#}"),
                }),
            }
            self.shared.clock.sleep(RETRY).await;
        }
    }

    /// Runs its init containers, each until it ends well; `false` if the pod was deleted before.
    async fn init(&mut self, ns: &Netns, address: Ipv4Addr) -> bool {
        if !self.contained() {
            return true;
        }
        for plan in self.plan.init.clone() {
            // Nobody reads what is reported of them: the status has the other containers only.
            let (reports, _unread) = mpsc::unbounded_channel();
            let mut container = self.container((0, plan), ns, address, reports);
            container.restart = RestartPolicy::OnFailure;
            let mut running = Box::pin(container.run(self.stop.subscribe()));
            let mut seen = self.seen.clone();
            loop {
                tokio::select! {
                    () = &mut running => break,
                    Ok(()) = seen.changed() => self.follow(),
                }
            }
            self.follow();
            if self.stop.borrow().is_some() {
                return false;
            }
        }
        true
    }

    /// Runs the containers until none will run again.
    async fn containers(&mut self, ns: Netns, address: Ipv4Addr) {
        let (reports, mut news) = mpsc::unbounded_channel();
        let mut running = JoinSet::new();
        for index in 0..self.plan.containers.len() {
            let plan = self.plan.containers[index].clone();
            let container = self.container((index, plan), &ns, address, reports.clone());
            running.spawn(container.run(self.stop.subscribe()));
        }
        drop(reports);
        let mut seen = self.seen.clone();
        let clock = self.shared.clock;
        loop {
            self.sync().await;
            tokio::select! {
                report = news.recv() => {
                    let Some((index, report)) = report else { return };
                    self.take(index, report);
                    // All that has come meanwhile goes into one status.
                    while let Ok((index, report)) = news.try_recv() {
                        self.take(index, report);
                    }
                }
                Ok(()) = seen.changed() => self.follow(),
                () = clock.sleep(RETRY), if self.unwritten => {}
            }
        }
    }

    fn container(
        &self,
        (index, plan): (usize, ContainerPlan),
        ns: &Netns,
        address: Ipv4Addr,
        reports: mpsc::UnboundedSender<(usize, Report)>,
    ) -> Container {
        let folder = self.folder_name();
        Container {
            index,
            image: self.shared.images.get(&plan.image).cloned(),
            volumes: self.volumes.clone(),
            env: environment(&plan.env, &self.plan, &self.shared.node, address),
            ns: ns.clone(),
            target: ProbeTarget {
                node: self.shared.node.netns().clone(),
                address: address.into(),
                clock: self.shared.clock,
            },
            restart: self.plan.restart,
            backoff: self.shared.restart_backoff,
            output: self
                .shared
                .log_folder
                .as_ref()
                .map(|f| f.join(folder).join(format!("{}.log", plan.name))),
            log: self.log.clone(),
            reports,
            plan,
        }
    }

    fn take(&mut self, index: usize, report: Report) {
        let now = self.shared.clock.now();
        let facts = &mut self.facts.containers[index];
        let key = (self.plan.pod.clone(), facts.name.clone());
        let mut pids = lock(&self.shared.pids);
        match report {
            Report::Started { pid } => {
                pids.insert(key, pid);
                if facts.last.is_some() {
                    facts.restarts += 1;
                }
                facts.state = ContainerState::Running { since: now, pid };
            }
            Report::Ready(ready) => facts.ready = ready,
            Report::Ended(ended) => {
                pids.remove(&key);
                facts.ready = false;
                facts.last = Some(ended);
                facts.state = ContainerState::Terminated(ended);
            }
            Report::Waiting { reason, message } => {
                facts.state = ContainerState::Waiting {
                    reason: reason.to_owned(),
                    message: Some(message),
                };
            }
        }
    }

    /// Takes over the newest object, and the order to end in it.
    fn follow(&mut self) {
        let grace = match &*self.seen.borrow_and_update() {
            Seen::Object(pod) => {
                let grace = deletion_grace(pod).map(|grace| grace / self.shared.speed);
                self.api.observe(Arc::clone(pod));
                grace
            }
            Seen::Gone => Some(FORCED_GRACE),
        };
        if let Some(grace) = grace
            && self.stop.borrow().is_none()
        {
            self.log.write(PodStep::DeletionMarked { grace });
            self.stop
                .send_replace(Some(self.shared.clock.now() + grace));
        }
    }

    async fn until_deleted(&mut self) {
        loop {
            self.follow();
            if self.stop.borrow().is_some() {
                return;
            }
            if self.unwritten {
                self.sync().await;
            }
            tokio::select! {
                changed = self.seen.changed() => if changed.is_err() {
                    return std::future::pending().await;
                },
                () = self.shared.clock.sleep(RETRY), if self.unwritten => {}
            }
        }
    }

    /// Writes the status if it says anything new.
    async fn sync(&mut self) {
        let ready = self.facts.ready(&self.api.status());
        if ready != self.was_ready {
            self.was_ready = ready;
            self.log.write(if ready {
                PodStep::Ready
            } else {
                PodStep::NotReady
            });
        }
        let written = self
            .api
            .write_status(&self.facts, self.shared.clock.now())
            .await;
        self.unwritten = written.is_err();
        if let Err(error) = written {
            self.log.write(PodStep::Trouble {
                message: format!("write the status: {error}"),
            });
        }
    }

    async fn remove_network(&self, net: PodNet) {
        let node = self.shared.node.clone();
        let removed = tokio::task::spawn_blocking(move || node.remove_pod(net)).await;
        let trouble = match removed {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        self.log.write(PodStep::Trouble { message: trouble });
    }
}
