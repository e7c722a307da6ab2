//! The images of our programs as a world has them that is installed by the chart: each a folder with what the Containerfile
//! copies into it, of the programs of this build.

use super::Programs;
use anyhow::{Context, Result, ensure};
use e2e_kubelet::{ImageTable, OwnFiles};
use std::{path::Path, process::Command};

/// Lays out the files of an image.
const LAYOUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../images/rootfs");
/// Where an image's programs are, in it.
const PATH: &str = "/usr/bin";

/// The same images and ours, by the names that the chart gives them.
pub(super) fn with_ours(images: ImageTable, folder: &Path) -> Result<ImageTable> {
    let ours = Programs::of_this_build()?;
    let starter = ours.path("pod-container")?;
    ["onehop-controller", "onehop-node-agent"]
        .into_iter()
        .try_fold(images, |images, name| {
            let root = folder.join("images").join(name);
            let status = Command::new(LAYOUT)
                .arg(ours.path(name)?)
                .arg(&root)
                .status()
                .context("lay out an image")?;
            ensure!(status.success(), "{LAYOUT}: {status}");
            let own = OwnFiles {
                root,
                starter: starter.clone(),
                path: PATH.to_owned(),
            };
            Ok(images.with_files(name, format!("{PATH}/{name}"), own))
        })
}
