//! Messages between the worker and the Python process, as JSON in frames.

use std::collections::BTreeMap;

use nsbridge_handler::{Finish, FinishReason, Usage};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Message of the Python process.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FromPython {
    /// First message of a slot's connection.
    Hello(Hello),
    /// The model is loaded.
    Ready(Ready),
    /// The model cannot be loaded, for this reason.
    Failed(String),
    /// State of the model, once a second.
    Status(Status),
    /// The call has arrived, and `handle` is about to be called.
    Begun,
    /// The model asks for the pieces of an earlier attempt.
    Resumed,
    /// Maximum number of pieces.
    AtMost(usize),
    /// Piece of the reply.
    Piece(Box<RawValue>),
    /// Piece that is larger than any reply may be.
    Oversize,
    /// `handle` has returned.
    End(End),
    /// `handle` has raised an exception.
    Error(Raised),
}

#[derive(Debug, Deserialize)]
pub(crate) struct Hello {
    pub(crate) token: String,
    pub(crate) slot: usize,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Ready {
    /// Version that the model declares, version of Python, digest of the installed packages.
    pub(crate) made_by: Vec<String>,
    /// Number of connections of slots.
    pub(crate) slots: usize,
    /// JSON schema of the inputs, if the model's type hints give one.
    pub(crate) schema: Option<Value>,
}

/// State of a model that has `health` or `measures`.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Status {
    /// Reason why the model can answer no further request.
    pub(crate) broken: Option<String>,
    /// Values of its metrics by name.
    #[serde(default)]
    pub(crate) measures: BTreeMap<String, f64>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct End {
    reason: FinishReason,
    #[serde(default)]
    usage: Usage,
}

impl From<End> for Finish {
    fn from(end: End) -> Self {
        Self::because(end.reason).with_usage(end.usage)
    }
}

/// Exception of a call. Its message is not part of it, because it may quote the input.
#[derive(Debug, Deserialize)]
pub(crate) struct Raised {
    pub(crate) kind: Kind,
    /// Sentence for the client.
    #[serde(default)]
    pub(crate) why: String,
    /// Name of the exception's class.
    #[serde(default, rename = "type")]
    pub(crate) class: String,
    /// File and line within the model's folder.
    #[serde(default)]
    pub(crate) place: String,
}

/// Consequence of an exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    BadInput,
    Failed,
    Retry,
    Fatal,
    Stopped,
}

/// Configuration of a Python process: the first frame on its control socket.
#[derive(Debug, Serialize)]
pub(crate) struct Start<'a> {
    /// True if the model is an engine, which has a number of slots, a health and metrics of its own.
    pub(crate) engine: bool,
    /// Name of the abstract socket that the slots connect to.
    pub(crate) address: &'a str,
    /// Secret that proves that a connection comes from this process.
    pub(crate) token: &'a str,
    pub(crate) slots: usize,
    /// Names of the models that are adapters of an engine.
    pub(crate) adapters: &'a [String],
    /// True if an engine has as many slots as it has room for calls.
    pub(crate) slots_of_engine: bool,
    pub(crate) file: &'a str,
    pub(crate) class: Option<&'a str>,
    pub(crate) models: &'a Map<String, Value>,
    pub(crate) options: &'a Map<String, Value>,
    pub(crate) batch: Option<Batch>,
    /// Limits of batches for a model with `run`, if `batch` is absent.
    pub(crate) default_batch: Batch,
    pub(crate) output: Option<&'a str>,
    /// True if standard output and standard error stay open while requests run.
    pub(crate) show_output: bool,
    /// False if only the schema is wanted.
    pub(crate) load: bool,
    /// True if other processes of this user may read the memory of the worker.
    pub(crate) dumpable: bool,
}

/// Limits of a batch.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Batch {
    pub(crate) size: usize,
    pub(crate) delay_ms: u64,
}

/// Head of a call. The frame after it is the input.
#[derive(Debug, Serialize)]
pub(crate) struct Head<'a> {
    /// Number of the call, counted from 1 in each slot.
    pub(crate) call: u64,
    pub(crate) id: String,
    pub(crate) seed: u64,
    pub(crate) attempt: u32,
    pub(crate) tenant: &'a str,
    pub(crate) scope: &'a str,
    /// Seconds since 1970.
    pub(crate) submitted_at: f64,
    /// Seconds since 1970.
    pub(crate) deadline: f64,
}

/// Message to a slot during a call.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToSlot {
    /// This many more bytes of pieces may be sent.
    More(usize),
    /// Pieces of an earlier attempt.
    Resumed(Vec<Box<RawValue>>),
    /// The call with this number must end.
    Stop(u64),
}

/// Stop of a call, on the control socket.
#[derive(Debug, Serialize)]
pub(crate) struct StopCall {
    pub(crate) slot: usize,
    pub(crate) call: u64,
}
