//! The control plane of a world: the embedded API server, or real etcd, kube-apiserver, kube-controller-manager and
//! kube-scheduler. Worlds start one; what they and the scenarios ask of it is the same for both.
//!
//! Never decides anything for a scenario: where only the embedded server can do something, it says so.

mod access;
mod audit;
mod dump;
mod embedded;
mod forward;
mod processes;
mod real;

pub use access::Account;
pub use audit::{Asked, Audit, Refused, Written};
pub use forward::Forward;

pub(crate) use access::{INSTALL_ID, SYSTEM_NAMESPACE};
pub(crate) use dump::Dump;

use crate::world::Objects;
use access::{grant, install};
use anyhow::{Context, Result};
use clap::ValueEnum;
use e2e_apiserver::ApiServer;
use e2e_fabric::Fabric;
use embedded::Embedded;
use kube::Client;
use onehop_runtime::clock::Clock;
use real::Real;
use serde_json::Value;
use std::{
    collections::BTreeSet,
    net::SocketAddr,
    path::{Path, PathBuf},
};

/// Where either API server listens, on the management network.
pub(crate) const API: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Fabric::MANAGEMENT), 6443);

/// Whose control plane a world has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum BackEnd {
    /// The embedded API server and its few controllers, in this process: starts at once, no access control.
    #[default]
    Embedded,
    /// Real etcd, kube-apiserver, kube-controller-manager and kube-scheduler, with RBAC.
    Real,
}

/// A running control plane with our object types.
pub struct ControlPlane {
    /// Objects in it, written by an administrator.
    pub objects: Objects,
    client: Client,
    folder: PathBuf,
    servers: Servers,
}

enum Servers {
    Embedded(Embedded),
    Real(Box<Real>),
}

impl ControlPlane {
    /// Starts it and waits until it serves our object types. Kubeconfigs and logs go to `folder`.
    pub async fn start(
        back_end: BackEnd,
        fabric: &Fabric,
        clock: Clock,
        seed: u64,
        folder: &Path,
    ) -> Result<Self> {
        let plane = Self::bare(back_end, fabric, clock, seed, folder).await?;
        install(&plane.objects).await?;
        Ok(plane)
    }

    /// Starts it with nothing of ours: no object type, no account, no right.
    pub async fn bare(
        back_end: BackEnd,
        fabric: &Fabric,
        clock: Clock,
        seed: u64,
        folder: &Path,
    ) -> Result<Self> {
        let (servers, client) = match back_end {
            BackEnd::Embedded => {
                let (server, client) = Embedded::start(fabric, clock, seed)?;
                (Servers::Embedded(server), client)
            }
            BackEnd::Real => {
                let (server, client) = Real::start(fabric.management(), clock, folder).await?;
                (Servers::Real(Box::new(server)), client)
            }
        };
        Ok(Self {
            objects: Objects::new(client.clone(), clock),
            client,
            folder: folder.to_owned(),
            servers,
        })
    }

    /// Gives our programs these rights, which only a real server asks for.
    pub(crate) async fn grant(&self, rights: &[Value]) -> Result<()> {
        match &self.servers {
            Servers::Embedded(_) => Ok(()),
            Servers::Real(_) => grant(&self.objects, rights).await,
        }
    }

    /// A client with every right.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The embedded server, for what no client can do to one.
    pub fn embedded(&self) -> Result<&ApiServer> {
        match &self.servers {
            Servers::Embedded(embedded) => Ok(embedded.api()),
            Servers::Real(_) => anyhow::bail!("only the embedded API server can do this"),
        }
    }

    /// Takes the embedded server away from all programs.
    pub(crate) fn go_away(&self) -> Result<()> {
        match &self.servers {
            Servers::Embedded(embedded) => embedded.go_away(),
            Servers::Real(_) => anyhow::bail!("only the embedded API server can do this"),
        }
        Ok(())
    }

    /// Gives it back.
    pub(crate) fn come_back(&self, fabric: &Fabric) -> Result<()> {
        match &self.servers {
            Servers::Embedded(embedded) => embedded.come_back(fabric),
            Servers::Real(_) => anyhow::bail!("only the embedded API server can do this"),
        }
    }

    /// What accounts write from now on.
    pub fn audit(&self) -> Result<Audit> {
        match &self.servers {
            Servers::Embedded(embedded) => Ok(Audit::embedded(embedded.api().audit())),
            Servers::Real(real) => real.audit(),
        }
    }

    /// What accounts asked of a real API server since it started.
    pub fn asked(&self) -> Result<BTreeSet<Asked>> {
        match &self.servers {
            Servers::Embedded(_) => {
                anyhow::bail!("only a real API server has accounts with rights")
            }
            Servers::Real(real) => real.asked(),
        }
    }

    /// What accounts had no right to since the last call; an error where there is no access control.
    pub(crate) fn refused(&self) -> Result<Vec<Refused>> {
        match &self.servers {
            Servers::Embedded(_) => anyhow::bail!("the embedded API server refuses nobody"),
            Servers::Real(real) => real.refused(),
        }
    }

    /// A client in this process with an account's rights; an error where there is no access control.
    pub(crate) async fn client_of(&self, account: &Account) -> Result<Client> {
        match &self.servers {
            Servers::Embedded(_) => anyhow::bail!("the embedded API server refuses nobody"),
            Servers::Real(real) => real.client_of(&self.client, account).await,
        }
    }

    /// Writes a kubeconfig for an account of ours, usable on the management network.
    pub async fn kubeconfig(&self, account: &Account) -> Result<PathBuf> {
        let text = match &self.servers {
            Servers::Embedded(embedded) => embedded.kubeconfig(account)?,
            Servers::Real(real) => real.kubeconfig(&self.client, account).await?,
        };
        self.write(&account.file_name(), &text)
    }

    /// Opens the API to programs of this machine's loopback, such as kubectl; gives an administrator's kubeconfig.
    pub fn on_loopback(&self) -> Result<(OnLoopback, PathBuf)> {
        let (open, text) = match &self.servers {
            Servers::Embedded(embedded) => {
                let (serving, text) = embedded.on_loopback()?;
                (OnLoopback::Serving(serving), text)
            }
            Servers::Real(real) => (OnLoopback::AlwaysOpen, real.admin_kubeconfig()),
        };
        Ok((open, self.write("kubeconfig-admin", &text)?))
    }

    /// An administrator's kubeconfig for programs on the management network; an error where there is no access control.
    pub(crate) fn kubeconfig_inside(&self) -> Result<PathBuf> {
        match &self.servers {
            Servers::Embedded(_) => anyhow::bail!("the embedded API server has no administrators"),
            Servers::Real(real) => real.inside(),
        }
    }

    /// What writes every object, for reports.
    pub(crate) fn dump(&self) -> Result<Dump> {
        match &self.servers {
            Servers::Embedded(embedded) => Ok(Dump::Embedded(embedded.api().clone())),
            Servers::Real(real) => real.dump(),
        }
    }

    /// Whether all of its programs still run, and whoever of ours asked for something had the right.
    pub fn check(&self) -> Result<()> {
        match &self.servers {
            Servers::Embedded(_) => Ok(()),
            Servers::Real(real) => real.check(),
        }
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }
}

/// Real etcd and kube-apiserver without controllers, so that nobody but its clients writes: the referee of the embedded
/// server.
pub struct Referee {
    client: Client,
    _real: Box<Real>,
}

impl Referee {
    /// Starts it in the management namespace; keys and logs go to `folder`.
    pub async fn start(fabric: &Fabric, clock: Clock, folder: &Path) -> Result<Self> {
        // The taint of a new node is lifted by a controller, of which there is none here.
        let flags = ["--disable-admission-plugins=TaintNodesByCondition"];
        let (real, client) = Real::start_api(fabric.management(), clock, folder, &flags).await?;
        Ok(Self {
            client,
            _real: Box::new(real),
        })
    }

    /// A client with every right.
    pub fn client(&self) -> Client {
        self.client.clone()
    }
}

/// The API is open on loopback as long as this lives.
#[must_use]
pub enum OnLoopback {
    /// By a listener of the embedded server.
    Serving(e2e_apiserver::Serving),
    /// By the forwarder that the harness itself goes through.
    AlwaysOpen,
}
