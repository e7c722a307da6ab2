//! The cluster's DNS: `CoreDNS` in the management namespace, behind the Service `kube-dns`.

use super::machine::CLUSTER_DNS;
use crate::world::{Objects, Programs};
use anyhow::{Context, Result};
use e2e_fabric::{Child, Fabric};
use serde_json::json;
use std::{
    fs::File,
    path::Path,
    process::{Command, Stdio},
};

/// A running server; it ends with its world.
pub(crate) struct Dns {
    _child: Child,
}

impl Dns {
    /// Starts it, with an administrator's kubeconfig, and makes the Service.
    pub(crate) async fn start(
        fabric: &Fabric,
        objects: &Objects,
        folder: &Path,
        kubeconfig: &Path,
    ) -> Result<Self> {
        let address = Fabric::MANAGEMENT;
        let config = folder.join("Corefile");
        let text = format!(
            ".:53 {{\n  bind {address}\n  errors\n  kubernetes cluster.local in-addr.arpa ip6.arpa {{\n    \
             kubeconfig {}\n    pods insecure\n    ttl 5\n  }}\n}}\n",
            kubeconfig.display()
        );
        std::fs::write(&config, text).with_context(|| format!("write {}", config.display()))?;
        let log = File::create(folder.join("coredns.log")).context("make the log of CoreDNS")?;
        let mut command = Command::new(Programs::of_the_control_plane()?.path("coredns")?);
        command
            .arg("-conf")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = fabric.management().spawn(command)?;
        let ports = |target: &str| {
            json!([
                {"name": "dns", "port": 53, "protocol": "UDP", (target): 53},
                {"name": "dns-tcp", "port": 53, "protocol": "TCP", (target): 53},
            ])
        };
        objects
            .apply(json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {
                    "name": "kube-dns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"},
                },
                "spec": {"clusterIP": CLUSTER_DNS, "ports": ports("targetPort")},
            }))
            .await?;
        objects
            .apply(json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {
                    "name": "kube-dns-process", "namespace": "kube-system",
                    "labels": {
                        "kubernetes.io/service-name": "kube-dns",
                        "endpointslice.kubernetes.io/managed-by": "e2e",
                    },
                },
                "addressType": "IPv4",
                "endpoints": [{"addresses": [address.to_string()], "conditions": {"ready": true}}],
                "ports": [
                    {"name": "dns", "port": 53, "protocol": "UDP"},
                    {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
                ],
            }))
            .await?;
        Ok(Self { _child: child })
    }
}
