//! Which programs a world starts: exactly those of this build, never whatever lies in the target folder.

use anyhow::{Context, Result, bail};
use std::{collections::BTreeMap, path::PathBuf};

/// Name of the variable that `e2e/run` sets to the list of what it built, a `name=path` per line.
const LIST: &str = "ONEHOP_BINARIES";

/// The programs of this build by name.
#[derive(Clone, Debug)]
pub struct Programs(BTreeMap<String, PathBuf>);

impl Programs {
    /// Reads the list that the launcher wrote.
    pub fn of_this_build() -> Result<Self> {
        let Some(list) = std::env::var_os(LIST) else {
            bail!(
                "{LIST} is not set, so it is unknown which programs to run: start this through ./e2e/run"
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
        self.0
            .get(name)
            .cloned()
            .with_context(|| format!("the build made no program {name}: run ./e2e/run again"))
    }
}
