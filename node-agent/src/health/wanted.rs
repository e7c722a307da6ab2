//! Which health check node ports shall be open (S-100). Pure; kept by the app.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use onehop_core::id::ServiceKey;

use super::ports::Listen;

/// Health ports of Services, and the node addresses on which they answer.
#[derive(Debug, Default)]
pub struct WantedPorts {
    ports: BTreeMap<ServiceKey, u16>,
    addresses: Vec<IpAddr>,
    changed: bool,
}

impl WantedPorts {
    /// A Service has this health port now; `None`: it has none. Returns whether it had one before.
    pub fn set(&mut self, service: &ServiceKey, port: Option<u16>) -> bool {
        let old = match port {
            Some(port) => self.ports.insert(service.clone(), port),
            None => self.ports.remove(service),
        };
        self.changed |= old != port;
        old.is_some()
    }

    /// Health ports answer on these addresses now.
    pub fn set_addresses(&mut self, addresses: Vec<IpAddr>) {
        self.changed |= self.addresses != addresses;
        self.addresses = addresses;
    }

    /// All Services with their ports.
    pub fn all(&self) -> impl Iterator<Item = (&ServiceKey, u16)> {
        self.ports.iter().map(|(service, port)| (service, *port))
    }

    /// Where they answer.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// The wanted listeners, if they changed since the last call.
    pub fn take_changed(&mut self) -> Option<BTreeSet<Listen>> {
        std::mem::take(&mut self.changed).then(|| self.listens().collect())
    }

    fn listens(&self) -> impl Iterator<Item = Listen> + '_ {
        self.ports.iter().flat_map(|(service, port)| {
            self.addresses.iter().map(|addr| Listen {
                service: service.clone(),
                addr: SocketAddr::new(*addr, *port),
            })
        })
    }
}
