//! The kit itself: the proxy's faults, the object store's, and a node that leaves nothing behind.

#![expect(clippy::unwrap_used, reason = "a helper of a test may end it")]

mod proxy;
mod rabbit;
#[cfg(feature = "s3")]
mod s3;
