//! Sets, maps, verdict maps and their elements, as descriptions.
//! [`crate::Batch`] turns them into messages, read-back returns them.

use crate::expr::{SetRef, Verdict};
use crate::value::Value;

/// Type of a key or data field, by which `nft` prints it; the kernel knows lengths only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldType {
    id: u32,
    len: u32,
    host_order: bool,
}

impl FieldType {
    /// IPv4 address.
    pub const IPV4: Self = Self {
        id: 7,
        len: 4,
        host_order: false,
    };
    /// IPv6 address.
    pub const IPV6: Self = Self {
        id: 8,
        len: 16,
        host_order: false,
    };
    /// Transport protocol.
    pub const PROTO: Self = Self {
        id: 12,
        len: 1,
        host_order: false,
    };
    /// Port.
    pub const PORT: Self = Self {
        id: 13,
        len: 2,
        host_order: false,
    };
    /// Mark, or any number in host order.
    pub const MARK: Self = Self {
        id: 19,
        len: 4,
        host_order: true,
    };
    /// Interface name.
    pub const IFNAME: Self = Self {
        id: 41,
        len: 16,
        host_order: true,
    };
}

pub(crate) const SET_ANONYMOUS: u32 = 1;
pub(crate) const SET_CONSTANT: u32 = 2;
pub(crate) const SET_INTERVAL: u32 = 4;
pub(crate) const SET_MAP: u32 = 8;
pub(crate) const SET_TIMEOUT: u32 = 16;
pub(crate) const SET_EVAL: u32 = 32;
pub(crate) const SET_CONCAT: u32 = 128;

/// Data of a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataType {
    /// Verdicts.
    Verdict,
    /// A concatenation of fields.
    Fields(Vec<FieldType>),
}

/// A set, map or verdict map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    /// Name; `__set%d` or `__map%d` for an anonymous one.
    pub name: String,
    /// Fields of the key.
    pub key: Vec<FieldType>,
    /// `None`: a plain set.
    pub data: Option<DataType>,
    /// Flags beside those that follow from the rest.
    pub(crate) flags: u32,
    /// Most elements; 0 = no limit.
    pub size: u32,
    /// Number of an anonymous set within its batch.
    pub(crate) id: Option<u32>,
}

impl Set {
    /// A plain set.
    pub fn new(name: &str, key: &[FieldType]) -> Self {
        Self {
            name: name.to_owned(),
            key: key.to_vec(),
            data: None,
            flags: 0,
            size: 0,
            id: None,
        }
    }

    /// A constant set for one rule of the same batch, named there by [`Set::reference`]. `id` is unique in the batch.
    pub fn anonymous(id: u32, key: &[FieldType]) -> Self {
        Self {
            flags: SET_ANONYMOUS | SET_CONSTANT,
            id: Some(id),
            ..Self::new("__set%d", key)
        }
    }

    /// A map to these fields.
    #[must_use]
    pub fn map(mut self, data: &[FieldType]) -> Self {
        self.data = Some(DataType::Fields(data.to_vec()));
        self
    }

    /// A verdict map.
    #[must_use]
    pub fn vmap(mut self) -> Self {
        self.data = Some(DataType::Verdict);
        self
    }

    /// Keys are ranges.
    #[must_use]
    pub fn interval(mut self) -> Self {
        self.flags |= SET_INTERVAL;
        self
    }

    /// Elements may have a time-out.
    #[must_use]
    pub fn timeout(mut self) -> Self {
        self.flags |= SET_TIMEOUT;
        self
    }

    /// Written by rules (dynset).
    #[must_use]
    pub fn dynamic(mut self) -> Self {
        self.flags |= SET_EVAL;
        self
    }

    /// Limits the number of elements.
    #[must_use]
    pub fn size(mut self, size: u32) -> Self {
        self.size = size;
        self
    }

    /// How rules name it.
    pub fn reference(&self) -> SetRef {
        SetRef {
            name: self.name.clone(),
            id: self.id,
        }
    }

    /// All flags.
    pub fn all_flags(&self) -> u32 {
        let map = if self.data.is_some() { SET_MAP } else { 0 };
        let concat = if self.flags & SET_INTERVAL != 0 && self.key.len() > 1 {
            SET_CONCAT
        } else {
            0
        };
        self.flags | map | concat
    }
}

/// `nft`'s number of a concatenation: six bits a field.
pub(crate) fn type_id(fields: &[FieldType]) -> u32 {
    fields.iter().fold(0, |id, field| id << 6 | field.id)
}

/// Length in bytes: fields of a concatenation are padded to four bytes.
pub(crate) fn length(fields: &[FieldType]) -> u32 {
    match fields {
        [single] => single.len,
        several => several
            .iter()
            .map(|field| field.len.next_multiple_of(4))
            .sum(),
    }
}

/// Lengths of the fields, unpadded (S-224).
pub(crate) fn field_lengths(fields: &[FieldType]) -> impl Iterator<Item = u32> + '_ {
    fields.iter().map(|field| field.len)
}

/// Whether `nft` must be told that the number is in host order.
pub(crate) fn host_order(fields: &[FieldType]) -> bool {
    matches!(fields, [single] if single.host_order)
}

/// Data of an element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ElementData {
    /// A value.
    Value(Value),
    /// A verdict.
    Verdict(Verdict),
}

/// An element of a set or map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    /// Key, or the lower end of a range.
    pub key: Value,
    /// Upper end, included; in interval sets of several fields only.
    pub key_end: Option<Value>,
    /// Marks the end of a range (excluded) in interval sets of one field.
    pub interval_end: bool,
    /// Data; maps only.
    pub data: Option<ElementData>,
    /// Life time in ms. On read-back: what it was set to.
    pub timeout_ms: Option<u64>,
    /// What is left of it. May be given, together with the life time, to an element that is made again.
    pub expires_ms: Option<u64>,
}

impl Element {
    /// Element of a plain set.
    pub fn key(key: Value) -> Self {
        Self {
            key,
            key_end: None,
            interval_end: false,
            data: None,
            timeout_ms: None,
            expires_ms: None,
        }
    }

    /// A range of keys, both ends included, in an interval set of several fields.
    pub fn range(from: Value, to: Value) -> Self {
        Self {
            key_end: Some(to),
            ..Self::key(from)
        }
    }

    /// A range of keys, both ends included, in an interval set of one field: one or two elements.
    pub fn span(from: &[u8], to: &[u8]) -> Vec<Self> {
        let mut elements = vec![Self::key(Value::exact(from))];
        let mut end = to.to_vec();
        // One past the last; a range that goes up to the highest key has no end element.
        let carried = end.iter_mut().rev().any(|byte| {
            *byte = byte.wrapping_add(1);
            *byte != 0
        });
        if carried {
            elements.push(Self {
                interval_end: true,
                ..Self::key(Value::exact(&end))
            });
        }
        elements
    }

    /// Map element with a value.
    #[must_use]
    pub fn value(mut self, data: Value) -> Self {
        self.data = Some(ElementData::Value(data));
        self
    }

    /// Map element with a verdict.
    #[must_use]
    pub fn verdict(mut self, verdict: Verdict) -> Self {
        self.data = Some(ElementData::Verdict(verdict));
        self
    }

    /// With a life time.
    #[must_use]
    pub fn timeout_ms(mut self, timeout: u64) -> Self {
        self.timeout_ms = Some(timeout);
        self
    }
}
