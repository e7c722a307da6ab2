//! The smallest world with packets: a router, an LB node, clients, and targets that tell who they are
//! and whom they see. Needs root.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use e2e_cloud::datapath::NetNode;
use e2e_cloud::engine::{
    Config, Frontend, GroupId, GroupSpec, LbId, LbSpec, ListenerKey, Profile, TargetSpec,
    TargetState,
};
use e2e_cloud::scale::Scale;
use e2e_cloud::{Cloud, Driver};
use e2e_fabric::{ClientNet, Fabric, FabricConfig, LbNet, WorldTag};
use onehop_runtime::clock::Clock;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::AbortHandle;

use super::common::{FRONT, START};

/// How long a client waits for what should come, and for what should not.
pub const PATIENCE: Duration = Duration::from_secs(3);
pub const SILENCE: Duration = Duration::from_millis(700);

pub struct World {
    pub fabric: Fabric,
    pub lb: LbNet,
    pub node: NetNode,
    pub driver: Driver,
    pub client: ClientNet,
}

impl World {
    /// Waits until the LB node has no flow of this client socket any more.
    pub async fn until_forgotten(&self, client: SocketAddr) {
        let there = || {
            let flows = self.node.flows().unwrap();
            flows.iter().any(|flow| flow.client == client)
        };
        let gone = async {
            while there() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), gone)
            .await
            .unwrap();
    }

    pub fn new() -> Self {
        Self::of(Profile::local(), 1)
    }

    /// A cloud that behaves so, this many times faster than the wall.
    pub fn of(profile: Profile, speed: u32) -> Self {
        let tag = WorldTag::new().unwrap();
        let fabric = Fabric::new(tag, FabricConfig::default()).unwrap();
        let clock = Clock::fixed(START);
        let config = Config {
            profile,
            seed: 1,
            scale: Scale::new(START, speed),
            ranges: vec![Fabric::LB_CIDR.into()],
        };
        let driver = Driver::start(Cloud::new(config, clock));
        let lb = fabric.add_lb_node("a").unwrap();
        let (_, node) = NetNode::attach(lb.clone(), fabric.router().clone(), &driver).unwrap();
        let client = fabric.add_client("outside", true).unwrap();
        Self {
            fabric,
            lb,
            node,
            driver,
            client,
        }
    }

    pub fn cloud(&self) -> &Cloud {
        self.driver.cloud()
    }

    /// A group with these targets, all healthy, behind `FRONT`:80.
    pub async fn balance(
        &self,
        group: GroupSpec,
        lb: LbSpec,
        targets: &[&Target],
    ) -> (LbId, GroupId) {
        let key = ListenerKey {
            port: 80,
            protocol: group.protocol,
        };
        let (lb, group) = self.cloud().with(|engine, now| {
            let group = engine.create_group(now, "g", group).unwrap().id;
            let lb = engine.create_lb(now, "lb", lb).unwrap().id;
            engine.put_listener(now, &lb, key, &group).unwrap();
            (lb, group)
        });
        self.register(&group, targets);
        for target in targets {
            self.until(&group, target.at, TargetState::Healthy).await;
        }
        self.driver.settled().await;
        (lb, group)
    }

    pub async fn update(&self, group: &GroupId, spec: GroupSpec) {
        self.cloud()
            .with(|engine, now| engine.update_group(now, group, spec))
            .unwrap();
        self.driver.settled().await;
    }

    pub fn register(&self, group: &GroupId, targets: &[&Target]) {
        let spec = |target: &&Target| TargetSpec {
            target: target.at,
            zone: None,
        };
        let specs = targets.iter().map(spec).collect();
        self.cloud()
            .with(|engine, now| engine.register(now, group, specs))
            .unwrap();
    }

    pub async fn deregister(&self, group: &GroupId, target: &Target) {
        self.cloud()
            .with(|engine, now| engine.deregister(now, group, &[target.at]))
            .unwrap();
        self.driver.settled().await;
    }

    pub fn state(&self, group: &GroupId, target: SocketAddr) -> TargetState {
        self.cloud()
            .with(|engine, now| engine.targets(now, group, &[target]))
            .unwrap()[0]
            .state
    }

    /// Waits for a reported state and for the LB node to forward by it.
    pub async fn until(&self, group: &GroupId, target: SocketAddr, wanted: TargetState) {
        let mut turns = self.cloud().turns();
        let reached = async {
            while self.state(group, target) != wanted {
                turns.borrow_and_update();
                turns.changed().await.unwrap();
            }
        };
        if tokio::time::timeout(Duration::from_secs(15), reached)
            .await
            .is_err()
        {
            let log = self.cloud().look(|engine| engine.log().json_lines());
            panic!("{target} did not become {wanted:?}:\n{log}");
        }
        self.driver.settled().await;
    }

    /// A new connection to `FRONT`:80, with the first line that its target says.
    pub async fn connect(&self) -> std::io::Result<Talk> {
        Talk::open(&self.client, front(80)).await
    }

    /// A UDP socket of the client.
    pub fn udp(&self) -> UdpSocket {
        let address = SocketAddr::new(self.client.address().into(), 0);
        let socket = self.client.netns().udp_socket(address).unwrap();
        socket.set_nonblocking(true).unwrap();
        UdpSocket::from_std(socket).unwrap()
    }
}

pub fn front(port: u16) -> SocketAddr {
    SocketAddr::new(FRONT.parse().unwrap(), port)
}

pub fn frontend(protocol: e2e_cloud::engine::Protocol) -> Frontend {
    Frontend {
        address: FRONT.parse().unwrap(),
        protocol,
        port: 80,
    }
}

/// One request and answer over UDP; `None` when nothing comes.
pub async fn ask(socket: &UdpSocket, patience: Duration) -> Option<(String, IpAddr)> {
    socket.send_to(b"who", front(80)).await.unwrap();
    let mut buffer = [0; 200];
    let answer = tokio::time::timeout(patience, socket.recv_from(&mut buffer))
        .await
        .ok()?;
    let (len, from) = answer.unwrap();
    assert_eq!(from, front(80), "the answer comes from the frontend");
    Some(split(std::str::from_utf8(&buffer[..len]).unwrap()))
}

fn split(line: &str) -> (String, IpAddr) {
    let (name, peer) = line.trim().split_once(' ').unwrap();
    (name.to_owned(), peer.parse().unwrap())
}

/// An open connection of a client.
pub struct Talk {
    stream: BufReader<TcpStream>,
    pub client: SocketAddr,
    /// Who answered.
    pub target: String,
    /// Whom that target sees.
    pub seen: IpAddr,
}

impl Talk {
    pub async fn open(client: &ClientNet, to: SocketAddr) -> std::io::Result<Self> {
        let connect = async {
            client
                .netns()
                .tcp_stream(to)
                .await
                .map_err(|error| match error {
                    e2e_fabric::Error::Io { source, .. } => source,
                    other => panic!("{other}"),
                })
        };
        let stream = tokio::time::timeout(PATIENCE, connect).await??;
        let client = stream.local_addr()?;
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        tokio::time::timeout(PATIENCE, stream.read_line(&mut line)).await??;
        let (target, seen) = split(&line);
        Ok(Self {
            stream,
            client,
            target,
            seen,
        })
    }

    /// Says something and waits for the echo.
    pub async fn echo(&mut self) -> std::io::Result<()> {
        self.stream.get_mut().write_all(b"hello\n").await?;
        let mut line = String::new();
        let read = tokio::time::timeout(PATIENCE, self.stream.read_line(&mut line)).await??;
        if read == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        assert_eq!(line, "hello\n");
        Ok(())
    }
}

/// A target: greets with its name and the peer's address, then echoes lines; UDP likewise.
pub struct Target {
    pub name: String,
    pub at: SocketAddr,
    pub net: ClientNet,
    serving: Vec<AbortHandle>,
}

impl Target {
    pub fn new(world: &World, name: &str) -> Self {
        let net = world.fabric.add_client(name, false).unwrap();
        let at = SocketAddr::new(net.address().into(), 8080);
        let mut target = Self {
            name: name.to_owned(),
            at,
            net,
            serving: vec![],
        };
        target.start();
        target
    }

    pub fn start(&mut self) {
        let listener = self.net.netns().tcp_listener(self.at).unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        self.serving
            .push(tokio::spawn(serve(listener, self.name.clone())).abort_handle());
        let socket = self.net.netns().udp_socket(self.at).unwrap();
        socket.set_nonblocking(true).unwrap();
        let socket = UdpSocket::from_std(socket).unwrap();
        self.serving
            .push(tokio::spawn(answer(socket, self.name.clone())).abort_handle());
    }

    /// Stops listening for TCP; UDP goes on.
    pub fn stop_tcp(&mut self) {
        self.serving.remove(0).abort();
    }

    /// Stops listening. Open connections go on.
    pub fn stop(&mut self) {
        self.serving.drain(..).for_each(|task| task.abort());
    }
}

async fn serve(listener: TcpListener, name: String) {
    while let Ok((stream, peer)) = listener.accept().await {
        let greeting = format!("{name} {}\n", peer.ip());
        tokio::spawn(async move {
            let mut stream = BufReader::new(stream);
            stream.get_mut().write_all(greeting.as_bytes()).await?;
            let mut line = String::new();
            while stream.read_line(&mut line).await? > 0 {
                stream.get_mut().write_all(line.as_bytes()).await?;
                line.clear();
            }
            std::io::Result::Ok(())
        });
    }
}

async fn answer(socket: UdpSocket, name: String) {
    let mut buffer = [0; 200];
    while let Ok((_, peer)) = socket.recv_from(&mut buffer).await {
        let text = format!("{name} {}", peer.ip());
        let _ = socket.send_to(text.as_bytes(), peer).await;
    }
}
