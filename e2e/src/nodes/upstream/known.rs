//! Specs that do not pass here, and why. A run in which they fail is as it should be; the results page tells the reasons.

use super::PART;

/// One spec, or several of one reason.
#[derive(Debug)]
pub(super) struct Known {
    /// What its name begins with, after [`PART`].
    pub(super) spec: &'static str,
    /// With which proxy only.
    with: Option<&'static str>,
    /// As in: it does not pass, since …
    pub(super) why: &'static str,
}

const fn always(spec: &'static str, why: &'static str) -> Known {
    Known {
        spec,
        with: None,
        why,
    }
}

const fn with_kube_proxy(spec: &'static str, why: &'static str) -> Known {
    Known {
        spec,
        with: Some("kube-proxy"),
        why,
    }
}

const RESTARTED: &str = "it deletes pods of that name in `kube-system`; here the proxy is the chart's DaemonSet and the API \
                         server a process. Ours: `e2e/tests/net/coexistence.rs`, `e2e/tests/rollout/unrest.rs`";

/// All of them.
pub(super) const KNOWN: &[Known] = &[
    always(
        "LoadBalancers [Feature:LoadBalancer] should handle load balancer cleanup finalizer",
        "it asks for the finalizer `service.kubernetes.io/load-balancer-cleanup`, which is the cloud controller manager's; \
         onehop has its own and never sets that one",
    ),
    always(
        "KubeProxy should update metric for tracking accepted packets destined for localhost nodeports",
        "the metric is of kube-proxy's iptables mode only",
    ),
    always("Services should work after restarting", RESTARTED),
    with_kube_proxy(
        "LoadBalancers ExternalTrafficPolicy: Local [Feature:LoadBalancer] should only target nodes with endpoints",
        "a dual-stack node's `healthCheckNodePort` is refused on its IPv6 address",
    ),
];

/// The entry of a spec with this proxy, if it has one.
pub(super) fn of(name: &str, proxy: &str) -> Option<&'static Known> {
    let name = name.trim_start_matches(PART);
    KNOWN
        .iter()
        .find(|known| name.starts_with(known.spec) && known.with.is_none_or(|with| with == proxy))
}
