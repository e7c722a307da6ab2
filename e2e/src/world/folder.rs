//! The folder of one world: kubeconfigs and logs of its programs. A world that ends well takes it along; one that
//! fails leaves it, with the cloud's log and the pods' beside them.

use super::Journal;
use anyhow::{Context, Result};
use e2e_cloud::Cloud;
use std::{
    fmt::Write,
    path::{Path, PathBuf},
    sync::Arc,
};

/// A folder that is removed when dropped, unless its world failed and logs were asked for.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    keep: bool,
}

/// What is written into a kept folder in the end.
pub(super) struct Logs {
    pub(super) cloud: Cloud,
    pub(super) journal: Arc<Journal>,
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

    /// Adds the logs of the parts that live in this process.
    pub(super) fn add(&self, logs: &Logs) -> std::io::Result<()> {
        let cloud = logs.cloud.look(|engine| engine.log().json_lines());
        std::fs::write(self.path.join("cloud.jsonl"), cloud)?;
        let mut pods = String::new();
        for event in logs.journal.events() {
            // Writing to a String cannot fail, and an event that is no JSON would be a defect of its type.
            let _ = writeln!(
                pods,
                "{}",
                serde_json::to_string(&event).unwrap_or_default()
            );
        }
        std::fs::write(self.path.join("pods.jsonl"), pods)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.keep {
            eprintln!("logs of this world: {}", self.path.display());
        } else if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::warn!(%error, folder = %self.path.display(), "the world's folder stays");
        }
    }
}

/// Writes the logs when the world is dropped without having ended well.
pub(super) struct LastWords {
    pub(super) folder: Folder,
    pub(super) logs: Logs,
}

impl Drop for LastWords {
    fn drop(&mut self) {
        if self.folder.keep
            && let Err(error) = self.folder.add(&self.logs)
        {
            tracing::warn!(%error, "the logs of the cloud and of the pods are lost");
        }
    }
}
