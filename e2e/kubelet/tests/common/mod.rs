//! A world with one node and a kubelet, and what tests ask of it.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "shared by test binaries"
)]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use e2e_apiserver::{ApiServer, Config, Identity};
use e2e_fabric::{ClientNet, Fabric, FabricConfig, NodeNet, WorldTag};
use e2e_kubelet::{ImageTable, Kubelet, KubeletConfig, PodEvent, PodStep};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, PostParams};
use onehop_runtime::clock::Clock;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

pub struct World {
    pub kubelet: Kubelet,
    pub node: NodeNet,
    pub caller: ClientNet,
    pub pods: Api<Pod>,
    pub client: kube::Client,
    pub clock: Clock,
    events: Arc<Mutex<Vec<PodEvent>>>,
    pub fabric: Fabric,
}

pub async fn world() -> World {
    let clock = Clock::system();
    let server = ApiServer::start(e2e_apiserver::Clock::fixed(clock.now()), Config::default());
    let client = server.client(&Identity::admin());
    let fabric = Fabric::new(WorldTag::new().unwrap(), FabricConfig::default()).unwrap();
    let node = fabric.add_node("a").unwrap();
    let caller = fabric.add_client("caller", false).unwrap();
    let images = ImageTable::default()
        .with("pod-server", env!("CARGO_BIN_EXE_pod-server"), &[])
        .with("sh", "/bin/sh", &["-c"]);
    let events = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&events);
    let hook = Arc::new(move |event: &PodEvent| log.lock().unwrap().push(event.clone()));
    let config = KubeletConfig::new(images, clock, hook);
    let kubelet = Kubelet::start(client.clone(), node.clone(), config)
        .await
        .unwrap();
    let pods = Api::namespaced(client.clone(), "default");
    World {
        kubelet,
        node,
        caller,
        pods,
        client,
        clock,
        events,
        fabric,
    }
}

impl World {
    pub async fn create(&self, name: &str, spec: Value) {
        let pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
        self.pods
            .create(
                &PostParams::default(),
                &serde_json::from_value(pod).unwrap(),
            )
            .await
            .unwrap();
    }

    pub async fn delete(&self, name: &str) {
        self.pods
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
    }

    pub async fn get(&self, name: &str) -> Option<Pod> {
        self.pods.get_opt(name).await.unwrap()
    }

    pub async fn until(
        &self,
        name: &str,
        what: &str,
        holds: impl Fn(Option<&Pod>) -> bool,
    ) -> Option<Pod> {
        let deadline = self.clock.now() + Duration::from_secs(10);
        loop {
            let pod = self.get(name).await;
            if holds(pod.as_ref()) {
                return pod;
            }
            let state = serde_json::to_string_pretty(&pod).unwrap();
            assert!(
                self.clock.now() < deadline,
                "{name}: not {what}: {state} {:#?}",
                self.steps()
            );
            self.clock.sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until `holds`, at most ten seconds.
    pub async fn eventually(&self, what: &str, holds: impl AsyncFn() -> bool) {
        let deadline = self.clock.now() + Duration::from_secs(10);
        while !holds().await {
            assert!(
                self.clock.now() < deadline,
                "not {what}: {:#?}",
                self.steps()
            );
            self.clock.sleep(Duration::from_millis(10)).await;
        }
    }

    pub async fn until_ready(&self, name: &str) -> Pod {
        self.until(name, "ready", |p| {
            p.is_some_and(|p| condition(p, "Ready") == "True")
        })
        .await
        .unwrap()
    }

    pub fn events(&self) -> Vec<PodEvent> {
        self.events.lock().unwrap().clone()
    }

    pub fn steps(&self) -> Vec<PodStep> {
        self.events().into_iter().map(|e| e.step).collect()
    }

    /// The first line that the pod's TCP port says, and the connection.
    pub async fn tcp(&self, to: SocketAddr) -> Option<(Value, BufReader<tokio::net::TcpStream>)> {
        let call = async {
            let mut stream = BufReader::new(self.caller.netns().tcp_stream(to).await.ok()?);
            let mut line = String::new();
            stream.read_line(&mut line).await.ok()?;
            Some((serde_json::from_str(&line).ok()?, stream))
        };
        self.clock.within(Duration::from_secs(3), call).await.ok()?
    }

    pub async fn http(&self, to: SocketAddr, path: &str) -> Option<(u16, String)> {
        let mut stream = self.caller.netns().tcp_stream(to).await.ok()?;
        stream
            .write_all(format!("GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n").as_bytes())
            .await
            .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let status = answer.split(' ').nth(1)?.parse().ok()?;
        Some((status, answer.split_once("\r\n\r\n")?.1.to_owned()))
    }
}

pub fn condition(pod: &Pod, kind: &str) -> String {
    let conditions = pod
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten());
    conditions
        .filter(|c| c.type_ == kind)
        .map(|c| c.status.clone())
        .next()
        .unwrap_or_default()
}

pub fn address(pod: &Pod) -> Ipv4Addr {
    pod.status
        .as_ref()
        .unwrap()
        .pod_ip
        .as_ref()
        .unwrap()
        .parse()
        .unwrap()
}

pub fn at(address: Ipv4Addr, port: u16) -> SocketAddr {
    SocketAddr::new(address.into(), port)
}

/// A pod-server pod on node a.
pub fn server(args: &[&str]) -> Value {
    let ports = ["--tcp=7000", "--http=8080", "--udp=7000"];
    let args: Vec<&str> = ports.iter().chain(args).copied().collect();
    json!({
        "nodeName": "a",
        "terminationGracePeriodSeconds": 10,
        "containers": [{
            "name": "server",
            "image": "pod-server",
            "args": args,
            "readinessProbe": { "httpGet": { "path": "/ready", "port": 8080 }, "periodSeconds": 1 },
        }],
    })
}
