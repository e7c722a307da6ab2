//! Random sequences of Service, slice, Node and address events; after each, what the kernel does with sampled flows is
//! what the reference model says, and what it holds is what the planner believes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use onehop_core::endpoint::Slice;
use onehop_core::id::{Cidr, Protocol};
use onehop_core::service::{
    Ingress, IpMode, ServiceKind, ServiceSpec, SourceRanges, TrafficPolicy,
};
use onehop_core::time::Time;
use onehop_nft::conntrack::{
    Conntrack, Filter, Flow, FlowChange, FlowChanges, STATUS_DNAT, STATUS_SNAT, Told,
};
use onehop_node_agent::collection::Step;
use onehop_node_agent::state::Change;
use onehop_node_agent::table::element::Family;
use onehop_runtime::watch::ObjectKey;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::json;
use socket2::{Domain, Socket, Type};

use crate::common::{NODE, Stands, cases, port, put, remove, service};
use crate::lab::{CLIENTS, Lab, PODS, Place, Plan, Proxy, own_node};
use crate::model::{Answer, Ep, External, From, Model, Sources, Svc};
use crate::world::options;

const SERVICES: u8 = 3;
const NODE_PORTS: std::ops::Range<u16> = 30_000..30_003;
const DEADLINE: Duration = Duration::from_secs(5);
/// Flows that are looked at after each event.
const SAMPLES: usize = 24;

#[derive(Debug, Clone)]
enum Event {
    Put(Svc),
    Remove(u8),
    Slice(u8, Family, Vec<Ep>),
    Zone(Option<&'static str>),
    SecondAddress(bool),
    Restart,
}

fn svc() -> impl Strategy<Value = Svc> {
    let external = prop_oneof![
        3 => Just(None),
        2 => (1_u8..3).prop_map(|n| Some(External::Vip(n))),
        1 => Just(Some(External::SecondNodeAddress)),
    ];
    let sources = prop_oneof![
        3 => Just(Sources::Any),
        1 => Just(Sources::FirstClient),
        1 => Just(Sources::Pods),
    ];
    let who = (
        1..=SERVICES,
        0_i64..3,
        proptest::bool::weighted(0.9),
        any::<bool>(),
    );
    let fronts = (
        proptest::option::of(1_u8..3),
        external,
        proptest::option::of(NODE_PORTS),
    );
    (who, fronts, any::<(bool, bool, bool)>(), sources).prop_map(
        |((number, created, ours, tcp), (vip, external, node_port), flags, sources)| {
            let (internal_local, external_local, affinity) = flags;
            Svc {
                number,
                created,
                ours,
                protocol: if tcp { Protocol::Tcp } else { Protocol::Udp },
                vip,
                external,
                node_port,
                internal_local,
                external_local,
                sources,
                affinity,
            }
        },
    )
}

fn endpoint(plan: Plan) -> impl Strategy<Value = Ep> {
    let stands = prop_oneof![
        4 => Just(Stands::Ready),
        1 => Just(Stands::NotReady),
        1 => Just(Stands::ServingTerminating),
    ];
    let zones = prop_oneof![
        2 => Just(Vec::new()),
        1 => Just(vec!["a"]),
        1 => Just(vec!["b"]),
        1 => Just(vec!["a", "b"]),
    ];
    let nodes = prop_oneof![3 => Just(Vec::new()), 1 => Just(vec![NODE]), 1 => Just(vec!["n2"])];
    (any::<bool>(), 1..=PODS, stands, zones, nodes).prop_map(
        move |(local, n, stands, zones, nodes)| Ep {
            address: if local {
                plan.pod(n)
            } else {
                plan.remote_pod(n)
            },
            stands,
            zones,
            nodes,
        },
    )
}

fn slice() -> impl Strategy<Value = Event> {
    let plan = prop_oneof![Just(Plan::BOTH[0]), Just(Plan::BOTH[1])];
    (1..=SERVICES, plan).prop_flat_map(|(number, plan)| {
        proptest::collection::vec(endpoint(plan), 0..5).prop_map(move |mut list| {
            // One copy of each; what copies come to is shown elsewhere (S-06).
            list.sort_by_key(|ep| ep.address);
            list.dedup_by_key(|ep| ep.address);
            Event::Slice(number, plan.0, list)
        })
    })
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => svc().prop_map(Event::Put),
        1 => (1..=SERVICES).prop_map(Event::Remove),
        7 => slice(),
        1 => prop_oneof![Just(None), Just(Some("a")), Just(Some("b"))].prop_map(Event::Zone),
        1 => any::<bool>().prop_map(Event::SecondAddress),
        1 => Just(Event::Restart),
    ]
}

/// The Service as the agent reads it.
fn spec(svc: &Svc) -> ServiceSpec {
    let name = format!("s{}", svc.number);
    let policy = |local| {
        if local {
            TrafficPolicy::Local
        } else {
            TrafficPolicy::Cluster
        }
    };
    let ranges: Vec<Cidr> = Plan::BOTH
        .into_iter()
        .flat_map(|plan| match svc.sources {
            Sources::Any => Vec::new(),
            Sources::FirstClient => vec![Cidr::host(plan.client(1))],
            Sources::Pods if plan.0 == Family::V4 => vec!["10.244.0.0/16".parse().unwrap()],
            Sources::Pods => vec!["fd00:244::/32".parse().unwrap()],
        })
        .collect();
    let mut spec = ServiceSpec {
        kind: ServiceKind::LoadBalancer,
        created: Time::from_millis(svc.created),
        cluster_ips: Plan::BOTH.map(|plan| plan.cluster_ip(svc.number)).to_vec(),
        ingress: Plan::BOTH
            .iter()
            .filter_map(|plan| svc.vip.map(|vip| plan.vip(vip)))
            .map(|address| Ingress {
                address: Some(address),
                hostname: None,
                ports: BTreeSet::new(),
                mode: IpMode::Vip,
            })
            .collect(),
        external_ips: Plan::BOTH
            .iter()
            .filter_map(|plan| svc.external.map(|external| external.address(*plan)))
            .collect(),
        internal_policy: policy(svc.internal_local),
        external_policy: policy(svc.external_local),
        source_ranges: SourceRanges {
            allowed: ranges,
            has_bad: false,
        },
        ports: vec![port(svc.protocol, 80, svc.node_port)],
        affinity: svc.affinity.then_some(Duration::from_mins(10)),
        ..service(&name, svc.number)
    };
    if !svc.ours {
        spec.labels.clear();
    }
    spec
}

/// The slices of a Service: both protocols in each, so that it does not matter which the Service has.
fn slice_change(number: u8, family: Family, list: &[Ep]) -> Change {
    let endpoints: Vec<_> = list
        .iter()
        .map(|ep| {
            json!({
                "addresses": [ep.address],
                "nodeName": if ep.is_local() { NODE } else { "n2" },
                "hints": {
                    "forZones": ep.zones.iter().map(|z| json!({"name": z})).collect::<Vec<_>>(),
                    "forNodes": ep.nodes.iter().map(|n| json!({"name": n})).collect::<Vec<_>>(),
                },
                "conditions": {
                    "ready": ep.stands == Stands::Ready,
                    "serving": ep.stands != Stands::NotReady,
                    "terminating": ep.stands == Stands::ServingTerminating,
                },
            })
        })
        .collect();
    let name = format!("s{number}-{family}").to_lowercase();
    let ports =
        ["TCP", "UDP"].map(|protocol| json!({"name": "", "port": 8080, "protocol": protocol}));
    let slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": format!("s{number}")},
        },
        "addressType": family.as_str(),
        "endpoints": endpoints,
        "ports": ports,
    }))
    .unwrap();
    let key = ObjectKey {
        namespace: "default".to_owned(),
        name,
    };
    Change::Slice(Step::Apply(key, Slice::read(&slice).unwrap().0))
}

/// A flow to be tried.
#[derive(Debug, Clone, Copy)]
struct Sample {
    plan: Plan,
    from: From,
    to: SocketAddr,
    protocol: Protocol,
}

fn sample() -> impl Strategy<Value = Sample> {
    let plan = prop_oneof![Just(Plan::BOTH[0]), Just(Plan::BOTH[1])];
    let from = prop_oneof![
        (1..=PODS).prop_map(From::Pod),
        (1..=CLIENTS).prop_map(From::Client),
        (1..=PODS).prop_map(From::RemotePod),
        Just(From::Node),
    ];
    (plan, from, any::<bool>(), 0_u8..14, NODE_PORTS).prop_map(
        |(plan, from, tcp, at, node_port)| {
            let to = match at {
                0..=2 => SocketAddr::new(plan.cluster_ip(at + 1), 80),
                3 => SocketAddr::new(plan.cluster_ip(1), 81),
                4..=6 => SocketAddr::new(plan.vip(1), 80),
                7 => SocketAddr::new(plan.vip(2), 80),
                8 => SocketAddr::new(plan.second_node_address(), 80),
                9 => SocketAddr::new(plan.second_node_address(), node_port),
                _ => SocketAddr::new(plan.node(), node_port),
            };
            let protocol = if tcp { Protocol::Tcp } else { Protocol::Udp };
            Sample {
                plan,
                from,
                to,
                protocol,
            }
        },
    )
}

/// A node, the model of it, and a watcher of its connections.
struct Bench {
    lab: Lab,
    proxy: Option<Proxy>,
    model: Model,
    conntrack: Conntrack,
    /// Tells also of connections that a reset ends at once.
    began: FlowChanges,
    flows: Vec<Flow>,
    changes: BTreeMap<String, Change>,
}

impl Bench {
    fn new() -> Self {
        let lab = Lab::new();
        let mut proxy = lab.proxy(&options());
        proxy.apply([]);
        lab.node.sysctl("net/netfilter/nf_conntrack_events", "1");
        let open = || {
            (
                Conntrack::open().unwrap(),
                FlowChanges::open(Told::Beginnings).unwrap(),
            )
        };
        let (conntrack, began) = lab.node.run(open);
        let model = Model {
            zone: Some("a"),
            ..Model::default()
        };
        Self {
            lab,
            proxy: Some(proxy),
            model,
            conntrack,
            began,
            flows: Vec::new(),
            changes: BTreeMap::new(),
        }
    }

    fn proxy(&mut self) -> &mut Proxy {
        self.proxy.as_mut().expect("an agent runs")
    }

    fn happen(&mut self, event: &Event) {
        match event {
            Event::Put(svc) => {
                self.model.services.insert(svc.number, svc.clone());
                self.change(format!("s{}", svc.number), put(spec(svc)));
            }
            Event::Remove(number) => {
                self.model.services.remove(number);
                self.changes.remove(&format!("s{number}"));
                self.proxy().apply([remove(&format!("s{number}"))]);
            }
            Event::Slice(number, family, list) => {
                self.model
                    .endpoints
                    .insert((*number, *family), list.clone());
                let change = slice_change(*number, *family, list);
                self.change(format!("slice {number} {family}"), change);
            }
            Event::Zone(zone) => {
                self.model.zone = *zone;
                let mut node = own_node();
                node.zone = zone.map(Into::into);
                let change = Change::Node(Step::Apply(node.name.clone(), node));
                self.change("node".to_owned(), change);
            }
            Event::SecondAddress(there) => {
                self.model.second_address = *there;
                let addresses = self.addresses();
                self.proxy().addresses = addresses;
                self.proxy().apply([]);
            }
            Event::Restart => {
                self.proxy = None;
                let mut proxy = self.lab.proxy(&options());
                proxy.addresses = self.addresses();
                let change = proxy.apply(self.changes.values().cloned()).change;
                assert!(change.writes_nothing(), "S-121: {change:?}");
                self.proxy = Some(proxy);
            }
        }
    }

    fn change(&mut self, name: String, change: Change) {
        self.changes.insert(name, change.clone());
        self.proxy().apply([change]);
    }

    fn addresses(&self) -> Vec<IpAddr> {
        let second = self.model.second_address;
        let of = |plan: Plan| {
            let second = second.then(|| plan.second_node_address());
            std::iter::once(plan.node()).chain(second)
        };
        Plan::BOTH.into_iter().flat_map(of).collect()
    }

    fn place(&self, from: From) -> &Place {
        match from {
            From::Pod(n) => self.lab.pod(n),
            From::Node => &self.lab.node,
            From::Client(_) | From::RemotePod(_) => &self.lab.world,
        }
    }

    /// Tries the flows and compares.
    fn compare(&mut self, samples: &[Sample]) -> Result<(), TestCaseError> {
        let tried: Vec<Tried> = samples
            .iter()
            .map(|sample| self.try_flow(*sample))
            .collect();
        // Packets of one place reach the node in order, so what these do not find is not there.
        let fences: Vec<Tried> = [1, 2, 3]
            .map(From::Pod)
            .into_iter()
            .chain([From::Client(1), From::Node])
            .map(|from| self.try_flow(Self::fence(from)))
            .collect();
        self.wait_for(&fences);
        let start = Instant::now();
        loop {
            self.listen();
            let wrong = tried.iter().find_map(|tried| {
                let (seen, wanted) = (tried.seen(&self.flows), self.wanted(tried.sample));
                (!agrees(&seen, &wanted))
                    .then(|| format!("{:?}: {seen:?}, not {wanted:?}", tried.sample))
            });
            let Some(wrong) = wrong else {
                break;
            };
            prop_assert!(start.elapsed() < DEADLINE, "{wrong}\n{:#?}", self.model);
            // Refusals of datagrams are limited by the kernel, for all namespaces together; clients ask again.
            for tried in tried
                .iter()
                .filter(|tried| self.wanted(tried.sample) == Answer::Reject)
            {
                tried.ask_again();
            }
            std::thread::sleep(Duration::from_millis(30));
        }
        self.forget();
        Ok(())
    }

    /// Takes note of what has begun.
    fn listen(&mut self) {
        while let Some(change) = self.began.poll().unwrap() {
            match change {
                FlowChange::Began(flow) => self.flows.push(flow),
                FlowChange::Ended(_) => {}
                FlowChange::Lost => panic!("notifications of connections were lost"),
            }
        }
    }

    /// Ends all connections, so that the next ones are new.
    fn forget(&mut self) {
        for v6 in [false, true] {
            let filter = Filter {
                v6,
                ..Filter::default()
            };
            self.conntrack.delete_where(&filter, |_| true).unwrap();
        }
        self.listen();
        self.flows.clear();
    }

    fn wanted(&self, sample: Sample) -> Answer {
        self.model
            .answer(sample.plan, sample.from, sample.to, sample.protocol)
    }

    /// A flow that nothing of ours touches.
    fn fence(from: From) -> Sample {
        let plan = Plan(Family::V4);
        let to = match from {
            From::Pod(_) | From::Node => plan.router(),
            From::Client(_) | From::RemotePod(_) => plan.pod(1),
        };
        Sample {
            plan,
            from,
            to: SocketAddr::new(to, 9),
            protocol: Protocol::Udp,
        }
    }

    fn wait_for(&mut self, fences: &[Tried]) {
        let start = Instant::now();
        loop {
            self.listen();
            if fences
                .iter()
                .all(|fence| fence.seen(&self.flows) == Seen::Untouched)
            {
                return;
            }
            assert!(start.elapsed() < DEADLINE, "the node does not forward");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Sends the first packet.
    fn try_flow(&self, sample: Sample) -> Tried {
        let source = sample.from.address(sample.plan);
        let (socket, refused) = self.place(sample.from).run(move || {
            let tcp = sample.protocol == Protocol::Tcp;
            let kind = if tcp { Type::STREAM } else { Type::DGRAM };
            let socket = Socket::new(Domain::for_address(sample.to), kind, None).unwrap();
            socket.bind(&SocketAddr::new(source, 0).into()).unwrap();
            socket.set_nonblocking(true).unwrap();
            let connected = socket.connect(&sample.to.into());
            let sent = if tcp {
                connected
            } else {
                connected.and_then(|()| socket.send(b"?").map(drop))
            };
            // A drop in the output hook says that sending is not permitted; only a refusal says that.
            let refused = |error: &std::io::Error| error.kind() == ErrorKind::ConnectionRefused;
            let refused = sent.as_ref().is_err_and(refused);
            (socket, refused)
        });
        let local = socket.local_addr().unwrap().as_socket().unwrap();
        Tried {
            sample,
            local,
            socket,
            refused: std::cell::Cell::new(refused),
        }
    }
}

/// A flow whose first packet was sent.
struct Tried {
    sample: Sample,
    local: SocketAddr,
    socket: Socket,
    refused: std::cell::Cell<bool>,
}

/// What was seen of it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    /// No connection, no word.
    Nothing,
    Refused,
    Untouched,
    /// By whom it is served, and whether it is masqueraded.
    Served(IpAddr, bool),
}

impl Tried {
    fn ask_again(&self) {
        if self.sample.protocol == Protocol::Udp {
            // An error that this tells is the one that is waited for.
            let refused = |error: &std::io::Error| error.kind() == ErrorKind::ConnectionRefused;
            if self.socket.send(b"?").as_ref().is_err_and(refused) {
                self.refused.set(true);
            }
        }
    }

    fn seen(&self, flows: &[Flow]) -> Seen {
        let number = self.sample.protocol.number();
        let mine = flows.iter().find(|flow| {
            let original = &flow.original;
            original.protocol == number
                && (original.src, original.src_port) == (self.local.ip(), self.local.port())
                && (original.dst, original.dst_port) == (self.sample.to.ip(), self.sample.to.port())
        });
        if self.socket.take_error().unwrap().is_some() {
            self.refused.set(true);
        }
        match mine {
            Some(flow) if flow.status & STATUS_DNAT != 0 => {
                Seen::Served(flow.reply.src, flow.status & STATUS_SNAT != 0)
            }
            Some(_) => Seen::Untouched,
            None if self.refused.get() => Seen::Refused,
            None => Seen::Nothing,
        }
    }
}

fn agrees(seen: &Seen, wanted: &Answer) -> bool {
    match (seen, wanted) {
        (Seen::Nothing, Answer::Drop)
        | (Seen::Refused, Answer::Reject)
        | (Seen::Untouched, Answer::Untouched) => true,
        (Seen::Served(by, masqueraded), Answer::Serve(list, seen)) => {
            list.contains(by) && *masqueraded == seen.contains(by)
        }
        _ => false,
    }
}

/// Destinations (S-20, S-21, S-22, S-24, S-25, S-29, S-33), choice (S-40 to S-49, S-55), sources (S-60, S-62, S-63, S-65,
/// S-66), ranges (S-70, S-71) and the layout as a whole (S-229), in both families, whatever happens in whatever order.
#[test]
fn s340_the_kernel_does_with_every_flow_what_the_model_says() {
    let mut runner = TestRunner::new(ProptestConfig {
        cases: cases(12),
        max_shrink_iters: 12,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let step = (event(), proptest::collection::vec(sample(), SAMPLES));
    let steps = proptest::collection::vec(step, 1..16);
    let result = runner.run(&steps, |steps| {
        let mut bench = Bench::new();
        let mut tcp = Vec::new();
        for (event, samples) in steps {
            let (of_step, later): (Vec<_>, Vec<_>) = samples
                .into_iter()
                .partition(|sample| sample.protocol == Protocol::Udp);
            bench.happen(&event);
            bench.compare(&of_step)?;
            bench.proxy().assert_in_step();
            tcp.extend(later);
        }
        // A refused connection is known only after a second (S-341), so those of all steps are tried at the end.
        bench.compare(&tcp)?;
        // S-342
        bench.lab.node.nft(&["list", "ruleset"]);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
