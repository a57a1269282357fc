//! What the text of a reply may be, held to token by token.
//!
//! The parser is crate `llguidance`: Earley's algorithm over lexemes that are derivatives of regular
//! expressions (Koppel et al., <https://github.com/guidance-ai/llguidance>). After each token it
//! says which tokens may follow, as bits. That depends on the grammar and the tokens before it
//! alone: its limits count items and never time, and no token is passed over because only one
//! could follow.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::OnceLock;

use llguidance::api::StopReason;
use llguidance::panic_utils::catch_unwind;
use llguidance::{ParserFactory, TokenParser};
use nsbridge_handler::{Error, Result};

use crate::{Allowed, TokenSet};

mod rule;
mod scout;
mod vocabulary;
mod work;

pub use rule::Rule;
pub(crate) use scout::Scout;

/// The crates that decide which tokens may follow: part of a worker's fingerprint.
pub(crate) const VERSION: &str = "llguidance 1.9.1, toktrie 1.9.1, derivre 0.3.13";

/// Why there is no next token: none that the parser would take, whatever is banned beside.
const NO_TOKEN: &str = "this model's tokens cannot spell what it asks for";

/// What grammars are compiled against: a model's tokens.
///
/// They are put into a trie when the first grammar is asked for.
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
    /// Those of a model whose tokens are spelt so, by id; one that is spelt as nothing is no part of a
    /// text. It is asked once, when it is needed.
    pub fn new(spell: impl Fn() -> Vec<Vec<u8>> + Send + Sync + 'static) -> Self {
        Self { spell: Box::new(spell), parsers: OnceLock::new() }
    }

    /// The grammar of a rule, at its beginning.
    ///
    /// # Errors
    ///
    /// A sentence that names the field: the rule cannot be compiled or met, or these tokens cannot
    /// be held to any.
    pub fn compile(&self, rule: &Rule) -> Result<Grammar> {
        match self.parsers.get_or_init(|| vocabulary::parsers((self.spell)())) {
            Ok(parsers) => Grammar::new(parsers, rule),
            Err(why) => Err(Error::bad_input(format!("`response_format`: {why}"))),
        }
    }
}

/// What a reply is held to, after the tokens that it has.
pub struct Grammar {
    parser: TokenParser,
    /// What may follow, once it was asked for.
    next: Option<Next>,
}

impl Clone for Grammar {
    /// A copy of its own, that shares nothing: what one has seen costs the other nothing.
    fn clone(&self) -> Self {
        Self { parser: self.parser.deep_clone(), next: self.next.clone() }
    }
}

/// What may follow.
#[derive(Clone)]
struct Next {
    /// A bit for each token.
    tokens: Vec<u32>,
    /// Whether the text may end here.
    end: bool,
}

impl fmt::Debug for Grammar {
    /// Leaves out the grammar, which the user wrote.
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

    /// The tokens that may follow. `ends` end the reply: they may follow where the text may end, and
    /// nowhere else.
    ///
    /// # Errors
    ///
    /// A sentence for the caller: these tokens cannot spell how the text goes on, or it takes more
    /// than the limits allow to say.
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

    /// Goes on after a token that is allowed and ends nothing; true if only an end may follow.
    ///
    /// # Errors
    ///
    /// A sentence for the caller: it takes more than the limits allow.
    pub fn take(&mut self, token: u32) -> Result<bool> {
        self.next = None;
        let parser = &mut self.parser;
        let taken = catch_unwind(AssertUnwindSafe(|| parser.consume_token(token)));
        taken.map_err(|_| refused(self.limit()))?;
        self.is_over().map_err(refused)
    }

    /// Goes back to before the last so many tokens; false if that cannot be.
    pub(crate) fn take_back(&mut self, tokens: usize) -> bool {
        if tokens > 0 {
            self.next = None;
        }
        let parser = &mut self.parser;
        matches!(catch_unwind(AssertUnwindSafe(|| parser.rollback(tokens))), Ok(()))
    }

    /// Whether only an end may follow.
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
        // The trie's end is no token of the model: it stands behind them.
        let behind = tokens.len() - 1;
        let end = tokens.get(behind);
        tokens.set(behind, false);
        Ok(Next { tokens: tokens.as_slice().to_vec(), end })
    }

    /// Why the parser does not go on.
    fn limit(&self) -> &'static str {
        match self.parser.stop_reason() {
            StopReason::NoExtensionBias => NO_TOKEN,
            _ => "to follow it takes too much work",
        }
    }
}

/// The error of a grammar that was compiled and cannot be followed further.
fn refused(why: &str) -> Error {
    Error::bad_input(format!("`response_format`: {why}"))
}

#[cfg(test)]
mod tests;
