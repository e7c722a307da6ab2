//! The embedded API server with its controllers.

use super::{API, Account, SYSTEM_NAMESPACE};
use anyhow::{Context, Result};
use e2e_apiserver::{ApiServer, Config, ControllerOptions, Controllers, Identity, Serving};
use e2e_fabric::Fabric;
use kube::Client;
use onehop_runtime::clock::Clock;
use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::{Mutex, MutexGuard, PoisonError},
};

pub(super) struct Embedded {
    api: ApiServer,
    /// Gone while the server is away.
    serving: Mutex<Option<Serving>>,
    _controllers: Controllers,
}

impl Embedded {
    pub(super) fn start(fabric: &Fabric, clock: Clock, seed: u64) -> Result<(Self, Client)> {
        let config = Config {
            seed,
            service_cidrs: vec![Fabric::SERVICE_CIDR.into(), Fabric::SERVICE_CIDR6.into()],
            ..Config::default()
        };
        let api = ApiServer::start(clock, config);
        let serving = api.serve_tls(fabric.management().tcp_listener(API)?, &[])?;
        let controllers = api.run_controllers(&ControllerOptions::default());
        let client = api.client(&Identity::admin());
        let embedded = Self {
            api,
            serving: Mutex::new(Some(serving)),
            _controllers: controllers,
        };
        Ok((embedded, client))
    }

    pub(super) fn api(&self) -> &ApiServer {
        &self.api
    }

    /// Ends every connection of programs to it and listens no more.
    pub(super) fn go_away(&self) {
        *self.serving() = None;
    }

    /// Listens again.
    pub(super) fn come_back(&self, fabric: &Fabric) -> Result<()> {
        let listener = fabric.management().tcp_listener(API)?;
        *self.serving() = Some(self.api.serve_tls(listener, &[])?);
        Ok(())
    }

    fn serving(&self) -> MutexGuard<'_, Option<Serving>> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn kubeconfig(&self, account: &Account) -> Result<String> {
        let identity = match account {
            Account::Controller { replica } => Identity::service_account(SYSTEM_NAMESPACE, replica),
            Account::NodeAgent { .. } | Account::CleanUp => {
                Identity::service_account(SYSTEM_NAMESPACE, &account.name())
            }
            Account::KubeProxy | Account::Kubelet { .. } => Identity::user_named(account.name()),
        };
        self.text(API, &identity)
    }

    /// Serves on a port of this machine's loopback, too.
    pub(super) fn on_loopback(&self) -> Result<(Serving, String)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listen on loopback")?;
        let serving = self.api.serve_tls(listener, &[])?;
        let text = self.text(serving.address(), &Identity::admin())?;
        Ok((serving, text))
    }

    fn text(&self, server: SocketAddr, identity: &Identity) -> Result<String> {
        Ok(self
            .api
            .kubeconfig(&format!("https://{server}"), identity)?)
    }
}
