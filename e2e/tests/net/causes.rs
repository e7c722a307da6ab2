//! The cause of a failed request is known in mode `vip` too, where the load balancer node translates nothing (FC-83).

use crate::cells::Frontend;
use crate::support::{Place, world_with_pod_on_a};
use anyhow::Result;
use onehop_e2e::{
    scenario::explain,
    traffic::{Attempt, Failure, FailureKind, Transport},
    world::{Cluster, ServiceManifest, eventually},
};
use std::{net::SocketAddr, time::Duration};

const WITHIN: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn fc83_the_cause_of_a_failure_is_known_for_flows_whose_address_is_kept() -> Result<()> {
    let world = world_with_pod_on_a(Cluster::default()).await?;
    let web = ServiceManifest::load_balancer("web", "web").vip_mode();
    let served = world.serve(web).await?;
    for transport in [Transport::Tcp, Transport::Udp] {
        let began = world.clock.now();
        let address = served.address(Frontend::LoadBalancer, transport);
        let asked = world.ask_from(Place::Outside, transport, address).await;
        let (answer, local) = asked.map_err(|f| anyhow::anyhow!("{transport:?}: {f:?}"))?;
        // The flow that was answered, had it failed.
        let failed = Attempt {
            transport,
            begun: began,
            ended: world.clock.now(),
            outcome: Err(Failure {
                kind: FailureKind::Rst,
                local: Some(SocketAddr::new(world.client.address().into(), local.port())),
                detail: String::new(),
            }),
        };
        // The record follows the packet by a thread's wake-up.
        let report = eventually(&world.clock, "the choice is recorded", WITHIN, async || {
            let report = explain(&world, &failed, began).ok_or("no failure")?;
            if report.pod_uid == answer.uid {
                Ok(report)
            } else {
                Err(format!("{report:?}, answered by {}", answer.uid))
            }
        })
        .await?;
        assert_eq!(report.target_state, "healthy", "FC-83 over {transport:?}");
    }
    world.end().await
}
