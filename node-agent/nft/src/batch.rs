//! One transaction: operations in order, sent in one datagram by [`crate::Socket::commit`].
//! Every method returns the number of its operation (or operations), by which a failure is told (S-254).

mod encode;

use crate::object::{Chain, Table};
use crate::rule::Rule;
use crate::set::{DataType, Element, Set, length, type_id};
use crate::wire::{
    Attributes, HEADER, NFGEN, NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_REQUEST, Writer,
};
use encode::{
    c_string, element_oversized, encode_description, encode_element, find_with_range,
    set_user_data, user_data,
};

pub(crate) const SUBSYS_NFTABLES: u16 = 10;
const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
const NFNL_MSG_BATCH_END: u16 = 0x11;
const BATCH_GENID: u16 = 1;
/// `NFT_DATA_VERDICT`: data type of a verdict map (S-227).
pub(crate) const DATA_TYPE_VERDICT: u32 = 0xffff_ff00;
/// Where an element list is cut, below the 64 KiB of an attribute (S-253).
const ELEMENT_LIST_CUT: usize = 60_000;

/// Numbers of `nf_tables` messages (S-256).
pub(crate) mod msg {
    pub(crate) const NEWTABLE: u16 = 0;
    pub(crate) const GETTABLE: u16 = 1;
    pub(crate) const DELTABLE: u16 = 2;
    pub(crate) const NEWCHAIN: u16 = 3;
    pub(crate) const GETCHAIN: u16 = 4;
    pub(crate) const DELCHAIN: u16 = 5;
    pub(crate) const NEWRULE: u16 = 6;
    pub(crate) const GETRULE: u16 = 7;
    pub(crate) const DELRULE: u16 = 8;
    pub(crate) const NEWSET: u16 = 9;
    pub(crate) const GETSET: u16 = 10;
    pub(crate) const DELSET: u16 = 11;
    pub(crate) const NEWSETELEM: u16 = 12;
    pub(crate) const GETSETELEM: u16 = 13;
    pub(crate) const DELSETELEM: u16 = 14;
    pub(crate) const NEWGEN: u16 = 15;
    pub(crate) const GETGEN: u16 = 16;
    pub(crate) const DESTROYTABLE: u16 = 26;
    pub(crate) const DESTROYSETELEM: u16 = 30;
}

/// Number of an operation within its batch.
pub type OpIndex = usize;

/// Where a message begins, and which operation it belongs to.
#[derive(Debug, Clone, Copy)]
struct Part {
    start: usize,
    op: OpIndex,
    /// Number of the first element in it, for element operations.
    first_element: usize,
}

/// Operations of one transaction.
#[derive(Debug, Clone)]
pub struct Batch {
    writer: Writer,
    parts: Vec<Part>,
    ops: usize,
    oversized: bool,
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        let mut writer = Writer::default();
        let start = writer.begin_message(NFNL_MSG_BATCH_BEGIN, NLM_F_REQUEST, 0, SUBSYS_NFTABLES);
        // Room for the generation id; without one it is taken out again when the batch is sealed.
        writer.u32(BATCH_GENID, 0);
        writer.end_message(start);
        Self {
            writer,
            parts: Vec::new(),
            ops: 0,
            oversized: false,
        }
    }

    /// Whether it holds no operation.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// How many operations it holds.
    pub fn ops(&self) -> usize {
        self.ops
    }

    /// Bytes that will be sent.
    pub fn len(&self) -> usize {
        self.writer.len()
    }

    /// Adds a table, or changes its flags; `comment` is shown by `nft` and kept in the user data.
    pub fn add_table(&mut self, table: &Table, flags: u32, comment: Option<&str>) -> OpIndex {
        self.op(msg::NEWTABLE, NLM_F_CREATE, table, |w| {
            w.string(1, &table.name);
            if flags != 0 {
                w.u32(2, flags);
            }
            if let Some(comment) = comment {
                w.attribute(6, &user_data(&[(0, c_string(comment))]));
            }
        })
    }

    /// Deletes a table with all it holds; an error when there is none.
    pub fn del_table(&mut self, table: &Table) -> OpIndex {
        self.op(msg::DELTABLE, 0, table, |w| w.string(1, &table.name))
    }

    /// Deletes a table if there is one (kernel 6.3).
    pub fn destroy_table(&mut self, table: &Table) -> OpIndex {
        self.op(msg::DESTROYTABLE, 0, table, |w| w.string(1, &table.name))
    }

    /// Adds a chain; one that exists alike is no error.
    pub fn add_chain(&mut self, table: &Table, chain: &Chain) -> OpIndex {
        self.op(msg::NEWCHAIN, NLM_F_CREATE, table, |w| {
            w.string(1, &table.name);
            w.string(3, &chain.name);
            if let Some(base) = chain.base {
                w.nested(4, |w| {
                    w.u32(1, base.hook as u32);
                    w.u32(2, base.priority.cast_unsigned());
                });
                w.u32(5, base.policy as u32);
                w.string(7, base.kind.name());
            }
        })
    }

    /// Deletes a chain that nothing names any more, with its rules.
    pub fn del_chain(&mut self, table: &Table, chain: &str) -> OpIndex {
        self.op(msg::DELCHAIN, 0, table, |w| {
            w.string(1, &table.name);
            w.string(3, chain);
        })
    }

    /// Deletes all rules of a chain.
    pub fn flush_chain(&mut self, table: &Table, chain: &str) -> OpIndex {
        self.op(msg::DELRULE, 0, table, |w| {
            w.string(1, &table.name);
            w.string(2, chain);
        })
    }

    /// Appends a rule to a chain.
    pub fn add_rule(&mut self, table: &Table, chain: &str, rule: &Rule) -> OpIndex {
        self.oversized |= rule.exprs().iter().any(crate::expr::Expr::oversized);
        self.op(msg::NEWRULE, NLM_F_CREATE | NLM_F_APPEND, table, |w| {
            w.string(1, &table.name);
            w.string(2, chain);
            w.nested(4, |w| rule.exprs().iter().for_each(|expr| expr.encode(w)));
            let (comment, others) = rule.parts();
            let mut data: Vec<(u8, Vec<u8>)> = comment
                .map(|text| (0, c_string(text)))
                .into_iter()
                .collect();
            data.extend_from_slice(others);
            if !data.is_empty() {
                w.attribute(7, &user_data(&data));
            }
        })
    }

    /// Deletes a rule by its handle.
    pub fn del_rule(&mut self, table: &Table, chain: &str, handle: u64) -> OpIndex {
        self.op(msg::DELRULE, 0, table, |w| {
            w.string(1, &table.name);
            w.string(2, chain);
            w.u64(3, handle);
        })
    }

    /// Adds a set or map; one that exists alike is no error.
    pub fn add_set(&mut self, table: &Table, set: &Set) -> OpIndex {
        self.op(msg::NEWSET, NLM_F_CREATE, table, |w| {
            w.string(1, &table.name);
            w.string(2, &set.name);
            w.u32(3, set.all_flags());
            w.u32(4, type_id(&set.key));
            w.u32(5, length(&set.key));
            match &set.data {
                None => {}
                Some(DataType::Verdict) => {
                    w.u32(6, DATA_TYPE_VERDICT);
                    w.u32(7, 0);
                }
                Some(DataType::Fields(fields)) => {
                    w.u32(6, type_id(fields));
                    w.u32(7, length(fields));
                }
            }
            // The kernel wants a number for every new set, by which rules of this batch may name it.
            w.u32(10, set.id.unwrap_or(0));
            encode_description(w, set);
            w.attribute(13, &set_user_data(set));
        })
    }

    /// Deletes a set or map that no rule names any more.
    pub fn del_set(&mut self, table: &Table, set: &str) -> OpIndex {
        self.op(msg::DELSET, 0, table, |w| {
            w.string(1, &table.name);
            w.string(2, set);
        })
    }

    /// Adds elements. One that exists with the same data is no error, with other data it is.
    pub fn add_elements(
        &mut self,
        table: &Table,
        set: &str,
        elements: impl IntoIterator<Item = Element>,
    ) -> OpIndex {
        self.elements(msg::NEWSETELEM, NLM_F_CREATE, (table, set, None), elements)
    }

    /// Adds the elements of an anonymous set of this batch.
    pub fn add_anonymous_elements(
        &mut self,
        table: &Table,
        set: &Set,
        elements: impl IntoIterator<Item = Element>,
    ) -> OpIndex {
        self.elements(
            msg::NEWSETELEM,
            NLM_F_CREATE,
            (table, &set.name, set.id),
            elements,
        )
    }

    /// Deletes elements; an error when one is missing. The data may be left out.
    pub fn del_elements(
        &mut self,
        table: &Table,
        set: &str,
        elements: impl IntoIterator<Item = Element>,
    ) -> OpIndex {
        self.elements(msg::DELSETELEM, 0, (table, set, None), elements)
    }

    /// Deletes those of the elements that exist (kernel 6.3, S-268).
    pub fn destroy_elements(
        &mut self,
        table: &Table,
        set: &str,
        elements: impl IntoIterator<Item = Element>,
    ) -> OpIndex {
        self.elements(msg::DESTROYSETELEM, 0, (table, set, None), elements)
    }

    /// Deletes all elements of a set or map.
    pub fn flush_set(&mut self, table: &Table, set: &str) -> OpIndex {
        self.op(msg::DELSETELEM, 0, table, |w| {
            w.string(1, &table.name);
            w.string(2, set);
        })
    }

    fn op(
        &mut self,
        kind: u16,
        flags: u16,
        table: &Table,
        encode: impl FnOnce(&mut Writer),
    ) -> OpIndex {
        let op = self.ops;
        self.ops += 1;
        let start = self.begin(kind, flags, table, op, 0);
        encode(&mut self.writer);
        self.writer.end_message(start);
        op
    }

    fn begin(
        &mut self,
        kind: u16,
        flags: u16,
        table: &Table,
        op: OpIndex,
        first_element: usize,
    ) -> usize {
        let kind = SUBSYS_NFTABLES << 8 | kind;
        let start = self
            .writer
            .begin_message(kind, NLM_F_REQUEST | flags, table.family as u8, 0);
        self.parts.push(Part {
            start,
            op,
            first_element,
        });
        start
    }

    fn elements(
        &mut self,
        kind: u16,
        flags: u16,
        (table, set, id): (&Table, &str, Option<u32>),
        elements: impl IntoIterator<Item = Element>,
    ) -> OpIndex {
        let op = self.ops;
        self.ops += 1;
        let mut elements = elements.into_iter().enumerate().peekable();
        while let Some((first, _)) = elements.peek() {
            let message = self.begin(kind, flags, table, op, *first);
            self.writer.string(1, &table.name);
            self.writer.string(2, set);
            if let Some(id) = id {
                self.writer.u32(4, id);
            }
            let list = self.writer.begin_nested(3);
            let start = self.writer.len();
            while self.writer.len() - start < ELEMENT_LIST_CUT {
                let Some((_, element)) = elements.next() else {
                    break;
                };
                self.oversized |= element_oversized(&element);
                encode_element(&mut self.writer, &element);
            }
            self.writer.end_nested(list);
            self.writer.end_message(message);
        }
        op
    }

    /// Ends the batch: sequence numbers from `first` (begin gets it, each message the next), ACK on the first and last
    /// message, the expected generation. `None` when something outgrew a length field; such bytes must not be sent.
    pub(crate) fn seal(&self, first: u32, generation: Option<u32>) -> Option<Sealed> {
        if self.writer.overflowed() || self.oversized {
            return None;
        }
        let mut writer = self.writer.clone();
        for (sequence, part) in (first.wrapping_add(1)..).zip(&self.parts) {
            writer.set_sequence(part.start, sequence);
        }
        for part in [self.parts.first(), self.parts.last()]
            .into_iter()
            .flatten()
        {
            writer.or_flags(part.start, NLM_F_ACK);
        }
        let end = writer.begin_message(NFNL_MSG_BATCH_END, NLM_F_REQUEST, 0, SUBSYS_NFTABLES);
        writer.end_message(end);
        let last = first.wrapping_add(u32::try_from(self.parts.len()).ok()?);
        writer.set_sequence(end, last.wrapping_add(1));
        writer.set_sequence(0, first);
        let bytes = writer.seal_generation(generation);
        Some(Sealed { bytes, first, last })
    }

    /// The operation (and element of it) that the message with this number and this bad attribute belongs to.
    pub(crate) fn locate(
        &self,
        message: u32,
        offset: Option<u32>,
    ) -> Option<(OpIndex, Option<usize>)> {
        let index = usize::try_from(message).ok()?;
        let part = self.parts.get(index)?;
        let element =
            offset.and_then(|offset| self.element_at(part, usize::try_from(offset).ok()?));
        Some((part.op, element))
    }

    fn element_at(&self, part: &Part, offset: usize) -> Option<usize> {
        let bytes = self.writer.bytes().get(part.start..)?;
        let kind = crate::wire::u16_ne(bytes, 4)? & 0xff;
        if !matches!(
            kind,
            msg::NEWSETELEM | msg::DELSETELEM | msg::DESTROYSETELEM
        ) {
            return None;
        }
        let (list, range) = find_with_range(bytes, HEADER + NFGEN, 3)?;
        let mut at = range.start;
        for (index, (_, payload)) in (part.first_element..).zip(Attributes(list)) {
            let end = at + 4 + payload.len();
            if (at..end).contains(&offset) {
                return Some(index);
            }
            at = end.next_multiple_of(4);
        }
        None
    }
}

/// A batch ready to be sent.
pub(crate) struct Sealed {
    pub(crate) bytes: Vec<u8>,
    /// Sequence number of batch-begin.
    pub(crate) first: u32,
    /// Sequence number of the last operation.
    pub(crate) last: u32,
}
