//! Traffic clients: they open real connections from a client's namespace, and keep a ledger in which every
//! attempt that failed has a class, a time and the address it came from (FC-80 to FC-84).
//!
//! Called by scenarios and the demo. Clients never retry: a lost request must show as one.

mod answer;
mod load;
mod probe;
mod stream;

pub use answer::{Answer, Preface};
pub use load::{Attempt, Ledger, Load, Running};
pub use probe::{Endpoint, Failure, FailureKind, ask_tcp, ask_udp};
pub use stream::{LongFlow, StreamEnd};

use serde::Serialize;
use socket2::Socket;
use std::{io, net::SocketAddr, sync::Arc, time::Duration};

/// How long a client waits for a connection, and again for an answer (FC-84).
pub const CLIENT_TIMEOUT: Duration = Duration::from_secs(3);

/// Makes a non-blocking socket inside the client's namespace; where it is used afterwards does not matter.
pub type SocketSource = Arc<dyn Fn(Transport, SocketAddr) -> io::Result<Socket> + Send + Sync>;

/// What a request travels on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Transport {
    /// A new TCP connection with one line each way.
    Tcp,
    /// One datagram each way.
    Udp,
}
