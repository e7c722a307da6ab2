//! Fields that rules test and keys are made of: where they lie and how they are loaded.

use crate::expr::{CtDirection, CtKey, Expr, MetaKey, NumgenKind, PayloadAt, PayloadBase, Reg};

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

impl Field {
    /// Register words it takes in a concatenation.
    pub(crate) fn words(self, v6: bool) -> u8 {
        match self {
            Self::IifName | Self::OifName => 4,
            Self::Saddr | Self::Daddr | Self::CtSaddr(_) | Self::CtDaddr(_) if v6 => 4,
            _ => 1,
        }
    }

    /// Its place in the packet, for addresses and ports.
    pub(crate) fn payload(self, v6: bool) -> Option<PayloadAt> {
        let (base, offset, len) = match (self, v6) {
            (Self::Saddr, false) => (PayloadBase::Network, 12, 4),
            (Self::Daddr, false) => (PayloadBase::Network, 16, 4),
            (Self::Saddr, true) => (PayloadBase::Network, 8, 16),
            (Self::Daddr, true) => (PayloadBase::Network, 24, 16),
            (Self::Sport, _) => (PayloadBase::Transport, 0, 2),
            (Self::Dport, _) => (PayloadBase::Transport, 2, 2),
            _ => return None,
        };
        Some(PayloadAt { base, offset, len })
    }

    /// Loads it into a register.
    pub(crate) fn load(self, dreg: Reg, v6: bool, exprs: &mut Vec<Expr>) {
        let numgen = |kind, modulus, offset| Expr::Numgen {
            dreg,
            kind,
            modulus,
            offset,
        };
        let expr = match self {
            Self::Random { modulus, offset } => numgen(NumgenKind::Random, modulus, offset),
            Self::Counting { modulus, offset } => numgen(NumgenKind::Incremental, modulus, offset),
            Self::SaddrHash {
                modulus,
                offset,
                seed,
            } => {
                Self::Saddr.load(dreg, v6, exprs);
                let len = if v6 { 16 } else { 4 };
                Expr::Jhash {
                    sreg: dreg,
                    dreg,
                    len,
                    modulus,
                    seed,
                    offset,
                }
            }
            _ => match (self.payload(v6), self.meta(), self.ct(v6)) {
                (Some(at), _, _) => Expr::Payload { dreg, at },
                (_, Some(key), _) => Expr::Meta { dreg, key },
                (_, _, Some((key, direction))) => Expr::Ct {
                    dreg,
                    key,
                    direction,
                },
                // Each field is one of the above.
                (None, None, None) => return,
            },
        };
        exprs.push(expr);
    }

    fn meta(self) -> Option<MetaKey> {
        match self {
            Self::L4Proto => Some(MetaKey::L4Proto),
            Self::Mark => Some(MetaKey::Mark),
            Self::IifName => Some(MetaKey::IifName),
            Self::OifName => Some(MetaKey::OifName),
            _ => None,
        }
    }

    fn ct(self, v6: bool) -> Option<(CtKey, Option<CtDirection>)> {
        match self {
            Self::CtMark => Some((CtKey::Mark, None)),
            Self::CtSaddr(way) => Some((if v6 { CtKey::SrcIp6 } else { CtKey::SrcIp }, Some(way))),
            Self::CtDaddr(way) => Some((if v6 { CtKey::DstIp6 } else { CtKey::DstIp }, Some(way))),
            Self::CtSport(way) => Some((CtKey::ProtoSrc, Some(way))),
            Self::CtDport(way) => Some((CtKey::ProtoDst, Some(way))),
            _ => None,
        }
    }
}
