//! Snapshots of the answers of all endpoints, byte for byte.
//!
//! A change of the gateway that no client may see leaves the files of `snapshots/` as they are. After an
//! intended change, remove a file: the test writes it anew.

mod files;
mod messages;
mod pages;
mod record;
mod refusals;
mod responses;
pub(crate) mod script;
mod sealed;
mod texts;
