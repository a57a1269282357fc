//! Fields of a request: which of them a kind of server can honor.

use nsbridge_handler::{Error, Result, TextInput};

use crate::options::Flavor;
use crate::server::Server;
use crate::variables::refuse_own_variables;

/// Maximum number of replies to a prompt.
const MOST_REPLIES: u32 = 128;

/// Maximum number of most likely tokens.
const MOST_TOP: u32 = 20;

/// Maximum size of a stop sequence in bytes.
const MOST_STOP_BYTES: usize = 256;

/// Returns the error of a field that such a server cannot honor.
pub(crate) fn not_by(field: &str, flavor: Flavor) -> Error {
    Error::bad_input(format!("`{field}` cannot be used with {flavor}, which serves this model"))
}

/// Returns the number of replies.
pub(crate) fn replies(input: &TextInput) -> usize {
    input.n.unwrap_or(1) as usize
}

/// Returns true if the reply has pieces of the prompt.
pub(crate) fn has_prompt_pieces(input: &TextInput) -> bool {
    input.echo || input.prompt_logprobs.is_some()
}

/// Refuses a request that such a server cannot answer.
///
/// # Errors
///
/// Returns an error that names the field.
pub(crate) fn check(input: &TextInput, server: &Server) -> Result<()> {
    check_fields(input, server.flavor)?;
    refuse_images(input, server.takes_images)?;
    match &input.adapter {
        Some(name) if !server.adapters.contains(name) => {
            Err(unknown_adapter(name, &server.adapters))
        }
        _ => Ok(()),
    }
}

/// Refuses images if nothing says that the model takes them: a server may drop them.
fn refuse_images(input: &TextInput, taken: bool) -> Result<()> {
    match has_images(input) && !taken {
        true => Err(Error::bad_input(
            "`image_url` cannot be used: this worker's model takes no images, or its [handler] lacks \
             takes_images",
        )),
        false => Ok(()),
    }
}

fn unknown_adapter(name: &str, known: &[String]) -> Error {
    let name: String = name.chars().take(100).collect();
    Error::bad_input(match known.is_empty() {
        true => format!("`adapter` is `{name}`, and this worker has no adapters"),
        false => format!("`adapter` is `{name}`: this worker has `{}`", known.join("`, `")),
    })
}

/// Refuses a request with a field that has no effect there, or that such a server cannot honor.
///
/// # Errors
///
/// Returns an error that names the field.
fn check_fields(input: &TextInput, flavor: Flavor) -> Result<()> {
    refuse_nonsense(input)?;
    let refused = match flavor {
        Flavor::Vllm => beyond_vllm(input),
        Flavor::LlamaServer => beyond_llama(input),
        Flavor::Sglang => beyond_sglang(input),
        Flavor::Generic => beyond_openai(input),
    };
    refused.map_or(Ok(()), |field| Err(not_by(field, flavor)))
}

fn refuse_nonsense(input: &TextInput) -> Result<()> {
    let prompts =
        [input.prompt.is_some(), !input.prompt_token_ids.is_empty(), !input.messages.is_empty()];
    let several = has_prompt_pieces(input) && input.n.is_some_and(|n| n > 1);
    let fits = |stop: &String| (1..=MOST_STOP_BYTES).contains(&stop.len());
    let scored = input.logprobs || has_prompt_pieces(input);
    let top = input.top_logprobs.max(input.prompt_logprobs).unwrap_or_default();
    let most = input.max_tokens;
    let both = input.continue_final_message && input.add_generation_prompt == Some(true);
    let least = input.min_tokens.unwrap_or_default();
    for (wrong, why) in [
        (
            prompts.iter().filter(|given| **given).count() != 1,
            "exactly one of `prompt`, `prompt_token_ids` and `messages` must be given".to_owned(),
        ),
        (
            !(1..=MOST_REPLIES).contains(&input.n.unwrap_or(1)),
            format!("`n` must be from 1 to {MOST_REPLIES}"),
        ),
        (several, "`n` must be 1 with `echo` or `prompt_logprobs`".to_owned()),
        (
            !input.stop.iter().all(fits),
            format!("`stop` must be texts of 1 to {MOST_STOP_BYTES} bytes each"),
        ),
        (
            input.top_logprobs.is_some() && !input.logprobs,
            "`top_logprobs` needs `logprobs` to be true".to_owned(),
        ),
        (
            top > MOST_TOP,
            format!("`top_logprobs` and `prompt_logprobs` must be at most {MOST_TOP}"),
        ),
        (
            input.return_token_texts && !scored,
            "`return_token_texts` needs `logprobs`, `prompt_logprobs` or `echo`".to_owned(),
        ),
        (
            most == Some(0) && !has_prompt_pieces(input),
            "`max_tokens` must be at least 1, or 0 with `echo` or `prompt_logprobs`".to_owned(),
        ),
        (
            most.is_some_and(|most| least > most),
            "`min_tokens` must be at most `max_tokens`".to_owned(),
        ),
        (both, "`continue_final_message` needs `add_generation_prompt` to be false".to_owned()),
    ] {
        if wrong {
            return Err(Error::bad_input(why));
        }
    }
    refuse_without_chat(input)
}

/// Refuses fields of a chat template beside a prompt that has none.
fn refuse_without_chat(input: &TextInput) -> Result<()> {
    let given = first(&[
        ("tools", !input.tools.is_empty()),
        ("chat_template_kwargs", !input.chat_template_kwargs.is_empty()),
        ("reasoning_effort", input.reasoning_effort.is_some()),
        ("add_generation_prompt", input.add_generation_prompt.is_some()),
        ("continue_final_message", input.continue_final_message),
    ]);
    match given {
        Some(field) if input.messages.is_empty() => {
            Err(Error::bad_input(format!("`{field}` needs `messages`")))
        }
        _ => refuse_own_variables(input),
    }
}

fn first(fields: &[(&'static str, bool)]) -> Option<&'static str> {
    fields.iter().find(|(_, given)| *given).map(|(field, _)| *field)
}

fn beyond_vllm(input: &TextInput) -> Option<&'static str> {
    first(&[
        ("bad_token_sequences", !input.bad_token_sequences.is_empty()),
        // A prompt of token ids has none.
        ("image_url", has_images(input)),
    ])
}

fn has_images(input: &TextInput) -> bool {
    input.messages.iter().any(|message| message.content.has_images())
}

fn has_priority(input: &TextInput) -> bool {
    input.priority.is_some_and(|priority| priority != 0)
}

fn beyond_llama(input: &TextInput) -> Option<&'static str> {
    let penalty = |value: Option<f32>| value.is_some_and(|value| value != 0.0);
    // A last message of the model is continued in any case.
    let last = input.messages.last().is_some_and(|message| message.role == "assistant");
    first(&[
        ("bad_token_sequences", !input.bad_token_sequences.is_empty()),
        ("image_url", has_images(input)),
        // Its penalties count the tokens of the prompt too.
        ("frequency_penalty", penalty(input.frequency_penalty)),
        ("presence_penalty", penalty(input.presence_penalty)),
        ("min_tokens", input.min_tokens.is_some_and(|least| least > 0)),
        ("skip_special_tokens", input.skip_special_tokens == Some(false)),
        ("echo", input.echo),
        ("prompt_logprobs", input.prompt_logprobs.is_some()),
        ("priority", has_priority(input)),
        ("continue_final_message", input.continue_final_message && !last),
        (
            "messages without continue_final_message after an assistant",
            last && !input.continue_final_message,
        ),
    ])
}

/// Fields that need the ids of a reply's tokens, and `priority`.
fn only_with_tokens(input: &TextInput) -> Option<&'static str> {
    first(&[
        ("bad_token_sequences", !input.bad_token_sequences.is_empty()),
        ("logprobs", input.logprobs),
        ("echo", input.echo),
        ("prompt_logprobs", input.prompt_logprobs.is_some()),
        ("priority", has_priority(input)),
    ])
}

fn beyond_sglang(input: &TextInput) -> Option<&'static str> {
    // Without a maximum, a completion ends after 16 tokens there.
    let open = input.max_tokens.is_none() && input.messages.is_empty();
    let fields = [
        ("prompt without max_tokens", open),
        (
            "add_generation_prompt",
            input.add_generation_prompt == Some(false) && !input.continue_final_message,
        ),
    ];
    only_with_tokens(input).or_else(|| first(&fields))
}

fn beyond_openai(input: &TextInput) -> Option<&'static str> {
    let open = input.max_tokens.is_none() && input.messages.is_empty();
    let fields = [
        ("prompt without max_tokens", open),
        ("prompt_token_ids", !input.prompt_token_ids.is_empty()),
        ("tools", !input.tools.is_empty()),
        ("chat_template_kwargs", !input.chat_template_kwargs.is_empty()),
        ("add_generation_prompt", input.add_generation_prompt.is_some()),
        ("continue_final_message", input.continue_final_message),
        ("top_k", input.top_k.is_some_and(|top| top > 0)),
        ("min_p", input.min_p.is_some_and(|least| least > 0.0)),
        ("repetition_penalty", input.repetition_penalty.is_some_and(|by| by != 1.0)),
        ("bad_token_ids", !input.bad_token_ids.is_empty()),
        ("stop_token_ids", !input.stop_token_ids.is_empty()),
        ("min_tokens", input.min_tokens.is_some_and(|least| least > 0)),
        ("ignore_eos", input.ignore_eos),
        ("skip_special_tokens", input.skip_special_tokens == Some(false)),
    ];
    only_with_tokens(input).or_else(|| first(&fields))
}

#[cfg(test)]
mod tests;
