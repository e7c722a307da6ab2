//! Health checks as controllers usually set them (FC-39a), for peers' classes, adopted Services and fixtures.

use std::time::Duration;

use super::model::{HealthCheck, ProbeProtocol};

/// Where kube-proxy tells the health of its node.
const KUBE_PROXY: u16 = 10256;

impl HealthCheck {
    /// aws-load-balancer-controller, ip targets: TCP on the traffic port.
    pub fn lbc_ip() -> Self {
        preset(ProbeProtocol::Tcp, None, [10, 10, 3, 3])
    }

    /// aws-load-balancer-controller, instance targets, policy Local: HTTP on the health check node port.
    pub fn lbc_instance_local(health_check_node_port: u16) -> Self {
        preset(
            ProbeProtocol::Http,
            Some(health_check_node_port),
            [10, 6, 2, 2],
        )
    }

    /// cloud-provider-azure, policy Local: HTTP on the health check node port.
    pub fn cpa_local(health_check_node_port: u16) -> Self {
        preset(
            ProbeProtocol::Http,
            Some(health_check_node_port),
            [5, 5, 2, 2],
        )
    }

    /// cloud-provider-azure, policy Cluster: TCP on each node port.
    pub fn cpa_cluster() -> Self {
        preset(ProbeProtocol::Tcp, None, [5, 5, 2, 2])
    }

    /// cloud-provider-azure in shared mode: HTTP on kube-proxy's health port.
    pub fn cpa_shared() -> Self {
        preset(ProbeProtocol::Http, Some(KUBE_PROXY), [5, 5, 2, 2])
    }
}

fn preset(
    protocol: ProbeProtocol,
    port: Option<u16>,
    [interval, timeout, healthy, unhealthy]: [u32; 4],
) -> HealthCheck {
    HealthCheck {
        protocol,
        port,
        path: match protocol {
            ProbeProtocol::Http => "/healthz".to_owned(),
            ProbeProtocol::Tcp => "/".to_owned(),
        },
        interval: Duration::from_secs(interval.into()),
        timeout: Duration::from_secs(timeout.into()),
        healthy,
        unhealthy,
    }
}
