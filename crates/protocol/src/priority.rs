//! Priority class of a request.

use serde::{Deserialize, Serialize};

/// Priority class of a request. It selects the queue of the request.
///
/// A worker takes bulk requests only into slots that no interactive request needs.
///
/// ```
/// use nsbridge_protocol::Priority;
/// use nsbridge_protocol::topology::request_queue;
///
/// let model = "tale-7m".parse()?;
/// assert_eq!(request_queue(&model, Priority::default()), "nsbridge.tale-7m");
/// assert_eq!(request_queue(&model, Priority::Bulk), "nsbridge.tale-7m.bulk");
/// # Ok::<(), nsbridge_protocol::InvalidName>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Priority {
    /// Request that a person or a program waits for.
    #[default]
    Interactive,
    /// Request that may wait for as long as interactive requests need the slots.
    Bulk,
}

impl Priority {
    /// All classes, the most urgent first.
    pub const ALL: [Self; 2] = [Self::Interactive, Self::Bulk];

    /// Returns the name of the class in configurations and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Interactive => "interactive",
            Self::Bulk => "bulk",
        }
    }
}

impl std::fmt::Display for Priority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
