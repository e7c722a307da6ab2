//! A kubelet stand-in: runs the pods bound to a node as processes in network namespaces, with readiness probes,
//! grace and status as a kubelet has them.
//!
//! Worlds start one for each node. It knows Kubernetes and the fabric, and nothing of onehop: the node agent is one
//! more pod to it. Of probes it runs only those of readiness. Containers of an image with files of its own run as a
//! container runtime runs them ([`Sandbox`]), with init containers, volumes, a token of their account and the manifest's
//! security context; all others see the machine's own files, without any of that.

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
mod sandbox;
mod seccomp;
mod security;
mod status;
mod volumes;

pub use container::RestartBackoff;
pub use events::{EventHook, PodEvent, PodRef, PodStep};
pub use images::{Image, ImageTable, OwnFiles};
pub use kubelet::{Kubelet, KubeletConfig, PodPlaces};
pub use sandbox::{Identity, Mount, Sandbox};
