//! Chains that exist only while a verdict names them: classes (S-230) and affinity (S-236). Called by commit, which
//! makes them before the verdict and deletes them some time after it (S-245, S-247).

use onehop_nft::Rule;

use super::affinity::{List, Record, Recorder, Sticky};
use super::class;
use super::element::{ClassKind, Data, Family, Verdict};
use super::layout::Options;

/// A chain made on demand. In this order each comes after those that its rules name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OnDemand {
    /// Spreads over a list of this many endpoints.
    Class(ClassKind, u16),
    /// Sends clients to where they were.
    Sticky(Sticky),
    /// Records where clients went.
    Record(Record),
}

impl OnDemand {
    /// The chain that an element's verdict names.
    pub fn named_by(data: Option<&Data>) -> Option<Self> {
        match data.and_then(Data::verdict)? {
            Verdict::Class(kind, count) => Some(Self::Class(kind, count)),
            Verdict::Sticky(sticky) => Some(Self::Sticky(sticky)),
            Verdict::Record(record) => Some(Self::Record(record)),
            _ => None,
        }
    }

    /// Its name.
    pub fn name(self) -> String {
        match self {
            Self::Class(kind, count) => class::name(kind, count),
            Self::Sticky(sticky) => sticky.chain_name(),
            Self::Record(record) => record.chain_name(),
        }
    }

    /// The chain that a name stands for.
    pub fn parse(name: &str) -> Option<Self> {
        let class = || class::parse(name).map(|(kind, count)| Self::Class(kind, count));
        let sticky = || Sticky::parse_chain(name).map(Self::Sticky);
        let record = || Record::parse_chain(name).map(Self::Record);
        class().or_else(sticky).or_else(record)
    }

    /// Its rules.
    pub fn rules(self, family: Family, options: &Options) -> Vec<Rule> {
        match self {
            Self::Class(kind, count) => class::rules(family, kind, count),
            Self::Sticky(sticky) => sticky.rules(family),
            Self::Record(record) => record.rules(family, options),
        }
    }

    /// Chains that its rules name.
    pub fn needs(self) -> Vec<Self> {
        match self {
            Self::Record(record) if record.by == Recorder::ByClient => [List::Cluster, List::Local]
                .map(|list| Self::Record(record.of_list(list)))
                .to_vec(),
            _ => Vec::new(),
        }
    }

    /// The affinity map that its rules name.
    pub fn map(self) -> Option<Sticky> {
        match self {
            Self::Sticky(sticky) => Some(sticky),
            Self::Record(Record {
                by: Recorder::List(list),
                port,
                ..
            }) => Some(Sticky { list, port }),
            Self::Class(..) | Self::Record(_) => None,
        }
    }
}
