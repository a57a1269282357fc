//! Callers: their keys, their limits, and the memory of their requests.

pub mod access;
pub(crate) mod class;
pub(crate) mod limits;
pub(crate) mod memory;
pub(crate) mod meter;
pub(crate) mod semaphores;
pub(crate) mod shares;
