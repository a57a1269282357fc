//! Configuration of a worker's identity and intake.

use nsbridge_protocol::ModelName;
use serde::Deserialize;

/// Identity of a worker.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct WorkerConfig {
    /// Model whose queue the worker consumes.
    pub model: ModelName,
    /// Name of the worker in logs and replies; the host's name if absent.
    #[serde(default)]
    pub name: Option<String>,
    /// Grace period of running jobs after a SIGTERM, in seconds.
    #[serde(default = "twenty")]
    pub grace_s: u64,
    /// Takes bulk requests into slots that no interactive request needs.
    #[serde(default = "yes")]
    pub bulk: bool,
    /// Allows core dumps, and access by debuggers and profilers of the same user. The process's
    /// memory holds prompts and keys.
    #[serde(default)]
    pub allow_core_dumps: bool,
    /// Logs the errors that the handler returns. They may quote prompts, so this is for development
    /// alone.
    #[serde(default)]
    pub show_errors: bool,
}

impl WorkerConfig {
    /// Creates the identity of a worker of this model, with a grace period of 20 s.
    pub fn new(model: ModelName) -> Self {
        Self {
            model,
            name: None,
            grace_s: twenty(),
            bulk: true,
            allow_core_dumps: false,
            show_errors: false,
        }
    }
}

fn yes() -> bool {
    true
}

fn twenty() -> u64 {
    20
}
