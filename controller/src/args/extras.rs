//! Flags of what is for those who ask for it: readiness gates, and the webhook on new pods.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;

use super::{ArgsError, seconds};
use crate::reconcile::Gates;

/// How long a gate waits for somebody to know of it: its Service may just be on its way.
const NOBODYS_AFTER: Duration = Duration::from_secs(15);

#[derive(Clone, Debug, Args)]
pub(super) struct ExtrasArgs {
    /// Do not set the conditions of readiness gates `target-health.…` of pods. Pods that have such gates and whose Services
    /// are ours never get ready then.
    #[arg(long, env = "ONEHOP_NO_READINESS_GATES")]
    no_readiness_gates: bool,
    /// Seconds after which a pod's readiness gate is opened although its target is not healthy; 0: never.
    #[arg(
        long,
        env = "ONEHOP_READINESS_GATE_LIMIT_SECONDS",
        default_value_t = 600.0
    )]
    readiness_gate_limit_seconds: f64,
    /// Name of the webhook on new pods: of its Service and Secret, in the namespace of the Lease, and of its configuration.
    /// Without it there is none.
    #[arg(long, env = "ONEHOP_WEBHOOK_NAME")]
    webhook_name: Option<String>,
    /// Address of the webhook.
    #[arg(long, env = "ONEHOP_WEBHOOK_ADDRESS", default_value = "0.0.0.0:9443")]
    webhook_address: SocketAddr,
}

impl ExtrasArgs {
    /// How readiness gates are turned, if they are.
    pub(super) fn gates(&self) -> Result<Option<Gates>, ArgsError> {
        if self.no_readiness_gates {
            return Ok(None);
        }
        let limit = "readiness-gate-limit-seconds";
        let limit = seconds(limit, self.readiness_gate_limit_seconds)?;
        Ok(Some(Gates {
            limit: Some(limit).filter(|limit| !limit.is_zero()),
            nobodys_after: NOBODYS_AFTER,
        }))
    }

    /// The webhook's name and address, if there is one.
    pub(super) fn webhook(self) -> Option<(String, SocketAddr)> {
        Some((self.webhook_name?, self.webhook_address))
    }
}
