//! What the rules themselves count of flows that come late (ZD-122): chains that do nothing else, which others jump to.
//!
//! A NAT chain sees the first packet of a flow only, so what is counted there are flows. The numbers lie in the kernel and
//! are read when somebody asks; rules that are written anew begin at zero, as any counter may.

use std::collections::BTreeMap;

use onehop_core::time::Time;
use onehop_nft::{CmpOp, DumpError, Element, FieldType, Rule, Set, Socket};

use super::element::{Family, Frontend, Protocol};
use super::guard::syn;
use super::layout::{K, nft_family, table};
use super::set::{address, decode_frontend};

/// Guarded targets to which a new flow came, each for a time after its last one; written by the rules alone.
const LATE: &str = "late";
/// Longer than any guard lasts from a target's deregistration on.
const LATE_FOR_MS: u64 = 3_600_000;
const LATE_AT_MOST: u32 = 65_535;
const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Counted {
    /// New flows of a guarded target that went to another endpoint of the node.
    SteeredHere,
    /// Those that went to another node.
    SteeredElsewhere,
    /// New flows to a target that is gone, refused since nobody serves (ZD-55).
    Refused,
    /// New flows that came in the Local window, which went to another node (ZD-60).
    Window,
}

impl Counted {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::SteeredHere,
        Self::SteeredElsewhere,
        Self::Refused,
        Self::Window,
    ];

    /// The chain that counts it.
    pub(super) const fn chain(self) -> &'static str {
        match self {
            Self::SteeredHere => "count-steered-here",
            Self::SteeredElsewhere => "count-steered-elsewhere",
            Self::Refused => "count-refused",
            Self::Window => "count-window",
        }
    }
}

/// Flows by what was done with them and their protocol, over both families.
pub type Counts = BTreeMap<(Counted, Protocol), u64>;

/// The chains.
pub(super) fn chains(family: Family) -> impl Iterator<Item = (String, Vec<Rule>)> {
    let of = move |counted: Counted| (counted.chain().to_owned(), rules(family, counted));
    Counted::ALL.into_iter().map(of)
}

fn rules(family: Family, counted: Counted) -> Vec<Rule> {
    let rule = || Rule::new(nft_family(family));
    let count = |protocol| match (counted, protocol) {
        // Later packets of old flows are refused, too.
        (Counted::Refused, Protocol::Tcp) => syn(family, CmpOp::Eq).counter(),
        _ => rule().l4proto(protocol.number()).counter(),
    };
    let mut rules: Vec<Rule> = PROTOCOLS.into_iter().map(count).collect();
    if matches!(counted, Counted::SteeredHere | Counted::SteeredElsewhere) {
        rules.push(rule().update_set(&K, LATE, LATE_FOR_MS));
    }
    rules
}

/// Sets that the rules write themselves.
pub(super) fn own_sets(family: Family) -> [Set; 1] {
    let key = [address(family), FieldType::PROTO, FieldType::PORT];
    [Set::new(LATE, &key).dynamic().timeout().size(LATE_AT_MOST)]
}

/// Reads all counts; a table that is not there has none.
pub fn read(socket: &mut Socket) -> Result<Counts, DumpError> {
    let mut counts = Counts::new();
    for family in Family::ALL {
        let table = table(family);
        for counted in Counted::ALL {
            let rules = match socket.rules(&table, Some(counted.chain())) {
                Err(DumpError::NotFound) => continue,
                rules => rules?,
            };
            let found = rules.iter().filter_map(|rule| rule.counter);
            for (protocol, counter) in PROTOCOLS.into_iter().zip(found) {
                *counts.entry((counted, protocol)).or_default() += counter.packets;
            }
        }
    }
    Ok(counts)
}

/// When the last new flow came to each guarded target, as far as one came, if it is now `now`.
pub fn last_flows(
    socket: &mut Socket,
    family: Family,
    now: Time,
) -> Result<BTreeMap<Frontend, Time>, DumpError> {
    let elements = match socket.elements(&table(family), LATE) {
        Err(DumpError::NotFound) => return Ok(BTreeMap::new()),
        elements => elements?,
    };
    let at = |element: &Element| {
        let age = LATE_FOR_MS.checked_sub(element.expires_ms?)?;
        let age = std::time::Duration::from_millis(age);
        Some((decode_frontend(family, element)?, now - age))
    };
    Ok(elements.iter().filter_map(at).collect())
}
