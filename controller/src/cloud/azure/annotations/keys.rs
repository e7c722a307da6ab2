//! Keys of annotations of the Azure provider, without their prefix (AZ-040 to AZ-077).

/// Prefix of all but the keys of our own.
pub const PREFIX: &str = "service.beta.kubernetes.io/";
/// Our own key for the target mode.
pub const TARGET: &str = "onehop.dev/target";
/// Our own key for the membership policy.
pub const MEMBERSHIP: &str = "onehop.dev/membership";
/// Option with `spec.loadBalancerSourceRanges`.
pub const SPEC_RANGES: &str = "spec.loadBalancerSourceRanges";
/// Option with `spec.loadBalancerIP`.
pub const SPEC_ADDRESS: &str = "spec.loadBalancerIP";
/// Option with `spec.sessionAffinity`.
pub const SPEC_AFFINITY: &str = "spec.sessionAffinity";
/// Option with the ports for which nodes stand in for pods: what a live load balancer has is not chosen anew (K-50).
pub const SPEC_OWN_POOLS: &str = "spec.ports.ownPool";

/// AZ-040.
pub const INTERNAL: &str = "azure-load-balancer-internal";
/// AZ-041.
pub const SUBNET: &str = "azure-load-balancer-internal-subnet";
/// AZ-042.
pub const IPV4: &str = "azure-load-balancer-ipv4";
/// AZ-042.
pub const IPV6: &str = "azure-load-balancer-ipv6";
/// AZ-043.
pub const PIP_NAME: &str = "azure-pip-name";
/// AZ-043.
pub const PIP_NAME_V6: &str = "azure-pip-name-ipv6";
/// AZ-044.
pub const PIP_PREFIX: &str = "azure-pip-prefix-id";
/// AZ-044.
pub const PIP_PREFIX_V6: &str = "azure-pip-prefix-id-ipv6";
/// AZ-045.
pub const PIP_TAGS: &str = "azure-pip-tags";
/// AZ-046.
pub const PIP_IP_TAGS: &str = "azure-pip-ip-tags";
/// AZ-048.
pub const DNS_LABEL: &str = "azure-dns-label-name";
/// AZ-049.
pub const RESOURCE_GROUP: &str = "azure-load-balancer-resource-group";
/// AZ-050.
pub const ADDITIONAL_IPS: &str = "azure-additional-public-ips";
/// AZ-051.
pub const SERVICE_TAGS: &str = "azure-allowed-service-tags";
/// AZ-052.
pub const ALLOWED_RANGES: &str = "azure-allowed-ip-ranges";
/// AZ-052.
pub const SOURCE_RANGES: &str = "load-balancer-source-ranges";
/// AZ-053.
pub const DENY_ALL: &str = "azure-deny-all-except-load-balancer-source-ranges";
/// AZ-054.
pub const NO_NSG: &str = "azure-disable-load-balancer-nsg-rule";
/// AZ-055.
pub const NO_FLOATING: &str = "azure-disable-load-balancer-floating-ip";
/// AZ-056.
pub const HA_PORTS: &str = "azure-load-balancer-enable-high-availability-ports";
/// AZ-057.
pub const IDLE: &str = "azure-load-balancer-tcp-idle-timeout";
/// AZ-058.
pub const NO_RESET: &str = "azure-load-balancer-disable-tcp-reset";
/// AZ-059.
pub const PROBE_PROTOCOL: &str = "azure-load-balancer-health-probe-protocol";
/// AZ-060.
pub const PROBE_PATH: &str = "azure-load-balancer-health-probe-request-path";
/// AZ-061.
pub const PROBE_INTERVAL: &str = "azure-load-balancer-health-probe-interval";
/// AZ-062.
pub const PROBE_COUNT: &str = "azure-load-balancer-health-probe-num-of-probe";
/// AZ-063.
pub const PORT_NO_RULE: &str = "no_lb_rule";
/// AZ-064.
pub const PORT_NO_PROBE: &str = "no_probe_rule";
/// AZ-065.
pub const PORT_PROBE_PROTOCOL: &str = "health-probe_protocol";
/// AZ-065.
pub const PORT_PROBE_PATH: &str = "health-probe_request-path";
/// AZ-065.
pub const PORT_PROBE_INTERVAL: &str = "health-probe_interval";
/// AZ-065.
pub const PORT_PROBE_COUNT: &str = "health-probe_num-of-probe";
/// AZ-066.
pub const PORT_PROBE_PORT: &str = "health-probe_port";
/// AZ-067.
pub const CONFIGURATIONS: &str = "azure-load-balancer-configurations";
/// AZ-068.
pub const BASIC_MODE: &str = "azure-load-balancer-mode";
/// AZ-070.
pub const PLS_CREATE: &str = "azure-pls-create";
/// AZ-071 to AZ-077: what says more about a Private Link Service.
pub const PLS_MORE: [&str; 9] = [
    "azure-pls-name",
    "azure-pls-resource-group",
    "azure-pls-ip-configuration-subnet",
    "azure-pls-ip-configuration-ip-address-count",
    "azure-pls-ip-configuration-ip-address",
    "azure-pls-fqdns",
    "azure-pls-visibility",
    "azure-pls-auto-approval",
    "azure-pls-proxy-protocol",
];
/// AZ-036: known, and without effect.
pub const DEAD: [&str; 2] = [
    "azure-shared-securityrule",
    "azure-load-balancer-mixed-protocols",
];
