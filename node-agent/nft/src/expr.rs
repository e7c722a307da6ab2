//! Expressions of a rule, as the kernel knows them, and their encoding (S-257).
//! [`crate::Rule`] builds the usual ones; what it lacks is pushed as an [`Expr`].

use crate::Family;
use crate::value::Value;
use crate::wire::Writer;

/// One of the sixteen 4-byte words of register space, 0 to 15.
/// Words 0, 4, 8 and 12 begin the four registers of 16 bytes and are written by their old numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reg(pub u8);

impl Reg {
    fn number(self) -> u32 {
        match self.0 % 4 {
            0 => 1 + u32::from(self.0 / 4),
            _ => 8 + u32::from(self.0),
        }
    }
}

/// Which header a payload expression counts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PayloadBase {
    /// Link layer header.
    Link = 0,
    /// Network header.
    Network = 1,
    /// Transport header.
    Transport = 2,
}

/// What a meta expression reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetaKey {
    /// Packet length, host order.
    Len = 0,
    /// Ethertype.
    Protocol = 1,
    /// Packet mark, host order.
    Mark = 3,
    /// Input interface index, host order.
    Iif = 4,
    /// Output interface index, host order.
    Oif = 5,
    /// Input interface name, 16 bytes.
    IifName = 6,
    /// Output interface name, 16 bytes.
    OifName = 7,
    /// Trace flag.
    Nftrace = 12,
    /// Network family, one byte.
    NfProto = 15,
    /// Transport protocol, one byte.
    L4Proto = 16,
}

/// What a ct expression reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CtKey {
    /// State bits, host order.
    State = 0,
    /// Direction of the packet, one byte.
    Direction = 1,
    /// Status bits, host order.
    Status = 2,
    /// Connection mark, host order.
    Mark = 3,
    /// Transport protocol, one byte.
    Protocol = 10,
    /// Source port; needs a direction.
    ProtoSrc = 11,
    /// Destination port; needs a direction.
    ProtoDst = 12,
    /// Zone, host order 16 bit.
    Zone = 17,
    /// IPv4 source; needs a direction.
    SrcIp = 19,
    /// IPv4 destination; needs a direction.
    DstIp = 20,
    /// IPv6 source; needs a direction.
    SrcIp6 = 21,
    /// IPv6 destination; needs a direction.
    DstIp6 = 22,
}

/// Direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CtDirection {
    /// As the first packet went.
    Original = 0,
    /// As replies go.
    Reply = 1,
}

/// `ct state new`.
pub const CT_STATE_NEW: u32 = 8;
/// `ct state established`.
pub const CT_STATE_ESTABLISHED: u32 = 2;
/// `ct state related`.
pub const CT_STATE_RELATED: u32 = 4;
/// `ct state invalid`.
pub const CT_STATE_INVALID: u32 = 1;
/// `ct state untracked`.
pub const CT_STATE_UNTRACKED: u32 = 64;
/// `ct status snat`.
pub const CT_STATUS_SNAT: u32 = 0x10;
/// `ct status dnat`.
pub const CT_STATUS_DNAT: u32 = 0x20;

/// Comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CmpOp {
    /// Equal.
    Eq = 0,
    /// Not equal.
    Neq = 1,
    /// Less than.
    Lt = 2,
    /// At most.
    Lte = 3,
    /// Greater than.
    Gt = 4,
    /// At least.
    Gte = 5,
}

/// Where a lookup puts what it found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookupTo {
    /// Plain set: only whether it was found.
    Match,
    /// Plain set, matches when it is not found.
    NoMatch,
    /// Verdict map: acts on the verdict; continues when not found.
    Verdict,
    /// Map: the data goes to this register; ends the rule when not found.
    Register(Reg),
}

/// A set named in a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetRef {
    /// Name, for an anonymous set the name pattern it was added with.
    pub name: String,
    /// Number of an anonymous set of the same batch.
    pub id: Option<u32>,
}

impl From<&str> for SetRef {
    fn from(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            id: None,
        }
    }
}

/// Source of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumgenKind {
    /// One after the other.
    Incremental = 0,
    /// Random.
    Random = 1,
}

/// Kind of address translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NatKind {
    /// Source.
    Snat = 0,
    /// Destination.
    Dnat = 1,
}

/// Translation flag: the port register is given.
pub const NAT_PROTO_SPECIFIED: u32 = 2;
/// Translation flag: random ports.
pub const NAT_RANDOM: u32 = 4;
/// Translation flag: the same address for the same client.
pub const NAT_PERSISTENT: u32 = 8;
/// Translation flag: fully random ports.
pub const NAT_FULLY_RANDOM: u32 = 16;

/// How a packet is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reject {
    /// ICMP or ICMPv6 unreachable with this code (port unreachable: 3 for ip, 4 for ip6).
    Unreachable(u8),
    /// TCP reset.
    TcpReset,
    /// Unreachable by the code common to both families (port unreachable: 1); for inet tables.
    Icmpx(u8),
}

/// Verdict on a packet.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Drop.
    Drop,
    /// Accept.
    Accept,
    /// On with the next rule.
    Continue,
    /// Back to the calling chain.
    Return,
    /// Into a chain, and back at its end.
    Jump(String),
    /// Into a chain, not back.
    Goto(String),
}

/// What a fib expression asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FibResult {
    /// Interface index, host order.
    Oif = 1,
    /// Interface name.
    OifName = 2,
    /// Address type, host order (see [`FIB_LOCAL`]).
    AddrType = 3,
}

/// Fib flag: look up the source.
pub const FIB_SADDR: u32 = 1;
/// Fib flag: look up the destination.
pub const FIB_DADDR: u32 = 2;
/// Fib flag: with the packet mark.
pub const FIB_MARK: u32 = 4;
/// Fib flag: restricted to the input interface.
pub const FIB_IIF: u32 = 8;
/// Fib flag: the result is only whether there is one.
pub const FIB_PRESENT: u32 = 32;
/// Address type "local".
pub const FIB_LOCAL: u32 = 2;

/// What a dynset expression does to its set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DynsetOp {
    /// Add when absent.
    Add = 0,
    /// Add or refresh.
    Update = 1,
    /// Delete.
    Delete = 2,
}

/// Place of a value in the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayloadAt {
    /// Header.
    pub base: PayloadBase,
    /// Bytes from its start.
    pub offset: u32,
    /// Length in bytes.
    pub len: u32,
}

/// Checksum to correct when the payload is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checksum {
    /// Offset of the header's own checksum, from the same base.
    pub offset: u32,
    /// Whether the transport checksum covers the field too (pseudo header).
    pub pseudo_header: bool,
}

/// One expression. Registers are words (see [`Reg`]).
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "fields are the kernel's: sreg = source register, dreg = destination register"
)]
pub enum Expr {
    /// Reads the packet.
    Payload { dreg: Reg, at: PayloadAt },
    /// Writes the packet.
    PayloadSet {
        sreg: Reg,
        at: PayloadAt,
        checksum: Option<Checksum>,
    },
    /// Reads packet metadata.
    Meta { dreg: Reg, key: MetaKey },
    /// Writes packet metadata.
    MetaSet { sreg: Reg, key: MetaKey },
    /// Reads the connection.
    Ct {
        dreg: Reg,
        key: CtKey,
        direction: Option<CtDirection>,
    },
    /// Writes the connection (mark, zone).
    CtSet {
        sreg: Reg,
        key: CtKey,
        direction: Option<CtDirection>,
    },
    /// Compares; ends the rule when untrue.
    Cmp { sreg: Reg, op: CmpOp, data: Value },
    /// dreg = (sreg & mask) ^ xor.
    Bitwise {
        sreg: Reg,
        dreg: Reg,
        mask: Value,
        xor: Value,
    },
    /// Host to network order, by units of `size` bytes.
    HostToNetwork {
        sreg: Reg,
        dreg: Reg,
        len: u32,
        size: u32,
    },
    /// Within (or without) a range, both ends included.
    Range {
        sreg: Reg,
        inverted: bool,
        from: Value,
        to: Value,
    },
    /// Looks up a set or map.
    Lookup {
        set: SetRef,
        sreg: Reg,
        to: LookupTo,
    },
    /// Makes a number in `offset..offset + modulus`, host order.
    Numgen {
        dreg: Reg,
        kind: NumgenKind,
        modulus: u32,
        offset: u32,
    },
    /// Jenkins hash of `len` bytes, in `offset..offset + modulus`, host order.
    Jhash {
        sreg: Reg,
        dreg: Reg,
        len: u32,
        modulus: u32,
        seed: u32,
        offset: u32,
    },
    /// Translates an address, a port, or both, from registers.
    Nat {
        kind: NatKind,
        family: Family,
        addr: Option<Reg>,
        port: Option<Reg>,
        flags: u32,
    },
    /// Source translation to the address of the outgoing interface.
    Masquerade { flags: u32 },
    /// Destination translation to this host.
    Redirect { port: Option<Reg>, flags: u32 },
    /// Refuses.
    Reject(Reject),
    /// Puts a constant into a register.
    Immediate { dreg: Reg, data: Value },
    /// Decides.
    Verdict(Verdict),
    /// Counts packets and bytes.
    Counter,
    /// Asks the routing table.
    Fib {
        dreg: Reg,
        result: FibResult,
        flags: u32,
    },
    /// Writes into a dynamic set or map; the time-out is in ms.
    Dynset {
        set: SetRef,
        op: DynsetOp,
        key: Reg,
        data: Option<Reg>,
        timeout_ms: Option<u64>,
    },
    /// Sends a copy to an NFLOG group.
    Log {
        group: u16,
        prefix: String,
        snaplen: u32,
    },
    /// No connection tracking for this packet (raw priority).
    Notrack,
    /// Passes at most `rate` packets per `per_seconds` (plus a burst); `over`: passes what exceeds it.
    Limit {
        rate: u64,
        per_seconds: u64,
        burst: u32,
        over: bool,
    },
}

const EXPR_NAME: u16 = 1;
const EXPR_DATA: u16 = 2;
pub(crate) const LIST_ELEM: u16 = 1;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;

impl Expr {
    /// Writes the expression as one list element.
    pub(crate) fn encode(&self, w: &mut Writer) {
        w.nested(LIST_ELEM, |w| {
            w.string(EXPR_NAME, self.name());
            w.nested(EXPR_DATA, |w| self.encode_data(w));
        });
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Payload { .. } | Self::PayloadSet { .. } => "payload",
            Self::Meta { .. } | Self::MetaSet { .. } => "meta",
            Self::Ct { .. } | Self::CtSet { .. } => "ct",
            Self::Cmp { .. } => "cmp",
            Self::Bitwise { .. } => "bitwise",
            Self::HostToNetwork { .. } => "byteorder",
            Self::Range { .. } => "range",
            Self::Lookup { .. } => "lookup",
            Self::Numgen { .. } => "numgen",
            Self::Jhash { .. } => "hash",
            Self::Nat { .. } => "nat",
            Self::Masquerade { .. } => "masq",
            Self::Redirect { .. } => "redir",
            Self::Reject(_) => "reject",
            Self::Immediate { .. } | Self::Verdict(_) => "immediate",
            Self::Counter => "counter",
            Self::Fib { .. } => "fib",
            Self::Dynset { .. } => "dynset",
            Self::Log { .. } => "log",
            Self::Notrack => "notrack",
            Self::Limit { .. } => "limit",
        }
    }

    fn encode_data(&self, w: &mut Writer) {
        match self {
            Self::Payload { .. } | Self::PayloadSet { .. } => self.encode_payload(w),
            Self::Meta { dreg, key } => numbers(w, &[(2, *key as u32), (1, dreg.number())]),
            Self::MetaSet { sreg, key } => numbers(w, &[(2, *key as u32), (3, sreg.number())]),
            Self::Ct {
                dreg,
                key,
                direction,
            } => encode_ct(w, *key, 1, *dreg, *direction),
            Self::CtSet {
                sreg,
                key,
                direction,
            } => encode_ct(w, *key, 4, *sreg, *direction),
            Self::Cmp { .. }
            | Self::Bitwise { .. }
            | Self::HostToNetwork { .. }
            | Self::Range { .. } => {
                self.encode_arithmetic(w);
            }
            Self::Lookup { .. } | Self::Dynset { .. } => self.encode_set_use(w),
            Self::Numgen {
                dreg,
                kind,
                modulus,
                offset,
            } => {
                numbers(
                    w,
                    &[
                        (1, dreg.number()),
                        (2, *modulus),
                        (3, *kind as u32),
                        (4, *offset),
                    ],
                );
            }
            Self::Jhash {
                sreg,
                dreg,
                len,
                modulus,
                seed,
                offset,
            } => {
                numbers(
                    w,
                    &[
                        (1, sreg.number()),
                        (2, dreg.number()),
                        (3, *len),
                        (4, *modulus),
                    ],
                );
                numbers(w, &[(5, *seed), (6, *offset), (7, 0)]);
            }
            Self::Nat { .. } | Self::Masquerade { .. } | Self::Redirect { .. } => {
                self.encode_translation(w)
            }
            Self::Reject(reject) => encode_reject(w, *reject),
            Self::Immediate { dreg, data } => {
                w.u32(1, dreg.number());
                w.nested(2, |w| w.attribute(DATA_VALUE, data.as_slice()));
            }
            Self::Verdict(verdict) => {
                w.u32(1, 0);
                w.nested(2, |w| encode_verdict(w, verdict));
            }
            Self::Counter => {
                w.u64(1, 0);
                w.u64(2, 0);
            }
            Self::Fib {
                dreg,
                result,
                flags,
            } => numbers(w, &[(3, *flags), (2, *result as u32), (1, dreg.number())]),
            Self::Log {
                group,
                prefix,
                snaplen,
            } => {
                w.u16(1, *group);
                if !prefix.is_empty() {
                    w.string(2, prefix);
                }
                if *snaplen > 0 {
                    w.u32(3, *snaplen);
                }
            }
            Self::Notrack => {}
            Self::Limit {
                rate,
                per_seconds,
                burst,
                over,
            } => {
                w.u64(1, *rate);
                w.u64(2, *per_seconds);
                numbers(w, &[(3, *burst), (4, 0), (5, u32::from(*over))]);
            }
        }
    }

    fn encode_payload(&self, w: &mut Writer) {
        let at = match self {
            Self::Payload { dreg, at } => {
                w.u32(1, dreg.number());
                at
            }
            Self::PayloadSet { sreg, at, .. } => {
                w.u32(5, sreg.number());
                at
            }
            _ => return,
        };
        numbers(w, &[(2, at.base as u32), (3, at.offset), (4, at.len)]);
        if let Self::PayloadSet {
            checksum: Some(checksum),
            ..
        } = self
        {
            numbers(
                w,
                &[
                    (6, 1),
                    (7, checksum.offset),
                    (8, u32::from(checksum.pseudo_header)),
                ],
            );
        }
    }

    fn encode_arithmetic(&self, w: &mut Writer) {
        match self {
            Self::Cmp { sreg, op, data } => {
                numbers(w, &[(1, sreg.number()), (2, *op as u32)]);
                encode_value(w, 3, data);
            }
            Self::Bitwise {
                sreg,
                dreg,
                mask,
                xor,
            } => {
                let len = u32::try_from(mask.as_slice().len()).unwrap_or(u32::MAX);
                numbers(
                    w,
                    &[(1, sreg.number()), (2, dreg.number()), (3, len), (6, 0)],
                );
                encode_value(w, 4, mask);
                encode_value(w, 5, xor);
            }
            Self::HostToNetwork {
                sreg,
                dreg,
                len,
                size,
            } => {
                numbers(
                    w,
                    &[
                        (1, sreg.number()),
                        (2, dreg.number()),
                        (3, 1),
                        (4, *len),
                        (5, *size),
                    ],
                );
            }
            Self::Range {
                sreg,
                inverted,
                from,
                to,
            } => {
                numbers(w, &[(1, sreg.number()), (2, u32::from(*inverted))]);
                encode_value(w, 3, from);
                encode_value(w, 4, to);
            }
            _ => {}
        }
    }

    fn encode_set_use(&self, w: &mut Writer) {
        match self {
            Self::Lookup { set, sreg, to } => {
                w.u32(2, sreg.number());
                match to {
                    LookupTo::Match => {}
                    LookupTo::NoMatch => w.u32(5, 1),
                    LookupTo::Verdict => w.u32(3, 0),
                    LookupTo::Register(dreg) => w.u32(3, dreg.number()),
                }
                w.string(1, &set.name);
                if let Some(id) = set.id {
                    w.u32(4, id);
                }
            }
            Self::Dynset {
                set,
                op,
                key,
                data,
                timeout_ms,
            } => {
                numbers(w, &[(4, key.number()), (3, *op as u32)]);
                if let Some(data) = data {
                    w.u32(5, data.number());
                }
                if let Some(timeout) = timeout_ms {
                    w.u64(6, *timeout);
                }
                w.string(1, &set.name);
                if let Some(id) = set.id {
                    w.u32(2, id);
                }
            }
            _ => {}
        }
    }

    fn encode_translation(&self, w: &mut Writer) {
        match self {
            Self::Nat {
                kind,
                family,
                addr,
                port,
                flags,
            } => {
                numbers(w, &[(1, *kind as u32), (2, u32::from(*family as u8))]);
                if let Some(addr) = addr {
                    w.u32(3, addr.number());
                }
                if let Some(port) = port {
                    w.u32(5, port.number());
                }
                let flags = flags
                    | if port.is_some() {
                        NAT_PROTO_SPECIFIED
                    } else {
                        0
                    };
                if flags != 0 {
                    w.u32(7, flags);
                }
            }
            Self::Masquerade { flags } if *flags != 0 => w.u32(1, *flags),
            Self::Redirect { port, flags } => {
                if let Some(port) = port {
                    w.u32(1, port.number());
                }
                if *flags != 0 {
                    w.u32(3, *flags);
                }
            }
            _ => {}
        }
    }

    /// Whether a constant in it did not fit.
    pub(crate) fn oversized(&self) -> bool {
        match self {
            Self::Cmp { data, .. } | Self::Immediate { data, .. } => data.oversized(),
            Self::Bitwise {
                mask: a, xor: b, ..
            }
            | Self::Range { from: a, to: b, .. } => a.oversized() || b.oversized(),
            _ => false,
        }
    }
}

fn numbers(w: &mut Writer, attributes: &[(u16, u32)]) {
    for (kind, value) in attributes {
        w.u32(*kind, *value);
    }
}

fn encode_value(w: &mut Writer, kind: u16, value: &Value) {
    w.nested(kind, |w| w.attribute(DATA_VALUE, value.as_slice()));
}

fn encode_ct(
    w: &mut Writer,
    key: CtKey,
    register_kind: u16,
    register: Reg,
    direction: Option<CtDirection>,
) {
    numbers(w, &[(2, key as u32), (register_kind, register.number())]);
    if let Some(direction) = direction {
        w.u8(3, direction as u8);
    }
}

fn encode_reject(w: &mut Writer, reject: Reject) {
    let (kind, code) = match reject {
        Reject::Unreachable(code) => (0, code),
        Reject::TcpReset => (1, 0),
        Reject::Icmpx(code) => (2, code),
    };
    w.u32(1, kind);
    w.u8(2, code);
}

pub(crate) fn encode_verdict(w: &mut Writer, verdict: &Verdict) {
    let (code, chain) = match verdict {
        Verdict::Drop => (0, None),
        Verdict::Accept => (1, None),
        Verdict::Continue => (-1, None),
        Verdict::Return => (-5, None),
        Verdict::Jump(chain) => (-3, Some(chain)),
        Verdict::Goto(chain) => (-4, Some(chain)),
    };
    w.nested(DATA_VERDICT, |w| {
        w.u32(1, i32::cast_unsigned(code));
        if let Some(chain) = chain {
            w.string(2, chain);
        }
    });
}

pub(crate) fn encode_data_value(w: &mut Writer, value: &Value) {
    w.attribute(DATA_VALUE, value.as_slice());
}
