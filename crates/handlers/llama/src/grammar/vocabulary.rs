//! Vocabulary of a model for grammars: the bytes of its tokens in a trie.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::api::ParserLimits;
use llguidance::earley::SlicedBiasComputer;
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};

/// Maximum length of a token in the trie, in bytes. Longer tokens are never allowed by a grammar.
const MAX_TOKEN_BYTES: usize = 1023;

/// Maximum number of nodes of a trie, which has at most one node a byte.
const MOST_BYTES: usize = 1 << 22;

/// Returns the limits on a grammar as a whole and on each token, in llguidance's units.
///
/// They are counts, so a grammar is refused on every machine or on none. A token takes a few
/// milliseconds at the limit, a grammar some hundred.
pub(super) fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_lexer_states: 20_000,
        max_grammar_size: 500_000,
        precompute_large_lexemes: true,
        // Verbose errors would quote the reply.
        verbose_errors: false,
    }
}

/// Creates the parsers for tokens with these spellings, by id. A token without a spelling is never
/// allowed.
///
/// An end token is added after the model's tokens.
pub(super) fn parsers(mut spellings: Vec<Vec<u8>>) -> Result<ParserFactory, &'static str> {
    for spelling in &mut spellings {
        if spelling.len() > MAX_TOKEN_BYTES || !spelling.iter().all(|byte| is_of_text(*byte)) {
            spelling.clear();
        }
    }
    let bytes: usize = spellings.iter().map(Vec::len).sum();
    if bytes == 0 {
        return Err("this model's tokens spell no text");
    }
    if bytes > MOST_BYTES {
        return Err("this model's tokens are too many to be held to a grammar");
    }
    let end = spellings.len() as u32;
    spellings.push(Vec::new());
    let made = catch_unwind(AssertUnwindSafe(|| {
        let trie = TokTrie::from(&TokRxInfo::new(end + 1, end), &spellings);
        // Approximate, not canonical: the model chooses among the spellings of a text, even if only
        // one text may follow.
        let tokens: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::general_slices();
        ParserFactory::new(&tokens, InferenceCapabilities::default(), &slices)
    }));
    let mut parsers = made.map_err(|_| "this model's tokens cannot be held to a grammar")?;
    *parsers.limits_mut() = limits();
    // Otherwise it would write to standard error.
    parsers.quiet();
    Ok(parsers)
}

/// Returns true if the byte occurs in UTF-8 (RFC 3629, section 4). 0xff has a special meaning in
/// the trie.
fn is_of_text(byte: u8) -> bool {
    !matches!(byte, 0xc0 | 0xc1 | 0xf5..=0xff)
}
