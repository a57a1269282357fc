//! The kit itself: the proxy's faults, the object store's, a node that leaves nothing behind; and a
//! short pass over what is fuzzed.

#![expect(clippy::unwrap_used, reason = "a helper of a test may end it")]

#[cfg(feature = "fuzz")]
mod fuzz;
mod proxy;
mod rabbit;
#[cfg(feature = "s3")]
mod s3;
