//! Tests of the layer around handlers of both traits, through the calls of the bridge.

#![expect(clippy::unwrap_used, reason = "a helper of a test may end it")]

mod contract;
mod echo;
mod panics;
mod refusals;
