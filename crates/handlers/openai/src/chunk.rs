//! Parts of a reply, as each kind of server sends them.

use nsbridge_handler::{Error, FinishReason, Result, TokenLogprob, TokenText};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::answer::reported;
use crate::options::Flavor;

/// Part of a reply.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    /// Tokens, if the server tells them.
    pub(crate) tokens: Vec<Token>,
    /// Text that belongs to these tokens, or to none that is known.
    pub(crate) text: String,
    pub(crate) finish: Option<FinishReason>,
    pub(crate) counts: Counts,
}

/// Token of a reply or a prompt with its log-probabilities.
#[derive(Clone, Debug, Default)]
pub(crate) struct Token {
    /// Id. `None` if the server counts the token and does not tell it.
    pub(crate) id: Option<u32>,
    pub(crate) logprob: Option<f32>,
    /// Text of the token by itself, if the server tells it with the log-probability.
    pub(crate) text: Option<TokenText>,
    pub(crate) top: Vec<TokenLogprob>,
}

/// Numbers of tokens that the server has told.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) input: Option<u64>,
    pub(crate) output: Option<u64>,
    pub(crate) cached: Option<u64>,
}

impl Counts {
    /// Takes over what another part tells.
    pub(crate) fn update(&mut self, later: Self) {
        self.input = later.input.or(self.input);
        self.output = later.output.or(self.output);
        self.cached = later.cached.or(self.cached);
    }
}

/// Decodes an event. `None` if it is the end of the stream.
///
/// # Errors
///
/// Returns the failure that the server reports, or an error if the event is none of such a server.
pub(crate) fn decode(data: &[u8], flavor: Flavor, root: &str) -> Result<Option<Chunk>> {
    if data == b"[DONE]" {
        return Ok(None);
    }
    let value: Value = serde_json::from_slice(data).map_err(|_| not_read(root))?;
    if let Some(failure) = value.get("error").filter(|failure| !failure.is_null()) {
        return Err(reported(failure, root));
    }
    match flavor {
        Flavor::LlamaServer => serde_json::from_value(value).map(llama).map_err(|_| not_read(root)),
        _ => openai(serde_json::from_value(value).map_err(|_| not_read(root))?, root),
    }
    .map(Some)
}

/// Returns the error of a reply that is none of such a server.
pub(crate) fn not_read(root: &str) -> Error {
    Error::retry(format!("the server at {root} sends a reply that cannot be read"))
}

/// Event of OpenAI's API.
#[derive(Deserialize)]
struct OpenAiEvent {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<OpenAiUsage>,
}

#[derive(Deserialize)]
struct Choice {
    text: Option<String>,
    delta: Option<Delta>,
    token_ids: Option<Vec<u32>>,
    logprobs: Option<Logprobs>,
    finish_reason: Option<String>,
    /// Cause of the end of the reply, in SGLang: a token, or a stop sequence.
    matched_stop: Option<Value>,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    refusal: Option<String>,
    tool_calls: Option<Vec<Value>>,
}

/// Log-probabilities of completions, with tokens as `token_id:7`.
#[derive(Deserialize)]
pub(crate) struct Logprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    #[serde(default)]
    top_logprobs: Option<Vec<Option<Map<String, Value>>>>,
}

#[derive(Deserialize)]
struct OpenAiUsage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

fn openai(event: OpenAiEvent, root: &str) -> Result<Chunk> {
    let mut chunk = Chunk::default();
    if let Some(usage) = event.usage {
        chunk.counts = Counts {
            input: usage.prompt_tokens,
            output: usage.completion_tokens,
            cached: usage.prompt_tokens_details.and_then(|details| details.cached_tokens),
        };
    }
    let Some(choice) = event.choices.into_iter().next() else { return Ok(chunk) };
    chunk.text = match choice.delta {
        Some(delta) => content(delta)?,
        None => choice.text.unwrap_or_default(),
    };
    let ids = choice.token_ids.unwrap_or_default();
    chunk.tokens = ids.iter().map(|&id| Token { id: Some(id), ..Token::default() }).collect();
    if let Some(logprobs) = choice.logprobs {
        let scored = logprobs.tokens().ok_or_else(|| not_read(root))?;
        // With `echo`, the tokens of the prompt come first.
        let from = scored.len().saturating_sub(ids.len());
        chunk.tokens = scored.into_iter().skip(from).collect();
    }
    let by_text = matches!(choice.matched_stop, Some(Value::String(_)));
    chunk.finish = choice.finish_reason.map(|reason| finish(&reason, by_text, root)).transpose()?;
    Ok(chunk)
}

/// Returns the text of a part of a chat.
fn content(delta: Delta) -> Result<String> {
    let some = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    let separate = |what: &str| {
        Err(Error::bad_input(format!(
            "the server takes {what} out of the text of its replies: start it without a parser for it"
        )))
    };
    if some(&delta.reasoning_content) || some(&delta.reasoning) {
        return separate("the reasoning");
    }
    if delta.tool_calls.is_some_and(|calls| !calls.is_empty()) {
        return separate("calls of tools");
    }
    Ok(delta.content.unwrap_or_default() + &delta.refusal.unwrap_or_default())
}

fn finish(reason: &str, by_text: bool, root: &str) -> Result<FinishReason> {
    Ok(match reason {
        "stop" | "eos" | "eos_token" if !by_text => FinishReason::Stop,
        "stop" | "word" | "stop_sequence" => FinishReason::StopText,
        "length" | "limit" => FinishReason::Length,
        "content_filter" => FinishReason::ContentFilter,
        "abort" | "error" => {
            return Err(Error::retry(format!("the server at {root} has aborted the request")));
        }
        _ => FinishReason::Other,
    })
}

impl Logprobs {
    /// Returns the tokens. `None` if they are not named by their ids.
    pub(crate) fn tokens(&self) -> Option<Vec<Token>> {
        let numbers = self.tokens.iter().zip(&self.token_logprobs).enumerate();
        let tokens = numbers.map(|(at, (token, &logprob))| {
            let top = self.top_logprobs.as_ref().and_then(|top| top.get(at)?.as_ref());
            let top = top.map_or(Some(Vec::new()), top_of)?;
            Some(Token { id: Some(id(token)?), logprob, text: None, top })
        });
        tokens.collect()
    }
}

/// Log-probability of a token that a format forbids. vLLM fills its lists up with such tokens.
const FORBIDDEN_LOGPROB: f32 = -9999.0;

/// Returns the most likely tokens in descending order; of equals, the smaller id comes first. Tokens
/// that a format forbids are left out.
fn top_of(entries: &Map<String, Value>) -> Option<Vec<TokenLogprob>> {
    let each = |(token, logprob): (&String, &Value)| {
        Some(TokenLogprob::new(id(token)?, logprob.as_f64()? as f32))
    };
    let mut top = entries.iter().map(each).collect::<Option<Vec<_>>>()?;
    top.retain(|one| one.logprob > FORBIDDEN_LOGPROB);
    top.sort_by(|a, b| b.logprob.total_cmp(&a.logprob).then(a.token.cmp(&b.token)));
    Some(top)
}

fn id(token: &str) -> Option<u32> {
    token.strip_prefix("token_id:")?.parse().ok()
}

/// Event of llama-server's own API.
#[derive(Deserialize)]
struct LlamaEvent {
    #[serde(default)]
    content: String,
    #[serde(default)]
    tokens: Vec<u32>,
    #[serde(default)]
    stop: bool,
    stop_type: Option<String>,
    tokens_predicted: Option<u64>,
    tokens_evaluated: Option<u64>,
    timings: Option<Timings>,
    #[serde(default)]
    completion_probabilities: Vec<Probability>,
}

#[derive(Deserialize)]
struct Timings {
    cache_n: Option<u64>,
}

#[derive(Deserialize)]
struct Probability {
    id: u32,
    logprob: f32,
    #[serde(default)]
    bytes: Vec<u8>,
    #[serde(default)]
    top_logprobs: Vec<Self>,
}

fn llama(event: LlamaEvent) -> Chunk {
    let finish = event.stop.then_some(match event.stop_type.as_deref() {
        Some("limit") => FinishReason::Length,
        Some("word") => FinishReason::StopText,
        _ => FinishReason::Stop,
    });
    let counts = Counts {
        input: event.tokens_evaluated,
        output: event.tokens_predicted,
        cached: event.timings.and_then(|timings| timings.cache_n),
    };
    let mut scores = event.completion_probabilities.into_iter();
    let token = |id| {
        let score = scores.next().filter(|score| score.id == id);
        score.map_or_else(|| Token { id: Some(id), ..Token::default() }, |score| scored(&score))
    };
    let tokens = event.tokens.into_iter().map(token).collect();
    Chunk { tokens, text: event.content, finish, counts }
}

fn scored(score: &Probability) -> Token {
    let one = |score: &Probability| {
        let mut one = TokenLogprob::new(score.id, score.logprob);
        one.text = Some(score.bytes.as_slice().into());
        one
    };
    Token {
        id: Some(score.id),
        logprob: Some(score.logprob),
        text: Some(score.bytes.as_slice().into()),
        top: score.top_logprobs.iter().map(one).collect(),
    }
}

#[cfg(test)]
mod tests;
