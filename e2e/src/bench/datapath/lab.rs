//! One proxy on one node with a number of Services, and what it is asked there.

use anyhow::{Context, Result, ensure};
use e2e_fabric::Netns;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use onehop_runtime::clock::Clock;
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use super::{
    Flush, Measured, Plan, Surge, Way,
    clients::{ANSWER_WITHIN, connect_within, healths, steady},
    histogram::{Buckets, buckets, quantile_of},
    load, process,
    table::name,
};
use crate::{
    traffic::{SocketSource, ask_tcp},
    world::{
        Cluster, OnTerm, POD_PORT, Proxy, World, WorldConfig, eventually, pod, proxy_pod,
        sockets_of,
    },
};

const NODE: &str = "a";
/// How long anything may take: kube-proxy needs a while with many Services.
const WITHIN: Duration = Duration::from_mins(3);
/// Between two changes that are measured one by one: kube-proxy syncs once a second at most, and none of them is to wait
/// for that.
const APART: Duration = Duration::from_millis(1500);
/// How often a proxy that starts is asked.
const POLL: Duration = Duration::from_millis(5);
/// Endpoint changes in a second of the churn.
const CHURN: u32 = 100;
/// How often /healthz is asked in the churn.
const HEALTH_EVERY: Duration = Duration::from_millis(100);
/// How long connections are watched after a flush.
const FLUSH_FOR: Duration = Duration::from_secs(3);
/// Both proxies answer where kube-proxy does (S-129).
const METRICS: u16 = 10249;
pub(super) const HEALTH: u16 = 10256;

/// Runs everything with one proxy.
pub(super) async fn measure(plan: Plan, proxy: Proxy, round: u32) -> Result<Measured> {
    let lab = Lab::set(plan, proxy).await?;
    let (start_ms, full_sync_ms, start_health_ms) = lab.start().await?;
    let (restart_ms, restart_connections) = lab.restart().await?;
    let swaps = lab.swaps().await?;
    let (churn_cpu_ms, churn_health_ms) = lab.churn().await?;
    let peak_mib = process::peak_mib(lab.pid()?)?;
    let surge = match proxy {
        Proxy::KubeProxy => None,
        Proxy::Beside | Proxy::Replace => Some(lab.surge().await?),
    };
    // Last: a proxy may not come back from it.
    let flush = lab.flush()?;
    // Without the checks of a world's end: its controller is stopped, and another proxy's drops are no matter here.
    drop(lab);
    Ok(Measured {
        proxy: name(proxy),
        services: plan.services,
        endpoints: plan.endpoints,
        round,
        start_ms,
        full_sync_ms,
        start_health_ms,
        restart_ms,
        restart_connections,
        swap_ms: swaps.latencies,
        partial_sync_ms: swaps.own,
        partial_sync_p99_ms: swaps.own_p99,
        swap_cpu_ms: swaps.cpu,
        surge,
        flush,
        churn_cpu_ms,
        churn_health_ms,
        peak_mib,
        connects: Vec::new(),
    })
}

pub(super) struct Lab {
    world: World,
    plan: Plan,
    proxy: Proxy,
    /// The asked Service, by its ClusterIP.
    asked: SocketAddr,
    /// It by each of its addresses.
    pub(super) ways: [(Way, SocketAddr); 3],
    /// Sockets of the pod that asks.
    sockets: SocketSource,
    pub(super) asker: (Netns, Ipv4Addr),
    /// The pods that the asked Service may send to.
    ends: [(&'static str, Ipv4Addr); 2],
}

/// What single changes cost, in ms.
struct Swaps {
    latencies: Vec<f64>,
    own: f64,
    own_p99: f64,
    cpu: f64,
}

impl Lab {
    /// Its world with all Services, once the proxy has them.
    pub(super) async fn set(plan: Plan, proxy: Proxy) -> Result<Self> {
        let world = World::start(WorldConfig {
            nodes: vec![NODE],
            cluster: Cluster::proxied_by(proxy),
            keep_logs: false,
            agent_flags: plan
                .unowned_tables
                .then_some("--table-owner=nobody")
                .into_iter()
                .collect(),
            ..WorldConfig::default()
        })
        .await?;
        // It has nothing to do with ClusterIPs and would only take CPU time.
        world.controller.signal(Signal::SIGSTOP)?;
        let names = ["left", "right", "asker"];
        for name in names {
            let pod = pod(name, name, NODE, OnTerm::Exit);
            world.objects.create(pod).await?;
        }
        for name in names {
            world.objects.pod_ready("default", name, WITHIN).await?;
        }
        let asker = world.pod_place("asker").await?;
        let ends = [
            ("left", world.pod_place("left").await?.1),
            ("right", world.pod_place("right").await?.1),
        ];
        load::create(&world.objects, plan.services, plan.endpoints).await?;
        load::create_asked(&world.objects, ends[0].1, POD_PORT).await?;
        let service = world.objects.service(load::ASKED).await?;
        let spec = service.spec.context("the Service has no spec")?;
        let node_port = spec.ports.iter().flatten().find_map(|port| port.node_port);
        let node_port = u16::try_from(node_port.context("the Service has no node port")?)?;
        let address: IpAddr = spec.cluster_ip.context("no ClusterIP")?.parse()?;
        let asked = SocketAddr::new(address, 80);
        let node = world.kubelet(NODE)?.node().address();
        let lab = Self {
            sockets: sockets_of(&asker.0, asker.1),
            asked,
            ways: [
                (Way::ClusterIp, asked),
                (Way::NodePort, (node, node_port).into()),
                (Way::LoadBalancer, (load::BALANCER, 80).into()),
            ],
            asker,
            world,
            plan,
            proxy,
            ends,
        };
        lab.in_sync().await?;
        Ok(lab)
    }

    fn clock(&self) -> Clock {
        self.world.clock
    }

    /// Name of the proxy's pod.
    fn pod(&self) -> String {
        proxy_pod(self.proxy, NODE)
    }

    fn pid(&self) -> Result<u32> {
        let pids = self.world.kubelet(NODE)?.pids("kube-system", &self.pod());
        pids.into_values().next().context("the proxy does not run")
    }

    /// A process of the proxy that is not this one.
    async fn pid_after(&self, old: Option<u32>) -> Result<u32> {
        let deadline = Instant::now() + WITHIN;
        loop {
            match self.pid() {
                Ok(pid) if Some(pid) != old => return Ok(pid),
                other => ensure!(Instant::now() < deadline, "no new process: {other:?}"),
            }
            self.clock().sleep(POLL).await;
        }
    }

    /// Waits until the proxy is healthy and the asked Service answers. The longest answer of /healthz meanwhile.
    async fn in_sync(&self) -> Result<Duration> {
        let (deadline, mut longest) = (Instant::now() + WITHIN, Duration::ZERO);
        loop {
            let asked = Instant::now();
            let healthy = self.health();
            if healthy.is_ok() {
                longest = longest.max(asked.elapsed());
            }
            let answered = match healthy {
                Ok(200) => ask_tcp(&self.sockets, self.asked).await.is_ok(),
                _ => false,
            };
            if answered {
                return Ok(longest);
            }
            ensure!(Instant::now() < deadline, "not in sync: {healthy:?}");
            self.clock().sleep(POLL).await;
        }
    }

    /// Asks until this pod answers; when the connection that it answered began.
    async fn answered_by(&self, pod: &str) -> Result<Instant> {
        let deadline = Instant::now() + WITHIN;
        loop {
            let asked = Instant::now();
            match ask_tcp(&self.sockets, self.asked).await {
                Ok((answer, _)) if answer.pod == pod => return Ok(asked),
                other => ensure!(asked < deadline, "still {other:?}"),
            }
        }
    }

    /// The code that /healthz answers.
    fn health(&self) -> Result<u16> {
        let answer = self.get(HEALTH, "/healthz")?;
        Ok(answer.0)
    }

    fn get(&self, port: u16, path: &str) -> Result<(u16, String)> {
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let answer = self.world.http_get_on_node(NODE, to, path)?;
        Ok((answer.status, answer.body))
    }

    /// Sum (in ms) and count of a histogram, over both families.
    fn histogram(&self, name: &str) -> Result<(f64, f64)> {
        let (_, text) = self.get(METRICS, "/metrics")?;
        let of = |end: &str| -> f64 {
            let series = format!("{name}_{end}");
            let lines = text.lines().filter(|line| line.starts_with(&series));
            let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
            values.sum()
        };
        Ok((of("sum") * 1000.0, of("count")))
    }

    /// Counts of a histogram's buckets (by their upper ends in ms), over both families.
    fn buckets(&self, name: &str) -> Result<Buckets> {
        let (_, text) = self.get(METRICS, "/metrics")?;
        Ok(buckets(&text, name))
    }

    /// Waits until the proxy's first pod and its process have ended.
    async fn gone(&self, pods: &Api<Pod>, what: &str) -> Result<()> {
        eventually(&self.clock(), what, WITHIN, async || {
            let found = pods.get_opt(&self.pod()).await;
            let there = found.map_err(|e| e.to_string())?.is_some() || self.pid().is_ok();
            (!there).then_some(()).ok_or_else(|| "it is there".into())
        })
        .await
    }

    /// From nothing: the pod is removed, its tables too, and it is started again.
    async fn start(&self) -> Result<(f64, f64, f64)> {
        let pods: Api<Pod> = Api::namespaced(self.world.kube(), "kube-system");
        let old = pods.get(&self.pod()).await?;
        let pid = self.pid()?;
        let now = DeleteParams::default().grace_period(0);
        pods.delete(&self.pod(), &now).await?;
        self.gone(&pods, "the proxy is gone").await?;
        self.world.on_node(NODE, "nft", &["flush", "ruleset"])?;
        let mut new = Pod {
            spec: old.spec.clone(),
            ..Pod::default()
        };
        new.metadata.name = Some(old.name_any());
        new.metadata.labels.clone_from(&old.metadata.labels);
        pods.create(&PostParams::default(), &new).await?;
        self.pid_after(Some(pid)).await?;
        let began = Instant::now();
        let health = self.in_sync().await?;
        let took = ms(began.elapsed());
        // It is counted a little later, when what was left from before has been cleaned up, too.
        let what = "a full sync is counted";
        let sum = eventually(&self.world.clock, what, WITHIN, async || {
            let full = self.histogram("kubeproxy_sync_full_proxy_rules_duration_seconds");
            let (sum, count) = full.map_err(|e| e.to_string())?;
            (count > 0.0).then_some(sum).ok_or_else(|| "none".into())
        })
        .await?;
        Ok((took, sum, ms(health)))
    }

    /// Waits until an address of the asked Service answers.
    pub(super) async fn answers(&self, to: SocketAddr) -> Result<()> {
        eventually(&self.clock(), "the address answers", WITHIN, async || {
            let answer = ask_tcp(&self.sockets, to).await;
            answer.map(drop).map_err(|error| format!("{error:?}"))
        })
        .await
    }

    /// Killed, and started again by the kubelet; a client goes on meanwhile. In sync is who has taken up what changed
    /// while it was away: its rules and its health answer may well outlive it.
    async fn restart(&self) -> Result<(f64, [u32; 2])> {
        let pid = self.pid()?;
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let client = tokio::spawn(steady(
            self.sockets.clone(),
            self.asked,
            self.clock(),
            stopped,
        ));
        kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGKILL)?;
        let (other, address) = self.ends[1];
        load::point(&self.world.objects, address).await?;
        self.pid_after(Some(pid)).await?;
        let began = Instant::now();
        self.answered_by(other).await?;
        let took = ms(began.elapsed());
        // A client that has ended says so below.
        let _ = stop.send(true);
        Ok((took, client.await?))
    }

    /// One change after another, each until connections go to the new endpoint.
    async fn swaps(&self) -> Result<Swaps> {
        const OWN: &str = "kubeproxy_sync_partial_proxy_rules_duration_seconds";
        self.clock().sleep(APART).await;
        let (pid, before) = (self.pid()?, self.histogram(OWN)?);
        let counted = self.buckets(OWN)?;
        let cpu = process::cpu(pid)?;
        let mut latencies = Vec::new();
        for number in 0..self.plan.swaps {
            // The restart left the second one.
            let (wanted, address) = self.ends[usize::from(number % 2 == 1)];
            let began = Instant::now();
            load::point(&self.world.objects, address).await?;
            latencies.push(ms(self.answered_by(wanted).await? - began));
            self.clock().sleep(APART).await;
        }
        let used = ms(process::cpu(pid)?.saturating_sub(cpu));
        let after = self.histogram(OWN)?;
        let syncs = after.1 - before.1;
        ensure!(syncs > 0.0, "no partial sync was counted");
        Ok(Swaps {
            own_p99: quantile_of(&counted, &self.buckets(OWN)?, 0.99),
            latencies,
            own: (after.0 - before.0) / syncs,
            cpu: used / f64::from(self.plan.swaps),
        })
    }

    /// Many changes, spread over the Services. CPU time of a second, and the longest answer of /healthz.
    async fn churn(&self) -> Result<(f64, f64)> {
        let (pid, began) = (self.pid()?, Instant::now());
        let cpu = process::cpu(pid)?;
        let (mut number, mut health, mut longest) = (0_u32, began, Duration::ZERO);
        while began.elapsed() < self.plan.churn {
            let (index, version) = (number % self.plan.services, number / self.plan.services + 1);
            let objects = &self.world.objects;
            load::change(objects, index, self.plan.endpoints, version).await?;
            number += 1;
            if health.elapsed() >= HEALTH_EVERY {
                health = Instant::now();
                ensure!(self.health()? == 200, "unhealthy in the churn");
                longest = longest.max(health.elapsed());
            }
            let due = began + Duration::from_secs(1) * number / CHURN;
            self.clock()
                .sleep(due.saturating_duration_since(Instant::now()))
                .await;
        }
        let took = began.elapsed();
        let kept = f64::from(number) / took.as_secs_f64() / f64::from(CHURN);
        ensure!(kept > 0.9, "only {kept:.2} of the changes could be written");
        let used = ms(process::cpu(pid)?.saturating_sub(cpu));
        Ok((used / took.as_secs_f64(), ms(longest)))
    }

    /// A second agent stands by beside the first, which is then told to end, as in an update.
    async fn surge(&self) -> Result<Surge> {
        let pods: Api<Pod> = Api::namespaced(self.world.kube(), "kube-system");
        let old = pods.get(&self.pod()).await?;
        let mut next = Pod {
            spec: old.spec.clone(),
            ..Pod::default()
        };
        let name = format!("{}-next", old.name_any());
        next.metadata.name = Some(name.clone());
        next.metadata.labels.clone_from(&old.metadata.labels);
        own_socket(&mut next);
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let client = tokio::spawn(steady(
            self.sockets.clone(),
            self.asked,
            self.clock(),
            stopped,
        ));
        let (ended, end) = std::sync::mpsc::channel::<()>();
        let node = self.world.kubelet(NODE)?.node();
        let health = node.netns().thread("health", move || healths(&end))?;
        pods.create(&PostParams::default(), &next).await?;
        let objects = &self.world.objects;
        objects.pod_ready("kube-system", &name, WITHIN).await?;
        pods.delete(&old.name_any(), &DeleteParams::default())
            .await?;
        self.gone(&pods, "the first agent is gone").await?;
        for (wanted, address) in self.ends {
            load::point(objects, address).await?;
            self.answered_by(wanted).await?;
        }
        // Who has ended says so below.
        let _ = stop.send(true);
        drop(ended);
        let health = health.join();
        Ok(Surge {
            connections: client.await?,
            health: health.map_err(|_| anyhow::anyhow!("the client panicked"))??,
        })
    }

    /// Somebody else flushes all tables while one client connects without a pause.
    fn flush(&self) -> Result<Flush> {
        let (to, flushed) = (self.asked, std::sync::mpsc::channel());
        let (begun, told) = flushed;
        let client = self.asker.0.thread("flush", move || {
            let watched = told.recv_timeout(WITHIN).map(|()| Instant::now());
            let flushed = watched.unwrap_or_else(|_| Instant::now());
            let mut found = Flush {
                connections: 0,
                failed: 0,
                gap_ms: 0.0,
                reload_ms: 0.0,
            };
            while flushed.elapsed() < FLUSH_FOR {
                let began = Instant::now();
                found.connections += 1;
                if connect_within(to, ANSWER_WITHIN).is_err() {
                    found.failed += 1;
                    found.gap_ms = ms(began - flushed);
                }
            }
            found
        })?;
        begun.send(()).context("the client has ended")?;
        let began = Instant::now();
        self.world.on_node(NODE, "nft", &["flush", "ruleset"])?;
        let reload_ms = ms(began.elapsed());
        let found = client.join();
        let found = found.map_err(|_| anyhow::anyhow!("the client panicked"))??;
        Ok(Flush { reload_ms, ..found })
    }
}

/// Each pod has a file system of its own elsewhere; here one that is asked whether it is ready is told by its socket.
fn own_socket(pod: &mut Pod) {
    let containers = pod.spec.iter_mut().flat_map(|spec| &mut spec.containers);
    for container in containers {
        let probe = container.readiness_probe.iter_mut();
        let asked = probe.filter_map(|probe| probe.exec.as_mut()?.command.as_mut());
        let words = container.args.iter_mut().chain(asked).flatten();
        for word in words.filter(|word| word.contains("@onehop-ready")) {
            word.push_str("-next");
        }
    }
}

pub(super) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
