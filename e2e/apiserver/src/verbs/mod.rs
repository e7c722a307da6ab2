//! The verbs of the API, each one transaction on [`State`](crate::state::State).

pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod list;
pub(crate) mod meta;
pub(crate) mod patch;
pub(crate) mod special;
pub(crate) mod strict;
pub(crate) mod update;
