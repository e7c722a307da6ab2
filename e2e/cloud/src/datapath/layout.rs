//! The LB node's table: fixed rules over maps. A state of the engine is a set of elements, a change
//! of state the difference of two such sets in one batch. Pure.
//!
//! ```text
//! prerouting  nat     (daddr . proto . dport) → chain pick-<n>, by the number n of targets
//! pick-<n>            ct mark := hash of the 5-tuple mod n; dnat to map (daddr . proto . dport . ct mark)
//! rest        filter  what still has an LB address as destination: reset or silence
//! forward     filter  only flows that a pick chain has made
//! postrouting nat     frontends without client-IP preservation, targets that call themselves: masquerade
//! ```
//!
//! Floating frontends are never translated; their chains are in `floating`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use onehop_core::diff::{Diff, diff};
use onehop_nft::expr::{CT_STATUS_DNAT, CtKey, MetaKey, PayloadAt, PayloadBase};
use onehop_nft::{
    Batch, Chain, ChainType, CmpOp, CtDirection, Element, Expr, Field, FieldType, Hook, Reg, Rule,
    Set, Table, Value, Verdict,
};

use super::floating::{self, CHOICES, FIRST_SLOT, FLOATING, Idle};
use crate::engine::{DataPathState, Frontend, FrontendPath, Hairpin, LostFlow, Protocol};

const DSTNAT: i32 = -100;
const SRCNAT: i32 = 100;
/// After the translation of established flows: what still has an LB address is no flow of ours.
const AFTER_DSTNAT: i32 = -90;

const ADDRESSES: &str = "addresses";
const FRONTENDS: &str = "frontends";
const SLOTS: &str = "slots";
const TRANSLATED: &str = "translated";
const HAIRPINS: &str = "hairpins";

const TCP: u8 = Protocol::Tcp.number();
const SYN: u8 = 0x02;
const RST: u8 = 0x04;

/// Key of a frontend in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Front {
    pub(super) address: Ipv4Addr,
    pub(super) protocol: u8,
    pub(super) port: u16,
}

/// Key of one element, whatever its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Address(Ipv4Addr),
    Frontend(Front),
    Slot(Front, u32),
    Translated(Front),
    Hairpin(Ipv4Addr),
    Floating(Front),
    FloatingChoice(Front),
    FloatingSlot(Front, u32),
}

/// Marks of the delivery links to members, by address.
pub(super) type Links = BTreeMap<Ipv4Addr, u32>;

/// What an element holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Data {
    Nothing,
    Count(u32),
    Target(SocketAddrV4),
    Link(u32),
}

/// Everything in the table's sets.
pub(super) type Elements = BTreeMap<Key, Data>;

/// The elements that a state needs, or the address of a family that has no table.
/// `links` has every member of [`members`].
pub(super) fn elements(state: &DataPathState, links: &Links) -> Result<Elements, IpAddr> {
    let mut elements = Elements::new();
    for address in &state.addresses {
        elements.insert(Key::Address(v4(*address)?), Data::Nothing);
    }
    for (frontend, path) in &state.frontends {
        let front = Front::of(frontend)?;
        if path.floating {
            add_floating(&mut elements, front, path, links)?;
            continue;
        }
        let mut slots = 0;
        for target in &path.targets {
            let SocketAddr::V4(target) = target else {
                return Err(target.ip());
            };
            elements.insert(Key::Slot(front, slots), Data::Target(*target));
            if state.hairpin == Hairpin::LbNode {
                elements.insert(Key::Hairpin(*target.ip()), Data::Nothing);
            }
            slots += 1;
        }
        // Without a target the frontend is unknown to the pick chains, and `rest` drops its packets.
        if slots > 0 {
            elements.insert(Key::Frontend(front), Data::Count(slots));
        }
        if !path.preserve_client_ip {
            elements.insert(Key::Translated(front), Data::Nothing);
        }
    }
    Ok(elements)
}

/// A floating frontend: without a target it is known all the same, so that its flows keep their members.
fn add_floating(
    elements: &mut Elements,
    front: Front,
    path: &FrontendPath,
    links: &Links,
) -> Result<(), IpAddr> {
    elements.insert(Key::Floating(front), Data::Nothing);
    let mut slots = 0;
    for target in &path.targets {
        if let Some(link) = links.get(&v4(target.ip())?) {
            elements.insert(Key::FloatingSlot(front, slots), Data::Link(*link));
            slots += 1;
        }
    }
    if slots > 0 {
        elements.insert(Key::FloatingChoice(front), Data::Count(slots));
    }
    Ok(())
}

/// Members to which packets of floating frontends go.
pub(super) fn members(state: &DataPathState) -> Result<BTreeSet<Ipv4Addr>, IpAddr> {
    let floating = state.frontends.values().filter(|path| path.floating);
    let targets = floating.flat_map(|path| path.targets.iter().chain(&path.established));
    targets.map(|target| v4(target.ip())).collect()
}

impl Front {
    pub(super) fn of(frontend: &Frontend) -> Result<Self, IpAddr> {
        Ok(Self {
            address: v4(frontend.address)?,
            protocol: frontend.protocol.number(),
            port: frontend.port,
        })
    }
}

fn v4(address: IpAddr) -> Result<Ipv4Addr, IpAddr> {
    match address {
        IpAddr::V4(address) => Ok(address),
        IpAddr::V6(_) => Err(address),
    }
}

pub(super) fn table() -> Table {
    Table::ip("lb")
}

/// The table with its rules and no element.
pub(super) fn create(lost_flow: LostFlow, idle: Idle) -> Batch {
    let mut batch = Batch::new();
    let of = table();
    batch.add_table(&of, 0, None);
    let front = [FieldType::IPV4, FieldType::PROTO, FieldType::PORT];
    let slot = [
        FieldType::IPV4,
        FieldType::PROTO,
        FieldType::PORT,
        FieldType::MARK,
    ];
    batch.add_set(&of, &Set::new(ADDRESSES, &[FieldType::IPV4]));
    batch.add_set(&of, &Set::new(FRONTENDS, &front).vmap());
    batch.add_set(
        &of,
        &Set::new(SLOTS, &slot).map(&[FieldType::IPV4, FieldType::PORT]),
    );
    batch.add_set(&of, &Set::new(TRANSLATED, &front));
    let pair = [FieldType::IPV4, FieldType::IPV4];
    batch.add_set(&of, &Set::new(HAIRPINS, &pair));
    floating::create(&mut batch, idle);

    let mut chain = |name, kind, hook, priority, rules: Vec<Rule>| {
        batch.add_chain(&of, &Chain::base(name, kind, hook, priority));
        for rule in rules {
            batch.add_rule(&of, name, &rule);
        }
    };
    let key = [Field::Daddr, Field::L4Proto, Field::Dport];
    let choose = Rule::ip().vmap(&key, FRONTENDS);
    chain(
        "prerouting",
        ChainType::Nat,
        Hook::Prerouting,
        DSTNAT,
        vec![choose],
    );

    // What a delivery link takes keeps its address.
    let unmarked = || Rule::ip().is(Field::Mark, Value::new().u32_host(0));
    let ours = || unmarked().in_set(&[Field::Daddr], ADDRESSES);
    let mut rest = Vec::new();
    if lost_flow == LostFlow::Reset {
        // A flow that has ended goes on at the client: anything but a first packet.
        let lost = ours().l4proto(TCP).tcp_flags(SYN | RST, CmpOp::Eq, 0);
        rest.push(lost.counter().reject_tcp_reset());
    }
    rest.push(ours().counter().drop());
    chain(
        "rest",
        ChainType::Filter,
        Hook::Prerouting,
        AFTER_DSTNAT,
        rest,
    );

    // Packets of targets whose flow has ended must not reach the client with the target's address.
    let foreign = Rule::ip().ct_status(CT_STATUS_DNAT, false).counter().drop();
    chain(
        "forward",
        ChainType::Filter,
        Hook::Forward,
        0,
        vec![floating::marked().accept(), foreign],
    );

    let original = CtDirection::Original;
    let asked = [
        Field::CtDaddr(original),
        Field::L4Proto,
        Field::CtDport(original),
    ];
    let translate = Rule::ip().in_set(&asked, TRANSLATED).masquerade(0);
    // A packet from and to the same address would never leave the target's own network stack.
    let itself = Rule::ip().in_set(&[Field::Saddr, Field::Daddr], HAIRPINS);
    chain(
        "postrouting",
        ChainType::Nat,
        Hook::Postrouting,
        SRCNAT,
        vec![translate, itself.masquerade(0)],
    );
    batch
}

/// The batch from one set of elements to another, and the counts that have a pick chain after it.
pub(super) fn change(
    old: &Elements,
    new: &Elements,
    counts: &BTreeSet<u32>,
    idle: Idle,
) -> (Batch, BTreeSet<u32>) {
    let mut batch = Batch::new();
    let Diff {
        added,
        changed,
        removed,
    } = diff(old, new);
    let counted = |data: &Data| match data {
        Data::Count(count) => Some(*count),
        _ => None,
    };
    let needed: BTreeSet<u32> = new.values().filter_map(counted).collect();
    for count in needed.difference(counts) {
        add_pick_chain(&mut batch, *count);
        floating::add_choice(&mut batch, *count, idle);
    }
    let gone = removed.into_iter().map(|(key, data)| (*key, *data));
    let gone = gone.chain(changed.iter().map(|change| (*change.key, *change.old)));
    let come = added.into_iter().map(|(key, data)| (*key, *data));
    let come = come.chain(changed.iter().map(|change| (*change.key, *change.new)));
    for (set, elements) in by_set(gone) {
        batch.del_elements(&table(), set, elements);
    }
    for (set, elements) in by_set(come) {
        batch.add_elements(&table(), set, elements);
    }
    (batch, counts.union(&needed).copied().collect())
}

fn by_set(elements: impl Iterator<Item = (Key, Data)>) -> BTreeMap<&'static str, Vec<Element>> {
    let mut sets: BTreeMap<_, Vec<Element>> = BTreeMap::new();
    for (key, data) in elements {
        let (set, encoded) = encode_key(key);
        let element = Element::key(encoded);
        let element = match data {
            Data::Nothing => element,
            Data::Count(count) if set == CHOICES => {
                element.verdict(Verdict::Goto(floating::choice(count)))
            }
            Data::Count(count) => element.verdict(Verdict::Goto(pick(count))),
            Data::Link(mark) => element.value(Value::new().u32_host(mark)),
            Data::Target(at) => element.value(Value::new().addr((*at.ip()).into()).port(at.port())),
        };
        sets.entry(set).or_default().push(element);
    }
    sets
}

fn encode_key(key: Key) -> (&'static str, Value) {
    let front = |front: Front| {
        Value::new()
            .addr(front.address.into())
            .u8(front.protocol)
            .port(front.port)
    };
    match key {
        Key::Address(address) => (ADDRESSES, Value::new().addr(address.into())),
        Key::Frontend(of) => (FRONTENDS, front(of)),
        Key::Slot(of, slot) => (SLOTS, front(of).u32_host(slot)),
        Key::Translated(of) => (TRANSLATED, front(of)),
        Key::Floating(of) => (FLOATING, front(of)),
        Key::FloatingChoice(of) => (CHOICES, front(of)),
        Key::FloatingSlot(of, slot) => (floating::SLOTS, front(of).u32_host(FIRST_SLOT + slot)),
        Key::Hairpin(of) => (HAIRPINS, Value::new().addr(of.into()).addr(of.into())),
    }
}

fn pick(count: u32) -> String {
    format!("pick-{count}")
}

/// The chain that chooses one of `count` targets by the hash of the 5-tuple (FC-26). Only the first
/// packet of a flow gets here; conntrack pins the rest (FC-62).
fn add_pick_chain(batch: &mut Batch, count: u32) {
    let name = pick(count);
    batch.add_chain(&table(), &Chain::regular(&name));
    let load = |word, base, offset, len| Expr::Payload {
        dreg: Reg(word),
        at: PayloadAt { base, offset, len },
    };
    let choose = Rule::ip()
        .push(load(0, PayloadBase::Network, 12, 4))
        .push(load(1, PayloadBase::Network, 16, 4))
        .push(load(2, PayloadBase::Transport, 0, 2))
        .push(load(3, PayloadBase::Transport, 2, 2))
        .push(Expr::Meta {
            dreg: Reg(4),
            key: MetaKey::L4Proto,
        })
        .push(Expr::Jhash {
            sreg: Reg(0),
            dreg: Reg(0),
            len: 20,
            modulus: count,
            seed: 1,
            offset: 0,
        })
        .push(Expr::CtSet {
            sreg: Reg(0),
            key: CtKey::Mark,
            direction: None,
        });
    batch.add_rule(&table(), &name, &choose);
    let key = [Field::Daddr, Field::L4Proto, Field::Dport, Field::CtMark];
    batch.add_rule(
        &table(),
        &name,
        &Rule::ip().counter().dnat_to_map(&key, SLOTS),
    );
}
