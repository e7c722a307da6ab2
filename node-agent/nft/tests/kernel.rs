//! Against a real kernel: transactions and their failures, read-back, notifications, packets, connection tracking.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod common;

use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use common::{in_namespace, run};
use onehop_nft::conntrack::{STATUS_DNAT, TCP_ESTABLISHED};
use onehop_nft::expr::NAT_FULLY_RANDOM;
use onehop_nft::{
    Batch, Chain, ChainType, CommitError, Conntrack, Counter, DumpError, Element, Event, Events,
    Field, FieldType, Filter, Hook, Rule, Set, Socket, Table, Tuple, Value, Verdict,
};

const K: [Field; 3] = [Field::Daddr, Field::L4Proto, Field::Dport];
const TCP: u8 = 6;
const UDP: u8 = 17;

fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn key(number: u16) -> Element {
    Element::key(Value::new().u32_host(number.into()))
}

fn numbers() -> (Table, Batch) {
    let table = Table::ip("t");
    let mut batch = Batch::new();
    batch.add_table(&table, 0, None);
    // Of 32 bits: up to 16 the kernel chooses a bitmap, whose transactions cost the square of the elements.
    batch.add_set(&table, &Set::new("numbers", &[FieldType::MARK]));
    (table, batch)
}

/// Loads a translation of 10.9.9.9:80 (TCP and UDP) to the given local ports, by a map and a random number.
fn translate(to: &[u16]) -> (Socket, Table) {
    run("ip", &["addr", "add", "10.1.1.1/32", "dev", "lo"]);
    run("ip", &["route", "add", "10.9.9.9/32", "dev", "lo"]);
    let table = Table::ip("nat");
    let mut batch = Batch::new();
    batch.add_table(&table, 0, None);
    let slot = [
        FieldType::IPV4,
        FieldType::PROTO,
        FieldType::PORT,
        FieldType::MARK,
    ];
    batch.add_set(
        &table,
        &Set::new("endpoints", &slot).map(&[FieldType::IPV4, FieldType::PORT]),
    );
    for protocol in [TCP, UDP] {
        let slots = (0..).zip(to).map(|(n, port)| {
            let key = Value::new()
                .addr(addr("10.9.9.9"))
                .u8(protocol)
                .port(80)
                .u32_host(n);
            Element::key(key).value(Value::new().addr(addr("10.1.1.1")).port(*port))
        });
        batch.add_elements(&table, "endpoints", slots);
    }
    batch.add_chain(
        &table,
        &Chain::base("output", ChainType::Nat, Hook::Output, -100),
    );
    let random = Field::Random {
        modulus: u32::try_from(to.len()).unwrap(),
        offset: 0,
    };
    let rule = Rule::ip()
        .daddr(addr("10.9.9.9"), 32)
        .counter()
        .set_ct_mark(!0, 0x80);
    let rule = rule
        .dnat_to_map(&[&K[..], &[random]].concat(), "endpoints")
        .comment("to endpoints");
    batch.add_rule(&table, "output", &rule);
    let mut socket = Socket::open().unwrap();
    socket.commit(&batch).unwrap();
    (socket, table)
}

#[test]
fn s257_packets_follow_a_map_by_a_random_number_and_counters_tell() {
    in_namespace(|| {
        let (mut socket, table) = translate(&[8001, 8002]);
        let listeners = [8001, 8002].map(|port| TcpListener::bind(("10.1.1.1", port)).unwrap());
        let connect = || TcpStream::connect("10.9.9.9:80").unwrap();
        let open: Vec<TcpStream> = (0..40).map(|_| connect()).collect();
        let count = |listener: &TcpListener| {
            listener.set_nonblocking(true).unwrap();
            std::iter::from_fn(|| listener.accept().ok()).count()
        };
        let counts = listeners.each_ref().map(count);
        assert_eq!(counts[0] + counts[1], open.len());
        assert!(counts.iter().all(|count| *count > 3), "{counts:?}");
        let counter = socket
            .rule_counter(&table, "output", "to endpoints")
            .unwrap();
        assert_eq!(
            counter.packets, 40,
            "NAT chains see the first packet of each connection"
        );
        let missing = socket.rule_counter(&table, "output", "no such rule");
        assert!(matches!(missing, Err(DumpError::NotFound)));
        assert_ne!(counter, Counter::default());
    });
}

#[test]
fn s265_connections_are_dumped_by_filter_and_deleted() {
    in_namespace(|| {
        let (_socket, _) = translate(&[8001]);
        let server = UdpSocket::bind("10.1.1.1:8001").unwrap();
        let clients: Vec<UdpSocket> = (0..300)
            .map(|_| UdpSocket::bind("10.1.1.1:0").unwrap())
            .collect();
        for client in &clients {
            client.connect("10.9.9.9:80").unwrap();
            client.send(b"?").unwrap();
        }
        let listener = TcpListener::bind("10.1.1.1:8001").unwrap();
        let _stream = TcpStream::connect("10.9.9.9:80").unwrap();
        let mut conntrack = Conntrack::open().unwrap();
        let all = Filter::default();
        assert_eq!(conntrack.list(&all).unwrap().len(), 301);
        let udp = Filter {
            protocol: Some(UDP),
            original_dst: Some(addr("10.9.9.9")),
            original_dst_port: Some(80),
            reply_src: Some(addr("10.1.1.1")),
            reply_src_port: Some(8001),
            mark: Some((0x80, 0x80)),
            zone: Some(0),
            ..all
        };
        let flows = conntrack.list(&udp).unwrap();
        assert_eq!(flows.len(), 300);
        assert!(
            flows
                .iter()
                .all(|flow| flow.status & STATUS_DNAT != 0 && flow.mark == 0x80)
        );
        // S-266: only what the filter admits is told and then deleted one by one; nothing is ever flushed.
        for none in [
            Filter {
                original_dst_port: Some(81),
                ..udp
            },
            Filter {
                reply_src: Some(addr("10.1.1.2")),
                ..udp
            },
            Filter {
                original_src: Some(addr("10.1.1.2")),
                ..udp
            },
            Filter {
                mark: Some((0, 0x80)),
                ..udp
            },
            Filter {
                zone: Some(1),
                ..udp
            },
            Filter { v6: true, ..all },
        ] {
            assert_eq!(conntrack.list(&none).unwrap(), [], "{none:?}");
        }
        let one: Tuple = flows[0].original;
        assert!(conntrack.delete_tuple(&one, 0).unwrap());
        assert!(!conntrack.delete_tuple(&one, 0).unwrap(), "it is gone");
        assert_eq!(
            conntrack.delete(&flows).unwrap(),
            299,
            "one was gone already"
        );
        let left = conntrack.list(&all).unwrap();
        assert_eq!(
            left.iter().map(|flow| flow.tcp_state).collect::<Vec<_>>(),
            [Some(TCP_ESTABLISHED)]
        );
        assert_eq!(
            conntrack
                .delete_where(&all, |flow| flow.original.protocol == TCP)
                .unwrap(),
            1
        );
        drop((server, listener));
    });
}

#[test]
fn s254_all_failing_operations_are_told_and_nothing_is_committed() {
    // S-251: a batch is one message, hence one transaction.
    in_namespace(|| {
        let mut socket = Socket::open().unwrap();
        let (table, mut batch) = numbers();
        let good = batch.add_elements(&table, "numbers", (1..30_000).map(key));
        let bad_element = batch.del_elements(&table, "numbers", [key(1), key(2), key(40_000)]);
        let bad_chain = batch.add_rule(&table, "nowhere", &Rule::ip().accept());
        let Err(CommitError::Refused(failed)) = socket.commit(&batch) else {
            panic!("refused")
        };
        let places: Vec<_> = failed
            .iter()
            .map(|failed| (failed.op, failed.element))
            .collect();
        assert_eq!(
            places,
            [(bad_element, Some(2)), (bad_chain, None)],
            "{failed:?} {good}"
        );
        assert_eq!(socket.tables().unwrap(), []);
        // The socket is usable, and the answers of the failed batch are not taken for those of the next.
        let (_, batch) = numbers();
        socket.commit(&batch).unwrap();
    });
}

#[test]
fn s253_a_long_element_list_is_split_and_its_positions_are_kept() {
    in_namespace(|| {
        let mut socket = Socket::open().unwrap();
        let (table, mut batch) = numbers();
        batch.add_elements(&table, "numbers", (0..=u16::MAX).map(key));
        assert!(batch.len() > 1 << 20);
        socket.commit(&batch).unwrap();
        assert_eq!(socket.elements(&table, "numbers").unwrap().len(), 65_536);
        let mut batch = Batch::new();
        batch.del_elements(&table, "numbers", (0..60_000).chain([7]).map(key));
        let Err(CommitError::Refused(failed)) = socket.commit(&batch) else {
            panic!("refused")
        };
        assert_eq!(
            failed
                .iter()
                .map(|failed| failed.element)
                .collect::<Vec<_>>(),
            [Some(60_000)]
        );
        let mut batch = Batch::new();
        batch.flush_set(&table, "numbers");
        socket.commit(&batch).unwrap();
        assert_eq!(socket.elements(&table, "numbers").unwrap(), []);
    });
}

#[test]
fn s255_a_commit_in_between_is_noticed() {
    in_namespace(|| {
        let mut socket = Socket::open().unwrap();
        let (table, batch) = numbers();
        let generation = socket.generation().unwrap();
        socket.commit_if(&batch, generation).unwrap();
        let mut batch = Batch::new();
        batch.add_elements(&table, "numbers", [key(1)]);
        assert!(matches!(
            socket.commit_if(&batch, generation),
            Err(CommitError::Generation)
        ));
        let generation = socket.generation().unwrap();
        socket.commit_if(&batch, generation).unwrap();
    });
}

#[test]
fn s260_every_commit_is_told_with_who_did_it() {
    in_namespace(|| {
        let mut events = Events::open().unwrap();
        let mut socket = Socket::open().unwrap();
        let (table, batch) = numbers();
        socket.commit(&batch).unwrap();
        run("nft", &["add", "element", "ip", "t", "numbers", "{ 80 }"]);
        let mut commits = Vec::new();
        while let Some(event) = events.wait(Duration::from_millis(200)).unwrap() {
            match event {
                Event::Changed { table: changed, .. } => assert_eq!(changed, table),
                Event::Committed {
                    port_id, process, ..
                } => commits.push((port_id, process)),
                Event::Lost => panic!("lost"),
            }
        }
        assert_eq!(commits.len(), 2, "{commits:?}");
        assert_eq!(commits[0].0, socket.port_id());
        assert_ne!(commits[1].0, socket.port_id());
        assert_eq!(commits[1].1.as_deref(), Some("nft"));
    });
}

/// A process of several threads cannot enter a user namespace, so the test runs itself in one.
#[test]
fn s252_where_forcing_is_refused_the_buffer_is_what_is_granted() {
    let this = std::env::current_exe().unwrap();
    let this = this.to_str().unwrap();
    run(
        "unshare",
        &[
            "--user",
            "--map-root-user",
            "--net",
            this,
            "--exact",
            "in_a_user_namespace",
            "--ignored",
        ],
    );
    in_namespace(|| assert!(Socket::open().unwrap().send_buffer().forced, "S-252"));
}

#[test]
#[ignore = "started by the test above in a user namespace"]
fn in_a_user_namespace() {
    let mut socket = Socket::open().unwrap();
    let buffer = socket.send_buffer();
    assert!(!buffer.forced && buffer.granted < 64 << 20, "{buffer:?}");
    let (table, mut batch) = numbers();
    while batch.len() < buffer.granted {
        batch.add_elements(&table, "numbers", (0..=u16::MAX).map(key));
    }
    match socket.commit(&batch) {
        Err(CommitError::TooLarge { bytes }) => assert_eq!(bytes, batch.len() + 12),
        other => panic!("{other:?}"),
    }
    let (_, small) = numbers();
    socket.commit(&small).unwrap();
}

#[test]
fn reading_back_gives_what_was_written() {
    in_namespace(|| {
        let mut socket = Socket::open().unwrap();
        let (table, mut batch) = numbers();
        let base = Chain::base("post", ChainType::Nat, Hook::Postrouting, 100);
        batch.add_chain(&table, &Chain::regular("c"));
        batch.add_chain(&table, &base);
        batch.add_rule(
            &table,
            "post",
            &Rule::ip()
                .masquerade(NAT_FULLY_RANDOM)
                .user_data(200, &[1, 2, 3]),
        );
        let vmap = Set::new("v", &[FieldType::MARK]).vmap().timeout();
        batch.add_set(&table, &vmap);
        let verdict = Verdict::Goto("c".into());
        let timed = Element::key(Value::new().u32_host(7))
            .verdict(verdict.clone())
            .timeout_ms(60_000);
        batch.add_elements(&table, "v", [timed.clone()]);
        socket.commit(&batch).unwrap();
        let chains = socket.chains(&table).unwrap();
        let bases: Vec<_> = chains
            .iter()
            .map(|chain| (chain.name.as_str(), chain.base))
            .collect();
        assert_eq!(bases, [("c", None), ("post", base.base)]);
        let rules = socket.rules(&table, None).unwrap();
        assert_eq!(
            (rules[0].chain.as_str(), &rules[0].user_data[..]),
            ("post", &[(200, vec![1, 2, 3])][..])
        );
        let mut held = socket.elements(&table, "v").unwrap();
        assert!(held[0].expires_ms.take().is_some_and(|left| left <= 60_000));
        assert_eq!(held, [timed]);
        let sets = socket.sets(&table).unwrap();
        assert_eq!(sets[1], onehop_nft::SetInfo::expected(&vmap));
        let error = socket.elements(&table, "nowhere").unwrap_err();
        assert!(matches!(error, DumpError::NotFound));
        let mut batch = Batch::new();
        batch.destroy_elements(&table, "v", [Element::key(Value::new().u32_host(8))]);
        batch.del_rule(&table, "post", rules[0].handle);
        batch.del_set(&table, "v");
        batch.del_chain(&table, "c");
        socket.commit(&batch).unwrap();
        assert_eq!(socket.rules(&table, None).unwrap(), []);
    });
}

#[test]
fn a_foreign_family_has_nothing_of_ours() {
    in_namespace(|| {
        let mut socket = Socket::open().unwrap();
        let (_, batch) = numbers();
        socket.commit(&batch).unwrap();
        assert_eq!(socket.sets(&Table::ip6("t")).unwrap_or_default(), []);
        assert_eq!(socket.chains(&Table::ip6("t")).unwrap(), []);
    });
}

#[test]
fn every_prefix_is_listed_as_it_was_meant() {
    in_namespace(|| {
        let mut socket = Socket::open().unwrap();
        let table = Table::ip("t");
        let mut batch = Batch::new();
        batch.add_table(&table, 0, None);
        batch.add_chain(&table, &Chain::regular("c"));
        for prefix in 1..=32 {
            batch.add_rule(
                &table,
                "c",
                &Rule::ip().saddr(addr("10.171.205.239"), prefix).accept(),
            );
        }
        socket.commit(&batch).unwrap();
        let text = run("nft", &["list", "ruleset"]);
        let nets: Vec<&str> = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("ip saddr "))
            .collect();
        let bits = u32::from_be_bytes([10, 171, 205, 239]);
        let wanted: Vec<String> = (1..=32)
            .map(|prefix| {
                (
                    std::net::Ipv4Addr::from(bits & (u32::MAX << (32 - prefix))),
                    prefix,
                )
            })
            .map(|(net, prefix)| {
                if prefix == 32 {
                    format!("{net} accept")
                } else {
                    format!("{net}/{prefix} accept")
                }
            })
            .collect();
        assert_eq!(nets, wanted);
    });
}
