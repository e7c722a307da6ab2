//! Services with policy Local of which nodes drop late flows: what that costs (ZD-60, ZD-108). Pure.

use std::time::Duration;

use onehop_core::crd::{LateFlows, LoadBalancerSpec, TargetMode};
use onehop_core::service::{ServiceSpec, TrafficPolicy};

use crate::cloud::local::resolve::NodeProxy;
use crate::plan::Notice;
use crate::status::LATE_FLOWS_DROPPED;

/// Says for how long new flows to a node are lost after its last endpoint has left, where nobody forwards them.
pub(super) fn dropped(
    service: &ServiceSpec,
    spec: &LoadBalancerSpec,
    proxy: NodeProxy,
) -> Option<Notice> {
    let of_nodes = |mode| matches!(mode, TargetMode::Node | TargetMode::Vip);
    let mut ports = spec
        .ports
        .iter()
        .filter(|port| of_nodes(port.mode))
        .peekable();
    if service.external_policy != TrafficPolicy::Local || ports.peek().is_none() {
        return None;
    }
    let why = match (proxy.is_agent_of(service), spec.membership.late_flows) {
        (true, LateFlows::Drop) => "the install says so (lateFlows: drop)",
        (true, _) => return None,
        (false, _) => {
            "kube-proxy is its proxy; the label service.kubernetes.io/service-proxy-name=onehop hands it to the agent, which forwards them"
        }
    };
    let detected = ports.filter_map(|port| {
        let health = port.health.as_ref()?;
        Some(health.interval_seconds * health.unhealthy)
    });
    let tail = spec.membership.tail_max_seconds;
    let lasts = Duration::from_secs(u64::from(detected.max().unwrap_or(0)) + u64::from(tail));
    Some(Notice {
        reason: LATE_FLOWS_DROPPED,
        message: format!(
            "externalTrafficPolicy Local: once the last endpoint of a node has left, new flows that still come to it are \
             dropped for up to {} s: {why}",
            lasts.as_secs()
        ),
        degrades: false,
    })
}

#[cfg(test)]
mod tests {
    use onehop_core::crd::{HealthBy, HealthCheck, HealthProtocol, LoadBalancerPort, Membership};
    use onehop_core::service::{AGENT_PROXY_NAME, PROXY_NAME_LABEL};

    use super::*;

    fn service(policy: TrafficPolicy, label: Option<&str>) -> ServiceSpec {
        let label = label.map(|name| (PROXY_NAME_LABEL.to_owned(), name.to_owned()));
        ServiceSpec {
            external_policy: policy,
            labels: label.into_iter().collect(),
            ..ServiceSpec::default()
        }
    }

    fn spec(mode: TargetMode, late_flows: LateFlows) -> LoadBalancerSpec {
        LoadBalancerSpec {
            ports: vec![LoadBalancerPort {
                mode,
                health: Some(HealthCheck {
                    by: HealthBy::Local,
                    protocol: HealthProtocol::Http,
                    port: Some(31000),
                    path: None,
                    interval_seconds: 10,
                    timeout_seconds: 5,
                    healthy: 2,
                    unhealthy: 2,
                }),
                ..LoadBalancerPort::default()
            }],
            membership: Membership {
                tail_max_seconds: 180,
                late_flows,
                ..Membership::default()
            },
            ..LoadBalancerSpec::default()
        }
    }

    #[test]
    fn zd108_what_is_dropped_after_the_last_local_endpoint_is_said_with_its_bound() {
        let strict = spec(TargetMode::Node, LateFlows::Forward);
        let local = service(TrafficPolicy::Local, None);
        let told = dropped(&local, &strict, NodeProxy::Beside).unwrap();
        assert!(told.message.contains("kube-proxy"), "ZD-108: {told:?}");
        assert!(told.message.contains("up to 200 s"), "ZD-108: {told:?}");
        assert!(!told.degrades, "it is as it was asked for");
        let ours = service(TrafficPolicy::Local, Some(AGENT_PROXY_NAME));
        let chosen = spec(TargetMode::Vip, LateFlows::Drop);
        for (service, proxy) in [(&ours, NodeProxy::Beside), (&local, NodeProxy::Replace)] {
            assert_eq!(dropped(service, &strict, proxy), None, "ZD-60: forwarded");
            let told = dropped(service, &chosen, proxy).unwrap();
            assert!(told.message.contains("lateFlows: drop"), "ZD-108: {told:?}");
        }
        let cluster = service(TrafficPolicy::Cluster, None);
        assert_eq!(dropped(&cluster, &strict, NodeProxy::Beside), None);
        let pods = spec(TargetMode::Pod, LateFlows::Forward);
        assert_eq!(dropped(&local, &pods, NodeProxy::Beside), None);
    }
}
