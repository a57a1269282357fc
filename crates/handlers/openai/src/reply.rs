//! Reply in progress: makes pieces of what the server sends.

use std::collections::BTreeSet;
use std::sync::Arc;

use nsbridge_handler::{Error, FinishReason, Result, TextInput, TextPiece};
use parking_lot::Mutex;

use crate::chunk::{Chunk, Token, not_read};
use crate::options::Flavor;
use crate::stops::StopFilter;
use crate::texts::{Open, Texts};
use crate::words::Words;

/// Maximum number of tokens that a server counts and does not send at a time.
const MOST_UNSENT: u64 = 256;

/// Tokens that have ended a reply of this model, as far as this worker has seen them.
pub(crate) type EndTokens = Arc<Mutex<BTreeSet<u32>>>;

/// Reply in progress.
#[derive(Debug)]
pub(crate) struct Reply {
    filter: StopFilter,
    /// Tokens whose character is not complete.
    open: Open,
    /// Text whose last word may go on, where the server tells no tokens.
    words: Words,
    /// Last token with its text, if the server tells the end of a reply only after it.
    waiting: Option<(Token, String)>,
    rules: Rules,
    ended: Option<FinishReason>,
    /// True if the reply ends before the server's own end.
    cut_short: bool,
    /// Number of tokens that the server has counted.
    counted: u64,
}

/// Parameters of a reply beside its text.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) flavor: Flavor,
    pub(crate) stops: Arc<[String]>,
    /// Tokens of the request that end the reply.
    pub(crate) ends: Arc<[u32]>,
    /// True if each token that has a log-probability has its text too.
    pub(crate) token_texts: bool,
    /// Number of most likely tokens of a piece.
    pub(crate) top: usize,
    pub(crate) end_tokens: EndTokens,
    /// True if the last piece of the reply tells its finish reason.
    pub(crate) several: bool,
}

impl Rules {
    /// Creates the rules of a request's replies.
    pub(crate) fn new(input: &TextInput, flavor: Flavor, end_tokens: EndTokens) -> Self {
        let by_us = matches!(flavor, Flavor::Vllm | Flavor::LlamaServer);
        let stops = if by_us { input.stop.clone() } else { Vec::new() };
        Self {
            flavor,
            stops: stops.into(),
            ends: input.stop_token_ids.clone().into(),
            token_texts: input.return_token_texts,
            top: input.top_logprobs.unwrap_or(0) as usize,
            end_tokens,
            several: input.n.is_some_and(|n| n > 1),
        }
    }
}

impl Reply {
    /// Creates a reply that begins, or that goes on after text that `filter` has seen.
    pub(crate) fn new(rules: Rules, filter: StopFilter) -> Self {
        Self {
            filter,
            open: Open::default(),
            words: Words::default(),
            waiting: None,
            rules,
            ended: None,
            cut_short: false,
            counted: 0,
        }
    }

    /// Returns the reason for the end, if the reply has ended.
    pub(crate) fn ended(&self) -> Option<FinishReason> {
        self.ended
    }

    /// Returns true if the server must not go on, because the reply has ended.
    pub(crate) fn is_cut_short(&self) -> bool {
        self.cut_short
    }

    /// Takes a part of the reply. Returns the pieces that are now certain.
    ///
    /// # Errors
    ///
    /// Returns an error if the server does not tell what it must tell.
    pub(crate) async fn take(
        &mut self,
        chunk: Chunk,
        texts: Option<&Texts>,
    ) -> Result<Vec<TextPiece>> {
        if self.ended.is_some() {
            return Ok(Vec::new());
        }
        match texts {
            Some(texts) => self.take_tokens(chunk, texts).await,
            None => Ok(self.take_text(&chunk)),
        }
    }

    async fn take_tokens(&mut self, mut chunk: Chunk, texts: &Texts) -> Result<Vec<TextPiece>> {
        if chunk.tokens.is_empty() && !chunk.text.is_empty() {
            return Err(Error::fatal(format!(
                "the server tells no ids of tokens, as {} does: correct [handler] flavor",
                self.rules.flavor
            )));
        }
        self.add_unsent(&mut chunk, texts)?;
        let parts = self.parts(&chunk, texts).await?;
        let mut pieces = Vec::new();
        for (token, text) in chunk.tokens.into_iter().zip(parts) {
            let before = self.waiting.replace((token, text));
            self.push(before, None, texts, &mut pieces).await?;
        }
        // vLLM tells the end of a reply with its last token, llama-server after it.
        if chunk.finish.is_some() || self.rules.flavor == Flavor::Vllm {
            let last = self.waiting.take();
            self.push(last, chunk.finish, texts, &mut pieces).await?;
        }
        if self.ended.is_none() && chunk.finish.is_some() {
            self.ended = chunk.finish;
            pieces.extend(self.rest());
        }
        Ok(pieces)
    }

    /// Returns the texts of a part's tokens.
    async fn parts(&mut self, chunk: &Chunk, texts: &Texts) -> Result<Vec<String>> {
        if self.rules.flavor == Flavor::Vllm {
            let ids: Vec<u32> = chunk.tokens.iter().filter_map(|token| token.id).collect();
            return texts.divide(&mut self.open, &ids, &chunk.text).await;
        }
        // llama-server sends each token by itself. Those before it are of the same character.
        let mut parts = vec![String::new(); chunk.tokens.len()];
        if let Some(last) = parts.last_mut() {
            last.clone_from(&chunk.text);
        }
        Ok(parts)
    }

    /// Returns a piece of the text that was held back, if the end came without a token.
    fn rest(&mut self) -> Option<TextPiece> {
        let (text, _) = self.filter.push("", true);
        let wanted = self.rules.several || !text.is_empty();
        wanted.then(|| self.piece(Token::default(), text))
    }

    /// Adds the tokens that llama-server counts and does not send: those of a character that was not
    /// complete. Their ids are unknown.
    fn add_unsent(&mut self, chunk: &mut Chunk, texts: &Texts) -> Result<()> {
        let counted = chunk.counts.output.filter(|_| self.rules.flavor == Flavor::LlamaServer);
        let Some(now) = counted else { return Ok(()) };
        let sent = chunk.tokens.len() as u64;
        let unsent = now.saturating_sub(self.counted.saturating_add(sent));
        if unsent > MOST_UNSENT {
            return Err(not_read(texts.root()));
        }
        let blank = (0..unsent).map(|_| Token::default());
        chunk.tokens.splice(0..0, blank);
        self.counted = now.max(self.counted);
        Ok(())
    }

    /// Makes the piece of a token.
    async fn push(
        &mut self,
        token: Option<(Token, String)>,
        finish: Option<FinishReason>,
        texts: &Texts,
        pieces: &mut Vec<TextPiece>,
    ) -> Result<()> {
        let Some((mut token, mut text)) = token.filter(|_| self.ended.is_none()) else {
            return Ok(());
        };
        let of_request = token.id.is_some_and(|id| self.rules.ends.contains(&id));
        // llama-server does not know them.
        let is_end = of_request && self.rules.flavor == Flavor::LlamaServer;
        if is_end {
            text.clear();
        }
        let finish = if is_end { Some(FinishReason::Stop) } else { finish };
        let (out, met) = self.filter.push(&text, finish.is_some());
        self.ended = if met { Some(FinishReason::StopText) } else { finish };
        self.cut_short = met || is_end;
        if finish == Some(FinishReason::Stop) && text.is_empty() && !of_request {
            self.rules.end_tokens.lock().extend(token.id);
        }
        self.complete(&mut token, texts).await?;
        pieces.push(self.piece(token, out));
        Ok(())
    }

    /// Keeps what the request asks for of a token's log-probabilities.
    async fn complete(&self, token: &mut Token, texts: &Texts) -> Result<()> {
        token.top.truncate(self.rules.top);
        if token.logprob.is_none() || !self.rules.token_texts {
            token.text = None;
            token.top.iter_mut().for_each(|top| top.text = None);
            return Ok(());
        }
        if token.text.is_none() {
            add_texts(token, texts).await?;
        }
        Ok(())
    }

    fn take_text(&mut self, chunk: &Chunk) -> Vec<TextPiece> {
        let mut words = self.words.push(&chunk.text);
        if chunk.finish.is_some() {
            self.ended = chunk.finish;
            words.extend(self.words.rest());
            if words.is_empty() && self.rules.several {
                words.push(String::new());
            }
        }
        let last = words.len().wrapping_sub(1);
        let pieces = words.into_iter().enumerate().map(|(at, word)| {
            let finish_reason = self.ended.filter(|_| self.rules.several && at == last);
            TextPiece { finish_reason, ..TextPiece::new(0, word) }
        });
        pieces.collect()
    }

    fn piece(&self, token: Token, text: String) -> TextPiece {
        let Token { id, logprob, text: token_text, top: top_logprobs } = token;
        let finish_reason = self.ended.filter(|_| self.rules.several);
        TextPiece {
            logprob,
            token_text,
            top_logprobs,
            finish_reason,
            ..TextPiece::new(id.unwrap_or_default(), text)
        }
    }
}

/// Adds the texts of a token and of the most likely ones.
pub(crate) async fn add_texts(token: &mut Token, texts: &Texts) -> Result<()> {
    if let Some(id) = token.id {
        token.text = Some(texts.alone(id).await?.as_bytes().into());
    }
    for top in &mut token.top {
        top.text = Some(texts.alone(top.token).await?.as_bytes().into());
    }
    Ok(())
}
