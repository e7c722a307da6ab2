//! Real nodes: kubelet, containerd and CNI plugins in the namespaces of the fabric, with a real control plane, the chart's
//! own DaemonSet as Service proxy (or a real kube-proxy), and `CoreDNS` behind the usual Service. Worlds start them in place of
//! kubelet stand-ins.
//!
//! Never leaves anything behind: a node is a PID and a mount namespace, and what it keeps lives in memory.

mod dns;
mod journal;
mod machine;
mod up;
mod upstream;

pub use up::{Args as UpArgs, run as up};
pub use upstream::{Args as UpstreamArgs, run as run_upstream};

pub(crate) use dns::Dns;
pub(crate) use journal::follow_pods;
pub(crate) use machine::{Machine, MachineConfig};
