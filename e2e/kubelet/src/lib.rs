//! kubelet: see the module docs.
