//! Estimates of what a request takes of its caller's limits.

use nsbridge_client::{ChatMessage, TextInput};

/// Returns an estimate of a prompt's tokens: a quarter of its bytes.
pub fn prompt_tokens(input: &TextInput) -> u64 {
    (prompt_bytes(input) / 4 + input.prompt_token_ids.len() + 1) as u64
}

/// Returns the bytes of a prompt's texts.
pub(crate) fn prompt_bytes(input: &TextInput) -> usize {
    let messages: usize = input.messages.iter().map(ChatMessage::bytes).sum();
    messages + input.prompt.as_ref().map_or(0, String::len)
}
