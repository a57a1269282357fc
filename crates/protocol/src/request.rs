//! The sealed body of a request.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Revision;

/// What a client asks for: content type 1, JSON.
///
/// The seed is fixed by the client before sealing, so that every attempt at the request makes
/// the same tokens.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request<I> {
    /// What all randomness of the reply grows from.
    pub seed: u64,
    /// The handler's input.
    pub input: I,
    /// The only revision of the model that may answer; any if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<Revision>,
}

impl<I> fmt::Debug for Request<I> {
    /// Leaves the input out: it is what the user wrote.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("seed", &self.seed).finish_non_exhaustive()
    }
}
