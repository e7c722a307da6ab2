//! Each right of the chart is used: a life of a Service on a real API server with the chart's rights, then its log of
//! requests beside the roles. Whichever right is taken away, a request of it is refused and the test fails.

use crate::{
    rights::rights,
    sets::{sets, with},
};
use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Event, Node};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use onehop_core::crd::{AddressPool, NodeTargets};
use onehop_e2e::{
    chart::{Chart, NAMESPACE, Rendered, minimal_values},
    controlplane::{Asked, BackEnd},
    world::{
        Cluster, OnTerm, Proxy, Replicas, ServiceManifest, World, WorldConfig, address_pool,
        deployment, eventually,
    },
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, time::Duration};

const WITHIN: Duration = Duration::from_mins(1);

/// Something for every right: a Service comes, is served and goes, a pool and a node come and go, two replicas.
async fn life() -> Result<World> {
    const PORT: u16 = 32_115;
    let config = WorldConfig {
        cluster: Cluster::on(BackEnd::Real),
        replicas: Replicas::Two,
        ..WorldConfig::default()
    };
    let world = World::start(config).await?;
    let objects = &world.objects;
    // Nobody's gate: the controller opens it.
    let mut pods = deployment("web", 2, OnTerm::Exit);
    let gate = json!([{"conditionType": "target-health.onehop.dev/nobody"}]);
    pods["spec"]["template"]["spec"]["readinessGates"] = gate;
    objects.create(pods).await?;
    objects.rolled_out("web", WITHIN).await?;
    // Taken on every node, so that the agents have something to tell.
    let mut taken = Vec::new();
    for kubelet in &world.kubelets {
        let node = kubelet.node();
        taken.push(node.netns().tcp_listener((node.address(), PORT).into())?);
    }
    let service = ServiceManifest::load_balancer("web", "web")
        .with("externalTrafficPolicy", json!("Local"))
        .with("healthCheckNodePort", json!(PORT));
    objects.create(service.json()).await?;
    world.lb_address("web").await?;
    let events: Api<Event> = objects.api();
    eventually(&world.clock, "an agent's event", WITHIN, async || {
        let all = events
            .list(&ListParams::default())
            .await
            .map_err(|e| e.to_string())?;
        let mut reasons = all.items.into_iter().filter_map(|event| event.reason);
        reasons
            .find(|reason| reason == "FailedToStartServiceHealthcheck")
            .ok_or("none".to_owned())
    })
    .await?;
    drop(taken);
    objects.delete_service("web").await?;
    world.service_gone("web").await?;

    // A node that is gone, though it was told of something.
    objects
        .create(json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "gone"},
            "spec": {"unschedulable": true},
        }))
        .await?;
    // By its type, for its plural is its name.
    let told: NodeTargets = serde_json::from_value(json!({
        "apiVersion": "onehop.dev/v1alpha1", "kind": "NodeTargets", "metadata": {"name": "gone"},
        "spec": {"installs": {"e2e": {}}},
    }))?;
    let all: Api<NodeTargets> = Api::all(world.kube());
    all.create(&PostParams::default(), &told).await?;
    let nodes: Api<Node> = Api::all(world.kube());
    nodes.delete("gone", &DeleteParams::default()).await?;
    gone::<NodeTargets>(&world, "gone").await?;

    objects
        .create(address_pool("brief", "198.51.100.240/32"))
        .await?;
    let pools: Api<AddressPool> = Api::all(world.kube());
    pools.delete("brief", &DeleteParams::default()).await?;
    gone::<AddressPool>(&world, "brief").await?;
    Ok(world)
}

async fn gone<K>(world: &World, name: &str) -> Result<()>
where
    K: kube::Resource<DynamicType = (), Scope = kube::core::ClusterResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::all(world.kube());
    eventually(
        &world.clock,
        &format!("{name} is gone"),
        WITHIN,
        async || match api.get_opt(name).await.map_err(|e| e.to_string())? {
            None => Ok(()),
            Some(_) => Err("it is there".to_owned()),
        },
    )
    .await
}

/// The rights that a request needs: a patch that makes an object needs `create`, too.
fn needed(asked: &Asked) -> Vec<String> {
    let mut rights = vec![asked.right.clone()];
    if let (Some(what), 201) = (asked.right.strip_suffix(" patch"), asked.code) {
        rights.push(format!("{what} create"));
    }
    rights
}

/// C-53: no right too many, none too few.
#[tokio::test(flavor = "multi_thread")]
async fn c53_every_right_is_used_and_nothing_is_refused() -> Result<()> {
    let world = life().await?;
    let rendered = Chart::of_this_build()?.render(&minimal_values())?;
    let asked = world.asked()?;
    let mut wrong = Vec::new();
    for account in ["onehop-controller", "onehop-node-agent"] {
        let user = format!("system:serviceaccount:{NAMESPACE}:{account}");
        let of_account = || asked.iter().filter(|one| one.user == user);
        wrong.extend(
            of_account()
                .filter(|one| one.code == 403)
                .map(|one| format!("refused: {one:?}")),
        );
        let used: BTreeSet<String> = of_account().flat_map(needed).collect();
        let mut given = rights(rendered.object("ClusterRole", account)?)?;
        if let Ok(role) = rendered.object("Role", account) {
            given.extend(rights(role)?);
        }
        let unused = given.difference(&used);
        wrong.extend(unused.map(|right| format!("{account} never used {right}")));
    }
    assert_eq!(wrong, [] as [&str; 0]);
    world.end().await
}

/// Rights that are used where no rights are checked only, each with where that is and why.
const ELSEWHERE: [(&str, &str); 6] = [
    // controller/tests/azure/lease.rs: needs the fake Azure and AKS's own holder of that Lease.
    ("node-resource-group", "coordination.k8s.io/leases create"),
    ("node-resource-group", "coordination.k8s.io/leases get"),
    ("node-resource-group", "coordination.k8s.io/leases update"),
    // controller/tests/aws/takeover.rs: needs the fake AWS and what aws-load-balancer-controller has left there.
    ("controller", "elbv2.k8s.aws/targetgroupbindings delete"),
    ("controller", "elbv2.k8s.aws/targetgroupbindings list"),
    ("controller", "elbv2.k8s.aws/targetgroupbindings patch"),
];

/// Rights by who has them, as the end of the role's name says.
fn by_role(rendered: &Rendered) -> Result<BTreeSet<(&'static str, String)>> {
    let mut all = BTreeSet::new();
    for role in rendered.of_kinds(&["ClusterRole", "Role"]) {
        let name = role["metadata"]["name"].as_str().context("a name")?;
        let whose = [
            "node-resource-group",
            "uninstall-clean-up",
            "metrics-reader",
            "node-agent",
            "controller",
        ];
        let mut whose = whose.into_iter();
        let whose = whose.find(|end| name.ends_with(end)).context("a role")?;
        all.extend(rights(role)?.into_iter().map(|right| (whose, right)));
    }
    Ok(all)
}

/// C-53: a right that values add is one that a test on a real API server needs, or one that is listed.
#[test]
fn c53_every_right_of_every_set_of_values_is_needed_or_listed() -> Result<()> {
    let chart = Chart::of_this_build()?;
    let mut needed = BTreeSet::new();
    // By `c53_every_right_is_used_and_nothing_is_refused` and what is cleaned up in `lives`, by `webhook`, by `scrape`, and below.
    for values in [
        minimal_values(),
        with(webhook()),
        with(replace()),
        with(scraped()),
    ] {
        needed.extend(by_role(&chart.render(&values)?)?);
    }
    let mut left = BTreeSet::new();
    for set in sets()? {
        let all = by_role(&chart.render(&set.values)?)?;
        left.extend(all.difference(&needed).cloned());
    }
    let listed = ELSEWHERE.map(|(whose, right)| (whose, right.to_owned()));
    assert_eq!(left, listed.into());
    Ok(())
}

pub(crate) fn webhook() -> Value {
    json!({"webhook": {"enabled": true}})
}

pub(crate) fn scraped() -> Value {
    json!({"serviceMonitor": {"enabled": true}, "agent": {"podMonitor": {"enabled": true}}})
}

fn replace() -> Value {
    json!({"agent": {"mode": "replace", "apiServer": {"host": "api.example.net"}}})
}

/// Rights that an account has with more values and not without, which the log does not show as used.
pub(crate) fn unused(asked: &BTreeSet<Asked>, account: &str, more: Value) -> Result<Vec<String>> {
    let chart = Chart::of_this_build()?;
    let whose = account.strip_prefix("onehop-").context("an account")?;
    let of = |values: &Value| -> Result<BTreeSet<String>> {
        let all = by_role(&chart.render(values)?)?.into_iter();
        Ok(all
            .filter(|(role, _)| *role == whose)
            .map(|(_, r)| r)
            .collect())
    };
    let user = format!("system:serviceaccount:{NAMESPACE}:{account}");
    let used = asked
        .iter()
        .filter(|one| one.user == user && one.code < 300);
    let used: BTreeSet<String> = used.flat_map(needed).collect();
    let (given, without) = (of(&with(more))?, of(&minimal_values())?);
    let added = given.difference(&without).cloned();
    Ok(added.filter(|right| !used.contains(right)).collect())
}

/// C-53: what the only proxy of a node may do more.
#[tokio::test(flavor = "multi_thread")]
async fn c53_every_right_of_the_only_proxy_is_used() -> Result<()> {
    let world = World::start(WorldConfig {
        cluster: Cluster::on(BackEnd::Real).with_proxy(Proxy::Replace),
        ..WorldConfig::default()
    })
    .await?;
    eventually(&world.clock, "every right is used", WITHIN, async || {
        let asked = world.asked().map_err(|e| e.to_string())?;
        let unused = unused(&asked, "onehop-node-agent", replace());
        match unused.map_err(|e| e.to_string())? {
            unused if unused.is_empty() => Ok(()),
            unused => Err(format!("{unused:?}")),
        }
    })
    .await?;
    assert_eq!(world.refused()?, [], "C-53");
    world.end().await
}
