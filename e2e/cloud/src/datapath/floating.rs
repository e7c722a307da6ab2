//! Flows whose destination stays the frontend address (floating, mode `vip`; FC-29b). Members answer clients directly,
//! so the LB node sees one direction only and connection tracking would call every second packet invalid: these
//! packets are not tracked, and the flow table of FC-62 is a map of the LB node's own.
//!
//! ```text
//! raw       floating frontends are not tracked
//! floating  first packet → chain choose-<n>; later ones: mark := flows(5-tuple), refreshed
//! choose-n  mark := hash of the 5-tuple mod n, then slots(frontend, hash); the flow is remembered
//! ```
//! The mark is the number of a delivery link of the router (`e2e_fabric::Router::deliver`). A TCP flow may be replaced
//! by one of the same 5-tuple, since its end may have been said in the direction that is not seen: a first packet
//! finds only what was chosen a moment ago (`fresh`), so that a SYN that is sent again goes the same way.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use onehop_nft::expr::{DynsetOp, LookupTo, MetaKey, PayloadAt, PayloadBase, SetRef};
use onehop_nft::{
    Batch, Chain, ChainType, CmpOp, Element, Expr, Field, FieldType, Hook, Reg, Rule, Set, Value,
};

use super::layout::table;
use crate::engine::Protocol;

/// Frontends whose destination is kept, and the chain that chooses among their targets.
pub(super) const FLOATING: &str = "floating";
pub(super) const CHOICES: &str = "floating-choices";
pub(super) const SLOTS: &str = "floating-slots";
/// 5-tuple → mark.
pub(super) const FLOWS: &str = "flows";
/// The same, for first packets of TCP.
pub(super) const FRESH: &str = "fresh";

/// Hashes are kept apart from numbers of links: one without a slot leads nowhere.
pub(super) const FIRST_SLOT: u32 = 0x8000_0000;

const RAW: i32 = -300;
const MANGLE: i32 = -150;
/// Most flows of an LB node.
const MOST_FLOWS: u32 = 1 << 20;
/// How long a chosen but not yet answered flow is remembered.
const FRESH_FOR: Duration = Duration::from_secs(5);
/// How long a flow is remembered after its client said that it ends.
const CLOSING: Duration = Duration::from_secs(10);

const TCP: u8 = Protocol::Tcp.number();
const UDP: u8 = Protocol::Udp.number();
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// The register after the five of the 5-tuple.
const MARK_REG: Reg = Reg(5);

/// How long flows without packets last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Idle {
    pub(super) tcp: Duration,
    pub(super) udp: Duration,
}

/// Sets, maps and the chains that do not depend on the number of targets.
pub(super) fn create(batch: &mut Batch, idle: Idle) {
    let of = table();
    let front = [FieldType::IPV4, FieldType::PROTO, FieldType::PORT];
    let slot = [
        FieldType::IPV4,
        FieldType::PROTO,
        FieldType::PORT,
        FieldType::MARK,
    ];
    let tuple = [
        FieldType::IPV4,
        FieldType::PORT,
        FieldType::IPV4,
        FieldType::PROTO,
        FieldType::PORT,
    ];
    batch.add_set(&of, &Set::new(FLOATING, &front));
    batch.add_set(&of, &Set::new(CHOICES, &front).vmap());
    batch.add_set(&of, &Set::new(SLOTS, &slot).map(&[FieldType::MARK]));
    for name in [FLOWS, FRESH] {
        let set = Set::new(name, &tuple).map(&[FieldType::MARK]);
        batch.add_set(&of, &set.timeout().dynamic().size(MOST_FLOWS));
    }
    let ours = || Rule::ip().in_set(&FRONT, FLOATING);
    base(batch, "untracked", RAW, vec![ours().notrack()]);
    batch.add_chain(&of, &Chain::regular("floating-first"));
    let first = || Rule::ip().vmap(&FRONT, CHOICES);
    for rule in [mark_from(FRESH), marked().accept(), first()] {
        batch.add_rule(&of, "floating-first", &rule);
    }
    let syn = Rule::ip().l4proto(TCP);
    let syn = syn.tcp_flags(FIN | SYN | RST | ACK, CmpOp::Eq, SYN);
    let ends = marked().l4proto(TCP);
    let ends = ends.tcp_flags(FIN | RST, CmpOp::Neq, 0);
    let rules = vec![
        Rule::ip().not_in_set(&FRONT, FLOATING).accept(),
        syn.goto("floating-first"),
        mark_from(FLOWS),
        remember(ends, FLOWS, DynsetOp::Update, CLOSING).accept(),
        remember(marked().l4proto(TCP), FLOWS, DynsetOp::Update, idle.tcp).accept(),
        remember(marked().l4proto(UDP), FLOWS, DynsetOp::Update, idle.udp).accept(),
        // In the middle of a flow that is not known: the chain `rest` answers.
        Rule::ip().l4proto(UDP).goto("floating-first"),
    ];
    base(batch, "floating-path", MANGLE, rules);
}

/// Chain and rules that choose one of `count` targets (FC-26).
pub(super) fn add_choice(batch: &mut Batch, count: u32, idle: Idle) {
    let name = choice(count);
    batch.add_chain(&table(), &Chain::regular(&name));
    let hash = load_tuple(Rule::ip())
        .push(Expr::Jhash {
            sreg: Reg(0),
            dreg: Reg(0),
            len: 20,
            modulus: count,
            seed: 1,
            offset: FIRST_SLOT,
        })
        .push(SET_MARK);
    let target = slot_lookup();
    let forget = remember(Rule::ip(), FLOWS, DynsetOp::Delete, Duration::ZERO);
    let add = |rule: Rule, set, time| remember(rule, set, DynsetOp::Add, time);
    let rules = [
        hash,
        target,
        forget,
        add(Rule::ip().l4proto(TCP), FLOWS, idle.tcp),
        add(Rule::ip().l4proto(TCP), FRESH, FRESH_FOR),
        add(Rule::ip().l4proto(UDP), FLOWS, idle.udp),
        Rule::ip().counter().accept(),
    ];
    for rule in rules {
        batch.add_rule(&table(), &name, &rule);
    }
}

/// Name of the chain for so many targets.
pub(super) fn choice(count: u32) -> String {
    format!("choose-{count}")
}

/// Only packets that a delivery link takes.
pub(super) fn marked() -> Rule {
    Rule::ip().cmp(Field::Mark, CmpOp::Neq, Value::new().u32_host(0))
}

/// A remembered flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remembered {
    pub(super) client: SocketAddr,
    pub(super) address: Ipv4Addr,
    pub(super) protocol: u8,
    pub(super) port: u16,
    pub(super) mark: u32,
    /// To name it in the map.
    pub(super) key: Value,
}

impl Remembered {
    pub(super) fn read(element: &Element) -> Option<Self> {
        let key = &element.key;
        let Some(onehop_nft::ElementData::Value(data)) = &element.data else {
            return None;
        };
        let std::net::IpAddr::V4(address) = key.addr_at(8, false)? else {
            return None;
        };
        Some(Self {
            client: SocketAddr::new(key.addr_at(0, false)?, key.port_at(4)?),
            address,
            protocol: key.u8_at(12)?,
            port: key.port_at(16)?,
            mark: data.u32_host_at(0)?,
            key: *key,
        })
    }
}

/// The batch that forgets flows.
pub(super) fn forget(flows: &[Remembered]) -> Batch {
    let mut batch = Batch::new();
    let keys: BTreeSet<Value> = flows.iter().map(|flow| flow.key).collect();
    let elements = || keys.iter().map(|key| Element::key(*key));
    for set in [FLOWS, FRESH] {
        // Any of them may have run out meanwhile.
        batch.destroy_elements(&table(), set, elements());
    }
    batch
}

const FRONT: [Field; 3] = [Field::Daddr, Field::L4Proto, Field::Dport];
const SET_MARK: Expr = Expr::MetaSet {
    sreg: Reg(0),
    key: MetaKey::Mark,
};

fn base(batch: &mut Batch, name: &str, priority: i32, rules: Vec<Rule>) {
    let chain = Chain::base(name, ChainType::Filter, Hook::Prerouting, priority);
    batch.add_chain(&table(), &chain);
    for rule in rules {
        batch.add_rule(&table(), name, &rule);
    }
}

fn load_tuple(rule: Rule) -> Rule {
    let load = |word, base, offset, len| Expr::Payload {
        dreg: Reg(word),
        at: PayloadAt { base, offset, len },
    };
    rule.push(load(0, PayloadBase::Network, 12, 4))
        .push(load(1, PayloadBase::Transport, 0, 2))
        .push(load(2, PayloadBase::Network, 16, 4))
        .push(Expr::Meta {
            dreg: Reg(3),
            key: MetaKey::L4Proto,
        })
        .push(load(4, PayloadBase::Transport, 2, 2))
}

fn lookup(map: &str) -> Expr {
    Expr::Lookup {
        set: SetRef::from(map),
        sreg: Reg(0),
        to: LookupTo::Register(Reg(0)),
    }
}

/// Packet mark := map(5-tuple), where there is one.
fn mark_from(map: &str) -> Rule {
    load_tuple(Rule::ip()).push(lookup(map)).push(SET_MARK)
}

/// Packet mark := slots(frontend, packet mark).
fn slot_lookup() -> Rule {
    let load = |word, base, offset, len| Expr::Payload {
        dreg: Reg(word),
        at: PayloadAt { base, offset, len },
    };
    let meta = |word, key| Expr::Meta {
        dreg: Reg(word),
        key,
    };
    Rule::ip()
        .push(load(0, PayloadBase::Network, 16, 4))
        .push(meta(1, MetaKey::L4Proto))
        .push(load(2, PayloadBase::Transport, 2, 2))
        .push(meta(3, MetaKey::Mark))
        .push(lookup(SLOTS))
        .push(SET_MARK)
}

/// Writes (5-tuple → packet mark) into a map.
fn remember(rule: Rule, map: &str, op: DynsetOp, time: Duration) -> Rule {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    load_tuple(rule)
        .push(Expr::Meta {
            dreg: MARK_REG,
            key: MetaKey::Mark,
        })
        .push(Expr::Dynset {
            set: SetRef::from(map),
            op,
            key: Reg(0),
            data: Some(MARK_REG),
            timeout_ms: (millis > 0).then_some(millis),
        })
}
