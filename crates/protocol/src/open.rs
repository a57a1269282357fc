//! First frame of a reply stream.

use serde::{Deserialize, Serialize};

use crate::id::Fingerprint;
use crate::name::Revision;

/// Sealed content of an `open` frame: worker, start time and arithmetic of the attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Open {
    /// Time at which the attempt was opened, in milliseconds since the Unix epoch.
    pub opened_at_ms: u64,
    /// Fingerprint of the worker's arithmetic; absent if the handler reports none.
    ///
    /// Together with the request, it determines the tokens of the reply.
    pub fingerprint: Option<Fingerprint>,
    /// Worker's name, for people who read logs.
    pub worker: String,
    /// Model revision that the worker serves; absent if the worker knows none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<Revision>,
}

impl Open {
    /// Creates the content for a worker of this name that knows neither fingerprint nor revision.
    pub fn new(worker: impl Into<String>, opened_at_ms: u64) -> Self {
        Self { opened_at_ms, fingerprint: None, worker: worker.into(), revision: None }
    }
}
