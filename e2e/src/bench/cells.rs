//! The cells of the matrix: what happens, to which kind of targets, on which cloud, with which pods, and what is promised.

use crate::world::OnTerm;
use serde::Serialize;

/// What happens under load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A Deployment of four pods rolls out (W1, W2, W3, W20, W21).
    Rollout,
    /// From four pods to two (W10).
    ScaleDown,
    /// A node is cordoned and its pods are evicted at once (W5).
    Drain,
    /// Every agent is killed in the middle of a rollout (W14).
    AgentKilled,
    /// The controller is killed in the middle of a rollout (W15).
    ControllerKilled,
    /// Two rollouts, and at random moments agents and controller are killed and the cloud throttles.
    Chaos,
    /// The same with two controllers, of which the leader is killed or asked to end, and an API server that is away for
    /// moments.
    LeaderChaos,
}

/// What targets are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nodes, policy Cluster.
    Node,
    /// Nodes, policy Local.
    Local,
    /// Pods.
    Pod,
}

/// On which cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cloud {
    /// The local one, which has neither lags nor tails.
    Local,
    /// Network Load Balancers with the lags and tails that users report, ten times faster than the wall (FC-04).
    Nlb,
    /// Standard Load Balancers of Azure, at the speed of the wall: nothing gets a new flow while all members are down.
    Azure,
}

/// Which of our measures are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measures {
    /// All.
    On,
    /// Agents do not guard targets.
    NoGuard,
    /// Targets leave as soon as their pods do: policy `compat`.
    NoHold,
}

/// What is promised of new connections and established flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Claim {
    /// None is lost.
    Zero,
    /// Some may be; the report has how many.
    Measured,
    /// Some are: else the cloud is too kind (FC-104).
    Loses,
}

/// One cell.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// What happens.
    pub event: Event,
    /// What targets are.
    pub mode: Mode,
    /// On which cloud.
    pub cloud: Cloud,
    /// How pods end.
    pub on_term: OnTerm,
    /// What we do about it.
    pub measures: Measures,
    /// What is promised.
    pub claim: Claim,
}

/// Pods that accept for a little longer, in seconds of the wall.
const A_LITTLE: u32 = 5;

impl Cell {
    /// A cell with all measures and the promise that goes with it.
    pub const fn new(event: Event, mode: Mode, cloud: Cloud, on_term: OnTerm) -> Self {
        let claim = match (mode, on_term) {
            (Mode::Pod, _) | (Mode::Node, OnTerm::ServeSeconds(_)) => Claim::Zero,
            // ZD-104: until every node has heard of it. ZD-108: late flows are dropped.
            (Mode::Node, OnTerm::Exit) | (Mode::Local, _) => Claim::Measured,
        };
        Self {
            event,
            mode,
            cloud,
            on_term,
            measures: Measures::On,
            claim,
        }
    }

    const fn without(self, measures: Measures, claim: Claim) -> Self {
        Self {
            measures,
            claim,
            ..self
        }
    }

    /// Its name, which no other has.
    pub fn name(&self) -> String {
        let event = match self.event {
            Event::Rollout => "rollout",
            Event::ScaleDown => "scale-down",
            Event::Drain => "drain",
            Event::AgentKilled => "agent-killed",
            Event::ControllerKilled => "controller-killed",
            Event::Chaos => "chaos",
            Event::LeaderChaos => "leader-chaos",
        };
        let mode = match self.mode {
            Mode::Node => "node",
            Mode::Local => "local-policy",
            Mode::Pod => "pod",
        };
        let cloud = match self.cloud {
            Cloud::Local => "local",
            Cloud::Nlb => "nlb",
            Cloud::Azure => "azure",
        };
        let pods = match self.on_term {
            OnTerm::Exit => "exit",
            OnTerm::ServeSeconds(_) => "serve",
        };
        let measures = match self.measures {
            Measures::On => "",
            Measures::NoGuard => "-without-guard",
            Measures::NoHold => "-without-hold",
        };
        format!("{event}-{mode}-{cloud}-{pods}{measures}")
    }

    /// The loss windows that it is about.
    pub const fn windows(&self) -> &'static str {
        match self.event {
            Event::Rollout => "W1 W2 W3 W20",
            Event::ScaleDown => "W10",
            Event::Drain => "W5",
            Event::AgentKilled => "W14",
            Event::ControllerKilled => "W15",
            Event::Chaos | Event::LeaderChaos => "W14 W15",
        }
    }
}

/// All cells.
pub fn matrix() -> Vec<Cell> {
    let serve = OnTerm::ServeSeconds(A_LITTLE);
    let mut cells = Vec::new();
    for mode in [Mode::Pod, Mode::Node, Mode::Local] {
        for on_term in [OnTerm::Exit, serve] {
            for event in [Event::Rollout, Event::ScaleDown, Event::Drain] {
                cells.push(Cell::new(event, mode, Cloud::Local, on_term));
            }
        }
    }
    for event in [Event::AgentKilled, Event::ControllerKilled, Event::Chaos] {
        for on_term in [OnTerm::Exit, serve] {
            cells.push(Cell::new(event, Mode::Pod, Cloud::Local, on_term));
        }
        cells.push(Cell::new(event, Mode::Node, Cloud::Local, serve));
    }
    // ZD-110: where a cloud sends nothing while all members are down, a rollout may outrun the election.
    let led = Cell::new(Event::LeaderChaos, Mode::Pod, Cloud::Local, OnTerm::Exit);
    cells.push(led.without(Measures::On, Claim::Measured));
    for on_term in [OnTerm::Exit, serve] {
        cells.push(Cell::new(Event::Rollout, Mode::Pod, Cloud::Azure, on_term));
    }
    for event in [Event::ScaleDown, Event::Drain] {
        cells.push(Cell::new(event, Mode::Pod, Cloud::Azure, OnTerm::Exit));
    }
    cells.push(Cell::new(Event::Rollout, Mode::Node, Cloud::Azure, serve));
    // Pods' times are scaled as the cloud's are: fifty seconds of theirs are five of the wall.
    let serve = OnTerm::ServeSeconds(A_LITTLE * 10);
    for on_term in [OnTerm::Exit, serve] {
        cells.push(Cell::new(Event::Rollout, Mode::Pod, Cloud::Nlb, on_term));
    }
    let instant = Cell::new(Event::Rollout, Mode::Pod, Cloud::Nlb, OnTerm::Exit);
    cells.push(instant.without(Measures::NoGuard, Claim::Loses));
    cells.push(instant.without(Measures::NoHold, Claim::Measured));
    for event in [Event::ScaleDown, Event::Drain, Event::ControllerKilled] {
        cells.push(Cell::new(event, Mode::Pod, Cloud::Nlb, OnTerm::Exit));
    }
    cells.push(Cell::new(Event::Rollout, Mode::Node, Cloud::Nlb, serve));
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn cells_have_names_of_their_own() {
        let cells = matrix();
        let names: BTreeSet<String> = cells.iter().map(Cell::name).collect();
        assert_eq!(names.len(), cells.len());
    }
}
