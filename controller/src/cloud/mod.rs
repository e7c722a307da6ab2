//! Clouds: one folder per provider, and what they share.

pub mod aws;
pub mod azure;
mod error;
mod https;
pub mod local;

pub use error::{Class, CloudError, Taken};
pub use local::address::{AddressBook, Holder, Source};
