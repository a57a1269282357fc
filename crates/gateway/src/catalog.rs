//! Models that the gateway serves.

use std::collections::BTreeMap;

use nsbridge_client::ModelName;
use serde::Deserialize;

use crate::access::Caller;
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::output::{ReasoningTags, ToolFormat};

/// Tokens that a request without a limit reserves of its caller's tokens per minute.
const RESERVED_TOKENS: u64 = 1024;

/// Model of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Model {
    /// Name of the model's queue; the name of the table if absent.
    pub queue: Option<ModelName>,
    /// Other names that clients may use.
    pub aliases: Vec<String>,
    /// Format in which the model writes calls of tools.
    pub tools: Option<Tools>,
    /// Place of the model's reasoning in its replies.
    pub reasoning: Option<Reasoning>,
    /// Task of the model's workers.
    pub task: Task,
    /// Length of the model's context in tokens, which clients are told.
    pub context: Option<u32>,
}

/// Format of tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tools {
    /// `<tool_call>{"name": .., "arguments": ..}</tool_call>`, as Hermes and Qwen write it.
    Hermes,
    /// `{"name": .., "parameters": ..}`, as Llama 3 writes it.
    Llama3Json,
    /// `[TOOL_CALLS]..`, as Mistral writes it.
    Mistral,
}

/// Place of the reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reasoning {
    /// Between `<think>` and `</think>`.
    Think,
    /// As `think`, with the first tag written by the chat template.
    ThinkBegun,
}

/// Task of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// Text.
    #[default]
    Generate,
    /// Vectors of texts.
    Embed,
}

impl Model {
    /// Returns the queue of the model that has this name.
    fn queue(&self, name: &str) -> Option<ModelName> {
        self.queue.clone().or_else(|| name.parse().ok())
    }

    pub(crate) fn tool_format(&self) -> ToolFormat {
        match self.tools {
            None => ToolFormat::None,
            Some(Tools::Hermes) => ToolFormat::Hermes,
            Some(Tools::Llama3Json) => ToolFormat::Llama3Json,
            Some(Tools::Mistral) => ToolFormat::Mistral,
        }
    }

    pub(crate) fn reasoning_tags(&self) -> Option<ReasoningTags> {
        self.reasoning.map(|reasoning| ReasoningTags::think(reasoning == Reasoning::ThinkBegun))
    }

    /// Returns the number of tokens that a reply without a limit may have, for the caller's limits.
    pub(crate) fn reserved_tokens(&self) -> u64 {
        self.context.map_or(RESERVED_TOKENS, |context| RESERVED_TOKENS.min(context.into()))
    }
}

/// Models by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Models {
    /// Models by the name that `/v1/models` lists.
    listed: BTreeMap<String, Model>,
    /// Listed names by alias.
    aliases: BTreeMap<String, String>,
    /// Name of the model of requests that name none.
    default: Option<String>,
}

impl Models {
    /// Creates the table.
    ///
    /// # Errors
    ///
    /// Returns a sentence about a name that is no queue's, or that two models have.
    pub(crate) fn new(
        listed: BTreeMap<String, Model>,
        default: Option<String>,
    ) -> std::result::Result<Self, String> {
        let mut models = Self { default, ..Self::default() };
        for (name, model) in &listed {
            if model.queue.is_none() {
                name.parse::<ModelName>()
                    .map_err(|error| format!("[models.{name}] needs `queue`: {error}"))?;
            }
            for alias in &model.aliases {
                let taken = models.aliases.insert(alias.clone(), name.clone()).is_some();
                if taken || listed.contains_key(alias) {
                    return Err(format!("two models have the name `{alias}`"));
                }
            }
        }
        models.listed = listed;
        if let Some(name) =
            models.default.as_ref().filter(|name| models.listed_name(name).is_none())
        {
            return Err(format!("[server] default_model: there is no [models.{name}]"));
        }
        Ok(models)
    }

    /// Returns the name that a request has in its field `model`, or else the default.
    ///
    /// # Errors
    ///
    /// Returns an error if the request names no model and there is no default.
    pub(crate) fn named(&self, fields: &mut Fields) -> Result<String> {
        match (fields.take("model")?, &self.default) {
            (Some(name), _) => Ok(name),
            (None, Some(default)) => Ok(default.clone()),
            (None, None) => Err(ApiError::field("model", "`model` is missing")),
        }
    }

    fn listed_name(&self, name: &str) -> Option<&str> {
        let listed = self.aliases.get(name).map_or(name, String::as_str);
        self.listed.get_key_value(listed).map(|(name, _)| name.as_str())
    }

    /// Returns the queue and the settings of the model that a client names.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such model, or if the caller may not use it.
    pub(crate) fn find(&self, name: &str, caller: &Caller) -> Result<(ModelName, Model)> {
        let none = || ApiError::no_model(&name.chars().take(100).collect::<String>());
        let listed = self.listed_name(name).ok_or_else(none)?;
        let model = self.listed.get(listed).ok_or_else(none)?;
        let queue = model.queue(listed).ok_or_else(none)?;
        if caller.may_use(&queue) { Ok((queue, model.clone())) } else { Err(none()) }
    }

    /// Returns name, queue and task of each model.
    pub(crate) fn queues(&self) -> impl Iterator<Item = (&str, ModelName, Task)> {
        let listed = self.listed.iter();
        listed.filter_map(|(name, model)| Some((name.as_str(), model.queue(name)?, model.task)))
    }

    /// Returns the models that the caller may use.
    pub(crate) fn of<'a>(
        &'a self,
        caller: &'a Caller,
    ) -> impl Iterator<Item = (&'a str, &'a Model)> {
        let own = |(name, _): &(&String, &Model)| self.find(name, caller).is_ok();
        self.listed.iter().filter(own).map(|(name, model)| (name.as_str(), model))
    }
}
