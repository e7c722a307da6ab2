//! What the AWS provider knows beside Services and observations: flags, resolved. Read by every pure module.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use onehop_core::crd::{MembershipPolicy, Scheme, TargetMode};
use onehop_core::id::InstallId;

use crate::cloud::local::resolve::NodeProxy;
use crate::plan::Bounds;
pub use crate::plan::custody::{PeerServices, Selection};

/// Class of our own.
pub const OWN_CLASS: &str = "onehop.dev/aws";
/// Seconds for which the service may send new flows to a target after it was told to stop (AWS-773, C-52).
pub const TAIL_SECONDS: u32 = 180;

/// Settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This install.
    pub install: InstallId,
    /// The cluster's name, as in its subnets' tags.
    pub cluster: String,
    /// Who forwards on the nodes.
    pub proxy: NodeProxy,
    /// Scheme where nothing says (AWS-043).
    pub scheme: Scheme,
    /// Mode where nothing says (AWS-087).
    pub mode: TargetMode,
    /// How members come and go where nothing says; by the class if the install does not (K-32).
    pub membership: Option<MembershipPolicy>,
    /// How many stay, and for how long (C-52).
    pub bounds: Bounds,
    /// Tags on everything that we make (AWS-056).
    pub default_tags: BTreeMap<String, String>,
    /// Keys of tags that belong to others.
    pub external_tags: BTreeSet<String>,
    /// Policy of TLS listeners (AWS-066).
    pub ssl_policy: String,
    /// The security group that targets know the load balancers by (AWS-330).
    pub backend: BackendGroup,
    /// Whether custom security groups get rules on targets (AWS-058).
    pub manage_backend_rules: bool,
    /// Whether rules on targets name ports (AWS-322).
    pub rules: RulePorts,
    /// Gates of the peer that we understand (AWS-822).
    pub gates: Gates,
    /// How long a group serves on after a listener was switched away from it (AWS-622).
    pub switch_tail: Duration,
    /// How long a replaced load balancer serves on (AWS-630).
    pub dns_grace: Duration,
    /// Most targets of one group; 0 for no limit (AWS-433).
    pub max_targets: usize,
    /// Which nodes become targets with externalTrafficPolicy Local (AWS-404).
    pub local_nodes: LocalNodes,
    /// Taking over from aws-load-balancer-controller.
    pub take_over: TakeOver,
}

/// Which nodes become targets with externalTrafficPolicy Local, under zero-drop (AWS-404).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalNodes {
    /// Those that have a ready endpoint.
    WithEndpoints,
    /// All: their health check tells which of them have one.
    All,
}

/// What is taken over from aws-load-balancer-controller, and when (AWS-013, AWS-124).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakeOver {
    /// Whether it may still act on Services.
    pub peer: PeerServices,
    /// Whose load balancers are taken over; the others are looked at only.
    pub of: Selection,
    /// Whose differences are accepted.
    pub accepted: Selection,
    /// From our rules and tags to the end of the peer's bindings (AWS-129).
    pub settle: Duration,
}

/// The shared backend security group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendGroup {
    /// None.
    Off,
    /// We make one.
    Ours,
    /// This one.
    Given(String),
}

/// Ports in the rules on targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RulePorts {
    /// The very ports.
    Exact,
    /// All of them (`disable-restricted-sg-rules`).
    All,
}

/// A gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// On.
    On,
    /// Off.
    Off,
}

impl Gate {
    /// Whether it is on.
    pub const fn is_on(self) -> bool {
        matches!(self, Self::On)
    }
}

/// Feature gates with the peer's names and defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gates {
    /// `EnableIPTargetType`.
    pub ip_targets: Gate,
    /// `NLBSecurityGroup`.
    pub security_groups: Gate,
    /// `EnableTCPUDPListener`.
    pub tcp_udp: Gate,
    /// `EnableDefaultTagsLowPriority`.
    pub default_tags_low: Gate,
    /// `SubnetsClusterTagCheck`: subnets that are tagged for other clusters only are not discovered.
    pub subnets_of_cluster: Gate,
    /// `SubnetDiscoveryByReachability`: where no subnet has the role's tag, routes decide.
    pub subnets_by_routes: Gate,
}

impl Default for Gates {
    fn default() -> Self {
        Self {
            ip_targets: Gate::On,
            security_groups: Gate::On,
            tcp_udp: Gate::Off,
            default_tags_low: Gate::Off,
            subnets_of_cluster: Gate::On,
            subnets_by_routes: Gate::On,
        }
    }
}

impl Settings {
    /// Settings with every default.
    pub fn new(install: InstallId, cluster: impl Into<String>) -> Self {
        Self {
            install,
            cluster: cluster.into(),
            proxy: NodeProxy::Beside,
            scheme: Scheme::Internal,
            mode: TargetMode::Node,
            membership: None,
            bounds: Bounds::with_tail(TAIL_SECONDS),
            default_tags: BTreeMap::new(),
            external_tags: BTreeSet::new(),
            ssl_policy: "ELBSecurityPolicy-2016-08".to_owned(),
            backend: BackendGroup::Ours,
            manage_backend_rules: false,
            rules: RulePorts::Exact,
            gates: Gates::default(),
            switch_tail: Duration::from_mins(2),
            dns_grace: Duration::from_mins(15),
            max_targets: 0,
            local_nodes: LocalNodes::WithEndpoints,
            take_over: TakeOver {
                peer: PeerServices::MayAct,
                of: Selection::default(),
                accepted: Selection::default(),
                settle: Duration::from_mins(1),
            },
        }
    }

    /// Whose rules a Service of this class follows.
    pub fn flavour(class: Option<&str>) -> Flavour {
        match class {
            Some(class) if class.starts_with("onehop.dev/") => Flavour::Own,
            _ => Flavour::Peer,
        }
    }
}

/// Whose names, defaults and checks a Service gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// Ours.
    Own,
    /// Those of aws-load-balancer-controller, exactly: its class, and Services without one.
    Peer,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use e2e_cloud::engine::{Lag, Lags};

    use super::TAIL_SECONDS;

    /// What users have measured, as the fake cloud has it (FC-43, FC-44): assumed, not known of the real one.
    #[test]
    fn zd117_a_failed_check_ends_new_flows_sooner_and_a_guard_outlasts_either_way_to_leave() {
        let longest = |lag: &Lag| match lag {
            Lag::Fixed(time) | Lag::Uniform(_, time) => *time,
            Lag::Measured(times) => times.iter().copied().max().unwrap_or_default(),
        };
        let lags = Lags::nlb_realistic();
        let skew = longest(&lags.verdict_skew);
        let by_deregistration = longest(&lags.deregistration_tail);
        // Three checks ten seconds apart, as our groups have them.
        let failed = Duration::from_secs(3 * 10);
        let by_health = failed + longest(&lags.unhealthy_tail);
        assert!(by_health < by_deregistration, "ZD-117");
        // If that is wrong nothing is lost: guards last for longer than the slower of both.
        let guarded = Duration::from_secs(TAIL_SECONDS.into());
        assert!(guarded >= by_deregistration + skew, "ZD-117");
        assert!(guarded >= by_health + skew, "ZD-117");
    }
}
