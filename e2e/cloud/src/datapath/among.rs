//! The choice of a target for a new flow: a hash of what the group says that it depends on (FC-26).

use onehop_nft::expr::{MetaKey, PayloadAt, PayloadBase};
use onehop_nft::{Expr, Family, Reg, Rule};

use super::layout::addresses_at;
use crate::engine::Choice;

/// One of so many targets. Every chain that chooses is made for one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Among {
    pub(super) count: u32,
    pub(super) by: Choice,
}

impl Among {
    /// Name of the chain that chooses so and does `what` then.
    pub(super) fn chain(self, what: &str) -> String {
        let by = match self.by {
            Choice::FiveTuple => "",
            Choice::Addresses => "-addresses",
            Choice::AddressesAndProtocol => "-addresses-protocol",
        };
        format!("{what}-{}{by}", self.count)
    }

    /// Leaves a number from `first` on in the first register.
    pub(super) fn hash(self, family: Family, first: u32) -> Rule {
        let load = |word, base, offset, len| Expr::Payload {
            dreg: Reg(word),
            at: PayloadAt { base, offset, len },
        };
        let (source, destination, length) = addresses_at(family);
        let words = u8::try_from(length / 4).unwrap_or(u8::MAX);
        // What a choice does not depend on comes last, and is not hashed.
        let len = match self.by {
            Choice::Addresses => 2 * length,
            Choice::AddressesAndProtocol => 2 * length + 4,
            Choice::FiveTuple => 2 * length + 12,
        };
        Rule::new(family)
            .push(load(0, PayloadBase::Network, source, length))
            .push(load(words, PayloadBase::Network, destination, length))
            .push(Expr::Meta {
                dreg: Reg(2 * words),
                key: MetaKey::L4Proto,
            })
            .push(load(2 * words + 1, PayloadBase::Transport, 0, 2))
            .push(load(2 * words + 2, PayloadBase::Transport, 2, 2))
            .push(Expr::Jhash {
                sreg: Reg(0),
                dreg: Reg(0),
                len,
                modulus: self.count,
                seed: 1,
                offset: first,
            })
    }
}
