//! The right to write. Every mutating call, to the cloud and to the API server, asks the [`Fence`] first.
//!
//! So far there is one replica and the fence is up as long as the process does not shut down; the Lease
//! that lowers it on loss comes with leader election. Observing and planning never ask.

use tokio_util::sync::CancellationToken;

/// Whether this process may write now. Clones share one state.
#[derive(Clone, Debug)]
pub struct Fence {
    lowered: CancellationToken,
}

/// The fence is down: the call must not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not made: this process is no longer the one that writes")]
pub struct Fenced;

impl Fence {
    /// A fence that is up until `lowered` is cancelled.
    pub fn until(lowered: CancellationToken) -> Self {
        Self { lowered }
    }

    /// A fence that is always up.
    pub fn held() -> Self {
        Self::until(CancellationToken::new())
    }

    /// Fails when the call must not be made.
    pub fn check(&self) -> Result<(), Fenced> {
        if self.lowered.is_cancelled() {
            Err(Fenced)
        } else {
            Ok(())
        }
    }
}
