//! Request of a chat completion.

use nsbridge_client::{ModelName, TextInput};
use nsbridge_gateway_access::Caller;
use nsbridge_gateway_replies::prompt_tokens;
use nsbridge_reply_text::tools::{
    Shape, ToolChoice, for_template, parse_choice, parse_tools, response_format,
};
use nsbridge_reply_text::{OutputParser, ToolFormat};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::api::sampling::{format, replies, sampling};
use crate::api::service_tier::Tier;
use crate::catalog::{Model, Models, Task};
use crate::error::{ApiError, Result};
use crate::fields::{Fields, read};

/// Parsed request.
#[derive(Debug)]
pub(crate) struct ChatRequest {
    /// Name of the model, as the client wrote it.
    pub(crate) name: String,
    pub(crate) model: ModelName,
    pub(crate) input: TextInput,
    pub(crate) seed: Option<u64>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) obfuscated: bool,
    pub(crate) logprobs: bool,
    pub(crate) replies: u32,
    pub(crate) tier: Tier,
    settings: Model,
    tools: ToolFormat,
}

/// Field `stream_options`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct StreamOptions {
    include_usage: bool,
    include_obfuscation: bool,
    /// Accepted, and without effect: the usage comes once, at the end.
    continuous_usage_stats: bool,
}

impl ChatRequest {
    /// Parses a request.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid field.
    pub(crate) fn parse(body: &[u8], models: &Models, caller: &Caller) -> Result<Self> {
        let mut fields = Fields::parse(body)?;
        let name = models.named(&mut fields)?;
        let (model, settings) = models.serving(&name, caller, Task::Generate)?;
        let mut input =
            TextInput { messages: messages(fields.need("messages")?)?, ..TextInput::default() };
        let seed = sampling(&mut fields, &mut input)?;
        let old = fields.take("max_tokens")?;
        input.max_tokens = fields.take("max_completion_tokens")?.or(old);
        if input.max_tokens == Some(0) {
            return Err(ApiError::field("max_tokens", "`max_tokens` must be at least 1"));
        }
        let n = replies(&mut fields)?;
        input.n = (n > 1).then_some(n);
        input.logprobs = fields.take("logprobs")?.unwrap_or_default();
        input.top_logprobs = fields.take::<u32>("top_logprobs")?.filter(|top| *top > 0);
        input.return_token_texts = input.logprobs;
        input.response_format = format(&mut fields)?;
        input.chat_template_kwargs = fields.take("chat_template_kwargs")?.unwrap_or_default();
        input.reasoning_effort = fields.take("reasoning_effort")?;
        input.add_generation_prompt = fields.take("add_generation_prompt")?;
        input.continue_final_message = fields.take("continue_final_message")?.unwrap_or_default();
        let tools = tools(&mut fields, &mut input, &settings)?;
        let stream = fields.take("stream")?.unwrap_or_default();
        let options: StreamOptions = fields.take("stream_options")?.unwrap_or_default();
        let tier = Tier::take(&mut fields)?;
        common(&mut fields)?;
        fields.only("audio", &Value::Null)?;
        fields.only("functions", &json!([]))?;
        fields.only("function_call", &json!("none"))?;
        fields.only("modalities", &json!(["text"]))?;
        fields.only("moderation", &Value::Null)?;
        fields.only("prediction", &Value::Null)?;
        fields.only("web_search_options", &Value::Null)?;
        fields.finish()?;
        Ok(Self {
            name,
            model,
            seed,
            stream,
            include_usage: options.include_usage,
            obfuscated: options.include_obfuscation && !options.continuous_usage_stats,
            logprobs: input.logprobs,
            replies: n,
            tier,
            settings,
            tools,
            input,
        })
    }

    /// Returns an upper bound of the tokens of the request, for its limits.
    pub(crate) fn tokens(&self) -> u64 {
        tokens(&self.input, &self.settings)
    }

    /// Returns a parser for one reply.
    pub(crate) fn parser(&self) -> OutputParser {
        OutputParser::new(self.tools.clone(), self.settings.reasoning_tags())
    }
}

/// Reads messages. `developer` is the role that OpenAI's newer models have for `system`.
///
/// # Errors
///
/// Returns an error that names the message.
pub(crate) fn messages(values: Vec<Value>) -> Result<Vec<nsbridge_client::ChatMessage>> {
    if values.is_empty() {
        return Err(ApiError::field("messages", "`messages` must have at least one message"));
    }
    let message = |(index, mut value): (usize, Value)| {
        let at = format!("messages[{index}]");
        if let Some(fields) = value.as_object_mut() {
            tidy(&at, fields)?;
        }
        read(&at, value)
    };
    values.into_iter().enumerate().map(message).collect()
}

/// Drops the fields of a message that clients send back and no template reads.
fn tidy(at: &str, fields: &mut Map<String, Value>) -> Result<()> {
    if fields.get("role").and_then(Value::as_str) == Some("developer") {
        fields.insert("role".into(), "system".into());
    }
    for name in ["refusal", "annotations", "audio", "function_call", "tool_calls", "name"] {
        let empty = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
        if fields.get(name).is_some_and(empty) {
            fields.remove(name);
        }
    }
    // vLLM's name of the field.
    if let Some(reasoning) = fields.remove("reasoning") {
        fields.entry("reasoning_content").or_insert(reasoning);
    }
    for name in ["audio", "function_call"] {
        if fields.contains_key(name) {
            let message = format!("`{name}` of a message is not supported");
            return Err(ApiError::field(&format!("{at}.{name}"), message));
        }
    }
    fields.remove("refusal");
    fields.remove("annotations");
    Ok(())
}

/// Reads tools and their choice; constrains the reply if a call is required.
fn tools(fields: &mut Fields<'_>, input: &mut TextInput, model: &Model) -> Result<ToolFormat> {
    let tools = parse_tools(Shape::Chat, fields.value("tools")?.as_ref())?;
    let choice = parse_choice(Shape::Chat, fields.value("tool_choice")?.as_ref(), &tools)?;
    let parallel = fields.take("parallel_tool_calls")?.unwrap_or(true);
    apply_tools(&tools, &choice, parallel, input, model)
}

/// Passes tools to the template, and constrains the reply if a call is required.
///
/// # Errors
///
/// Returns an error if a required call stands beside another format of the reply.
pub(crate) fn apply_tools(
    tools: &[nsbridge_reply_text::tools::Tool],
    choice: &ToolChoice,
    parallel: bool,
    input: &mut TextInput,
    model: &Model,
) -> Result<ToolFormat> {
    if tools.is_empty() || *choice == ToolChoice::None {
        return Ok(ToolFormat::None);
    }
    if let Value::Array(tools) = for_template(tools) {
        input.tools = tools;
    }
    let Some(forced) = choice.forced(parallel) else {
        let format = model.tool_format();
        // These models mark their calls by special tokens.
        if matches!(format, ToolFormat::Mistral | ToolFormat::Llama3Json) {
            input.skip_special_tokens = Some(false);
        }
        return Ok(format);
    };
    if input.response_format.is_some() {
        return Err(ApiError::field(
            "tool_choice",
            "a required tool call cannot be combined with a format of the reply",
        ));
    }
    if let Some(format) = response_format(tools, choice, parallel) {
        input.response_format = Some(read("tools", format)?);
    }
    Ok(ToolFormat::Forced(forced))
}

/// Returns an upper bound of the tokens of a request: those of its text by its bytes, and those that
/// its replies may have.
pub(crate) fn tokens(input: &TextInput, model: &Model) -> u64 {
    let most = input.max_tokens.map_or(model.reserved_tokens(), u64::from);
    prompt_tokens(input) + most * u64::from(input.n.unwrap_or(1))
}

/// Drops the fields that clients of all endpoints send and that do not change a reply.
///
/// # Errors
///
/// Returns an error if one of them has another type.
pub(crate) fn common(fields: &mut Fields<'_>) -> Result<()> {
    fields.ignore(&[
        "user",
        "metadata",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "verbosity",
        "return_token_ids",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "include_reasoning",
        "separate_reasoning",
    ]);
    if fields.take::<bool>("store")? == Some(true) {
        tracing::debug!("a chat completion is not stored");
    }
    Ok(())
}
