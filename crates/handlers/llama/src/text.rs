//! Between text and tokens: what a model's `tokenizer.json` and its companions say.

use std::time::SystemTime;

use nsbridge_handler::{Error, Model, Result, TextInput};
use tokenizers::Tokenizer;

use crate::LoadError;
use crate::config::{find_json, read_json, within};
use crate::detokenise::TokenBytes;
use crate::template::{ChatTemplate, TokenizerConfig};

const FILE: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";

/// The text side of a model.
#[derive(Debug)]
pub(crate) struct Text {
    tokenizer: Tokenizer,
    bytes: TokenBytes,
    template: Option<ChatTemplate>,
    /// What a raw prompt begins with.
    start: Option<u32>,
}

impl Text {
    /// Reads the text side of a model.
    pub(crate) fn read(model: &Model) -> Result<Self, LoadError> {
        let json: serde_json::Value = read_json(model, FILE)?;
        let tokenizer = Tokenizer::from_bytes(json.to_string());
        let tokenizer = tokenizer.map_err(LoadError::parse(within(model, FILE)))?;
        let config: TokenizerConfig = find_json(model, CONFIG)?.unwrap_or_default();
        let start = config.prompt_start().map(|token| {
            let id = tokenizer.token_to_id(token);
            id.ok_or_else(|| LoadError::Missing(format!("{FILE} lacks the bos_token of {CONFIG}")))
        });
        Ok(Self {
            start: start.transpose()?,
            bytes: TokenBytes::new(&tokenizer, &json)?,
            template: ChatTemplate::read(model, &config)?,
            tokenizer,
        })
    }

    /// The tokens that the input asks to go on from; at least one.
    ///
    /// # Errors
    ///
    /// A sentence that names the field, with nothing of what the user wrote.
    pub(crate) fn prompt(&self, input: &TextInput, at: SystemTime) -> Result<Vec<u32>> {
        let tokens = match (&input.prompt, input.messages.as_slice()) {
            (Some(prompt), []) => self.raw(prompt)?,
            (None, [_, ..]) => self.chat(input, at)?,
            _ => return Err(Error::bad_input("give exactly one of `prompt` and `messages`")),
        };
        if tokens.is_empty() {
            return Err(Error::bad_input("`prompt` has no token to go on from"));
        }
        Ok(tokens)
    }

    /// What a token stands for.
    pub(crate) fn bytes(&self, token: u32) -> &[u8] {
        self.bytes.get(token)
    }

    /// What each of the first `size` tokens spells; nothing for those that were added to the
    /// vocabulary to mean something, or are not in it.
    pub(crate) fn spelling(&self, size: usize) -> Vec<Vec<u8>> {
        let added = self.tokenizer.get_added_tokens_decoder();
        let bytes = |token| if added.contains_key(&token) { &[] } else { self.bytes(token) };
        (0..size as u32).map(|token| bytes(token).to_vec()).collect()
    }

    fn raw(&self, prompt: &str) -> Result<Vec<u32>> {
        let tokens = self.encode(prompt, true)?;
        // Not every tokenizer.json puts it there by itself.
        let missing = self.start.filter(|start| tokens.first() != Some(start));
        Ok(missing.into_iter().chain(tokens).collect())
    }

    fn chat(&self, input: &TextInput, at: SystemTime) -> Result<Vec<u32>> {
        let template = self.template.as_ref().ok_or_else(|| {
            Error::bad_input("this model has no chat template: give `prompt`, not `messages`")
        })?;
        let chat = template.render(&input.messages, at).map_err(|error| {
            let why = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
            Error::bad_input(format!("`messages` do not fit the model's chat template: {why}"))
        })?;
        // The template has written the special tokens itself.
        self.encode(&chat, false)
    }

    fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        let encoding = self.tokenizer.encode_fast(text, special);
        // The tokenizer's own words may quote the text.
        let encoding =
            encoding.map_err(|_| Error::bad_input("the tokenizer cannot encode the text"))?;
        Ok(encoding.get_ids().to_vec())
    }
}
