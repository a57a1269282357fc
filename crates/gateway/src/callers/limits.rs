//! Limits of callers, as errors, and estimates of what requests use.

use nsbridge_client::{ChatMessage, TextInput};

use crate::callers::access::{Caller, Limit, Refusal, Reservation};
use crate::text::error::{ApiError, Result};

/// Reserves tokens of the caller's limits.
///
/// # Errors
///
/// Returns an error with the time to wait, or one that no waiting cures.
pub(crate) fn reserve(caller: &Caller, tokens: u64) -> Result<Reservation> {
    caller.limiter.reserve(tokens).map_err(|refusal| match refusal {
        Refusal::Limited { what, retry_after } => {
            let of = match what {
                Limit::Requests => "requests per minute",
                Limit::Tokens => "tokens per minute",
                Limit::Concurrent => "concurrent requests",
            };
            let after = retry_after.as_secs().max(1);
            let message = format!("the limit of {of} of this API key is reached: wait {after} s");
            ApiError::limited(message, retry_after)
        }
        refusal @ Refusal::TooLarge { .. } => {
            ApiError::bad_request(refusal.to_string()).coded("tokens_exceed_limit")
        }
    })
}

/// Returns an estimate of a prompt's tokens: a quarter of its bytes.
pub(crate) fn prompt_tokens(input: &TextInput) -> u64 {
    (prompt_bytes(input) / 4 + input.prompt_token_ids.len() + 1) as u64
}

/// Returns the bytes of a prompt's texts.
pub(crate) fn prompt_bytes(input: &TextInput) -> usize {
    let messages: usize = input.messages.iter().map(ChatMessage::bytes).sum();
    messages + input.prompt.as_ref().map_or(0, String::len)
}
