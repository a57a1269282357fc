//! Models in Python in real processes: their shapes, their errors, their crashes and their stops.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod batches;
mod crashes;
mod djl;
mod docs;
mod errors;
mod folder;
mod hints;
mod loads;
mod log;
mod shapes;
mod stops;
mod worker;
