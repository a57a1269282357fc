//! Modules that handle one delivery, from its arrival to its settlement; `lifecycle` calls the
//! others.
//!
//! The order of the steps is in "Life of a request" of `docs/architecture.md`. Rule numbers (R1,
//! A5) are those of `docs/protocol.md`.

mod admission;
pub(crate) mod channel_pool;
mod confirm_window;
pub(crate) mod context;
pub(crate) mod delivery_trace;
pub(crate) mod disposition;
pub(crate) mod in_flight;
pub(crate) mod intake_pause;
pub(crate) mod lifecycle;
pub(crate) mod publishing;
mod reply_queue_check;
mod reply_sender;
mod reply_stream;
mod republish;
mod run_record;
pub(crate) mod runner;
mod settlement;
pub(crate) mod slots;
mod stream_opener;
