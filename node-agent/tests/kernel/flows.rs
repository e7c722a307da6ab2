//! What becomes of flows when endpoints and Services come and go (section 8): connection tracking of a real kernel.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use onehop_core::crd::{LateFlows, TargetState};
use onehop_core::id::Protocol;
use onehop_core::service::ServiceSpec;
use onehop_nft::conntrack::{Conntrack, Filter, Flow};
use onehop_node_agent::args::Mode;
use onehop_node_agent::commit::Features;
use onehop_node_agent::flows::{FlowCleaner, Task};
use onehop_node_agent::metrics::Metrics;
use onehop_node_agent::planner::{Batch, tcp_frontends};
use onehop_node_agent::state::Change;
use onehop_node_agent::table::element::Dataplane;
use onehop_node_agent::table::layout::{Options, Ranges};
use onehop_runtime::clock::Clock;

use crate::common::{put, remove};
use crate::lab::{At, Lab, Plan, Proxy, both, eventually, everywhere, ready};
use crate::window;
use crate::world::options;

const NODE_PORT: u16 = 30_053;

struct World {
    lab: Lab,
    proxy: Proxy,
    cleaner: FlowCleaner,
}

impl World {
    fn new() -> Self {
        let lab = Lab::new();
        let proxy = lab.proxy(&options());
        let (cleaner, inbox) = FlowCleaner::new();
        let metrics = Arc::new(Metrics::new(onehop_runtime::metrics::Metrics::default()));
        lab.node
            .run(move || inbox.spawn(Clock::system(), metrics).unwrap());
        Self {
            lab,
            proxy,
            cleaner,
        }
    }

    /// As the app does: first the rules, then the flows.
    fn apply(&mut self, changes: impl IntoIterator<Item = Change>) {
        let batch = self.proxy.apply(changes);
        self.clean(batch, false);
    }

    fn clean(&self, batch: Batch, fresh: bool) {
        let fresh = if fresh {
            tcp_frontends(&batch.change.add)
        } else {
            BTreeSet::new()
        };
        self.cleaner.clean(Task {
            servers: batch.udp,
            fresh,
            gone: batch.gone,
            node_addresses: self.proxy.addresses.clone(),
        });
    }

    fn flows(&self, plan: Plan, of: impl Fn(&Flow) -> bool) -> Vec<Flow> {
        let filter = Filter {
            v6: plan.node().is_ipv6(),
            ..Filter::default()
        };
        let all = self
            .lab
            .node
            .run(move || Conntrack::open().unwrap().list(&filter).unwrap());
        all.into_iter().filter(of).collect()
    }
}

fn udp(name: &str, number: u8) -> ServiceSpec {
    everywhere(name, number, Protocol::Udp, NODE_PORT + u16::from(number))
}

fn served_by(name: &str, of: fn(Plan) -> IpAddr) -> Vec<Change> {
    both(name, Protocol::Udp, |plan| vec![ready(of(plan))])
}

fn first(plan: Plan) -> IpAddr {
    plan.pod(1)
}

fn second(plan: Plan) -> IpAddr {
    plan.remote_pod(1)
}

fn frontends(plan: Plan, number: u8) -> [SocketAddr; 3] {
    [
        SocketAddr::new(plan.cluster_ip(number), 80),
        SocketAddr::new(plan.vip(number), 80),
        SocketAddr::new(plan.node(), NODE_PORT + u16::from(number)),
    ]
}

#[test]
fn s91_a_flow_moves_when_its_endpoint_stops_serving() {
    let mut world = World::new();
    world.apply(
        [put(udp("dns", 1))]
            .into_iter()
            .chain(served_by("dns", first)),
    );
    for plan in Plan::BOTH {
        world.apply(served_by("dns", first));
        let flows = frontends(plan, 1).map(|to| world.lab.world.datagrams(plan.client(1), to));
        for flow in &flows {
            assert_eq!(flow.server(), Some(first(plan)), "{plan:?}");
        }
        world.apply(served_by("dns", second));
        for flow in &flows {
            // DI-09: the same source port all the time.
            eventually("S-91: the flow moves", || {
                flow.server() == Some(second(plan))
            });
        }
    }
}

#[test]
fn s92_flows_go_with_the_last_endpoint_and_with_the_service() {
    let mut world = World::new();
    for last_step in [
        both("dns", Protocol::Udp, |_| Vec::new()),
        vec![remove("dns")],
    ] {
        world.apply(
            [put(udp("dns", 1))]
                .into_iter()
                .chain(served_by("dns", first)),
        );
        for plan in Plan::BOTH {
            for to in frontends(plan, 1) {
                let flow = world.lab.world.datagrams(plan.client(1), to);
                eventually("served", || flow.server() == Some(first(plan)));
            }
        }
        world.apply(last_step);
        for plan in Plan::BOTH {
            let to = frontends(plan, 1).map(|to| to.ip());
            // DI-01: the last endpoint goes. DI-02: the Service itself goes.
            eventually("S-92: no flow of the Service is left", || {
                world
                    .flows(plan, |flow| to.contains(&flow.original.dst))
                    .is_empty()
            });
        }
    }
}

#[test]
fn s93_flows_from_before_the_rules_are_served_once_there_is_somebody() {
    let mut world = World::new();
    world.apply([]);
    for plan in Plan::BOTH {
        let name = format!("dns-{}", plan.0).to_lowercase();
        let flows = frontends(plan, 1).map(|to| world.lab.world.datagrams(plan.client(1), to));
        for flow in &flows {
            assert_eq!(flow.server(), None, "nobody is there yet");
        }
        world.apply(
            [put(udp(&name, 1))]
                .into_iter()
                .chain(served_by(&name, first)),
        );
        for flow in &flows {
            // DI-08
            eventually("S-93: served", || flow.server() == Some(first(plan)));
        }
        world.apply([remove(&name)]);
    }
}

#[test]
fn s94_s95_a_restart_and_others_changes_touch_no_valid_flow() {
    let mut world = World::new();
    let objects = |moving| {
        let services = [put(udp("still", 1)), put(udp("moving", 2))].into_iter();
        services
            .chain(served_by("still", first))
            .chain(served_by("moving", moving))
    };
    world.apply(objects(first));
    let plan = Plan::BOTH[0];
    let still = frontends(plan, 1).map(|to| world.lab.world.datagrams(plan.client(1), to));
    let moving = world
        .lab
        .world
        .datagrams(plan.client(1), frontends(plan, 2)[2]);
    // S-95: a pod talks to somebody else on the number of a node port.
    let unrelated = SocketAddr::new(plan.client(2), NODE_PORT + 2);
    let other = world.lab.pod(1).datagrams(plan.pod(1), unrelated);
    assert_eq!(
        other.server(),
        None,
        "nobody listens there; it is a flow all the same"
    );
    for flow in &still {
        assert_eq!(flow.server(), Some(first(plan)));
    }
    assert_eq!(moving.server(), Some(first(plan)));

    drop(world.proxy);
    world.proxy = world.lab.proxy(&options());
    let batch = world.proxy.apply(objects(second));
    assert!(
        !batch.udp.is_empty(),
        "S-91: the table is compared with what is wanted, whatever was missed (DI-05)"
    );
    world.clean(batch, false);
    eventually("what changed meanwhile moves", || {
        moving.server() == Some(second(plan))
    });
    let local = other.local();
    let kept = world.flows(plan, |flow| flow.original.src_port == local.port());
    assert_eq!(kept.len(), 1, "S-95: {kept:?}");
    for flow in &still {
        assert_eq!(flow.server(), Some(first(plan)), "S-94, DI-04");
    }
}

#[test]
fn s50_s90_established_connections_outlive_their_endpoint() {
    let mut world = World::new();
    let service = everywhere("web", 1, Protocol::Tcp, NODE_PORT);
    let of = |at: fn(Plan) -> IpAddr| both("web", Protocol::Tcp, move |plan| vec![ready(at(plan))]);
    world.apply([put(service)].into_iter().chain(of(first)));
    let to = |plan: Plan| {
        [
            SocketAddr::new(plan.cluster_ip(1), 80),
            SocketAddr::new(plan.vip(1), 80),
            SocketAddr::new(plan.node(), NODE_PORT),
        ]
    };
    let mut talks: Vec<_> = Plan::BOTH
        .into_iter()
        .flat_map(|plan| to(plan).map(|to| world.lab.world.open(plan.client(1), to).unwrap()))
        .collect();
    let steps = [
        of(second),
        both("web", Protocol::Tcp, |_| Vec::new()),
        vec![remove("web")],
    ];
    for step in steps {
        world.apply(step);
        for talk in &mut talks {
            assert!(talk.goes_on(), "S-50, S-90: {:?}", talk.parties);
        }
    }
}

#[test]
fn s134_a_connection_that_was_tried_too_early_is_made_by_its_resend() {
    let mut world = World::new();
    world.apply([]);
    let plan = Plan::BOTH[0];
    let to = SocketAddr::new(plan.vip(1), 80);
    let early = {
        let from = plan.client(1);
        let socket = world.lab.world.run(move || {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
            let socket = socket.unwrap();
            socket.bind(&SocketAddr::new(from, 0).into()).unwrap();
            socket.set_nonblocking(true).unwrap();
            let _ = socket.connect(&to.into());
            socket
        });
        eventually("the first SYN went by", || {
            !world
                .flows(plan, |flow| flow.original.dst == to.ip())
                .is_empty()
        });
        socket
    };
    let service = everywhere("web", 1, Protocol::Tcp, NODE_PORT);
    let slices = both("web", Protocol::Tcp, |plan| vec![ready(plan.pod(1))]);
    let batch = world.proxy.apply([put(service)].into_iter().chain(slices));
    world.clean(batch, true);
    eventually("S-134: the resend connects", || early.peer_addr().is_ok());
}

#[test]
fn s131_asking_for_a_clean_up_waits_for_nothing() {
    // Nobody works: the inbox is kept and never read.
    let (cleaner, _inbox) = FlowCleaner::new();
    let mut world = World::new();
    let changes = [put(udp("dns", 1))]
        .into_iter()
        .chain(served_by("dns", first));
    let servers = world.proxy.apply(changes).udp;
    assert!(!servers.is_empty());
    // DI-07: the commit path hands over and goes on, however many there are.
    for _ in 0..1000 {
        cleaner.clean(Task {
            servers: servers.clone(),
            ..Task::default()
        });
    }
    // S-96, DI-06: what changes nothing of UDP names no frontend, hence costs no dump.
    let tcp = everywhere("web", 2, Protocol::Tcp, NODE_PORT);
    let slices = both("web", Protocol::Tcp, |plan| vec![ready(plan.pod(1))]);
    assert!(
        world
            .proxy
            .apply([put(tcp)].into_iter().chain(slices))
            .udp
            .is_empty()
    );
}

#[test]
fn s348_clients_that_begin_before_the_first_commit_are_all_served_also_in_pieces() {
    let lab = Lab::new();
    let options = Options {
        beside_kube_proxy: false,
        ..options()
    };
    let mut proxy = lab.proxy_limited(Mode::Replace, &options, Features::detect(), 3_000);
    // S-133: the range is closed before any Service is there, so that nothing passes untranslated.
    let cidrs = ["10.96.0.0/16", "fd00:96::/112"].map(|net| net.parse().unwrap());
    let ranges = Ranges {
        service_cidrs: cidrs.to_vec(),
        ..Ranges::default()
    };
    proxy.kernel.configure(&ranges).unwrap();
    let begin = |plan: Plan, number| {
        let to = SocketAddr::new(plan.cluster_ip(number), 80);
        let from = plan.pod(3);
        lab.pod(3).run(move || {
            let domain = socket2::Domain::for_address(to);
            let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None).unwrap();
            socket.bind(&SocketAddr::new(from, 0).into()).unwrap();
            socket.set_nonblocking(true).unwrap();
            let _ = socket.connect(&to.into());
            socket
        })
    };
    let numbers = 1..=20;
    let early: Vec<_> = Plan::BOTH
        .into_iter()
        .flat_map(|plan| numbers.clone().map(move |number| (plan, number)))
        .map(|(plan, number)| begin(plan, number))
        .collect();
    let objects = numbers.flat_map(|number| {
        let name = format!("s{number}");
        let service = everywhere(&name, number, Protocol::Tcp, 30_000 + u16::from(number));
        let slices = both(&name, Protocol::Tcp, |plan| {
            vec![ready(plan.pod(1)), ready(plan.pod(2))]
        });
        std::iter::once(put(service)).chain(slices)
    });
    proxy.apply(objects.collect::<Vec<_>>());
    proxy.assert_in_step();
    for socket in &early {
        eventually("S-348: connected after a resend", || {
            socket.peer_addr().is_ok()
        });
    }
}

#[test]
fn s347_foreign_flushes_in_a_loop_under_load_are_not_noticed_by_anybody() {
    let mut world = World::new();
    let service = everywhere("web", 1, Protocol::Tcp, NODE_PORT);
    world.apply(
        [put(service)]
            .into_iter()
            .chain(both("web", Protocol::Tcp, |plan| vec![ready(plan.pod(1))])),
    );
    let plan = Plan::BOTH[0];
    let to = SocketAddr::new(plan.vip(1), 80);
    let mut talk = world.lab.world.open(plan.client(1), to).unwrap();
    for _ in 0..30 {
        world.lab.node.nft(&["flush", "ruleset"]);
        let (server, _) = world.lab.world.call(plan.client(2), to).unwrap();
        assert_eq!(server, plan.pod(1), "S-347");
        assert!(talk.goes_on(), "S-347: an established connection");
    }
    world.proxy.assert_in_step();
}

/// S-418: a flow that the Local window forwarded moves when its endpoint on the other node stops serving, and stays where
/// it is when the window ends.
#[test]
fn s418_flows_of_the_window_move_with_their_endpoint_and_stay_when_it_ends() {
    let mut world = World::new();
    let udp = Protocol::Udp;
    let web = |of: fn(Plan) -> Vec<At>| both("web", udp, of);
    let active = Some(TargetState::Active);
    world.apply([
        put(window::web(udp)),
        window::said(udp, active, LateFlows::Forward, 180),
    ]);
    world.apply(web(|plan| vec![ready(plan.pod(1))]));
    world.apply(web(|plan| vec![ready(plan.remote_pod(1))]));
    let late = Plan::BOTH.map(|plan| {
        let to = window::entrances(plan);
        (
            plan,
            to.map(|to| world.lab.world.datagrams(plan.client(1), to)),
        )
    });
    for (plan, flows) in &late {
        for flow in flows {
            assert_eq!(flow.server(), Some(plan.remote_pod(1)), "ZD-60");
        }
    }
    world.apply(web(|plan| vec![ready(plan.remote_pod(2))]));
    for (plan, flows) in &late {
        for flow in flows {
            eventually("S-418: it moves", || {
                flow.server() == Some(plan.remote_pod(2))
            });
        }
    }
    // The window ends with the first that serves here; new flows are its own.
    world.apply(web(|plan| {
        vec![ready(plan.pod(2)), ready(plan.remote_pod(2))]
    }));
    for (plan, flows) in &late {
        for to in window::entrances(*plan) {
            let flow = world.lab.world.datagrams(plan.client(2), to);
            eventually("served here", || flow.server() == Some(plan.pod(2)));
        }
        for flow in flows {
            assert_eq!(flow.server(), Some(plan.remote_pod(2)), "S-418: it stays");
        }
    }
}
