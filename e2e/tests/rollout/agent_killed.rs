//! An agent dies (SIGKILL) under load: the kernel goes on, and the next agent finds what changed meanwhile.

use crate::support::{WITHIN, served};
use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Service;
use kube::api::{Patch, PatchParams};
use onehop_e2e::{
    scenario::Rollout,
    traffic::{LongFlow, ask_tcp},
    world::{OnTerm, ServiceManifest, eventually, sockets_of},
};
use serde_json::json;
use std::{net::Ipv4Addr, time::Duration};

/// Long flows that must survive.
const FLOWS: usize = 10;

#[tokio::test(flavor = "multi_thread")]
async fn i9_s121_sigkill_of_an_agent_cuts_no_flow_and_loses_no_connection() -> Result<()> {
    let (world, address) = served(
        ServiceManifest::load_balancer("web", "web"),
        OnTerm::ServeSeconds(5),
    )
    .await?;
    let sockets = &world.sockets;
    let mut flows = Vec::new();
    for _ in 0..FLOWS {
        let flow = LongFlow::open(sockets, address, Duration::from_millis(100), world.clock).await;
        flows.push(flow.map_err(|f| anyhow::anyhow!("{f:?}"))?);
    }
    let report = Rollout {
        world: &world,
        address,
    }
    .during(async || {
        world.kill_agent("a")?;
        let ports = json!({"spec": {"ports": [
            {"name": "tcp", "port": 80, "protocol": "TCP", "targetPort": 8080},
            {"name": "more", "port": 81, "protocol": "TCP", "targetPort": 8080},
            {"name": "udp", "port": 80, "protocol": "UDP", "targetPort": 8080},
        ]}});
        world
            .objects
            .api::<Service>()
            .patch("web", &PatchParams::default(), &Patch::Merge(ports))
            .await?;
        world.agent_restarted("a", WITHIN).await
    })
    .await?;
    assert_eq!(report.failed, 0, "{:#?}", report.failures);
    assert_eq!(report.syn_retx, 0, "SYN segments were sent again");
    for flow in flows {
        let end = flow.end().await.context("the flow's task")?;
        assert!(end.cut.is_none(), "an established flow was cut: {end:?}");
        assert!(end.answers > 5, "{end:?}");
    }
    // The Service that changed while the agent was dead is right afterwards, on its node.
    let cluster: Ipv4Addr = world
        .objects
        .service("web")
        .await?
        .spec
        .and_then(|s| s.cluster_ip)
        .context("a ClusterIP")?
        .parse()?;
    let on_a = sockets_of(world.kubelet("a")?.node().netns(), Ipv4Addr::UNSPECIFIED);
    eventually(
        &world.clock,
        "the new port answers on node a",
        WITHIN,
        async || {
            ask_tcp(&on_a, (cluster, 81).into())
                .await
                .map(|_| ())
                .map_err(|f| format!("{f:?}"))
        },
    )
    .await?;
    world.end().await
}
