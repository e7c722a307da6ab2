//! What the kernel holds, as read back: parsing of dump messages.

use crate::batch::DATA_TYPE_VERDICT;
use crate::expr::Verdict;
use crate::object::{Base, ChainType, Family, Hook, Policy, Table};
use crate::set::{DataType, Element, ElementData, Set, length, type_id};
use crate::value::Value;
use crate::wire::{Attributes, Message};

/// A table in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableInfo {
    /// Family and name.
    pub table: Table,
    /// Flags.
    pub flags: u32,
    /// Netlink port of the owner, if it has one.
    pub owner: Option<u32>,
    /// The comment `nft` shows.
    pub comment: Option<String>,
}

/// A chain in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainInfo {
    /// Name.
    pub name: String,
    /// `None`: a regular chain.
    pub base: Option<Base>,
    /// How many rules and elements name it, and how many rules it has.
    pub uses: u32,
}

/// Packets and bytes of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counter {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A rule in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleInfo {
    /// Chain.
    pub chain: String,
    /// Handle, to delete it by.
    pub handle: u64,
    /// The expressions as the kernel sends them.
    pub exprs: Vec<u8>,
    /// The comment `nft` shows.
    pub comment: Option<String>,
    /// User data as type and value.
    pub user_data: Vec<(u8, Vec<u8>)>,
    /// Its first counter, if it has one.
    pub counter: Option<Counter>,
}

/// A set or map in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetInfo {
    /// Name.
    pub name: String,
    /// Flags.
    pub flags: u32,
    /// nft's type number of the key.
    pub key_type: u32,
    /// Length of the key.
    pub key_len: u32,
    /// nft's type number of the data.
    pub data_type: Option<u32>,
    /// Length of the data.
    pub data_len: Option<u32>,
    /// Most elements.
    pub size: u32,
}

impl SetInfo {
    /// What the kernel will show of a set declared so.
    pub fn expected(set: &Set) -> Self {
        let (data_type, data_len) = match &set.data {
            None => (None, None),
            Some(DataType::Verdict) => (Some(DATA_TYPE_VERDICT), None),
            Some(DataType::Fields(fields)) => (Some(type_id(fields)), Some(length(fields))),
        };
        Self {
            name: set.name.clone(),
            flags: set.all_flags(),
            key_type: type_id(&set.key),
            key_len: length(&set.key),
            data_type,
            data_len,
            size: set.size,
        }
    }
}

pub(crate) fn table(message: &Message<'_>) -> Option<TableInfo> {
    let attributes = message.attributes();
    Some(TableInfo {
        table: Table {
            family: Family::from_number(message.family())?,
            name: attributes.string(1)?,
        },
        flags: attributes.u32(2).unwrap_or(0),
        owner: attributes.u32(7),
        comment: comment(&user_data(attributes.find(6).unwrap_or_default())),
    })
}

pub(crate) fn chain(message: &Message<'_>, of: &Table) -> Option<ChainInfo> {
    let attributes = in_table(message, of)?;
    let hook = attributes.nested(4);
    let base = hook.u32(1).and_then(|number| {
        Some(Base {
            kind: chain_type(&attributes.string(7)?)?,
            hook: Hook::from_number(number)?,
            priority: hook.u32(2)?.cast_signed(),
            policy: if attributes.u32(5) == Some(0) {
                Policy::Drop
            } else {
                Policy::Accept
            },
        })
    });
    Some(ChainInfo {
        name: attributes.string(3)?,
        base,
        uses: attributes.u32(6).unwrap_or(0),
    })
}

pub(crate) fn rule(message: &Message<'_>, of: &Table) -> Option<RuleInfo> {
    let attributes = in_table(message, of)?;
    let user_data = user_data(attributes.find(7).unwrap_or_default());
    let exprs = attributes.find(4).unwrap_or_default();
    Some(RuleInfo {
        chain: attributes.string(2)?,
        handle: attributes.u64(3)?,
        counter: counter(Attributes(exprs)),
        exprs: exprs.to_vec(),
        comment: comment(&user_data),
        user_data,
    })
}

pub(crate) fn set(message: &Message<'_>, of: &Table) -> Option<SetInfo> {
    let attributes = in_table(message, of)?;
    Some(SetInfo {
        name: attributes.string(2)?,
        flags: attributes.u32(3).unwrap_or(0),
        key_type: attributes.u32(4).unwrap_or(0),
        key_len: attributes.u32(5).unwrap_or(0),
        data_type: attributes.u32(6),
        // Of a verdict the kernel tells its own size.
        data_len: attributes
            .u32(7)
            .filter(|_| attributes.u32(6) != Some(DATA_TYPE_VERDICT)),
        size: attributes.nested(9).u32(1).unwrap_or(0),
    })
}

pub(crate) fn elements(message: &Message<'_>) -> Vec<Element> {
    message
        .attributes()
        .nested(3)
        .into_iter()
        .filter_map(|(_, payload)| element(Attributes(payload)))
        .collect()
}

fn element(attributes: Attributes<'_>) -> Option<Element> {
    let value = |nested: Attributes<'_>| nested.find(1).map(Value::exact);
    let data = attributes.nested(2);
    let verdict = data
        .find(2)
        .and_then(|payload| verdict(Attributes(payload)));
    Some(Element {
        key: value(attributes.nested(1))?,
        key_end: value(attributes.nested(10)),
        interval_end: attributes.u32(3).unwrap_or(0) & 1 != 0,
        data: verdict
            .map(ElementData::Verdict)
            .or_else(|| value(data).map(ElementData::Value)),
        timeout_ms: attributes.u64(4),
        expires_ms: attributes.u64(5),
    })
}

fn verdict(attributes: Attributes<'_>) -> Option<Verdict> {
    let chain = || attributes.string(2);
    match attributes.u32(1)?.cast_signed() {
        0 => Some(Verdict::Drop),
        1 => Some(Verdict::Accept),
        -1 => Some(Verdict::Continue),
        -5 => Some(Verdict::Return),
        -3 => chain().map(Verdict::Jump),
        -4 => chain().map(Verdict::Goto),
        _ => None,
    }
}

fn in_table<'a>(message: &Message<'a>, of: &Table) -> Option<Attributes<'a>> {
    let attributes = message.attributes();
    (message.family() == of.family as u8 && attributes.string(1)? == of.name).then_some(attributes)
}

fn chain_type(name: &str) -> Option<ChainType> {
    [ChainType::Filter, ChainType::Nat, ChainType::Route]
        .into_iter()
        .find(|kind| kind.name() == name)
}

fn counter(exprs: Attributes<'_>) -> Option<Counter> {
    exprs
        .into_iter()
        .map(|(_, payload)| Attributes(payload))
        .find_map(|expr| {
            let data = expr.nested(2);
            (expr.string(1)? == "counter").then(|| Counter {
                bytes: data.u64(1).unwrap_or(0),
                packets: data.u64(2).unwrap_or(0),
            })
        })
}

fn user_data(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut parts = Vec::new();
    while let [kind, length, rest @ ..] = bytes {
        let Some(value) = rest.get(..usize::from(*length)) else {
            break;
        };
        parts.push((*kind, value.to_vec()));
        bytes = &rest[value.len()..];
    }
    parts
}

fn comment(user_data: &[(u8, Vec<u8>)]) -> Option<String> {
    let (_, value) = user_data.iter().find(|(kind, _)| *kind == 0)?;
    Some(String::from_utf8_lossy(value.strip_suffix(&[0]).unwrap_or(value)).into_owned())
}
