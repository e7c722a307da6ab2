//! What tests of one Service with two pods as targets see of the account.

use std::collections::BTreeSet;

use e2e_cloud::engine::{Engine, TargetState};
use serde_json::{Value, json};

use crate::peer::call;
use crate::world::World;

pub(crate) const ELB: &str = "elasticloadbalancing";

pub(crate) fn pods() -> Value {
    json!({ "service.beta.kubernetes.io/aws-load-balancer-nlb-target-type": "ip" })
}

/// The values of all elements of this name.
pub(crate) fn all(xml: &str, name: &str) -> Vec<String> {
    let element = format!("<{name}>");
    let texts = xml.split(element.as_str()).skip(1);
    let values = texts.filter_map(|rest| rest.split('<').next());
    values.map(str::to_owned).collect()
}

pub(crate) fn arns(world: &World, action: &str, name: &str) -> Vec<String> {
    all(&call(&world.aws, ELB, action, &[]), name)
}

pub(crate) fn balancers(world: &World) -> Vec<String> {
    arns(world, "DescribeLoadBalancers", "LoadBalancerArn")
}

/// The pods that are targets.
pub(crate) fn targets(world: &World) -> BTreeSet<u8> {
    let inventory = world.cloud.look(Engine::inventory);
    let targets = inventory.groups.iter().flat_map(|(_, targets)| targets);
    let here = targets.filter(|t| !matches!(t.state, TargetState::Draining | TargetState::Unused));
    here.filter_map(|t| match t.target.ip() {
        std::net::IpAddr::V4(address) => Some(address.octets()[3]),
        std::net::IpAddr::V6(_) => None,
    })
    .collect()
}

/// A Service with two targets that serves.
pub(crate) async fn served() -> World {
    let world = World::start().await;
    world.endpoints("web", &[1, 2]).await;
    world
}

pub(crate) async fn serves(world: &World) {
    world
        .eventually("two targets are in", async |w| {
            targets(w) == [1, 2].into() && balancers(w).len() == 1
        })
        .await;
}
