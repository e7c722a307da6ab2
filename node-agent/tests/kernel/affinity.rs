//! Session affinity in the kernel (sections 7 and 12.7): who sticks to whom, for how long, and over what.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use onehop_core::id::{PortKey, PortName, Protocol};
use onehop_core::service::{ServiceSpec, TrafficPolicy};
use onehop_nft::{Batch, Element, Socket, Value};
use onehop_node_agent::commit::Features;
use onehop_node_agent::table::affinity::{self, List, Sticky, StickyPort};
use onehop_node_agent::table::element::{Dataplane, Family};
use onehop_node_agent::table::layout::table;

use crate::common::{Stands, key, put};
use crate::lab::{At, Lab, Plan, Proxy, both, endpoints, eventually, everywhere, ready, servers};
use crate::world::options;

const NODE_PORT: u16 = 30_080;
const HOURS: Duration = Duration::from_hours(3);

fn sticky_service(policy: TrafficPolicy, affinity: Option<Duration>) -> ServiceSpec {
    ServiceSpec {
        external_policy: policy,
        affinity,
        ..everywhere("web", 1, Protocol::Tcp, NODE_PORT)
    }
}

fn slices(of: impl Fn(Plan) -> Vec<At>) -> Vec<onehop_node_agent::state::Change> {
    both("web", Protocol::Tcp, of)
}

fn all_pods(plan: Plan) -> Vec<At> {
    let local = (1..=2).map(|n| plan.pod(n));
    let remote = (1..=2).map(|n| plan.remote_pod(n));
    local.chain(remote).map(ready).collect()
}

fn frontends(plan: Plan) -> [SocketAddr; 3] {
    [
        SocketAddr::new(plan.cluster_ip(1), 80),
        SocketAddr::new(plan.vip(1), 80),
        SocketAddr::new(plan.node(), NODE_PORT),
    ]
}

fn map(list: List) -> Sticky {
    let port = PortKey::new(PortName::default(), Protocol::Tcp);
    Sticky {
        list,
        port: StickyPort::of(&key("web"), &port),
    }
}

/// The known clients of a list, with their endpoints.
pub(crate) fn known(lab: &Lab, family: Family, list: List) -> BTreeMap<IpAddr, IpAddr> {
    let name = map(list).map_name();
    let entries = lab.node.run(move || {
        let mut socket = Socket::open().unwrap();
        socket.elements(&table(family), &name).unwrap_or_default()
    });
    let of = |entry: &Element| {
        let client = entry.key.addr_at(0, family == Family::V6).unwrap();
        (client, affinity::endpoint(family, entry).unwrap().ip())
    };
    entries.iter().map(of).collect()
}

fn started(policy: TrafficPolicy, affinity: Option<Duration>) -> (Lab, Proxy) {
    let lab = Lab::new();
    let mut proxy = lab.proxy(&options());
    proxy.apply([put(sticky_service(policy, affinity))]);
    proxy.apply(slices(all_pods));
    (lab, proxy)
}

#[test]
fn s80_a_client_sticks_over_all_frontends_of_a_service_port() {
    let (lab, mut proxy) = started(TrafficPolicy::Cluster, Some(HOURS));
    for plan in Plan::BOTH {
        for last in 1..=3 {
            let from = plan.client(last);
            let calls = || frontends(plan).map(|to| lab.world.call(from, to));
            let answers: Vec<_> = (0..5).flat_map(|_| calls()).collect();
            let server = servers(&answers);
            assert_eq!(server.len(), 1, "S-80: {plan:?} {from}: {server:?}");
            // S-236: what is known is the endpoint itself. S-237: recorded in forward.
            let known = known(&lab, plan.0, List::Cluster);
            assert_eq!(known.get(&from), server.first(), "S-236");
        }
        // S-237: processes of the node are recorded in output.
        let calls = (0..8).map(|_| lab.node.call(plan.node(), frontends(plan)[0]));
        assert_eq!(
            servers(&calls.collect::<Vec<_>>()).len(),
            1,
            "S-237: {plan:?}"
        );
    }
    proxy.assert_in_step();
    lab.node.nft(&["list", "ruleset"]);
}

#[test]
fn s237_an_endpoint_on_the_nodes_own_network_is_recorded_too() {
    let (lab, mut proxy) = started(TrafficPolicy::Cluster, Some(HOURS));
    for plan in Plan::BOTH {
        let here = plan.node();
        proxy.apply([endpoints(
            &format!("web-{}", plan.0),
            "web",
            Protocol::Tcp,
            &[ready(here), ready(plan.second_node_address())],
        )]);
        // Nobody listens, so the connection is refused by the endpoint; the choice is made and kept before that.
        let from = plan.client(1);
        assert!(lab.world.call(from, frontends(plan)[0]).is_err());
        let first = known(&lab, plan.0, List::Cluster);
        assert!(first.contains_key(&from), "S-237: {plan:?} {first:?}");
        for _ in 0..8 {
            assert!(lab.world.call(from, frontends(plan)[1]).is_err());
        }
        assert_eq!(known(&lab, plan.0, List::Cluster), first, "S-237: {plan:?}");
    }
}

#[test]
fn s84_s238_with_policy_local_each_kind_of_client_sticks_inside_its_own_list() {
    let (lab, mut proxy) = started(TrafficPolicy::Local, Some(HOURS));
    for plan in Plan::BOTH {
        let vip = SocketAddr::new(plan.vip(1), 80);
        let local = [plan.pod(1), plan.pod(2)];
        for last in 1..=3 {
            let from = plan.client(last);
            let answers: Vec<_> = (0..6)
                .flat_map(|_| [vip, frontends(plan)[2]].map(|to| lab.world.call(from, to)))
                .collect();
            let server = servers(&answers);
            assert_eq!(server.len(), 1, "S-84: {plan:?} {from}");
            // DI-30
            assert!(local.contains(server.first().unwrap()), "S-84: {server:?}");
            assert_eq!(
                answers[0].unwrap().1,
                from,
                "S-63: the client's own address"
            );
        }
        let pod = plan.pod(3);
        let answers: Vec<_> = (0..8).map(|_| lab.pod(3).call(pod, vip)).collect();
        assert_eq!(servers(&answers).len(), 1, "S-238: {plan:?} pod");
        let in_cluster = known(&lab, plan.0, List::Cluster);
        let in_local = known(&lab, plan.0, List::Local);
        // S-242: each list has its own clients.
        assert!(
            in_cluster.contains_key(&pod) && !in_local.contains_key(&pod),
            "S-238"
        );
        assert!(
            in_local.keys().eq(&[1, 2, 3].map(|n| plan.client(n))),
            "S-238: {in_local:?}"
        );
    }
    proxy.assert_in_step();
}

#[test]
fn s82_s240_a_client_moves_when_its_endpoint_leaves_the_list() {
    for destroy_elements in [true, false] {
        let lab = Lab::new();
        let features = Features {
            destroy_elements,
            ..Features::detect()
        };
        let mut proxy = lab.proxy_on(&options(), features);
        proxy.apply([put(sticky_service(TrafficPolicy::Cluster, Some(HOURS)))]);
        for plan in Plan::BOTH {
            let name = format!("web-{}", plan.0);
            let (from, to) = (plan.client(1), frontends(plan)[1]);
            let set = |at: &[At]| endpoints(&name, "web", Protocol::Tcp, at);
            for stands in [Stands::NotReady, Stands::ServingTerminating] {
                proxy.apply([set(&all_pods(plan))]);
                let (first, _) = lab.world.call(from, to).unwrap();
                let left: Vec<At> = all_pods(plan)
                    .into_iter()
                    .map(|at| {
                        if at.address == first {
                            At { stands, ..at }
                        } else {
                            at
                        }
                    })
                    .collect();
                proxy.apply([set(&left)]);
                let known = known(&lab, plan.0, List::Cluster);
                // S-268, S-286: with and without the kernel's tolerant deletion.
                assert_eq!(
                    known.get(&from),
                    None,
                    "S-240: {stands:?} {destroy_elements}"
                );
                let answers: Vec<_> = (0..6).map(|_| lab.world.call(from, to)).collect();
                let servers = servers(&answers);
                assert_eq!(servers.len(), 1, "S-82: sticks to another: {stands:?}");
                // DI-28
                assert!(!servers.contains(&first), "S-82: {stands:?}");
            }
            // Gone altogether: everybody who was with it is forgotten, others stay.
            proxy.apply([set(&all_pods(plan))]);
            for last in 1..=3 {
                lab.world.call(plan.client(last), to).unwrap();
            }
            let before = known(&lab, plan.0, List::Cluster);
            let gone = before[&from];
            let rest: Vec<At> = all_pods(plan)
                .into_iter()
                .filter(|at| at.address != gone)
                .collect();
            proxy.apply([set(&rest)]);
            let kept = before.into_iter().filter(|(_, at)| *at != gone).collect();
            assert_eq!(known(&lab, plan.0, List::Cluster), kept, "S-240");
        }
        proxy.assert_in_step();
    }
}

#[test]
fn s81_s240_a_list_that_gained_is_not_looked_at_and_a_look_that_is_due_goes_by_it() {
    let (lab, mut proxy) = started(TrafficPolicy::Cluster, Some(HOURS));
    for plan in Plan::BOTH {
        let name = format!("web-{}", plan.0);
        let set = |at: &[At]| endpoints(&name, "web", Protocol::Tcp, at);
        let all = all_pods(plan);
        let batch = proxy.apply([set(&all[..1])]);
        let known_of = (plan.0, map(List::Cluster));
        assert!(batch.change.retain.contains_key(&known_of), "S-240");
        // Before the second look, everybody is sent to an endpoint that came after the first.
        let batch = proxy.apply([set(&all[..2])]);
        assert!(batch.change.retain.is_empty(), "S-240: {:?}", batch.change);
        assert!(batch.change.gained.contains_key(&known_of), "S-240");
        let clients = (1..=3).map(|n| plan.client(n));
        for from in clients {
            lab.world.call(from, frontends(plan)[0]).unwrap();
        }
        let before = known(&lab, plan.0, List::Cluster);
        assert_eq!(before.len(), 3, "S-81: {before:?}");
        proxy.kernel.idle().unwrap();
        assert_eq!(known(&lab, plan.0, List::Cluster), before, "S-81");
    }
}

#[test]
fn s81_s239_an_entry_ends_with_its_time_and_a_new_time_counts_from_the_next_connection() {
    let (lab, mut proxy) = started(TrafficPolicy::Cluster, Some(Duration::from_secs(1)));
    for plan in Plan::BOTH {
        let (from, to) = (plan.client(1), frontends(plan)[0]);
        lab.world.call(from, to).unwrap();
        // DI-32: the time is in seconds.
        eventually("S-81: the entry ends", || {
            known(&lab, plan.0, List::Cluster).is_empty()
        });
        lab.world.call(from, to).unwrap();
    }
    proxy.apply([put(sticky_service(TrafficPolicy::Cluster, Some(HOURS)))]);
    for plan in Plan::BOTH {
        let (from, to) = (plan.client(1), frontends(plan)[0]);
        let (server, _) = lab.world.call(from, to).unwrap();
        let list = lab.node.nft(&[
            "list",
            "map",
            nft_family(plan),
            "onehop",
            &map(List::Cluster).map_name(),
        ]);
        // Of an entry that was still there only what is left follows; its first time stays in the listing.
        let left = ["expires 3h", "expires 2h59m"];
        assert!(left.iter().any(|left| list.contains(left)), "S-239: {list}");
        assert_eq!(known(&lab, plan.0, List::Cluster)[&from], server);
    }
    // The chains with the old time go when they have rested (S-247).
    assert!(
        proxy.kernel.idle().unwrap(),
        "S-247: the chains with the old time rest"
    );
    proxy.pass(Duration::from_secs(1));
    assert!(!proxy.kernel.idle().unwrap());
    let text = lab.node.nft(&["list", "ruleset"]);
    assert_eq!(
        text.matches("chain record-c-").count(),
        2,
        "S-239: one per family: {text}"
    );
}

fn nft_family(plan: Plan) -> &'static str {
    match plan.0 {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

#[test]
fn s83_affinity_outlives_the_agent_and_a_replacement_of_the_table() {
    let (lab, proxy) = started(TrafficPolicy::Cluster, Some(HOURS));
    let stuck = Plan::BOTH.map(|plan| {
        let (server, _) = lab.world.call(plan.client(1), frontends(plan)[1]).unwrap();
        (plan, server)
    });
    let tampers: [fn(); 2] = [|| {}, foreign_chain];
    let mut last = proxy;
    for tamper in tampers {
        drop(last);
        lab.node.run(tamper);
        let mut next = lab.proxy(&options());
        let changes = slices(all_pods).into_iter();
        next.apply(changes.chain([put(sticky_service(TrafficPolicy::Cluster, Some(HOURS)))]));
        for (plan, server) in stuck {
            for _ in 0..6 {
                let (now, _) = lab.world.call(plan.client(1), frontends(plan)[1]).unwrap();
                // DI-33
                assert_eq!(now, server, "S-83, S-132: {plan:?}");
            }
        }
        next.assert_in_step();
        last = next;
    }
}

/// Makes the static part differ, so that the next start replaces the table (S-132).
fn foreign_chain() {
    let mut batch = Batch::new();
    for family in Family::ALL {
        batch.add_chain(&table(family), &onehop_nft::Chain::regular("foreign"));
    }
    let mut socket = Socket::open().unwrap();
    socket.commit(&batch).unwrap();
}

#[test]
fn s83_what_left_while_no_agent_ran_is_forgotten_at_the_next_start() {
    let (lab, proxy) = started(TrafficPolicy::Cluster, Some(HOURS));
    let first = Plan::BOTH.map(|plan| {
        lab.world
            .call(plan.client(1), frontends(plan)[1])
            .unwrap()
            .0
    });
    drop(proxy);
    let mut next = lab.proxy(&options());
    let rest = |plan| {
        all_pods(plan)
            .into_iter()
            .filter(|at| !first.contains(&at.address))
            .collect()
    };
    let changes = slices(rest).into_iter();
    next.apply(changes.chain([put(sticky_service(TrafficPolicy::Cluster, Some(HOURS)))]));
    for plan in Plan::BOTH {
        assert!(
            known(&lab, plan.0, List::Cluster).is_empty(),
            "S-240: {plan:?}"
        );
        assert!(
            !first.contains(
                &lab.world
                    .call(plan.client(1), frontends(plan)[1])
                    .unwrap()
                    .0
            )
        );
    }
}

#[test]
fn s82_switching_affinity_is_live() {
    let (lab, mut proxy) = started(TrafficPolicy::Local, None);
    let of = |affinity| put(sticky_service(TrafficPolicy::Local, affinity));
    for plan in Plan::BOTH {
        proxy.apply([of(None)]);
        let (from, to) = (plan.client(1), frontends(plan)[0]);
        let calls = |count: usize| {
            let answers: Vec<_> = (0..count).map(|_| lab.world.call(from, to)).collect();
            servers(&answers).len()
        };
        // 40 calls to four endpoints by one alone: one chance in 10^23.
        assert!(calls(40) > 1, "no affinity: {plan:?}");
        proxy.apply([of(Some(HOURS))]);
        assert_eq!(calls(8), 1, "S-82: on: {plan:?}");
        proxy.apply([of(None)]);
        assert!(calls(40) > 1, "S-82: off: {plan:?}");
    }
    proxy.assert_in_step();
    // Everything of it is gone when it has rested (S-236: only service ports with affinity have chains).
    proxy.pass(Duration::from_secs(1));
    // A chain that another names rests from when that one went.
    while proxy.kernel.idle().unwrap() {
        proxy.pass(Duration::from_secs(1));
    }
    let text = lab.node.nft(&["list", "ruleset"]);
    for name in ["sticky-", "aff-", "record-"] {
        assert!(!text.contains(name), "S-236, S-247: {name}: {text}");
    }
}

#[test]
fn s241_who_comes_to_a_full_map_is_served_without_sticking() {
    let lab = Lab::new();
    // So that the test may fill the map, as an owned table could not be.
    let features = Features {
        owned_tables: false,
        ..Features::detect()
    };
    let mut proxy = lab.proxy_on(&options(), features);
    proxy.apply([put(sticky_service(TrafficPolicy::Cluster, Some(HOURS)))]);
    proxy.apply(slices(all_pods));
    let plan = Plan(Family::V4);
    lab.node.run(move || {
        let entry = |n: u16| {
            let [high, low] = n.to_be_bytes();
            Element::key(Value::new().addr(IpAddr::from([100, 64, high, low])))
                .value(Value::new().addr(plan.pod(1)).port(8080))
                .timeout_ms(10_800_000)
        };
        let mut batch = Batch::new();
        batch.add_elements(
            &table(plan.0),
            &map(List::Cluster).map_name(),
            (0..65_535).map(entry),
        );
        Socket::open().unwrap().commit(&batch).unwrap();
    });
    for _ in 0..8 {
        let (server, _) = lab.world.call(plan.client(1), frontends(plan)[0]).unwrap();
        assert!(
            all_pods(plan).iter().any(|at| at.address == server),
            "S-241"
        );
    }
    let known = known(&lab, plan.0, List::Cluster);
    assert!(!known.contains_key(&plan.client(1)), "S-241");
}
