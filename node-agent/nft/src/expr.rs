//! Expressions of a rule, as the kernel knows them, and their encoding (S-257).
//! [`crate::Rule`] builds the usual ones; what it lacks is pushed as an [`Expr`].

mod encode;

use crate::Family;
use crate::value::Value;

pub(crate) use encode::{LIST_ELEM, encode_data_value, encode_verdict};

/// One of the sixteen 4-byte words of register space, 0 to 15.
/// Words 0, 4, 8 and 12 begin the four registers of 16 bytes and are written by their old numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reg(pub u8);

impl Reg {
    pub(crate) fn number(self) -> u32 {
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
    /// ICMP or `ICMPv6` unreachable with this code (port unreachable: 3 for ip, 4 for ip6).
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
    /// Offset of the header's own checksum, from the same base; IPv6 has none.
    pub offset: Option<u32>,
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
    /// Source translation to the address of the outgoing interface, perhaps to a port from one register's to another's.
    Masquerade {
        ports: Option<(Reg, Reg)>,
        flags: u32,
    },
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
