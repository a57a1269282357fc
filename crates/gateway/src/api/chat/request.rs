//! Request of a chat completion.

use nsbridge_client::{ModelName, ResponseFormat, TextInput};
use nsbridge_gateway_access::Caller;
use nsbridge_gateway_replies::prompt_tokens;
use nsbridge_reply_text::tools::{
    Shape, Tool, ToolChoice, allowed_calls, for_template, parse_choice, parse_tools,
    response_format,
};
use nsbridge_reply_text::{OutputParser, ToolFormat};
use serde::Deserialize;
use serde_json::{Value, json};

use super::messages::{is_begun, messages};
use crate::api::sampling::{format, replies, sampling};
use crate::api::schema::LeftOut;
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
    pub(crate) left_out: LeftOut,
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
        let chat: Vec<Value> = fields.need("messages")?;
        let is_begun = is_begun(&chat);
        let mut input = TextInput { messages: messages(chat)?, ..TextInput::default() };
        settings.settle(&mut input)?;
        let seed = sampling(&mut fields, &mut input)?;
        let old = fields.take("max_tokens")?;
        let current = fields.take("max_completion_tokens")?;
        for (name, given) in [("max_completion_tokens", current), ("max_tokens", old)] {
            if given == Some(0) {
                return Err(ApiError::field(name, format!("`{name}` must be at least 1")));
            }
        }
        input.max_tokens = current.or(old);
        let n = replies(&mut fields)?;
        input.n = (n > 1).then_some(n);
        input.logprobs = fields.take("logprobs")?.unwrap_or_default();
        input.top_logprobs = fields.take::<u32>("top_logprobs")?.filter(|top| *top > 0);
        input.return_token_texts = input.logprobs;
        input.response_format = format(&mut fields)?;
        let mut left_out = LeftOut::default();
        let schema = "response_format.json_schema.schema";
        left_out.enforce(&mut input.response_format, schema)?;
        input.chat_template_kwargs = fields.take("chat_template_kwargs")?.unwrap_or_default();
        input.reasoning_effort = fields.take("reasoning_effort")?;
        input.add_generation_prompt = fields.take("add_generation_prompt")?;
        input.continue_final_message = fields.take("continue_final_message")?.unwrap_or(is_begun);
        let tools = tools(&mut fields, &mut input, &settings, &mut left_out)?;
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
            left_out,
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
        OutputParser::new(self.tools.clone(), self.settings.reasoning_tags(&self.input))
    }
}

/// Reads tools and their choice; constrains the reply if a call is required.
fn tools(
    fields: &mut Fields<'_>,
    input: &mut TextInput,
    model: &Model,
    left_out: &mut LeftOut,
) -> Result<ToolFormat> {
    let tools = parse_tools(Shape::Chat, fields.value("tools")?.as_ref())?;
    let choice = parse_choice(Shape::Chat, fields.value("tool_choice")?.as_ref(), &tools)?;
    let parallel = fields.take("parallel_tool_calls")?.unwrap_or(true);
    apply_tools(&tools, &choice, parallel, input, model, left_out)
}

/// Passes tools to the template, and constrains the reply if a call is required.
///
/// # Errors
///
/// Returns an error if a required call stands beside another format of the reply.
pub(crate) fn apply_tools(
    tools: &[Tool],
    choice: &ToolChoice,
    parallel: bool,
    input: &mut TextInput,
    model: &Model,
    left_out: &mut LeftOut,
) -> Result<ToolFormat> {
    if tools.is_empty() || *choice == ToolChoice::None {
        return Ok(ToolFormat::None);
    }
    if let Value::Array(tools) = for_template(tools) {
        input.tools = tools;
    }
    let Some(forced) = choice.forced(parallel) else {
        let format = model.tool_format();
        if format == ToolFormat::None {
            left_out.leave_tools();
        }
        hold_allowed_calls(tools, &format, input, left_out)?;
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
    let enforced = left_out.enforce_tools(tools)?;
    if let Some(format) = response_format(&enforced, choice, parallel) {
        input.response_format = Some(read("tools", format)?);
        left_out.take_format_of_tools();
    }
    Ok(ToolFormat::Forced(forced))
}

/// Holds calls that the model may make to the schemas of strict tools, and lets a reply with a final schema
/// have calls.
///
/// # Errors
///
/// Returns an error if a tool is strict and no grammar can follow the format of the model's calls.
fn hold_allowed_calls(
    tools: &[Tool],
    format: &ToolFormat,
    input: &mut TextInput,
    left_out: &mut LeftOut,
) -> Result<()> {
    // A model without a format of calls makes none.
    let makes_calls = *format != ToolFormat::None;
    let strict = tools.iter().position(|tool| makes_calls && tool.strict == Some(true));
    let otherwise = match &input.response_format {
        None if strict.is_none() => return Ok(()),
        None => None,
        Some(ResponseFormat::JsonObject {}) => Some(json!({ "type": "object" })),
        Some(ResponseFormat::JsonSchema { json_schema }) => Some(json_schema.schema.clone()),
        // The format of the reply is the client's own.
        Some(_) => return Ok(()),
    };
    let loose = json!({ "type": "object" });
    let tools: Vec<_> = tools
        .iter()
        .map(|tool| match tool.strict {
            Some(true) => tool.clone(),
            _ => Tool { parameters: loose.clone(), ..tool.clone() },
        })
        .collect();
    let enforced = left_out.enforce_tools(&tools)?;
    match (allowed_calls(&enforced, format, otherwise.as_ref()), strict) {
        (Some(calls), _) => input.response_format = Some(read("tools", calls)?),
        (None, Some(index)) => {
            let message = format!(
                "`tools[{index}].function.strict`: the calls that this model may make are not held to a \
                 schema: require a call by `tool_choice`, or leave `strict` out"
            );
            let field = format!("tools[{index}].function.strict");
            return Err(ApiError::field(&field, message).coded("schema_not_enforceable"));
        }
        (None, None) => {}
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use nsbridge_client::{JsonSchema, ResponseFormat, TextInput};
    use nsbridge_reply_text::ToolFormat;
    use nsbridge_reply_text::tools::{Shape, parse_tools};
    use serde_json::{Value, json};

    use super::{LeftOut, Result, hold_allowed_calls};

    /// Returns the format for requests whose model may call a function with these parameters.
    fn held(strict: Option<bool>, format: &ToolFormat, schema: Option<Value>) -> Result<Value> {
        let parameters = json!({ "type": "object", "properties": { "a": { "type": "integer" } } });
        let tools = json!([{ "type": "function", "function": {
            "name": "f", "parameters": parameters, "strict": strict
        } }]);
        let tools = parse_tools(Shape::Chat, Some(&tools)).unwrap();
        let json_schema = schema.map(JsonSchema::new);
        let response_format =
            json_schema.map(|json_schema| ResponseFormat::JsonSchema { json_schema });
        let mut input = TextInput { response_format, ..TextInput::default() };
        hold_allowed_calls(&tools, format, &mut input, &mut LeftOut::default())?;
        Ok(serde_json::to_value(input.response_format).unwrap())
    }

    #[test]
    fn a_strict_tool_is_enforced_or_refused_when_the_model_may_call_it() {
        let arguments = "/tool_calls/schema/anyOf/0/properties/arguments/properties/a/type";
        let strict = held(Some(true), &ToolFormat::Hermes, None).unwrap();
        assert_eq!(strict.pointer(arguments), Some(&json!("integer")));
        assert_eq!(held(None, &ToolFormat::Hermes, None).unwrap(), Value::Null);
        assert_eq!(held(Some(false), &ToolFormat::Mistral, None).unwrap(), Value::Null);
        let error = held(Some(true), &ToolFormat::Mistral, None).unwrap_err();
        assert_eq!(error.json()["error"]["param"], "tools[0].function.strict");
        assert_eq!(error.json()["error"]["code"], "schema_not_enforceable");
        // A model that makes no calls breaks no schema of them.
        assert_eq!(held(Some(true), &ToolFormat::None, None).unwrap(), Value::Null);
    }

    #[test]
    fn a_reply_with_a_final_schema_may_have_calls() {
        let schema = json!({ "type": "object", "properties": { "b": {} } });
        let both = held(None, &ToolFormat::Hermes, Some(schema.clone())).unwrap();
        assert_eq!(
            (&both["type"], &both["tool_calls"]["otherwise"]),
            (&json!("tool_calls"), &schema)
        );
        let arguments = "/tool_calls/schema/anyOf/0/properties/arguments";
        assert_eq!(both.pointer(arguments), Some(&json!({ "type": "object" })));
        // Where no grammar can follow the calls, the schema of the reply is enforced alone.
        let alone = held(None, &ToolFormat::None, Some(schema)).unwrap();
        assert_eq!(alone["type"], "json_schema");
    }
}
