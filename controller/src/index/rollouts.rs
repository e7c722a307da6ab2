//! How Deployments replace their pods: the part of the index that only advice is given by (ZD-95).

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use onehop_core::service::ServiceSpec;
use onehop_runtime::watch::{ObjectKey, Seen};

use super::{Index, Touched};

/// How a Deployment replaces its pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rollout {
    /// Labels of its pods.
    pub labels: BTreeMap<String, String>,
    /// How many there are to be.
    pub replicas: i32,
    /// All are stopped before the next are started.
    pub recreates: bool,
    /// How many may be missing meanwhile.
    pub unavailable: i32,
}

impl Rollout {
    fn of(deployment: &Deployment) -> Option<Self> {
        let spec = deployment.spec.as_ref()?;
        let labels = spec.template.metadata.as_ref()?.labels.clone();
        let replicas = spec.replicas.unwrap_or(1);
        let strategy = spec.strategy.as_ref();
        let most = strategy
            .and_then(|s| s.rolling_update.as_ref())
            .and_then(|r| r.max_unavailable.as_ref());
        let unavailable = match most {
            Some(IntOrString::Int(number)) => *number,
            Some(IntOrString::String(share)) => {
                let percent: i32 = share.trim_end_matches('%').parse().unwrap_or(0);
                replicas.saturating_mul(percent) / 100
            }
            // What the API server fills in is 25 %.
            None => replicas / 4,
        };
        Some(Self {
            labels: labels.unwrap_or_default(),
            replicas,
            recreates: strategy.and_then(|s| s.type_.as_deref()) == Some("Recreate"),
            unavailable,
        })
    }

    /// Whether a rollout has a time without any pod.
    pub const fn leaves_none(&self) -> bool {
        self.replicas > 0 && (self.recreates || (self.replicas == 1 && self.unavailable >= 1))
    }

    fn serves(&self, service: &ServiceSpec) -> bool {
        let has = |(key, value): (&String, &String)| self.labels.get(key) == Some(value);
        !service.selector.is_empty() && service.selector.iter().all(has)
    }
}

impl Index {
    /// A Deployment came, changed or went: concerns the Services that choose its pods.
    pub fn on_deployment(&mut self, event: Seen<Deployment>) -> Touched {
        let changes = self.rollouts.apply(event, Rollout::of);
        let mut touched = Vec::new();
        for change in changes {
            let now = self.rollouts.get(&change.key);
            let rollouts: Vec<&Rollout> = now.into_iter().chain(&change.old).collect();
            let concerned = self.services().filter(|known| {
                known.spec.key.namespace == change.key.namespace
                    && rollouts.iter().any(|r| r.serves(&known.spec))
            });
            touched.extend(concerned.map(|known| known.spec.key.clone()));
        }
        Touched::Services(touched)
    }

    /// The Deployments that make a Service's pods, by name.
    pub fn rollouts_of(&self, service: &ServiceSpec) -> BTreeMap<&str, &Rollout> {
        let first = ObjectKey {
            namespace: service.key.namespace.clone(),
            name: String::new(),
        };
        let all = self.rollouts.all().range(first..);
        all.take_while(|(key, _)| key.namespace == service.key.namespace)
            .filter(|(_, rollout)| rollout.serves(service))
            .map(|(key, rollout)| (key.name.as_str(), rollout))
            .collect()
    }
}
