//! Which programs a world starts: exactly those of this build, never whatever lies in the target folder, and those of
//! the real control plane that the launcher built or was given.

use anyhow::{Context, Result, bail};
use std::{collections::BTreeMap, path::PathBuf};

/// Names of the variables that `e2e/run` sets to lists of programs, a `name=path` per line: what it built of this
/// workspace, and the real control plane (see `e2e/controlplane/build`).
const OURS: &str = "ONEHOP_BINARIES";
const CONTROL_PLANE: &str = "ONEHOP_CONTROL_PLANE";

/// Programs by name.
#[derive(Clone, Debug)]
pub struct Programs(BTreeMap<String, PathBuf>);

impl Programs {
    /// The programs of this workspace.
    pub fn of_this_build() -> Result<Self> {
        Self::listed_by(OURS)
    }

    /// The programs of the real control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler,
    /// kube-proxy, kubectl; and Helm.
    pub fn of_the_control_plane() -> Result<Self> {
        Self::listed_by(CONTROL_PLANE)
    }

    /// Reads a list that the launcher wrote.
    fn listed_by(variable: &str) -> Result<Self> {
        let Some(list) = std::env::var_os(variable) else {
            bail!(
                "{variable} is not set, so it is unknown which programs to run: start this through ./e2e/run"
            );
        };
        let text =
            std::fs::read_to_string(&list).with_context(|| format!("read {}", list.display()))?;
        Ok(Self(
            text.lines()
                .filter_map(|l| l.split_once('='))
                .map(|(n, p)| (n.into(), p.into()))
                .collect(),
        ))
    }

    /// The path of one program.
    pub fn path(&self, name: &str) -> Result<PathBuf> {
        self.0.get(name).cloned().with_context(|| {
            format!("the build made no program {name}: run it through ./e2e/run again")
        })
    }
}
