//! Request of a message.

use nsbridge_client::{ChatMessage, JsonSchema, ModelName, ResponseFormat, TextInput};
use nsbridge_gateway_access::Caller;
use nsbridge_reply_text::{OutputParser, ReasoningTags, ToolFormat};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::content::{messages, system};
use super::error::LOST_THREAD;
use super::tools::{choice, tools};
use crate::api::chat::request::{apply_tools, tokens};
use crate::api::sampling::sampling;
use crate::api::schema::LeftOut;
use crate::api::service_tier::Tier;
use crate::catalog::{Model, Models, Task};
use crate::error::{ApiError, Result};
use crate::fields::Fields;

/// Variable by which chat templates turn reasoning on or off.
const ENABLE_THINKING: &str = "enable_thinking";

/// Beginnings of the types of edits of the context that are taken. Each of them shortens a long prompt
/// before the model reads it. None is applied here, and the reply says so.
const EDIT_TYPES: [&str; 3] = ["clear_thinking_", "clear_tool_uses_", "compact_"];

/// Parsed request.
#[derive(Debug)]
pub(crate) struct MessagesRequest {
    /// Name of the model, as the client wrote it.
    pub(crate) name: String,
    pub(crate) model: ModelName,
    pub(crate) input: TextInput,
    pub(crate) seed: Option<u64>,
    pub(crate) stream: bool,
    pub(crate) tier: Tier,
    /// True if blocks of thinking have no text.
    pub(crate) omits_thinking: bool,
    /// True if the reply tells which edits of the context were applied.
    pub(crate) tells_edits: bool,
    pub(crate) left_out: LeftOut,
    settings: Model,
    tools: ToolFormat,
    /// Place of the reasoning in the reply.
    reasoning: Option<ReasoningTags>,
}

/// Field `thinking`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Thinking {
    #[serde(rename = "type")]
    mode: Mode,
    /// Accepted, and without effect: `max_tokens` limits reasoning and answer together.
    #[serde(rename = "budget_tokens", default)]
    _budget: Option<u32>,
    #[serde(default)]
    display: Display,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    Enabled,
    Adaptive,
    Disabled,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Display {
    #[default]
    Summarized,
    Omitted,
    /// Of a beta: its updates are the text of the reasoning here.
    Updates,
}

/// Checks the field `thread`. Conversations are not kept here, so one that goes on is a lost one, which
/// clients then send whole.
fn thread(value: Option<&Value>) -> Result<()> {
    match value {
        None => Ok(()),
        Some(value) if *value == json!({ "type": "create" }) => Ok(()),
        Some(value) if value["type"] == "continue" => {
            let message = "the thread is not kept: send the whole conversation in `messages`";
            Err(ApiError::not_found(message).coded(LOST_THREAD).about("thread"))
        }
        Some(_) => {
            Err(ApiError::field("thread", "`thread` must be of the type `create` or `continue`"))
        }
    }
}

/// Field `output_config`.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct OutputConfig {
    effort: Option<String>,
    format: Option<Format>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Format {
    JsonSchema { schema: Map<String, Value> },
}

/// Field `context_management`.
#[derive(Deserialize)]
struct ContextManagement {
    #[serde(default)]
    edits: Vec<Edit>,
}

/// Edit of the context, whose other fields say when and how much is cut.
#[derive(Deserialize)]
struct Edit {
    #[serde(rename = "type")]
    kind: String,
}

impl MessagesRequest {
    /// Parses a request for a message.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid field.
    pub(crate) fn parse(body: &[u8], models: &Models, caller: &Caller) -> Result<Self> {
        let mut fields = Fields::parse(body)?;
        let most: u32 = fields.need("max_tokens")?;
        if most == 0 {
            return Err(ApiError::field("max_tokens", "`max_tokens` must be at least 1"));
        }
        Self::read(fields, Some(most), models, caller)
    }

    /// Parses a request for the number of tokens of a prompt.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid field.
    pub(crate) fn parse_count(body: &[u8], models: &Models, caller: &Caller) -> Result<Self> {
        Self::read(Fields::parse(body)?, None, models, caller)
    }

    fn read(
        mut fields: Fields<'_>,
        most: Option<u32>,
        models: &Models,
        caller: &Caller,
    ) -> Result<Self> {
        thread(fields.value("thread")?.as_ref())?;
        let name = models.named(&mut fields)?;
        let (model, settings) = models.serving(&name, caller, Task::Generate)?;
        let mut chat: Vec<ChatMessage> = system(fields.value("system")?)?.into_iter().collect();
        messages(fields.need("messages")?, settings.images, &mut chat)?;
        let mut input = TextInput { messages: chat, max_tokens: most, ..TextInput::default() };
        settings.settle(&mut input)?;
        let seed = sampling(&mut fields, &mut input)?;
        let stops: Vec<String> = fields.take("stop_sequences")?.unwrap_or_default();
        input.stop.extend(stops.into_iter().filter(|stop| !stop.is_empty()));
        input.continue_final_message = is_begun(&input.messages);
        input.chat_template_kwargs = fields.take("chat_template_kwargs")?.unwrap_or_default();
        let thinking: Option<Thinking> = fields.take("thinking")?;
        if let Some(thinking) = thinking.as_ref().filter(|_| settings.reasoning.is_some()) {
            let enabled = thinking.mode != Mode::Disabled;
            input.chat_template_kwargs.insert(ENABLE_THINKING.to_owned(), enabled.into());
        }
        let OutputConfig { effort, format } = fields.take("output_config")?.unwrap_or_default();
        // The name of the field before `output_config`.
        let format = format.or(fields.take("output_format")?);
        input.reasoning_effort = effort;
        input.response_format = format.map(|Format::JsonSchema { schema }| {
            let json_schema = JsonSchema::new(Value::Object(schema));
            ResponseFormat::JsonSchema { json_schema }
        });
        let mut left_out = LeftOut::default();
        left_out.enforce(&mut input.response_format, "output_config.format.schema")?;
        let formatted = input.response_format.is_some();
        let given = tools(&mut fields)?;
        let (choice, parallel) = choice(&mut fields, &given)?;
        let tools = apply_tools(&given, &choice, parallel, &mut input, &settings, &mut left_out)?;
        let stream = fields.take("stream")?.unwrap_or_default();
        let tier = Tier::take(&mut fields)?;
        let tells_edits = context_management(&mut fields)?;
        fields.ignore(&["metadata", "cache_control"]);
        fields.only("mcp_servers", &json!([]))?;
        fields.only("speed", &"standard".into())?;
        fields.finish()?;
        let off = thinking.as_ref().is_some_and(|thinking| thinking.mode == Mode::Disabled);
        let reasoning = reasoning(&settings, &input, off).filter(|_| !formatted);
        let display = thinking.map(|thinking| thinking.display).unwrap_or_default();
        Ok(Self {
            name,
            model,
            seed,
            stream,
            tier,
            omits_thinking: display == Display::Omitted,
            tells_edits,
            left_out,
            settings,
            tools,
            reasoning,
            input,
        })
    }

    /// Returns an upper bound of the tokens of the request, for its limits.
    pub(crate) fn tokens(&self) -> u64 {
        tokens(&self.input, &self.settings)
    }

    /// Returns a parser of the reply.
    pub(crate) fn parser(&self) -> OutputParser {
        OutputParser::new(self.tools.clone(), self.reasoning)
    }
}

/// Takes `context_management`, and returns true if it is there.
fn context_management(fields: &mut Fields<'_>) -> Result<bool> {
    let given: Option<ContextManagement> = fields.take("context_management")?;
    let Some(ContextManagement { edits }) = given else { return Ok(false) };
    for (index, Edit { kind }) in edits.into_iter().enumerate() {
        if !EDIT_TYPES.iter().any(|known| kind.starts_with(known)) {
            let kind: String = kind.chars().take(40).collect();
            let at = format!("context_management.edits[{index}].type");
            let message = format!(
                "`{at}` is `{kind}`, which is not known: types begin with `{}`",
                EDIT_TYPES.join("`, `")
            );
            return Err(ApiError::field(&at, message));
        }
    }
    Ok(true)
}

/// Returns true if the last message is the beginning of the reply.
fn is_begun(messages: &[ChatMessage]) -> bool {
    messages.last().is_some_and(|last| {
        let answers = last.role == "assistant" && last.tool_calls.is_empty();
        answers && !last.content.trim().is_empty()
    })
}

/// Returns the place of the reasoning. A reply with reasoning turned `off` does not begin within it.
fn reasoning(settings: &Model, input: &TextInput, off: bool) -> Option<ReasoningTags> {
    let tags = settings.reasoning_tags(input)?;
    let begun = tags.begun && !off;
    Some(ReasoningTags { begun, ..tags })
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use nsbridge_gateway_access::{Access, Caller};
    use serde_json::{Value, json};

    use super::MessagesRequest;
    use crate::api::tokens::without_reply;
    use crate::catalog::{Model, Models, Reasoning, Tools};
    use crate::error::Result;

    /// Returns the models `plain` and `thinker`, and a caller who may use both.
    fn stage() -> (Models, Arc<Caller>) {
        let thinker = Model {
            reasoning: Some(Reasoning::ThinkBegun),
            tools: Some(Tools::Hermes),
            ..Model::default()
        };
        let models = [("plain", Model::default()), ("thinker", thinker)];
        let models: BTreeMap<_, _> =
            models.into_iter().map(|(name, model)| (name.to_owned(), model)).collect();
        let access = Access::open_to_all("t".parse().unwrap());
        (Models::new(models, None).unwrap(), access.check(None, None).unwrap())
    }

    fn body(more: &Value) -> Vec<u8> {
        let mut body = json!({
            "model": "thinker", "max_tokens": 9, "messages": [{ "role": "user", "content": "hi" }]
        });
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        body.to_string().into_bytes()
    }

    /// Parses a request with these fields.
    pub(in super::super) fn parse(more: &Value) -> Result<MessagesRequest> {
        let (models, caller) = stage();
        MessagesRequest::parse(&body(more), &models, &caller)
    }

    #[track_caller]
    fn check(more: &Value, expected: &Value) {
        let request = parse(more).map_err(|error| error.message().to_owned()).unwrap();
        let input = serde_json::to_value(&request.input).unwrap();
        for (name, value) in expected.as_object().unwrap() {
            assert_eq!(input.get(name).unwrap_or(&Value::Null), value, "{name}");
        }
    }

    #[track_caller]
    fn check_refused(more: &Value, param: &str) {
        let error = parse(more).unwrap_err();
        assert_eq!(error.json()["error"]["param"], param, "{}", error.message());
    }

    #[test]
    fn each_field_reaches_the_worker() {
        check(
            &json!({
                "system": "Be brief.", "temperature": 0.5, "top_p": 0.75, "top_k": 4,
                "stop_sequences": ["a", "", "b"], "metadata": { "user_id": "u" },
                "service_tier": "standard_only", "cache_control": { "type": "ephemeral" },
                "speed": "standard", "mcp_servers": [], "thread": { "type": "create" },
                "context_management": { "edits": [{ "type": "clear_thinking_20251015", "keep": "all" }] }
            }),
            &json!({
                "messages": [
                    { "role": "system", "content": "Be brief." }, { "role": "user", "content": "hi" }
                ],
                "temperature": 0.5, "top_p": 0.75, "top_k": 4, "stop": ["a", "b"], "max_tokens": 9,
                "chat_template_kwargs": null, "continue_final_message": null
            }),
        );
        let schema = json!({ "type": "object" });
        let format = json!({ "type": "json_schema", "schema": schema });
        check(
            &json!({ "output_config": { "effort": "low", "format": format } }),
            &json!({
                "reasoning_effort": "low",
                "response_format": { "type": "json_schema", "json_schema": { "schema": schema } }
            }),
        );
    }

    #[test]
    fn edits_of_the_context_are_taken_and_the_reply_tells_that_none_is_applied() {
        let of = |edits: Value| json!({ "context_management": { "edits": edits } });
        assert!(!parse(&json!({})).unwrap().tells_edits);
        assert!(parse(&json!({ "context_management": {} })).unwrap().tells_edits);
        let known = json!([
            { "type": "clear_tool_uses_20250919", "trigger": { "type": "input_tokens", "value": 9 } },
            { "type": "compact_20260112" }
        ]);
        assert!(parse(&of(known)).unwrap().tells_edits);
        let odd = of(json!([{ "type": "clear_thinking_1" }, { "type": "shuffle" }]));
        check_refused(&odd, "context_management.edits[1].type");
    }

    #[test]
    fn a_format_has_an_earlier_name() {
        let format = json!({ "type": "json_schema", "schema": { "type": "object" } });
        check(
            &json!({ "output_format": format }),
            &json!({ "response_format": {
                "type": "json_schema", "json_schema": { "schema": { "type": "object" } }
            } }),
        );
    }

    #[test]
    fn the_first_invalid_field_is_named() {
        check_refused(&json!({ "max_tokens": null }), "max_tokens");
        check_refused(&json!({ "max_tokens": 0 }), "max_tokens");
        check_refused(&json!({ "model": "other" }), "model");
        check_refused(&json!({ "messages": null }), "messages");
        check_refused(&json!({ "thinking": { "type": "between_tools" } }), "thinking");
        check_refused(&json!({ "thinking": { "type": "enabled", "typo": 1 } }), "thinking");
        check_refused(&json!({ "speed": "fast" }), "speed");
        check_refused(&json!({ "mcp_servers": [{ "url": "https://a" }] }), "mcp_servers");
        check_refused(&json!({ "container": "c" }), "container");
        check_refused(&json!({ "output_config": { "typo": 1 } }), "output_config");
        let tool = json!({ "name": "f", "input_schema": { "type": "object" } });
        let format = json!({ "format": { "type": "json_schema", "schema": {} } });
        let both = json!({
            "tools": [tool], "tool_choice": { "type": "any" }, "output_config": format
        });
        check_refused(&both, "tool_choice");
    }

    #[test]
    fn thinking_is_a_variable_of_the_templates_of_models_that_reason() {
        let kwargs = |value: Value| json!({ "chat_template_kwargs": value });
        for (mode, enabled) in [("enabled", true), ("adaptive", true), ("disabled", false)] {
            let thinking = json!({ "thinking": { "type": mode, "budget_tokens": 1024 } });
            check(&thinking, &kwargs(json!({ "enable_thinking": enabled })));
            let mut plain = thinking;
            plain["model"] = "plain".into();
            check(&plain, &kwargs(Value::Null));
        }
    }

    #[track_caller]
    fn check_begun(more: &Value, begun: Option<bool>) {
        let request = parse(more).unwrap();
        assert_eq!(request.reasoning.map(|tags| tags.begun), begun, "{more}");
    }

    #[test]
    fn a_reply_begins_in_its_reasoning_only_where_the_template_opens_it() {
        check_begun(&json!({}), Some(true));
        check_begun(&json!({ "thinking": { "type": "disabled" } }), Some(false));
        let begun = json!([
            { "role": "user", "content": "hi" }, { "role": "assistant", "content": "He" }
        ]);
        check_begun(&json!({ "messages": begun }), Some(false));
        check_begun(&json!({ "model": "plain" }), None);
        let format = json!({ "type": "json_schema", "schema": {} });
        check_begun(&json!({ "output_config": { "format": format } }), None);
    }

    #[test]
    fn a_last_message_of_the_assistant_is_continued() {
        let chat = |content: Value| {
            json!({ "messages": [
                { "role": "user", "content": "hi" }, { "role": "assistant", "content": content }
            ] })
        };
        let continues = |value: Value| json!({ "continue_final_message": value });
        check(&chat(json!("He")), &continues(json!(true)));
        check(&chat(json!(" ")), &continues(Value::Null));
        let call = json!([{ "type": "tool_use", "id": "t", "name": "f", "input": {} }]);
        check(&chat(call), &continues(Value::Null));
    }

    #[test]
    fn a_forced_call_is_held_by_a_grammar_and_others_are_left_to_the_model() {
        let of = |choice: Value| {
            let schema = json!({ "type": "object", "properties": { "a": {} } });
            json!({ "tools": [{ "name": "f", "input_schema": schema }], "tool_choice": choice })
        };
        for choice in [json!({ "type": "any" }), json!({ "type": "tool", "name": "f" })] {
            let input = parse(&of(choice)).unwrap().input;
            assert!(input.response_format.is_some() && input.tools.len() == 1);
        }
        let auto = parse(&of(json!({ "type": "auto" }))).unwrap().input;
        assert!(auto.response_format.is_none());
        assert_eq!(auto.tools[0]["function"]["parameters"]["properties"], json!({ "a": {} }));
        assert!(parse(&of(json!({ "type": "none" }))).unwrap().input.tools.is_empty());
    }

    #[test]
    fn a_count_reads_the_prompt_of_the_message_and_generates_nothing() {
        let (models, caller) = stage();
        let tool = json!({ "name": "f", "input_schema": { "type": "object" } });
        let more = json!({
            "max_tokens": null, "tools": [tool], "tool_choice": { "type": "any" },
            "thinking": { "type": "disabled" }
        });
        let counted = without_reply(
            MessagesRequest::parse_count(&body(&more), &models, &caller).unwrap().input,
        );
        assert_eq!((counted.max_tokens, counted.echo), (Some(0), true));
        assert!(counted.response_format.is_none());
        let mut message = more;
        message["max_tokens"] = 5.into();
        let message = parse(&message).unwrap().input;
        assert_eq!((counted.messages, counted.tools), (message.messages, message.tools));
        assert_eq!(counted.chat_template_kwargs, message.chat_template_kwargs);
        let refused = MessagesRequest::parse_count(&body(&json!({})), &models, &caller);
        assert_eq!(refused.unwrap_err().json()["error"]["param"], "max_tokens");
    }
}
