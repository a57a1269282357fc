//! Sealed content of a request.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::name::Revision;

/// Request as the client seals it: content type 1, JSON.
///
/// The client fixes the seed before sealing, so that every attempt at the request makes the same
/// tokens.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Request<I> {
    /// Seed of all randomness in the reply.
    pub seed: u64,
    /// Input of the handler.
    pub input: I,
    /// Only model revision that may answer; absent means any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<Revision>,
}

impl<I> Request<I> {
    /// Creates a request that any revision of the model may answer.
    pub const fn new(seed: u64, input: I) -> Self {
        Self { seed, input, revision: None }
    }
}

impl<I> fmt::Debug for Request<I> {
    /// Omits the input, because it is the user's text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("seed", &self.seed).finish_non_exhaustive()
    }
}
