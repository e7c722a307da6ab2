//! Choice of target mode for one port of a Service (K-50 to K-52).
//!
//! The controller gathers what stands in the way of each mode and asks; providers and the agent
//! only see the result.

use std::fmt;

use crate::crd::TargetMode;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The mode that an annotation names.
    pub explicit: Option<TargetMode>,
    /// Whether the API server allocates `NodePorts` for the Service.
    pub node_ports: NodePorts,
    /// The install's default.
    pub default: TargetMode,
}

/// `allocateLoadBalancerNodePorts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePorts {
    /// `true`, or absent.
    Allocated,
    /// `false`.
    Refused,
}

/// Why a mode is impossible for a port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// `node` needs a NodePort.
    #[error("the port has no nodePort")]
    NoNodePort,
    /// `vip` needs a load balancer that leaves the destination as it is.
    #[error("the provider cannot deliver packets with the load balancer's address")]
    NoVip,
    /// `vip` and `node` need somebody who forwards on the node (K-52).
    #[error("no service proxy forwards for it on the nodes: {0}")]
    NobodyForwards(String),
    /// `pod` needs pod addresses that the load balancer can reach.
    #[error("the load balancer cannot reach the pods: {0}")]
    PodsUnreachable(String),
    /// Something that only the provider knows.
    #[error("{0}")]
    Other(String),
}

/// What stands in the way of each mode; `None` where nothing does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Obstacles {
    /// Of `node`.
    pub node: Option<Obstacle>,
    /// Of `vip`.
    pub vip: Option<Obstacle>,
    /// Of `pod`.
    pub pod: Option<Obstacle>,
}

impl Obstacles {
    fn of(&self, mode: TargetMode) -> Option<Obstacle> {
        match mode {
            TargetMode::Node => self.node.clone(),
            TargetMode::Vip => self.vip.clone(),
            TargetMode::Pod => self.pod.clone(),
            TargetMode::Unknown => Some(Obstacle::Other("the mode is not known".to_owned())),
        }
    }
}

/// A mode that was wanted, and why it cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The mode.
    pub mode: TargetMode,
    /// What stands in its way.
    pub obstacle: Obstacle,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "target mode {} is not possible: {}",
            self.mode, self.obstacle
        )
    }
}

/// The choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Use this mode. `instead_of` lists the preferred ones that were passed over: an event.
    Use {
        /// The mode.
        mode: TargetMode,
        /// What was passed over.
        instead_of: Vec<Denied>,
    },
    /// The load balancer lives in this mode and keeps it, although the default is another one which
    /// is impossible: an event, never a silent switch (K-50).
    Keep {
        /// The mode it lives in.
        mode: TargetMode,
        /// What the default would have been.
        instead_of: Denied,
    },
    /// Nothing is possible: the last good state is kept.
    Refused(Vec<Denied>),
}

impl Choice {
    /// The mode, if there is one.
    pub const fn mode(&self) -> Option<TargetMode> {
        match self {
            Self::Use { mode, .. } | Self::Keep { mode, .. } => Some(*mode),
            Self::Refused(_) => None,
        }
    }
}

/// Chooses the mode of a port. `live` is the mode that its load balancer has now, if there is one.
pub fn choose(wish: Wish, obstacles: &Obstacles, live: Option<TargetMode>) -> Choice {
    let mut denied = Vec::new();
    for mode in candidates(wish) {
        let Some(obstacle) = obstacles.of(mode) else {
            return Choice::Use {
                mode,
                instead_of: denied,
            };
        };
        let this = Denied { mode, obstacle };
        match live {
            // The first candidate is the default: a live load balancer goes no further down.
            Some(live) if wish.explicit.is_none() => {
                return Choice::Keep {
                    mode: live,
                    instead_of: this,
                };
            }
            _ => denied.push(this),
        }
    }
    Choice::Refused(denied)
}

/// The modes to try, best first.
fn candidates(wish: Wish) -> Vec<TargetMode> {
    const ORDER: [TargetMode; 3] = [TargetMode::Pod, TargetMode::Vip, TargetMode::Node];
    match (wish.explicit, wish.node_ports) {
        (Some(mode), _) => vec![mode],
        (None, NodePorts::Refused) => vec![TargetMode::Pod, TargetMode::Vip],
        (None, NodePorts::Allocated) => {
            let others = ORDER.into_iter().filter(|m| *m != wish.default);
            std::iter::once(wish.default).chain(others).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use TargetMode::{Node, Pod, Vip};

    const ALLOCATED: Wish = Wish {
        explicit: None,
        node_ports: NodePorts::Allocated,
        default: Pod,
    };
    const REFUSED: Wish = Wish {
        node_ports: NodePorts::Refused,
        ..ALLOCATED
    };

    fn no_pods() -> Obstacles {
        Obstacles {
            pod: Some(Obstacle::PodsUnreachable("overlay".into())),
            ..Obstacles::default()
        }
    }

    fn only_node() -> Obstacles {
        Obstacles {
            vip: Some(Obstacle::NoVip),
            ..no_pods()
        }
    }

    fn passed_over(choice: &Choice) -> Vec<TargetMode> {
        match choice {
            Choice::Use { instead_of, .. } | Choice::Refused(instead_of) => {
                instead_of.iter().map(|d| d.mode).collect()
            }
            Choice::Keep { instead_of, .. } => vec![instead_of.mode],
        }
    }

    #[test]
    fn k50_explicit_mode_that_is_impossible_is_refused_with_the_reason() {
        let wish = Wish {
            explicit: Some(Pod),
            ..ALLOCATED
        };
        for live in [None, Some(Node)] {
            let choice = choose(wish, &no_pods(), live);
            assert_eq!(choice.mode(), None);
            let Choice::Refused(denied) = choice else {
                panic!("{choice:?}")
            };
            assert_eq!(
                denied[0].to_string(),
                "target mode pod is not possible: the load balancer cannot reach the pods: overlay"
            );
        }
        assert_eq!(
            choose(wish, &Obstacles::default(), Some(Node)).mode(),
            Some(Pod)
        );
    }

    #[test]
    fn k50_default_mode_that_is_impossible_gives_a_new_service_the_next_possible_one() {
        let choice = choose(ALLOCATED, &no_pods(), None);
        assert_eq!(
            (choice.mode(), passed_over(&choice)),
            (Some(Vip), vec![Pod])
        );
        let choice = choose(ALLOCATED, &only_node(), None);
        assert_eq!(
            (choice.mode(), passed_over(&choice)),
            (Some(Node), vec![Pod, Vip])
        );
    }

    #[test]
    fn k50_default_mode_that_is_impossible_never_switches_a_live_load_balancer() {
        for live in [Pod, Vip, Node] {
            let choice = choose(ALLOCATED, &only_node(), Some(live));
            assert!(matches!(choice, Choice::Keep { .. }), "{choice:?}");
            assert_eq!(
                (choice.mode(), passed_over(&choice)),
                (Some(live), vec![Pod])
            );
        }
        // A default that is possible is followed: somebody changed it on purpose.
        assert_eq!(
            choose(ALLOCATED, &Obstacles::default(), Some(Node)).mode(),
            Some(Pod)
        );
    }

    #[test]
    fn k51_no_node_ports_and_no_wish_is_pod_else_vip_else_refused() {
        let default_node = Wish {
            default: Node,
            ..REFUSED
        };
        assert_eq!(
            choose(default_node, &Obstacles::default(), None).mode(),
            Some(Pod)
        );
        assert_eq!(choose(default_node, &no_pods(), None).mode(), Some(Vip));
        let choice = choose(default_node, &only_node(), None);
        assert_eq!(
            (choice.mode(), passed_over(&choice)),
            (None, vec![Pod, Vip])
        );
    }

    #[test]
    fn k52_nobody_who_forwards_rules_out_vip_and_node() {
        let nobody = Some(Obstacle::NobodyForwards(
            "the label names another proxy".into(),
        ));
        let obstacles = Obstacles {
            node: nobody.clone(),
            vip: nobody,
            ..no_pods()
        };
        let choice = choose(ALLOCATED, &obstacles, None);
        assert_eq!(
            (choice.mode(), passed_over(&choice)),
            (None, vec![Pod, Vip, Node])
        );
    }

    #[test]
    fn a_mode_from_a_later_version_is_refused() {
        let wish = Wish {
            explicit: Some(TargetMode::Unknown),
            ..ALLOCATED
        };
        assert_eq!(choose(wish, &Obstacles::default(), None).mode(), None);
    }
}
