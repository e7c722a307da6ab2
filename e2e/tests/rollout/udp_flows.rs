//! UDP flows from fixed ports, which a load balancer sends to one target for as long as they go on.

use crate::support::WITHIN;
use anyhow::{Context, Result, ensure};
use e2e_kubelet::PodStep;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use onehop_core::time::Time;
use onehop_e2e::{
    traffic::{Answer, Transport},
    world::{OnTerm, ServiceManifest, World, WorldConfig, eventually, first_answer, pod},
};
use std::{net::SocketAddr, time::Duration};
use tokio::{net::UdpSocket, time::timeout};

const FLOWS: usize = 50;
const EVERY: Duration = Duration::from_millis(100);

/// One flow.
struct Flow {
    socket: UdpSocket,
    /// Requests without an answer, by when they were sent.
    lost: Vec<Time>,
    last: Option<String>,
}

impl Flow {
    async fn open(world: &World, to: SocketAddr) -> Result<Self> {
        let socket = UdpSocket::from_std((world.sockets)(Transport::Udp, to)?.into())?;
        socket.connect(to).await?;
        Ok(Self {
            socket,
            lost: Vec::new(),
            last: None,
        })
    }

    /// Asks once; the answer's pod is kept.
    async fn ask(&mut self, world: &World) {
        // What is still there belongs to an earlier request.
        while self.socket.try_recv(&mut [0; 2048]).is_ok() {}
        let sent = world.clock.now();
        let talk = async {
            self.socket.send(b"who\n").await?;
            let mut buffer = vec![0; 2048];
            let length = self.socket.recv(&mut buffer).await?;
            buffer.truncate(length);
            Ok::<_, std::io::Error>(buffer)
        };
        let answer = timeout(Duration::from_millis(500), talk).await;
        match answer
            .ok()
            .and_then(Result::ok)
            .as_deref()
            .and_then(Answer::parse)
        {
            Some(answer) => self.last = Some(answer.pod),
            None => self.lost.push(sent),
        }
    }
}

/// ZD-T24, ZD-84, W17: a flow whose pod is gone is steered from its next datagram on.
#[tokio::test(flavor = "multi_thread")]
async fn zd_t24_zd84_w17_flows_that_are_pinned_to_a_pod_that_ends_are_answered_a_second_later()
-> Result<()> {
    let world = World::start(WorldConfig::default()).await?;
    for (name, node) in [("old", "a"), ("near", "a"), ("far", "b")] {
        let manifest = pod(name, "web", node, OnTerm::Exit);
        world.objects.create(manifest).await?;
        world.objects.pod_ready("default", name, WITHIN).await?;
    }
    let service = ServiceManifest::load_balancer("web", "web").pod_mode();
    world.objects.apply(service.json()).await?;
    let to = SocketAddr::from((world.lb_address("web").await?, 80));
    first_answer(&world, to).await?;
    let what = "fifty flows to the old pod";
    let mut flows: Vec<Flow> = Vec::new();
    for _ in 0..FLOWS * 8 {
        let mut flow = Flow::open(&world, to).await?;
        flow.ask(&world).await;
        if flow.last.as_deref() == Some("old") {
            flows.push(flow);
        }
        if flows.len() == FLOWS {
            break;
        }
    }
    ensure!(flows.len() == FLOWS, "{what}: {}", flows.len());
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let run = async {
        while !*stopped.borrow() {
            let round = world.clock.now();
            futures::future::join_all(flows.iter_mut().map(|flow| flow.ask(&world))).await;
            world.clock.sleep_until(round + EVERY).await;
        }
        anyhow::Ok(())
    };
    let change = async {
        world.clock.sleep(Duration::from_secs(1)).await;
        let pods = world.objects.api::<Pod>();
        pods.delete("old", &DeleteParams::default()).await?;
        let what = "the pod has ended";
        let exited = eventually(&world.clock, what, WITHIN, async || {
            let events = world.journal.events().into_iter();
            let mut exits = events.filter(|event| {
                event.pod.name == "old" && matches!(event.step, PodStep::Exited { .. })
            });
            exits
                .next()
                .map(|event| event.at)
                .ok_or("not yet".to_owned())
        })
        .await?;
        world.clock.sleep(Duration::from_secs(3)).await;
        stop.send_replace(true);
        anyhow::Ok(exited)
    };
    let (ran, exited) = tokio::join!(run, change);
    ran?;
    let exited = exited?;
    for flow in &flows {
        let in_flight = |at: &&Time| {
            **at + Duration::from_secs(1) >= exited && **at < exited + Duration::from_secs(1)
        };
        let other: Vec<_> = flow.lost.iter().filter(|at| !in_flight(at)).collect();
        assert!(other.is_empty(), "ZD-T24: exit at {exited}, lost {other:?}");
        let now = flow.last.as_deref().context("answered")?;
        assert_ne!(now, "old", "ZD-T24");
    }
    world.end().await
}
