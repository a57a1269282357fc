//! Input and output of text models, shared by handlers and clients.

mod bounded;
mod chat;
mod content;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::format::ResponseFormat;
use crate::replay_key::ReplayKey;
use crate::reply::FinishReason;

pub use chat::{ChatMessage, FunctionCall, ToolCall, ToolKind};
pub use content::{Content, ContentPart, Image};

/// Input of a text model: a raw prompt or a chat, with sampling parameters.
///
/// A literal ends in `..TextInput::prompt(..)` or `..TextInput::default()`: minor versions add
/// fields.
///
/// A handler with this input takes neither images nor `adapter`: a request that has them is refused. The
/// input of a handler that takes them is [`MultimodalInput`].
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, remote = "Self")]
pub struct TextInput {
    /// Raw text to continue. Exactly one of `prompt`, `prompt_token_ids` and `messages` must be
    /// given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Prompt as token ids of the model's vocabulary. Nothing is added to them, no start token
    /// either.
    #[serde(deserialize_with = "bounded::prompt", skip_serializing_if = "Vec::is_empty")]
    pub prompt_token_ids: Vec<u32>,
    /// Chat, rendered with the model's own chat template.
    #[serde(
        deserialize_with = "chat::messages::<_, { TextInput::MOST_MESSAGES }>",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub messages: Vec<ChatMessage>,
    /// Tools that the model may call, in the shape that chat templates expect:
    /// `{"type": "function", "function": {"name", "description", "parameters"}}`. The calls are
    /// text of the reply, in the model's own format.
    #[serde(deserialize_with = "bounded::tools", skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Value>,
    /// Variables of the chat template beside its own, such as `enable_thinking`.
    #[serde(deserialize_with = "bounded::variables", skip_serializing_if = "Map::is_empty")]
    pub chat_template_kwargs: Map<String, Value>,
    /// Effort of the model's reasoning, as the variable `reasoning_effort` of the chat template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<String>,
    /// Begins the model's turn after the last message; true if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_generation_prompt: Option<bool>,
    /// Continues the text of the last message, instead of a new turn.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub continue_final_message: bool,
    /// Maximum number of tokens to generate; if absent, the model's context is the limit. 0 is
    /// allowed with `echo` or `prompt_logprobs`: the prompt is scored, and nothing is generated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// Sampling temperature: 0 means greedy sampling, absent means the handler's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// Nucleus sampling: only the most likely tokens that together reach this probability.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    /// Number of most likely tokens to sample among.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    /// Minimum probability of a token, as a fraction of the most likely token's probability.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f32>,
    /// Divisor of the logits of tokens in prompt or reply; negative logits are multiplied by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f32>,
    /// Amount subtracted from a token's logit for each occurrence in the reply; from -2 to 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency_penalty: Option<f32>,
    /// Amount subtracted once from the logit of each token in the reply; from -2 to 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<f32>,
    /// Values added to the logits of these tokens, by token id; from -100 to 100.
    #[serde(deserialize_with = "bounded::biases", skip_serializing_if = "BTreeMap::is_empty")]
    pub logit_bias: BTreeMap<u32, f32>,
    /// Ids of tokens that are never chosen.
    #[serde(deserialize_with = "bounded::banned", skip_serializing_if = "Vec::is_empty")]
    pub bad_token_ids: Vec<u32>,
    /// Token sequences that must not occur: at most 1024, each of 1 to 64 tokens.
    ///
    /// The last token of a sequence is masked where prompt and reply end in the tokens before it.
    #[serde(deserialize_with = "bounded::sequences", skip_serializing_if = "Vec::is_empty")]
    pub bad_token_sequences: Vec<Vec<u32>>,
    /// Stop sequences. The text of the sequence is not part of the reply.
    #[serde(deserialize_with = "bounded::stops", skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// Ids of tokens that end the reply, like the model's own end token.
    #[serde(deserialize_with = "bounded::ends", skip_serializing_if = "Vec::is_empty")]
    pub stop_token_ids: Vec<u32>,
    /// Minimum number of tokens before an end token may be chosen. A stop sequence still ends the
    /// reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_tokens: Option<u32>,
    /// Continues after the model's own end token. Other end conditions still hold.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ignore_eos: bool,
    /// Leaves the texts of special tokens out of the reply; true if absent. Some models mark calls of
    /// tools by special tokens. Tokens that end the reply never have a text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip_special_tokens: Option<bool>,
    /// Returns each token's log-probability under the model's own distribution, before any of the
    /// parameters above.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub logprobs: bool,
    /// Number of most likely tokens whose log-probabilities are returned with `logprobs`; at most
    /// 20.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_logprobs: Option<u32>,
    /// Returns the text of each token that has a log-probability: of the chosen one in
    /// [`token_text`](TextPiece::token_text), and of each of the most likely ones.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub return_token_texts: bool,
    /// Begins the reply with the tokens of the prompt and their text, as in OpenAI's completions.
    ///
    /// With `logprobs`, the tokens of the prompt have log-probabilities like those of the reply.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub echo: bool,
    /// Returns the log-probability and the rank of each token of the prompt except the first, and
    /// this number of most likely tokens at its position; at most 20.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<u32>,
    /// Format of the reply without the echoed prompt; absent means any text.
    #[serde(deserialize_with = "bounded::format", skip_serializing_if = "Option::is_none")]
    pub response_format: Option<ResponseFormat>,
    /// Number of replies to generate from the prompt; 1 if absent.
    ///
    /// The replies differ only by the seed: the reply with `index` 3 equals the single reply to the
    /// seed plus 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u32>,
    /// Priority among the tenant's own requests when a worker has more than it can run at once.
    ///
    /// A lower number goes first; 0 if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Name of an adapter (LoRA) that the worker has beside the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
}

impl TextInput {
    /// Creates the input of a raw text to continue.
    ///
    /// ```
    /// use nsbridge_protocol::TextInput;
    ///
    /// let input = TextInput { max_tokens: Some(64), ..TextInput::prompt("Once a bear") };
    /// assert_eq!(
    ///     serde_json::to_string(&input).unwrap(),
    ///     r#"{"prompt":"Once a bear","max_tokens":64}"#
    /// );
    /// ```
    pub fn prompt(text: impl Into<String>) -> Self {
        Self { prompt: Some(text.into()), ..Self::default() }
    }

    /// Creates the input of a prompt of token ids to continue.
    ///
    /// ```
    /// use nsbridge_protocol::TextInput;
    ///
    /// let input = TextInput { prompt_logprobs: Some(0), ..TextInput::token_ids([1, 5, 7]) };
    /// assert_eq!(
    ///     serde_json::to_string(&input).unwrap(),
    ///     r#"{"prompt_token_ids":[1,5,7],"prompt_logprobs":0}"#
    /// );
    /// ```
    pub fn token_ids(ids: impl IntoIterator<Item = u32>) -> Self {
        Self { prompt_token_ids: ids.into_iter().collect(), ..Self::default() }
    }

    /// Creates the input of a chat, which the worker renders with the model's own chat template.
    ///
    /// ```
    /// use nsbridge_protocol::{ChatMessage, TextInput};
    ///
    /// let input = TextInput::chat([ChatMessage::new("user", "Who lives by the sea?")]);
    /// assert_eq!(input.messages[0].role, "user");
    /// ```
    pub fn chat(messages: impl IntoIterator<Item = ChatMessage>) -> Self {
        Self { messages: messages.into_iter().collect(), ..Self::default() }
    }
}

impl Serialize for TextInput {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for TextInput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let input = Self::deserialize(deserializer)?;
        if input.adapter.is_some() {
            return Err(D::Error::custom("`adapter` is not supported: the model has no adapters"));
        }
        match input.messages.iter().position(|message| message.content.has_images()) {
            Some(index) => Err(D::Error::custom(format_args!(
                "`messages[{index}].content` has a part of type `image_url`, and the model takes no images"
            ))),
            None => Ok(input),
        }
    }
}

/// [`TextInput`] of a handler that takes images in messages and `adapter`.
///
/// In JSON it is the same object.
///
/// ```
/// use nsbridge_protocol::{MultimodalInput, TextInput};
///
/// let json = r#"{"prompt":"Once a bear","adapter":"tales"}"#;
/// let MultimodalInput(input) = serde_json::from_str(json).unwrap();
/// assert_eq!(input.adapter.as_deref(), Some("tales"));
/// assert!(serde_json::from_str::<TextInput>(json).is_err());
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MultimodalInput(pub TextInput);

impl AsRef<Self> for TextInput {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl AsRef<TextInput> for MultimodalInput {
    fn as_ref(&self) -> &TextInput {
        &self.0
    }
}

impl Serialize for MultimodalInput {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        TextInput::serialize(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for MultimodalInput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        TextInput::deserialize(deserializer).map(Self)
    }
}

/// Bounds of the list fields, enforced while the input is parsed.
///
/// A list beyond its bound is rejected at the first excess element. A handler may allow less.
impl TextInput {
    /// Maximum number of entries of `prompt_token_ids`. Few contexts are longer.
    pub const MOST_PROMPT_TOKENS: usize = 1 << 20;
    /// Maximum number of messages in a chat.
    pub const MOST_MESSAGES: usize = 4096;
    /// Maximum number of tools.
    pub const MOST_TOOLS: usize = 128;
    /// Maximum size of `tools` as written, in bytes, and of `chat_template_kwargs`, each.
    pub const MOST_TEMPLATE_BYTES: usize = 256 << 10;
    /// Maximum number of stop sequences.
    pub const MOST_STOPS: usize = 64;
    /// Maximum number of entries of `logit_bias`, `bad_token_ids` and `stop_token_ids`, each.
    ///
    /// Few vocabularies are larger.
    pub const MOST_TOKENS: usize = 1 << 18;
    /// Maximum number of entries of `bad_token_sequences`.
    pub const MOST_SEQUENCES: usize = 1024;
    /// Maximum number of tokens of one sequence in `bad_token_sequences`.
    pub const MOST_SEQUENCE_TOKENS: usize = 64;
    /// Maximum size of `response_format` as written, in bytes, whitespace included.
    pub const MOST_FORMAT_BYTES: usize = 256 << 10;
}

impl fmt::Debug for TextInput {
    /// Omits the user's text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextInput")
            .field("prompt_bytes", &self.prompt.as_ref().map(String::len))
            .field("prompt_tokens", &self.prompt_token_ids.len())
            .field("messages", &self.messages.len())
            .field("max_tokens", &self.max_tokens)
            .finish_non_exhaustive()
    }
}

/// One token of a text reply.
///
/// In JSON a string is a piece with the token 0: models that know texts and no tokens write it. A
/// literal ends in `..TextPiece::new(..)`: minor versions add fields.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct TextPiece {
    /// Token id in the model's vocabulary.
    pub token: u32,
    /// Text that this token completes; empty in the middle of a multi-byte character. Empty too for
    /// a token of the prompt, unless the request sets `echo`.
    pub text: String,
    /// Log-probability of the token, if the request sets `logprobs`, or for a token of the prompt
    /// `prompt_logprobs`. The first token of a prompt has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprob: Option<f32>,
    /// Text of the token by itself, if the request sets `return_token_texts`. It differs from
    /// `text` in the middle of a character, and for special tokens, which have no `text`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_text: Option<TokenText>,
    /// Most likely tokens at this position in descending order, if the request sets `top_logprobs`,
    /// or for a token of the prompt `prompt_logprobs`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top_logprobs: Vec<TokenLogprob>,
    /// Rank of a token of the prompt among all tokens by log-probability, from 1; of equals, the
    /// smaller id comes first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// True if the token is one of the prompt. These pieces come before those of the reply, one for
    /// each token of the prompt, if the request sets `echo` or `prompt_logprobs`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub prompt: bool,
    /// Index of the reply that the piece belongs to, for requests with `n` above 1.
    ///
    /// The pieces of the replies are interleaved: the first piece of each reply, then the second
    /// piece of each reply that has not ended, and so on.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub index: u32,
    /// Reason for the end of this reply, on its last piece, for requests with `n` above 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<FinishReason>,
}

impl TextPiece {
    /// Creates a piece of a token and the text that it completes.
    ///
    /// ```
    /// use nsbridge_protocol::TextPiece;
    ///
    /// let piece = TextPiece { logprob: Some(-0.5), ..TextPiece::new(7, "bear") };
    /// assert_eq!(
    ///     serde_json::to_string(&piece).unwrap(),
    ///     r#"{"token":7,"text":"bear","logprob":-0.5}"#
    /// );
    /// ```
    pub fn new(token: u32, text: impl Into<String>) -> Self {
        Self { token, text: text.into(), ..Self::default() }
    }
}

impl Serialize for TextPiece {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for TextPiece {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// Reader of a text or an object.
        struct Piece;

        impl<'de> Visitor<'de> for Piece {
            type Value = TextPiece;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text piece, or a string")
            }

            fn visit_str<E>(self, text: &str) -> Result<TextPiece, E> {
                Ok(TextPiece::new(0, text))
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<TextPiece, A::Error> {
                TextPiece::deserialize(MapAccessDeserializer::new(fields))
            }
        }

        deserializer.deserialize_any(Piece)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_zero(index: &u32) -> bool {
    *index == 0
}

/// Candidate token with its log-probability.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TokenLogprob {
    /// Token id in the model's vocabulary.
    pub token: u32,
    /// Log-probability of the token.
    pub logprob: f32,
    /// Text of the token by itself, if the request sets `return_token_texts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<TokenText>,
}

impl TokenLogprob {
    /// Creates a candidate without its text.
    pub const fn new(token: u32, logprob: f32) -> Self {
        Self { token, logprob, text: None }
    }
}

/// Text of a token by itself: in JSON a text, or a list of bytes that are no valid UTF-8.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TokenText {
    /// Valid text.
    Text(String),
    /// Bytes of a part of a character.
    Bytes(Vec<u8>),
}

impl TokenText {
    /// Returns the bytes that the token stands for.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

impl From<&[u8]> for TokenText {
    fn from(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Bytes(bytes.to_vec()),
        }
    }
}

impl fmt::Debug for TokenText {
    /// Omits the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenText({} bytes)", self.as_bytes().len())
    }
}

impl fmt::Debug for TextPiece {
    /// Omits the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextPiece").field("text_bytes", &self.text.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for TokenLogprob {
    /// Omits the token id, because it reveals text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenLogprob").field("logprob", &self.logprob).finish_non_exhaustive()
    }
}

impl ReplayKey for TextPiece {
    /// Returns token id and text, without log-probabilities.
    ///
    /// Log-probabilities may differ between machines of one fingerprint. The reply index is left
    /// out too: it follows from the preceding pieces, because replies are interleaved in a fixed
    /// order.
    fn replay_key(piece: &[u8]) -> Cow<'_, [u8]> {
        match serde_json::from_slice::<Self>(piece) {
            Ok(piece) => {
                let mut key = piece.token.to_be_bytes().to_vec();
                key.extend(piece.text.into_bytes());
                Cow::Owned(key)
            }
            Err(_) => Cow::Borrowed(piece),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{MultimodalInput, ReplayKey, ResponseFormat, TextInput, TextPiece, TokenLogprob};

    #[test]
    fn replay_keys_ignore_log_probabilities_but_not_text() {
        let key = |json: &str| TextPiece::replay_key(json.as_bytes()).into_owned();
        let plain = key(r#"{"token":1,"text":"a"}"#);
        assert_eq!(plain, key(r#"{"token":1,"text":"a","logprob":-0.5}"#));
        let top = r#"{"token":1,"text":"a","top_logprobs":[{"token":2,"logprob":-1.5}]}"#;
        assert_eq!(plain, key(top));
        assert_ne!(plain, key(r#"{"token":1,"text":"b"}"#));
        assert_ne!(plain, key(r#"{"token":2,"text":"a"}"#));
    }

    #[test]
    fn a_string_is_a_piece_without_a_token() {
        let read = |json: &str| serde_json::from_str::<TextPiece>(json);
        assert_eq!(read(r#""b\u00e4r""#).unwrap(), TextPiece::new(0, "bär"));
        assert!(read("7").unwrap_err().to_string().contains("a text piece, or a string"));
        let key = |json: &str| TextPiece::replay_key(json.as_bytes()).into_owned();
        assert_eq!(key(r#""b\u00e4r""#), key(r#"{"token":0,"text":"bär"}"#));
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
            "prompt": "x", "prompt_token_ids": [8], "max_tokens": 9, "temperature": 0.5, "top_p": 0.75, "top_k": 4,
            "min_p": 0.25, "repetition_penalty": 1.5, "frequency_penalty": 0.25,
            "presence_penalty": -0.5, "logit_bias": { "12": -100.0 }, "bad_token_ids": [3],
            "bad_token_sequences": [[5, 6], [7]], "stop": ["."], "stop_token_ids": [4], "min_tokens": 2, "ignore_eos": true,
            "logprobs": true, "top_logprobs": 5, "echo": true, "prompt_logprobs": 4,
            "response_format": { "type": "regex", "regex": "[a-z]+" }, "n": 3, "priority": -1,
            "tools": [{ "type": "function", "function": { "name": "f" } }],
            "chat_template_kwargs": { "enable_thinking": false }, "reasoning_effort": "low",
            "add_generation_prompt": false, "continue_final_message": true,
            "return_token_texts": true, "skip_special_tokens": false, "adapter": "a"
        });
        // Parsed from text, as on the wire, where the keys of `logit_bias` are strings.
        let read: MultimodalInput = serde_json::from_str(&json.to_string()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), json);
        let MultimodalInput(input) = read;
        assert_eq!(input.logit_bias, [(12, -100.0)].into());
        assert_eq!(serde_json::to_value(&input).unwrap(), json);
        assert!(serde_json::from_str::<TextInput>(r#"{"temprature":1}"#).is_err());
    }

    #[test]
    fn images_and_adapters_are_for_handlers_that_take_them() {
        let parts =
            json!([{ "type": "image_url", "image_url": { "url": "data:image/png;base64," } }]);
        let image = json!({ "messages": [{ "role": "user", "content": "a" },
                                         { "role": "user", "content": parts }] });
        for (json, says) in [
            (image, "`messages[1].content` has a part of type `image_url`"),
            (json!({ "prompt": "a", "adapter": "sql" }), "`adapter` is not supported"),
        ] {
            let error = serde_json::from_str::<TextInput>(&json.to_string()).unwrap_err();
            assert!(error.to_string().starts_with(says), "{error}");
            let read: MultimodalInput = serde_json::from_str(&json.to_string()).unwrap();
            assert_eq!(serde_json::to_value(&read).unwrap(), json);
        }
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
            ("prompt_token_ids", "1", TextInput::MOST_PROMPT_TOKENS),
            ("stop", r#""x""#, TextInput::MOST_STOPS),
            ("bad_token_ids", "1", TextInput::MOST_TOKENS),
            ("stop_token_ids", "1", TextInput::MOST_TOKENS),
            ("bad_token_sequences", "[1]", TextInput::MOST_SEQUENCES),
        ] {
            check_bound(field, &list(each, most), &list(each, most + 1));
        }
        let sequence = |tokens| format!("[{}]", list("1", tokens));
        check_bound("bad_token_sequences", &sequence(64), &sequence(65));
        // Duplicate keys count too.
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
        let top = TokenLogprob::new(4711, -1.0);
        assert!(!format!("{top:?}").contains("4711"));
    }
}
