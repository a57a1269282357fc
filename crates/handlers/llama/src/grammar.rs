//! Grammar-constrained decoding: restricts the text of a reply token by token.
//!
//! The parser is the crate `llguidance`: Earley's algorithm over lexemes that are derivatives of
//! regular expressions (Koppel et al., <https://github.com/guidance-ai/llguidance>). After each
//! token it computes the token mask of the next one. The mask depends only on the grammar and the
//! tokens before it: limits count items and never time, and a token is never skipped because it is
//! the only one allowed.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::OnceLock;

use llguidance::api::StopReason;
use llguidance::panic_utils::catch_unwind;
use llguidance::{ParserFactory, TokenParser};
use nsbridge_handler::{Error, Result};

use crate::sample::{Allowed, TokenSet};

mod lookahead;
mod rule;
mod vocabulary;
mod work;

pub(crate) use lookahead::Lookahead;
pub use rule::Rule;

/// Versions of the crates that compute token masks, which are part of a worker's fingerprint.
pub(crate) const VERSION: &str = "llguidance 1.9.1, toktrie 1.9.1, derivre 0.3.13";

/// Reason of a grammar without a next token: the parser accepts none, regardless of bans.
const NO_TOKEN: &str = "this model's tokens cannot spell what it asks for";

/// Compiler of grammars for a model's tokens.
///
/// The trie of the tokens is built when the first grammar is compiled.
pub struct Grammars {
    spell: Box<dyn Fn() -> Vec<Vec<u8>> + Send + Sync>,
    parsers: OnceLock<std::result::Result<ParserFactory, &'static str>>,
}

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Grammars")
    }
}

impl Grammars {
    /// Creates a compiler for tokens with the spellings that `spell` returns, by id. A token with
    /// an empty spelling is never part of a text. `spell` is called once, when the first grammar is
    /// compiled.
    pub fn new(spell: impl Fn() -> Vec<Vec<u8>> + Send + Sync + 'static) -> Self {
        Self { spell: Box::new(spell), parsers: OnceLock::new() }
    }

    /// Compiles a rule into a grammar in its initial state.
    ///
    /// # Errors
    ///
    /// Returns an error that names the field if the rule cannot be compiled or satisfied, or if
    /// these tokens do not support grammars.
    pub fn compile(&self, rule: &Rule) -> Result<Grammar> {
        match self.parsers.get_or_init(|| vocabulary::parsers((self.spell)())) {
            Ok(parsers) => Grammar::new(parsers, rule),
            Err(why) => Err(Error::bad_input(format!("`response_format`: {why}"))),
        }
    }
}

/// State of a grammar after the tokens of a reply.
pub struct Grammar {
    parser: TokenParser,
    /// Token mask of the next token, if it was computed.
    next: Option<Next>,
}

impl Clone for Grammar {
    /// Returns a deep copy, so that the work of one copy does not count against the limits of the
    /// other.
    fn clone(&self) -> Self {
        Self { parser: self.parser.deep_clone(), next: self.next.clone() }
    }
}

/// Token mask of the next token.
#[derive(Clone)]
struct Next {
    /// One bit for each token.
    tokens: Vec<u32>,
    /// True if the text may end here.
    end: bool,
}

impl fmt::Debug for Grammar {
    /// Omits the grammar, which is text of the request.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Grammar")
    }
}

impl Grammar {
    fn new(parsers: &ParserFactory, rule: &Rule) -> Result<Self> {
        let parser = parsers.create_parser(rule.grammar());
        let mut parser = parser.map_err(|error| rule.refused(&error.to_string()))?;
        parser.start_without_prompt();
        let mut grammar = Self { parser, next: None };
        let over = grammar.is_over().map_err(|why| rule.refused(why))?;
        let next = match grammar.next() {
            Ok(next) => next,
            Err(NO_TOKEN) => return Err(rule.refused("no text of this model's tokens meets it")),
            Err(why) => return Err(rule.refused(why)),
        };
        if over || next.tokens.iter().all(|word| *word == 0) {
            return Err(rule.refused("it allows no text but the empty one"));
        }
        Ok(grammar)
    }

    /// Returns the token mask of the next token. The tokens in `ends` end the reply, so they are
    /// allowed exactly where the text may end.
    ///
    /// # Errors
    ///
    /// Returns an error with a sentence for the caller if these tokens cannot spell a continuation,
    /// or if computing the mask exceeds the limits.
    pub fn allowed(&mut self, ends: &TokenSet) -> Result<Allowed<'_>> {
        let Next { tokens, end } = self.next().map_err(refused)?;
        for (word, ends) in tokens.iter_mut().zip(ends.words()) {
            *word = if *end { *word | ends } else { *word & !ends };
        }
        if tokens.iter().all(|word| *word == 0) {
            return Err(refused(
                "only tokens that end a reply, as by `stop_token_ids`, go on with it",
            ));
        }
        Ok(Allowed::new(tokens))
    }

    /// Advances by a token that is allowed and does not end the reply. Returns true if only an end
    /// may follow.
    ///
    /// # Errors
    ///
    /// Returns an error with a sentence for the caller if the work exceeds the limits.
    pub fn take(&mut self, token: u32) -> Result<bool> {
        self.next = None;
        let parser = &mut self.parser;
        let taken = catch_unwind(AssertUnwindSafe(|| parser.consume_token(token)));
        taken.map_err(|_| refused(self.limit()))?;
        self.is_over().map_err(refused)
    }

    /// Takes back the last `tokens` tokens. Returns false if that is impossible.
    pub(crate) fn take_back(&mut self, tokens: usize) -> bool {
        if tokens > 0 {
            self.next = None;
        }
        let parser = &mut self.parser;
        matches!(catch_unwind(AssertUnwindSafe(|| parser.rollback(tokens))), Ok(()))
    }

    /// Returns true if only an end may follow.
    fn is_over(&mut self) -> std::result::Result<bool, &'static str> {
        let parser = &mut self.parser;
        catch_unwind(AssertUnwindSafe(|| parser.check_stop())).map_err(|_| self.limit())
    }

    fn next(&mut self) -> std::result::Result<&mut Next, &'static str> {
        let next = match self.next.take() {
            Some(next) => Ok(next),
            None => self.look_ahead(),
        };
        Ok(self.next.insert(next?))
    }

    fn look_ahead(&mut self) -> std::result::Result<Next, &'static str> {
        let parser = &mut self.parser;
        let tokens = catch_unwind(AssertUnwindSafe(|| parser.compute_mask()));
        let mut tokens = tokens.map_err(|_| self.limit())?;
        // The trie's end token follows the model's tokens and is none of them.
        let behind = tokens.len() - 1;
        let end = tokens.get(behind);
        tokens.set(behind, false);
        Ok(Next { tokens: tokens.as_slice().to_vec(), end })
    }

    /// Returns the reason why the parser stopped.
    fn limit(&self) -> &'static str {
        match self.parser.stop_reason() {
            StopReason::NoExtensionBias => NO_TOKEN,
            _ => "to follow it takes too much work",
        }
    }
}

/// Error of a grammar that was compiled and cannot be followed further.
fn refused(why: &str) -> Error {
    Error::bad_input(format!("`response_format`: {why}"))
}

#[cfg(test)]
mod tests;
