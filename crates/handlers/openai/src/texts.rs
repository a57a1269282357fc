//! Texts of tokens, by the server's own tokenizer.

use std::collections::HashMap;
use std::sync::Arc;

use nsbridge_handler::{Error, Result};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::answer::{refusal, unanswered};
use crate::http::Http;
use crate::options::Flavor;

/// Maximum number of tokens whose texts are kept: more than any vocabulary has.
const MOST_KEPT: usize = 1 << 20;

/// Maximum number of tokens of one character.
pub(crate) const MOST_OPEN: usize = 8;

/// Text before which tokens are decoded. Some tokenizers leave out the space of the first word.
const BEFORE: &str = "a";

/// Reader of the texts of tokens.
#[derive(Debug)]
pub(crate) struct Texts {
    http: Arc<Http>,
    model: String,
    flavor: Flavor,
    /// Tokens of [`BEFORE`], and the text that the server makes of them.
    before: (Vec<u32>, String),
    kept: Mutex<HashMap<u32, Arc<str>>>,
}

/// Tokens at the end of a reply that have no text yet, because their character is not complete.
#[derive(Debug, Default)]
pub(crate) struct Open(Vec<u32>);

impl Texts {
    /// Creates the reader.
    ///
    /// # Errors
    ///
    /// Returns an error if the server does not convert between texts and tokens.
    pub(crate) async fn new(http: Arc<Http>, model: String, flavor: Flavor) -> Result<Self> {
        let before = (Vec::new(), String::new());
        let mut texts = Self { http, model, flavor, before, kept: Mutex::default() };
        let tokens = texts.tokens(BEFORE, false).await?;
        texts.before = (tokens.clone(), texts.whole(&tokens).await?);
        Ok(texts)
    }

    /// Returns the server's address without a path.
    pub(crate) fn root(&self) -> &str {
        self.http.root()
    }

    /// Returns the tokens of a text, with the model's start token if `special` is set.
    pub(crate) async fn tokens(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        let body = match self.flavor {
            Flavor::LlamaServer => json!({ "content": text, "add_special": special }),
            _ => json!({ "model": self.model, "prompt": text, "add_special_tokens": special }),
        };
        tokens_of(&self.ask("/tokenize", &body).await?)
    }

    /// Returns the text of tokens that follow other text, as the server decodes them. A character that
    /// is not complete is U+FFFD at the end.
    pub(crate) async fn decode(&self, tokens: &[u32]) -> Result<String> {
        let whole = self.whole(&[&*self.before.0, tokens].concat()).await?;
        Ok(whole.strip_prefix(&*self.before.1).unwrap_or(&whole).to_owned())
    }

    /// Returns the text of one token that follows other text.
    pub(crate) async fn alone(&self, token: u32) -> Result<Arc<str>> {
        if let Some(text) = self.kept.lock().get(&token) {
            return Ok(text.clone());
        }
        let text: Arc<str> = self.decode(&[token]).await?.into();
        let mut kept = self.kept.lock();
        if kept.len() >= MOST_KEPT {
            kept.clear();
        }
        kept.insert(token, text.clone());
        Ok(text)
    }

    /// Divides the text that the server has sent for some tokens among them, so that each piece has the
    /// text that its token completes.
    ///
    /// A server sends several tokens at once if it has drafted them, or if the client was slow. The
    /// pieces must not show that.
    pub(crate) async fn divide(
        &self,
        open: &mut Open,
        tokens: &[u32],
        text: &str,
    ) -> Result<Vec<String>> {
        let Some((&last, first)) = tokens.split_last() else { return Ok(Vec::new()) };
        let (mut parts, mut rest) = (Vec::with_capacity(tokens.len()), text);
        for &token in first {
            open.0.push(token);
            let own = self.of_open(open).await?;
            let fits = !own.is_empty() && !is_cut(&own) && rest.starts_with(&*own);
            let part = if fits { &rest[..own.len()] } else { "" };
            open.settle(is_cut(&own));
            parts.push(part.to_owned());
            rest = &rest[part.len()..];
        }
        open.0.push(last);
        let waits = rest.is_empty() && is_cut(&self.of_open(open).await?);
        open.settle(waits);
        parts.push(rest.to_owned());
        Ok(parts)
    }

    async fn of_open(&self, open: &Open) -> Result<Arc<str>> {
        match open.0[..] {
            [token] => self.alone(token).await,
            _ => Ok(self.decode(&open.0).await?.into()),
        }
    }

    async fn whole(&self, tokens: &[u32]) -> Result<String> {
        let (body, field) = match self.flavor {
            Flavor::LlamaServer => (json!({ "tokens": tokens }), "content"),
            _ => (json!({ "model": self.model, "tokens": tokens }), "prompt"),
        };
        let answer = self.ask("/detokenize", &body).await?;
        let text = answer.get(field).and_then(Value::as_str);
        text.map(str::to_owned)
            .ok_or_else(|| unanswered(self.http.strange("/detokenize", "no text")))
    }

    async fn ask(&self, path: &str, body: &Value) -> Result<Value> {
        let answer = self.http.call(path, body).await.map_err(unanswered)?;
        match answer {
            Ok(answer) => Ok(answer),
            Err(answer) => Err(refusal(&answer, &self.http, &self.model).await),
        }
    }
}

impl Open {
    /// Keeps the tokens if they still wait for the rest of their character.
    fn settle(&mut self, waits: bool) {
        if !waits || self.0.len() > MOST_OPEN {
            self.0.clear();
        }
    }
}

/// Returns true if the text ends in a character that is not complete.
pub(crate) fn is_cut(text: &str) -> bool {
    text.ends_with(char::REPLACEMENT_CHARACTER)
}

/// Reads the tokens of an answer.
pub(crate) fn tokens_of(answer: &Value) -> Result<Vec<u32>> {
    let tokens = answer.get("tokens").and_then(Value::as_array);
    let tokens = tokens.map(|tokens| {
        let each = tokens.iter().map(|token| token.as_u64().and_then(|id| u32::try_from(id).ok()));
        each.collect::<Option<Vec<u32>>>()
    });
    tokens.flatten().ok_or_else(|| Error::retry("the server does not tell the tokens of a text"))
}

#[cfg(test)]
mod tests;
