//! Import in progress: what is known of the command, and what has been written so far.

use std::path::Path;

use nsbridge_import::{Draft, Fate, Source, key};
use toml::Value;

use crate::settings::{Setting, Settings};

/// Import in progress.
#[derive(Debug)]
pub(super) struct Import<'a> {
    pub(super) settings: &'a Settings<'a>,
    /// Folder that relative paths begin at.
    pub(super) folder: &'a Path,
    /// Place of the model.
    pub(super) source: Source,
    /// Name of the model in `[worker]`.
    pub(super) name: String,
    pub(super) draft: Draft,
    /// Steps that are left to a person before the worker starts.
    pub(super) steps: Vec<String>,
}

impl Import<'_> {
    /// Sets an engine argument of vLLM.
    pub(super) fn option(&mut self, name: &str, value: Value, setting: &Setting<'_>) -> Fate {
        self.draft.carry("handler.options", name, value, &setting.origin())
    }

    /// Returns the text about a field of the model's table in the gateway's configuration.
    pub(super) fn gateway_model(&self, field: &str, value: &Value) -> String {
        format!("gateway.toml: [models.{}] {field} = {value}", key(&self.name))
    }

    /// Returns the fate of an option that is such a field.
    pub(super) fn at_gateway_model(&self, field: &str, value: &str) -> Fate {
        Fate::AtGateway(self.gateway_model(field, &Value::String(value.to_owned())))
    }
}
