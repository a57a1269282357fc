//! The kit itself: the proxy's faults, and a node that leaves nothing behind.

#![expect(clippy::unwrap_used, reason = "a helper of a test may end it")]

mod proxy;
mod rabbit;
