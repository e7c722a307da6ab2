//! Rules for all ports, and what this version does not make.

use onehop_controller::cloud::azure::settings::Kind;
use serde_json::{Value, json};

use crate::world::World;

/// What this version does not make costs Azure no call; event and condition say so.
#[tokio::test(start_paused = true)]
async fn az321_az105_what_is_not_made_is_told_by_event_and_condition_before_any_call() {
    let world = World::start().await;
    let _controller = world.controller().await;
    let rows = [
        (
            "link",
            "pls-create",
            "true",
            "PrivateLinkServiceUnsupported",
        ),
        (
            "many",
            "load-balancer-configurations",
            "lb-2",
            "NoLoadBalancerEligible",
        ),
    ];
    for (name, key, value, reason) in rows {
        let key = format!("service.beta.kubernetes.io/azure-{key}");
        let wish = json!({"onehop.dev/target": "vip", key: value});
        world.service(name, json!({}), wish).await;
        world.tells(name, reason).await;
        world
            .eventually("the condition says so", async |w| {
                let ready = w.condition(name).await;
                ready.is_some_and(|it| it.status == "False" && it.reason == reason)
            })
            .await;
    }
    assert_eq!(world.writes(), 0, "AZ-034");
    // Without the annotation it is made, with no restart.
    let gone =
        json!({"metadata": {"annotations": {"service.beta.kubernetes.io/azure-pls-create": null}}});
    world.patch("link", gone).await;
    world.has_address("link").await;
}

/// A private frontend with one rule for every port, made and turned back in one write each.
#[tokio::test(start_paused = true)]
async fn az056_az134_za04_a_rule_for_all_ports_comes_and_goes_in_one_write_each() {
    let world = World::start().await;
    let _controller = world.controller().await;
    let key = "service.beta.kubernetes.io/azure-load-balancer-enable-high-availability-ports";
    let ports = json!({"ports": [
        {"name": "tcp", "port": 80, "targetPort": 8080},
        {"name": "sctp", "port": 90, "targetPort": 8090, "protocol": "SCTP"},
    ]});
    let wish = json!({
        "onehop.dev/target": "vip", "service.beta.kubernetes.io/azure-load-balancer-internal": "true", key: "true",
    });
    world.service("web", ports, wish).await;
    let address = world.has_address("web").await;
    let id = world.place.balancer_id(Kind::Internal);
    let rules = |w: &World| {
        let balancer = w.azure.document(&id).unwrap();
        let rules = balancer["properties"]["loadBalancingRules"].clone();
        let one = |it: &Value| {
            format!(
                "{} {}",
                it["properties"]["protocol"], it["properties"]["frontendPort"]
            )
        };
        rules
            .as_array()
            .unwrap()
            .iter()
            .map(one)
            .collect::<Vec<_>>()
    };
    assert_eq!(rules(&world), ["\"All\" 0"], "AZ-134");
    let before = world.writes();
    // Off again: the SCTP port cannot be, so all stays as it was.
    let off = json!({"metadata": {"annotations": {key: null}}});
    world.patch("web", off).await;
    world.tells("web", "ProtocolUnsupported").await;
    assert_eq!(
        (rules(&world), world.writes()),
        (vec!["\"All\" 0".to_owned()], before),
        "I10"
    );
    let tcp = json!({"spec": {"ports": [{"name": "tcp", "port": 80, "targetPort": 8080}]}});
    world.patch("web", tcp).await;
    world
        .eventually("the rule is one of a port", async |w| {
            rules(w) == ["\"Tcp\" 80"]
        })
        .await;
    assert_eq!(world.writes(), before + 1, "AZ-141");
    assert_eq!(world.address("web").await, Some(address));
    assert_eq!(world.refused(), [""; 0]);
}
