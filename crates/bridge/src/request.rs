//! Life of a request in this worker, from its delivery to its settlement.

mod admission;
mod attempt;
pub(crate) mod channel_pool;
mod confirm_window;
pub(crate) mod context;
mod dead_letter;
pub(crate) mod delivery_trace;
pub(crate) mod disposition;
pub(crate) mod in_flight;
pub(crate) mod intake_pause;
pub(crate) mod lifecycle;
mod reply_stream;
mod run_record;
pub(crate) mod runner;
mod settlement;
pub(crate) mod slots;
