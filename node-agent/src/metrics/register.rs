//! Names and help texts of all metrics: kube-proxy's (S-300), those that its dashboards use besides (S-301), ours (S-302).

use prometheus_client::registry::Registry;

use super::{Histograms, Metrics};

impl Metrics {
    pub(super) fn register_upstream(&self, registry: &mut Registry) {
        let prefix = "kubeproxy_sync_proxy_rules";
        let mut histogram = |name: &str, help: &str, metric: &Histograms| {
            registry.register(format!("kubeproxy_{name}"), help, metric.clone());
        };
        histogram(
            "sync_proxy_rules_duration_seconds",
            "Time of one commit",
            &self.sync_duration,
        );
        histogram(
            "sync_full_proxy_rules_duration_seconds",
            "Time of one commit of everything",
            &self.full_sync_duration,
        );
        histogram(
            "sync_partial_proxy_rules_duration_seconds",
            "Time of one commit of differences",
            &self.partial_sync_duration,
        );
        histogram(
            "network_programming_duration_seconds",
            "Time from a change of endpoints to its commit",
            &self.network_programming,
        );
        histogram(
            "conntrack_reconciler_sync_duration_seconds",
            "Time of one clean-up of connection tracking",
            &self.conntrack_duration,
        );
        registry.register(
            format!("{prefix}_last_timestamp_seconds"),
            "When the last commit was done",
            self.last_sync.clone(),
        );
        registry.register(
            format!("{prefix}_last_queued_timestamp_seconds"),
            "When the last change was queued",
            self.last_queued.clone(),
        );
        // The encoder appends `_total` to counters.
        registry.register(
            format!("{prefix}_endpoint_changes"),
            "Changes of endpoints",
            self.endpoint_changes.clone(),
        );
        registry.register(
            format!("{prefix}_endpoint_changes_pending"),
            "Changes of endpoints that are not committed",
            self.endpoint_pending.clone(),
        );
        registry.register(
            format!("{prefix}_service_changes"),
            "Changes of Services",
            self.service_changes.clone(),
        );
        registry.register(
            format!("{prefix}_service_changes_pending"),
            "Changes of Services that are not committed",
            self.service_pending.clone(),
        );
        registry.register(
            format!("{prefix}_no_local_endpoints_total"),
            "Service ports whose Local policy finds no endpoint here",
            self.no_local_endpoints.clone(),
        );
        registry.register(
            format!("{prefix}_nftables_sync_failures"),
            "Failed commits",
            self.sync_failures.clone(),
        );
        registry.register(
            format!("{prefix}_nftables_cleanup_failures"),
            "Failed deletions of what is out of use",
            self.cleanup_failures.clone(),
        );
        registry.register(
            "process_cpu_seconds",
            "Processor time of this process",
            self.cpu_seconds.clone(),
        );
        registry.register(
            "process_resident_memory_bytes",
            "Memory of this process",
            self.resident_bytes.clone(),
        );
        registry.register(
            "kubeproxy_proxy_healthz",
            "Answers of /healthz",
            self.healthz.clone(),
        );
        registry.register(
            "kubeproxy_proxy_livez",
            "Answers of /livez",
            self.livez.clone(),
        );
        registry.register(
            "kubeproxy_conntrack_reconciler_deleted_entries",
            "Deleted connection tracking entries",
            self.conntrack_deleted.clone(),
        );
    }

    pub(super) fn register_own(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("onehop_node");
        registry.register(
            "programmed_frontends",
            "Frontends in the kernel",
            self.programmed_frontends.clone(),
        );
        registry.register(
            "skipped_frontends",
            "Frontends asked for but left out",
            self.skipped_frontends.clone(),
        );
        registry.register(
            "pod_health",
            "Answers about the health of pods that are targets",
            self.pod_health.clone(),
        );
        registry.register("batches", "Commits to the kernel", self.batches.clone());
        registry.register(
            "elements",
            "Elements that commits added and removed",
            self.elements.clone(),
        );
        registry.register(
            "repairs",
            "Repairs of kernel state, by cause",
            self.repairs.clone(),
        );
        registry.register(
            "health_ports",
            "Health check node ports that are served",
            self.health_ports.clone(),
        );
        registry.register(
            "guards",
            "Load balancer targets whose new flows are steered to other endpoints",
            self.guards.clone(),
        );
        self.late.register(registry);
        registry.register(
            "kube_proxy_overlap",
            "Services that were given up because kube-proxy programs them too",
            self.kube_proxy_overlap.clone(),
        );
    }
}
