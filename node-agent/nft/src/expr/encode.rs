//! Encoding of expressions: attribute numbers are those of the kernel's `nf_tables.h`.

use super::{CtDirection, CtKey, Expr, LookupTo, NAT_PROTO_SPECIFIED, Reg, Reject, Verdict};
use crate::value::Value;
use crate::wire::Writer;

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
            Self::Meta { .. }
            | Self::MetaSet { .. }
            | Self::Ct { .. }
            | Self::CtSet { .. }
            | Self::Fib { .. }
            | Self::Numgen { .. }
            | Self::Jhash { .. } => self.encode_source(w),
            Self::Cmp { .. }
            | Self::Bitwise { .. }
            | Self::HostToNetwork { .. }
            | Self::Range { .. } => self.encode_arithmetic(w),
            Self::Lookup { .. } | Self::Dynset { .. } => self.encode_set_use(w),
            Self::Nat { .. } | Self::Masquerade { .. } | Self::Redirect { .. } => {
                self.encode_translation(w);
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
            Self::Counter | Self::Log { .. } | Self::Limit { .. } | Self::Notrack => {
                self.encode_aside(w);
            }
        }
    }

    /// What is read from or written to somewhere else than the packet.
    fn encode_source(&self, w: &mut Writer) {
        match self {
            Self::Meta { dreg, key } => numbers(w, &[(2, *key as u32), (1, dreg.number())]),
            Self::MetaSet { sreg, key } => numbers(w, &[(2, *key as u32), (3, sreg.number())]),
            Self::Ct {
                dreg,
                key,
                direction,
            } => encode_ct(w, *key, (1, *dreg), *direction),
            Self::CtSet {
                sreg,
                key,
                direction,
            } => encode_ct(w, *key, (4, *sreg), *direction),
            Self::Fib {
                dreg,
                result,
                flags,
            } => {
                numbers(w, &[(3, *flags), (2, *result as u32), (1, dreg.number())]);
            }
            Self::Numgen {
                dreg,
                kind,
                modulus,
                offset,
            } => {
                let kind = *kind as u32;
                numbers(
                    w,
                    &[(1, dreg.number()), (2, *modulus), (3, kind), (4, *offset)],
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
            _ => {}
        }
    }

    /// What neither tests nor decides.
    fn encode_aside(&self, w: &mut Writer) {
        match self {
            Self::Counter => {
                w.u64(1, 0);
                w.u64(2, 0);
            }
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
            _ => {}
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
            if let Some(offset) = checksum.offset {
                numbers(w, &[(6, 1), (7, offset)]);
            }
            w.u32(8, u32::from(checksum.pseudo_header));
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
            Self::Masquerade { ports, flags } => {
                let flags = flags | ports.map_or(0, |_| NAT_PROTO_SPECIFIED);
                if flags != 0 {
                    w.u32(1, flags);
                }
                if let Some((first, last)) = ports {
                    numbers(w, &[(2, first.number()), (3, last.number())]);
                }
            }
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
    (kind, register): (u16, Reg),
    direction: Option<CtDirection>,
) {
    numbers(w, &[(2, key as u32), (kind, register.number())]);
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
