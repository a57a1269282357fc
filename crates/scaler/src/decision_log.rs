//! Log of decisions: JSON lines, from which the decisions can be made again.

use std::io::Write as _;
use std::time::Duration;

use jiff::Timestamp;
use nsbridge_protocol::ModelName;
use nsbridge_scaling::policy::{Decision, Observation};
use nsbridge_telemetry::LogWriter;
use serde::{Deserialize, Serialize};

/// Line of the log.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    pub(crate) time: String,
    pub(crate) model: ModelName,
    /// Identifier of the policy's state, which begins anew with each leadership.
    pub(crate) run: String,
    pub(crate) decision: Decision,
    /// Decision as a sentence.
    pub(crate) text: String,
    pub(crate) observation: Observation,
}

impl Entry {
    pub(crate) fn new(
        model: ModelName,
        run: String,
        observation: Observation,
        decision: Decision,
    ) -> Self {
        let time = Timestamp::now().to_string();
        let text = decision.to_string();
        Self { time, model, run, decision, text, observation }
    }
}

/// Writer of the log, which drops lines while its output is not read.
#[derive(Clone, Debug)]
pub(crate) struct DecisionLog(LogWriter);

impl DecisionLog {
    pub(crate) fn new(lines: LogWriter) -> Self {
        Self(lines)
    }

    pub(crate) fn write(&mut self, entry: &Entry) {
        let Ok(mut line) = serde_json::to_vec(entry) else { return };
        line.push(b'\n');
        // The writer counts a line that it drops.
        let _ = self.0.write_all(&line);
    }

    pub(crate) fn flush(&self) {
        self.0.flush_within(Duration::from_secs(1));
    }
}
