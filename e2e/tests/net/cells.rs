//! Which address the server sees: {ClusterIP, NodePort, LB} × {Cluster, Local} × five places to ask from (harness.md section 7).
//!
//! One pod serves, on node `a`. The table is the expectation; each cell is asked over TCP and over UDP.

use crate::support::{self, Place, Seen, world_with};
use onehop_e2e::{
    traffic::Transport,
    world::{Cluster, ServiceManifest},
};
use serde_json::json;

/// What a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frontend {
    ClusterIp,
    /// The node port on the address of the node that has the pod.
    NodePortA,
    /// The node port on the address of the node that has none.
    NodePortB,
    LoadBalancer,
}

use Frontend::{ClusterIp, LoadBalancer, NodePortA, NodePortB};
use Place::{NodeA, NodeB, Outside, PodOnA, PodOnB};
use Seen::{Client, Dropped, LbChosenNode, NodeAAddress, NodeBAddress, NodeBPodInterface};

/// S-20 and policy Cluster: ClusterIP keeps the pods' addresses (S-60), everything external is masqueraded by the node that
/// translates (S-62), with the address of the interface that leads on: packets of pods leave by the pods' interface.
/// A client outside has no way to a ClusterIP: the fabric has no owner for it.
const CLUSTER: &[(Frontend, [Seen; 5])] = &[
    //               outside       pod on a      pod on b      node a        node b
    (
        ClusterIp,
        [Dropped, Client, Client, NodeAAddress, NodeBAddress],
    ),
    (
        NodePortA,
        [
            NodeAAddress,
            NodeAAddress,
            NodeAAddress,
            NodeAAddress,
            NodeAAddress,
        ],
    ),
    (
        NodePortB,
        [
            NodeBAddress,
            NodeBAddress,
            NodeBPodInterface,
            NodeBAddress,
            NodeBAddress,
        ],
    ),
    (
        LoadBalancer,
        [
            LbChosenNode,
            NodeAAddress,
            NodeBPodInterface,
            NodeAAddress,
            NodeBAddress,
        ],
    ),
];

/// Policy Local: clients outside keep their address and reach local pods only (S-63c, S-55); pods and node processes are
/// served from the Cluster list, pods with their own address (S-63a), node processes masqueraded (S-63b). ClusterIP
/// with internal policy Local is dropped where there is no local pod (S-49). A node process that asks another node is
/// an outside client there. A pod on `a` that asks `b`'s node port is translated by `b` without masquerade (S-65) to a
/// pod on its own node, whose answer never passes `b` again: no translation back, no connection.
const LOCAL: &[(Frontend, [Seen; 5])] = &[
    //               outside   pod on a  pod on b  node a        node b
    (ClusterIp, [Dropped, Client, Dropped, NodeAAddress, Dropped]),
    (NodePortA, [Client, Client, Client, NodeAAddress, Client]),
    (NodePortB, [Dropped, Dropped, Client, Dropped, NodeBAddress]),
    (
        LoadBalancer,
        [Client, Client, Client, NodeAAddress, NodeBAddress],
    ),
];

const PLACES: [Place; 5] = [Outside, PodOnA, PodOnB, NodeA, NodeB];

async fn check(
    on: Cluster,
    flags: &[&'static str],
    policy: &str,
    table: &[(Frontend, [Seen; 5])],
) -> anyhow::Result<support::PodOnA> {
    let world = world_with(on, flags.to_vec()).await?;
    let service = ServiceManifest::load_balancer("web", "web")
        .with("externalTrafficPolicy", json!(policy))
        .with("internalTrafficPolicy", json!(policy));
    let service = world.serve(service).await?;
    let mut wrong = Vec::new();
    for (frontend, row) in table {
        for (place, expected) in PLACES.iter().zip(row) {
            for transport in [Transport::Tcp, Transport::Udp] {
                let address = service.address(*frontend, transport);
                let seen = world.ask_from(*place, transport, address).await;
                if !expected.matches(&seen, *place, &world) {
                    wrong.push(format!("{frontend:?} {policy} from {place:?} over {transport:?}: expected {expected:?}, got {seen:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(world)
}

pub(crate) async fn s60_s62_policy_cluster_keeps_pod_addresses_and_masquerades_external_clients(
    on: Cluster,
) -> anyhow::Result<()> {
    check(on, &[], "Cluster", CLUSTER).await?.end().await
}

pub(crate) async fn s49_s55_s63_policy_local_keeps_client_addresses_and_serves_the_cluster_from_anywhere(
    on: Cluster,
) -> anyhow::Result<()> {
    let world = check(on, &[], "Local", LOCAL).await?;
    // The cell above in which `b` passes on a packet of a pod of `a`: a cloud's source check never lets it out.
    let pod_on_a = world.place(PodOnA).1;
    world.end_with_drops_of(pod_on_a).await
}

/// S-61: the other ways to tell pods come to the same. They know this node's pods only, so one of another node is an
/// outside client here (S-65): it is dropped at once instead of being passed on.
pub(crate) async fn s61_s65_detectors_that_know_this_nodes_pods_only(
    on: Cluster,
) -> anyhow::Result<()> {
    let prefix = [
        "--detect-local-mode=InterfaceNamePrefix",
        "--pod-interface-name-prefix=veth",
    ];
    for flags in [&["--detect-local-mode=NodeCIDR"][..], &prefix] {
        check(on, flags, "Cluster", CLUSTER).await?.end().await?;
        check(on, flags, "Local", LOCAL).await?.end().await?;
    }
    Ok(())
}
