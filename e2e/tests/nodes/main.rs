//! Scenarios on real nodes: kubelet and containerd in place of the stand-ins, the chart's `DaemonSet` as the only Service
//! proxy. One test after another, since they measure.

mod left_behind;
mod rollouts;
