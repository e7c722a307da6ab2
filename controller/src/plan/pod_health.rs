//! Health checks that agents answer for pods (K-24, K-28, K-40): which ports get one. Pure.

use onehop_core::crd::{HealthBy, HealthCheck, HealthProtocol, LoadBalancerSpec, TargetMode};
use onehop_core::id::{InstallId, PortKey, ServiceKey};

/// The same check, answered by agents (K-28).
pub fn by_agent(
    check: &HealthCheck,
    install: &InstallId,
    service: &ServiceKey,
    (port, at): (&PortKey, u16),
) -> HealthCheck {
    let (namespace, name, port) = (&service.namespace, &service.name, &port.name);
    HealthCheck {
        by: HealthBy::Agent,
        protocol: HealthProtocol::Http,
        port: Some(at),
        path: Some(format!("/t/{install}/{namespace}/{name}/{port}")),
        ..check.clone()
    }
}

/// Whether a port's check may be the agents': a new one's, or one that is theirs already. Who answers is fixed when a
/// group is made, and what pods answer for themselves stays so (K-40).
pub fn may_be_agents(port: &PortKey, last_good: Option<&LoadBalancerSpec>) -> bool {
    let mut live = last_good.into_iter().flat_map(|spec| &spec.ports);
    let live = live.find(|p| p.key() == *port && p.mode == TargetMode::Pod);
    live.is_none_or(|p| p.health.as_ref().map(|h| h.by) == Some(HealthBy::Agent))
}

#[cfg(test)]
mod tests {
    use onehop_core::id::Protocol;

    use super::*;

    const CHECK: HealthCheck = HealthCheck {
        by: HealthBy::Traffic,
        protocol: HealthProtocol::Tcp,
        port: None,
        path: None,
        interval_seconds: 7,
        timeout_seconds: 2,
        healthy: 1,
        unhealthy: 3,
    };

    #[test]
    fn k28_the_path_names_install_service_and_port() {
        let service = ServiceKey::new("shop", "web");
        let port = PortKey::new("http", Protocol::Tcp);
        let check = by_agent(&CHECK, &"local".into(), &service, (&port, 10290));
        assert_eq!(
            check.path.as_deref(),
            Some("/t/local/shop/web/http"),
            "K-28"
        );
        assert_eq!(
            (check.port, check.protocol),
            (Some(10290), HealthProtocol::Http)
        );
        // ZD-32: interval, time-out and thresholds are the user's also with agents.
        assert_eq!((check.interval_seconds, check.unhealthy), (7, 3), "ZD-32");
    }
}
