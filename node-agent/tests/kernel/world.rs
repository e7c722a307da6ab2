//! What the tests of this binary share: namespaces, the judge, and elements as compile would make them.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;

use nix::sched::{CloneFlags, unshare};
use onehop_core::id::{PortKey, PortName, ServiceKey};
use onehop_core::time::Time;
use onehop_node_agent::table::affinity::{List, Record, Recorder, Sticky, StickyPort};
use onehop_node_agent::table::element::{
    ClassKind, Data, Elements, Family, Frontend, InterfaceName, Key, LOCAL_SCOPE, Protocol, SetId,
    Side, Verdict,
};
use onehop_node_agent::table::layout::{Detector, Options};

/// Runs the test on a thread in a fresh network namespace.
pub(crate) fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        // With descriptors of its own, too: a program that another test starts copies those of its thread until it runs, and
        // a socket that owns tables would live on in the copy.
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_FILES)
            .expect("a network namespace needs root");
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// The judge, in the namespace of this thread.
pub(crate) fn nft(arguments: &[&str]) -> String {
    judged_by("nft", arguments)
}

/// The judge, and whatever other versions of it `$ONEHOP_NFT` names (paths with colons between).
pub(crate) fn judges() -> Vec<String> {
    let more = std::env::var("ONEHOP_NFT").unwrap_or_default();
    let more = more.split(':').filter(|path| !path.is_empty());
    ["nft"].into_iter().chain(more).map(str::to_owned).collect()
}

/// The same by another version.
pub(crate) fn judged_by(judge: &str, arguments: &[&str]) -> String {
    let output = Command::new(judge)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("the tests need nft (package nftables): {judge}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{judge} {arguments:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn options() -> Options {
    Options {
        masquerade_mark: 0x4000,
        masquerade_all: false,
        masquerade_ports: vec![(32_768, 65_535), (1_024, 29_999)],
        detector: Detector::Ranges(vec![
            "10.244.0.0/16".parse().unwrap(),
            "fd00:244::/32".parse().unwrap(),
        ]),
        beside_kube_proxy: true,
        before_iptables: false,
        service_cidrs: Vec::new(),
    }
}

pub(crate) fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn cluster_ip(ip: &str) -> Frontend {
    Frontend {
        address: addr(ip),
        protocol: Protocol::Tcp,
        port: 80,
    }
}

fn target(pod: &str) -> Data {
    Data::Target(SocketAddr::new(addr(pod), 8080))
}

/// Elements of a list behind a frontend: slots and verdict.
pub(crate) fn list(frontend: Frontend, local: bool, pods: &[&str]) -> Elements {
    let family = Family::of(frontend.address);
    let (set, kind, scope) = if local {
        (SetId::ServiceIpsLocal, ClassKind::L, LOCAL_SCOPE)
    } else {
        (SetId::ServiceIps, ClassKind::N, 0)
    };
    let slots = (scope..).zip(pods).map(|(slot, pod)| {
        (
            (family, SetId::Endpoints, Key::FrontendSlot(frontend, slot)),
            Some(target(pod)),
        )
    });
    let mut elements: Elements = slots.collect();
    if let Some(count) = u16::try_from(pods.len()).ok().filter(|count| *count > 0) {
        let verdict = Some(Data::Verdict(Verdict::Class(kind, count)));
        elements.insert((family, set, Key::Frontend(frontend)), verdict);
    }
    for pod in pods {
        elements.insert(
            (family, SetId::Hairpin, Key::Pair(addr(pod), addr(pod))),
            None,
        );
    }
    elements
}

/// The same behind a node port, of the family of its pods.
pub(crate) fn node_port_list(
    protocol: Protocol,
    port: u16,
    local: bool,
    pods: &[&str],
) -> Elements {
    let family = Family::of(addr(pods[0]));
    let (set, kind, scope) = if local {
        (SetId::ServiceNodePortsLocal, ClassKind::Npl, LOCAL_SCOPE)
    } else {
        (SetId::ServiceNodePorts, ClassKind::Np, 0)
    };
    let slots = (scope..).zip(pods).map(|(slot, pod)| {
        (
            (
                family,
                SetId::NodePortEndpoints,
                Key::NodePortSlot {
                    protocol,
                    port,
                    slot,
                },
            ),
            Some(target(pod)),
        )
    });
    let mut elements: Elements = slots.collect();
    let count = u16::try_from(pods.len()).unwrap();
    elements.insert(
        (family, set, Key::NodePort { protocol, port }),
        Some(Data::Verdict(Verdict::Class(kind, count))),
    );
    elements
}

/// A `ClusterIP` Service.
pub(crate) fn service(ip: &str, pods: &[&str]) -> Elements {
    let mut elements = list(cluster_ip(ip), false, pods);
    elements.insert(
        (Family::of(addr(ip)), SetId::ClusterIps, Key::Addr(addr(ip))),
        None,
    );
    elements
}

/// Until when the guards of [`guarded`] last.
pub(crate) const GUARDED_UNTIL: Time = Time::from_millis(780_000);

/// Every kind of element of the target guard and of the Local window in both families: two uplinks, a target that is on
/// its way out and one that is gone, by sources and from anywhere outside, a frontend and a node port nobody here serves.
pub(crate) fn guarded() -> Elements {
    let mut all = Elements::new();
    for (pod, others, node, source, inside) in [
        (
            "10.244.1.9",
            ["10.244.1.1", "10.244.2.1"],
            "10.0.1.1",
            "10.0.9.0/24",
            ("10.244.0.0", "10.245.0.0"),
        ),
        (
            "fd00:244:1::9",
            ["fd00:244:1::1", "fd00:244:2::1"],
            "fd00:1::1",
            "fd00:9::/64",
            ("fd00:244::", "fd00:245::"),
        ),
    ] {
        let family = Family::of(addr(pod));
        let key = Frontend {
            port: 8080,
            ..cluster_ip(pod)
        };
        let gone = Frontend { port: 8081, ..key };
        let late = Frontend { port: 8082, ..key };
        let range = |key| Key::Range(key, source.parse().unwrap());
        let class = |kind, count| Some(Data::Timed(Verdict::Class(kind, count), GUARDED_UNTIL));
        let ends = |verdict| Some(Data::Timed(verdict, GUARDED_UNTIL));
        for (name, number) in [("eth0", 1), ("eth1", 2)] {
            let name = Key::Interface(InterfaceName::new(name).unwrap());
            all.insert((family, SetId::Uplinks, name), None);
            let mark = Some(Data::Verdict(Verdict::MarkUplink(number)));
            all.insert((family, SetId::UplinkMarks, name), mark);
        }
        let slot = |key, slot| Key::FrontendSlot(key, slot);
        for (set, key, data) in [
            (
                SetId::UplinkAddresses,
                Key::Addr(addr(node)),
                Some(Data::Verdict(Verdict::ToUplink(1))),
            ),
            (SetId::Inside, Key::Edge(addr(inside.0), Side::Begin), None),
            (SetId::Inside, Key::Edge(addr(inside.1), Side::End), None),
            (SetId::GuardEndpoints, slot(key, 0), Some(target(others[0]))),
            (
                SetId::GuardAny,
                Key::Frontend(key),
                class(ClassKind::Gl(0), 1),
            ),
            (
                SetId::GuardEndpoints,
                slot(gone, LOCAL_SCOPE),
                Some(target(others[1])),
            ),
            (SetId::GuardFrom, range(gone), class(ClassKind::Gr(1), 1)),
            (SetId::Targets, Key::Frontend(key), None),
            (SetId::Window, Key::Frontend(late), class(ClassKind::W, 1)),
            (SetId::Endpoints, slot(late, 0), Some(target(others[1]))),
            (
                SetId::WindowNodePorts,
                Key::NodePort {
                    protocol: Protocol::Tcp,
                    port: 30_084,
                },
                class(ClassKind::Npw, 1),
            ),
            (SetId::DeadFrom, range(gone), ends(Verdict::DeadSteered)),
            (
                SetId::DeadAny,
                Key::Frontend(gone),
                ends(Verdict::DeadRefused),
            ),
            (
                SetId::DeadKeys,
                Key::Frontend(gone),
                Some(Data::Until(GUARDED_UNTIL)),
            ),
        ] {
            all.insert((family, set, key), data);
        }
    }
    all
}

/// Affinity of a frontend and a node port with policy Local.
fn affinity(family: Family, frontend: Frontend, node: IpAddr) -> Elements {
    let port = PortKey::new(PortName::new("http"), Protocol::Tcp);
    let port = StickyPort::of(&ServiceKey::new("default", "web"), &port);
    let sticky = |list| Verdict::Sticky(Sticky { list, port });
    let record = Verdict::Record(Record {
        by: Recorder::ByClient,
        port,
        seconds: 10_800,
    });
    let protocol = Protocol::Tcp;
    let node_port = Key::NodePort {
        protocol,
        port: 30_080,
    };
    let at_node = Key::Frontend(Frontend {
        address: node,
        protocol,
        port: 30_080,
    });
    let frontend = Key::Frontend(frontend);
    [
        (SetId::Affinity, frontend, sticky(List::Cluster)),
        (SetId::AffinityLocal, frontend, sticky(List::Local)),
        (SetId::AffinityNodePorts, node_port, sticky(List::Cluster)),
        (
            SetId::AffinityNodePortsLocal,
            node_port,
            sticky(List::Local),
        ),
        (SetId::AffinityRecord, frontend, record),
        (SetId::AffinityRecord, at_node, record),
    ]
    .into_iter()
    .map(|(set, key, verdict)| ((family, set, key), Some(Data::Verdict(verdict))))
    .collect()
}

/// Every kind of element in both families.
pub(crate) fn representative() -> Elements {
    let mut all = Elements::new();
    for (vip, lb, node, pods, range) in [
        (
            "10.96.0.1",
            "198.51.100.1",
            "10.0.1.1",
            ["10.244.1.1", "10.244.2.1"],
            "203.0.113.0/24",
        ),
        (
            "fd00:96::1",
            "2001:db8::1",
            "fd00:1::1",
            ["fd00:244:1::1", "fd00:244:2::1"],
            "2001:db8:1::/48",
        ),
    ] {
        let family = Family::of(addr(vip));
        all.extend(service(vip, &pods));
        let (external, closed) = (
            cluster_ip(lb),
            Frontend {
                port: 81,
                ..cluster_ip(lb)
            },
        );
        all.extend(list(external, false, &pods));
        all.extend(list(external, true, &pods[..1]));
        let udp = Frontend {
            protocol: Protocol::Udp,
            port: 53,
            ..cluster_ip(lb)
        };
        all.extend(list(udp, false, &pods));
        all.extend(node_port_list(Protocol::Tcp, 30_080, false, &pods));
        all.extend(node_port_list(Protocol::Tcp, 30_080, true, &pods[..1]));
        let port = |port| Key::NodePort {
            protocol: Protocol::Tcp,
            port,
        };
        let drop = Some(Data::Verdict(Verdict::Drop));
        let reject = Some(Data::Verdict(Verdict::Reject));
        for (set, key, data) in [
            (SetId::NodePortIps, Key::Addr(addr(node)), None),
            (SetId::OtherClusterIps, Key::Addr(addr(node)), None),
            (SetId::MasqFrontends, Key::Frontend(udp), None),
            (SetId::MasqNodePorts, port(30_081), None),
            (SetId::EtpLocal, Key::Frontend(external), None),
            (SetId::EtpLocalNodePorts, port(30_080), None),
            (SetId::NoEndpointServices, Key::Frontend(closed), drop),
            (SetId::NoEndpointNodePorts, port(30_082), reject),
            (SetId::SourceGuarded, Key::Frontend(external), None),
            (
                SetId::SourceAllow,
                Key::Range(external, range.parse().unwrap()),
                None,
            ),
            (
                SetId::SourceAllow,
                Key::Range(
                    external,
                    format!("{node}/{}", if node.contains(':') { 128 } else { 32 })
                        .parse()
                        .unwrap(),
                ),
                None,
            ),
        ] {
            all.insert((family, set, key), data);
        }
        all.extend(affinity(family, external, addr(node)));
        for (set, name) in [
            (SetId::Uplinks, "eth0"),
            (SetId::PodInterfaces, "cali0123456789a"),
        ] {
            let name = InterfaceName::new(name).unwrap();
            all.insert((family, set, Key::Interface(name)), None);
        }
    }
    all
}
