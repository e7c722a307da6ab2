//! Node ports: on which addresses they answer, and that nothing listens.

use crate::{
    lab::{Want, selectorless},
    support::{Place, PodOnA, world_with, world_with_pod_on_a},
};
use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use onehop_e2e::{
    traffic::Transport,
    world::{Cluster, ServiceManifest, eventually},
};
use serde_json::{Value, json};
use std::net::{IpAddr, SocketAddr};

const WEB: Want<'_> = Want::From(&["web"]);

/// What a node has for its interfaces beside its address.
async fn set_addresses(world: &PodOnA, node: &str, addresses: &[IpAddr]) -> Result<()> {
    let mut list: Vec<Value> = addresses
        .iter()
        .map(|a| json!({"type": "InternalIP", "address": a.to_string()}))
        .collect();
    list.push(json!({"type": "Hostname", "address": node}));
    let nodes: Api<Node> = Api::all(world.kube());
    let patch = json!({"status": {"addresses": list}});
    // The list is merged by type; replaced whole it cannot keep an old one.
    nodes
        .patch_status(node, &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(())
}

pub(crate) async fn s24_s27_s28_node_ports_answer_on_the_primary_address_and_follow_the_node_object(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let manifest = selectorless("ports").with("type", json!("NodePort"));
    let exposed = world.expose(manifest).await?;
    world.serve_by("ports", &["web"]).await?;
    let (tcp, udp) = (exposed.node_port("tcp")?, exposed.node_port("udp")?);
    let node = world.kubelet("a")?.node().clone();
    let primary = world.place(Place::NodeA).1;
    // S-24, S-31: both protocols, from everywhere.
    for place in [
        Place::Outside,
        Place::PodOnA,
        Place::PodOnB,
        Place::NodeA,
        Place::NodeB,
    ] {
        world
            .becomes(place, Transport::Tcp, (primary, tcp).into(), WEB)
            .await?;
        world
            .gets(place, Transport::Udp, (primary, udp).into(), WEB)
            .await?;
    }
    // S-30: it is no socket that answers.
    let listening = world.on_node("a", "ss", &["-Hlntu"])?;
    for port in [tcp, udp] {
        assert!(
            !listening.contains(&format!(":{port} ")),
            "S-30: {listening}"
        );
    }
    // S-27: only on the node's address, not on another one of its interfaces.
    let secondary = on.family.of(node.secondary_address());
    world
        .gets(
            Place::NodeB,
            Transport::Tcp,
            (secondary, tcp).into(),
            Want::Refused,
        )
        .await?;
    world
        .gets(
            Place::NodeA,
            Transport::Tcp,
            (on.family.loopback(), tcp).into(),
            Want::Refused,
        )
        .await?;

    // S-28: the Node object gets another address; node ports move with it.
    let second = on.family.of([10, 0, 1, 99].into());
    node.announce(second)?;
    world.on_node(
        "a",
        "ip",
        &["addr", "add", &second.to_string(), "dev", "eth0"],
    )?;
    let to = SocketAddr::new(second, tcp);
    world
        .becomes(Place::Outside, Transport::Tcp, to, Want::Refused)
        .await?;
    let others = node.addresses();
    let others = others.iter().copied();
    let moved: Vec<IpAddr> = others
        .map(|a| if a == primary { second } else { a })
        .collect();
    set_addresses(&world, "a", &moved).await?;
    world
        .becomes(Place::Outside, Transport::Tcp, to, WEB)
        .await?;
    world
        .becomes(
            Place::Outside,
            Transport::Tcp,
            (primary, tcp).into(),
            Want::Refused,
        )
        .await?;
    set_addresses(&world, "a", &node.addresses()).await?;
    world
        .becomes(Place::Outside, Transport::Tcp, (primary, tcp).into(), WEB)
        .await?;

    // Released: nothing answers, and nothing listens.
    world.objects.delete_service("ports").await?;
    world
        .becomes(
            Place::Outside,
            Transport::Tcp,
            (primary, tcp).into(),
            Want::Refused,
        )
        .await?;
    world.end().await
}

/// A list of ranges: every address of an interface inside it, as interfaces get and lose them, and no other one; not even
/// one that is there for the sake of a Service (S-29). The health port listens there, too (S-100).
pub(crate) async fn s27_s28_s29_s100_node_ports_answer_inside_listed_ranges_and_follow_the_interfaces(
    on: Cluster,
) -> Result<()> {
    const HEALTH: u16 = 32_111;
    // The second interface's network, and a part of the first one's, in both families.
    let flags =
        "--nodeport-addresses=10.0.2.0/24,10.0.1.96/27,fd00:10:0:2::/64,fd00:10:0:1::80/121";
    let world = world_with(on, vec![flags]).await?;
    let manifest = ServiceManifest::load_balancer("ports", "web")
        .with("selector", json!(null))
        .with("externalTrafficPolicy", json!("Local"))
        .with("healthCheckNodePort", json!(HEALTH));
    let exposed = world.expose(manifest).await?;
    world.serve_by("ports", &["web"]).await?;
    let port = exposed.node_port("tcp")?;
    let node = world.kubelet("a")?.node().clone();
    let (primary, secondary) = (
        world.place(Place::NodeA).1,
        on.family.of(node.secondary_address()),
    );
    let from_outside = async |address: IpAddr, want: Want<'_>| {
        let to = (address, port).into();
        let outside = Place::Outside;
        world.becomes(outside, Transport::Tcp, to, want).await
    };
    let health = async |address: IpAddr, open: bool| {
        let what = format!("health port of {address}: open is {open}");
        eventually(
            &world.clock,
            &what,
            crate::lab::WITHIN,
            async || match world.http_get((address, HEALTH).into(), "/healthz") {
                Ok(answer) if open && answer.status == 200 => Ok(()),
                Err(_) if !open => Ok(()),
                other => Err(format!("{other:?}")),
            },
        )
        .await
    };
    from_outside(secondary, WEB).await?;
    health(secondary, true).await?;
    from_outside(primary, Want::Refused).await?;
    health(primary, false).await?;

    // S-28: an interface gets an address inside a range, one outside of all of them, and loses the first.
    let (inside, outside) = (
        on.family.of([10, 0, 1, 99].into()),
        on.family.of([10, 0, 1, 61].into()),
    );
    let address = async |verb: &str, address: IpAddr| {
        let text = format!("{address}/{}", on.family.bits());
        world
            .on_node("a", "ip", &["addr", verb, &text, "dev", "eth0"])
            .map(drop)
    };
    for more in [inside, outside] {
        node.announce(more)?;
        address("add", more).await?;
    }
    from_outside(inside, WEB).await?;
    health(inside, true).await?;
    from_outside(outside, Want::Refused).await?;
    address("del", inside).await?;
    let taken = async || {
        let ruleset = world.ruleset("a")?;
        anyhow::Ok(ruleset.contains(&inside.to_string()))
    };
    let what = "the address that went is no node port's";
    eventually(
        &world.clock,
        what,
        crate::lab::WITHIN,
        async || match taken().await {
            Ok(false) => Ok(()),
            other => Err(format!("{other:?}")),
        },
    )
    .await?;
    from_outside(secondary, WEB).await?;

    // S-29: the same address comes back as a Service's external address: there it is that Service's, and no node port's.
    let external = selectorless("external").with("externalIPs", json!([inside.to_string()]));
    world.expose(external).await?;
    world.serve_by("external", &["ask-b"]).await?;
    address("add", inside).await?;
    let to = SocketAddr::new(inside, 80);
    world
        .becomes(Place::Outside, Transport::Tcp, to, Want::From(&["ask-b"]))
        .await?;
    from_outside(inside, Want::Refused).await?;
    world.end().await
}
