//! A kubelet stand-in: runs the pods bound to a node as processes in network namespaces, with readiness probes,
//! grace and status as a kubelet has them.
//!
//! Worlds start one for each node. It knows Kubernetes and the fabric, and nothing of onehop: the node agent is one
//! more pod to it. It runs no init containers, only readiness probes, and mounts no volumes: containers see the
//! machine's own files.

mod api;
mod container;
mod env;
mod events;
mod images;
mod kubelet;
mod node;
mod plan;
mod pod;
mod probe;
mod status;

pub use container::RestartBackoff;
pub use events::{EventHook, PodEvent, PodRef, PodStep};
pub use images::{Image, ImageTable};
pub use kubelet::{Kubelet, KubeletConfig, PodPlaces};
