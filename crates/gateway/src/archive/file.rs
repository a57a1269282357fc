//! Record of a file.

use std::fmt;

use nsbridge_client::Tenant;
use nsbridge_protocol::Uuid;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::ids;

/// Purpose of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Purpose {
    /// Input of a batch.
    Batch,
    /// Output of a batch, or its errors.
    BatchOutput,
}

impl Purpose {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::BatchOutput => "batch_output",
        }
    }
}

/// File. Times are Unix times in seconds.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct File {
    pub(crate) tenant: Tenant,
    pub(crate) name: String,
    pub(crate) purpose: Purpose,
    pub(crate) bytes: u64,
    pub(crate) chunks: u64,
    pub(crate) created_at: u64,
    pub(crate) expires_at: Option<u64>,
    /// False while the file is written.
    pub(crate) whole: bool,
}

impl fmt::Debug for File {
    /// Omits the name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl File {
    pub(crate) fn has_expired(&self, now: u64) -> bool {
        self.expires_at.is_some_and(|expires_at| expires_at <= now)
    }

    /// Returns the file as clients see it.
    pub(crate) fn json(&self, id: Uuid) -> Value {
        json!({
            "id": ids::file(id), "object": "file", "bytes": self.bytes,
            "created_at": self.created_at, "expires_at": self.expires_at, "filename": self.name,
            "purpose": self.purpose.as_str(), "status": "processed", "status_details": null
        })
    }
}
