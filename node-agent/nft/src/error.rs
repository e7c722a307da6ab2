//! Errors of the sockets.

use std::fmt;
use std::io;

use crate::batch::OpIndex;

/// What the kernel said about one operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedOp {
    /// Number of the operation, as its batch method returned it.
    pub op: OpIndex,
    /// Number of the element within it, where the kernel told.
    pub element: Option<usize>,
    /// Error number (positive).
    pub errno: i32,
    /// Extended acknowledgement, where there is one.
    pub message: Option<String>,
}

impl fmt::Display for FailedOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "operation {}", self.op)?;
        if let Some(element) = self.element {
            write!(f, " element {element}")?;
        }
        write!(f, ": {}", io::Error::from_raw_os_error(self.errno))?;
        self.message
            .as_ref()
            .map_or(Ok(()), |message| write!(f, " ({message})"))
    }
}

/// Why a batch was not committed. Nothing of it is in the kernel, except after [`CommitError::Unknown`].
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The kernel refused these operations.
    #[error("the kernel refused {} operations; first: {}", .0.len(), first(.0))]
    Refused(Vec<FailedOp>),
    /// The kernel refused the batch as a whole.
    #[error("the kernel refused the batch: {}", io::Error::from_raw_os_error(*.errno))]
    Batch {
        /// Error number (positive).
        errno: i32,
        /// Extended acknowledgement, where there is one.
        message: Option<String>,
    },
    /// Somebody committed since the expected generation (S-255).
    #[error("somebody else committed in between")]
    Generation,
    /// The datagram does not fit the send buffer; send less at once (S-252).
    #[error("batch of {bytes} bytes does not fit the send buffer")]
    TooLarge {
        /// Size of the batch.
        bytes: usize,
    },
    /// A value or list outgrew its length field (S-253).
    #[error("a value of the batch outgrew its length field")]
    Encoding,
    /// Answers were lost; read back what is in the kernel.
    #[error("answer of the kernel lost: {0}")]
    Unknown(io::Error),
    /// The socket failed before anything was sent.
    #[error("netlink socket: {0}")]
    Socket(#[from] io::Error),
}

impl CommitError {
    /// A static word for metrics.
    pub fn class(&self) -> &'static str {
        match self {
            Self::Refused(_) => "refused",
            Self::Batch { .. } => "batch",
            Self::Generation => "generation",
            Self::TooLarge { .. } => "too-large",
            Self::Encoding => "encoding",
            Self::Unknown(_) => "unknown",
            Self::Socket(_) => "socket",
        }
    }

    /// The error number, where all failures have the same one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused(ops) => {
                let errno = ops.first()?.errno;
                ops.iter().all(|op| op.errno == errno).then_some(errno)
            }
            Self::Batch { errno, .. } => Some(*errno),
            _ => None,
        }
    }
}

fn first(ops: &[FailedOp]) -> String {
    ops.first().map(ToString::to_string).unwrap_or_default()
}

/// Why a dump failed.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// The object does not exist.
    #[error("no such object")]
    NotFound,
    /// The kernel's answer.
    #[error("dump refused: {}", io::Error::from_raw_os_error(*.0))]
    Kernel(i32),
    /// The rule set kept changing during the dump.
    #[error("the rule set changed during every attempt to dump it")]
    Interrupted,
    /// The socket failed.
    #[error("netlink socket: {0}")]
    Socket(#[from] io::Error),
}
