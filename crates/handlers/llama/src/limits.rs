//! Limits on what one request may make a worker do, in one place.
//!
//! Each limit is checked before the work that it bounds. `docs/protocol.md` has them as a table,
//! with the cost at the limit. The limits of lists are in
//! [`TextInput`](nsbridge_handler::TextInput), since they apply while it is parsed. All limits are
//! counts, so a request is refused by every worker of a model or by none.

use std::time::Duration;

/// Maximum number of replies to one prompt, as in OpenAI's interface.
pub(crate) const REPLIES: u32 = 128;

/// Divisor for the part of a step that the replies of one request may use. A token of a reply costs
/// more than a token of a prompt: it also takes a row of logits and sampling.
pub(crate) const PART_OF_STEP: usize = 8;

/// Maximum number of replies to one prompt with a response format. Each reply has a grammar of its
/// own, of some 20 MiB at most.
pub(crate) const FORMAT_REPLIES: u64 = 32;

/// Maximum product of prompt tokens and replies: each reply holds the prompt's ids, four bytes
/// each.
pub(crate) const PROMPT_TOKENS: usize = 1 << 24;

/// Maximum length of a stop sequence, in bytes.
pub(crate) const STOP_BYTES: usize = 256;

/// Maximum length of a message's `role`, in bytes.
pub(crate) const ROLE_BYTES: usize = 64;

/// Maximum number of `top_logprobs` of a token, as in OpenAI's interface.
pub(crate) const TOP_LOGPROBS: u32 = 20;

/// Maximum bytes of the pieces of a reply, as in the protocol.
pub(crate) const REPLY_BYTES: usize = 8 << 20;

/// Maximum bytes of one piece, as in the protocol.
pub(crate) const PIECE_BYTES: usize = 64 << 10;

/// Bytes of a number of a vector, as JSON.
pub(crate) const FLOAT_BYTES: usize = 15;

/// Bytes of the piece of an echoed token, its text left out.
pub(crate) const ECHO_PIECE_BYTES: usize = 48;

/// Bytes of the piece of a token of the prompt with its log-probability, its text left out.
pub(crate) const PROMPT_PIECE_BYTES: usize = 112;

/// Bytes of each of the `top_logprobs` in a piece.
pub(crate) const TOP_LOGPROB_BYTES: usize = 42;

/// Bytes of the text of a token in a piece, by the average of a vocabulary. Longer texts can make a
/// reply too large, which then ends with that error.
pub(crate) const TOKEN_TEXT_BYTES: usize = 32;

/// Cost of a token of a prompt with its log-probability, in tokens of a plain prompt: it also takes
/// a row of logits and a log-softmax over the vocabulary.
pub(crate) const SCORE_COST: usize = 2;

/// Maximum bytes of a prompt, or of a rendered chat, per token of the context. Text of any language
/// has less than half as many bytes a token; only long runs of spaces have more.
pub(crate) const BYTES_PER_TOKEN: usize = 16;

/// Bytes of a prompt that are allowed with any context.
pub(crate) const FEW_BYTES: usize = 64 << 10;

/// Maximum product of input bytes and replies for which a prompt is prepared on the thread of the
/// calls. At the highest measured cost of 2 µs a byte, that takes 2 ms.
pub(crate) const IN_PLACE: usize = 1 << 10;

/// Maximum number of instructions of a chat template. A chat of 4,096 messages takes less than a
/// million, and some twenty million take a second.
pub(crate) const TEMPLATE_FUEL: u64 = 5_000_000;

/// Maximum number of spaces by which `tojson` may indent.
pub(crate) const INDENT: usize = 16;

/// Maximum number of token ids per row of the embedding: `tokenizer.json` may have some ids that
/// the model lacks, but not many.
pub(crate) const IDS_PER_ROW: usize = 2;

/// Number of token ids that is allowed for any model.
pub(crate) const FEW_IDS: usize = 1 << 16;

/// Memory of all requests that a worker holds, in bytes, apart from the model, its cache and the
/// sealed requests. A request's part is estimated before it is prepared.
pub(crate) const HELD_BYTES: u64 = 1536 << 20;

/// Maximum memory of a grammar, in bytes, by llguidance's own limits.
pub(crate) const GRAMMAR_BYTES: u64 = 20 << 20;

/// Memory of a byte of input in one reply: at most a token, with its id in the reply, in the
/// history and in the tables of blocks.
pub(crate) const BYTES_PER_BYTE: u64 = 16;

/// Time after which the preparation of a request counts as stuck. One at the bounds of a context of
/// a million tokens takes 32 s.
pub(crate) const PREPARATION_TIMEOUT: Duration = Duration::from_secs(120);

/// Number of threads that prepare prompts and grammars.
pub(crate) const THREADS: usize = 2;
