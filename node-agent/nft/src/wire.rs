//! Netlink messages and attributes as bytes: a writer with length checks, and a reader that trusts nothing.
//! Called by every encoder and parser of this crate.

/// Message header length.
pub(crate) const HEADER: usize = 16;
/// `struct nfgenmsg` length.
pub(crate) const NFGEN: usize = 4;

pub(crate) const NLM_F_REQUEST: u16 = 0x1;
pub(crate) const NLM_F_ACK: u16 = 0x4;
pub(crate) const NLM_F_DUMP: u16 = 0x300;
pub(crate) const NLM_F_CREATE: u16 = 0x400;
pub(crate) const NLM_F_APPEND: u16 = 0x800;
pub(crate) const NLMSG_ERROR: u16 = 2;
pub(crate) const NLMSG_DONE: u16 = 3;

const NLA_F_NESTED: u16 = 0x8000;
const NLA_TYPE_MASK: u16 = 0x3fff;

const fn align(length: usize) -> usize {
    (length + 3) & !3
}

/// Append-only buffer of whole messages.
#[derive(Debug, Default, Clone)]
pub(crate) struct Writer {
    buffer: Vec<u8>,
    /// Set when an attribute or message outgrew its length field; such a buffer must never be sent.
    overflow: bool,
}

impl Writer {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    pub(crate) fn len(&self) -> usize {
        self.buffer.len()
    }

    pub(crate) fn overflowed(&self) -> bool {
        self.overflow
    }

    /// Starts a message; ended by [`Self::end_message`] with the returned position.
    pub(crate) fn begin_message(
        &mut self,
        kind: u16,
        flags: u16,
        family: u8,
        resource: u16,
    ) -> usize {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(&0_u32.to_ne_bytes());
        self.buffer.extend_from_slice(&kind.to_ne_bytes());
        self.buffer.extend_from_slice(&flags.to_ne_bytes());
        self.buffer.extend_from_slice(&[0; 8]);
        self.buffer.extend_from_slice(&[family, 0]);
        self.buffer.extend_from_slice(&resource.to_be_bytes());
        start
    }

    pub(crate) fn end_message(&mut self, start: usize) {
        match u32::try_from(self.buffer.len() - start) {
            Ok(length) => self.buffer[start..start + 4].copy_from_slice(&length.to_ne_bytes()),
            Err(_) => self.overflow = true,
        }
    }

    /// The finished batch. Its first message was begun with room for a generation id behind `nfgenmsg`; the id is filled
    /// in, or the room is taken out.
    pub(crate) fn seal_generation(mut self, generation: Option<u32>) -> Vec<u8> {
        const ROOM: std::ops::Range<usize> = HEADER + NFGEN..HEADER + NFGEN + 8;
        if let Some(id) = generation {
            self.buffer[ROOM.start + 4..ROOM.end].copy_from_slice(&id.to_be_bytes());
        } else {
            self.buffer.drain(ROOM);
            // All of the first message that is left is its headers.
            let length = u32::try_from(ROOM.start).unwrap_or(u32::MAX);
            self.buffer[..4].copy_from_slice(&length.to_ne_bytes());
        }
        self.buffer
    }

    pub(crate) fn or_flags(&mut self, message: usize, flags: u16) {
        let at = message + 6;
        let old = u16::from_ne_bytes([self.buffer[at], self.buffer[at + 1]]);
        self.buffer[at..at + 2].copy_from_slice(&(old | flags).to_ne_bytes());
    }

    pub(crate) fn set_sequence(&mut self, message: usize, sequence: u32) {
        self.buffer[message + 8..message + 12].copy_from_slice(&sequence.to_ne_bytes());
    }

    pub(crate) fn attribute(&mut self, kind: u16, payload: &[u8]) {
        let Some(length) = u16::try_from(payload.len() + 4).ok() else {
            self.overflow = true;
            return;
        };
        self.buffer.extend_from_slice(&length.to_ne_bytes());
        self.buffer.extend_from_slice(&kind.to_ne_bytes());
        self.buffer.extend_from_slice(payload);
        self.buffer.resize(align(self.buffer.len()), 0);
    }

    /// Appends whole attributes as they are.
    pub(crate) fn raw(&mut self, attributes: &[u8]) {
        self.buffer.extend_from_slice(attributes);
        self.buffer.resize(align(self.buffer.len()), 0);
    }

    pub(crate) fn u8(&mut self, kind: u16, value: u8) {
        self.attribute(kind, &[value]);
    }

    pub(crate) fn u16(&mut self, kind: u16, value: u16) {
        self.attribute(kind, &value.to_be_bytes());
    }

    pub(crate) fn u32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_be_bytes());
    }

    pub(crate) fn u64(&mut self, kind: u16, value: u64) {
        self.attribute(kind, &value.to_be_bytes());
    }

    pub(crate) fn string(&mut self, kind: u16, value: &str) {
        let mut bytes = Vec::with_capacity(value.len() + 1);
        bytes.extend_from_slice(value.as_bytes());
        bytes.push(0);
        self.attribute(kind, &bytes);
    }

    /// Starts a nested attribute; ended by [`Self::end_nested`] with the returned position.
    pub(crate) fn begin_nested(&mut self, kind: u16) -> usize {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(&[0; 2]);
        self.buffer
            .extend_from_slice(&(kind | NLA_F_NESTED).to_ne_bytes());
        start
    }

    pub(crate) fn end_nested(&mut self, start: usize) {
        match u16::try_from(self.buffer.len() - start) {
            Ok(length) => self.buffer[start..start + 2].copy_from_slice(&length.to_ne_bytes()),
            Err(_) => self.overflow = true,
        }
    }

    pub(crate) fn nested(&mut self, kind: u16, inner: impl FnOnce(&mut Self)) {
        let start = self.begin_nested(kind);
        inner(self);
        self.end_nested(start);
    }
}

/// One received message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    pub(crate) port_id: u32,
    /// All after the header.
    pub(crate) body: &'a [u8],
}

impl<'a> Message<'a> {
    /// The messages of a datagram; stops at the first malformed one.
    pub(crate) fn all(mut datagram: &'a [u8]) -> impl Iterator<Item = Message<'a>> {
        std::iter::from_fn(move || {
            let length = usize::try_from(u32_ne(datagram, 0)?).ok()?;
            if length < HEADER || length > datagram.len() {
                return None;
            }
            let message = Message {
                kind: u16_ne(datagram, 4)?,
                flags: u16_ne(datagram, 6)?,
                sequence: u32_ne(datagram, 8)?,
                port_id: u32_ne(datagram, 12)?,
                body: &datagram[HEADER..length],
            };
            datagram = datagram.get(align(length)..).unwrap_or_default();
            Some(message)
        })
    }

    /// The family byte of `nfgenmsg`.
    pub(crate) fn family(&self) -> u8 {
        self.body.first().copied().unwrap_or(0)
    }

    /// The attributes behind `nfgenmsg`.
    pub(crate) fn attributes(&self) -> Attributes<'a> {
        Attributes(self.body.get(NFGEN..).unwrap_or_default())
    }
}

/// Attributes in a stretch of bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attributes<'a>(pub(crate) &'a [u8]);

impl<'a> IntoIterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);
    type IntoIter = AttributeIter<'a>;

    fn into_iter(self) -> Self::IntoIter {
        AttributeIter(self.0)
    }
}

/// Walks over attributes; stops at the first malformed one.
#[derive(Debug)]
pub(crate) struct AttributeIter<'a>(&'a [u8]);

impl<'a> Iterator for AttributeIter<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let length = usize::from(u16_ne(self.0, 0)?);
        if length < 4 || length > self.0.len() {
            return None;
        }
        let kind = u16_ne(self.0, 2)? & NLA_TYPE_MASK;
        let payload = &self.0[4..length];
        self.0 = self.0.get(align(length)..).unwrap_or_default();
        Some((kind, payload))
    }
}

impl<'a> Attributes<'a> {
    pub(crate) fn find(self, kind: u16) -> Option<&'a [u8]> {
        self.into_iter()
            .find_map(|(k, payload)| (k == kind).then_some(payload))
    }

    pub(crate) fn nested(self, kind: u16) -> Attributes<'a> {
        Attributes(self.find(kind).unwrap_or_default())
    }

    pub(crate) fn u8(self, kind: u16) -> Option<u8> {
        self.find(kind)?.first().copied()
    }

    pub(crate) fn u16(self, kind: u16) -> Option<u16> {
        Some(u16::from_be_bytes(self.find(kind)?.try_into().ok()?))
    }

    pub(crate) fn u32(self, kind: u16) -> Option<u32> {
        Some(u32::from_be_bytes(self.find(kind)?.try_into().ok()?))
    }

    pub(crate) fn u64(self, kind: u16) -> Option<u64> {
        Some(u64::from_be_bytes(self.find(kind)?.try_into().ok()?))
    }

    pub(crate) fn string(self, kind: u16) -> Option<String> {
        let bytes = self.find(kind)?;
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }
}

pub(crate) fn u16_ne(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn u32_ne(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longest payload of one attribute: its length field has 16 bits.
    const MAX_ATTRIBUTE: usize = 65_535 - 4;

    #[test]
    fn s253_an_attribute_beyond_64_kib_is_noticed() {
        let mut writer = Writer::default();
        writer.attribute(1, &vec![0; MAX_ATTRIBUTE]);
        assert!(!writer.overflowed());
        writer.attribute(1, &vec![0; MAX_ATTRIBUTE + 1]);
        assert!(writer.overflowed());
    }

    #[test]
    fn s253_a_nested_attribute_beyond_64_kib_is_noticed() {
        let mut writer = Writer::default();
        let half = vec![0; 40_000];
        writer.nested(1, |w| (0..2).for_each(|_| w.attribute(2, &half)));
        assert!(writer.overflowed());
    }

    #[test]
    fn malformed_lengths_end_the_reading() {
        assert_eq!(Attributes(&[2, 0, 1, 0]).into_iter().count(), 0);
        assert_eq!(Attributes(&[200, 0, 1, 0]).into_iter().count(), 0);
        assert_eq!(Message::all(&[255; 20]).count(), 0);
    }

    proptest::proptest! {
        #[test]
        fn no_datagram_breaks_the_reader(bytes in proptest::collection::vec(0_u8..=255, 0..200)) {
            for message in Message::all(&bytes) {
                message.attributes().into_iter().for_each(drop);
            }
            Attributes(&bytes).into_iter().for_each(|(kind, _)| {
                Attributes(&bytes).string(kind);
            });
        }
    }
}
