//! Which health check node ports shall be open (S-100). Pure; kept by the app.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use onehop_core::id::ServiceKey;

use super::ports::Listen;

/// Health ports of Services, and the node addresses on which they answer.
#[derive(Debug, Default)]
pub struct WantedPorts {
    ports: BTreeMap<ServiceKey, BTreeSet<u16>>,
    addresses: Vec<IpAddr>,
    changed: bool,
}

impl WantedPorts {
    /// A Service has these health ports now. Returns whether it had some before.
    pub fn set(&mut self, service: &ServiceKey, ports: BTreeSet<u16>) -> bool {
        let new = (!ports.is_empty()).then_some(ports);
        let old = match &new {
            Some(ports) => self.ports.insert(service.clone(), ports.clone()),
            None => self.ports.remove(service),
        };
        self.changed |= old != new;
        old.is_some()
    }

    /// It has this one, too.
    pub fn add(&mut self, service: &ServiceKey, port: u16) {
        let ports = self.ports.entry(service.clone()).or_default();
        self.changed |= ports.insert(port);
    }

    /// Health ports answer on these addresses now.
    pub fn set_addresses(&mut self, addresses: Vec<IpAddr>) {
        self.changed |= self.addresses != addresses;
        self.addresses = addresses;
    }

    /// All ports with their Services.
    pub fn all(&self) -> impl Iterator<Item = (&ServiceKey, u16)> {
        let all = self.ports.iter();
        all.flat_map(|(service, ports)| ports.iter().map(move |port| (service, *port)))
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
        self.all().flat_map(|(service, port)| {
            self.addresses.iter().map(move |addr| Listen {
                service: service.clone(),
                addr: SocketAddr::new(*addr, port),
            })
        })
    }
}
