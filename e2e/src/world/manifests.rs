//! The manifests that scenarios apply, as a user would write them.

use super::CloudKind;
use serde_json::{Value, json};

/// How a pod's server behaves when it is told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnTerm {
    /// Exits at once, as most servers do.
    Exit,
    /// Accepts for this many seconds more.
    ServeSeconds(u32),
}

impl OnTerm {
    /// Grace that leaves time for it.
    fn grace_seconds(self) -> u32 {
        match self {
            Self::Exit => 30,
            Self::ServeSeconds(seconds) => (seconds + 10).max(30),
        }
    }

    fn argument(self) -> String {
        match self {
            Self::Exit => "exit".into(),
            Self::ServeSeconds(s) => format!("serve:{s}s"),
        }
    }
}

/// The port that pods' servers listen on, TCP and UDP.
pub const POD_PORT: u16 = 8080;

/// A Deployment of `pod-server` (harness.md section 7: 25 % surge, 25 % unavailable).
pub fn deployment(name: &str, replicas: u32, on_term: OnTerm) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": pod_spec(on_term)},
        },
    })
}

/// A single Pod on a given node.
pub fn pod(name: &str, app: &str, node: &str, on_term: OnTerm) -> Value {
    let mut spec = pod_spec(on_term);
    spec["nodeName"] = json!(node);
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": app}},
        "spec": spec,
    })
}

fn pod_spec(on_term: OnTerm) -> Value {
    json!({
        "terminationGracePeriodSeconds": on_term.grace_seconds(),
        "containers": [{
            "name": "server", "image": "pod-server", "imagePullPolicy": "Never",
            "env": identity(),
            "args": ["--tcp", POD_PORT.to_string(), "--udp", POD_PORT.to_string(), "--on-term", on_term.argument()],
            "ports": [
                {"name": "tcp", "containerPort": POD_PORT, "protocol": "TCP"},
                {"name": "udp", "containerPort": POD_PORT, "protocol": "UDP"},
            ],
            "readinessProbe": {"tcpSocket": {"port": POD_PORT}, "periodSeconds": 1},
        }],
    })
}

/// By what the server says who it is.
fn identity() -> Value {
    let fields = [
        ("POD_NAME", "metadata.name"),
        ("POD_UID", "metadata.uid"),
        ("NODE_NAME", "spec.nodeName"),
    ];
    let fields = fields
        // With what an API server fills in: it takes the whole for one value, and the same one applied again for another.
        .map(|(name, path)| {
            let field = json!({"apiVersion": "v1", "fieldPath": path});
            json!({"name": name, "valueFrom": {"fieldRef": field}})
        });
    json!(fields)
}

/// A Service of our local class, proxied by our agent, with TCP 80 and UDP 80 to the pods' port.
#[derive(Clone, Debug)]
pub struct ServiceManifest(Value);

impl ServiceManifest {
    /// A LoadBalancer Service for the pods of `app`.
    pub fn load_balancer(name: &str, app: &str) -> Self {
        Self::cluster_ip(name, app)
            .with("type", json!("LoadBalancer"))
            .with("loadBalancerClass", json!("onehop.dev/local"))
    }

    /// A ClusterIP Service for the pods of `app`.
    pub fn cluster_ip(name: &str, app: &str) -> Self {
        Self(json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": name, "namespace": "default",
                "labels": {"service.kubernetes.io/service-proxy-name": "onehop"},
            },
            "spec": {
                "selector": {"app": app},
                "ports": [
                    {"name": "tcp", "port": 80, "protocol": "TCP", "targetPort": POD_PORT},
                    {"name": "udp", "port": 80, "protocol": "UDP", "targetPort": POD_PORT},
                ],
            },
        }))
    }

    /// Sets a field of the spec.
    #[must_use]
    pub fn with(mut self, field: &str, value: Value) -> Self {
        self.0["spec"][field] = value;
        self
    }

    /// Sets an annotation.
    #[must_use]
    pub fn annotated(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["annotations"][key] = json!(value);
        self
    }

    /// Of this cloud's class. On AWS reachable from outside, both protocols on one listener, and judged as quickly as
    /// its health checks allow.
    #[must_use]
    pub fn of_cloud(self, cloud: CloudKind) -> Self {
        let annotations = [
            ("scheme", "internet-facing"),
            ("enable-tcp-udp-listener", "true"),
            ("healthcheck-interval", "5"),
            ("healthcheck-timeout", "2"),
            ("healthcheck-healthy-threshold", "2"),
        ];
        match cloud {
            CloudKind::Local => self,
            CloudKind::Azure => self.with("loadBalancerClass", json!("onehop.dev/azure")),
            CloudKind::Aws => annotations.iter().fold(
                self.with("loadBalancerClass", json!("onehop.dev/aws")),
                |service, (key, value)| {
                    let key = format!("service.beta.kubernetes.io/aws-load-balancer-{key}");
                    service.annotated(&key, value)
                },
            ),
        }
    }

    /// Without our proxy's label: for the node's own proxy.
    #[must_use]
    pub fn unlabelled(mut self) -> Self {
        if let Some(metadata) = self.0["metadata"].as_object_mut() {
            metadata.remove("labels");
        }
        self
    }

    /// Without node ports: the load balancer's targets are pods.
    #[must_use]
    pub fn pod_mode(self) -> Self {
        self.with("allocateLoadBalancerNodePorts", json!(false))
    }

    /// Without node ports: the load balancer delivers to nodes with its own address as destination.
    #[must_use]
    pub fn vip_mode(self) -> Self {
        self.with("allocateLoadBalancerNodePorts", json!(false))
            .annotated("onehop.dev/target", "vip")
    }

    /// The manifest.
    pub fn json(self) -> Value {
        self.0
    }
}

/// The pool that the local provider's addresses come from.
pub fn address_pool(name: &str, addresses: &str) -> Value {
    json!({
        "apiVersion": "onehop.dev/v1alpha1", "kind": "AddressPool",
        "metadata": {"name": name},
        "spec": {"addresses": [addresses]},
    })
}
