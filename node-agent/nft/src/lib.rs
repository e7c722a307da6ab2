//! `nf_tables` over nfnetlink: typed batches, one datagram a transaction, read-back, notifications, connection tracking.
//! Called by the node agent, and by the fabric and the load balancer nodes of the harness. Knows nothing of onehop.
//! Blocking, no async; a socket belongs to the network namespace of the thread that opens it.

pub mod batch;
pub mod conntrack;
pub mod dump;
pub mod error;
pub mod events;
pub mod expr;
pub mod field;
mod notices;
pub mod object;
pub mod rule;
pub mod set;
pub mod socket;
mod sys;
pub mod value;
mod wire;

pub use batch::{Batch, OpIndex};
pub use conntrack::{Conntrack, Filter, Flow, FlowChange, FlowChanges, Told, Tuple};
pub use dump::{ChainInfo, Counter, RuleInfo, SetInfo, TableInfo};
pub use error::{CommitError, DumpError, FailedOp};
pub use events::{Event, Events};
pub use expr::{CmpOp, CtDirection, Expr, Reg, SetRef, Verdict};
pub use field::Field;
pub use notices::Ears;
pub use object::{Base, Chain, ChainType, Family, Hook, Policy, TABLE_OWNER, TABLE_PERSIST, Table};
pub use rule::Rule;
pub use set::{DataType, Element, ElementData, FieldType, Set};
pub use socket::Socket;
pub use sys::{Buffer, kernel_version};
pub use value::Value;
