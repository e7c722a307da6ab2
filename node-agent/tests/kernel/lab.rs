//! A node of both families with everything around it, and the planner's own output in its kernel.
//!
//! ```text
//! world (10.0.1.9, clients, pods of other nodes) ── up0 ─┐
//!                                                        node 10.0.1.1
//! pods 1 to 3 (10.244.1.1 to .3)            ── pod1 … ──┘
//! ```
//! The same with fd00 addresses. Namespaces belong to threads and end with them.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use onehop_core::endpoint::Slice;
use onehop_core::id::{NodeName, Protocol};
use onehop_core::node::NodeView;
use onehop_core::service::{Ingress, IpMode, ServiceKind, ServiceSpec};
use onehop_core::time::Time;
use onehop_node_agent::args::Mode;
use onehop_node_agent::collection::Step;
use onehop_node_agent::commit::{Features, Kernel};
use onehop_node_agent::planner::{Batch, Planner};
use onehop_node_agent::state::{Change, State};
use onehop_node_agent::sys::links::links;
use onehop_node_agent::table::element::{Dataplane, Elements, Family};
use onehop_node_agent::table::layout::Options;
use onehop_runtime::watch::ObjectKey;
use serde_json::{Value, json};

use crate::common::{NODE, Stands, lists, port, service, synced};
pub(crate) use crate::place::Place;
use crate::place::own_descriptors;

const DEADLINE: Duration = Duration::from_secs(10);

/// The addresses of one family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan(pub(crate) Family);

impl Plan {
    pub(crate) const BOTH: [Self; 2] = [Self(Family::V4), Self(Family::V6)];

    fn pick(self, v4: &str, v6: &str) -> IpAddr {
        match self.0 {
            Family::V4 => v4.parse().unwrap(),
            Family::V6 => v6.parse().unwrap(),
        }
    }

    pub(crate) fn node(self) -> IpAddr {
        self.pick("10.0.1.1", "fd00:1::1")
    }

    pub(crate) fn second_node_address(self) -> IpAddr {
        self.pick("10.0.2.1", "fd00:2::1")
    }

    /// The node's neighbour, by which everything else is reached.
    pub(crate) fn router(self) -> IpAddr {
        self.pick("10.0.1.9", "fd00:1::9")
    }

    pub(crate) fn client(self, last: u8) -> IpAddr {
        self.pick(
            &format!("203.0.113.{last}"),
            &format!("2001:db8:113::{last:x}"),
        )
    }

    pub(crate) fn pod(self, last: u8) -> IpAddr {
        self.pick(
            &format!("10.244.1.{last}"),
            &format!("fd00:244:1::{last:x}"),
        )
    }

    pub(crate) fn remote_pod(self, last: u8) -> IpAddr {
        self.pick(
            &format!("10.244.2.{last}"),
            &format!("fd00:244:2::{last:x}"),
        )
    }

    pub(crate) fn cluster_ip(self, last: u8) -> IpAddr {
        self.pick(&format!("10.96.0.{last}"), &format!("fd00:96::{last:x}"))
    }

    pub(crate) fn vip(self, last: u8) -> IpAddr {
        self.pick(
            &format!("198.51.100.{last}"),
            &format!("2001:db8:51::{last:x}"),
        )
    }

    fn bits(self) -> u8 {
        match self.0 {
            Family::V4 => 32,
            Family::V6 => 128,
        }
    }
}

/// Pods of each kind, clients, and Services' addresses are numbered from 1.
pub(crate) const PODS: u8 = 3;
pub(crate) const CLIENTS: u8 = 3;

pub(crate) struct Lab {
    pub(crate) node: Place,
    pods: Vec<Place>,
    pub(crate) world: Place,
}

impl Lab {
    pub(crate) fn new() -> Self {
        own_descriptors();
        let (node, world) = (Place::new(), Place::new());
        let pods: Vec<Place> = (1..=PODS).map(|_| Place::new()).collect();
        for name in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
            node.sysctl(name, "1");
        }
        world.sysctl("net/ipv4/conf/all/accept_redirects", "0");
        // Else the kernel says only a few refusals a second to one client.
        for name in ["net/ipv4/icmp_ratelimit", "net/ipv6/icmp/ratelimit"] {
            node.sysctl(name, "0");
        }
        let join = |link: &str, place: &Place, inside: &str| {
            let far = place.1;
            node.ip(&format!(
                "link add {link} type veth peer name {inside} netns {far}"
            ));
            for (place, link) in [(&node, link), (place, inside)] {
                // Where one link leads back to it, a neighbour is not to be told a shorter way.
                place.sysctl(&format!("net/ipv4/conf/{link}/accept_redirects"), "0");
                place.sysctl(&format!("net/ipv6/conf/{link}/accept_redirects"), "0");
                place.sysctl(&format!("net/ipv6/conf/{link}/accept_dad"), "0");
                place.ip(&format!("link set {link} up"));
            }
        };
        join("up0", &world, "w0");
        for (n, pod) in (1..).zip(&pods) {
            join(&format!("pod{n}"), pod, "p0");
        }
        let lab = Self { node, pods, world };
        for plan in Plan::BOTH {
            lab.addresses(plan);
        }
        lab
    }

    /// The namespace of a pod of this node.
    pub(crate) fn pod(&self, number: u8) -> &Place {
        &self.pods[usize::from(number) - 1]
    }

    fn addresses(&self, plan: Plan) {
        let (long, bits) = (if plan.bits() == 32 { 24 } else { 64 }, plan.bits());
        let add = |place: &Place, addr: IpAddr, bits: u8, link: &str| {
            place.ip(&format!(
                "address add {addr}/{bits} dev {link}{}",
                nodad(addr)
            ));
        };
        add(&self.node, plan.node(), long, "up0");
        add(&self.node, plan.second_node_address(), bits, "lo");
        add(&self.world, plan.router(), long, "w0");
        self.node
            .ip(&format!("route add default via {}", plan.router()));
        self.world
            .ip(&format!("route add default via {}", plan.node()));
        // One next hop stands for the way of pods back.
        let gateway = plan.pick("169.254.1.1", "fe80::1");
        let (length, onlink) = if bits == 32 {
            (32, " onlink")
        } else {
            (64, "")
        };
        for last in 1..=PODS {
            let (pod, link) = (self.pod(last), format!("pod{last}"));
            add(&self.node, gateway, length, &link);
            add(pod, plan.pod(last), bits, "p0");
            self.node
                .ip(&format!("route add {}/{bits} dev {link}", plan.pod(last)));
            pod.ip(&format!("route add default via {gateway} dev p0{onlink}"));
            add(&self.world, plan.remote_pod(last), bits, "lo");
            for (place, addr) in [(pod, plan.pod(last)), (&self.world, plan.remote_pod(last))] {
                place.serve(SocketAddr::new(addr, 8080));
            }
        }
        for last in 1..=CLIENTS {
            add(&self.world, plan.client(last), bits, "lo");
        }
    }

    /// The agent's way from objects to this node's kernel.
    pub(crate) fn proxy(&self, options: &Options) -> Proxy {
        self.proxy_on(options, Features::detect())
    }

    pub(crate) fn proxy_on(&self, options: &Options, features: Features) -> Proxy {
        self.proxy_in(Mode::Beside, options, features)
    }

    pub(crate) fn proxy_in(&self, mode: Mode, options: &Options, features: Features) -> Proxy {
        self.proxy_limited(mode, options, features, usize::MAX)
    }

    /// The same with a limit to the size of one batch.
    pub(crate) fn proxy_limited(
        &self,
        mode: Mode,
        options: &Options,
        features: Features,
        limit: usize,
    ) -> Proxy {
        let options = options.clone();
        let millis = Arc::new(AtomicI64::new(0));
        let clock = Arc::clone(&millis);
        let now = Box::new(move || Time::from_millis(clock.load(Ordering::Relaxed)));
        let (kernel, held, links) = self.node.run(move || {
            let mut kernel = Kernel::open(&options, features, now).unwrap();
            if limit < usize::MAX {
                kernel = kernel.with_batch_limit(limit);
            }
            let held = kernel.read_back().unwrap().expect("the tables are free");
            (kernel, held, links().unwrap())
        });
        let mut planner = Planner::new(held);
        planner.set_links(&links);
        let mut state = synced(mode);
        for change in lists(own_node()) {
            state.apply(change);
        }
        Proxy {
            state,
            planner,
            kernel,
            addresses: Plan::BOTH.map(Plan::node).to_vec(),
            millis,
        }
    }
}

fn nodad(addr: IpAddr) -> &'static str {
    if addr.is_ipv6() { " nodad" } else { "" }
}

/// The Node object of the lab's node.
pub(crate) fn own_node() -> NodeView {
    NodeView {
        name: NodeName::from(NODE),
        zone: Some("a".into()),
        addresses: Plan::BOTH.map(Plan::node).to_vec(),
        ..NodeView::default()
    }
}

/// State, planner and kernel of one node.
pub(crate) struct Proxy {
    pub(crate) state: State,
    pub(crate) planner: Planner,
    pub(crate) kernel: Kernel,
    pub(crate) addresses: Vec<IpAddr>,
    /// The time that the kernel side sees.
    millis: Arc<AtomicI64>,
}

impl Proxy {
    /// Lets time go by.
    pub(crate) fn pass(&self, time: Duration) {
        let millis = i64::try_from(time.as_millis()).unwrap();
        self.millis.fetch_add(millis, Ordering::Relaxed);
    }

    /// Commits what these changes come to.
    pub(crate) fn apply(&mut self, changes: impl IntoIterator<Item = Change>) -> Batch {
        for change in changes {
            self.state.apply(change);
        }
        let now = Time::from_millis(self.millis.load(Ordering::Relaxed));
        self.state.settle_windows(now);
        let batch = self
            .planner
            .plan(&mut self.state, &self.addresses, usize::MAX);
        self.kernel.commit(&batch.change).unwrap();
        batch
    }

    /// What the kernel holds is what the planner believes.
    pub(crate) fn assert_in_step(&mut self) {
        let held: Elements = self.kernel.read_back().unwrap().unwrap();
        assert_eq!(held, self.planner.elements());
    }
}

/// An endpoint of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) address: IpAddr,
    pub(crate) local: bool,
    pub(crate) stands: Stands,
}

pub(crate) fn ready(address: IpAddr) -> At {
    let local = Plan::BOTH
        .iter()
        .any(|plan| (1..=PODS).any(|n| plan.pod(n) == address));
    At {
        address,
        local,
        stands: Stands::Ready,
    }
}

/// A slice of a Service for port 8080 of these endpoints, which are of one family.
pub(crate) fn endpoints(name: &str, service: &str, protocol: Protocol, at: &[At]) -> Change {
    let v6 = at.first().is_some_and(|at| at.address.is_ipv6());
    let list: Vec<Value> = at
        .iter()
        .map(|at| {
            json!({
                "addresses": [at.address],
                "nodeName": if at.local { NODE } else { "n2" },
                "conditions": {
                    "ready": at.stands == Stands::Ready,
                    "serving": at.stands != Stands::NotReady,
                    "terminating": at.stands == Stands::ServingTerminating,
                },
            })
        })
        .collect();
    let family = if name.ends_with("IPv6") || v6 {
        "IPv6"
    } else {
        "IPv4"
    };
    let slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": family,
        "endpoints": list,
        "ports": [{"name": "", "port": 8080, "protocol": protocol.as_str()}],
    }))
    .unwrap();
    let key = ObjectKey {
        namespace: "default".to_owned(),
        name: name.to_owned(),
    };
    Change::Slice(Step::Apply(key, Slice::read(&slice).unwrap().0))
}

/// Waits until something is so.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < DEADLINE, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A Service of both families at every kind of frontend.
pub(crate) fn everywhere(
    name: &str,
    number: u8,
    protocol: Protocol,
    node_port: u16,
) -> ServiceSpec {
    let ingress = |plan: Plan| Ingress {
        address: Some(plan.vip(number)),
        hostname: None,
        ports: BTreeSet::new(),
        mode: IpMode::Vip,
    };
    ServiceSpec {
        kind: ServiceKind::LoadBalancer,
        cluster_ips: Plan::BOTH.map(|plan| plan.cluster_ip(number)).to_vec(),
        ingress: Plan::BOTH.map(ingress).to_vec(),
        ports: vec![port(protocol, 80, Some(node_port))],
        ..service(name, number)
    }
}

/// The endpoints of a Service in both families.
pub(crate) fn both(name: &str, protocol: Protocol, of: impl Fn(Plan) -> Vec<At>) -> Vec<Change> {
    let slice = |plan: Plan| endpoints(&format!("{name}-{}", plan.0), name, protocol, &of(plan));
    Plan::BOTH.map(slice).to_vec()
}

/// The distinct servers among answers.
pub(crate) fn servers(answers: &[Result<(IpAddr, IpAddr), ErrorKind>]) -> BTreeSet<IpAddr> {
    answers.iter().map(|answer| answer.unwrap().0).collect()
}
