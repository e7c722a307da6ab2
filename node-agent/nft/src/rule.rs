//! Builder for rules in the shape of S-203: tests, at most one map lookup, the action.
//! What it lacks is pushed as an [`Expr`].

mod actions;
mod matches;

use crate::Family;
use crate::expr::{Expr, LookupTo, Reg, SetRef};
use crate::field::Field;
use crate::value::Value;
use crate::wire::Writer;

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

    fn lookup(mut self, key: &[Field], set: SetRef, to: LookupTo) -> Self {
        self.load_from(0, key);
        self.push(Expr::Lookup {
            set,
            sreg: Reg(0),
            to,
        })
    }

    /// Loads fields into consecutive words; the first word after them.
    fn load_from(&mut self, mut word: u8, fields: &[Field]) -> u8 {
        for field in fields {
            self.load(Reg(word), *field);
            word += field.words(self.v6());
        }
        word
    }

    fn load(&mut self, dreg: Reg, field: Field) {
        field.load(dreg, self.v6(), &mut self.exprs);
    }

    fn v6(&self) -> bool {
        self.family == Family::Ip6
    }
}
