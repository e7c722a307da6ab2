//! Health checks: what annotations say, else the default of the class (AZ-142 to AZ-149). Pure.

use onehop_core::crd::{HealthBy, HealthCheck, HealthProtocol, TargetMode};
use onehop_core::id::Protocol;
use onehop_core::service::{ServicePort, ServiceSpec, TargetPort, TrafficPolicy};

use super::annotations::{PortWish, ProbeProtocol, ProbeWish, Wishes, keys};
use super::resolve::{Flavour, notice, refusal};
use super::settings::Settings;
use crate::cloud::local::resolve::node_health_port;
use crate::plan::{Notice, Refusal};

/// Path of every node health and `healthCheckNodePort`.
const NODE_HEALTH_PATH: &str = "/healthz";
/// Seconds between two probes, and how many make a verdict.
const INTERVAL: u32 = 5;
const COUNT: u32 = 2;
/// Seconds that Azure waits for an answer to an HTTP probe (AZ-151).
const TIMEOUT: u32 = 30;
/// Ports that Azure does not probe by HTTP (AZ-148).
const NOT_BY_HTTP: [u16; 9] = [19, 21, 25, 70, 110, 119, 143, 220, 993];

/// The check of a port's rule, if it has one.
pub(super) fn check(
    settings: &Settings,
    service: &ServiceSpec,
    (port, mode): (&ServicePort, TargetMode),
    wishes: &Wishes,
    notices: &mut Vec<Notice>,
) -> Result<Option<HealthCheck>, Refusal> {
    let none = PortWish::default();
    let of_port = wishes.ports.get(&port.port).unwrap_or(&none);
    if of_port.no_probe {
        return Ok(None);
    }
    let finder = Finder {
        settings,
        service,
        port,
        mode,
        wishes,
        of_port,
    };
    let found = match Flavour::of(service.class.as_deref()) {
        Flavour::Own => finder.own(notices)?,
        Flavour::Peer => finder.peer(notices)?,
    };
    if let Some(check) = &found
        && let (true, Some(number)) = (check.protocol != HealthProtocol::Tcp, check.port)
        && NOT_BY_HTTP.contains(&number)
    {
        let message =
            format!("Azure does not probe port {number} by HTTP: use another port or TCP");
        return Err(refusal("ProbePortRefused", message));
    }
    Ok(found)
}

struct Finder<'a> {
    settings: &'a Settings,
    service: &'a ServiceSpec,
    port: &'a ServicePort,
    mode: TargetMode,
    wishes: &'a Wishes,
    of_port: &'a PortWish,
}

impl Finder<'_> {
    /// Our class: nothing but an explicit check changes the default; `appProtocol` alone never does (ZI-01).
    fn own(&self, notices: &mut Vec<Notice>) -> Result<Option<HealthCheck>, Refusal> {
        let says = |probe: &ProbeWish| probe.protocol.is_some() || probe.path.is_some();
        let explicit = says(&self.wishes.probe)
            || says(&self.of_port.probe)
            || self.of_port.probe_port.is_some();
        let of_all = [&self.of_port.probe, &self.wishes.probe];
        if explicit && self.port.key.protocol == Protocol::Tcp {
            return self.per_port(HealthBy::Custom, notices).map(Some);
        }
        match (self.mode, self.local()) {
            (TargetMode::Pod, _) => {
                let Some(target) = self.tcp_target() else {
                    let message = format!(
                        "port {}: no port of the Service can be probed at its pods, so a pod that leaves is not drained",
                        self.port.key
                    );
                    notices.push(notice("DrainWithoutEffect", message));
                    return Ok(None);
                };
                Ok(Some(made(
                    HealthBy::Traffic,
                    HealthProtocol::Tcp,
                    target,
                    None,
                    &of_all,
                )))
            }
            (_, Some(local)) => Ok(Some(http(HealthBy::Local, local, &of_all))),
            _ => Ok(Some(http(
                HealthBy::Node,
                node_health_port(self.settings.proxy, self.service),
                &of_all,
            ))),
        }
    }

    /// Services of the peer's class (AZ-142): as cloud-provider-azure does.
    fn peer(&self, notices: &mut Vec<Notice>) -> Result<Option<HealthCheck>, Refusal> {
        if let Some(local) = self.local()
            && self.of_port.probe_port.is_none()
        {
            let none = ProbeWish::default();
            let of_local = self
                .wishes
                .ports
                .get(&local)
                .map_or(&none, |wish| &wish.probe);
            return Ok(Some(http(HealthBy::Local, local, &[of_local])));
        }
        if self.local().is_none()
            && let Some((port, path)) = &self.settings.shared_probe
        {
            let shared = made(HealthBy::Node, HealthProtocol::Http, *port, Some(path), &[]);
            return Ok(Some(shared));
        }
        if self.port.key.protocol != Protocol::Tcp {
            return Ok(None);
        }
        self.per_port(HealthBy::Traffic, notices).map(Some)
    }

    fn local(&self) -> Option<u16> {
        let local = self.service.external_policy == TrafficPolicy::Local;
        self.service.health_check_node_port.filter(|_| local)
    }

    /// AZ-144, AZ-145: the first source that is set decides, whatever it says.
    fn per_port(&self, by: HealthBy, notices: &mut Vec<Notice>) -> Result<HealthCheck, Refusal> {
        let (own, all) = (&self.of_port.probe, &self.wishes.probe);
        let by_app = self.port.app_protocol.as_deref().map(ProbeProtocol::of);
        let protocol = own
            .protocol
            .or(by_app)
            .or(all.protocol)
            .unwrap_or(ProbeProtocol::Tcp);
        let path = match protocol {
            ProbeProtocol::Tcp => None,
            ProbeProtocol::Http | ProbeProtocol::Https => {
                let said = own.path.as_deref().or(all.path.as_deref());
                if said.is_none() && own.protocol.is_none() && by_app.is_some() {
                    let message = format!(
                        "port {}: appProtocol makes its probe ask for \"/\" by HTTP: unless that answers 200, set {}{} or \
                         {}{}: tcp",
                        self.port.key,
                        keys::PREFIX,
                        keys::PROBE_PATH,
                        keys::PREFIX,
                        keys::PROBE_PROTOCOL
                    );
                    notices.push(notice("ProbeByAppProtocol", message));
                }
                Some(said.unwrap_or("/"))
            }
        };
        let protocol = match protocol {
            ProbeProtocol::Tcp => HealthProtocol::Tcp,
            ProbeProtocol::Http => HealthProtocol::Http,
            ProbeProtocol::Https => HealthProtocol::Https,
        };
        Ok(made(by, protocol, self.probe_port()?, path, &[own, all]))
    }

    /// AZ-066: a port of the Service by name or number, any other number as it is; else where the traffic goes.
    fn probe_port(&self) -> Result<u16, Refusal> {
        let Some(said) = &self.of_port.probe_port else {
            return self.at(self.port);
        };
        let number: Option<u16> = said.parse().ok();
        let mut ports = self.service.ports.iter();
        let found = ports.find(|port| port.key.name.as_str() == said || Some(port.port) == number);
        match (found, number) {
            (Some(port), _) => self.at(port),
            (None, Some(number)) => Ok(number),
            (None, None) => {
                let message = format!(
                    "{said:?} is neither a port of the Service nor a number: it is to be probed"
                );
                Err(refusal(super::annotations::INVALID, message))
            }
        }
    }

    /// Where a port of the Service can be reached at a member.
    fn at(&self, port: &ServicePort) -> Result<u16, Refusal> {
        let found = match (self.mode, &port.target) {
            (TargetMode::Pod, TargetPort::Number(number)) => Some(*number),
            (TargetMode::Pod, TargetPort::Name(_)) => None,
            _ => port.node_port,
        };
        found.ok_or_else(|| {
            let message = format!(
                "its probe would be at the nodePort of port {}, and there is none: use externalTrafficPolicy Local, \
                 allocate node ports, or name a number by port_{}_{}",
                port.key,
                self.port.port,
                keys::PORT_PROBE_PORT
            );
            refusal("ProbePortMissing", message)
        })
    }

    /// The target port of this port or, where that is no TCP, of one of the same Service that is.
    fn tcp_target(&self) -> Option<u16> {
        let number = |port: &ServicePort| match (port.key.protocol, &port.target) {
            (Protocol::Tcp, TargetPort::Number(number)) => Some(*number),
            _ => None,
        };
        number(self.port).or_else(|| self.service.ports.iter().find_map(number))
    }
}

fn http(by: HealthBy, port: u16, wishes: &[&ProbeWish]) -> HealthCheck {
    made(
        by,
        HealthProtocol::Http,
        port,
        Some(NODE_HEALTH_PATH),
        wishes,
    )
}

/// With the numbers of the first wish that has them.
fn made(
    by: HealthBy,
    protocol: HealthProtocol,
    port: u16,
    path: Option<&str>,
    wishes: &[&ProbeWish],
) -> HealthCheck {
    let count = wishes.iter().find_map(|wish| wish.count).unwrap_or(COUNT);
    HealthCheck {
        by,
        protocol,
        port: Some(port),
        path: path.map(str::to_owned),
        interval_seconds: wishes
            .iter()
            .find_map(|wish| wish.interval)
            .unwrap_or(INTERVAL),
        timeout_seconds: TIMEOUT,
        healthy: count,
        unhealthy: count,
    }
}
