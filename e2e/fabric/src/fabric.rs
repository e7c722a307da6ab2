//! The world's network as a whole: makes router, management network, nodes, clients and LB nodes, and ends them.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ipnet::Ipv4Net;
use onehop_runtime::clock::Clock;

use crate::client::{ClientNet, single_homed};
use crate::drops::{DropHook, DropLog};
use crate::ip::Batch;
use crate::lb::LbNet;
use crate::netns::Netns;
use crate::node::{NodeNet, NodePlan};
use crate::ownership::{AddressEvent, AfterCooldown};
use crate::process::Processes;
use crate::router::{Port, Router};
use crate::tag::WorldTag;
use crate::{Error, Result};

/// Called for each change of a pod address.
pub(crate) type AddressHook = Arc<dyn Fn(AddressEvent) + Send + Sync>;

/// Hardware address of the management network's bridge. One of its own choice would change with each node that joins, and
/// nodes that know the old one would reach nobody until they ask again.
const MANAGEMENT_MAC: &str = "02:00:ac:1e:00:01";

/// What a world may choose about its network.
#[derive(Clone)]
pub struct FabricConfig {
    /// The world's clock, for cool-downs.
    pub clock: Clock,
    /// How long an ended pod's address stays owned by its node (FC-75). The local profile has none.
    pub cooldown: Duration,
    /// What comes after (FC-76).
    pub after_cooldown: AfterCooldown,
    /// Told of each change of a pod address.
    pub on_address: Option<AddressHook>,
    /// Told of each packet that the router drops.
    pub on_drop: Option<DropHook>,
}

impl FabricConfig {
    /// The local profile: no cool-down, ended pods' addresses stay idle, nobody is told.
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            cooldown: Duration::ZERO,
            after_cooldown: AfterCooldown::default(),
            on_address: None,
            on_drop: None,
        }
    }
}

impl Default for FabricConfig {
    /// [`FabricConfig::new`] with the system's clock.
    fn default() -> Self {
        Self::new(Clock::system())
    }
}

/// The network of one world. Dropping it kills the world's processes and removes its namespaces.
pub struct Fabric {
    tag: WorldTag,
    config: FabricConfig,
    processes: Arc<Processes>,
    router: Router,
    management: Netns,
    // Released addresses that a pod of another node shall get (`AfterCooldown::OtherNode`).
    offered: Arc<Mutex<Vec<(Ipv4Addr, String)>>>,
    nodes: AtomicU8,
    clients: AtomicU8,
    lb_nodes: AtomicU8,
    // In the order of their first LB node: each has a subnet of its own.
    lb_zones: Mutex<Vec<String>>,
}

impl Fabric {
    /// Addresses of all pods of the cluster.
    pub const CLUSTER_CIDR: Ipv4Net = net([10, 244, 0, 0], 16);
    /// Addresses for Services.
    pub const SERVICE_CIDR: Ipv4Net = net([10, 96, 0, 0], 16);
    /// Addresses that load balancers may have.
    pub const LB_CIDR: Ipv4Net = net([198, 51, 100, 0], 24);
    /// The management namespace's address; the API servers listen on it.
    pub const MANAGEMENT: Ipv4Addr = Ipv4Addr::new(172, 30, 0, 1);

    /// Makes the router and the management network of a world.
    pub fn new(tag: WorldTag, config: FabricConfig) -> Result<Self> {
        let processes = Arc::new(Processes::start()?);
        let namespace = |role: &str| Netns::new(&tag, role, Arc::clone(&processes));
        let router = namespace("router")?;
        let drops = DropLog::start(&router, config.on_drop.clone())?;
        let router = Router::new(router, drops)?;
        let management = namespace("mgmt")?;
        let mut batch = Batch::default();
        batch
            .line(format!("link add br0 address {MANAGEMENT_MAC} type bridge"))
            .line("link set br0 up")
            .line(format!("addr add {}/24 dev br0", Self::MANAGEMENT));
        batch.run(&management)?;
        Ok(Self {
            tag,
            config,
            processes,
            router,
            management,
            offered: Arc::default(),
            nodes: AtomicU8::new(0),
            clients: AtomicU8::new(0),
            lb_nodes: AtomicU8::new(0),
            lb_zones: Mutex::default(),
        })
    }

    /// The world's tag.
    pub fn tag(&self) -> &WorldTag {
        &self.tag
    }

    /// The VPC router.
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// The management namespace (bridge, [`Fabric::MANAGEMENT`]): API servers and the controller live here.
    pub fn management(&self) -> &Netns {
        &self.management
    }

    /// Makes a node with a primary interface (its address), a secondary one (its pods' addresses) and one to the
    /// management network. The n-th node's pods live in `10.244.<n>.0/24`.
    pub fn add_node(&self, name: &str) -> Result<NodeNet> {
        let index = count(&self.nodes, "nodes")?;
        let ns = self.namespace(&format!("node-{name}"))?;
        let plan = NodePlan {
            name: name.to_owned(),
            index,
            tag: self.tag.clone(),
            processes: Arc::clone(&self.processes),
            router: self.router.clone(),
            clock: self.config.clock,
            cooldown: self.config.cooldown,
            after_cooldown: self.config.after_cooldown,
            on_address: self.config.on_address.clone(),
            on_drop: self.config.on_drop.clone(),
            offered: Arc::clone(&self.offered),
        };
        let mut batch = Batch::default();
        batch
            .line(format!(
                "link add n{index} type veth peer name mgmt0 netns {}",
                ns.name()
            ))
            .line(format!("link set n{index} master br0 up"));
        batch.run(&self.management)?;
        let node = NodeNet::new(ns, plan)?;
        Batch::default()
            .sends(&format!("n{index}"))
            .run(&self.management)?;
        Ok(node)
    }

    /// Makes a node whose pods reach the management network, too, as the node (IPv4 only).
    pub fn add_node_inside(&self, name: &str) -> Result<NodeNet> {
        let node = self.add_node(name)?;
        node.open_management(&self.management)?;
        Ok(node)
    }

    /// Makes a node whose pods a real container runtime cables, with any address of [`NodeNet::pod_range`].
    pub fn add_real_node(&self, name: &str) -> Result<NodeNet> {
        let node = self.add_node(name)?;
        node.open_pod_range(&self.management)?;
        Ok(node)
    }

    /// Gives a client a link to the management network, as an administrator has who is both inside and outside.
    pub fn admit(&self, client: &ClientNet) -> Result<()> {
        let number = client.address.octets()[3];
        let (port, address) = (format!("m{number}"), host([172, 30, 0], 220 + number % 30));
        let mut batch = Batch::default();
        batch
            .line(format!(
                "link add {port} type veth peer name mgmt0 netns {}",
                client.ns.name()
            ))
            .line(format!("link set {port} master br0 up"));
        batch.run(&self.management)?;
        let mut batch = Batch::default();
        batch
            .line(format!("addr add {address}/24 dev mgmt0"))
            .line("link set mgmt0 up");
        batch.run(&client.ns)?;
        Batch::default().sends(&port).run(&self.management)
    }

    /// Makes a client, outside the VPC (203.0.113.0/24) or inside it (10.0.3.0/24).
    pub fn add_client(&self, name: &str, outside: bool) -> Result<ClientNet> {
        let index = count(&self.clients, "clients")?;
        let ns = self.namespace(&format!("client-{name}"))?;
        let subnet = if outside { [203, 0, 113] } else { [10, 0, 3] };
        let (address, gateway) = (host(subnet, 10 + index), host(subnet, 1));
        let port = format!("c{index}");
        self.router.add_port(&Port {
            name: &port,
            peer: (&ns, "eth0"),
            gateway,
            address,
            source_check: true,
        })?;
        single_homed(&ns, "eth0", address, gateway)?;
        self.router.ports_send(&[&port])?;
        Ok(ClientNet { ns, address })
    }

    /// Makes an LB node of `zone`, with an address of that zone's subnet (FC-61): 10.0.9.0/24 is the first
    /// zone's, 10.0.10.0/24 the second's. Packets to LB addresses that its datapath does not take are dropped silently.
    pub fn add_lb_node(&self, zone: &str) -> Result<LbNet> {
        let index = count(&self.lb_nodes, "LB nodes")?;
        let ns = self.namespace(&format!("lb-{zone}-{index}"))?;
        let subnet = self.lb_subnet(zone);
        let (address, gateway) = (host(subnet, 10 + index), host(subnet, 1));
        let port = format!("lb{index}");
        ns.forward()?;
        let link = Port {
            name: &port,
            peer: (&ns, "eth0"),
            gateway,
            address,
            source_check: false,
        };
        self.router.add_lb_port(&link, u32::from(index))?;
        single_homed(&ns, "eth0", address, gateway)?;
        self.router.ports_send(&[&port])?;
        Batch::default()
            .line(format!("route add blackhole {}", Self::LB_CIDR))
            .run(&ns)?;
        Batch::v6()
            .line(format!("route add blackhole {}", Self::LB_CIDR6))
            .run(&ns)?;
        Ok(LbNet {
            ns,
            zone: zone.to_owned(),
            address,
            port,
            number: index,
        })
    }

    fn lb_subnet(&self, zone: &str) -> [u8; 3] {
        let mut zones = lock(&self.lb_zones);
        let known = zones.iter().position(|known| known == zone);
        let at = known.unwrap_or_else(|| {
            zones.push(zone.to_owned());
            zones.len() - 1
        });
        // There are at most 200 LB nodes, and so zones.
        [10, 0, 9 + u8::try_from(at).unwrap_or(u8::MAX - 9)]
    }

    /// Kills the world's processes and removes the names of its namespaces; what still holds a socket in one keeps
    /// that one alive, nameless. Dropping the fabric does the same.
    pub fn end(&self) -> Result<()> {
        self.processes.end();
        self.tag.remove_namespaces()?;
        self.tag.remove_cgroups()
    }

    fn namespace(&self, role: &str) -> Result<Netns> {
        Netns::new(&self.tag, role, Arc::clone(&self.processes))
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(tag = self.tag.as_str(), %error, "world not removed");
        }
    }
}

const fn net(address: [u8; 4], prefix: u8) -> Ipv4Net {
    let [a, b, c, d] = address;
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

pub(crate) const fn host(subnet: [u8; 3], host: u8) -> Ipv4Addr {
    Ipv4Addr::new(subnet[0], subnet[1], subnet[2], host)
}

/// The next number of a kind, from 1.
fn count(counter: &AtomicU8, what: &str) -> Result<u8> {
    let number = counter.fetch_add(1, Ordering::Relaxed) + 1;
    if number > 200 {
        Err(Error::Invalid(format!("more than 200 {what} in one world")))
    } else {
        Ok(number)
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
