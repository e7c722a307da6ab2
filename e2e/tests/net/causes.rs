//! What is known of every request (FC-82), and the cause of a failed one, in mode `vip` too, where the load balancer node
//! translates nothing (FC-83).

use crate::cells::Frontend;
use crate::support::{Place, world_with_pod_on_a};
use anyhow::{Context, Result};
use onehop_e2e::{
    scenario::{explain, record},
    traffic::{Attempt, Endpoint, Failure, FailureKind, Load, Transport},
    world::{Cluster, ServiceManifest, eventually},
};
use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

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
            number: 1,
            to: address,
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

#[tokio::test(flavor = "multi_thread")]
async fn fc82_of_every_request_the_log_has_its_client_its_frontend_and_who_answered_whom()
-> Result<()> {
    let world = world_with_pod_on_a(Cluster::default()).await?;
    let web = ServiceManifest::load_balancer("web", "web").pod_mode();
    let served = world.serve(web).await?;
    let mut attempts = Vec::new();
    for transport in [Transport::Tcp, Transport::Udp] {
        let to = Endpoint {
            transport,
            address: served.lb(),
        };
        let load = Load { to, per_second: 50 };
        let running = load.start(world.sockets.clone(), world.clock);
        world.clock.sleep(Duration::from_secs(1)).await;
        attempts.extend(running.stop().await.0.attempts);
    }
    // One that nobody answers: a port without a listener.
    let nowhere = Endpoint {
        transport: Transport::Udp,
        address: (served.lb().ip(), 9).into(),
    };
    let load = Load {
        to: nowhere,
        per_second: 1,
    };
    let running = load.start(world.sockets.clone(), world.clock);
    world.clock.sleep(Duration::from_millis(300)).await;
    attempts.extend(running.stop().await.0.attempts);
    let requests = record(&world, &attempts)?;
    let of = |kind: Transport| {
        requests
            .iter()
            .filter(move |r| r.kind == kind && r.failure.is_none())
    };
    let (_, pod) = world.pod_place("web").await?;
    let uid = world
        .journal
        .pod_at(pod, world.clock.now())
        .context("the pod")?;
    for kind in [Transport::Tcp, Transport::Udp] {
        let ids: BTreeSet<u64> = of(kind).map(|r| r.id).collect();
        assert!(
            ids.len() > 25 && ids.len() == of(kind).count(),
            "FC-82: {ids:?}"
        );
        for request in of(kind) {
            let client = request.client.context("a client")?;
            assert_eq!(
                client.ip(),
                world.place(Place::Outside).1,
                "FC-82: {request:?}"
            );
            assert_eq!(
                (request.frontend, request.zone.as_deref()),
                (served.lb(), Some("zone-a"))
            );
            assert_eq!(request.pod.as_ref(), Some(&uid), "FC-82: {request:?}");
            assert_eq!(
                request.seen,
                Some(client),
                "FC-82: the client's address is kept"
            );
        }
    }
    let failed: Vec<_> = requests.iter().filter(|r| r.failure.is_some()).collect();
    assert_eq!(failed.len(), 1, "FC-82: {failed:?}");
    assert_eq!(
        (&failed[0].pod, failed[0].frontend.port()),
        (&None, 9),
        "FC-82"
    );
    assert!(failed[0].client.is_some(), "FC-82: {failed:?}");
    let file = std::fs::read_to_string(world.folder().join("requests.jsonl"))?;
    assert_eq!(file.lines().count(), requests.len(), "FC-82");
    world.end().await
}
