//! Batch: its record, its state, and the object that clients see.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nsbridge_client::Tenant;
use nsbridge_gateway_access::ApiKeyId;
use nsbridge_protocol::Uuid;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::ids;

/// Endpoint that answers the lines of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Endpoint {
    #[serde(rename = "/v1/chat/completions")]
    Chat,
    #[serde(rename = "/v1/completions")]
    Completions,
    #[serde(rename = "/v1/responses")]
    Responses,
    #[serde(rename = "/v1/embeddings")]
    Embeddings,
    #[serde(rename = "/v1/moderations")]
    Moderations,
}

impl Endpoint {
    const ALL: [Self; 5] =
        [Self::Chat, Self::Completions, Self::Responses, Self::Embeddings, Self::Moderations];

    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Responses => "/v1/responses",
            Self::Embeddings => "/v1/embeddings",
            Self::Moderations => "/v1/moderations",
        }
    }

    /// Returns the endpoint of a path.
    pub(crate) fn of(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|endpoint| endpoint.path() == path)
    }
}

/// State in the official life cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Validating,
    Failed,
    InProgress,
    Finalizing,
    Completed,
    Expired,
    Cancelling,
    Cancelled,
}

impl Status {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Validating => "validating",
            Self::Failed => "failed",
            Self::InProgress => "in_progress",
            Self::Finalizing => "finalizing",
            Self::Completed => "completed",
            Self::Expired => "expired",
            Self::Cancelling => "cancelling",
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns true if no other state follows.
    pub(crate) fn is_end(self) -> bool {
        matches!(self, Self::Failed | Self::Completed | Self::Expired | Self::Cancelled)
    }
}

/// Error of a batch or of one of its lines.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LineError {
    pub(crate) code: String,
    pub(crate) line: Option<u64>,
    pub(crate) message: String,
    pub(crate) param: Option<String>,
}

/// Tokens of a batch.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tokens {
    pub(crate) input: u64,
    pub(crate) cached: u64,
    pub(crate) output: u64,
    pub(crate) reasoning: u64,
}

impl Tokens {
    pub(crate) fn add(&mut self, more: Self) {
        self.input += more.input;
        self.cached += more.cached;
        self.output += more.output;
        self.reasoning += more.reasoning;
    }
}

/// Batch as it is stored. Times are Unix times in seconds.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct BatchRecord {
    pub(crate) tenant: Tenant,
    /// Id of the API key.
    pub(crate) key: String,
    pub(crate) endpoint: Endpoint,
    pub(crate) input: Uuid,
    /// Time from the creation to the expiry, as the client wrote it.
    pub(crate) window: String,
    pub(crate) metadata: Option<Map<String, Value>>,
    /// Seconds for which the output is kept.
    pub(crate) output_kept_s: u64,
    pub(crate) status: Status,
    pub(crate) created_at: u64,
    pub(crate) expires_at: u64,
    /// True if the time was over before all lines had ended.
    pub(crate) late: bool,
    /// Time at which each state began.
    pub(crate) began: Vec<(Status, u64)>,
    pub(crate) errors: Vec<LineError>,
    /// Model of the lines, if they have one in common.
    pub(crate) model: Option<String>,
    pub(crate) total: u64,
    /// Numbers of lines at the end.
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    pub(crate) tokens: Tokens,
    pub(crate) output: Option<Uuid>,
    pub(crate) error: Option<Uuid>,
}

impl fmt::Debug for BatchRecord {
    /// Omits what the client wrote.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchRecord").field("status", &self.status).finish_non_exhaustive()
    }
}

impl BatchRecord {
    /// Creates the record of a new batch. Window and expiry are still to be set.
    pub(crate) fn new(tenant: Tenant, key: ApiKeyId, endpoint: Endpoint, input: Uuid) -> Self {
        let created_at = ids::seconds(SystemTime::now());
        Self {
            tenant,
            key: key.to_string(),
            endpoint,
            input,
            window: String::new(),
            metadata: None,
            output_kept_s: super::KEPT_S,
            status: Status::Validating,
            created_at,
            expires_at: created_at,
            late: false,
            began: Vec::new(),
            errors: Vec::new(),
            model: None,
            total: 0,
            completed: 0,
            failed: 0,
            tokens: Tokens::default(),
            output: None,
            error: None,
        }
    }

    /// Enters a state.
    pub(crate) fn enter(&mut self, status: Status) {
        self.status = status;
        self.began.push((status, ids::seconds(SystemTime::now())));
    }

    pub(crate) fn deadline(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.expires_at)
    }

    fn at(&self, status: Status) -> Option<u64> {
        self.began.iter().find(|(began, _)| *began == status).map(|(_, at)| *at)
    }
}

/// Batch, with what is known only while it runs.
pub(crate) struct Batch {
    pub(crate) id: Uuid,
    record: Mutex<BatchRecord>,
    /// Held while the record is changed in the store.
    pub(super) turn: tokio::sync::Mutex<()>,
    /// Canceled when a client cancels the batch.
    pub(crate) stop: CancellationToken,
    /// Lines with a result.
    pub(crate) completed: AtomicU64,
    pub(crate) failed: AtomicU64,
    /// Tokens of the replies of this process.
    pub(crate) tokens: AtomicU64,
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Batch {
    pub(super) fn new(id: Uuid, record: BatchRecord) -> Self {
        let stop = CancellationToken::new();
        if record.status == Status::Cancelling {
            stop.cancel();
        }
        let counts = [record.completed, record.failed].map(AtomicU64::new);
        let ([completed, failed], turn) = (counts, tokio::sync::Mutex::default());
        Self {
            id,
            record: Mutex::new(record),
            turn,
            stop,
            completed,
            failed,
            tokens: AtomicU64::new(0),
        }
    }

    pub(crate) fn record(&self) -> BatchRecord {
        self.record.lock().clone()
    }

    pub(super) fn set(&self, record: BatchRecord) {
        *self.record.lock() = record;
    }

    pub(crate) fn status(&self) -> Status {
        self.record.lock().status
    }

    /// Returns the name that clients have for it.
    pub(crate) fn name(&self) -> String {
        ids::batch(self.id)
    }

    /// Returns the batch as clients see it.
    pub(crate) fn json(&self) -> Value {
        let record = self.record();
        let (completed, failed) = if record.status.is_end() {
            (record.completed, record.failed)
        } else {
            (self.completed.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
        };
        let Tokens { input, cached, output, reasoning } = record.tokens;
        let errors =
            (!record.errors.is_empty()).then(|| json!({ "object": "list", "data": record.errors }));
        let usage = record.status.is_end().then(|| {
            json!({
                "input_tokens": input, "input_tokens_details": { "cached_tokens": cached },
                "output_tokens": output,
                "output_tokens_details": { "reasoning_tokens": reasoning },
                "total_tokens": input + output
            })
        });
        json!({
            "id": self.name(), "object": "batch", "endpoint": record.endpoint.path(),
            "model": record.model, "errors": errors, "input_file_id": ids::file(record.input),
            "completion_window": record.window, "status": record.status.as_str(),
            "output_file_id": record.output.map(ids::file),
            "error_file_id": record.error.map(ids::file),
            "created_at": record.created_at, "in_progress_at": record.at(Status::InProgress),
            "expires_at": record.expires_at, "finalizing_at": record.at(Status::Finalizing),
            "completed_at": record.at(Status::Completed), "failed_at": record.at(Status::Failed),
            "expired_at": record.at(Status::Expired),
            "cancelling_at": record.at(Status::Cancelling),
            "cancelled_at": record.at(Status::Cancelled),
            "request_counts": { "total": record.total, "completed": completed, "failed": failed },
            "metadata": record.metadata, "usage": usage
        })
    }
}
