//! The folder of one world: kubeconfigs and logs of its programs. A world that ends well takes it along; one that
//! fails leaves it, with a report of its last state (see [`super::report`]).

use super::report::Sources;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// A folder that is removed when dropped, unless its world failed and logs were asked for.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    keep: bool,
}

impl Folder {
    pub(super) fn make(tag: &str, keep: bool) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("onehop-world-{tag}"));
        std::fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(Self { path, keep })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The world ended well.
    pub(super) fn done(&mut self) {
        self.keep = false;
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.keep {
            eprintln!("report of this world: {}", self.path.display());
        } else if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::warn!(%error, folder = %self.path.display(), "the world's folder stays");
        }
    }
}

/// Writes the report when the world is dropped without having ended well.
pub(super) struct LastWords {
    pub(super) folder: Folder,
    pub(super) sources: Sources,
}

impl Drop for LastWords {
    fn drop(&mut self) {
        if self.folder.keep
            && let Err(error) = self.sources.write(self.folder.path())
        {
            tracing::warn!(%error, "the report of this world is not complete");
        }
    }
}
