//! Tests of the testkit: faults of the proxy and of the object store, cleanup of a node, and a
//! short fuzzing pass.

#![expect(clippy::unwrap_used, reason = "a helper of a test may end it")]

#[cfg(feature = "fuzz")]
mod fuzz;
mod proxy;
mod rabbit;
#[cfg(feature = "s3")]
mod s3;
