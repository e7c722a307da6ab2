//! Every object and expression this crate can send is taken by the kernel and listed by `nft`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod common;

use std::net::IpAddr;

use common::{in_namespace, run};
use onehop_nft::expr::{
    CT_STATE_NEW, CT_STATUS_DNAT, DynsetOp, Expr, FIB_DADDR, FibResult, MetaKey, NAT_FULLY_RANDOM,
    PayloadAt, PayloadBase, Reject,
};
use onehop_nft::{
    Batch, Chain, ChainType, CmpOp, CtDirection, Element, Family, Field, FieldType, Hook, Policy,
    Reg, Rule, Set, Socket, TABLE_OWNER, TABLE_PERSIST, Table, Value, Verdict,
};

const K: [Field; 3] = [Field::Daddr, Field::L4Proto, Field::Dport];

struct Addresses {
    table: Table,
    kind: FieldType,
    vip: IpAddr,
    pod: IpAddr,
    net: (IpAddr, u8),
    last: IpAddr,
}

fn families() -> [Addresses; 2] {
    let parse = |text: &str| text.parse::<IpAddr>().unwrap();
    [
        Addresses {
            table: Table::ip("everything"),
            kind: FieldType::IPV4,
            vip: parse("10.96.0.1"),
            pod: parse("10.244.1.1"),
            net: (parse("10.244.0.0"), 16),
            last: parse("10.244.255.255"),
        },
        Addresses {
            table: Table::ip6("everything"),
            kind: FieldType::IPV6,
            vip: parse("fd00:96::1"),
            pod: parse("fd00:244:1::1"),
            net: (parse("fd00:244::"), 32),
            last: parse("fd00:244:ffff:ffff:ffff:ffff:ffff:ffff"),
        },
    ]
}

fn sets(batch: &mut Batch, a: &Addresses) {
    let t = &a.table;
    let key = [a.kind, FieldType::PROTO, FieldType::PORT];
    let slot = [a.kind, FieldType::PROTO, FieldType::PORT, FieldType::MARK];
    let range = [a.kind, FieldType::PROTO, FieldType::PORT, a.kind];
    let k = || Value::new().addr(a.vip).u8(6).port(80);
    batch.add_set(t, &Set::new("addresses", &[a.kind]));
    batch.add_elements(t, "addresses", [Element::key(Value::new().addr(a.vip))]);
    batch.add_set(t, &Set::new("frontends", &key));
    batch.add_elements(t, "frontends", [Element::key(k())]);
    batch.add_set(t, &Set::new("verdicts", &key).vmap().timeout());
    batch.add_elements(
        t,
        "verdicts",
        [Element::key(k())
            .verdict(Verdict::Goto("n2".into()))
            .timeout_ms(3_600_000)],
    );
    batch.add_set(
        t,
        &Set::new("endpoints", &slot).map(&[a.kind, FieldType::PORT]),
    );
    batch.add_elements(
        t,
        "endpoints",
        (0..2).map(|n| Element::key(k().u32_host(n)).value(Value::new().addr(a.pod).port(8080))),
    );
    batch.add_set(t, &Set::new("allow", &range).interval());
    batch.add_elements(
        t,
        "allow",
        [Element::range(k().addr(a.net.0), k().addr(a.last))],
    );
    batch.add_set(t, &Set::new("inside", &[a.kind]).interval());
    let bytes = |addr: IpAddr| Value::new().addr(addr).as_slice().to_vec();
    batch.add_elements(t, "inside", Element::span(&bytes(a.net.0), &bytes(a.last)));
    batch.add_set(t, &Set::new("uplinks", &[FieldType::IFNAME]));
    batch.add_elements(t, "uplinks", [Element::key(Value::new().ifname("eth0"))]);
    batch.add_set(t, &Set::new("marks", &[FieldType::MARK]));
    batch.add_elements(t, "marks", [Element::key(Value::new().u32_host(0x4000))]);
    batch.add_set(
        t,
        &Set::new("sticky", &[a.kind])
            .map(&[a.kind, FieldType::PORT])
            .dynamic()
            .timeout()
            .size(65_535),
    );
}

fn tests(a: &Addresses) -> Vec<Rule> {
    let rule = || Rule::new(a.table.family);
    vec![
        rule().ct_state(CT_STATE_NEW).counter().comment("a new one"),
        rule()
            .ct_status(CT_STATUS_DNAT, true)
            .in_set(&[Field::Saddr, Field::Daddr], "pairs")
            .counter(),
        rule().ct_status(CT_STATUS_DNAT, false).counter(),
        rule()
            .in_set(&[Field::Daddr], "addresses")
            .not_saddr(a.net.0, a.net.1)
            .set_mark(!0, 0x4000),
        rule()
            .in_set(&K, "frontends")
            .not_in_set(&[&K[..], &[Field::Saddr]].concat(), "allow")
            .drop(),
        rule()
            .in_set(&[Field::IifName], "uplinks")
            .vmap(&K, "verdicts"),
        rule().in_set(&[Field::Mark], "marks").counter(),
        rule().in_set(&[Field::Saddr], "inside").ret(),
        rule().saddr_is_local().counter(),
        rule()
            .push(Expr::Fib {
                dreg: Reg(0),
                result: FibResult::AddrType,
                flags: FIB_DADDR,
            })
            .push(Expr::Cmp {
                sreg: Reg(0),
                op: CmpOp::Eq,
                data: Value::new().u32_host(2),
            })
            .counter(),
        rule().l4proto(6).tcp_flags(0x17, CmpOp::Eq, 0x02).counter(),
        rule().l4proto(17).dport(53).counter(),
        rule()
            .l4proto(6)
            .within(
                Field::Dport,
                Value::new().port(30_000),
                Value::new().port(32_767),
            )
            .counter(),
        rule()
            .l4proto(6)
            .outside(
                Field::Dport,
                Value::new().port(30_000),
                Value::new().port(32_767),
            )
            .counter(),
        rule().iifname("eth0").oifname("veth*").accept(),
        rule().nfproto().counter(),
        rule().saddr(a.vip, 128).daddr(a.net.0, 12).counter(),
        rule()
            .ct_direction(CtDirection::Reply)
            .masked(Field::CtMark, 0x0f00_0000, CmpOp::Neq, 0)
            .counter(),
        rule()
            .masked(Field::Mark, 0x4000, CmpOp::Eq, 0x4000)
            .set_mark(!0x4000, 0)
            .counter(),
        rule().set_ct_mark(0xf0ff_ffff, 0x0100_0000),
        rule().mark_from_ct(0xff).counter(),
        rule().ct_mark_from_mark(0xff).counter(),
        rule().vmap(
            &[
                Field::CtDaddr(CtDirection::Original),
                Field::L4Proto,
                Field::CtDport(CtDirection::Original),
            ],
            "verdicts",
        ),
        rule()
            .push(Expr::Limit {
                rate: 10,
                per_seconds: 1,
                burst: 5,
                over: false,
            })
            .nflog(7, "src_check_drop"),
        rule()
            .push(Expr::Meta {
                dreg: Reg(0),
                key: MetaKey::Mark,
            })
            .push(Expr::Dynset {
                set: "marks".into(),
                op: DynsetOp::Add,
                key: Reg(0),
                data: None,
                timeout_ms: None,
            }),
        rule().l4proto(6).reject_tcp_reset(),
        rule().push(Expr::Reject(Reject::Unreachable(1))),
        rule().reject_port_unreachable(),
        rule().goto("n2"),
    ]
}

fn affinity_update(a: &Addresses) -> Rule {
    let v6 = a.table.family == Family::Ip6;
    let (data, port) = if v6 {
        (Reg(4), Reg(8))
    } else {
        (Reg(1), Reg(2))
    };
    let address = |offset| PayloadAt {
        base: PayloadBase::Network,
        offset,
        len: if v6 { 16 } else { 4 },
    };
    Rule::new(a.table.family)
        .push(Expr::Payload {
            dreg: Reg(0),
            at: address(if v6 { 8 } else { 12 }),
        })
        .push(Expr::Payload {
            dreg: data,
            at: address(if v6 { 24 } else { 16 }),
        })
        .push(Expr::Payload {
            dreg: port,
            at: PayloadAt {
                base: PayloadBase::Transport,
                offset: 2,
                len: 2,
            },
        })
        .push(Expr::Dynset {
            set: "sticky".into(),
            op: DynsetOp::Update,
            key: Reg(0),
            data: Some(data),
            timeout_ms: Some(10_800_000),
        })
}

/// Rules that want a hook of their own, with their chain.
fn hooked(a: &Addresses) -> Vec<(&'static str, Rule)> {
    let rule = || Rule::new(a.table.family);
    let at = PayloadAt {
        base: PayloadBase::Transport,
        offset: 2,
        len: 2,
    };
    let slot = |slot| [K[0], K[1], K[2], slot];
    let random = slot(Field::Random {
        modulus: 2,
        offset: 0,
    });
    let counting = slot(Field::Counting {
        modulus: 2,
        offset: 65_536,
    });
    vec![
        ("raw", rule().l4proto(17).dport(9).notrack()),
        ("raw", rule().iifname("a").set_ct_zone(7)),
        (
            "raw",
            rule()
                .push(Expr::Immediate {
                    dreg: Reg(0),
                    data: Value::new().port(81),
                })
                .push(Expr::PayloadSet {
                    sreg: Reg(0),
                    at,
                    checksum: None,
                }),
        ),
        ("raw", rule().set_daddr(a.pod)),
        ("n2", rule().dnat_to_map(&random, "endpoints")),
        ("n2", rule().dnat_to_map(&counting, "endpoints")),
        ("n2", rule().dnat_to_map(&[Field::Saddr], "sticky")),
        ("n2", rule().drop()),
        ("nat", rule().jump("n2")),
        ("nat", rule().l4proto(6).dnat(a.pod, Some(10_290))),
        ("nat", rule().dnat(a.pod, None)),
        (
            "nat",
            rule().l4proto(6).push(Expr::Redirect {
                port: None,
                flags: 0,
            }),
        ),
        (
            "post",
            rule().set_mark(!0x4000, 0).masquerade(NAT_FULLY_RANDOM),
        ),
        ("post", rule().masquerade(0)),
        (
            "post",
            rule()
                .l4proto(6)
                .masquerade_to_ports((32_768, 65_535), NAT_FULLY_RANDOM),
        ),
        ("post", rule().snat(a.vip, 0)),
    ]
}

fn rules(a: &Addresses) -> Vec<(&'static str, Rule)> {
    let tests = tests(a)
        .into_iter()
        .chain([affinity_update(a)])
        .map(|rule| ("tests", rule));
    hooked(a).into_iter().chain(tests).collect()
}

fn objects(batch: &mut Batch, a: &Addresses, flags: u32) {
    let t = &a.table;
    batch.add_table(t, flags, Some("layout 1"));
    batch.add_chain(t, &Chain::regular("n2"));
    sets(batch, a);
    batch.add_set(t, &Set::new("pairs", &[a.kind, a.kind]));
    for (name, kind, hook, priority) in [
        ("raw", ChainType::Filter, Hook::Prerouting, -300),
        ("out", ChainType::Route, Hook::Output, -150),
        ("nat", ChainType::Nat, Hook::Prerouting, -100),
        ("post", ChainType::Nat, Hook::Postrouting, 100),
    ] {
        batch.add_chain(t, &Chain::base(name, kind, hook, priority));
    }
    let filter = Chain::base("filter", ChainType::Filter, Hook::Forward, 0);
    batch.add_chain(t, &filter.policy(Policy::Drop));
    batch.add_chain(t, &Chain::regular("tests"));
}

fn everything(batch: &mut Batch, a: &Addresses) {
    let t = &a.table;
    objects(batch, a, TABLE_OWNER | TABLE_PERSIST);
    for (chain, rule) in rules(a) {
        batch.add_rule(t, chain, &rule);
    }
    let ports = Set::anonymous(1, &[FieldType::PORT]);
    batch.add_set(t, &ports);
    let elements = [80, 443].map(|port| Element::key(Value::new().port(port)));
    batch.add_anonymous_elements(t, &ports, elements);
    let rule = Rule::new(t.family)
        .l4proto(6)
        .in_set(&[Field::Dport], ports.reference());
    batch.add_rule(t, "filter", &rule.accept());
}

/// The owner's name and what is left of a life time differ from run to run.
fn without_what_varies(text: &str) -> String {
    let cut = |line: &str, mark: &str, end: &str| match line.split_once(mark) {
        Some((before, rest)) => format!(
            "{before}{}",
            rest.split_once(end)
                .map_or(String::new(), |(_, after)| format!("{end}{after}"))
        ),
        None => line.to_owned(),
    };
    text.lines()
        .map(|line| cut(&cut(line, " # progname", "\n"), " expires", " :") + "\n")
        .collect()
}

#[test]
fn s202_everything_we_can_send_is_listable() {
    in_namespace(|| {
        let mut socket = Socket::open().unwrap();
        let mut batch = Batch::new();
        for a in &families() {
            everything(&mut batch, a);
        }
        socket
            .commit(&batch)
            .unwrap_or_else(|error| panic!("{error:#?}"));
        let text = run("nft", &["list", "ruleset"]);
        insta::assert_snapshot!(without_what_varies(&text));
        run("nft", &["-j", "list", "ruleset"]);
        assert!(run("nft", &["list", "tables"]).contains("table ip6 everything"));
    });
}

#[test]
fn jhash_is_taken_by_the_kernel_and_listed() {
    in_namespace(|| {
        let mut socket = Socket::open().unwrap();
        let table = Table::ip("hash");
        let mut batch = Batch::new();
        batch.add_table(&table, 0, None);
        batch.add_chain(&table, &Chain::regular("c"));
        let hash = Field::SaddrHash {
            modulus: 4,
            offset: 0,
            seed: 1,
        };
        batch.add_rule(
            &table,
            "c",
            &Rule::ip().is(hash, Value::new().u32_host(3)).accept(),
        );
        socket.commit(&batch).unwrap();
        assert!(run("nft", &["list", "ruleset"]).contains("jhash ip saddr mod 4 seed 0x1"));
    });
}

/// What nft lists, but does not take as text in a table of one family: maps (S-205), and tests that are always true.
/// Of the update nft chooses other registers.
const NOT_TO_BE_SAID: [&str; 6] = [
    "ct original proto-dst",
    "numgen random",
    "numgen inc",
    "map @sticky",
    "meta nfproto",
    "update @sticky",
];
/// nft swaps the single byte of a protocol number in keys of interval sets, which changes nothing.
const NO_SWAP: &str = "[ byteorder ";

/// The bytecode of the only rule of a chain, and its text.
fn bytecode(family: &str, chain: &str) -> (Vec<String>, String) {
    let listed = run(
        "nft",
        &[
            "--debug=netlink",
            "list",
            "chain",
            family,
            "everything",
            chain,
        ],
    );
    let code = listed
        .lines()
        .filter(|line| line.starts_with("  [ ") && !line.contains(NO_SWAP));
    let mut texts = listed.lines().filter_map(|line| line.strip_prefix("\t\t"));
    let text = texts.rfind(|text| !text.starts_with("type ")).unwrap();
    (code.map(str::to_owned).collect(), text.to_owned())
}

/// S-256, S-257: the numbers of messages, flags, registers and attributes are the kernel's, as nft writes them.
#[test]
fn s259_our_bytecode_is_what_nft_makes_of_the_same_text() {
    for a in families() {
        in_namespace(move || {
            let family = if a.table.family == Family::Ip6 {
                "ip6"
            } else {
                "ip"
            };
            let mut socket = Socket::open().unwrap();
            let mut batch = Batch::new();
            objects(&mut batch, &a, 0);
            socket.commit(&batch).unwrap();
            for (chain, rule) in rules(&a) {
                let flush = || {
                    let mut batch = Batch::new();
                    batch.flush_chain(&a.table, chain);
                    batch
                };
                let mut batch = flush();
                batch.add_rule(&a.table, chain, &rule);
                socket.commit(&batch).unwrap();
                let (ours, text) = bytecode(family, chain);
                socket.commit(&flush()).unwrap();
                if NOT_TO_BE_SAID.iter().any(|words| text.contains(words)) {
                    continue;
                }
                run(
                    "nft",
                    &[&format!("add rule {family} everything {chain} {text}")],
                );
                assert_eq!(ours, bytecode(family, chain).0, "{text}");
                socket.commit(&flush()).unwrap();
            }
        });
    }
}
