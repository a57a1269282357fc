//! Conversion between text and tokens, by a model's `tokenizer.json` and related files, or by the
//! metadata of its GGUF file.

mod gguf;
mod source;
mod special_token_guard;
mod token_lower_bound;

use std::borrow::Cow;
use std::time::SystemTime;

use nsbridge_handler::{ChatMessage, Error, Model, NO_ROOM, Result, TextInput, TokenText, quote};
use tokenizers::Tokenizer;

use self::source::Source;
use self::special_token_guard::Shield;
use self::token_lower_bound::Cover;
use crate::detokenize::TokenBytes;
use crate::error::{LoadError, within};
use crate::limits::{BYTES_PER_TOKEN, FEW_BYTES};
use crate::panics::caught;
use crate::template::{ChatFormats, ChatTemplate};

/// Maximum number of tokens that a message names.
const SHOWN: usize = 10;

impl ChatFormats {
    /// Finds the formats of a model.
    ///
    /// # Errors
    ///
    /// Returns an error if the tokenizer's files or the chat template cannot be read.
    pub fn read(model: &Model) -> Result<Self, LoadError> {
        let template = template(model)?;
        Ok(template.map_or_else(Self::default, |template| template.formats()))
    }
}

/// Reads the chat template of a model alone.
pub(crate) fn template(model: &Model) -> Result<Option<ChatTemplate>, LoadError> {
    without_panics(model, || {
        let Source { config, config_file, .. } = Source::read(model)?;
        ChatTemplate::read(model, &config, &config_file)
    })
}

/// Reads files of a model. A panic of a library is an error.
fn without_panics<T>(
    model: &Model,
    read: impl FnOnce() -> Result<T, LoadError>,
) -> Result<T, LoadError> {
    caught(read).unwrap_or_else(|_| {
        let place = model.place();
        Err(LoadError::Read(format!(
            "the tokenizer or the chat template of {place} cannot be read: its library panicked"
        )))
    })
}

/// Tokenizer and chat template of a model.
#[derive(Debug)]
pub(crate) struct ChatTokenizer {
    tokenizer: Tokenizer,
    bytes: TokenBytes,
    /// Lower bound on a text's tokens, to refuse long texts before tokenization.
    cover: Cover,
    /// Protection against special tokens in messages; `None` if messages may contain them.
    shield: Option<Shield>,
    template: Option<ChatTemplate>,
    /// First token of a raw prompt.
    start: Option<u32>,
    /// Token that the tokenizer's configuration names as the end of a text.
    end: Option<u32>,
}

impl ChatTokenizer {
    /// Reads the tokenizer of a model whose embedding has `rows` rows. `special` is true if messages
    /// may contain special tokens.
    ///
    /// # Errors
    ///
    /// Returns an error if a file is missing, malformed or not supported.
    pub(crate) fn read(model: &Model, rows: usize, special: bool) -> Result<Self, LoadError> {
        without_panics(model, || Self::read_files(model, rows, special))
    }

    fn read_files(model: &Model, rows: usize, special: bool) -> Result<Self, LoadError> {
        let Source { json, config, file, config_file } = Source::read(model)?;
        let tokenizer = Tokenizer::from_bytes(json.to_string());
        let tokenizer = tokenizer.map_err(LoadError::parse(within(model, &file)))?;
        // The library renumbers added tokens that leave a gap; the model has the numbers of the file.
        let added = |token: &str| {
            let added = json["added_tokens"].as_array()?;
            let id = &added.iter().find(|added| added["content"] == token)?["id"];
            u32::try_from(id.as_u64()?).ok()
        };
        let id = |token: &str| added(token).or_else(|| tokenizer.token_to_id(token));
        let start = config.prompt_start().map(|token| {
            let lacks =
                || LoadError::Missing(format!("{file} lacks the bos_token of {config_file}"));
            id(token).ok_or_else(lacks)
        });
        let bytes = TokenBytes::new(&tokenizer, &json, rows, &file)?;
        Ok(Self {
            start: start.transpose()?,
            end: config.end().and_then(id),
            cover: Cover::new(&tokenizer, &json, &bytes),
            shield: if special { None } else { Shield::new(&tokenizer) },
            bytes,
            template: ChatTemplate::read(model, &config, &config_file)?,
            tokenizer,
        })
    }

    /// Returns the number of bytes of text in the input. A token id counts as one.
    pub(crate) fn bytes_of(input: &TextInput) -> usize {
        let of_messages: usize = input.messages.iter().map(ChatMessage::bytes).sum();
        let of_tools: usize = input.tools.iter().map(bytes_of_json).sum();
        let of_variables: usize = input.chat_template_kwargs.values().map(bytes_of_json).sum();
        input.prompt.as_ref().map_or(0, String::len)
            + input.prompt_token_ids.len()
            + of_messages
            + of_tools
            + of_variables
    }

    /// Refuses an input by its size alone.
    ///
    /// # Errors
    ///
    /// Returns an error if the input has more bytes, or more token ids, than a context of `context`
    /// tokens allows.
    pub(crate) fn refuse_long(input: &TextInput, context: usize) -> Result<()> {
        if input.prompt_token_ids.len() > context {
            return Err(no_room(input.prompt_token_ids.len(), context));
        }
        let field = if input.prompt.is_some() { "prompt" } else { "messages" };
        refuse_bytes(field, Self::bytes_of(input), context)
    }

    /// Returns the tokens of the prompt, at least one.
    ///
    /// # Errors
    ///
    /// Returns an error that names the field and contains no text of the request.
    pub(crate) fn prompt(
        &self,
        input: &TextInput,
        at: SystemTime,
        context: usize,
    ) -> Result<Vec<u32>> {
        let TextInput { prompt, prompt_token_ids, messages, .. } = input;
        let tokens = match (prompt, prompt_token_ids.as_slice(), messages.as_slice()) {
            (Some(prompt), [], []) => self.raw(prompt, context)?,
            (None, ids @ [_, ..], []) => ids.to_vec(),
            (None, [], [_, ..]) => self.chat(input, at, context)?,
            _ => {
                return Err(Error::bad_input(
                    "give exactly one of `prompt`, `prompt_token_ids` and `messages`",
                ));
            }
        };
        if tokens.is_empty() {
            return Err(Error::bad_input("`prompt` has no token to go on from"));
        }
        Ok(tokens)
    }

    /// Returns the tokens of a text, with the special tokens that the tokenizer adds.
    ///
    /// # Errors
    ///
    /// Returns an error that contains no text of the request.
    pub(crate) fn text(&self, text: &str, context: usize) -> Result<Vec<u32>> {
        refuse_bytes("input", text.len(), context)?;
        self.raw(text, context)
    }

    /// Returns the lower bound of the number of tokens of a text.
    #[cfg(feature = "testing")]
    pub(crate) fn least(&self, text: &str) -> usize {
        self.cover.least(text)
    }

    /// Returns a sentence that names the tokens for which an embedding of `rows` rows has none, if
    /// there are any.
    pub(crate) fn without_row(&self, rows: usize) -> Option<String> {
        let ids = rows as u32..self.bytes.len() as u32;
        let named = |id| Some(format!("{} ({id})", quote(self.tokenizer.id_to_token(id)?)));
        let tokens: Vec<String> = ids.filter_map(named).collect();
        let shown = tokens.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
        let more = if tokens.len() > SHOWN { ", .." } else { "" };
        (!tokens.is_empty()).then(|| {
            format!(
                "the embedding has {rows} rows, and none for {} of the tokenizer's tokens: \
                 {shown}{more}; a prompt with one of them is refused",
                tokens.len()
            )
        })
    }

    /// Returns the token that the tokenizer's configuration names as the end of a text.
    pub(crate) fn end(&self) -> Option<u32> {
        self.end
    }

    /// Returns the bytes that a token stands for.
    pub(crate) fn bytes(&self, token: u32) -> &[u8] {
        self.bytes.get(token)
    }

    /// Returns the text of a token by itself; that of a special token is its name.
    pub(crate) fn token_text(&self, token: u32) -> TokenText {
        self.spelled(token).as_ref().into()
    }

    /// Returns the bytes that a token stands for; those of a special token are its name.
    pub(crate) fn spelled(&self, token: u32) -> Cow<'_, [u8]> {
        match self.bytes(token) {
            [] => self.tokenizer.id_to_token(token).unwrap_or_default().into_bytes().into(),
            bytes => bytes.into(),
        }
    }

    /// Returns the bytes of the first `size` tokens. Added tokens, and ids that are not in the
    /// vocabulary, have none.
    pub(crate) fn spelling(&self, size: usize) -> Vec<Vec<u8>> {
        let added = self.tokenizer.get_added_tokens_decoder();
        let bytes = |token| if added.contains_key(&token) { &[] } else { self.bytes(token) };
        (0..size as u32).map(|token| bytes(token).to_vec()).collect()
    }

    fn raw(&self, prompt: &str, context: usize) -> Result<Vec<u32>> {
        let tokens = self.encode(prompt, true, context)?;
        // Not every `tokenizer.json` adds the start token by itself.
        let missing = self.start.filter(|start| tokens.first() != Some(start));
        Ok(missing.into_iter().chain(tokens).collect())
    }

    fn chat(&self, input: &TextInput, at: SystemTime, context: usize) -> Result<Vec<u32>> {
        let template = self.template.as_ref().ok_or_else(|| {
            Error::bad_input("this model has no chat template: give `prompt`, not `messages`")
        })?;
        let mut chat = template.chat(input)?;
        let mark = match &self.shield {
            Some(shield) => shield.protect(&mut chat)?,
            None => None,
        };
        let chat = template.render(&chat, at, most_bytes(context))?;
        // The template has written the special tokens itself.
        match mark {
            None => self.encode(&chat, false, context),
            Some(mark) => {
                self.refuse_many(&chat, context)?;
                let encoded = caught(|| special_token_guard::encode(&self.tokenizer, &chat, mark));
                encoded.ok().flatten().ok_or_else(not_encoded)
            }
        }
    }

    fn encode(&self, text: &str, special: bool, context: usize) -> Result<Vec<u32>> {
        self.refuse_many(text, context)?;
        let encoding = caught(|| self.tokenizer.encode_fast(text, special));
        // The tokenizer's own message may quote the text.
        let encoding = encoding.ok().and_then(std::result::Result::ok).ok_or_else(not_encoded)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Refuses a text that certainly has too many tokens. A short text is not checked here, so that
    /// the error after tokenization can give its exact number of tokens.
    fn refuse_many(&self, text: &str, context: usize) -> Result<()> {
        let least = if text.len() > FEW_BYTES { self.cover.least(text) } else { 0 };
        // A prompt that fills the context is refused later, if a reply is to follow it.
        if least <= context {
            return Ok(());
        }
        Err(Error::bad_input(format!(
            "the prompt has at least {least} tokens, which {NO_ROOM} of {context}"
        )))
    }
}

/// Error for a prompt of `tokens` tokens that leaves no room in the context.
pub(crate) fn no_room(tokens: usize, context: usize) -> Error {
    Error::bad_input(format!("the prompt has {tokens} tokens, which {NO_ROOM} of {context}"))
}

/// Error for a prompt with a token that the tokenizer has and the embedding lacks.
pub(crate) fn no_row(token: u32, rows: usize) -> Error {
    Error::bad_input(format!(
        "the prompt has token {token}, and this model has the tokens 0 to {} alone: leave out its text",
        rows - 1
    ))
}

fn not_encoded() -> Error {
    Error::bad_input("the tokenizer cannot encode the text")
}

/// Returns the number of bytes of a value's texts, with a byte for each other value.
fn bytes_of_json(value: &serde_json::Value) -> usize {
    use serde_json::Value;
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(bytes_of_json).sum(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| name.len() + bytes_of_json(value)).sum()
        }
    }
}

/// Returns the maximum bytes of text for a context of `context` tokens.
fn most_bytes(context: usize) -> usize {
    context.saturating_mul(BYTES_PER_TOKEN).max(FEW_BYTES)
}

/// Refuses a text by its size in bytes alone.
fn refuse_bytes(field: &str, bytes: usize, context: usize) -> Result<()> {
    let most = most_bytes(context);
    if bytes > most {
        return Err(Error::bad_input(format!(
            "`{field}` has {bytes} bytes, and {most} are the most for this model's context of \
             {context} tokens"
        )));
    }
    Ok(())
}
