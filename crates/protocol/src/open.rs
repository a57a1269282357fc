//! The first frame of a reply stream.

use serde::{Deserialize, Serialize};

use crate::Fingerprint;

/// The sealed body of an `open` frame: who answers, since when, with what arithmetic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// When the attempt was opened, in milliseconds since 1970.
    pub opened_at_ms: u64,
    /// What the reply's tokens depend on beside the request; absent if the handler does not say.
    pub fingerprint: Option<Fingerprint>,
    /// The worker's name, for people who read logs.
    pub worker: String,
}
