//! The HTTP face of the server: routes, content types and bodies over [`State`](crate::state::State).
//!
//! Requests come from the in-process client and from TLS connections alike; neither is special here.

pub(crate) mod discovery;
pub(crate) mod handle;
mod input;
pub(crate) mod openapi;
pub(crate) mod print;
pub(crate) mod query;
pub(crate) mod respond;
pub(crate) mod review;
pub(crate) mod route;
pub(crate) mod watch;

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;

/// Body of an answer: whole, or a stream of watch events.
pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;
