//! What is not ours: tables of others, byte for byte; what stays when the agent stops, and what its clean-up takes.

use crate::{
    lab::{WITHIN, Want, selectorless},
    support::{Place, PodOnA, world_with_pod_on_a},
};
use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::DeleteParams};
use onehop_e2e::{
    traffic::{LongFlow, Transport},
    world::{Cluster, Programs, agent_name, eventually},
};
use serde_json::json;
use std::time::Duration;

/// Tables of a firewall, a CNI and another proxy: sets of every kind, counters at rest, comments.
const FOREIGN: &str = r#"
table inet firewall {
    set trusted { type ipv4_addr; flags interval; comment "by hand"; elements = { 192.0.2.0/24, 198.51.100.7 }; }
    map ports { type inet_service : verdict; elements = { 22 : accept, 8443 : drop }; }
    chain input { type filter hook input priority 10; policy accept; iifname "none0" drop; }
    chain forward { type filter hook forward priority 10; policy accept; ip saddr @trusted tcp dport 9 drop; }
}
table ip kube-proxy-like {
    map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
}
table ip6 other {
    chain nothing {
        ip6 daddr fd00:dead::/32 drop
    }
}
"#;
const TABLES: [(&str, &str); 3] = [
    ("inet", "firewall"),
    ("ip", "kube-proxy-like"),
    ("ip6", "other"),
];

fn foreign(world: &PodOnA) -> Result<Vec<String>> {
    let list = |(family, name): (&str, &str)| {
        // Handles are the kernel's numbers of objects: one that was made anew has another.
        world.on_node("a", "nft", &["-a", "-s", "list", "table", family, name])
    };
    TABLES.into_iter().map(list).collect()
}

fn own_tables(world: &PodOnA) -> Result<Vec<String>> {
    let all = world.on_node("a", "nft", &["list", "tables"])?;
    let own = all.lines().filter(|line| line.ends_with(" onehop"));
    Ok(own.map(str::to_owned).collect())
}

pub(crate) async fn s122_i5_a_stopped_agent_leaves_its_rules_and_cleanup_takes_them_and_nothing_else(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let folder = world.folder().join("foreign.nft");
    std::fs::write(&folder, FOREIGN)?;
    let path = folder.to_string_lossy().into_owned();
    world.on_node("a", "nft", &["-f", &path])?;
    let before = foreign(&world)?;
    let manifest = selectorless("stays").with("type", json!("NodePort"));
    let exposed = world.expose(manifest).await?;
    world.serve_by("stays", &["web"]).await?;
    let to = exposed.cluster(80);
    let web = Want::From(&["web"]);
    for place in [Place::PodOnA, Place::NodeA] {
        world.becomes(place, Transport::Tcp, to, web).await?;
    }
    assert_eq!(foreign(&world)?, before, "I5: beside traffic");

    // The agent is told to end, as in an uninstallation.
    let agents: Api<Pod> = Api::namespaced(world.kube(), "kube-system");
    agents
        .delete(&agent_name("a"), &DeleteParams::default())
        .await?;
    eventually(
        &world.clock,
        "the agent is gone",
        WITHIN,
        async || match agents.get_opt(&agent_name("a")).await {
            Ok(None) => Ok(()),
            other => Err(format!("{other:?}")),
        },
    )
    .await?;
    for place in [Place::PodOnA, Place::NodeA] {
        world.gets(place, Transport::Tcp, to, web).await?;
    }
    assert_eq!(own_tables(&world)?.len(), 2, "S-122: the rules stay");

    let agent = Programs::of_this_build()?.path("onehop-node-agent")?;
    let agent = agent.to_str().context("a path in UTF-8")?;
    world.on_node("a", agent, &["--node-name", "a", "--cleanup"])?;
    assert_eq!(own_tables(&world)?, Vec::<String>::new(), "S-122");
    assert_eq!(
        foreign(&world)?,
        before,
        "I5, S-122: nothing else was touched"
    );
    world
        .gets(Place::PodOnA, Transport::Tcp, to, Want::Silence)
        .await?;
    world.end().await
}

pub(crate) async fn s121_s90_i9_a_killed_agent_interrupts_nothing_and_takes_up_what_changed(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let manifest = selectorless("goes-on").with("type", json!("NodePort"));
    let exposed = world.expose(manifest).await?;
    world.serve_by("goes-on", &["web"]).await?;
    let to = (world.place(Place::NodeA).1, exposed.node_port("tcp")?).into();
    let web = Want::From(&["web"]);
    world
        .becomes(Place::Outside, Transport::Tcp, to, web)
        .await?;
    let every = Duration::from_millis(100);
    let long = LongFlow::open(&world.sockets, to, every, world.clock).await;
    let long = long.map_err(|f| anyhow::anyhow!("{f:?}"))?;
    world.kill_agent("a")?;
    // While it is away: new connections are served, and the endpoint changes.
    world.gets(Place::Outside, Transport::Tcp, to, web).await?;
    world.serve_by("goes-on", &["ask-b"]).await?;
    world.agent_restarted("a", WITHIN).await?;
    world
        .becomes(Place::Outside, Transport::Tcp, to, Want::From(&["ask-b"]))
        .await?;
    // S-90: the flow to the endpoint that left drains.
    let end = long.end().await.context("the flow's end")?;
    assert!(end.cut.is_none(), "S-90, S-121, I9: {end:?}");
    world.end().await
}

/// What a firewall's reload does, as a file for nft: away with everything, and everything that is not ours anew.
fn reload(world: &PodOnA) -> Result<String> {
    let mut text = "flush ruleset\n".to_owned();
    let all = world.on_node("a", "nft", &["list", "tables"])?;
    for table in all.lines().filter(|line| !line.ends_with(" onehop")) {
        let words: Vec<&str> = ["list"].into_iter().chain(table.split(' ')).collect();
        text += &world.on_node("a", "nft", &words)?;
    }
    let path = world.folder().join("reload.nft");
    std::fs::write(&path, text)?;
    Ok(path.to_string_lossy().into_owned())
}

/// S-123, S-347: a firewall reloads again and again. The tables are the agent's own where the kernel can say so, and then
/// nothing happens at all: no flow is cut, and no connection fails.
pub(crate) async fn s123_s347_a_foreign_flush_in_a_loop_cuts_nothing(on: Cluster) -> Result<()> {
    const TIMES: usize = 40;
    let world = world_with_pod_on_a(on).await?;
    let manifest = selectorless("steady").with("type", json!("NodePort"));
    let exposed = world.expose(manifest).await?;
    world.serve_by("steady", &["web"]).await?;
    let cluster = exposed.cluster(80);
    let node = (world.place(Place::NodeA).1, exposed.node_port("tcp")?).into();
    let web = Want::From(&["web"]);
    let ways = [
        (Place::PodOnA, cluster),
        (Place::NodeA, cluster),
        (Place::Outside, node),
    ];
    for (place, to) in ways {
        world.becomes(place, Transport::Tcp, to, web).await?;
    }
    let every = Duration::from_millis(50);
    let long = LongFlow::open(
        &world.sockets_of(Place::PodOnA),
        cluster,
        every,
        world.clock,
    )
    .await;
    let long = long.map_err(|f| anyhow::anyhow!("{f:?}"))?;
    let (tables, file) = (own_tables(&world)?, reload(&world)?);
    for _ in 0..TIMES {
        world.on_node("a", "nft", &["-f", &file])?;
        for (place, to) in ways {
            world.gets(place, Transport::Tcp, to, web).await?;
        }
    }
    assert_eq!(own_tables(&world)?, tables, "S-123");
    let end = long.end().await.context("the flow's end")?;
    assert!(end.cut.is_none(), "S-347: {end:?}");
    world.end().await
}
