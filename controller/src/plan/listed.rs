//! Targets as agents are told of them (K-20): what a provider's last look and the membership policy say of each.

use onehop_core::crd::{TargetMode, TargetState};
use onehop_core::id::PortKey;

use super::membership::{CloudState, TargetKey, Verdict};

/// A target of one port's group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The port.
    pub port: PortKey,
    /// What kind of group it is in; not always the port's own, while a group is being retired.
    pub mode: TargetMode,
    /// The target.
    pub key: TargetKey,
    /// How it stands: from the moment its registration is asked for.
    pub state: TargetState,
    /// The port of its node that its group's check asks, where that is one of the node's own (ZD-68).
    pub health_port: Option<u16>,
    /// What the cloud said of it at the last look; none: it has none like it in a group that is there to stay.
    pub seen: Option<CloudState>,
    /// What the policy says of it, where it says something: not of what drains, or is in a group on its way out.
    pub verdict: Option<Verdict>,
}
