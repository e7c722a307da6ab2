//! Builder for rules in the shape of S-203: tests, at most one map lookup, the action.
//! What it lacks is pushed as an [`Expr`].

use std::net::IpAddr;

use crate::Family;
use crate::expr::{
    Checksum, CmpOp, CtDirection, CtKey, Expr, FIB_LOCAL, FIB_SADDR, FibResult, LookupTo, MetaKey,
    NatKind, NumgenKind, PayloadAt, PayloadBase, Reg, Reject, SetRef, Verdict,
};
use crate::value::Value;
use crate::wire::Writer;

/// A field that can be tested, or be part of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// Source address.
    Saddr,
    /// Destination address.
    Daddr,
    /// Source port.
    Sport,
    /// Destination port.
    Dport,
    /// Transport protocol.
    L4Proto,
    /// Packet mark.
    Mark,
    /// Input interface name.
    IifName,
    /// Output interface name.
    OifName,
    /// Connection mark.
    CtMark,
    /// Source address of the connection, in this direction.
    CtSaddr(CtDirection),
    /// Destination address of the connection, in this direction.
    CtDaddr(CtDirection),
    /// Source port of the connection, in this direction.
    CtSport(CtDirection),
    /// Destination port of the connection, in this direction.
    CtDport(CtDirection),
    /// A random number in `offset..offset + modulus`.
    Random {
        /// How many different numbers.
        modulus: u32,
        /// The smallest.
        offset: u32,
    },
    /// A number that grows by one each time, in `offset..offset + modulus`.
    Counting {
        /// How many different numbers.
        modulus: u32,
        /// The smallest.
        offset: u32,
    },
    /// Hash of the source address, in `offset..offset + modulus`. Not listable inside a key (nft has no text for it).
    SaddrHash {
        /// How many different numbers.
        modulus: u32,
        /// The smallest.
        offset: u32,
        /// Seed.
        seed: u32,
    },
}

/// A rule under construction. `ip`/`ip6` decides where addresses lie, also in inet tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    family: Family,
    exprs: Vec<Expr>,
    comment: Option<String>,
    user_data: Vec<(u8, Vec<u8>)>,
}

impl Rule {
    /// An empty rule for packets of this family ([`Family::Ip`] or [`Family::Ip6`]).
    pub fn new(family: Family) -> Self {
        Self {
            family,
            exprs: Vec::new(),
            comment: None,
            user_data: Vec::new(),
        }
    }

    /// An empty rule for IPv4 packets.
    pub fn ip() -> Self {
        Self::new(Family::Ip)
    }

    /// An empty rule for IPv6 packets.
    pub fn ip6() -> Self {
        Self::new(Family::Ip6)
    }

    /// The comment `nft` shows, by which a rule's counter is found again.
    #[must_use]
    pub fn comment(mut self, comment: &str) -> Self {
        self.comment = Some(comment.to_owned());
        self
    }

    /// Own data that `nft` does not show; types below 128 are nft's.
    #[must_use]
    pub fn user_data(mut self, kind: u8, data: &[u8]) -> Self {
        self.user_data.push((kind, data.to_vec()));
        self
    }

    /// Any expression.
    #[must_use]
    pub fn push(mut self, expr: Expr) -> Self {
        self.exprs.push(expr);
        self
    }

    /// The expressions so far.
    pub fn exprs(&self) -> &[Expr] {
        &self.exprs
    }

    /// A number that differs between rules with different expressions; kept as user data it tells on read-back what a
    /// rule was written as (FNV-1a of the encoding).
    pub fn fingerprint(&self) -> u64 {
        let mut writer = Writer::default();
        self.exprs.iter().for_each(|expr| expr.encode(&mut writer));
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        writer.bytes().iter().fold(0xcbf2_9ce4_8422_2325, step)
    }

    pub(crate) fn parts(&self) -> (Option<&str>, &[(u8, Vec<u8>)]) {
        (self.comment.as_deref(), &self.user_data)
    }

    /// Field compared with a constant.
    #[must_use]
    pub fn cmp(mut self, field: Field, op: CmpOp, data: Value) -> Self {
        self.load(Reg(0), field);
        self.push(Expr::Cmp {
            sreg: Reg(0),
            op,
            data,
        })
    }

    /// Field equals a constant.
    #[must_use]
    pub fn is(self, field: Field, data: Value) -> Self {
        self.cmp(field, CmpOp::Eq, data)
    }

    /// Field in a range, both ends included. For fields in network order.
    #[must_use]
    pub fn within(mut self, field: Field, from: Value, to: Value) -> Self {
        self.load(Reg(0), field);
        self.push(Expr::Range {
            sreg: Reg(0),
            inverted: false,
            from,
            to,
        })
    }

    /// `meta l4proto`.
    #[must_use]
    pub fn l4proto(self, protocol: u8) -> Self {
        self.is(Field::L4Proto, Value::new().u8(protocol))
    }

    /// `meta nfproto`, needed before addresses in inet tables.
    #[must_use]
    pub fn nfproto(self) -> Self {
        let number = self.family as u8;
        self.push(Expr::Meta {
            dreg: Reg(0),
            key: MetaKey::NfProto,
        })
        .push(Expr::Cmp {
            sreg: Reg(0),
            op: CmpOp::Eq,
            data: Value::new().u8(number),
        })
    }

    /// `iifname`; a trailing `*` matches a prefix.
    #[must_use]
    pub fn iifname(self, name: &str) -> Self {
        self.is(Field::IifName, interface_match(name))
    }

    /// `oifname`; a trailing `*` matches a prefix.
    #[must_use]
    pub fn oifname(self, name: &str) -> Self {
        self.is(Field::OifName, interface_match(name))
    }

    /// Destination port.
    #[must_use]
    pub fn dport(self, port: u16) -> Self {
        self.is(Field::Dport, Value::new().port(port))
    }

    /// Source port.
    #[must_use]
    pub fn sport(self, port: u16) -> Self {
        self.is(Field::Sport, Value::new().port(port))
    }

    /// Source address inside a prefix.
    #[must_use]
    pub fn saddr(self, addr: IpAddr, prefix: u8) -> Self {
        self.prefix(Field::Saddr, CmpOp::Eq, addr, prefix)
    }

    /// Source address outside a prefix.
    #[must_use]
    pub fn not_saddr(self, addr: IpAddr, prefix: u8) -> Self {
        self.prefix(Field::Saddr, CmpOp::Neq, addr, prefix)
    }

    /// Destination address inside a prefix.
    #[must_use]
    pub fn daddr(self, addr: IpAddr, prefix: u8) -> Self {
        self.prefix(Field::Daddr, CmpOp::Eq, addr, prefix)
    }

    /// Destination address outside a prefix.
    #[must_use]
    pub fn not_daddr(self, addr: IpAddr, prefix: u8) -> Self {
        self.prefix(Field::Daddr, CmpOp::Neq, addr, prefix)
    }

    /// An address field inside (Eq) or outside (Neq) a prefix.
    #[must_use]
    pub fn prefix(mut self, field: Field, op: CmpOp, addr: IpAddr, prefix: u8) -> Self {
        let octets = match addr {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        let whole = octets.len() * 8;
        let bits = usize::from(prefix).min(whole);
        let mask: Vec<u8> = (0..octets.len())
            .map(|i| mask_byte(bits.saturating_sub(i * 8)))
            .collect();
        let network: Vec<u8> = octets
            .iter()
            .zip(&mask)
            .map(|(octet, mask)| octet & mask)
            .collect();
        self.load(Reg(0), field);
        if bits < whole {
            self = self.mask(Value::exact(&mask));
        }
        self.push(Expr::Cmp {
            sreg: Reg(0),
            op,
            data: Value::exact(&network),
        })
    }

    /// Some of these connection state bits are set.
    #[must_use]
    pub fn ct_state(self, bits: u32) -> Self {
        self.ct_bits(CtKey::State, bits, true)
    }

    /// `ct status`: some of these bits are set, or none of them.
    #[must_use]
    pub fn ct_status(self, bits: u32, set: bool) -> Self {
        self.ct_bits(CtKey::Status, bits, set)
    }

    /// `ct direction`.
    #[must_use]
    pub fn ct_direction(self, direction: CtDirection) -> Self {
        self.push(Expr::Ct {
            dreg: Reg(0),
            key: CtKey::Direction,
            direction: None,
        })
        .push(Expr::Cmp {
            sreg: Reg(0),
            op: CmpOp::Eq,
            data: Value::new().u8(direction as u8),
        })
    }

    /// `field & mask` compared with a number; for marks.
    #[must_use]
    pub fn masked(mut self, field: Field, mask: u32, op: CmpOp, number: u32) -> Self {
        self.load(Reg(0), field);
        self.mask(Value::new().u32_host(mask)).push(Expr::Cmp {
            sreg: Reg(0),
            op,
            data: Value::new().u32_host(number),
        })
    }

    /// TCP flags: `flags & mask` compared with a value. The protocol must have been tested before.
    #[must_use]
    pub fn tcp_flags(self, mask: u8, op: CmpOp, value: u8) -> Self {
        self.push(Expr::Payload {
            dreg: Reg(0),
            at: PayloadAt {
                base: PayloadBase::Transport,
                offset: 13,
                len: 1,
            },
        })
        .mask(Value::new().u8(mask))
        .push(Expr::Cmp {
            sreg: Reg(0),
            op,
            data: Value::new().u8(value),
        })
    }

    /// `fib saddr type local`.
    #[must_use]
    pub fn saddr_is_local(self) -> Self {
        self.push(Expr::Fib {
            dreg: Reg(0),
            result: FibResult::AddrType,
            flags: FIB_SADDR,
        })
        .push(Expr::Cmp {
            sreg: Reg(0),
            op: CmpOp::Eq,
            data: Value::new().u32_host(FIB_LOCAL),
        })
    }

    /// Key is in the set.
    #[must_use]
    pub fn in_set(self, key: &[Field], set: impl Into<SetRef>) -> Self {
        self.lookup(key, set.into(), LookupTo::Match)
    }

    /// Key is not in the set.
    #[must_use]
    pub fn not_in_set(self, key: &[Field], set: impl Into<SetRef>) -> Self {
        self.lookup(key, set.into(), LookupTo::NoMatch)
    }

    /// Acts on the verdict of the key, if it has one.
    #[must_use]
    pub fn vmap(self, key: &[Field], map: impl Into<SetRef>) -> Self {
        self.lookup(key, map.into(), LookupTo::Verdict)
    }

    /// Destination translation to the (address, port) a map holds for the key.
    #[must_use]
    pub fn dnat_to_map(self, key: &[Field], map: impl Into<SetRef>) -> Self {
        let port = if self.family == Family::Ip6 {
            Reg(4)
        } else {
            Reg(1)
        };
        let family = self.family;
        self.lookup(key, map.into(), LookupTo::Register(Reg(0)))
            .push(Expr::Nat {
                kind: NatKind::Dnat,
                family,
                addr: Some(Reg(0)),
                port: Some(port),
                flags: 0,
            })
    }

    /// Destination translation to a constant.
    #[must_use]
    pub fn dnat(self, addr: IpAddr, port: Option<u16>) -> Self {
        self.nat(NatKind::Dnat, addr, port, 0)
    }

    /// Source translation to a constant.
    #[must_use]
    pub fn snat(self, addr: IpAddr, flags: u32) -> Self {
        self.nat(NatKind::Snat, addr, None, flags)
    }

    /// Source translation to the address of the outgoing interface.
    #[must_use]
    pub fn masquerade(self, flags: u32) -> Self {
        self.push(Expr::Masquerade { flags })
    }

    /// Packet mark: keeps the bits of `keep`, sets those of `set`.
    #[must_use]
    pub fn set_mark(self, keep: u32, set: u32) -> Self {
        self.push(Expr::Meta {
            dreg: Reg(0),
            key: MetaKey::Mark,
        })
        .mask_xor(keep & !set, set)
        .push(Expr::MetaSet {
            sreg: Reg(0),
            key: MetaKey::Mark,
        })
    }

    /// Connection mark: keeps the bits of `keep`, sets those of `set`.
    #[must_use]
    pub fn set_ct_mark(self, keep: u32, set: u32) -> Self {
        self.push(Expr::Ct {
            dreg: Reg(0),
            key: CtKey::Mark,
            direction: None,
        })
        .mask_xor(keep & !set, set)
        .push(Expr::CtSet {
            sreg: Reg(0),
            key: CtKey::Mark,
            direction: None,
        })
    }

    /// Packet mark := connection mark & mask.
    #[must_use]
    pub fn mark_from_ct(self, mask: u32) -> Self {
        self.push(Expr::Ct {
            dreg: Reg(0),
            key: CtKey::Mark,
            direction: None,
        })
        .mask_xor(mask, 0)
        .push(Expr::MetaSet {
            sreg: Reg(0),
            key: MetaKey::Mark,
        })
    }

    /// Connection mark := packet mark & mask.
    #[must_use]
    pub fn ct_mark_from_mark(self, mask: u32) -> Self {
        self.push(Expr::Meta {
            dreg: Reg(0),
            key: MetaKey::Mark,
        })
        .mask_xor(mask, 0)
        .push(Expr::CtSet {
            sreg: Reg(0),
            key: CtKey::Mark,
            direction: None,
        })
    }

    /// Connection tracking zone (prerouting or output, before -200).
    #[must_use]
    pub fn set_ct_zone(self, zone: u16) -> Self {
        self.push(Expr::Immediate {
            dreg: Reg(0),
            data: Value::exact(&zone.to_ne_bytes()),
        })
        .push(Expr::CtSet {
            sreg: Reg(0),
            key: CtKey::Zone,
            direction: None,
        })
    }

    /// Rewrites the destination address in the packet, without connection tracking.
    #[must_use]
    pub fn set_daddr(self, addr: IpAddr) -> Self {
        let at = self.payload_at(Field::Daddr);
        let checksum = match addr {
            IpAddr::V4(_) => Checksum {
                offset: 10,
                pseudo_header: true,
            },
            // IPv6 has no checksum of its own; the transport's is corrected all the same.
            IpAddr::V6(_) => Checksum {
                offset: 0,
                pseudo_header: true,
            },
        };
        let rule = self.push(Expr::Immediate {
            dreg: Reg(0),
            data: Value::new().addr(addr),
        });
        match at {
            Some(at) => rule.push(Expr::PayloadSet {
                sreg: Reg(0),
                at,
                checksum: Some(checksum),
            }),
            None => rule,
        }
    }

    /// Refuses with port unreachable.
    #[must_use]
    pub fn reject_port_unreachable(self) -> Self {
        let code = if self.family == Family::Ip6 { 4 } else { 3 };
        self.push(Expr::Reject(Reject::Unreachable(code)))
    }

    /// Refuses with a TCP reset. The protocol must have been tested before.
    #[must_use]
    pub fn reject_tcp_reset(self) -> Self {
        self.push(Expr::Reject(Reject::TcpReset))
    }

    /// Counts.
    #[must_use]
    pub fn counter(self) -> Self {
        self.push(Expr::Counter)
    }

    /// Sends a copy to an NFLOG group.
    #[must_use]
    pub fn nflog(self, group: u16, prefix: &str) -> Self {
        self.push(Expr::Log {
            group,
            prefix: prefix.to_owned(),
            snaplen: 0,
        })
    }

    /// Leaves the packet out of connection tracking.
    #[must_use]
    pub fn notrack(self) -> Self {
        self.push(Expr::Notrack)
    }

    /// `accept`.
    #[must_use]
    pub fn accept(self) -> Self {
        self.push(Expr::Verdict(Verdict::Accept))
    }

    /// `drop`.
    #[must_use]
    pub fn drop(self) -> Self {
        self.push(Expr::Verdict(Verdict::Drop))
    }

    /// `return`.
    #[must_use]
    pub fn ret(self) -> Self {
        self.push(Expr::Verdict(Verdict::Return))
    }

    /// `jump`.
    #[must_use]
    pub fn jump(self, chain: &str) -> Self {
        self.push(Expr::Verdict(Verdict::Jump(chain.to_owned())))
    }

    /// `goto`.
    #[must_use]
    pub fn goto(self, chain: &str) -> Self {
        self.push(Expr::Verdict(Verdict::Goto(chain.to_owned())))
    }

    fn ct_bits(self, key: CtKey, bits: u32, set: bool) -> Self {
        self.push(Expr::Ct {
            dreg: Reg(0),
            key,
            direction: None,
        })
        .mask(Value::new().u32_host(bits))
        .push(Expr::Cmp {
            sreg: Reg(0),
            op: if set { CmpOp::Neq } else { CmpOp::Eq },
            data: Value::new().u32_host(0),
        })
    }

    fn mask(self, mask: Value) -> Self {
        let xor = Value::exact(&vec![0; mask.as_slice().len()]);
        self.push(Expr::Bitwise {
            sreg: Reg(0),
            dreg: Reg(0),
            mask,
            xor,
        })
    }

    fn mask_xor(self, mask: u32, xor: u32) -> Self {
        self.push(Expr::Bitwise {
            sreg: Reg(0),
            dreg: Reg(0),
            mask: Value::new().u32_host(mask),
            xor: Value::new().u32_host(xor),
        })
    }

    fn nat(self, kind: NatKind, addr: IpAddr, port: Option<u16>, flags: u32) -> Self {
        let family = if addr.is_ipv4() {
            Family::Ip
        } else {
            Family::Ip6
        };
        let mut rule = self.push(Expr::Immediate {
            dreg: Reg(0),
            data: Value::new().addr(addr),
        });
        if let Some(port) = port {
            rule = rule.push(Expr::Immediate {
                dreg: Reg(4),
                data: Value::new().port(port),
            });
        }
        rule.push(Expr::Nat {
            kind,
            family,
            addr: Some(Reg(0)),
            port: port.map(|_| Reg(4)),
            flags,
        })
    }

    fn lookup(mut self, key: &[Field], set: SetRef, to: LookupTo) -> Self {
        let mut word = 0;
        for field in key {
            self.load(Reg(word), *field);
            word += self.words(*field);
        }
        self.push(Expr::Lookup {
            set,
            sreg: Reg(0),
            to,
        })
    }

    /// Register words a field takes in a concatenation.
    fn words(&self, field: Field) -> u8 {
        match field {
            Field::IifName | Field::OifName => 4,
            Field::Saddr | Field::Daddr | Field::CtSaddr(_) | Field::CtDaddr(_)
                if self.family == Family::Ip6 =>
            {
                4
            }
            _ => 1,
        }
    }

    fn payload_at(&self, field: Field) -> Option<PayloadAt> {
        let v6 = self.family == Family::Ip6;
        let (base, offset, len) = match (field, v6) {
            (Field::Saddr, false) => (PayloadBase::Network, 12, 4),
            (Field::Daddr, false) => (PayloadBase::Network, 16, 4),
            (Field::Saddr, true) => (PayloadBase::Network, 8, 16),
            (Field::Daddr, true) => (PayloadBase::Network, 24, 16),
            (Field::Sport, _) => (PayloadBase::Transport, 0, 2),
            (Field::Dport, _) => (PayloadBase::Transport, 2, 2),
            _ => return None,
        };
        Some(PayloadAt { base, offset, len })
    }

    fn load(&mut self, dreg: Reg, field: Field) {
        let v6 = self.family == Family::Ip6;
        let ct = |key, direction| Expr::Ct {
            dreg,
            key,
            direction: Some(direction),
        };
        let expr = match field {
            Field::Saddr | Field::Daddr | Field::Sport | Field::Dport => {
                let Some(at) = self.payload_at(field) else {
                    return;
                };
                Expr::Payload { dreg, at }
            }
            Field::L4Proto => Expr::Meta {
                dreg,
                key: MetaKey::L4Proto,
            },
            Field::Mark => Expr::Meta {
                dreg,
                key: MetaKey::Mark,
            },
            Field::IifName => Expr::Meta {
                dreg,
                key: MetaKey::IifName,
            },
            Field::OifName => Expr::Meta {
                dreg,
                key: MetaKey::OifName,
            },
            Field::CtMark => Expr::Ct {
                dreg,
                key: CtKey::Mark,
                direction: None,
            },
            Field::CtSaddr(direction) => {
                ct(if v6 { CtKey::SrcIp6 } else { CtKey::SrcIp }, direction)
            }
            Field::CtDaddr(direction) => {
                ct(if v6 { CtKey::DstIp6 } else { CtKey::DstIp }, direction)
            }
            Field::CtSport(direction) => ct(CtKey::ProtoSrc, direction),
            Field::CtDport(direction) => ct(CtKey::ProtoDst, direction),
            Field::Random { modulus, offset } => Expr::Numgen {
                dreg,
                kind: NumgenKind::Random,
                modulus,
                offset,
            },
            Field::Counting { modulus, offset } => Expr::Numgen {
                dreg,
                kind: NumgenKind::Incremental,
                modulus,
                offset,
            },
            Field::SaddrHash {
                modulus,
                offset,
                seed,
            } => {
                self.load(dreg, Field::Saddr);
                Expr::Jhash {
                    sreg: dreg,
                    dreg,
                    len: if v6 { 16 } else { 4 },
                    modulus,
                    seed,
                    offset,
                }
            }
        };
        self.exprs.push(expr);
    }
}

fn interface_match(name: &str) -> Value {
    match name.strip_suffix('*') {
        Some(prefix) => Value::exact(prefix.as_bytes()),
        None => Value::new().ifname(name),
    }
}

fn mask_byte(bits: usize) -> u8 {
    match bits {
        0 => 0,
        1..=7 => 0xff << (8 - bits),
        _ => 0xff,
    }
}
