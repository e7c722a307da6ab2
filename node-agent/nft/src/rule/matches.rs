//! Tests of a rule: what a packet must be for the rule to go on.

use std::net::IpAddr;

use super::Rule;
use crate::expr::{
    CmpOp, CtDirection, CtKey, Expr, FIB_LOCAL, FIB_SADDR, FibResult, LookupTo, MetaKey, PayloadAt,
    PayloadBase, Reg, SetRef,
};
use crate::field::Field;
use crate::value::Value;

impl Rule {
    /// Field compared with a constant.
    #[must_use]
    pub fn cmp(mut self, field: Field, op: CmpOp, data: Value) -> Self {
        self.load(Reg(0), field);
        self.compare(op, data)
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
        self.compare(CmpOp::Gte, from).compare(CmpOp::Lte, to)
    }

    /// Field outside of a range, whose ends belong to it. For fields in network order.
    #[must_use]
    pub fn outside(mut self, field: Field, from: Value, to: Value) -> Self {
        self.load(Reg(0), field);
        self.push(Expr::Range {
            sreg: Reg(0),
            inverted: true,
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
        .compare(CmpOp::Eq, Value::new().u8(number))
    }

    /// `iifname`; a trailing `*` matches a prefix.
    #[must_use]
    pub fn iifname(self, name: &str) -> Self {
        self.is(Field::IifName, interface_match(name))
    }

    /// `iifname` is another; a trailing `*` matches a prefix.
    #[must_use]
    pub fn not_iifname(self, name: &str) -> Self {
        self.cmp(Field::IifName, CmpOp::Neq, interface_match(name))
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

    /// An address field inside (Eq) or outside (Neq) a prefix. As nft does, whole bytes are loaded alone, unmasked.
    #[must_use]
    pub fn prefix(self, field: Field, op: CmpOp, addr: IpAddr, prefix: u8) -> Self {
        let octets = match addr {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        let bits = usize::from(prefix).min(octets.len() * 8);
        let mask: Vec<u8> = (0..octets.len())
            .map(|i| mask_byte(bits.saturating_sub(i * 8)))
            .collect();
        let network: Vec<u8> = octets
            .iter()
            .zip(&mask)
            .map(|(octet, mask)| octet & mask)
            .collect();
        match field.payload(self.v6()) {
            Some(at) if prefix > 0 && bits % 8 == 0 => {
                let len = u32::from(prefix / 8).min(at.len);
                let rule = self.push(Expr::Payload {
                    dreg: Reg(0),
                    at: PayloadAt { len, ..at },
                });
                rule.compare(op, Value::exact(&network[..bits / 8]))
            }
            _ => {
                let mut rule = self;
                rule.load(Reg(0), field);
                rule.mask(Value::exact(&mask))
                    .compare(op, Value::exact(&network))
            }
        }
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
        .compare(CmpOp::Eq, Value::new().u8(direction as u8))
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
        .compare(CmpOp::Eq, Value::new().u32_host(FIB_LOCAL))
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

    fn compare(self, op: CmpOp, data: Value) -> Self {
        self.push(Expr::Cmp {
            sreg: Reg(0),
            op,
            data,
        })
    }

    fn ct_bits(self, key: CtKey, bits: u32, set: bool) -> Self {
        self.push(Expr::Ct {
            dreg: Reg(0),
            key,
            direction: None,
        })
        .mask(Value::new().u32_host(bits))
        .compare(
            if set { CmpOp::Neq } else { CmpOp::Eq },
            Value::new().u32_host(0),
        )
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
