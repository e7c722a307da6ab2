//! Base chains that exist only while something needs them (S-230), so that packets of other flows do not pass them:
//! every hook costs each packet of every connection, whatever it then matches.
//!
//! Those that NAT needs are not among them: a NAT chain has to be there before a flow's first packet (S-135).

use onehop_nft::{Chain, ChainType, Hook, Rule};

use super::element::{Data, Family, SetId, Verdict};
use super::guard;
use super::layout::record_new;

/// A base chain made on demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OnHook {
    /// Replies that the node makes itself leave by the interface of arrival, with several uplinks (S-405).
    RestoreOutput,
    /// Replies that are forwarded do (S-402).
    RestorePrerouting,
    /// Packets to a guarded pod that is gone (S-414).
    GuardDead,
    /// Refusals by pods that are targets.
    GuardRefusals,
    /// Clients of Services with affinity are recorded where packets are forwarded (S-237).
    AffinityForward,
    /// Where they are for this node.
    AffinityInput,
    /// Where they are from it.
    AffinityOutput,
}

impl OnHook {
    const ALL: [Self; 7] = [
        Self::RestoreOutput,
        Self::RestorePrerouting,
        Self::GuardDead,
        Self::GuardRefusals,
        Self::AffinityForward,
        Self::AffinityInput,
        Self::AffinityOutput,
    ];
    /// What any affinity that is recorded needs.
    pub(super) const RECORD: [Self; 3] = [
        Self::AffinityForward,
        Self::AffinityInput,
        Self::AffinityOutput,
    ];

    /// The one without which an element of a set does nothing.
    pub(super) fn named_by(set: SetId, data: Option<&Data>) -> Option<Self> {
        match (set, data.and_then(Data::verdict)) {
            (SetId::UplinkMarks, Some(Verdict::MarkUplink(_))) => Some(Self::RestorePrerouting),
            (SetId::DeadKeys, _) => Some(Self::GuardDead),
            (SetId::Targets, _) => Some(Self::GuardRefusals),
            _ => None,
        }
    }

    /// The chain's name.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::RestoreOutput => "restore-output",
            Self::RestorePrerouting => "restore-prerouting",
            Self::GuardDead => "guard-dead",
            Self::GuardRefusals => "guard-refusals",
            Self::AffinityForward => "affinity-forward",
            Self::AffinityInput => "affinity-input",
            Self::AffinityOutput => "affinity-output",
        }
    }

    /// The one of this name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|hook| hook.name() == name)
    }

    /// The chain with its place.
    pub(super) fn chain(self) -> Chain {
        let (kind, hook, priority) = match self {
            Self::RestoreOutput => (ChainType::Route, Hook::Output, -150),
            Self::RestorePrerouting => (ChainType::Filter, Hook::Prerouting, -150),
            Self::GuardDead => (ChainType::Filter, Hook::Prerouting, -90),
            Self::GuardRefusals => (ChainType::Filter, Hook::Forward, 10),
            Self::AffinityForward => (ChainType::Filter, Hook::Forward, 50),
            Self::AffinityInput => (ChainType::Filter, Hook::Input, 50),
            Self::AffinityOutput => (ChainType::Filter, Hook::Output, 50),
        };
        Chain::base(self.name(), kind, hook, priority)
    }

    /// Its rules.
    pub(super) fn rules(self, family: Family) -> Vec<Rule> {
        match self {
            Self::RestoreOutput => guard::local_replies(family),
            Self::RestorePrerouting => vec![guard::replies(family)],
            Self::GuardDead => vec![guard::of_the_dead(family)],
            Self::GuardRefusals => vec![guard::refusal(family)],
            Self::AffinityForward | Self::AffinityInput | Self::AffinityOutput => {
                vec![record_new(family)]
            }
        }
    }
}
