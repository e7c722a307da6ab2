//! What the page holds.

use std::collections::BTreeMap;

use super::*;

/// A page on which every metric was told something.
fn page() -> String {
    let metrics = Metrics::new(onehop_runtime::metrics::Metrics::default());
    let took = Duration::from_millis(3);
    for full in [true, false] {
        metrics.committed(&Family::ALL, full, took, Time::EPOCH);
    }
    metrics.commit_failed(&Family::ALL);
    metrics.cleanup_failed(Family::V4);
    metrics.queued(Time::EPOCH);
    metrics.programmed_after(Family::V4, took);
    metrics.no_local_endpoints(1, 2);
    metrics.healthz(StatusCode::OK);
    metrics.livez(StatusCode::SERVICE_UNAVAILABLE);
    metrics.conntrack(Family::V6, took, 3);
    metrics.frontends(FrontendCounts {
        programmed: 7,
        skipped: 1,
    });
    metrics.registry.page()
}

/// Kinds of the metrics of a page, by the names under which they are scraped.
fn kinds(page: &str) -> BTreeMap<String, &str> {
    let lines = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let kinds = lines.filter_map(|line| line.split_once(' '));
    kinds
        .map(|(name, kind)| match kind {
            "counter" => (format!("{name}_total"), kind),
            _ => (name.to_owned(), kind),
        })
        .collect()
}

#[test]
fn s300_s301_every_metric_of_kube_proxys_nftables_mode_is_there_by_name_and_kind() {
    const SYNC: &str = "kubeproxy_sync_proxy_rules";
    let page = page();
    let kinds = kinds(&page);
    for (name, kind) in [
        (format!("{SYNC}_duration_seconds"), "histogram"),
        (
            "kubeproxy_sync_full_proxy_rules_duration_seconds".to_owned(),
            "histogram",
        ),
        (
            "kubeproxy_sync_partial_proxy_rules_duration_seconds".to_owned(),
            "histogram",
        ),
        (
            "kubeproxy_network_programming_duration_seconds".to_owned(),
            "histogram",
        ),
        (format!("{SYNC}_last_timestamp_seconds"), "gauge"),
        (format!("{SYNC}_last_queued_timestamp_seconds"), "gauge"),
        (format!("{SYNC}_endpoint_changes_total"), "counter"),
        (format!("{SYNC}_endpoint_changes_pending"), "gauge"),
        (format!("{SYNC}_service_changes_total"), "counter"),
        (format!("{SYNC}_service_changes_pending"), "gauge"),
        (format!("{SYNC}_no_local_endpoints_total"), "gauge"),
        (format!("{SYNC}_nftables_sync_failures_total"), "counter"),
        (format!("{SYNC}_nftables_cleanup_failures_total"), "counter"),
        ("kubeproxy_proxy_healthz_total".to_owned(), "counter"),
        ("kubeproxy_proxy_livez_total".to_owned(), "counter"),
        (
            "kubeproxy_conntrack_reconciler_sync_duration_seconds".to_owned(),
            "histogram",
        ),
        (
            "kubeproxy_conntrack_reconciler_deleted_entries_total".to_owned(),
            "counter",
        ),
        ("process_cpu_seconds_total".to_owned(), "counter"),
        ("process_resident_memory_bytes".to_owned(), "gauge"),
    ] {
        assert_eq!(kinds.get(&name), Some(&kind), "S-300: {name}");
    }
    // Those of its iptables mode alone are not.
    assert!(!page.contains("iptables"), "S-300");
}

#[test]
fn s300_labels_and_values_are_upstreams() {
    let page = page();
    for line in [
        "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 2",
        "kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv6\"} 1",
        "kubeproxy_sync_proxy_rules_endpoint_changes_total 0",
        "kubeproxy_sync_proxy_rules_service_changes_pending 0",
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy=\"external\"} 2",
        "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total{ip_family=\"IPv4\"} 1",
        "kubeproxy_proxy_healthz_total{code=\"200\"} 1",
        "kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family=\"IPv6\"} 3",
        // From 1 ms, doubled: 15 bounds.
        "kubeproxy_sync_proxy_rules_duration_seconds_bucket{le=\"16.384\",ip_family=\"IPv4\"} 2",
        "kubeproxy_network_programming_duration_seconds_bucket{le=\"0.25\",ip_family=\"IPv4\"} 1",
        "kubeproxy_network_programming_duration_seconds_bucket{le=\"300.0\",ip_family=\"IPv4\"} 1",
        "process_resident_memory_bytes 0",
    ] {
        assert!(
            page.lines().any(|have| have == line),
            "{line} is not in\n{page}"
        );
    }
}

#[test]
fn s302_own_names() {
    let page = page();
    for line in [
        "onehop_node_programmed_frontends 7",
        "onehop_node_skipped_frontends 1",
    ] {
        assert!(page.lines().any(|have| have == line), "{line}: {page}");
    }
}

#[test]
fn zd122_what_guards_and_windows_did_is_on_the_page() {
    use onehop_core::id::Protocol;

    use crate::guard::End;
    use crate::table::counts::Counted;

    let metrics = Metrics::new(onehop_runtime::metrics::Metrics::default());
    let late = metrics.late();
    late.set(
        &[
            ((Counted::SteeredHere, Protocol::Tcp), 5),
            ((Counted::SteeredElsewhere, Protocol::Udp), 3),
            ((Counted::Refused, Protocol::Tcp), 2),
            ((Counted::Window, Protocol::Tcp), 4),
        ]
        .into(),
    );
    late.ended(End::Released);
    late.guarded_after(Duration::from_millis(3));
    late.last_flow_after(Duration::from_secs(90));
    metrics.guards(6);
    metrics.pod_health(StatusCode::SERVICE_UNAVAILABLE);
    let page = metrics.registry.page();
    for line in [
        "onehop_node_guards 6",
        "onehop_node_steered_flows_total{to=\"same_node\",protocol=\"tcp\"} 5",
        "onehop_node_steered_flows_total{to=\"other_node\",protocol=\"udp\"} 3",
        "onehop_node_refused_flows_total{protocol=\"tcp\"} 2",
        "onehop_node_window_flows_total{protocol=\"tcp\"} 4",
        // ZD-109: those that went to another node, by either way.
        "onehop_node_client_address_lost_total 7",
        "onehop_node_guard_ends_total{cause=\"released\"} 1",
        "onehop_node_guarded_after_seconds_bucket{le=\"0.004\"} 1",
        "onehop_node_last_flow_after_seconds_bucket{le=\"128.0\"} 1",
        "onehop_node_pod_health_total{code=\"503\"} 1",
    ] {
        assert!(page.lines().any(|have| have == line), "{line}: {page}");
    }
}
