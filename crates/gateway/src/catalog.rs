//! Models that the gateway serves.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::Duration;

use nsbridge_client::{ChatMessage, ModelName, TextInput};
use nsbridge_gateway_access::Caller;
use nsbridge_gateway_replies::CountedModel;
use nsbridge_reply_text::{ReasoningTags, ToolFormat};
use serde::Deserialize;
use serde_json::Value;

use crate::error::{ApiError, Result};
use crate::fields::Fields;

/// Tokens that a request without a limit reserves of its caller's tokens per minute.
const RESERVED_TOKENS: u64 = 1024;

/// Model of the configuration.
///
/// A literal ends in `..Model::default()`: minor versions add fields.
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
    /// Scores from which a text is flagged, by category of a model that judges texts;
    /// [`Model::THRESHOLD`] for a category that has none.
    pub thresholds: BTreeMap<String, f64>,
    /// Adapter (LoRA) of the workers that runs the requests; none if absent.
    pub adapter: Option<String>,
    /// True if messages may have images.
    pub images: bool,
    /// Length of the model's context in tokens, which clients are told.
    pub context: Option<u32>,
    /// JSON schema of the inputs of `/v1/models/{name}/run`, which clients are told.
    pub input_schema: Option<InputSchema>,
    /// Time that the first worker of a model without workers takes to start, in seconds;
    /// [`Model::START_S`] if absent.
    pub start_s: Option<u64>,
}

/// JSON schema of the inputs of a model's own kind. `nsbridge handler schema` prints that of a model in
/// Python.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum InputSchema {
    /// Path of a JSON file that has the schema.
    File(PathBuf),
    /// Schema itself.
    Schema(Value),
}

impl InputSchema {
    /// Reads the file, if it is one.
    fn read(&mut self, name: &str) -> std::result::Result<(), String> {
        let Self::File(path) = self else { return Ok(()) };
        let within = |error: &dyn std::fmt::Display| {
            format!("[models.{name}] input_schema: {}: {error}", path.display())
        };
        let text = std::fs::read(&*path).map_err(|error| within(&error))?;
        *self = Self::Schema(serde_json::from_slice(&text).map_err(|error| within(&error))?);
        Ok(())
    }
}

/// Format of tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
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
#[non_exhaustive]
pub enum Reasoning {
    /// Between `<think>` and `</think>`.
    Think,
    /// As `think`, with the first tag written by the chat template.
    ThinkBegun,
}

/// Task of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Task {
    /// Text.
    #[default]
    Generate,
    /// Vectors of texts.
    Embed,
    /// Scores of texts.
    Judge,
}

impl Task {
    /// Returns what a model of this task does.
    fn verb(self) -> &'static str {
        match self {
            Self::Generate => "generates text",
            Self::Embed => "makes embeddings",
            Self::Judge => "judges texts",
        }
    }
}

impl Model {
    /// Score from which a category is flagged that has no threshold of its own.
    pub const THRESHOLD: f64 = 0.5;

    /// Time that a first worker takes to start if the model has no `start_s`, in seconds.
    pub const START_S: u64 = 120;

    fn start(&self) -> Duration {
        Duration::from_secs(self.start_s.unwrap_or(Self::START_S))
    }

    /// Returns the score from which a category is flagged.
    pub(crate) fn threshold(&self, category: &str) -> f64 {
        self.thresholds.get(category).copied().unwrap_or(Self::THRESHOLD)
    }

    /// Returns an error about the thresholds of the model that has this name.
    fn check_thresholds(&self, name: &str) -> std::result::Result<(), String> {
        if self.task != Task::Judge && !self.thresholds.is_empty() {
            return Err(format!(
                "[models.{name}] thresholds: only a model with task = \"judge\" has some"
            ));
        }
        let is_score = |threshold: f64| (0.0..=1.0).contains(&threshold);
        match self.thresholds.iter().find(|(_, threshold)| !is_score(**threshold)) {
            None => Ok(()),
            Some((category, threshold)) => Err(format!(
                "[models.{name}] thresholds: that of {category} is {threshold}, and must be from 0 to 1"
            )),
        }
    }

    /// Returns the queue of the model that has this name.
    fn queue(&self, name: &str) -> Option<ModelName> {
        self.queue.clone().or_else(|| name.parse().ok())
    }

    /// Sets the adapter of a text request, and refuses images that the model does not take.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first message with an image.
    pub(crate) fn settle(&self, input: &mut TextInput) -> Result<()> {
        input.adapter.clone_from(&self.adapter);
        let has_images = |message: &ChatMessage| message.content.has_images();
        let seen = input.messages.iter().position(has_images).filter(|_| !self.images);
        let Some(index) = seen else { return Ok(()) };
        let field = format!("messages[{index}].content");
        let message = format!("`{field}` has an image, and the model takes no images");
        Err(ApiError::field(&field, message))
    }

    /// Returns the kinds of input of a model of text.
    pub(crate) fn input_modalities(&self) -> &'static [&'static str] {
        if self.images { &["text", "image"] } else { &["text"] }
    }

    pub(crate) fn tool_format(&self) -> ToolFormat {
        match self.tools {
            None => ToolFormat::None,
            Some(Tools::Hermes) => ToolFormat::Hermes,
            Some(Tools::Llama3Json) => ToolFormat::Llama3Json,
            Some(Tools::Mistral) => ToolFormat::Mistral,
        }
    }

    /// Returns the tags of the reasoning in the reply to an input. A reply that continues a message does
    /// not begin within reasoning.
    pub(crate) fn reasoning_tags(&self, input: &TextInput) -> Option<ReasoningTags> {
        let continues = input.continue_final_message;
        let begun = |reasoning| reasoning == Reasoning::ThinkBegun && !continues;
        self.reasoning.map(|reasoning| ReasoningTags::think(begun(reasoning)))
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
        mut listed: BTreeMap<String, Model>,
        default: Option<String>,
    ) -> std::result::Result<Self, String> {
        let mut models = Self { default, ..Self::default() };
        for (name, model) in &mut listed {
            model.input_schema.as_mut().map_or(Ok(()), |schema| schema.read(name))?;
        }
        for (name, model) in &listed {
            if model.queue.is_none() {
                name.parse::<ModelName>()
                    .map_err(|error| format!("[models.{name}] needs `queue`: {error}"))?;
            }
            model.check_thresholds(name)?;
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
    pub(crate) fn named(&self, fields: &mut Fields<'_>) -> Result<String> {
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

    /// Returns the settings of the model that has this queue.
    pub(crate) fn of_queue(&self, queue: &ModelName) -> Option<&Model> {
        let mut listed = self.listed.iter();
        let found = listed.find(|(name, model)| model.queue(name).as_ref() == Some(queue));
        found.map(|(_, model)| model)
    }

    /// Returns the queue and the settings of a model of this task.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such model, if the caller may not use it, or if it has another
    /// task.
    pub(crate) fn serving(
        &self,
        name: &str,
        caller: &Caller,
        task: Task,
    ) -> Result<(ModelName, Model)> {
        let (queue, model) = self.find(name, caller)?;
        if model.task == task {
            return Ok((queue, model));
        }
        let (does, needed) = (model.task.verb(), task.verb());
        let name: String = name.chars().take(100).collect();
        let message = format!("the model `{name}` {does}: name a model that {needed}");
        Err(ApiError::field("model", message))
    }

    /// Returns the model that judges texts for a request: the one that its field `model` names, or
    /// the only one that the caller may use.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such model, or if there are several and none is named.
    pub(crate) fn judge(
        &self,
        fields: &mut Fields<'_>,
        caller: &Caller,
    ) -> Result<(String, ModelName, Model)> {
        let name = match fields.take("model")? {
            Some(name) => name,
            None => self.only_judge(caller)?.to_owned(),
        };
        let (queue, model) = self.serving(&name, caller, Task::Judge)?;
        Ok((name, queue, model))
    }

    fn only_judge<'a>(&'a self, caller: &'a Caller) -> Result<&'a str> {
        let mut judges = self.of(caller).filter(|(_, model)| model.task == Task::Judge);
        match (judges.next(), judges.next()) {
            (Some((name, _)), None) => Ok(name),
            (None, _) => {
                let message =
                    "`model` is missing, and there is none that judges texts for this key";
                Err(ApiError::field("model", message))
            }
            (Some(_), Some(_)) => {
                let message = "`model` is missing, and several models judge texts: name one";
                Err(ApiError::field("model", message))
            }
        }
    }

    /// Returns the models whose workers are counted, by their queues. Two models of one queue count as
    /// the first of them, with the longer of their times.
    pub(crate) fn counted(&self) -> HashMap<ModelName, CountedModel> {
        let mut counted: HashMap<_, CountedModel> = HashMap::new();
        for (name, model) in &self.listed {
            let (Some(queue), start) = (model.queue(name), model.start()) else { continue };
            let of_queue = counted.entry(queue);
            let known = of_queue.or_insert_with(|| CountedModel { name: name.clone(), start });
            known.start = known.start.max(start);
        }
        counted
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

#[cfg(test)]
mod tests {
    use nsbridge_gateway_access::Access;

    use super::{Model, Models, Task};
    use crate::fields::Fields;

    fn judge() -> Model {
        Model { task: Task::Judge, ..Model::default() }
    }

    fn models(all: &[(&str, Model)]) -> Result<Models, String> {
        let all = all.iter().map(|(name, model)| ((*name).to_owned(), model.clone()));
        Models::new(all.collect(), None)
    }

    #[test]
    fn thresholds_are_scores_of_a_judge() {
        let with = |task, threshold| {
            let thresholds = [("hate".to_owned(), threshold)].into();
            models(&[("m", Model { task, thresholds, ..Model::default() })])
        };
        for good in [0.0, 0.3, 1.0] {
            assert!(with(Task::Judge, good).is_ok(), "{good}");
        }
        for odd in [-0.1, 1.1, f64::NAN] {
            let error = with(Task::Judge, odd).unwrap_err();
            assert!(error.contains("[models.m] thresholds: that of hate"), "{error}");
        }
        assert!(with(Task::Generate, 0.5).unwrap_err().contains("task = \"judge\""));
    }

    #[test]
    fn a_request_without_a_model_goes_to_the_only_judge() {
        let access = Access::open_to_all("t".parse().unwrap());
        let caller = access.check(None, None).unwrap();
        let find = |all: &[(&str, Model)]| {
            let mut fields = Fields::parse(b"{}").unwrap();
            let found = models(all).unwrap().judge(&mut fields, &caller);
            found.map(|(name, ..)| name).map_err(|error| error.message().to_owned())
        };
        let text = || ("text", Model::default());
        assert_eq!(find(&[text(), ("guard", judge())]).as_deref(), Ok("guard"));
        assert!(find(&[text()]).unwrap_err().contains("none that judges texts"));
        assert!(find(&[("a", judge()), ("b", judge())]).unwrap_err().contains("name one"));
    }
}
