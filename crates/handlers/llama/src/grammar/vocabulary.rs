//! A model's tokens as grammars see them: their bytes, in a trie.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::api::ParserLimits;
use llguidance::earley::SlicedBiasComputer;
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};

/// Longer tokens are never chosen: the trie has no room for them.
const LONGEST: usize = 1023;

/// Nodes that a trie can have, and so bytes that are surely not too many.
const MOST_BYTES: usize = 1 << 22;

/// What is done at most, in llguidance's units: for a grammar at once, and for each token.
///
/// They are counts, so that a grammar is refused on every machine or on none. A token's are a few
/// milliseconds of work; a grammar's, some hundred.
pub(super) fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_lexer_states: 20_000,
        max_grammar_size: 500_000,
        precompute_large_lexemes: true,
        // They would quote the reply.
        verbose_errors: false,
    }
}

/// Makes parsers over tokens of these spellings, by id; a token without one is never chosen.
///
/// Behind the model's tokens it has one that means the end.
pub(super) fn parsers(mut spellings: Vec<Vec<u8>>) -> Result<ParserFactory, &'static str> {
    for spelling in &mut spellings {
        if spelling.len() > LONGEST || !spelling.iter().all(|byte| is_of_text(*byte)) {
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
        // Not canonical: the model decides how a text is spelt, also where only one may follow.
        let tokens: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::general_slices();
        ParserFactory::new(&tokens, InferenceCapabilities::default(), &slices)
    }));
    let mut parsers = made.map_err(|_| "this model's tokens cannot be held to a grammar")?;
    *parsers.limits_mut() = limits();
    // It would write to standard error.
    parsers.quiet();
    Ok(parsers)
}

/// Whether the byte occurs in UTF-8 (RFC 3629, section 4). 0xff would mean something else to the trie.
fn is_of_text(byte: u8) -> bool {
    !matches!(byte, 0xc0 | 0xc1 | 0xf5..=0xff)
}
