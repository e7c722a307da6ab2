//! Changes of a Service under load, as users make them with `kubectl apply`: none loses a connection.

use crate::support::{WITHIN, served};
use anyhow::Result;
use e2e_cloud::engine::{Operation, What};
use onehop_e2e::{
    scenario::Rollout,
    world::{OnTerm, POD_PORT, ServiceManifest, World, eventually},
};
use serde_json::{Value, json};

/// Listeners of the Service: TCP and UDP.
const LISTENERS: usize = 2;

fn web() -> ServiceManifest {
    ServiceManifest::load_balancer("web", "web")
}

/// The ports of [`web`] under other names, and one more: what adding a second port makes of the first.
fn renamed() -> Value {
    json!([
        {"name": "a", "port": 80, "protocol": "TCP", "targetPort": POD_PORT},
        {"name": "b", "port": 80, "protocol": "UDP", "targetPort": POD_PORT},
        {"name": "more", "port": 90, "protocol": "TCP", "targetPort": POD_PORT},
    ])
}

fn listeners_put(world: &World) -> usize {
    let events = world.cloud.events_after(0, usize::MAX);
    let put = |what: &What| {
        matches!(
            what,
            What::ApiAnswer {
                operation: Operation::PutListener,
                result: "ok",
                ..
            }
        )
    };
    events.iter().filter(|event| put(&event.what)).count()
}

/// Applies a change and waits until that many listeners were pointed to another group.
async fn switches(world: &World, listeners: usize, change: ServiceManifest) -> Result<()> {
    let before = listeners_put(world);
    world.objects.apply(change.json()).await?;
    eventually(
        &world.clock,
        &format!("{listeners} listeners have another group"),
        WITHIN,
        async || {
            let put = listeners_put(world) - before;
            if put == listeners {
                Ok(())
            } else {
                Err(format!("{put} were put"))
            }
        },
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn zd28_i2_no_change_of_policy_mode_or_port_names_loses_a_connection() -> Result<()> {
    let (world, address) = served(web(), OnTerm::ServeSeconds(5)).await?;
    let local = web().with("externalTrafficPolicy", json!("Local"));
    let report = Rollout {
        world: &world,
        address,
    }
    .during(async || {
        switches(&world, LISTENERS, local).await?;
        switches(&world, LISTENERS, web()).await?;
        switches(&world, LISTENERS, web().pod_mode()).await?;
        switches(&world, LISTENERS, web().vip_mode()).await?;
        switches(&world, LISTENERS, web().pod_mode()).await?;
        switches(&world, LISTENERS, web().vip_mode()).await?;
        switches(&world, LISTENERS, web()).await?;
        switches(&world, LISTENERS + 1, web().with("ports", renamed())).await?;
        // I10: a typo changes nothing, a rollout goes on under it.
        let typo = web()
            .with("ports", renamed())
            .annotated("onehop.dev/target", "pods");
        world.objects.apply(typo.json()).await?;
        world.objects.restart("web").await?;
        world.objects.rolled_out("web", WITHIN).await?;
        switches(&world, LISTENERS, web()).await
    })
    .await?;
    assert_eq!(report.failed, 0, "{:#?}", report.failures);
    assert_eq!(report.syn_retx, 0, "SYN segments were sent again");
    world.end().await
}
