//! What the Local windows follow from (zero-drop.md section 5f): who serves here and elsewhere, and what controllers said.

use onehop_core::crd::{LateFlows, TargetState};
use onehop_core::endpoint::{Endpoint, Endpoints};
use onehop_core::id::{IpFamily, PortKey, ServiceKey};
use onehop_core::select::{Policies, select};
use onehop_core::service::ServiceSpec;
use onehop_core::time::Time;

use super::State;
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
                    let vips = self.vips(service);
                    let serving =
                        |port: &PortKey, family| self.serving(service, &endpoints, (port, family));
                    windows.settle(service, &vips, serving, now);
                }
                _ => windows.forget(key),
            }
        }
        self.windows = windows;
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
