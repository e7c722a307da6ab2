//! Names of worlds, and the removal of what a killed run left behind.
//!
//! Every namespace of a world is called `<tag>-<role>`. While the world lives, its process holds a lock on
//! `/run/onehop-e2e/<tag>`; the kernel gives the lock up when the process dies, however it dies. So whoever gets the
//! lock knows that the world is dead, without trusting process ids. Called by worlds and by `./e2e/run doctor`.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::ip::Batch;
use crate::{Result, cgroups, io as io_error};

const LOCKS: &str = "/run/onehop-e2e";
const NAMESPACES: &str = "/run/netns";
/// All tags begin so; nothing else on the machine does.
const PREFIX: &str = "ohw";

/// The name of one live world; as long as a clone of it exists, no cleaner touches the world.
#[derive(Clone, Debug)]
pub struct WorldTag {
    tag: String,
    // Shared by the clones: the last of them gives the lock up.
    _lock: Arc<Lock>,
}

#[derive(Debug)]
struct Lock {
    path: PathBuf,
    // Held, never read: the lock lives as long as the open file.
    _file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Unlinked while still locked, so that no cleaner can lock a file that is about to go.
        let _ = fs::remove_file(&self.path);
    }
}

impl WorldTag {
    /// A fresh tag, locked by this process.
    pub fn new() -> Result<Self> {
        fs::create_dir_all(LOCKS).map_err(io_error(format!("make {LOCKS} (is this root?)")))?;
        loop {
            let tag = format!("{PREFIX}{:x}-{}", std::process::id(), random_word()?);
            let path = Path::new(LOCKS).join(&tag);
            let file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(&path)
                .map_err(io_error(format!("make {}", path.display())))?;
            // A cleaner may have taken the file between its making and this lock: then another tag is drawn.
            let mine = file.try_lock().is_ok() && file.metadata().is_ok_and(|m| m.nlink() == 1);
            if mine {
                return Ok(Self {
                    tag,
                    _lock: Arc::new(Lock { path, _file: file }),
                });
            }
        }
    }

    /// The tag itself, for names of files and logs.
    pub fn as_str(&self) -> &str {
        &self.tag
    }

    /// Name of this world's namespace for `role`.
    pub fn namespace(&self, role: &str) -> String {
        format!("{}-{role}", self.tag)
    }

    /// Removes every namespace of this world that still has a name. The last clone calls it by [`Drop`] of the
    /// fabric; calling it twice does no harm.
    pub(crate) fn remove_namespaces(&self) -> Result<usize> {
        let names = namespaces_of(&self.tag).map_err(io_error(format!("list {NAMESPACES}")))?;
        delete(&names)?;
        Ok(names.len())
    }

    /// Removes the control groups of this world's real nodes, whose processes were killed.
    pub(crate) fn remove_cgroups(&self) -> Result<()> {
        cgroups::remove(&cgroups::of(Some(&self.tag))?)
    }
}

/// What [`clean`] found and removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Namespaces of dead worlds, removed.
    pub namespaces: Vec<String>,
    /// Control groups of dead worlds' nodes, removed.
    pub cgroups: Vec<PathBuf>,
    /// Tags of worlds that are alive; untouched.
    pub alive: Vec<String>,
}

/// Removes what worlds left behind whose process is dead (`./e2e/run doctor --clean`). With `dry_run` it only looks.
///
/// Processes and mounts need no care: each world's live in a PID namespace whose init ended with the world, and the
/// mounts of real nodes in mount namespaces that ended with their processes.
pub fn clean(dry_run: bool) -> Result<Leftovers> {
    let mut found = Leftovers::default();
    for tag in known_tags()? {
        let path = Path::new(LOCKS).join(&tag);
        let lock = match OpenOptions::new().write(true).open(&path) {
            Ok(file) if file.try_lock().is_err() => {
                found.alive.push(tag);
                continue;
            }
            Ok(file) => Some(file),
            Err(_) => None,
        };
        let names = namespaces_of(&tag).map_err(io_error(format!("list {NAMESPACES}")))?;
        let groups = cgroups::of(Some(&tag))?;
        if !dry_run {
            delete(&names)?;
            cgroups::remove(&groups)?;
            if lock.is_some() {
                let _ = fs::remove_file(&path);
            }
        }
        found.namespaces.extend(names);
        found.cgroups.extend(groups);
    }
    Ok(found)
}

/// Deletes namespaces. One that somebody else deletes meanwhile is as gone as the others.
fn delete(names: &[String]) -> Result<()> {
    let mut batch = Batch::default();
    for name in names {
        batch.line(format!("netns del {name}"));
    }
    let Err(error) = batch.run_on_host_through_errors() else {
        return Ok(());
    };
    let still_there = names
        .iter()
        .any(|name| Path::new(NAMESPACES).join(name).exists());
    if still_there { Err(error) } else { Ok(()) }
}

/// Tags seen in lock files and in names of namespaces and control groups.
fn known_tags() -> Result<Vec<String>> {
    let list = |folder: &str| entries(folder).map_err(io_error(format!("list {folder}")));
    let mut tags: Vec<String> = list(LOCKS)?;
    tags.extend(list(NAMESPACES)?.iter().filter_map(|name| tag_of(name)));
    let groups = cgroups::of(None)?;
    tags.extend(groups.iter().filter_map(|path| cgroups::tag_of_group(path)));
    tags.retain(|tag| tag.starts_with(PREFIX));
    tags.sort();
    tags.dedup();
    Ok(tags)
}

/// `ohw1a2b-0c0ffee0` of `ohw1a2b-0c0ffee0-node-a`.
pub(crate) fn tag_of(namespace: &str) -> Option<String> {
    let mut parts = namespace.splitn(3, '-');
    let (process, word, _role) = (parts.next()?, parts.next()?, parts.next()?);
    process
        .starts_with(PREFIX)
        .then(|| format!("{process}-{word}"))
}

fn namespaces_of(tag: &str) -> io::Result<Vec<String>> {
    let prefix = format!("{tag}-");
    let mut names = entries(NAMESPACES)?;
    names.retain(|name| name.starts_with(&prefix));
    names.sort();
    Ok(names)
}

fn entries(folder: &str) -> io::Result<Vec<String>> {
    match fs::read_dir(folder) {
        Ok(list) => list
            .map(|e| Ok(e?.file_name().to_string_lossy().into_owned()))
            .collect(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

/// Eight hex digits from the kernel. Not from a seed: two runs with one seed must not meet.
fn random_word() -> Result<String> {
    let path = "/proc/sys/kernel/random/uuid";
    let uuid = fs::read_to_string(path).map_err(io_error(format!("read {path}")))?;
    Ok(uuid.chars().take(8).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_world_is_left_alone_and_a_dead_one_is_known_by_its_free_lock() {
        let tag = WorldTag::new().unwrap();
        assert!(
            clean(true)
                .unwrap()
                .alive
                .contains(&tag.as_str().to_owned())
        );
        let name = tag.as_str().to_owned();
        drop(tag);
        assert!(!clean(true).unwrap().alive.contains(&name));
    }

    #[test]
    fn the_tag_is_read_back_from_a_namespace_name() {
        assert_eq!(
            tag_of("ohw1f-0c0ffee0-node-a").as_deref(),
            Some("ohw1f-0c0ffee0")
        );
        assert_eq!(tag_of("cni-1234-5678"), None);
        assert_eq!(tag_of("ohw1f"), None);
    }
}
