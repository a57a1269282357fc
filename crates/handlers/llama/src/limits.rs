//! Bounds on what one request may make a worker do, in one place.
//!
//! They are looked at before the work that they bound. `docs/protocol.md` has them as a table, with
//! the cost at the bound; those of the lists are [`TextInput`](nsbridge_handler::TextInput)'s own, since
//! they hold while it is read. All of them are counts: a request is refused by every worker of a
//! model or by none.

/// Replies to one prompt, as in OpenAI's interface.
pub(crate) const REPLIES: u32 = 128;

/// The part of a step that goes to the replies of one request, as its divisor: a token of a reply takes
/// a row of logits and a choice beside what a token of a prompt takes.
pub(crate) const PART_OF_STEP: usize = 8;

/// Replies to one prompt that are held to a format: each has a grammar of its own, of some 20 MiB at
/// most.
pub(crate) const FORMAT_REPLIES: u64 = 32;

/// Tokens of the prompt times replies: each reply holds the prompt's ids, four bytes each.
pub(crate) const PROMPT_TOKENS: usize = 1 << 24;

/// Bytes of one text of `stop`.
pub(crate) const STOP_BYTES: usize = 256;

/// Bytes of a message's `role`.
pub(crate) const ROLE_BYTES: usize = 64;

/// Likeliest tokens whose log-probabilities are told, as in OpenAI's interface.
pub(crate) const TOP_LOGPROBS: u32 = 20;

/// Bytes of prompt, or of a rendered chat, for each token of the context. Texts of any language have
/// less than half of that a token; only long runs of blanks have more.
pub(crate) const BYTES_PER_TOKEN: usize = 16;

/// Bytes of prompt that are not too many for any context.
pub(crate) const FEW_BYTES: usize = 64 << 10;

/// Bytes of input times replies up to which a prompt is made ready on the calls' own thread: at two
/// microseconds a byte, the most that was measured, two milliseconds.
pub(crate) const IN_PLACE: usize = 1 << 10;

/// Instructions of a chat template, of which a chat of 4,096 messages takes less than a million and a
/// second some twenty million.
pub(crate) const TEMPLATE_FUEL: u64 = 5_000_000;

/// Blanks by which `tojson` may indent.
pub(crate) const INDENT: usize = 16;

/// Token ids for each row of the embedding: `tokenizer.json` may have some that the model has not, and
/// not many more.
pub(crate) const IDS_PER_ROW: usize = 2;

/// Token ids that are not too many for any model.
pub(crate) const FEW_IDS: usize = 1 << 16;

/// Threads that prompts and grammars are made ready on.
pub(crate) const THREADS: usize = 2;
