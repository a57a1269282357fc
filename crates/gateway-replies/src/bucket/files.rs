//! Names of the shared files, and the places that their values are bound to.

use std::time::Duration;

use nsbridge_client::RequestId;
use nsbridge_protocol::Uuid;

/// File of the shared store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum File {
    /// Value by which a replica recognizes the key of the others.
    Key,
    Request(RequestId),
    Mark(RequestId),
    Part(RequestId),
    End(RequestId),
}

impl File {
    /// Returns all files of a reply.
    pub(super) fn of(id: RequestId) -> [Self; 4] {
        [Self::Request(id), Self::Mark(id), Self::Part(id), Self::End(id)]
    }

    pub(super) fn name(self) -> String {
        let (id, kind) = match self {
            Self::Key => return "key".to_owned(),
            Self::Request(id) => (id, "request"),
            Self::Mark(id) => (id, "mark"),
            Self::Part(id) => (id, "part"),
            Self::End(id) => (id, "end"),
        };
        format!("replies/{}.{kind}", hex(id))
    }

    /// Returns the place that the sealed value is bound to.
    pub(super) fn place(self) -> Vec<u8> {
        format!("shared/{}", self.name()).into_bytes()
    }
}

/// Returns the beginning of the names by which a retry finds its reply.
pub(super) fn retries_of(retry_hash: &[u8; 32]) -> String {
    let hash: String = retry_hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("joins/{hash}.")
}

/// Returns the name by which a retry finds this reply.
pub(super) fn retry_of(retry_hash: &[u8; 32], id: RequestId) -> String {
    retries_of(retry_hash) + &hex(id)
}

/// Returns the name of a reply's cancel.
pub(super) fn cancel_of(id: RequestId) -> String {
    format!("cancels/{}", hex(id))
}

/// Returns the id in a name.
pub(super) fn id_of(name: &str) -> Option<RequestId> {
    let file = name.rsplit('/').next()?;
    let id =
        if name.starts_with("joins/") { file.split('.').nth(1) } else { file.split('.').next() };
    let id = id.filter(|id| id.len() == 32)?;
    Uuid::parse_str(id).ok().map(RequestId)
}

/// Returns an id without hyphens.
pub(super) fn hex(id: RequestId) -> String {
    id.0.simple().to_string()
}

/// Returns the time since the creation of a reply, which its id has in its first 48 bits
/// (RFC 9562, section 5.7).
pub(super) fn age(id: RequestId) -> Duration {
    let created = id.as_bytes().iter().take(6).fold(0, |ms, byte| ms << 8 | u64::from(*byte));
    Duration::from_millis(super::now_ms().saturating_sub(created))
}
