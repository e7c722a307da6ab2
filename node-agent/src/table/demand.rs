//! Chains that exist only while an element needs them: classes (S-230), affinity (S-236), hooks. Called by commit, which
//! makes them before the element and deletes them some time after it (S-245, S-247).

use onehop_nft::{Chain, Rule};

use super::affinity::{List, Record, Recorder, Sticky};
use super::class;
use super::element::{ClassKind, Data, Family, SetId, Verdict};
use super::hooks::OnHook;
use super::layout::Options;

/// A chain made on demand. In this order each comes after those that its rules name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OnDemand {
    /// Has packets meet rules at all.
    Hook(OnHook),
    /// Spreads over a list of this many endpoints.
    Class(ClassKind, u16),
    /// Sends clients to where they were.
    Sticky(Sticky),
    /// Records where clients went.
    Record(Record),
}

impl OnDemand {
    /// The chain that an element's verdict names, or without which the element of this set does nothing.
    pub fn named_by(set: SetId, data: Option<&Data>) -> Option<Self> {
        if let Some(hook) = OnHook::named_by(set, data) {
            return Some(Self::Hook(hook));
        }
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
            Self::Hook(hook) => hook.name().to_owned(),
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
        let hook = || OnHook::parse(name).map(Self::Hook);
        class().or_else(sticky).or_else(record).or_else(hook)
    }

    /// The chain itself.
    pub fn chain(self) -> Chain {
        match self {
            Self::Hook(hook) => hook.chain(),
            _ => Chain::regular(&self.name()),
        }
    }

    /// Its rules.
    pub fn rules(self, family: Family, options: &Options) -> Vec<Rule> {
        match self {
            Self::Hook(hook) => hook.rules(family),
            Self::Class(kind, count) => class::rules(family, kind, count),
            Self::Sticky(sticky) => sticky.rules(family),
            Self::Record(record) => record.rules(family, options),
        }
    }

    /// All chains that it needs, also by others.
    pub fn needs(self) -> Vec<Self> {
        match self {
            Self::Hook(OnHook::RestorePrerouting) => vec![Self::Hook(OnHook::RestoreOutput)],
            Self::Record(record) => {
                let lists = match record.by {
                    Recorder::ByClient => &[List::Cluster, List::Local][..],
                    Recorder::List(_) => &[],
                };
                let lists = lists.iter().map(|list| Self::Record(record.of_list(*list)));
                OnHook::RECORD
                    .map(Self::Hook)
                    .into_iter()
                    .chain(lists)
                    .collect()
            }
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
            Self::Hook(_) | Self::Class(..) | Self::Record(_) => None,
        }
    }
}
