//! Control groups of a world's real nodes: one at the top of each hierarchy, called `<tag>-<role>` as namespaces are. A
//! container runtime fills them; what it leaves there is removed when its processes are gone.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::tag::tag_of;
use crate::{Result, io as io_error};

const ROOT: &str = "/sys/fs/cgroup";
/// A group stays busy for a moment after its last process was killed.
const WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The hierarchies of this machine: one for each controller (version 1), or the one of version 2.
pub(crate) fn hierarchies() -> io::Result<Vec<PathBuf>> {
    let root = Path::new(ROOT);
    if root.join("cgroup.controllers").exists() {
        return Ok(vec![root.to_owned()]);
    }
    // Links are other names of the same hierarchy.
    let mut all = folders(root)?;
    all.retain(|path| !path.is_symlink());
    Ok(all)
}

/// Groups of all worlds, or of one.
pub(crate) fn of(tag: Option<&str>) -> Result<Vec<PathBuf>> {
    let list = || {
        let mut found = Vec::new();
        for hierarchy in hierarchies()? {
            found.extend(folders(&hierarchy)?);
        }
        Ok(found)
    };
    let mut found: Vec<PathBuf> = list().map_err(io_error(format!("list {ROOT}")))?;
    found.retain(|path| match (tag_of_group(path), tag) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(found), Some(wanted)) => found == wanted,
    });
    Ok(found)
}

/// The world that a group belongs to, by its name.
pub(crate) fn tag_of_group(path: &Path) -> Option<String> {
    tag_of(path.file_name()?.to_str()?)
}

/// Removes groups with everything in them. Their processes must be dead or dying.
pub(crate) fn remove(groups: &[PathBuf]) -> Result<()> {
    let deadline = Instant::now() + WITHIN;
    for group in groups {
        loop {
            match remove_tree(group) {
                Ok(()) => break,
                Err(e) if e.kind() == io::ErrorKind::NotFound => break,
                Err(e) if Instant::now() > deadline => {
                    return Err(io_error(format!("remove {}", group.display()))(e));
                }
                Err(_) => std::thread::sleep(LOOK_EVERY),
            }
        }
    }
    Ok(())
}

/// The files of a group go with it and cannot be removed.
fn remove_tree(group: &Path) -> io::Result<()> {
    for child in folders(group)? {
        remove_tree(&child)?;
    }
    fs::remove_dir(group)
}

fn folders(path: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}
