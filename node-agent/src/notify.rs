//! What the agent tells people about their Services, as Events. The app only queues; writing Events
//! is I/O and never happens in the commit path (S-131).

use std::fmt;

use k8s_openapi::api::core::v1::ObjectReference;
use onehop_core::id::NodeName;
use onehop_core::service::ServiceSpec;
use onehop_runtime::events::{Occurrence, Publisher, Severity, about_service};

use crate::health::ports::BindFailure;
use crate::planner::Notice;

/// Tells about Services. All of it is warnings.
#[derive(Debug, Clone)]
pub struct Notifier {
    publisher: Publisher,
}

impl Notifier {
    /// Tells by this publisher.
    pub fn new(publisher: Publisher) -> Self {
        Self { publisher }
    }

    /// A health check node port cannot be opened (S-105; upstream's reason).
    pub fn health_port_failed(&self, service: &ServiceSpec, failure: &BindFailure) {
        let addr = failure.listen.addr;
        let error = &failure.error;
        let message = format!(
            "node health check port {addr} cannot be opened: {error}; it is tried again until it can"
        );
        self.warn(service, "FailedToStartServiceHealthcheck", message);
    }

    /// kube-proxy programs a Service of ours too (S-126).
    pub fn claimed_twice(&self, service: &ServiceSpec) {
        let message = "kube-proxy on this node programs this Service too; it is left to kube-proxy \
             until its rules no longer name it";
        self.warn(service, "ServiceClaimedTwice", message.to_owned());
    }

    /// A living kube-proxy keeps the agent from being the only proxy (S-125).
    pub fn kube_proxy_lives(&self, node: &NodeName) {
        let message = "a kube-proxy lives on this node and programs the same Services: nothing is \
             programmed until it is stopped (or --override-kube-proxy is given)";
        self.about_node(node, "KubeProxyRunning", message.to_owned());
    }

    /// A kube-proxy in an iptables mode left its chains, which share tables with others (S-127).
    pub fn iptables_left(&self, node: &NodeName) {
        let message = "a kube-proxy left iptables chains (KUBE-SERVICES and others) on this node; \
             remove them by `kube-proxy --cleanup`";
        self.about_node(node, "IptablesRulesLeft", message.to_owned());
    }

    fn about_node(&self, node: &NodeName, reason: &'static str, message: String) {
        tracing::warn!(%node, reason, "{message}");
        // As the kubelet does, the name stands for the UID, by which tools find a node's events.
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.to_string()),
            uid: Some(node.to_string()),
            ..ObjectReference::default()
        };
        self.publisher.publish(Occurrence {
            about,
            severity: Severity::Warning,
            reason,
            message,
        });
    }

    /// Frontends of a Service cannot be programmed as wanted.
    pub fn notices(&self, service: &ServiceSpec, notices: &[Notice]) {
        for notice in notices {
            self.warn(service, notice.reason(), notice.to_string());
        }
    }

    fn warn(&self, service: &ServiceSpec, reason: &'static str, message: String) {
        tracing::warn!(service = %service.key, reason, "{message}");
        self.publisher.publish(Occurrence {
            about: about_service(&service.key, &service.uid),
            severity: Severity::Warning,
            reason,
            message,
        });
    }
}

impl Notice {
    fn reason(&self) -> &'static str {
        match self {
            Self::Lost { .. } => "FrontendConflict",
            Self::Cut { .. } => "TooManyEndpoints",
            Self::Unrestricted { .. } => "SourceRangesIncomplete",
            Self::Refused { .. } => "FrontendRefused",
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost { front, winner } => write!(
                f,
                "{front} belongs to the older Service {winner}; it is not programmed for this one"
            ),
            Self::Cut { front, left_out } => write!(
                f,
                "{front} has more endpoints than a list can hold; {left_out} are left out"
            ),
            Self::Unrestricted { family } => write!(
                f,
                "loadBalancerSourceRanges has no range of {family}: anybody may use the load balancer's \
                 addresses of that family (--unlisted-family=closed lets nobody)"
            ),
            Self::Refused { front } => {
                write!(f, "the kernel refused {front}; it is tried again")
            }
        }
    }
}
