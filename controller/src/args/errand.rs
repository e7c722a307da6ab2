//! Flags that have the program do one thing around an uninstall and end, in the chart's hooks.

use std::path::PathBuf;

use clap::Args;
use onehop_core::id::InstallId;

#[derive(Clone, Copy, Debug, Args)]
pub(super) struct ErrandArgs {
    /// Only say whether Services still hold load balancers of this install, and end: exit status 1 as long as any do.
    #[arg(long, conflicts_with = "uninstall_clean_up")]
    uninstall_check: bool,
    /// Only remove what an install that is gone has left in the cluster (entries of NodeTargets, its Lease), and end.
    #[arg(long)]
    uninstall_clean_up: bool,
}

impl ErrandArgs {
    /// What for, if for anything.
    pub(super) fn duty(self) -> Option<Duty> {
        match (self.uninstall_check, self.uninstall_clean_up) {
            (false, false) => None,
            (true, _) => Some(Duty::Check),
            (false, true) => Some(Duty::CleanUp),
        }
    }
}

/// What is done around an uninstall, instead of controlling anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// Before it: whether Services are left (C-80).
    Check,
    /// After it: what it leaves in the cluster goes (C-82).
    CleanUp,
}

/// What such a start needs to know: nothing of a cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errand {
    /// What for.
    pub duty: Duty,
    /// The install that is to go.
    pub install: InstallId,
    /// Namespace of its Lease, if one was given.
    pub lease_namespace: Option<String>,
    /// Name of its Lease.
    pub lease: String,
    /// Kubeconfig.
    pub kubeconfig: Option<PathBuf>,
}
