//! Settings of kube-proxy that mean nothing here.

/// Flags of kube-proxy that are accepted so that a DaemonSet can be taken over unchanged, and only warned about (S-303).
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Unused {
    #[arg(long, hide = true)]
    proxy_mode: Option<String>,
    #[arg(long, hide = true)]
    iptables_sync_period: Option<String>,
    #[arg(long, hide = true)]
    iptables_min_sync_period: Option<String>,
    #[arg(long, hide = true)]
    config_sync_period: Option<String>,
    #[arg(long, hide = true)]
    oom_score_adj: Option<String>,
    #[arg(long, hide = true)]
    profiling: Option<String>,
    #[arg(long, hide = true)]
    feature_gates: Option<String>,
    #[arg(long, hide = true)]
    master: Option<String>,
    #[arg(long, hide = true)]
    kube_api_qps: Option<String>,
    #[arg(long, hide = true)]
    kube_api_burst: Option<String>,
    #[arg(long, hide = true)]
    kube_api_content_type: Option<String>,
    #[arg(long, hide = true)]
    iptables_localhost_nodeports: Option<String>,
    #[arg(long, hide = true)]
    write_config_to: Option<String>,
    #[arg(long, hide = true)]
    show_hidden_metrics_for_version: Option<String>,
}

impl Unused {
    /// Names of those that were given.
    pub fn given(&self) -> Vec<&'static str> {
        [
            ("--proxy-mode", &self.proxy_mode),
            ("--iptables-sync-period", &self.iptables_sync_period),
            ("--iptables-min-sync-period", &self.iptables_min_sync_period),
            ("--config-sync-period", &self.config_sync_period),
            ("--oom-score-adj", &self.oom_score_adj),
            ("--profiling", &self.profiling),
            ("--feature-gates", &self.feature_gates),
            ("--master", &self.master),
            ("--kube-api-qps", &self.kube_api_qps),
            ("--kube-api-burst", &self.kube_api_burst),
            ("--kube-api-content-type", &self.kube_api_content_type),
            (
                "--iptables-localhost-nodeports",
                &self.iptables_localhost_nodeports,
            ),
            ("--write-config-to", &self.write_config_to),
            (
                "--show-hidden-metrics-for-version",
                &self.show_hidden_metrics_for_version,
            ),
        ]
        .into_iter()
        .filter_map(|(name, value)| value.as_ref().map(|_| name))
        .collect()
    }
}
