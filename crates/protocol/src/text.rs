//! The input and output of text models, shared by handlers, clients and the gateway.

mod bounded;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{FinishReason, ResponseFormat, Seam};

/// What a text model is asked: a raw prompt or a chat, and how to sample.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TextInput {
    /// Text to go on from, as it is. Exactly one of `prompt` and `messages` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// A chat, put into the model's own template.
    #[serde(deserialize_with = "bounded::messages", skip_serializing_if = "Vec::is_empty")]
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
    /// Sample among tokens at least this probable, as a share of the likeliest one's probability.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f32>,
    /// Divides (or multiplies, if negative) the logits of tokens that occurred in prompt or reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f32>,
    /// Subtracted from a token's logit for each time it occurred in the reply; from -2 to 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency_penalty: Option<f32>,
    /// Subtracted once from the logits of tokens that occurred in the reply; from -2 to 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<f32>,
    /// Added to the logits of these tokens, by id; from -100 to 100.
    #[serde(deserialize_with = "bounded::biases", skip_serializing_if = "BTreeMap::is_empty")]
    pub logit_bias: BTreeMap<u32, f32>,
    /// Tokens that are never chosen, by id.
    #[serde(deserialize_with = "bounded::banned", skip_serializing_if = "Vec::is_empty")]
    pub bad_token_ids: Vec<u32>,
    /// Sequences of tokens that never come about: the last token of one is not chosen where prompt
    /// and reply so far end in those before it. At most 1024, each of 1 to 64 tokens.
    #[serde(deserialize_with = "bounded::sequences", skip_serializing_if = "Vec::is_empty")]
    pub bad_token_sequences: Vec<Vec<u32>>,
    /// Texts that end the reply; they are not part of it.
    #[serde(deserialize_with = "bounded::stops", skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// Tokens that end the reply as the model's own end token does, by id.
    #[serde(deserialize_with = "bounded::ends", skip_serializing_if = "Vec::is_empty")]
    pub stop_token_ids: Vec<u32>,
    /// Before the reply has so many tokens, those that would end it are not chosen; a text of
    /// `stop` ends it all the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_tokens: Option<u32>,
    /// Go on after the model's own end token; the other ends hold.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ignore_eos: bool,
    /// Tell each token's log-probability, by the model's own distribution before any of the above.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub logprobs: bool,
    /// With `logprobs`: tell those of so many likeliest tokens too, at most 20.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_logprobs: Option<u32>,
    /// What the whole reply is to be; absent means any text.
    #[serde(deserialize_with = "bounded::format", skip_serializing_if = "Option::is_none")]
    pub response_format: Option<ResponseFormat>,
    /// How many replies to make of the same prompt; 1 if absent. They differ by the seed alone: the
    /// one with `index` 3 is what the seed plus 3 gives on its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u32>,
    /// Where a worker has more requests than it can run at once, those of a tenant with a lower
    /// number are first, among its own; 0 if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
}

/// Bounds of the lists, which hold while an input is read: one beyond them is refused at its first
/// element too many. A handler may allow less.
impl TextInput {
    /// Messages of a chat.
    pub const MOST_MESSAGES: usize = 4096;
    /// Texts that end the reply.
    pub const MOST_STOPS: usize = 64;
    /// Entries of `logit_bias`, `bad_token_ids` and `stop_token_ids`, each: more than most
    /// vocabularies have.
    pub const MOST_TOKENS: usize = 1 << 18;
    /// Entries of `bad_token_sequences`.
    pub const MOST_SEQUENCES: usize = 1024;
    /// Tokens of one of them.
    pub const MOST_SEQUENCE_TOKENS: usize = 64;
    /// Bytes of `response_format` as it is written, blanks included.
    pub const MOST_FORMAT_BYTES: usize = 256 << 10;
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
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TextPiece {
    /// The token's id in the model's vocabulary.
    pub token: u32,
    /// The text that became whole with this token; empty in the middle of a character.
    pub text: String,
    /// The token's log-probability, where the request asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprob: Option<f32>,
    /// The likeliest tokens at this place, the likeliest first, where the request asks for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top_logprobs: Vec<TokenLogprob>,
    /// Of which reply it is, where the request asks for several. Their pieces come in turns: the
    /// first of each, the second of each that goes on, and so on.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub index: u32,
    /// Why this reply has ended, with its last piece, where the request asks for several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<FinishReason>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_zero(index: &u32) -> bool {
    *index == 0
}

/// A token that could have been chosen.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// The token's id in the model's vocabulary.
    pub token: u32,
    /// Its log-probability.
    pub logprob: f32,
}

impl fmt::Debug for TextPiece {
    /// Leaves out the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextPiece").field("text_bytes", &self.text.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for TokenLogprob {
    /// Leaves out the token, which is text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenLogprob").field("logprob", &self.logprob).finish_non_exhaustive()
    }
}

impl Seam for TextPiece {
    /// Token id and text: log-probabilities may differ between machines of one fingerprint. Whose a
    /// piece is follows from those before it, since the replies of a request take turns.
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
    use serde_json::json;

    use super::{ResponseFormat, Seam, TextInput, TextPiece, TokenLogprob};

    #[test]
    fn seams_ignore_log_probabilities_but_not_text() {
        let seam = |json: &str| TextPiece::seam(json.as_bytes()).into_owned();
        let plain = seam(r#"{"token":1,"text":"a"}"#);
        assert_eq!(plain, seam(r#"{"token":1,"text":"a","logprob":-0.5}"#));
        let top = r#"{"token":1,"text":"a","top_logprobs":[{"token":2,"logprob":-1.5}]}"#;
        assert_eq!(plain, seam(top));
        assert_ne!(plain, seam(r#"{"token":1,"text":"b"}"#));
        assert_ne!(plain, seam(r#"{"token":2,"text":"a"}"#));
    }

    #[test]
    fn what_is_not_asked_for_is_not_written() {
        let json = |value: &TextInput| serde_json::to_string(value).unwrap();
        assert_eq!(json(&TextInput::default()), "{}");
        let piece = TextPiece { token: 1, text: "a".into(), ..TextPiece::default() };
        assert_eq!(serde_json::to_string(&piece).unwrap(), r#"{"token":1,"text":"a"}"#);
    }

    #[test]
    fn every_field_goes_by_the_name_that_the_protocol_gives_it() {
        let json = json!({
            "prompt": "x", "max_tokens": 9, "temperature": 0.5, "top_p": 0.75, "top_k": 4,
            "min_p": 0.25, "repetition_penalty": 1.5, "frequency_penalty": 0.25,
            "presence_penalty": -0.5, "logit_bias": { "12": -100.0 }, "bad_token_ids": [3],
            "bad_token_sequences": [[5, 6], [7]], "stop": ["."], "stop_token_ids": [4], "min_tokens": 2, "ignore_eos": true,
            "logprobs": true, "top_logprobs": 5,
            "response_format": { "type": "regex", "regex": "[a-z]+" }, "n": 3, "priority": -1
        });
        // Through text, as it travels: there the ids of `logit_bias` are strings.
        let input: TextInput = serde_json::from_str(&json.to_string()).unwrap();
        assert_eq!(input.logit_bias, [(12, -100.0)].into());
        assert_eq!(serde_json::to_value(&input).unwrap(), json);
        assert!(serde_json::from_str::<TextInput>(r#"{"temprature":1}"#).is_err());
    }

    #[track_caller]
    fn check_bound(field: &str, within: &str, beyond: &str) {
        let read =
            |list: &str| serde_json::from_str::<TextInput>(&format!(r#"{{"{field}":{list}}}"#));
        assert!(read(within).is_ok(), "{field}");
        let error = read(beyond).unwrap_err().to_string();
        assert!(error.contains(field) && error.contains("at most"), "{error}");
    }

    #[test]
    fn a_list_beyond_its_bound_is_refused_by_its_name() {
        let list = |each: &str, count| format!("[{}]", vec![each; count].join(","));
        for (field, each, most) in [
            ("messages", r#"{"role":"","content":""}"#, TextInput::MOST_MESSAGES),
            ("stop", r#""x""#, TextInput::MOST_STOPS),
            ("bad_token_ids", "1", TextInput::MOST_TOKENS),
            ("stop_token_ids", "1", TextInput::MOST_TOKENS),
            ("bad_token_sequences", "[1]", TextInput::MOST_SEQUENCES),
        ] {
            check_bound(field, &list(each, most), &list(each, most + 1));
        }
        let sequence = |tokens| format!("[{}]", list("1", tokens));
        check_bound("bad_token_sequences", &sequence(64), &sequence(65));
        // As often as one likes the same.
        let biases = |count| format!("{{{}}}", vec![r#""1":0"#; count].join(","));
        let most = TextInput::MOST_TOKENS;
        check_bound("logit_bias", &biases(most), &biases(most + 1));
    }

    #[test]
    fn what_is_beyond_a_bound_is_not_read() {
        let text = r#"{"stop":["a","a","a","a","a","a","a","a"#.to_owned()
            + &r#"","a"#.repeat(100)
            + " and no JSON";
        let error = serde_json::from_str::<TextInput>(&text).unwrap_err();
        assert!(error.is_data() && error.column() < 400, "{error}");
    }

    #[test]
    fn a_format_beyond_its_bound_is_not_made_into_values() {
        let with = |zeros: usize| {
            let list = "0,".repeat(zeros);
            let schema = format!(r#"{{"schema":{{"enum":[{list}0]}}}}"#);
            let format = format!(r#"{{"type":"json_schema","json_schema":{schema}}}"#);
            serde_json::from_str::<TextInput>(&format!(r#"{{"response_format":{format}}}"#))
        };
        assert!(with(100_000).is_ok());
        let error = with(200_000).unwrap_err().to_string();
        assert!(error.contains("`response_format` has 400"), "{error}");
        let none = serde_json::from_str::<TextInput>(r#"{"response_format":null}"#).unwrap();
        assert_eq!(none.response_format, None);
    }

    #[test]
    fn debug_shows_no_text() {
        let response_format = Some(ResponseFormat::Regex { regex: "canary".into() });
        let prompt = Some("canary".into());
        let input = TextInput { prompt, response_format, ..TextInput::default() };
        assert!(!format!("{input:?}").contains("canary"));
        let top = TokenLogprob { token: 4711, logprob: -1.0 };
        assert!(!format!("{top:?}").contains("4711"));
    }
}
