//! What goes on around a Service that serves: watches that break, endpoints that come and go.

use crate::support::{WITHIN, served};
use anyhow::Result;
use onehop_e2e::{
    scenario::Rollout,
    world::{OnTerm, POD_PORT, ServiceManifest, World, WorldConfig, deployment, first_answer},
};
use serde_json::{Value, json};
use std::{net::SocketAddr, time::Duration};

#[tokio::test(flavor = "multi_thread")]
async fn i1_a_rollout_through_dropped_watches_and_a_compacted_store_loses_nothing() -> Result<()> {
    let (world, address) = served(
        ServiceManifest::load_balancer("web", "web"),
        OnTerm::ServeSeconds(5),
    )
    .await?;
    let report = Rollout {
        world: &world,
        address,
    }
    .during(async || {
        world.objects.restart("web").await?;
        for _ in 0..3 {
            world.api_server()?.drop_watches();
            world.api_server()?.compact();
            world.clock.sleep(Duration::from_millis(500)).await;
        }
        world.objects.rolled_out("web", WITHIN).await
    })
    .await?;
    assert_eq!(report.failed, 0, "{:#?}", report.failures);
    assert_eq!(report.syn_retx, 0, "SYN segments were sent again");
    world.end().await
}

/// A slice made by hand for Service `web`, with these of the addresses ready.
fn slice(addresses: &[String], ready: &[usize]) -> Value {
    let endpoint = |(index, address)| {
        let ready = ready.contains(&index);
        json!({"addresses": [address], "conditions": {"ready": ready, "serving": ready}})
    };
    let endpoints: Vec<_> = addresses.iter().enumerate().map(endpoint).collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": "by-hand", "namespace": "default",
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "ports": [
            {"name": "tcp", "port": POD_PORT, "protocol": "TCP"},
            {"name": "udp", "port": POD_PORT, "protocol": "UDP"},
        ],
        "endpoints": endpoints,
    })
}

/// The slice is there before its Service, which has no selector (C-18).
#[tokio::test(flavor = "multi_thread")]
async fn s244_s04_endpoints_that_come_and_go_50_times_a_second_cost_no_connection() -> Result<()> {
    let world = World::start(WorldConfig::default()).await?;
    let pods = deployment("pods", 3, OnTerm::Exit);
    world.objects.apply(pods).await?;
    world.objects.rolled_out("pods", WITHIN).await?;
    let pods = world.pod_addresses("pods").await?;
    let pods: Vec<String> = pods.iter().map(ToString::to_string).collect();
    world.objects.apply(slice(&pods, &[0, 1, 2])).await?;
    let service = ServiceManifest::load_balancer("web", "nobody").with("selector", Value::Null);
    world.objects.apply(service.json()).await?;
    let address = SocketAddr::from((world.lb_address("web").await?, 80));
    first_answer(&world, address).await?;
    let report = Rollout {
        world: &world,
        address,
    }
    .during(async || {
        for turn in 0..100 {
            let (stays, comes) = (turn % 3, (turn + 1) % 3);
            world.objects.apply(slice(&pods, &[stays, comes])).await?;
            world.clock.sleep(Duration::from_millis(10)).await;
            world.objects.apply(slice(&pods, &[comes])).await?;
            world.clock.sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    })
    .await?;
    assert_eq!(report.failed, 0, "{:#?}", report.failures);
    assert_eq!(report.syn_retx, 0, "SYN segments were sent again");
    world.end().await
}
