//! What the Local windows follow from (zero-drop.md section 5f): who serves here and elsewhere, and what controllers said.

use std::collections::{BTreeMap, BTreeSet};

use onehop_core::crd::{LateFlows, TargetState};
use onehop_core::endpoint::{Endpoint, Endpoints};
use onehop_core::id::{IpFamily, PortKey, Protocol, ServiceKey};
use onehop_core::select::{Policies, select};
use onehop_core::service::ServiceSpec;
use onehop_core::time::Time;

use super::State;
use crate::compile::fronts::Beyond;
use crate::window::{Entry, Serving, Windows};

impl State {
    /// The Local windows.
    pub fn windows(&self) -> &Windows {
        &self.windows
    }

    /// The same, to be told something.
    pub fn windows_mut(&mut self) -> &mut Windows {
        &mut self.windows
    }

    /// Brings the windows of what is to be compiled to where they are at this time.
    pub fn settle_windows(&mut self, now: Time) {
        let mut windows = std::mem::take(&mut self.windows);
        for key in &self.dirty {
            match self.service(key) {
                Some(service) if windows.concern(key) => {
                    let endpoints = self.endpoints(key);
                    let beyond = self.beyond(service);
                    let serving =
                        |port: &PortKey, family| self.serving(service, &endpoints, (port, family));
                    windows.settle(service, &beyond, serving, now);
                }
                _ => windows.forget(key),
            }
        }
        self.windows = windows;
    }

    /// What leads to a Service although its spec does not say so.
    pub fn beyond(&self, service: &ServiceSpec) -> Beyond {
        let mut node_ports: BTreeMap<PortKey, BTreeSet<u16>> = BTreeMap::new();
        for (port, entry) in self.windows.entries(service) {
            let retired = entry.node_port.filter(|_| entry.is_live());
            if let Some(retired) = retired.filter(|p| self.is_nobodys(*p, port.protocol)) {
                node_ports.entry(port.clone()).or_default().insert(retired);
            }
        }
        Beyond {
            vips: self.vips(service),
            node_ports,
        }
    }

    /// The ports that answer for the local endpoints of a Service: its own (S-100), and those that load balancers still
    /// ask although it has them no more (ZD-68).
    pub fn health_ports(&self, key: &ServiceKey) -> BTreeSet<u16> {
        let mut ports: BTreeSet<u16> = self.health_port(key).into_iter().collect();
        // The port is for kube-proxy to open, which tries again only when it syncs.
        let service = self.service(key);
        let ours = service.filter(|_| self.handovers.get(key).is_none());
        let entries = ours.into_iter().flat_map(|s| self.windows.entries(s));
        let live = entries.filter(|(_, entry)| entry.is_live());
        let listed = live.filter_map(|(_, entry)| entry.health_port);
        ports.extend(listed.filter(|port| self.is_nobodys(*port, Protocol::Tcp)));
        ports
    }

    /// Whether no Service was given this port of every node: one that was takes it from whom it belonged to before.
    fn is_nobodys(&self, port: u16, protocol: Protocol) -> bool {
        let mut all = self.services.values();
        !all.any(|service| service.has_node_port(port, protocol))
    }

    /// Marks Services of which a window ends by itself at this time.
    pub fn pass_windows(&mut self, now: Time) {
        let ended = self.windows.pass(now);
        self.dirty.extend(ended);
    }

    /// Whether controllers want the node to look healthy for a Service although nobody on it is ready, and a new flow
    /// would be served somewhere (ZD-64).
    pub fn holds(&self, key: &ServiceKey) -> bool {
        let Some(service) = self.service(key) else {
            return false;
        };
        let held = |entry: &Entry| {
            entry.state == TargetState::Held && entry.late_flows == LateFlows::Forward
        };
        let endpoints = self.endpoints(key);
        let mut entries = self.windows.entries(service);
        entries.any(|(port, entry)| {
            held(entry)
                && IpFamily::ALL.into_iter().any(|family| {
                    let spec = service.port(port);
                    let all = spec.map_or(&[][..], |spec| endpoints.of(service, spec, family));
                    all.iter().any(|endpoint| endpoint.conditions.is_usable())
                })
        })
    }

    /// When a window ends by itself.
    pub fn next_window_end(&self) -> Option<Time> {
        self.windows.next_end()
    }

    /// Who serves outside clients of a port. Only policy Local knows of places.
    fn serving(
        &self,
        service: &ServiceSpec,
        endpoints: &Endpoints,
        (port, family): (&PortKey, IpFamily),
    ) -> Serving {
        let Some(port) = service.port(port) else {
            return Serving::default();
        };
        let all = endpoints.of(service, port, family);
        let policies = Policies::of(service, port, true);
        let selection = select(policies, all, &self.here);
        let on_a_node = |e: &Endpoint| e.conditions.is_usable() && e.node().is_some();
        Serving {
            here: selection.local.is_none_or(|local| !local.is_empty()),
            elsewhere: all.iter().any(on_a_node),
        }
    }
}
