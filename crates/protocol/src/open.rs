//! The first frame of a reply stream.

use serde::{Deserialize, Serialize};

use crate::{Fingerprint, Revision};

/// The sealed body of an `open` frame: who answers, since when, with what arithmetic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// When the attempt was opened, in milliseconds since 1970.
    pub opened_at_ms: u64,
    /// What the reply's tokens depend on beside the request; absent if the handler does not say.
    pub fingerprint: Option<Fingerprint>,
    /// The worker's name, for people who read logs.
    pub worker: String,
    /// The revision of the model that answers, if its worker knows one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<Revision>,
}
