//! A Deployment rolls out under load, and every connection is accounted for (harness.md section 7).

use super::cause::{FailureReport, explain, millis};
use crate::{
    traffic::{Attempt, Endpoint, Load, Running, Transport},
    world::{World, syn_retransmissions},
};
use anyhow::Result;
use onehop_core::time::Time;
use serde::Serialize;
use std::{net::SocketAddr, time::Duration};

/// New TCP connections a second.
pub(super) const TCP_PER_SECOND: u32 = 100;
/// UDP requests a second.
pub(super) const UDP_PER_SECOND: u32 = 20;
/// Load before the change and after its end, so that both edges are seen.
const MARGIN: Duration = Duration::from_secs(1);
/// How long a rollout may take.
const WITHIN: Duration = Duration::from_secs(90);

/// One rollout under load.
#[derive(Debug, Default, Serialize)]
pub struct RolloutReport {
    /// TCP connections begun.
    pub connections: usize,
    /// UDP requests begun.
    pub datagrams: usize,
    /// Of both, those that failed.
    pub failed: usize,
    /// SYN segments that the client had to send again.
    pub syn_retx: u64,
    /// Longest time between two answers to TCP requests, in ms of the wall.
    pub longest_gap_ms: u64,
    /// Connections begun as a share of rate times time.
    pub kept_rate: f64,
    /// How many times faster than the wall cloud and pods ran; times below are theirs (FC-07).
    pub speed: u32,
    /// Each failure with its cause.
    pub failures: Vec<FailureReport>,
    /// From the change of the Deployment to its completion, old pods gone included.
    pub rollout_ms: u64,
    /// When the load began and ended.
    #[serde(skip)]
    pub span: Option<(Time, Time)>,
}

/// A load on a Service's address, to be run while something happens.
#[derive(Clone, Copy)]
pub struct Rollout<'a> {
    /// The world.
    pub world: &'a World,
    /// Where the client sends to, TCP and UDP alike.
    pub address: SocketAddr,
}

impl Rollout<'_> {
    /// Restarts the Deployment under load and reports.
    pub async fn restart(self, deployment: &str) -> Result<RolloutReport> {
        let world = self.world;
        self.during(async || {
            world.objects.restart(deployment).await?;
            world.objects.rolled_out(deployment, WITHIN).await
        })
        .await
    }

    /// Runs the load, does `change` in the middle of it, and reports.
    pub async fn during(self, change: impl AsyncFnOnce() -> Result<()>) -> Result<RolloutReport> {
        let world = self.world;
        let clock = &world.clock;
        let speed = world.cloud.scale().speed();
        let retransmitted = syn_retransmissions(world.client.netns())?;
        let began = clock.now();
        let mut tcp = self.load(Transport::Tcp, TCP_PER_SECOND);
        let mut udp = self.load(Transport::Udp, UDP_PER_SECOND);
        let mut failures = Vec::new();
        let mut happening = Box::pin(async {
            clock.sleep(MARGIN).await;
            let start = clock.now();
            change().await?;
            let took = clock.now().since(start);
            clock.sleep(MARGIN).await;
            anyhow::Ok(took)
        });
        // Failures are explained as they come: later the client may have used the same port again.
        let took = loop {
            let failed: Option<Attempt> = tokio::select! {
                took = &mut happening => break took?,
                failed = tcp.next_failure() => failed,
                failed = udp.next_failure() => failed,
            };
            failures.extend(failed.and_then(|attempt| explain(world, &attempt, began)));
        };
        let ((tcp, tcp_rest), (udp, udp_rest)) = (tcp.stop().await, udp.stop().await);
        let rest = tcp_rest.iter().chain(&udp_rest);
        failures.extend(rest.filter_map(|attempt| explain(world, attempt, began)));
        Ok(RolloutReport {
            connections: tcp.attempts.len(),
            datagrams: udp.attempts.len(),
            failed: failures.len(),
            syn_retx: syn_retransmissions(world.client.netns())?.saturating_sub(retransmitted),
            kept_rate: tcp.kept_rate(TCP_PER_SECOND),
            longest_gap_ms: millis(tcp.longest_gap()),
            failures,
            speed,
            rollout_ms: millis(took * speed),
            span: Some((began, clock.now())),
        })
    }

    fn load(self, transport: Transport, per_second: u32) -> Running {
        let to = Endpoint {
            transport,
            address: self.address,
        };
        Load { to, per_second }.start(self.world.sockets.clone(), self.world.clock)
    }
}
