//! What the agent keeps on the node's disk (K-29, S-109): its last health answers and what it was told of targets, so that a restart while the API server
//! is away changes none of them. Written by a thread of its own, read once at start; the app decides what it is good for.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use onehop_core::crd::NodeInstall;
use onehop_core::health::LocalReady;
use onehop_core::id::{InstallId, ServiceKey};
use onehop_core::time::Time;
use onehop_runtime::clock::Clock;
use serde::{Deserialize, Serialize};

use crate::health::pods::PodAnswer;

/// An older file says nothing any more (K-29).
const AGE: Duration = Duration::from_mins(10);
/// A file is written anew after this long although nothing changed, since its age counts.
const REFRESH: Duration = Duration::from_mins(1);

/// Content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeFile {
    /// When it was true, in ms since 1970.
    pub written: i64,
    /// Digest of what the kernel held. With other tables the answers say nothing.
    pub tables: u64,
    /// Where health ports listen.
    pub addresses: Vec<IpAddr>,
    /// The answers.
    pub ports: Vec<PortAnswer>,
    /// The answers for pods.
    #[serde(default)]
    pub pods: Vec<PodAnswer>,
    /// What controllers said of targets.
    #[serde(default)]
    pub installs: BTreeMap<InstallId, NodeInstall>,
}

/// The answer of one health port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortAnswer {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub name: String,
    /// The port.
    pub port: u16,
    /// Ready endpoints on this node.
    pub ready: Vec<IpAddr>,
    /// It answers well also without one (ZD-64).
    #[serde(default)]
    pub held: bool,
}

impl PortAnswer {
    /// Of a Service; whether it is held is said with the port.
    pub fn new(service: &ServiceKey, (port, held): (u16, bool), ready: &LocalReady) -> Self {
        Self {
            namespace: service.namespace.clone(),
            name: service.name.clone(),
            port,
            ready: ready.addresses().collect(),
            held,
        }
    }

    /// Whose it is.
    pub fn service(&self) -> ServiceKey {
        ServiceKey::new(self.namespace.clone(), self.name.clone())
    }
}

impl NodeFile {
    /// Reads it; a file that is missing or not of this form is none.
    pub fn read(path: &Path) -> Option<Self> {
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "cannot read the node file");
                return None;
            }
        };
        serde_json::from_slice(&text)
            .inspect_err(|error| tracing::warn!(%error, "the node file is of another form"))
            .ok()
    }

    /// Whether its answers may be given: it is young, and the kernel still holds what it says.
    pub fn holds(&self, tables: u64, now: Time) -> bool {
        let written = Time::from_millis(self.written);
        self.tables == tables && written <= now && now.since(written) <= AGE
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        // A reader finds the old one or the new one, whole.
        let next = path.with_extension("new");
        std::fs::write(&next, serde_json::to_vec(self)?)?;
        std::fs::rename(&next, path)
    }
}

/// Handle of the thread that writes; it ends when this is dropped. Without a path nothing is written.
#[derive(Debug, Default)]
pub struct Keeper(Option<Sender<NodeFile>>);

impl Keeper {
    /// Starts the thread.
    pub fn spawn(path: PathBuf, clock: Clock) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let (files, inbox) = channel();
        thread::Builder::new()
            .name("node-file".to_owned())
            .spawn(move || work(&path, &inbox, clock))?;
        Ok(Self(Some(files)))
    }

    /// Whether anything is written.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Keeps this from now on.
    pub fn keep(&self, file: impl FnOnce() -> NodeFile) {
        if let Some(files) = &self.0
            && files.send(file()).is_err()
        {
            tracing::error!("the node file is not written any more");
        }
    }
}

fn work(path: &Path, inbox: &Receiver<NodeFile>, clock: Clock) {
    let mut last: Option<NodeFile> = None;
    loop {
        match inbox.recv_timeout(REFRESH) {
            Ok(file) => last = inbox.try_iter().last().or(Some(file)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if let Some(file) = &mut last {
            file.written = clock.now().as_millis();
            if let Err(error) = file.write(path) {
                tracing::warn!(%error, path = %path.display(), "cannot write the node file");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> NodeFile {
        NodeFile {
            written: 1_000_000,
            tables: 7,
            addresses: vec![IpAddr::from([10, 0, 1, 1])],
            ports: vec![PortAnswer {
                held: true,
                namespace: "default".to_owned(),
                name: "web".to_owned(),
                port: 31_000,
                ready: vec![IpAddr::from([10, 244, 0, 1])],
            }],
            pods: Vec::new(),
            installs: BTreeMap::new(),
        }
    }

    #[test]
    fn s109_a_file_holds_for_ten_minutes_and_for_the_tables_that_it_names() {
        let at = |seconds: i64| Time::from_millis(1_000_000 + seconds * 1000);
        assert!(file().holds(7, at(0)) && file().holds(7, at(600)));
        assert!(!file().holds(7, at(601)), "K-29: too old");
        assert!(!file().holds(8, at(0)), "S-109: other tables");
        assert!(!file().holds(7, at(-1)), "from the future");
    }

    #[test]
    fn s109_what_is_kept_is_read_back_and_a_broken_file_is_none() {
        let folder = std::env::temp_dir().join(format!("onehop-node-file-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("node.json");
        assert_eq!(NodeFile::read(&path), None);
        file().write(&path).expect("writes");
        assert_eq!(NodeFile::read(&path), Some(file()));
        std::fs::write(&path, b"{\"written\":").expect("writes");
        assert_eq!(NodeFile::read(&path), None);
        std::fs::remove_dir_all(&folder).expect("removes");
    }
}
