//! Actions of a rule: marks, translation, refusal, verdicts.

use std::net::IpAddr;

use super::Rule;
use crate::Family;
use crate::expr::{
    Checksum, CtKey, DynsetOp, Expr, LookupTo, MetaKey, NatKind, Reg, Reject, SetRef, Verdict,
};
use crate::field::Field;
use crate::value::Value;

impl Rule {
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
        self.push(Expr::Masquerade { ports: None, flags })
    }

    /// The same, with a source port of these. Text of nft says it only behind a test of the transport protocol.
    #[must_use]
    pub fn masquerade_to_ports(self, (first, last): (u16, u16), flags: u32) -> Self {
        let ports = (Reg(0), Reg(4));
        let constant = |dreg, port| Expr::Immediate {
            dreg,
            data: Value::new().port(port),
        };
        self.push(constant(ports.0, first))
            .push(constant(ports.1, last))
            .push(Expr::Masquerade {
                ports: Some(ports),
                flags,
            })
    }

    /// Writes key and data of the packet into a dynamic map, or starts the entry's life time anew.
    #[must_use]
    pub fn update_map(
        mut self,
        key: &[Field],
        data: &[Field],
        map: impl Into<SetRef>,
        timeout_ms: u64,
    ) -> Self {
        let data_at = self.load_from(0, key);
        self.load_from(data_at, data);
        self.push(Expr::Dynset {
            set: map.into(),
            op: DynsetOp::Update,
            key: Reg(0),
            data: Some(Reg(data_at)),
            timeout_ms: Some(timeout_ms),
        })
    }

    /// Writes the key of the packet into a dynamic set, or starts the element's life time anew.
    #[must_use]
    pub fn update_set(mut self, key: &[Field], set: impl Into<SetRef>, timeout_ms: u64) -> Self {
        self.load_from(0, key);
        self.push(Expr::Dynset {
            set: set.into(),
            op: DynsetOp::Update,
            key: Reg(0),
            data: None,
            timeout_ms: Some(timeout_ms),
        })
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
        let at = Field::Daddr.payload(self.v6());
        let offset = addr.is_ipv4().then_some(10);
        let checksum = Checksum {
            offset,
            pseudo_header: true,
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
}
