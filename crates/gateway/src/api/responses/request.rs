//! Request of a response.

use std::collections::HashMap;

use nsbridge_client::{ChatMessage, JsonSchema, ModelName, ResponseFormat, TextInput};
use nsbridge_gateway_access::Caller;
use nsbridge_reply_text::tools::{Shape, Tool, parse_choice, parse_tools};
use nsbridge_reply_text::{OutputParser, ToolFormat};
use serde::Deserialize;
use serde_json::{Value, json};

use super::echo::Echo;
use super::items::{self, KnownItems};
use crate::api::chat::request::{apply_tools, tokens};
use crate::api::sampling::sampling;
use crate::api::schema::LeftOut;
use crate::api::service_tier::Tier;
use crate::catalog::{Model, Models, Task};
use crate::error::{ApiError, Result};
use crate::fields::{Fields, metadata, read};

/// Values of `include` that are taken. Those that concern other kinds of input have no effect.
const INCLUDE: [&str; 7] = [
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "code_interpreter_call.outputs",
];

/// Parsed request.
#[derive(Debug)]
pub(crate) struct ResponsesRequest {
    pub(crate) model: ModelName,
    pub(crate) input: TextInput,
    pub(crate) stream: bool,
    pub(crate) tier: Tier,
    pub(crate) background: bool,
    pub(crate) seed: Option<u64>,
    pub(crate) obfuscated: bool,
    pub(crate) logprobs: bool,
    pub(crate) previous: Option<String>,
    /// True if the first message has the instructions.
    pub(crate) has_instructions: bool,
    /// Fields of the response that repeat those of the request.
    pub(crate) echo: Echo,
    pub(crate) left_out: LeftOut,
    /// Namespaces of functions by the names that the worker sees.
    pub(crate) namespaces: HashMap<String, String>,
    settings: Model,
    tools: ToolFormat,
}

/// Field `text`.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Text {
    format: Option<Format>,
    verbosity: Option<String>,
}

/// Format of the text, which has the fields of a schema beside its type.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Format {
    Text {},
    JsonObject {},
    JsonSchema {
        name: Option<String>,
        description: Option<String>,
        schema: Value,
        strict: Option<bool>,
    },
    Regex {
        regex: String,
    },
}

/// Field `reasoning`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Reasoning {
    effort: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct StreamOptions {
    include_obfuscation: bool,
}

impl ResponsesRequest {
    /// Parses a request that is kept. The items to which its input refers are left out.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid field.
    pub(crate) fn parse(body: &[u8], models: &Models, caller: &Caller) -> Result<Self> {
        let mut fields = Fields::parse(body)?;
        let given = fields.value("input")?.unwrap_or_default();
        Self::parse_with(fields, given, &KnownItems::new(), models, caller)
    }

    /// Parses a request from its input, the items to which that refers, and its other fields.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid field.
    pub(super) fn parse_with(
        mut fields: Fields<'_>,
        given: Value,
        known: &KnownItems,
        models: &Models,
        caller: &Caller,
    ) -> Result<Self> {
        let name = models.named(&mut fields)?;
        let (model, settings) = models.serving(&name, caller, Task::Generate)?;
        let instructions: Option<String> = fields.take("instructions")?;
        let mut messages: Vec<ChatMessage> = Vec::new();
        messages
            .extend(instructions.as_ref().map(|text| ChatMessage::new("system", text.as_str())));
        let has_instructions = instructions.is_some();
        let refers = !items::references(&given).is_empty();
        messages.extend(items::read(given, known, settings.images)?);
        let previous: Option<String> = fields.take("previous_response_id")?;
        let is_empty = messages.len() == usize::from(has_instructions);
        if is_empty && !refers && previous.is_none() {
            return Err(ApiError::field("input", "`input` is missing"));
        }
        let mut input = TextInput { messages, ..TextInput::default() };
        settings.settle(&mut input)?;
        let seed = sampling(&mut fields, &mut input)?;
        input.max_tokens = fields.take("max_output_tokens")?;
        input.top_logprobs = fields.take::<u32>("top_logprobs")?.filter(|top| *top > 0);
        input.chat_template_kwargs = fields.take("chat_template_kwargs")?.unwrap_or_default();
        input.continue_final_message = fields.take("continue_final_message")?.unwrap_or_default();
        input.logprobs = includes_logprobs(&mut fields)? || input.top_logprobs.is_some();
        input.return_token_texts = input.logprobs;
        let text = fields.value("text")?;
        input.response_format = format(text.clone())?;
        let mut left_out = LeftOut::default();
        left_out.enforce(&mut input.response_format, "text.format.schema")?;
        let reasoning = fields.value("reasoning")?;
        if let Some(reasoning) = reasoning.clone() {
            let reasoning: Reasoning = read("reasoning", reasoning)?;
            input.reasoning_effort = reasoning.effort;
        }
        let (tools, choice) = (fields.value("tools")?, fields.value("tool_choice")?);
        let parsed = parse_tools(Shape::Responses, tools.as_ref())?;
        let chosen = parse_choice(Shape::Responses, choice.as_ref(), &parsed)?;
        let parallel = fields.take::<bool>("parallel_tool_calls")?.unwrap_or(true);
        let namespace = |tool: &Tool| Some((tool.name.clone(), tool.namespace.clone()?));
        let namespaces = parsed.iter().filter_map(namespace).collect();
        let format = apply_tools(&parsed, &chosen, parallel, &mut input, &settings, &mut left_out)?;
        let stream = fields.take("stream")?.unwrap_or_default();
        let options: StreamOptions = fields.take("stream_options")?.unwrap_or_default();
        let background = fields.take("background")?.unwrap_or_default();
        let store: Option<bool> = fields.take("store")?;
        if background && store == Some(false) {
            let message =
                "a response in the background is kept: leave `store` out, or set it to true";
            return Err(ApiError::field("store", message));
        }
        let tier = Tier::take(&mut fields)?;
        check_truncation(&mut fields)?;
        let max_tool_calls: Option<u64> = fields.take("max_tool_calls")?;
        let metadata = metadata(&mut fields)?.unwrap_or_default();
        let echo = Echo::of(json!({
            "background": background, "instructions": instructions, "model": name,
            "max_output_tokens": input.max_tokens, "max_tool_calls": max_tool_calls,
            "parallel_tool_calls": parallel, "previous_response_id": previous,
            "reasoning": reasoning.unwrap_or(json!({ "effort": null, "summary": null })),
            "store": store.unwrap_or(true),
            "temperature": as_written(input.temperature), "text": shown_text(text),
            "tool_choice": choice.unwrap_or("auto".into()), "tools": tools.unwrap_or(json!([])),
            "top_logprobs": input.top_logprobs.unwrap_or_default(), "top_p": as_written(input.top_p),
            "truncation": "disabled", "user": fields.label("user")?,
            "metadata": metadata, "safety_identifier": fields.label("safety_identifier")?,
            "prompt_cache_key": fields.label("prompt_cache_key")?
        }));
        fields.ignore(&["prompt_cache_retention", "prompt_cache_options", "client_metadata"]);
        for name in ["conversation", "prompt", "moderation", "context_management"] {
            fields.only(name, &Value::Null)?;
        }
        fields.finish()?;
        Ok(Self {
            model,
            stream,
            tier,
            background,
            seed,
            obfuscated: options.include_obfuscation,
            logprobs: input.logprobs,
            previous,
            has_instructions,
            echo,
            left_out,
            namespaces,
            settings,
            tools: format,
            input,
        })
    }

    /// Puts the messages of earlier responses before those of the request, after its instructions.
    ///
    /// # Errors
    ///
    /// Returns an error if the messages have images and the model takes none.
    pub(crate) fn follow(&mut self, history: Vec<ChatMessage>) -> Result<()> {
        if !self.settings.images && history.iter().any(|message| message.content.has_images()) {
            let message = "the previous response follows images, and the model takes no images";
            return Err(ApiError::field("previous_response_id", message));
        }
        let at = usize::from(self.has_instructions);
        self.input.messages.splice(at..at, history);
        Ok(())
    }

    pub(crate) fn tokens(&self) -> u64 {
        tokens(&self.input, &self.settings)
    }

    /// Returns a parser of the reply.
    pub(crate) fn parser(&self) -> OutputParser {
        OutputParser::new(self.tools.clone(), self.settings.reasoning_tags(&self.input))
    }
}

/// Returns a number with the digits that its client wrote.
fn as_written(number: Option<f32>) -> Option<f64> {
    number.map(|number| number.to_string().parse().unwrap_or(f64::from(number)))
}

/// Takes the field `include`, and returns true if it asks for log probabilities.
fn includes_logprobs(fields: &mut Fields<'_>) -> Result<bool> {
    let include: Vec<String> = fields.take("include")?.unwrap_or_default();
    if let Some(other) = include.iter().find(|include| !INCLUDE.contains(&&***include)) {
        let other: String = other.chars().take(64).collect();
        let message = format!("`include` has `{other}`, which is not supported");
        return Err(ApiError::field("include", message));
    }
    Ok(include.iter().any(|include| include == INCLUDE[0]))
}

fn check_truncation(fields: &mut Fields<'_>) -> Result<()> {
    match fields.take::<String>("truncation")?.as_deref() {
        None | Some("disabled") => Ok(()),
        Some(_) => {
            let message = "`truncation` must be `disabled`: a prompt is never cut";
            Err(ApiError::field("truncation", message))
        }
    }
}

fn format(text: Option<Value>) -> Result<Option<ResponseFormat>> {
    let Some(text) = text else { return Ok(None) };
    let text: Text = read("text", text)?;
    let _ = text.verbosity;
    Ok(match text.format {
        None | Some(Format::Text {}) => None,
        Some(Format::JsonObject {}) => Some(ResponseFormat::JsonObject {}),
        Some(Format::Regex { regex }) => Some(ResponseFormat::Regex { regex }),
        Some(Format::JsonSchema { name, description, schema, strict }) => {
            let mut json_schema = JsonSchema::new(schema);
            json_schema.name = name;
            json_schema.description = description;
            json_schema.strict = strict;
            Some(ResponseFormat::JsonSchema { json_schema })
        }
    })
}

fn shown_text(text: Option<Value>) -> Value {
    let mut text = text.unwrap_or(json!({}));
    if text.get("format").is_none_or(Value::is_null) && text.is_object() {
        text["format"] = json!({ "type": "text" });
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use nsbridge_gateway_access::Access;
    use serde_json::{Value, json};

    use super::ResponsesRequest;
    use crate::catalog::{Model, Models};

    #[test]
    fn the_text_of_the_last_message_goes_on_if_its_request_says_so() {
        let models: BTreeMap<_, _> = [("m".to_owned(), Model::default())].into();
        let models = Models::new(models, None).unwrap();
        let caller = Access::open_to_all("t".parse().unwrap()).check(None, None).unwrap();
        let continues = |value: Value| {
            let input = [
                json!({ "role": "user", "content": "hi" }),
                json!({ "role": "assistant", "content": "He" }),
            ];
            let body = json!({ "model": "m", "input": input, "continue_final_message": value });
            let parsed = ResponsesRequest::parse(body.to_string().as_bytes(), &models, &caller);
            parsed.unwrap().input.continue_final_message
        };
        assert!(continues(json!(true)));
        assert!(!continues(json!(false)) && !continues(Value::Null));
    }
}
