//! One bad thing after another happens to Services, pools, programs and nodes, as docs/bad-input.md lists them, while a
//! client of another Service asks 50 times a second: no request of it fails.

use crate::{documented, support::READY_WITHIN};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Event, Service};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use onehop_core::crd::AddressPool;
use onehop_e2e::{
    controlplane::BackEnd,
    traffic::{Endpoint, Load, Running, Transport, ask_tcp},
    world::{
        Cluster, OnTerm, POD_PORT, Programs, ServiceManifest, World, WorldConfig, address_pool,
        eventually, first_answer, pod,
    },
};
use serde_json::{Value, json};
use std::{net::SocketAddr, process::Command, time::Duration};

const PER_SECOND: u32 = 50;
const WITHIN: Duration = Duration::from_secs(30);

/// A world with a Service `steady` that is asked all the time.
struct Bystander {
    world: World,
    load: Running,
    address: SocketAddr,
}

impl Bystander {
    async fn start(on: BackEnd) -> Result<Self> {
        let config = WorldConfig {
            cluster: Cluster::on(on),
            ..WorldConfig::default()
        };
        let world = World::start(config).await?;
        let pods = [
            ("steady-a", "steady", "a"),
            ("steady-b", "steady", "b"),
            ("web", "web", "a"),
        ];
        for (name, app, node) in pods {
            world
                .objects
                .create(pod(name, app, node, OnTerm::Exit))
                .await?;
            world
                .objects
                .pod_ready("default", name, READY_WITHIN)
                .await?;
        }
        let steady = ServiceManifest::load_balancer("steady", "steady");
        world.objects.apply(steady.json()).await?;
        let address = (world.lb_address("steady").await?, 80).into();
        first_answer(&world, address).await?;
        let to = Endpoint {
            transport: Transport::Tcp,
            address,
        };
        let load = Load {
            to,
            per_second: PER_SECOND,
        };
        let load = load.start(world.sockets.clone(), world.clock);
        Ok(Self {
            world,
            load,
            address,
        })
    }

    /// No request failed, and there were as many as there should have been.
    async fn end(self) -> Result<()> {
        let (ledger, _) = self.load.stop().await;
        let failures: Vec<_> = ledger.failures().collect();
        ensure!(failures.is_empty(), "the bystander lost {failures:#?}");
        let kept = ledger.kept_rate(PER_SECOND);
        ensure!(kept > 0.8, "the load kept {kept} of its rate");
        self.world.end().await
    }

    async fn patch(&self, name: &str, patch: Value) -> Result<()> {
        let services = self.world.objects.api::<Service>();
        let patch = Patch::Merge(patch);
        services
            .patch(name, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    /// Waits for an event with this reason about a Service; of the page's rows only the reason, since names differ here.
    async fn told(&self, name: &str, case: &str) -> Result<()> {
        let reason = documented::row(case).reason;
        let events = self.world.objects.api::<Event>();
        eventually(
            &self.world.clock,
            &format!("{name}: {case}"),
            WITHIN,
            async || {
                let all = events
                    .list(&ListParams::default())
                    .await
                    .map_err(|e| e.to_string())?;
                let about = all
                    .items
                    .iter()
                    .filter(|e| e.involved_object.name.as_deref() == Some(name));
                let reasons: Vec<_> = about.map(|e| e.reason.clone()).collect();
                if reasons.contains(&reason) {
                    Ok(())
                } else {
                    Err(format!("{reasons:?}"))
                }
            },
        )
        .await
    }
}

fn annotated(key: &str, value: &Value) -> Value {
    json!({ "metadata": { "annotations": { key: value } } })
}

const ADDRESSES: &str = "onehop.dev/loadBalancerIPs";
const POOL: &str = "onehop.dev/address-pool";
const SHARING: &str = "onehop.dev/allow-shared-ip";

mod embedded {
    #[tokio::test(flavor = "multi_thread")]
    async fn i8_i12_no_bad_service_or_pool_costs_another_service_a_single_request()
    -> anyhow::Result<()> {
        super::bad_services_and_pools(super::BackEnd::Embedded).await
    }
}

mod real {
    #[tokio::test(flavor = "multi_thread")]
    async fn i8_i12_no_bad_service_or_pool_costs_another_service_a_single_request()
    -> anyhow::Result<()> {
        super::bad_services_and_pools(super::BackEnd::Real).await
    }
}

async fn bad_services_and_pools(on: BackEnd) -> Result<()> {
    let by = Bystander::start(on).await?;
    let world = &by.world;
    world
        .objects
        .apply(
            ServiceManifest::load_balancer("web", "web")
                .pod_mode()
                .json(),
        )
        .await?;
    let web: SocketAddr = (world.lb_address("web").await?, 80).into();
    first_answer(world, web).await?;
    let steady = by.address.ip().to_string();
    let wishes = [
        ("unknown-annotation", "onehop.dev/tagret", "pod"),
        ("bad-value", "onehop.dev/target", "pods"),
        ("impossible-mode", "onehop.dev/target", "node"),
        ("outside-pools", ADDRESSES, "192.0.2.1"),
        ("taken", ADDRESSES, &steady),
        ("no-such-pool", POOL, "silver"),
        ("port-clash", SHARING, "k"),
    ];
    for (case, key, value) in wishes {
        if case == "port-clash" {
            by.patch("steady", annotated(SHARING, &json!("k"))).await?;
            by.patch("web", annotated(ADDRESSES, &json!(steady)))
                .await?;
        }
        by.patch("web", annotated(key, &json!(value))).await?;
        by.told("web", case).await?;
        let answer = ask_tcp(&world.sockets, web).await;
        ensure!(
            answer.is_ok(),
            "{case}: its own last good state serves: {answer:?}"
        );
        for key in [key, ADDRESSES] {
            by.patch("web", annotated(key, &Value::Null)).await?;
        }
    }
    world
        .objects
        .create(address_pool("tiny", "198.51.100.200-198.51.100.200"))
        .await?;
    for name in ["one", "late"] {
        let manifest = ServiceManifest::load_balancer(name, "web").annotated(POOL, "tiny");
        world.objects.apply(manifest.json()).await?;
        if name == "one" {
            world.lb_address(name).await?;
        }
    }
    by.told("late", "exhausted").await?;
    // The pool of everybody goes away under them.
    let pools: Api<AddressPool> = Api::all(world.kube());
    let elsewhere = json!({ "spec": { "addresses": ["198.51.100.210-198.51.100.220"] } });
    pools
        .patch("pool", &PatchParams::default(), &Patch::Merge(elsewhere))
        .await?;
    by.told("steady", "pool-gone").await?;
    let finalizers = json!({ "metadata": { "finalizers": null } });
    by.patch("web", finalizers).await?;
    by.told("web", "finalizer-removed").await?;
    world.objects.delete_service("web").await?;
    world.service_gone("web").await?;
    let other = ServiceManifest::load_balancer("web", "web")
        .with("loadBalancerClass", json!("example.com/lb"));
    world.objects.apply(other.json()).await?;
    by.told("web", "class-changed").await?;
    thousand_ports(&by).await?;
    by.end().await
}

async fn thousand_ports(by: &Bystander) -> Result<()> {
    let world = &by.world;
    let port = |n: u16| json!({ "name": format!("p{n}"), "port": n, "targetPort": POD_PORT });
    let ports: Vec<Value> = (1..=1000).map(port).collect();
    let wide = ServiceManifest::load_balancer("wide", "web")
        .pod_mode()
        .with("ports", json!(ports));
    world.objects.apply(wide.json()).await?;
    let what = "a Service with a thousand ports has its address";
    let address = eventually(&world.clock, what, Duration::from_mins(4), async || {
        let service = world
            .objects
            .service("wide")
            .await
            .map_err(|e| e.to_string())?;
        let ingress = service
            .status
            .and_then(|s| s.load_balancer)
            .and_then(|l| l.ingress);
        let ip = ingress.and_then(|i| i.first()?.ip.clone());
        ip.and_then(|ip| ip.parse::<std::net::Ipv4Addr>().ok())
            .ok_or_else(String::new)
    })
    .await?;
    for port in [1, 500, 1000] {
        first_answer(world, (address, port).into()).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn i8_i12_nothing_that_befalls_programs_and_nodes_costs_a_service_a_single_request()
-> Result<()> {
    // A real API server cannot be taken away and given back.
    let mut by = Bystander::start(BackEnd::Embedded).await?;
    // A second agent on a node, and the first one killed: the second takes over, then the other way round (K-55).
    let second = second_agent(&by.world)?;
    by.world.kill_agent("a")?;
    by.world.agent_restarted("a", WITHIN).await?;
    drop(second);
    by.world.proxies_ready().await?;
    // The API server is away, the controller is killed meanwhile, and both come back.
    by.world.without_api_server()?;
    by.world.controller.kill()?;
    by.world.clock.sleep(Duration::from_secs(5)).await;
    by.world.with_api_server()?;
    let next = ServiceManifest::load_balancer("next", "web");
    by.world.objects.apply(next.json()).await?;
    let address = (by.world.lb_address("next").await?, 80).into();
    first_answer(&by.world, address).await?;
    // Another process has the health port of a Service.
    let node = by.world.kubelet("a")?.node();
    let port: SocketAddr = (node.address(), 30_034).into();
    let taken = node.netns().tcp_listener(port)?;
    let local = ServiceManifest::load_balancer("local", "web")
        .with("externalTrafficPolicy", json!("Local"))
        .with("healthCheckNodePort", json!(30_034));
    by.world.objects.apply(local.json()).await?;
    by.told("local", "health-port-taken").await?;
    drop(taken);
    // Our kinds are deleted while everything runs.
    let crds: Api<CustomResourceDefinition> = Api::all(by.world.kube());
    let ours = crds.list(&ListParams::default()).await?;
    for crd in ours.iter().filter(|crd| crd.spec.group == "onehop.dev") {
        crds.delete(&crd.name_any(), &DeleteParams::default())
            .await?;
    }
    let log = by.world.folder().join("controller.log");
    for case in ["api-server-away", "crds-deleted"] {
        let text = documented::text(case);
        eventually(&by.world.clock, case, READY_WITHIN, async || {
            let log = std::fs::read_to_string(&log).map_err(|e| e.to_string())?;
            let told = log.contains(&text);
            told.then_some(())
                .ok_or_else(|| "not in the log".to_owned())
        })
        .await?;
    }
    let service = by.world.objects.service("steady").await?;
    let ingress = service
        .status
        .and_then(|s| s.load_balancer)
        .and_then(|l| l.ingress);
    let ip = ingress
        .and_then(|i| i.first()?.ip.clone())
        .context("an address")?;
    ensure!(ip == by.address.ip().to_string(), "crds-deleted: {ip}");
    by.end().await
}

/// Another agent in a node's network namespace, ended when dropped. With a readiness socket of its own.
fn second_agent(world: &World) -> Result<e2e_fabric::Child> {
    let log = std::fs::File::create(world.folder().join("second-agent.log"))?;
    let mut command = Command::new(Programs::of_this_build()?.path("onehop-node-agent")?);
    command
        .args(["--node-name", "a", "--cluster-cidr", "10.244.0.0/16"])
        .args(["--ready-socket", "@onehop-second"])
        .arg("--kubeconfig")
        .arg(world.folder().join("kubeconfig-node-agent-a"))
        .stderr(log.try_clone()?)
        .stdout(log);
    Ok(world.kubelet("a")?.node().netns().spawn(command)?)
}
