//! Keys of annotations (section 4 of the AWS page), without their prefix.

/// Prefix of every key here.
pub const PREFIX: &str = "service.beta.kubernetes.io/";
/// What the keys that nobody knows begin with.
pub const LB_PREFIX: &str = "aws-load-balancer-";
/// Target mode (K-50).
pub const TARGET: &str = "onehop.dev/target";
/// Membership policy (K-32).
pub const MEMBERSHIP: &str = "onehop.dev/membership";
/// Prefix of keys of our own.
pub const OUR_PREFIX: &str = "onehop.dev/";

macro_rules! keys {
    ($($name:ident = $key:literal),+ $(,)?) => {
        $(#[allow(missing_docs, reason = "the value says it")] pub const $name: &str = $key;)+

        /// All of them.
        pub const KNOWN: &[&str] = &[$($key),+];
    };
}

keys! {
    TYPE = "aws-load-balancer-type",
    TARGET_TYPE = "aws-load-balancer-nlb-target-type",
    NAME = "aws-load-balancer-name",
    SCHEME = "aws-load-balancer-scheme",
    INTERNAL = "aws-load-balancer-internal",
    SUBNETS = "aws-load-balancer-subnets",
    EIPS = "aws-load-balancer-eip-allocations",
    PRIVATE_IPV4 = "aws-load-balancer-private-ipv4-addresses",
    IPV6_ADDRESSES = "aws-load-balancer-ipv6-addresses",
    IP_TYPE = "aws-load-balancer-ip-address-type",
    PREFIX_FOR_IPV6 = "aws-load-balancer-enable-prefix-for-ipv6-source-nat",
    IPV6_PREFIXES = "aws-load-balancer-source-nat-ipv6-prefixes",
    ATTRIBUTES = "aws-load-balancer-attributes",
    CROSS_ZONE = "aws-load-balancer-cross-zone-load-balancing-enabled",
    LOG_ENABLED = "aws-load-balancer-access-log-enabled",
    LOG_BUCKET = "aws-load-balancer-access-log-s3-bucket-name",
    LOG_PREFIX = "aws-load-balancer-access-log-s3-bucket-prefix",
    CAPACITY = "aws-load-balancer-minimum-load-balancer-capacity",
    TAGS = "aws-load-balancer-additional-resource-tags",
    SECURITY_GROUPS = "aws-load-balancer-security-groups",
    BACKEND_RULES = "aws-load-balancer-manage-backend-security-group-rules",
    NO_SECURITY_GROUP = "aws-load-balancer-disable-nlb-sg",
    PRIVATE_LINK = "aws-load-balancer-inbound-sg-rules-on-private-link-traffic",
    SOURCE_RANGES = "load-balancer-source-ranges",
    PREFIX_LISTS = "aws-load-balancer-security-group-prefix-lists",
    ICMP = "aws-load-balancer-enable-icmp-for-path-mtu-discovery",
    CERTIFICATES = "aws-load-balancer-ssl-cert",
    SSL_PORTS = "aws-load-balancer-ssl-ports",
    SSL_POLICY = "aws-load-balancer-ssl-negotiation-policy",
    BACKEND_PROTOCOL = "aws-load-balancer-backend-protocol",
    ALPN = "aws-load-balancer-alpn-policy",
    PROXY_PROTOCOL = "aws-load-balancer-proxy-protocol",
    PROXY_PROTOCOL_OF = "aws-load-balancer-proxy-protocol-per-target-group",
    GROUP_ATTRIBUTES = "aws-load-balancer-target-group-attributes",
    LISTENER_ATTRIBUTES = "aws-load-balancer-listener-attributes",
    HC_PROTOCOL = "aws-load-balancer-healthcheck-protocol",
    HC_PORT = "aws-load-balancer-healthcheck-port",
    HC_PATH = "aws-load-balancer-healthcheck-path",
    HC_INTERVAL = "aws-load-balancer-healthcheck-interval",
    HC_TIMEOUT = "aws-load-balancer-healthcheck-timeout",
    HC_HEALTHY = "aws-load-balancer-healthcheck-healthy-threshold",
    HC_UNHEALTHY = "aws-load-balancer-healthcheck-unhealthy-threshold",
    HC_CODES = "aws-load-balancer-healthcheck-success-codes",
    NODE_LABELS = "aws-load-balancer-target-node-labels",
    TCP_UDP = "aws-load-balancer-enable-tcp-udp-listener",
    QUIC_PORTS = "aws-load-balancer-quic-enabled-ports",
    MULTI_CLUSTER = "aws-load-balancer-multi-cluster-target-group",
}

/// Keys of the in-tree provider that do nothing here, and what to use instead (AWS-085).
pub const REPLACED: &[(&str, &str)] = &[
    (
        "aws-load-balancer-connection-idle-timeout",
        "aws-load-balancer-listener-attributes.TCP-<port>: tcp.idle_timeout.seconds=…",
    ),
    (
        "aws-load-balancer-connection-draining-enabled",
        "aws-load-balancer-target-group-attributes: deregistration_delay.timeout_seconds=…",
    ),
    (
        "aws-load-balancer-connection-draining-timeout",
        "aws-load-balancer-target-group-attributes: deregistration_delay.timeout_seconds=…",
    ),
    (
        "aws-load-balancer-extra-security-groups",
        "aws-load-balancer-security-groups",
    ),
    (
        "aws-load-balancer-source-ranges",
        "load-balancer-source-ranges, or spec.loadBalancerSourceRanges",
    ),
];

/// Keys that are understood and not carried out yet.
pub const NOT_YET: &[&str] = &[
    IPV6_ADDRESSES,
    PREFIX_FOR_IPV6,
    IPV6_PREFIXES,
    CAPACITY,
    PRIVATE_LINK,
    QUIC_PORTS,
    MULTI_CLUSTER,
];
