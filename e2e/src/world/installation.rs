//! What the chart makes of the values of a world: rights and arguments of our programs are those that users get, so the
//! chart stays their only source. A world on the real control plane asks Helm; one on the embedded server needs no Helm
//! and takes arguments from `installation.json`, which the chart's tests compare with what Helm renders.

use super::{Cluster, Nodes, Proxy, start::CLOUD};
use crate::{
    chart::{Chart, Rendered},
    controlplane::{API, BackEnd, INSTALL_ID},
};
use anyhow::{Context, Result};
use e2e_fabric::Fabric;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const GOLDEN: &str = include_str!("installation.json");

/// What is installed in a world.
#[derive(Clone, Debug)]
pub(crate) struct Installation {
    /// Accounts, roles and the policy on agents; none where there is no access control.
    pub(crate) rights: Vec<Value>,
    /// How our programs are started.
    pub(crate) commands: Commands,
    /// The agent's `DaemonSet`, where nodes are real.
    pub(crate) agent: Option<Value>,
}

/// Arguments of our programs as the chart renders them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Commands {
    /// Of the controller.
    pub controller: Arguments,
    /// Of the agent.
    pub agent: Arguments,
    /// The agent's readiness probe, program first.
    pub agent_ready: Arguments,
}

/// Flags as `--name=value`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Arguments(Vec<String>);

/// Seconds that an old target group is kept after a switch. The local cloud switches at once, so little is enough.
pub(super) const SWITCH_TAIL_SECONDS: f64 = 5.0;

/// Values of the chart for a world whose agents run like this (`beside` or `replace`).
pub fn values(mode: &str) -> Value {
    json!({
        "clusterName": "e2e", "installId": INSTALL_ID, "local": {"endpoint": format!("http://{CLOUD}")},
        "switchTailSeconds": SWITCH_TAIL_SECONDS,
        // Short, for tests wait for a Lease to run out.
        "leaderElection": {"leaseDuration": "4s", "renewDeadline": "2500ms", "retryPeriod": "300ms"},
        "agent": {
            "mode": mode,
            "clusterCIDR": [Fabric::CLUSTER_CIDR.to_string(), Fabric::CLUSTER_CIDR6.to_string()],
            "apiServer": {"host": API.ip().to_string(), "port": API.port()},
        },
    })
}

impl Installation {
    /// Nothing, for a world in which the chart itself is installed.
    pub(crate) fn none(cluster: Cluster) -> Result<Self> {
        Ok(Self {
            rights: Vec::new(),
            commands: Commands::golden(cluster.proxy.mode())?,
            agent: None,
        })
    }

    /// As the chart renders it for this control plane and this proxy; without agents that answer for pods where that is
    /// asked, or where there are none. Asks Helm where rights are needed, so it may take a second.
    pub(crate) fn of(cluster: Cluster, pod_health: bool) -> Result<Self> {
        let mode = cluster.proxy.mode();
        let installed = match cluster.back_end {
            BackEnd::Embedded => Self {
                rights: Vec::new(),
                commands: Commands::golden(mode)?,
                agent: None,
            },
            BackEnd::Real => {
                let mut values = values(mode);
                let real_nodes = cluster.nodes == Nodes::Real;
                if real_nodes {
                    // What upstream's tests make has no class.
                    values["claimClassless"] = json!(true);
                }
                let rendered = Chart::of_this_build()?.render(&values)?;
                let agent = rendered.object("DaemonSet", "onehop-node-agent")?;
                Self {
                    rights: rendered.rights().into_iter().cloned().collect(),
                    commands: Commands::of(&rendered)?,
                    agent: real_nodes.then(|| agent.clone()),
                }
            }
        };
        if pod_health && cluster.proxy != Proxy::KubeProxy {
            return Ok(installed);
        }
        Ok(Self {
            commands: installed.commands.without_pod_health()?,
            ..installed
        })
    }
}

impl Commands {
    /// Those of rendered manifests.
    pub fn of(rendered: &Rendered) -> Result<Self> {
        let (controller, agent) = (rendered.controller()?, rendered.agent()?);
        Ok(Self {
            controller: Arguments(controller.args()?),
            agent: Arguments(agent.args()?),
            agent_ready: Arguments(agent.ready()?),
        })
    }

    /// With load balancers that ask pods for their health themselves.
    fn without_pod_health(self) -> Result<Self> {
        const NONE: (&str, &str) = ("--pod-health-port", "0");
        Ok(Self {
            controller: self.controller.with(NONE.0, NONE.1)?,
            agent: self.agent.with(NONE.0, NONE.1)?,
            ..self
        })
    }

    /// Those that are kept for worlds without Helm.
    pub fn golden(mode: &str) -> Result<Self> {
        let mut all: BTreeMap<String, Self> =
            serde_json::from_str(GOLDEN).context("read installation.json")?;
        all.remove(mode)
            .with_context(|| format!("installation.json has no way to run {mode:?}"))
    }
}

impl Arguments {
    /// With another value of a flag that the chart renders; an error if it does not.
    pub(super) fn with(mut self, flag: &str, value: &str) -> Result<Self> {
        let prefix = format!("{flag}=");
        let mut all = self.0.iter_mut();
        let found = all.find(|argument| argument.starts_with(&prefix));
        *found.with_context(|| format!("the chart renders no {flag}"))? =
            format!("{prefix}{value}");
        Ok(self)
    }

    /// Without some flags that the chart renders.
    pub(super) fn without(mut self, flags: &[&str]) -> Self {
        let named = |argument: &str| {
            let name = argument.split('=').next().unwrap_or_default();
            flags.contains(&name)
        };
        self.0.retain(|argument| !named(argument));
        self
    }

    /// With more flags, which a pod gets by other ways than arguments.
    pub(super) fn and(mut self, more: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        let more = more.into_iter();
        self.0
            .extend(more.map(|(flag, value)| format!("{flag}={value}")));
        self
    }

    /// All of them.
    pub(super) fn into_vec(self) -> Vec<String> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_that_the_chart_does_not_render_is_not_set() {
        let rendered = Arguments(vec!["--mode=beside".to_owned(), "--claim".to_owned()]);
        let set = rendered.clone().with("--mode", "replace").expect("a flag");
        assert_eq!(set.into_vec(), ["--mode=replace", "--claim"]);
        assert!(rendered.clone().with("--mod", "replace").is_err());
        let less = rendered.without(&["--mode"]).and([("--a", "1".to_owned())]);
        assert_eq!(less.into_vec(), ["--claim", "--a=1"]);
    }
}
