//! The input and output of text models, shared by handlers, clients and the gateway.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Seam;

/// What a text model is asked: a raw prompt or a chat, and how to sample.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TextInput {
    /// Text to go on from, as it is. Exactly one of `prompt` and `messages` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// A chat, put into the model's own template.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<ChatMessage>,
    /// The most tokens to make; the model's room is the limit if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// 0 takes the likeliest token each time; absent means the handler's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// Sample among the likeliest tokens that together hold this probability.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    /// Sample among this many likeliest tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    /// Divides (or multiplies, if negative) the logits of tokens that occurred before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f32>,
    /// Texts that end the reply; they are not part of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
}

impl fmt::Debug for TextInput {
    /// Leaves out what the user wrote.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextInput")
            .field("prompt_bytes", &self.prompt.as_ref().map(String::len))
            .field("messages", &self.messages.len())
            .field("max_tokens", &self.max_tokens)
            .finish_non_exhaustive()
    }
}

/// One turn of a chat.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChatMessage {
    /// `system`, `user` or `assistant`; the model's template decides what is allowed.
    pub role: String,
    /// What was said.
    pub content: String,
}

impl fmt::Debug for ChatMessage {
    /// Leaves out what was said.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatMessage")
            .field("role", &self.role)
            .field("content_bytes", &self.content.len())
            .finish()
    }
}

/// One token of a text reply.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct TextPiece {
    /// The token's id in the model's vocabulary.
    pub token: u32,
    /// The text that became whole with this token; empty in the middle of a character.
    pub text: String,
    /// The token's log-probability, where the request asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprob: Option<f32>,
}

impl fmt::Debug for TextPiece {
    /// Leaves out the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextPiece").field("text_bytes", &self.text.len()).finish_non_exhaustive()
    }
}

impl Seam for TextPiece {
    /// Token id and text: a log-probability may differ between machines of one fingerprint.
    fn seam(piece: &[u8]) -> Cow<'_, [u8]> {
        match serde_json::from_slice::<Self>(piece) {
            Ok(piece) => {
                let mut seam = piece.token.to_be_bytes().to_vec();
                seam.extend(piece.text.into_bytes());
                Cow::Owned(seam)
            }
            Err(_) => Cow::Borrowed(piece),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Seam, TextInput, TextPiece};

    #[test]
    fn seams_ignore_log_probabilities_but_not_text() {
        let seam = |json: &str| TextPiece::seam(json.as_bytes()).into_owned();
        let plain = seam(r#"{"token":1,"text":"a"}"#);
        assert_eq!(plain, seam(r#"{"token":1,"text":"a","logprob":-0.5}"#));
        assert_ne!(plain, seam(r#"{"token":1,"text":"b"}"#));
        assert_ne!(plain, seam(r#"{"token":2,"text":"a"}"#));
    }

    #[test]
    fn debug_shows_no_text() {
        let input = TextInput { prompt: Some("canary".into()), ..TextInput::default() };
        assert!(!format!("{input:?}").contains("canary"));
    }
}
