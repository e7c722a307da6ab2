//! What a Network Load Balancer does that others do not, on packets: headers of the PROXY protocol, TLS, security groups.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail the test"
)]

mod common;
#[path = "common/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use common::{FRONT, lb, tcp_group};
use e2e_apiserver::pki::Authority;
use e2e_cloud::Certificate;
use e2e_cloud::engine::{
    GroupId, GroupSpec, HealthCheck, LbId, ListenerKey, Protocol, TargetSpec, What,
};
use e2e_fabric::{Admit, ClientNet};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use world::{PATIENCE, SILENCE, Talk, Target, World, front};

const HTTP: ListenerKey = ListenerKey {
    port: 80,
    protocol: Protocol::Tcp,
};
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
const HELLO: &[u8] = b"hello";

/// A TCP group that is asked ten times a second.
fn quick_group() -> GroupSpec {
    let mut spec = tcp_group("web");
    spec.health = spec.health.map(|check| HealthCheck {
        interval: Duration::from_millis(100),
        ..check
    });
    spec
}

/// A target that tells everything that arrived on each connection, with who sent it, once its first bytes are there.
struct Ear {
    at: SocketAddr,
    heard: mpsc::UnboundedReceiver<(SocketAddr, Vec<u8>)>,
    _net: ClientNet,
}

impl Ear {
    fn new(world: &World) -> Self {
        let net = world.fabric.add_client("ear", false).unwrap();
        let at = SocketAddr::new(net.address().into(), 8080);
        let listener = net.netns().tcp_listener(at).unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        let (tell, heard) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, from)) = listener.accept().await {
                let tell = tell.clone();
                tokio::spawn(async move {
                    let mut bytes = vec![];
                    // A probe ends the connection; a client waits for the answer.
                    while !bytes.ends_with(HELLO) && stream.read_buf(&mut bytes).await? > 0 {}
                    let answered = stream.write_all(b"heard").await;
                    let _ = tell.send((from, bytes));
                    answered
                });
            }
        });
        Self {
            at,
            heard,
            _net: net,
        }
    }

    /// What the next connection from `from` brought.
    async fn next_from(&mut self, from: IpAddr) -> (SocketAddr, Vec<u8>) {
        let next = async {
            loop {
                let (who, bytes) = self.heard.recv().await.unwrap();
                if who.ip() == from {
                    return (who, bytes);
                }
            }
        };
        tokio::time::timeout(PATIENCE, next).await.unwrap()
    }
}

fn listen(world: &World, group: GroupSpec, target: SocketAddr) -> (LbId, GroupId) {
    world.cloud().with(|engine, now| {
        let group = engine.create_group(now, "g", group).unwrap().id;
        let lb = engine.create_lb(now, "lb", lb("svc", &[FRONT])).unwrap().id;
        engine.put_listener(now, &lb, HTTP, &group).unwrap();
        let zone = None;
        let targets = vec![TargetSpec { target, zone }];
        engine.register(now, &group, targets).unwrap();
        (lb, group)
    })
}

/// Says hello to the frontend and hears the answer; the client's own address.
async fn hello(world: &World) -> SocketAddr {
    let mut stream = world.client.netns().tcp_stream(front(80)).await.unwrap();
    let local = stream.local_addr().unwrap();
    stream.write_all(HELLO).await.unwrap();
    let mut answer = vec![0; 5];
    let read = stream.read_exact(&mut answer);
    tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
    assert_eq!(answer, b"heard");
    local
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fc_t15_fc32_fc66_a_header_of_the_proxy_protocol_is_before_each_flow_and_each_probe() {
    let world = World::new();
    let mut ear = Ear::new(&world);
    let (client, node) = (world.client.address(), world.lb.address());
    let mut spec = quick_group();
    let (_, group) = listen(&world, spec.clone(), ear.at);
    let healthy = e2e_cloud::engine::TargetState::Healthy;
    world.until(&group, ear.at, healthy).await;
    // Off: nothing but what the client said.
    let from = hello(&world).await;
    assert_eq!(
        ear.next_from(client.into()).await,
        (from, HELLO.to_vec()),
        "FC-T15"
    );
    assert_eq!(ear.next_from(node.into()).await.1, b"", "FC-T15: a probe");
    for preserved in [true, false] {
        spec.proxy_protocol = true;
        spec.preserve_client_ip = Some(preserved);
        let update = |engine: &mut e2e_cloud::engine::Engine, now| {
            engine.update_group(now, &group, spec.clone()).unwrap();
        };
        world.cloud().with(update);
        world.driver.settled().await;
        let from = hello(&world).await;
        let seen: IpAddr = if preserved {
            client.into()
        } else {
            node.into()
        };
        let brought = loop {
            let (who, bytes) = ear.next_from(seen).await;
            if bytes.ends_with(HELLO) {
                // FC-29: whom the target sees is the other attribute's affair.
                assert_eq!(who == from, preserved, "FC-66");
                break bytes;
            }
        };
        let mut wanted = [SIGNATURE, &[0x21, 0x11, 0, 12]].concat();
        wanted.extend(client.octets());
        wanted.extend(FRONT.parse::<Ipv4Addr>().unwrap().octets());
        wanted.extend(from.port().to_be_bytes());
        wanted.extend(80_u16.to_be_bytes());
        wanted.extend(HELLO);
        assert_eq!(brought, wanted, "FC-66");
    }
    let mut probe = vec![];
    // One that was under way when the attribute changed may still come.
    for _ in 0..3 {
        probe = ear.next_from(node.into()).await.1;
    }
    assert_eq!(probe, [SIGNATURE, &[0x20, 0, 0, 0]].concat(), "FC-32");
    let relayed =
        |what: &What| matches!(what, What::FlowRelayed { target, .. } if *target == ear.at);
    let logged = world
        .cloud()
        .look(|engine| engine.log().after(0).filter(|e| relayed(&e.what)).count());
    assert_eq!(logged, 2, "FC-66: the log marks those flows and no other");
}

/// A client's TLS over a connection to the frontend.
async fn tls(
    world: &World,
    ca: &str,
) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = world.client.netns().tcp_stream(front(80)).await.unwrap();
    let name = ServerName::try_from("www.example.com").unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    tokio::time::timeout(PATIENCE, connector.connect(name, stream)).await?
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fc65_tls_ends_at_the_listener_and_targets_hear_what_was_in_it() {
    let world = World::new();
    let mut ear = Ear::new(&world);
    let (lb, group) = listen(&world, quick_group(), ear.at);
    let healthy = e2e_cloud::engine::TargetState::Healthy;
    world.until(&group, ear.at, healthy).await;
    let authority = Authority::new().unwrap();
    let issued = authority.server(&["www.example.com".to_owned()]).unwrap();
    let certificate = Certificate {
        certificate: issued.certificate_pem(),
        key: issued.key_pem(),
    };
    let set = |certificate: Option<Certificate>| {
        let certificate = certificate.map(Arc::new);
        world
            .cloud()
            .with(|engine, now| engine.set_tls(now, &lb, HTTP, certificate))
            .unwrap();
    };
    set(Some(certificate));
    world.driver.settled().await;
    let mut stream = tls(&world, authority.pem()).await.unwrap();
    stream.write_all(HELLO).await.unwrap();
    let mut answer = vec![0; 5];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, b"heard", "FC-65");
    let heard = ear.next_from(world.client.address().into()).await;
    assert_eq!(heard.1, HELLO, "FC-65");
    // Another authority's client does not believe it.
    let other = Authority::new().unwrap();
    let refused = tls(&world, other.pem()).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidData, "FC-65");
    set(None);
    world.driver.settled().await;
    hello(&world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fc79_only_what_a_rule_lets_through_reaches_load_balancers_and_targets() {
    let world = World::new();
    let one = Target::new(&world, "one");
    let other = world.fabric.add_client("other", true).unwrap();
    world
        .balance(quick_group(), lb("svc", &[FRONT]), &[&one])
        .await;
    let address: Ipv4Addr = FRONT.parse().unwrap();
    let router = world.fabric.router();
    let served =
        async |from: &ClientNet| match tokio::time::timeout(SILENCE, Talk::open(from, front(80)))
            .await
        {
            Ok(talk) => Some(talk.unwrap()),
            Err(_) => None,
        };
    let of_client = Admit {
        source: format!("{}/32", world.client.address()).parse().unwrap(),
        ..Admit::from_all(6, 80..=80)
    };
    world
        .lb
        .admit(&BTreeMap::from([(address, vec![of_client])]))
        .unwrap();
    let mut old = served(&world.client)
        .await
        .expect("FC-79: its source is let through");
    assert!(served(&other).await.is_none(), "FC-79: another source");
    world
        .lb
        .admit(&BTreeMap::from([(
            address,
            vec![Admit::from_all(6, 81..=90)],
        )]))
        .unwrap();
    assert!(served(&world.client).await.is_none(), "FC-79: another port");
    // What is established goes on.
    old.echo().await.unwrap();
    world
        .lb
        .admit(&BTreeMap::from([(
            address,
            vec![Admit::from_all(6, 80..=80)],
        )]))
        .unwrap();
    assert!(served(&other).await.is_some(), "FC-79");
    // And the targets' side, probes included.
    router
        .admit_from_lb_nodes(&[Admit::from_all(17, 0..=u16::MAX)])
        .unwrap();
    assert!(
        served(&world.client).await.is_none(),
        "FC-79: no rule of TCP"
    );
    old.echo().await.unwrap();
    router
        .admit_from_lb_nodes(&[Admit::from_all(6, 8080..=8080)])
        .unwrap();
    assert!(served(&world.client).await.is_some(), "FC-79");
}
