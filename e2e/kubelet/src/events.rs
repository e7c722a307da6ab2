//! What happened to a pod and when: the log by which lost connections are explained (FC-83).

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use onehop_core::time::Time;
use onehop_runtime::clock::Clock;
use serde::Serialize;

/// A pod, for logs and lookups.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct PodRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// One step in a pod's life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PodStep {
    /// Its network exists.
    Created {
        /// Its address.
        address: Ipv4Addr,
    },
    /// A container's process runs.
    Started {
        /// Container.
        container: String,
        /// Process id, as the harness sees it.
        pid: u32,
    },
    /// The Ready condition turned true.
    Ready,
    /// The Ready condition turned false.
    NotReady,
    /// Its deletion was seen.
    DeletionMarked {
        /// Time it has, preStop included.
        #[serde(serialize_with = "as_millis")]
        grace: Duration,
    },
    /// A container's process was asked to end.
    Sigterm {
        /// Container.
        container: String,
    },
    /// A container's process was killed at the end of its grace.
    Sigkill {
        /// Container.
        container: String,
    },
    /// A container's process ended.
    Exited {
        /// Container.
        container: String,
        /// Exit code, 128 + signal for one that was killed.
        code: i32,
    },
    /// Nothing is left of it on the node.
    Gone,
    /// Something did not work; the kubelet tries again.
    Trouble {
        /// What.
        message: String,
    },
}

/// A [`PodStep`] with its place and time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodEvent {
    /// When.
    pub at: Time,
    /// On which node.
    pub node: String,
    /// Of which pod.
    #[serde(flatten)]
    pub pod: PodRef,
    /// What.
    #[serde(flatten)]
    pub step: PodStep,
}

/// Called for every event, from tasks of the kubelet; must not block.
pub type EventHook = Arc<dyn Fn(&PodEvent) + Send + Sync>;

/// The event log with a pod's name on it.
#[derive(Clone)]
pub(crate) struct Log {
    pub(crate) node: String,
    pub(crate) pod: PodRef,
    pub(crate) clock: Clock,
    pub(crate) hook: EventHook,
}

impl Log {
    pub(crate) fn write(&self, step: PodStep) {
        let event = PodEvent {
            at: self.clock.now(),
            node: self.node.clone(),
            pod: self.pod.clone(),
            step,
        };
        tracing::debug!(?event, "pod");
        (self.hook)(&event);
    }
}

fn as_millis<S: serde::Serializer>(grace: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u128(grace.as_millis())
}
