//! The LB node's tables, one a family: fixed rules over maps. A state of the engine is a set of elements, a change
//! of state the difference of two such sets in one batch. Pure.
//!
//! ```text
//! prerouting  nat     (daddr . proto . dport) → chain pick-<n>, by the number n of targets and what the choice depends on
//! pick-<n>            ct mark := hash of the 5-tuple, or of less, mod n; dnat to map (daddr . proto . dport . ct mark);
//!                     the flow is remembered as a translated one (`floating`)
//! rest        filter  what still has an LB address as destination: reset or silence
//! forward     filter  only flows that a pick chain has made
//! postrouting nat     frontends without client-IP preservation, targets that call themselves: masquerade
//! ```
//!
//! Flows whose destination stays the frontend address are chosen, remembered and sent by the chains in `floating`. One
//! frontend may have flows of both kinds, after its listener has changed from a group of one mode to one of another.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use onehop_core::diff::{Diff, diff};
use onehop_nft::expr::{CT_STATUS_DNAT, CtKey};
use onehop_nft::{
    Batch, Chain, ChainType, CmpOp, CtDirection, Element, Expr, Family, Field, FieldType, Hook,
    Reg, Rule, Set, Table, Value, Verdict,
};

use super::among::Among;
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
/// Frontends that answer a flow which is no longer known otherwise than the profile does.
const OTHERWISE: &str = "otherwise";
const PICK: &str = "pick";

const TCP: u8 = Protocol::Tcp.number();
const SYN: u8 = 0x02;
const RST: u8 = 0x04;

/// Key of a frontend in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Front {
    pub(super) address: IpAddr,
    pub(super) protocol: u8,
    pub(super) port: u16,
}

/// Key of one element, whatever its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Address(IpAddr),
    Frontend(Front),
    Slot(Front, u32),
    Translated(Front),
    Hairpin(IpAddr),
    Otherwise(Front),
    Floating(Front),
    FloatingChoice(Front),
    FloatingSlot(Front, u32),
}

/// Marks of the delivery links to members, by address.
pub(super) type Links = BTreeMap<IpAddr, u32>;

/// What an element holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Data {
    Nothing,
    Among(Among),
    Target(SocketAddr),
    Link(u32),
}

/// Everything in the table's sets.
pub(super) type Elements = BTreeMap<Key, Data>;

/// The elements that a state needs. A frontend forwards to targets of its own family; `links` has every member of
/// [`members`].
pub(super) fn elements(state: &DataPathState, links: &Links) -> Elements {
    let mut elements = Elements::new();
    for address in &state.addresses {
        elements.insert(Key::Address(*address), Data::Nothing);
    }
    for (frontend, path) in &state.frontends {
        let front = Front::of(frontend);
        if path.lost_flow != state.lost_flow {
            elements.insert(Key::Otherwise(front), Data::Nothing);
        }
        if path.floats() || !path.established_floating.is_empty() {
            elements.insert(Key::Floating(front), Data::Nothing);
        }
        if path.floats() {
            add_choices(&mut elements, front, path, links);
            continue;
        }
        let mut slots = 0;
        for target in path.targets.iter().filter(|target| front.suits(target)) {
            elements.insert(Key::Slot(front, slots), Data::Target(*target));
            if state.hairpin == Hairpin::LbNode {
                elements.insert(Key::Hairpin(target.ip()), Data::Nothing);
            }
            slots += 1;
        }
        // Without a target the frontend is unknown to the pick chains, and `rest` drops its packets.
        if slots > 0 {
            elements.insert(Key::Frontend(front), among(path, slots));
        }
        if !path.preserve_client_ip {
            elements.insert(Key::Translated(front), Data::Nothing);
        }
    }
    elements
}

fn among(path: &FrontendPath, count: u32) -> Data {
    let by = path.choice;
    Data::Among(Among { count, by })
}

/// The members of a floating frontend.
fn add_choices(elements: &mut Elements, front: Front, path: &FrontendPath, links: &Links) {
    let mut slots = 0;
    for target in path.targets.iter().filter(|target| front.suits(target)) {
        if let Some(link) = links.get(&target.ip()) {
            elements.insert(Key::FloatingSlot(front, slots), Data::Link(*link));
            slots += 1;
        }
    }
    if slots > 0 {
        elements.insert(Key::FloatingChoice(front), among(path, slots));
    }
}

/// Members to which packets go with the frontend address as destination.
pub(super) fn members(state: &DataPathState) -> BTreeSet<IpAddr> {
    let paths = state.frontends.values();
    let chosen = |path: &'_ FrontendPath| path.floats().then(|| path.targets.clone());
    let new = paths.clone().filter_map(chosen).flatten();
    let kept = paths.flat_map(|path| path.established_floating.iter().copied());
    new.chain(kept).map(|target| target.ip()).collect()
}

impl Front {
    pub(super) fn of(frontend: &Frontend) -> Self {
        Self {
            address: frontend.address,
            protocol: frontend.protocol.number(),
            port: frontend.port,
        }
    }

    fn suits(self, target: &SocketAddr) -> bool {
        self.address.is_ipv4() == target.is_ipv4()
    }
}

pub(super) const FAMILIES: [Family; 2] = [Family::Ip, Family::Ip6];

pub(super) fn table(family: Family) -> Table {
    Table::new(family, "lb")
}

pub(super) fn address_type(family: Family) -> FieldType {
    match family {
        Family::Ip6 => FieldType::IPV6,
        _ => FieldType::IPV4,
    }
}

/// Where source and destination address lie in a packet: offset, offset, length of either.
pub(super) const fn addresses_at(family: Family) -> (u32, u32, u32) {
    match family {
        Family::Ip6 => (8, 24, 16),
        _ => (12, 16, 4),
    }
}

/// The tables with their rules and no element.
pub(super) fn create(lost_flow: LostFlow, idle: Idle) -> Batch {
    let mut batch = Batch::new();
    for family in FAMILIES {
        create_table(&mut batch, family, lost_flow, idle);
    }
    batch
}

fn create_table(batch: &mut Batch, family: Family, lost_flow: LostFlow, idle: Idle) {
    let of = table(family);
    batch.add_table(&of, 0, None);
    let address = address_type(family);
    let front = [address, FieldType::PROTO, FieldType::PORT];
    let slot = [address, FieldType::PROTO, FieldType::PORT, FieldType::MARK];
    batch.add_set(&of, &Set::new(ADDRESSES, &[address]));
    batch.add_set(&of, &Set::new(FRONTENDS, &front).vmap());
    batch.add_set(
        &of,
        &Set::new(SLOTS, &slot).map(&[address, FieldType::PORT]),
    );
    batch.add_set(&of, &Set::new(TRANSLATED, &front));
    let pair = [address, address];
    batch.add_set(&of, &Set::new(HAIRPINS, &pair));
    batch.add_set(&of, &Set::new(OTHERWISE, &front));
    floating::create(batch, family, idle);
    let rule = || Rule::new(family);

    let mut chain = |name, kind, hook, priority, rules: Vec<Rule>| {
        batch.add_chain(&of, &Chain::base(name, kind, hook, priority));
        for rule in rules {
            batch.add_rule(&of, name, &rule);
        }
    };
    let key = [Field::Daddr, Field::L4Proto, Field::Dport];
    let choose = rule().vmap(&key, FRONTENDS);
    chain(
        "prerouting",
        ChainType::Nat,
        Hook::Prerouting,
        DSTNAT,
        vec![choose],
    );

    // What a delivery link takes keeps its address.
    let unmarked = || rule().is(Field::Mark, Value::new().u32_host(0));
    let ours = || unmarked().in_set(&[Field::Daddr], ADDRESSES);
    let otherwise = || ours().in_set(&key, OTHERWISE);
    // A flow that has ended goes on at the client: anything but a first packet.
    let reset = |rule: Rule| {
        let lost = rule.l4proto(TCP).tcp_flags(SYN | RST, CmpOp::Eq, 0);
        lost.counter().reject_tcp_reset()
    };
    let mut rest = match lost_flow {
        LostFlow::Reset => vec![otherwise().counter().drop(), reset(ours())],
        LostFlow::Drop => vec![reset(otherwise())],
    };
    rest.push(ours().counter().drop());
    chain(
        "rest",
        ChainType::Filter,
        Hook::Prerouting,
        AFTER_DSTNAT,
        rest,
    );

    // Packets of targets whose flow has ended must not reach the client with the target's address.
    let foreign = rule().ct_status(CT_STATUS_DNAT, false).counter().drop();
    chain(
        "forward",
        ChainType::Filter,
        Hook::Forward,
        0,
        vec![floating::marked(family).accept(), foreign],
    );

    let original = CtDirection::Original;
    let asked = [
        Field::CtDaddr(original),
        Field::L4Proto,
        Field::CtDport(original),
    ];
    let translate = rule().in_set(&asked, TRANSLATED).masquerade(0);
    // A packet from and to the same address would never leave the target's own network stack.
    let itself = rule().in_set(&[Field::Saddr, Field::Daddr], HAIRPINS);
    chain(
        "postrouting",
        ChainType::Nat,
        Hook::Postrouting,
        SRCNAT,
        vec![translate, itself.masquerade(0)],
    );
}

/// The batch from one set of elements to another, and the choices that have chains after it.
pub(super) fn change(
    old: &Elements,
    new: &Elements,
    chains: &BTreeSet<Among>,
    idle: Idle,
) -> (Batch, BTreeSet<Among>) {
    let mut batch = Batch::new();
    let Diff {
        added,
        changed,
        removed,
    } = diff(old, new);
    let chooses = |data: &Data| match data {
        Data::Among(among) => Some(*among),
        _ => None,
    };
    let needed: BTreeSet<Among> = new.values().filter_map(chooses).collect();
    for among in needed.difference(chains) {
        for family in FAMILIES {
            add_pick_chain(&mut batch, family, *among, idle);
            floating::add_choice(&mut batch, family, *among, idle);
        }
    }
    let gone = removed.into_iter().map(|(key, data)| (*key, *data));
    let gone = gone.chain(changed.iter().map(|change| (*change.key, *change.old)));
    let come = added.into_iter().map(|(key, data)| (*key, *data));
    let come = come.chain(changed.iter().map(|change| (*change.key, *change.new)));
    for ((family, set), elements) in by_set(gone) {
        batch.del_elements(&table(family), set, elements);
    }
    for ((family, set), elements) in by_set(come) {
        batch.add_elements(&table(family), set, elements);
    }
    (batch, chains.union(&needed).copied().collect())
}

/// Elements by the table's family and the set in it.
type BySet = BTreeMap<(Family, &'static str), Vec<Element>>;

fn by_set(elements: impl Iterator<Item = (Key, Data)>) -> BySet {
    let mut sets = BySet::new();
    for (key, data) in elements {
        let (address, set, encoded) = encode_key(key);
        let family = if address.is_ipv4() {
            Family::Ip
        } else {
            Family::Ip6
        };
        let element = Element::key(encoded);
        let element = match data {
            Data::Nothing => element,
            Data::Among(among) if set == CHOICES => {
                element.verdict(Verdict::Goto(among.chain(floating::CHOOSE)))
            }
            Data::Among(among) => element.verdict(Verdict::Goto(among.chain(PICK))),
            Data::Link(mark) => element.value(Value::new().u32_host(mark)),
            Data::Target(at) => element.value(Value::new().addr(at.ip()).port(at.port())),
        };
        sets.entry((family, set)).or_default().push(element);
    }
    sets
}

fn encode_key(key: Key) -> (IpAddr, &'static str, Value) {
    let address = |of: IpAddr| Value::new().addr(of);
    let front = |front: Front| address(front.address).u8(front.protocol).port(front.port);
    match key {
        Key::Address(of) => (of, ADDRESSES, address(of)),
        Key::Frontend(of) => (of.address, FRONTENDS, front(of)),
        Key::Slot(of, slot) => (of.address, SLOTS, front(of).u32_host(slot)),
        Key::Translated(of) => (of.address, TRANSLATED, front(of)),
        Key::Otherwise(of) => (of.address, OTHERWISE, front(of)),
        Key::Floating(of) => (of.address, FLOATING, front(of)),
        Key::FloatingChoice(of) => (of.address, CHOICES, front(of)),
        Key::FloatingSlot(of, slot) => {
            let slot = front(of).u32_host(FIRST_SLOT + slot);
            (of.address, floating::SLOTS, slot)
        }
        Key::Hairpin(of) => (of, HAIRPINS, address(of).addr(of)),
    }
}

/// The chain that chooses a target (FC-26). Only the first packet of a flow gets here; conntrack pins the rest (FC-62).
fn add_pick_chain(batch: &mut Batch, family: Family, among: Among, idle: Idle) {
    let (of, name) = (table(family), among.chain(PICK));
    batch.add_chain(&of, &Chain::regular(&name));
    let choose = among.hash(family, 0).push(Expr::CtSet {
        sreg: Reg(0),
        key: CtKey::Mark,
        direction: None,
    });
    batch.add_rule(&of, &name, &choose);
    for rule in floating::remember_translated(family, idle) {
        batch.add_rule(&of, &name, &rule);
    }
    let key = [Field::Daddr, Field::L4Proto, Field::Dport, Field::CtMark];
    let translate = Rule::new(family).counter().dnat_to_map(&key, SLOTS);
    batch.add_rule(&of, &name, &translate);
}
