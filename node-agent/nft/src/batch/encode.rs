//! Parts of messages: descriptions of sets, elements, user data.

use std::ops::Range;

use crate::expr::{LIST_ELEM, encode_data_value, encode_verdict};
use crate::set::{
    DataType, Element, ElementData, FieldType, SET_CONCAT, Set, field_lengths, host_order,
};
use crate::wire::{Writer, u16_ne};

/// Payload of the first top-level attribute of a kind, and where it lies.
pub(super) fn find_with_range(
    bytes: &[u8],
    mut at: usize,
    kind: u16,
) -> Option<(&[u8], Range<usize>)> {
    loop {
        let length = usize::from(u16_ne(bytes, at)?);
        let found = u16_ne(bytes, at + 2)? & 0x3fff;
        if length < 4 {
            return None;
        }
        if found == kind {
            let range = at + 4..at + length;
            return Some((bytes.get(range.clone())?, range));
        }
        at += length.next_multiple_of(4);
    }
}

pub(super) fn encode_description(w: &mut Writer, set: &Set) {
    let concat = set.all_flags() & SET_CONCAT != 0;
    if set.size == 0 && !concat {
        return;
    }
    w.nested(9, |w| {
        if set.size > 0 {
            w.u32(1, set.size);
        }
        if concat {
            w.nested(2, |w| {
                for length in field_lengths(&set.key) {
                    w.nested(LIST_ELEM, |w| w.u32(1, length));
                }
            });
        }
    });
}

pub(super) fn encode_element(w: &mut Writer, element: &Element) {
    w.nested(LIST_ELEM, |w| {
        if element.interval_end {
            w.u32(3, 1);
        }
        w.nested(1, |w| encode_data_value(w, &element.key));
        if let Some(end) = &element.key_end {
            w.nested(10, |w| encode_data_value(w, end));
        }
        match &element.data {
            None => {}
            Some(ElementData::Value(value)) => w.nested(2, |w| encode_data_value(w, value)),
            Some(ElementData::Verdict(verdict)) => w.nested(2, |w| encode_verdict(w, verdict)),
        }
        if let Some(timeout) = element.timeout_ms {
            w.u64(4, timeout);
        }
        if let Some(expires) = element.expires_ms {
            w.u64(5, expires);
        }
    });
}

pub(super) fn element_oversized(element: &Element) -> bool {
    let data = matches!(&element.data, Some(ElementData::Value(value)) if value.oversized());
    data || element.key.oversized() || element.key_end.is_some_and(|end| end.oversized())
}

pub(super) fn c_string(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.push(0);
    bytes
}

/// libnftnl's form of user data: type, length, value. What does not fit a length byte is left out.
pub(super) fn user_data(parts: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, value) in parts {
        if let Ok(length) = u8::try_from(value.len()) {
            bytes.extend_from_slice(&[*kind, length]);
            bytes.extend_from_slice(value);
        }
    }
    bytes
}

/// Byte order of key and data, without which `nft` prints host-order numbers swapped.
pub(super) fn set_user_data(set: &Set) -> Vec<u8> {
    const HOST: u32 = 1;
    const NETWORK: u32 = 2;
    let order = |fields: &[FieldType]| {
        (if host_order(fields) { HOST } else { NETWORK })
            .to_ne_bytes()
            .to_vec()
    };
    let mut parts = vec![(0, order(&set.key))];
    if let Some(DataType::Fields(fields)) = &set.data {
        parts.push((1, order(fields)));
    }
    user_data(&parts)
}
