//! Flows whose destination stays the frontend address (floating, mode `vip`; FC-29b). Members answer clients directly,
//! so the LB node sees one direction only and connection tracking would call every second packet invalid: these
//! packets are not tracked, and the flow table of FC-62 is a map of the LB node's own.
//!
//! ```text
//! floating-path   before tracking: first packet → floating-first; later ones: mark := flows(5-tuple), refreshed
//! floating-first  chosen a moment ago: the same again; else → chain choose-<n>, if the frontend floats now
//! choose-<n>      mark := hash of the 5-tuple, or of less, mod n, then slots(frontend, hash); the flow is remembered
//! ```
//! The mark is the number of a delivery link of the router (`e2e_fabric::Router::deliver`); whatever gets none goes on
//! to be tracked. A TCP flow may be replaced by one of the same 5-tuple, since its end may have been said in the direction
//! that is not seen: a first packet finds only what was chosen a moment ago (`fresh`), so that a SYN that is sent again
//! goes the same way.
//!
//! A listener may change between groups of both kinds, and flows stay with what they chose. Floating ones are found in
//! `flows`. Translated TCP flows are found by tracking, but for a SYN that is sent again, and UDP flows look like new
//! ones in every packet: so those are in `translated-flows`.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use e2e_fabric::NFLOG_GROUP;
use onehop_nft::expr::{DynsetOp, LookupTo, MetaKey, PayloadAt, PayloadBase, SetRef};
use onehop_nft::{
    Batch, Chain, ChainType, CmpOp, Element, Expr, Family, Field, FieldType, Hook, Reg, Rule, Set,
    Value,
};

use super::among::Among;
use super::flows::Flow;
use super::layout::{FAMILIES, address_type, addresses_at, table};
use crate::engine::{Frontend, Protocol};

/// Frontends that have, or may have, flows whose destination is kept.
pub(super) const FLOATING: &str = "floating";
/// Frontends whose new flows are such, and the chain that chooses among their targets.
pub(super) const CHOICES: &str = "floating-choices";
pub(super) const SLOTS: &str = "floating-slots";
/// 5-tuple → mark.
pub(super) const FLOWS: &str = "flows";
/// The same, for first packets of TCP.
pub(super) const FRESH: &str = "fresh";
/// 5-tuples of flows whose destination is translated: of TCP for a moment, of UDP as long as they last.
pub(super) const TRANSLATED_FLOWS: &str = "translated-flows";

/// What the names of chains begin with that choose.
pub(super) const CHOOSE: &str = "choose";
/// Hashes are kept apart from numbers of links: one without a slot leads nowhere.
pub(super) const FIRST_SLOT: u32 = 0x8000_0000;

const RAW: i32 = -300;
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

/// How long flows without packets last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Idle {
    pub(super) tcp: Duration,
    pub(super) udp: Duration,
}

/// Sets, maps and the chains that do not depend on the number of targets.
pub(super) fn create(batch: &mut Batch, family: Family, idle: Idle) {
    let of = table(family);
    let address = address_type(family);
    let front = [address, FieldType::PROTO, FieldType::PORT];
    let slot = [address, FieldType::PROTO, FieldType::PORT, FieldType::MARK];
    let tuple = [
        address,
        FieldType::PORT,
        address,
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
    let set = Set::new(TRANSLATED_FLOWS, &tuple);
    batch.add_set(&of, &set.timeout().dynamic().size(MOST_FLOWS));
    batch.add_chain(&of, &Chain::regular("floating-first"));
    for rule in first_packets(family) {
        batch.add_rule(&of, "floating-first", &rule);
    }
    let udp = || Rule::new(family).l4proto(UDP);
    let known = find(family, udp(), TRANSLATED_FLOWS);
    let known = keep(known, TRANSLATED_FLOWS, DynsetOp::Update, idle.udp);
    let syn = Rule::new(family).l4proto(TCP);
    let syn = syn.tcp_flags(FIN | SYN | RST | ACK, CmpOp::Eq, SYN);
    let ends = marked(family).l4proto(TCP);
    let ends = ends.tcp_flags(FIN | RST, CmpOp::Neq, 0);
    let rules = vec![
        known.accept(),
        Rule::new(family).not_in_set(&FRONT, FLOATING).accept(),
        syn.goto("floating-first"),
        mark_from(family, FLOWS),
        untracked(remember(family, ends, FLOWS, DynsetOp::Update, CLOSING)),
        untracked(remember(
            family,
            marked(family).l4proto(TCP),
            FLOWS,
            DynsetOp::Update,
            idle.tcp,
        )),
        untracked(remember(
            family,
            marked(family).l4proto(UDP),
            FLOWS,
            DynsetOp::Update,
            idle.udp,
        )),
        // In the middle of a flow that is not known: tracking may know it, or the chain `rest` answers.
        udp().goto("floating-first"),
    ];
    let chain = Chain::base("floating-path", ChainType::Filter, Hook::Prerouting, RAW);
    batch.add_chain(&of, &chain);
    for rule in rules {
        batch.add_rule(&of, "floating-path", &rule);
    }
}

/// What becomes of first packets. One that is to be translated replaces what was remembered of its 5-tuple.
fn first_packets(family: Family) -> [Rule; 5] {
    let tcp = Rule::new(family).l4proto(TCP);
    [
        mark_from(family, FRESH),
        untracked(marked(family)),
        find(family, tcp, TRANSLATED_FLOWS).accept(),
        Rule::new(family).vmap(&FRONT, CHOICES),
        remember(
            family,
            Rule::new(family),
            FLOWS,
            DynsetOp::Delete,
            Duration::ZERO,
        ),
    ]
}

/// Rules that remember a flow that is about to be translated.
pub(super) fn remember_translated(family: Family, idle: Idle) -> [Rule; 2] {
    [(TCP, FRESH_FOR), (UDP, idle.udp)].map(|(protocol, time)| {
        let rule = Rule::new(family).l4proto(protocol);
        let rule = load_tuple(rule, family);
        keep(rule, TRANSLATED_FLOWS, DynsetOp::Update, time)
    })
}

/// Chain and rules that choose a target (FC-26).
pub(super) fn add_choice(batch: &mut Batch, family: Family, among: Among, idle: Idle) {
    let (of, name) = (table(family), among.chain(CHOOSE));
    batch.add_chain(&of, &Chain::regular(&name));
    let hash = among.hash(family, FIRST_SLOT).push(SET_MARK);
    let target = slot_lookup(family);
    let forget = remember(
        family,
        Rule::new(family),
        FLOWS,
        DynsetOp::Delete,
        Duration::ZERO,
    );
    let add = |rule: Rule, set, time| remember(family, rule, set, DynsetOp::Add, time);
    let rules = [
        hash,
        target,
        forget,
        add(Rule::new(family).l4proto(TCP), FLOWS, idle.tcp),
        add(Rule::new(family).l4proto(TCP), FRESH, FRESH_FOR),
        add(Rule::new(family).l4proto(UDP), FLOWS, idle.udp),
        // The record of choices (FC-83): these flows are in no table of connections.
        Rule::new(family).nflog(NFLOG_GROUP, "chosen"),
        untracked(Rule::new(family).counter()),
    ];
    for rule in rules {
        batch.add_rule(&of, &name, &rule);
    }
}

/// Tracking sees one direction of these flows, and must not judge them by it.
fn untracked(rule: Rule) -> Rule {
    rule.notrack().accept()
}

/// Only packets that a delivery link takes.
pub(super) fn marked(family: Family) -> Rule {
    Rule::new(family).cmp(Field::Mark, CmpOp::Neq, Value::new().u32_host(0))
}

/// A remembered flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remembered {
    pub(super) client: SocketAddr,
    pub(super) address: IpAddr,
    pub(super) protocol: u8,
    pub(super) port: u16,
    pub(super) mark: u32,
    /// To name it in the map.
    pub(super) family: Family,
    pub(super) key: Value,
}

impl Remembered {
    pub(super) fn read(family: Family, element: &Element) -> Option<Self> {
        let (key, v6) = (&element.key, family == Family::Ip6);
        // Source, its port, destination, protocol, port: each padded to four bytes.
        let length = if v6 { 16 } else { 4 };
        let (destination, protocol) = (length + 4, 2 * length + 4);
        let Some(onehop_nft::ElementData::Value(data)) = &element.data else {
            return None;
        };
        Some(Self {
            client: SocketAddr::new(key.addr_at(0, v6)?, key.port_at(length)?),
            address: key.addr_at(destination, v6)?,
            protocol: key.u8_at(protocol)?,
            port: key.port_at(protocol + 4)?,
            mark: data.u32_host_at(0)?,
            family,
            key: *key,
        })
    }
}

/// What names a flow in the sets.
pub(super) fn key(flow: &Flow) -> (Family, Value) {
    let Frontend {
        address,
        protocol,
        port,
    } = flow.frontend;
    let family = if address.is_ipv4() {
        Family::Ip
    } else {
        Family::Ip6
    };
    let client = Value::new().addr(flow.client.ip()).port(flow.client.port());
    let tuple = client.addr(address).u8(protocol.number()).port(port);
    // As the kernel tells it: one run of bytes.
    (family, Value::exact(tuple.as_slice()))
}

/// The batch that forgets flows.
pub(super) fn forget(flows: &[(Family, Value)], sets: &[&str]) -> Batch {
    let mut batch = Batch::new();
    for family in FAMILIES {
        let of_family = flows.iter().filter(|(of, _)| *of == family);
        let keys: BTreeSet<Value> = of_family.map(|(_, key)| *key).collect();
        for set in sets {
            // Any of them may have run out meanwhile.
            let elements = keys.iter().map(|key| Element::key(*key));
            batch.destroy_elements(&table(family), set, elements);
        }
    }
    batch
}

const FRONT: [Field; 3] = [Field::Daddr, Field::L4Proto, Field::Dport];
const SET_MARK: Expr = Expr::MetaSet {
    sreg: Reg(0),
    key: MetaKey::Mark,
};

/// Words of an address.
const fn words(family: Family) -> u8 {
    match family {
        Family::Ip6 => 4,
        _ => 1,
    }
}

/// The register after those of the 5-tuple.
const fn mark_word(family: Family) -> u8 {
    2 * words(family) + 3
}

fn load_tuple(rule: Rule, family: Family) -> Rule {
    let load = |word, base, offset, len| Expr::Payload {
        dreg: Reg(word),
        at: PayloadAt { base, offset, len },
    };
    let (source, destination, length) = addresses_at(family);
    let after_source = words(family);
    let after_destination = 2 * words(family) + 1;
    rule.push(load(0, PayloadBase::Network, source, length))
        .push(load(after_source, PayloadBase::Transport, 0, 2))
        .push(load(
            after_source + 1,
            PayloadBase::Network,
            destination,
            length,
        ))
        .push(Expr::Meta {
            dreg: Reg(after_destination),
            key: MetaKey::L4Proto,
        })
        .push(load(after_destination + 1, PayloadBase::Transport, 2, 2))
}

fn lookup(map: &str) -> Expr {
    Expr::Lookup {
        set: SetRef::from(map),
        sreg: Reg(0),
        to: LookupTo::Register(Reg(0)),
    }
}

/// Only packets whose 5-tuple is in a set; it stays loaded.
fn find(family: Family, rule: Rule, set: &str) -> Rule {
    load_tuple(rule, family).push(Expr::Lookup {
        set: SetRef::from(set),
        sreg: Reg(0),
        to: LookupTo::Match,
    })
}

/// Writes the 5-tuple that is loaded into a set.
fn keep(rule: Rule, set: &str, op: DynsetOp, time: Duration) -> Rule {
    dynset(rule, set, op, time, None)
}

/// Packet mark := map(5-tuple), where there is one.
fn mark_from(family: Family, map: &str) -> Rule {
    load_tuple(Rule::new(family), family)
        .push(lookup(map))
        .push(SET_MARK)
}

/// Packet mark := slots(frontend, packet mark).
fn slot_lookup(family: Family) -> Rule {
    let load = |word, base, offset, len| Expr::Payload {
        dreg: Reg(word),
        at: PayloadAt { base, offset, len },
    };
    let meta = |word, key| Expr::Meta {
        dreg: Reg(word),
        key,
    };
    let (_, destination, length) = addresses_at(family);
    let words = words(family);
    Rule::new(family)
        .push(load(0, PayloadBase::Network, destination, length))
        .push(meta(words, MetaKey::L4Proto))
        .push(load(words + 1, PayloadBase::Transport, 2, 2))
        .push(meta(words + 2, MetaKey::Mark))
        .push(lookup(SLOTS))
        .push(SET_MARK)
}

/// Writes (5-tuple → packet mark) into a map.
fn remember(family: Family, rule: Rule, map: &str, op: DynsetOp, time: Duration) -> Rule {
    let mark = Reg(mark_word(family));
    let loaded = load_tuple(rule, family).push(Expr::Meta {
        dreg: mark,
        key: MetaKey::Mark,
    });
    dynset(loaded, map, op, time, Some(mark))
}

fn dynset(rule: Rule, set: &str, op: DynsetOp, time: Duration, data: Option<Reg>) -> Rule {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    rule.push(Expr::Dynset {
        set: SetRef::from(set),
        op,
        key: Reg(0),
        data,
        timeout_ms: (millis > 0).then_some(millis),
    })
}
