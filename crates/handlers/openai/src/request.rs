//! Requests to the server: the fields of an input by the names that each kind of server gives them.

use nsbridge_handler::{Result, TextInput};
use serde_json::{Map, Value, json};

use crate::format::add_format;
use crate::options::Flavor;
use crate::prompt::chat;
use crate::server::Server;

/// Bias that bans a token, by OpenAI's rules.
const BAN: f32 = -100.0;

/// Request for one reply.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) path: &'static str,
    pub(crate) body: Value,
}

/// Facts of a request beside the input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    /// Tokens before the reply's next one, if the server takes tokens.
    pub(crate) tokens: Option<&'a [u32]>,
    /// Number of these tokens that belong to the reply.
    pub(crate) known: usize,
    pub(crate) seed: u64,
    /// Scope of caches.
    pub(crate) scope: &'a str,
}

/// Body of a request in the making.
struct Body(Map<String, Value>);

impl Body {
    fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.to_owned(), value.into());
    }

    fn set_some(&mut self, name: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.set(name, value);
        }
    }
}

impl Request {
    /// Creates the request for a reply. The fields of the input have passed `fields::check`.
    ///
    /// # Errors
    ///
    /// Returns an error if such a server does not have the format.
    pub(crate) fn new(server: &Server, input: &TextInput, wanted: &Wanted<'_>) -> Result<Self> {
        let mut body = Body(Map::new());
        add_sampling(server, input, wanted, &mut body);
        if let Some(format) = &input.response_format {
            add_format(format, server.flavor, &mut body.0)?;
        }
        let path = match server.flavor {
            Flavor::LlamaServer => "/completion",
            _ if wanted.tokens.is_none() && !input.messages.is_empty() => "/v1/chat/completions",
            _ => "/v1/completions",
        };
        add_prompt(server, input, wanted, &mut body);
        Ok(Self { path, body: body.0.into() })
    }
}

/// Returns the maximum number of tokens that the reply may still get.
fn room(server: &Server, input: &TextInput, wanted: &Wanted<'_>) -> Option<usize> {
    let asked = input.max_tokens.map(|most| (most as usize).saturating_sub(wanted.known));
    let left = server.context.zip(wanted.tokens);
    let left = left.map(|(context, tokens)| context.saturating_sub(tokens.len()));
    asked.into_iter().chain(left).min()
}

fn add_prompt(server: &Server, input: &TextInput, wanted: &Wanted<'_>, body: &mut Body) {
    if let Some(tokens) = wanted.tokens {
        return body.set("prompt", json!(tokens));
    }
    if let Some(prompt) = &input.prompt {
        return body.set("prompt", prompt.as_str());
    }
    if input.messages.is_empty() {
        return body.set("prompt", json!(input.prompt_token_ids));
    }
    if server.flavor == Flavor::Sglang {
        body.set("separate_reasoning", false);
        let mut fields = chat(input);
        fields.remove("add_generation_prompt");
        body.0.extend(fields);
    } else {
        body.set("messages", json!(input.messages));
        body.set_some("reasoning_effort", input.reasoning_effort.as_deref());
    }
}

fn add_sampling(server: &Server, input: &TextInput, wanted: &Wanted<'_>, body: &mut Body) {
    body.set("stream", true);
    body.set_some("temperature", input.temperature);
    body.set_some("top_p", input.top_p);
    body.set_some("top_k", input.top_k);
    body.set_some("min_p", input.min_p);
    if input.ignore_eos {
        body.set("ignore_eos", true);
    }
    if server.flavor == Flavor::LlamaServer {
        return add_llama(server, input, wanted, body);
    }
    body.set("model", server.model_of(input));
    body.set("stream_options", json!({ "include_usage": true }));
    body.set_some("max_tokens", room(server, input, wanted));
    // The servers read a signed number.
    body.set("seed", wanted.seed & i64::MAX as u64);
    body.set_some("repetition_penalty", input.repetition_penalty);
    body.set_some("frequency_penalty", input.frequency_penalty);
    body.set_some("presence_penalty", input.presence_penalty);
    let banned = input.bad_token_ids.iter().map(|&token| (token, BAN));
    let biases = input.logit_bias.iter().map(|(&token, &bias)| (token, bias)).chain(banned);
    let biases: Map<String, Value> =
        biases.map(|(token, bias)| (token.to_string(), json!(bias))).collect();
    if !biases.is_empty() {
        body.set("logit_bias", biases);
    }
    if !input.stop_token_ids.is_empty() {
        body.set("stop_token_ids", json!(input.stop_token_ids));
    }
    let least = input.min_tokens.map(|least| (least as usize).saturating_sub(wanted.known));
    body.set_some("min_tokens", least.filter(|least| *least > 0));
    if input.skip_special_tokens == Some(false) {
        body.set("skip_special_tokens", false);
    }
    if matches!(server.flavor, Flavor::Vllm | Flavor::Sglang) {
        body.set("cache_salt", wanted.scope);
    }
    match server.flavor {
        Flavor::Vllm => {
            body.set("return_token_ids", true);
            body.set_some("priority", input.priority);
            if input.logprobs {
                body.set("logprobs", input.top_logprobs.unwrap_or(0));
                body.set("return_tokens_as_token_ids", true);
            }
        }
        // Other servers find stop sequences themselves: only they know how many tokens a text has.
        _ if !input.stop.is_empty() => body.set("stop", json!(input.stop)),
        _ => {}
    }
}

fn add_llama(server: &Server, input: &TextInput, wanted: &Wanted<'_>, body: &mut Body) {
    body.set("return_tokens", true);
    body.set("cache_prompt", server.share_prefix_cache);
    let most = room(server, input, wanted);
    body.set("n_predict", most.map_or(json!(-1), |most| json!(most)));
    // Its largest seed stands for a random one.
    body.set("seed", wanted.seed & u64::from(u32::MAX >> 1));
    if let Some(by) = input.repetition_penalty {
        body.set("repeat_penalty", by);
        // All tokens of prompt and reply count.
        body.set_some("repeat_last_n", server.context);
    }
    let banned = input.bad_token_ids.iter().map(|token| json!([token, false]));
    let biases = input.logit_bias.iter().map(|(token, bias)| json!([token, bias]));
    let biases: Vec<Value> = biases.chain(banned).collect();
    if !biases.is_empty() {
        body.set("logit_bias", biases);
    }
    if input.logprobs {
        // Without a most likely token, the chosen one has no log-probability either.
        body.set("n_probs", input.top_logprobs.unwrap_or(0).max(1));
    }
}

#[cfg(test)]
mod tests;
