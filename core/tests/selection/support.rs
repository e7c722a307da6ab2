//! Services and endpoints in the words of the golden table, made from API objects so that reading
//! and merging are part of every row.

use onehop_core::endpoint::{Endpoint, Endpoints, Slice};
use onehop_core::id::{IpFamily, PortKey, Protocol, Zone};
use onehop_core::select::{Here, Policies, Verdict};
use onehop_core::service::TrafficPolicy::{Cluster, Local};
use onehop_core::service::{ServiceSpec, TrafficPolicy};
use serde_json::{Value, json};

/// A Service's policies and whether it has a NodePort.
pub(crate) struct Service {
    pub(crate) internal: TrafficPolicy,
    pub(crate) external: TrafficPolicy,
    pub(crate) node_port: Option<u16>,
}

pub(crate) const DEFAULT: Service = Service {
    internal: Cluster,
    external: Cluster,
    node_port: None,
};
pub(crate) const INTERNAL_LOCAL: Service = Service {
    internal: Local,
    ..DEFAULT
};
pub(crate) const EXTERNAL_LOCAL: Service = Service {
    external: Local,
    node_port: Some(30_080),
    ..DEFAULT
};
pub(crate) const INTERNAL_LOCAL_NODE_PORT: Service = Service {
    external: Cluster,
    ..BOTH_LOCAL
};
pub(crate) const BOTH_LOCAL: Service = Service {
    internal: Local,
    external: Local,
    node_port: Some(30_080),
};

impl Service {
    /// The Service, as the API has it.
    pub(crate) fn object(&self) -> Value {
        let policy = |p| if p == Local { "Local" } else { "Cluster" };
        json!({
            "metadata": { "namespace": "shop", "name": "web", "uid": "u1" },
            "spec": {
                "type": if self.node_port.is_some() { "NodePort" } else { "ClusterIP" },
                "clusterIP": "10.96.0.1",
                "internalTrafficPolicy": policy(self.internal),
                "externalTrafficPolicy": policy(self.external),
                "ports": [{ "name": "x", "port": 80, "nodePort": self.node_port }],
            },
        })
    }

    fn spec(&self) -> ServiceSpec {
        let object = serde_json::from_value(self.object()).unwrap();
        let (spec, problems) = ServiceSpec::read(&object).unwrap();
        assert!(problems.is_empty(), "{problems:?}");
        spec
    }

    pub(crate) fn policies(&self) -> Policies {
        let spec = self.spec();
        Policies::of(&spec, &spec.ports[0], false)
    }
}

/// An endpoint in the table's words: `e1 R L z:a n:n1`, `!R` for neither ready nor serving. `R` may
/// be left out. The address of `e<k>` is 10.244.0.<k>.
pub(crate) fn endpoint(text: &str) -> Value {
    let mut words = text.split(' ');
    let number = words.next().unwrap().trim_start_matches('e');
    let (mut zones, mut nodes) = (Vec::new(), Vec::new());
    let mut node = "n2";
    let mut state = (true, true, false);
    for word in words {
        match (word, word.split_once(':')) {
            (_, Some(("z", zone))) => zones.push(json!({ "name": zone })),
            (_, Some(("n", name))) => nodes.push(json!({ "name": name })),
            ("R", _) => state = (true, true, false),
            ("!R", _) => state = (false, false, false),
            ("ST", _) => state = (false, true, true),
            ("L", _) => node = "n1",
            _ => panic!("{word}?"),
        }
    }
    json!({
        "addresses": [format!("10.244.0.{number}")],
        "nodeName": node,
        "conditions": { "ready": state.0, "serving": state.1, "terminating": state.2 },
        "hints": { "forZones": zones, "forNodes": nodes },
    })
}

/// A slice of the Service, as the API has it.
pub(crate) fn slice(name: &str, ports: &[&str], endpoints: &[&str]) -> Value {
    json!({
        "metadata": {
            "namespace": "shop", "name": name,
            "labels": { "kubernetes.io/service-name": "web" },
        },
        "addressType": "IPv4",
        "ports": ports.iter().map(|p| json!({ "name": p, "port": 8080 })).collect::<Vec<_>>(),
        "endpoints": endpoints.iter().map(|e| endpoint(e)).collect::<Vec<_>>(),
    })
}

/// The endpoints of all these slices.
pub(crate) fn merge(slices: &[Value]) -> Endpoints {
    let read = |slice: &Value| {
        let object = serde_json::from_value(slice.clone()).unwrap();
        let (slice, problems) = Slice::read(&object).unwrap();
        assert!(problems.is_empty(), "{problems:?}");
        slice
    };
    let slices: Vec<_> = slices.iter().map(read).collect();
    Endpoints::merge(&slices)
}

/// The endpoints of port `x`.
pub(crate) fn of_port(endpoints: &Endpoints) -> &[Endpoint] {
    endpoints.port(IpFamily::V4, &PortKey::new("x", Protocol::Tcp))
}

/// Node `n1` in a zone.
pub(crate) fn here(zone: Option<&str>) -> Here {
    Here {
        node: "n1".into(),
        zone: zone.map(Zone::new),
    }
}

/// The verdict's word.
pub(crate) fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Serve(_) => "serve",
        Verdict::Drop => "drop",
        Verdict::Reject => "reject",
    }
}
