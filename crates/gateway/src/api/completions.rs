//! `/v1/completions`: raw prompts, as text or as token ids.

mod reply;

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures_util::future::try_join_all;
use nsbridge_client::{ModelName, TextInput};
use nsbridge_gateway_access::Caller;
use nsbridge_gateway_replies::{Ask, RequestContext};
use serde::Deserialize;
use serde_json::Value;

use self::reply::{Stream, whole};
use crate::api::chat::request::{common, tokens};
use crate::api::sampling::{format, replies, sampling};
use crate::api::service_tier::Tier;
use crate::api::sse::{Events, stream};
use crate::catalog::{Model, Models, Task};
use crate::error::{ApiError, Result};
use crate::fields::{Bound, Fields};
use crate::state::App;

/// Maximum number of prompts of a request.
const MOST_PROMPTS: usize = 128;

/// Maximum number of bytes of the other fields in the requests of all prompts.
const MOST_COPIED: usize = 4 << 20;

/// Tokens of a reply without a limit, as in OpenAI's interface.
const DEFAULT_TOKENS: u32 = 16;

/// Parsed request.
#[derive(Debug)]
pub(crate) struct CompletionRequest {
    pub(crate) name: String,
    pub(crate) model: ModelName,
    /// One input for each prompt.
    pub(crate) inputs: Vec<TextInput>,
    pub(crate) seed: Option<u64>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) obfuscated: bool,
    pub(crate) logprobs: bool,
    pub(crate) replies: u32,
    /// Bytes of the copies that the prompts have of the other fields.
    copied: usize,
    tier: Tier,
    settings: Model,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct StreamOptions {
    include_usage: bool,
    include_obfuscation: bool,
    #[serde(rename = "continuous_usage_stats")]
    _continuous: bool,
}

impl CompletionRequest {
    /// Parses a request.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid field.
    pub(crate) fn parse(body: &[u8], models: &Models, caller: &Caller) -> Result<Self> {
        let mut fields = Fields::parse(body)?;
        let name = models.named(&mut fields)?;
        let (model, settings) = models.serving(&name, caller, Task::Generate)?;
        let prompts = prompts(&mut fields)?;
        let mut input = TextInput { adapter: settings.adapter.clone(), ..TextInput::default() };
        let seed = sampling(&mut fields, &mut input)?;
        input.max_tokens = Some(fields.take("max_tokens")?.unwrap_or(DEFAULT_TOKENS));
        let n = replies(&mut fields)?;
        input.n = (n > 1).then_some(n);
        input.echo = fields.take("echo")?.unwrap_or_default();
        let top = fields.take::<u32>("logprobs")?;
        input.logprobs = top.is_some();
        input.top_logprobs = top.filter(|top| *top > 0);
        input.prompt_logprobs = fields.take("prompt_logprobs")?;
        input.return_token_texts = top.is_some() || input.prompt_logprobs.is_some();
        input.response_format = format(&mut fields)?;
        let stream = fields.take("stream")?.unwrap_or_default();
        let options: StreamOptions = fields.take("stream_options")?.unwrap_or_default();
        let tier = Tier::take(&mut fields)?;
        common(&mut fields)?;
        fields.ignore(&["add_special_tokens", "truncate_prompt_tokens"]);
        let best_of = fields.take::<u32>("best_of")?;
        if best_of.is_some_and(|best| best != n) {
            return Err(ApiError::field("best_of", "`best_of` must be absent or equal to `n`"));
        }
        fields.only("suffix", &"".into())?;
        fields.finish()?;
        if stream && prompts.len() > 1 {
            return Err(ApiError::field("prompt", "a stream must have one prompt"));
        }
        let shared = serde_json::to_vec(&input).map_or(0, |text| text.len());
        let copied = (prompts.len() - 1).saturating_mul(shared);
        if copied > MOST_COPIED {
            let message = format!(
                "`prompt` has {} prompts, and each has a copy of the other fields: give fewer",
                prompts.len()
            );
            return Err(ApiError::field("prompt", message).coded("field_too_large"));
        }
        let each = |prompt| match prompt {
            Prompt::Text(text) => TextInput { prompt: Some(text), ..input.clone() },
            Prompt::Tokens(ids) => TextInput { prompt_token_ids: ids, ..input.clone() },
        };
        Ok(Self {
            name,
            model,
            inputs: prompts.into_iter().map(each).collect(),
            seed,
            stream,
            include_usage: options.include_usage,
            obfuscated: options.include_obfuscation,
            logprobs: top.is_some(),
            replies: n,
            copied,
            tier,
            settings,
        })
    }

    /// Drops the prompts, which a stream that lasts long keeps no second copy of.
    fn forget_prompts(&mut self) {
        for input in &mut self.inputs {
            (input.prompt, input.prompt_token_ids) = (None, Vec::new());
        }
    }

    fn ask(&self, input: &TextInput, caller: &Caller, context: &RequestContext) -> Ask {
        Ask {
            model: self.model.clone(),
            input: input.clone(),
            seed: self.seed,
            tokens: tokens(input, &self.settings),
            background: false,
            class: self.tier.class(caller),
            patience: context.patience.filter(|_| !self.stream),
        }
    }
}

enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

fn prompts(fields: &mut Fields<'_>) -> Result<Vec<Prompt>> {
    let refused = |message: String| ApiError::field("prompt", message);
    let prompts = fields.raw("prompt", Bound::TOKENS)?;
    let prompts = prompts.ok_or_else(|| refused("`prompt` is missing".to_owned()))?;
    let prompts = parsed(prompts.get()).map_err(|_| {
        refused("`prompt` must be a text, token ids, or a list of texts or of token ids".to_owned())
    })?;
    if !(1..=MOST_PROMPTS).contains(&prompts.len()) {
        return Err(refused(format!("`prompt` must have 1 to {MOST_PROMPTS} prompts")));
    }
    Ok(prompts)
}

/// Parses prompts by the kind of the first one, because a list of a million token ids must not be
/// tried as each kind.
fn parsed(json: &str) -> serde_json::Result<Vec<Prompt>> {
    let Some(list) = json.strip_prefix('[') else {
        return Ok(vec![Prompt::Text(serde_json::from_str(json)?)]);
    };
    Ok(match list.trim_start().chars().next() {
        Some('"') => {
            serde_json::from_str::<Vec<String>>(json)?.into_iter().map(Prompt::Text).collect()
        }
        Some('[') => {
            let lists = serde_json::from_str::<Vec<Vec<u32>>>(json)?;
            lists.into_iter().map(Prompt::Tokens).collect()
        }
        _ => vec![Prompt::Tokens(serde_json::from_str(json)?)],
    })
}

/// Completes prompts.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(context): Extension<RequestContext>,
    body: Bytes,
) -> Result<Response> {
    let mut request = CompletionRequest::parse(&body, &app.models, &caller)?;
    context.take(request.copied)?;
    if let ([input], true) = (request.inputs.as_slice(), request.stream) {
        let ask = request.ask(input, &caller, &context);
        let (log, reader) = app.replies.start("completion", ask, &caller, &context, &body).await?;
        drop(body);
        request.forget_prompts();
        let events = Events::default().obfuscated(request.obfuscated);
        return stream(Stream::new(request, &log), events, reader).await;
    }
    let mut running = Vec::new();
    for (index, input) in request.inputs.iter().enumerate() {
        let ask = request.ask(input, &caller, &context);
        let of = format!("completion {index}");
        running.push(app.replies.start(&of, ask, &caller, &context, &body).await?);
    }
    drop(body);
    request.forget_prompts();
    let logs: Vec<_> = running.iter().map(|(log, _)| log.clone()).collect();
    let replies = try_join_all(running.into_iter().map(|(_, reader)| reader.whole())).await?;
    let body: Value = whole(&request, &logs, &replies);
    Ok(Json(body).into_response())
}
