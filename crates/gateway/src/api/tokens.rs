//! `/tokenize` and `/detokenize`, in vLLM's shapes. A worker of the model has the tokenizer.

use std::fmt;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::{Extension, Json};
use nsbridge_client::{ModelName, Request, TextInput, TextPiece};
use nsbridge_gateway_access::Caller;
use nsbridge_gateway_replies::{Observer as _, RequestContext};
use nsbridge_reply_text::tools::{Shape, for_template, parse_tools};
use serde_json::{Map, Value, json};

use crate::api::chat::messages::messages;
use crate::api::chat::request::tokens;
use crate::catalog::{Model, Task};
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::state::App;

/// Share of a prompt's tokens that a tokenization costs: nothing is generated or scored.
const SHARE: u64 = 4;

/// Tokens that a count reserves of its caller's limits, since it generates nothing.
pub(crate) const COUNT_TOKENS: u64 = 1;

/// Model of a request, with its settings.
struct Chosen {
    name: ModelName,
    settings: Model,
}

impl fmt::Debug for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chosen").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Chosen {
    fn of(fields: &mut Fields<'_>, app: &App, caller: &Caller) -> Result<Self> {
        let asked = app.models.named(fields)?;
        let (name, settings) = app.models.serving(&asked, caller, Task::Generate)?;
        Ok(Self { name, settings })
    }
}

/// Returns the tokens of a text or of a chat.
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(context): Extension<RequestContext>,
    body: Bytes,
) -> Result<Json<Value>> {
    let mut fields = Fields::parse(&body)?;
    let model = Chosen::of(&mut fields, &app, &caller)?;
    let mut input = prompt(&mut fields)?;
    model.settings.settle(&mut input)?;
    let with_texts = fields.take("return_token_strs")?.unwrap_or(false);
    fields.finish()?;
    let input = TextInput { return_token_texts: with_texts, ..input };
    let pieces = pieces(&app, &caller, &context, &model, input).await?;
    let tokens: Vec<u32> = pieces.iter().map(|piece| piece.token).collect();
    let text = |piece: &TextPiece| {
        let bytes = piece.token_text.as_ref().map(|text| text.as_bytes()).unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    };
    let texts = with_texts.then(|| pieces.iter().map(text).collect::<Vec<_>>());
    Ok(Json(json!({
        "count": tokens.len(), "max_model_len": model.settings.context, "tokens": tokens,
        "token_strs": texts
    })))
}

/// Reads what is to be tokenized.
///
/// # Errors
///
/// Returns an error that names the first invalid field.
fn prompt(fields: &mut Fields<'_>) -> Result<TextInput> {
    let special: Option<bool> = fields.take("add_special_tokens")?;
    let prompt: Option<String> = fields.take("prompt")?;
    let chat: Option<Vec<Value>> = fields.take("messages")?;
    let (input, served) = match (prompt, chat) {
        (Some(prompt), None) => (TextInput::prompt(prompt), true),
        (None, Some(chat)) => (self::chat(fields, chat)?, false),
        _ => {
            let message = "the request must have exactly one of `prompt` and `messages`";
            return Err(ApiError::field("prompt", message));
        }
    };
    // A prompt gets the special tokens that its model adds, a chat those of its template.
    if special.is_some_and(|special| special != served) {
        let message =
            format!("`add_special_tokens` is not supported: it must be absent or {served}");
        return Err(ApiError::field("add_special_tokens", message).coded("unsupported_parameter"));
    }
    Ok(input)
}

fn chat(fields: &mut Fields<'_>, chat: Vec<Value>) -> Result<TextInput> {
    let tools = parse_tools(Shape::Chat, fields.value("tools")?.as_ref())?;
    let variables: Option<Map<String, Value>> = fields.take("chat_template_kwargs")?;
    let mut input = TextInput {
        messages: messages(chat)?,
        add_generation_prompt: fields.take("add_generation_prompt")?,
        continue_final_message: fields.take("continue_final_message")?.unwrap_or_default(),
        chat_template_kwargs: variables.unwrap_or_default(),
        ..TextInput::default()
    };
    if let Value::Array(tools) = for_template(&tools) {
        input.tools = tools;
    }
    Ok(input)
}

/// Returns the text of tokens. Special tokens have none.
pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(context): Extension<RequestContext>,
    body: Bytes,
) -> Result<Json<Value>> {
    let mut fields = Fields::parse(&body)?;
    let model = Chosen::of(&mut fields, &app, &caller)?;
    let ids: Vec<u32> = fields.need("tokens")?;
    fields.finish()?;
    if ids.is_empty() {
        return Ok(Json(json!({ "prompt": "" })));
    }
    let pieces = pieces(&app, &caller, &context, &model, TextInput::token_ids(ids)).await?;
    let text: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
    Ok(Json(json!({ "prompt": text })))
}

/// Returns the pieces of a prompt, one for each of its tokens, for a share of its cost.
async fn pieces(
    app: &App,
    caller: &Caller,
    context: &RequestContext,
    model: &Chosen,
    input: TextInput,
) -> Result<Vec<TextPiece>> {
    let input = without_reply(input);
    let cost = tokens(&input, &model.settings) / SHARE + 1;
    let (pieces, _) = read_prompt(app, caller, context, &model.name, input, cost).await?;
    Ok(pieces)
}

/// Returns the input of which a worker reads the prompt and generates nothing.
pub(crate) fn without_reply(input: TextInput) -> TextInput {
    TextInput { echo: true, max_tokens: Some(0), min_tokens: None, response_format: None, ..input }
}

/// Returns the pieces of a prompt and their number of tokens, at this cost of the caller's limits.
/// The request has no kept reply: nothing of it is stored or joined.
pub(crate) async fn read_prompt(
    app: &App,
    caller: &Caller,
    context: &RequestContext,
    model: &ModelName,
    input: TextInput,
    cost: u64,
) -> Result<(Vec<TextPiece>, u64)> {
    let reservation = caller.limiter.reserve(cost)?;
    app.metrics.reserved(cost);
    let mut request = Request::new(model.clone(), caller.tenant.clone());
    request.trace = context.trace;
    let request = request.priority(caller.priority);
    let request = request.input(input).timeout(app.settings.timeout);
    let reply = app.client.submit::<TextPiece>(request).await?;
    context.submitted();
    let (pieces, summary) = app.whole(reply, model, context.patience).await?;
    reservation.settle(cost);
    app.metrics.settled(cost);
    let pieces = pieces.into_iter().filter(|piece| piece.prompt).collect();
    Ok((pieces, summary.usage.input_tokens))
}
