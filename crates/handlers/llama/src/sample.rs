//! Sampling of the next token: a pure function of logits, history, parameters and counter-keyed
//! noise.
//!
//! `argmax(logit + temperature * gumbel)` over the candidates draws from the softmax at that
//! temperature (Gumbel-max; Maddison et al., arXiv:1411.0030). At temperature 0 it is greedy
//! decoding. The noise is a hash of the position in the reply and the token id. So a reply that
//! another worker continues, or whose tokens a draft model guessed, gets the same noise as without.
//! Logarithms are those of the crate `libm` and exponentials are our own, because those of std
//! differ between machines.
//!
//! # Order
//!
//! 1. the grammar's [`Allowed`], [`logit_bias`](Sampling::logit_bias),
//!    [`banned`](Sampling::banned), [`banned_sequences`](Sampling::banned_sequences),
//!    [`min_tokens`](Sampling::min_tokens);
//! 2. repetition penalty, then frequency and presence penalty;
//! 3. temperature;
//! 4. top-k, then top-p, then min-p, each on what the one before it left.
//!
//! This is the order of transformers' `generate`, and its edge cases are the same: the token that
//! reaches `top_p` is kept, and so is a token on the threshold of `min_p`. Only ties differ.
//! transformers keeps every token that equals the k-th, and cuts equal tokens at the edge of the
//! nucleus in the order of its sort. Here the smaller id ranks first among equals, so `top_k` keeps
//! at most k tokens, the same on every machine. A NaN logit is ignored, and a token whose logit is
//! negative infinity is never chosen.

mod adjust;
mod allowed;
mod cut;
pub(crate) mod device;
mod draw;
mod history;
mod logprobs;
mod noise;
mod row;
mod rows;
mod tokens;
mod weight;

pub use allowed::Allowed;
pub(crate) use device::Wanted;
pub use history::History;
pub(crate) use logprobs::rank_of;
pub use logprobs::{Logprobs, logprobs};
pub use noise::Noise;
pub(crate) use rows::{Chosen, Draws, Holder, Row as LogitsRow};
pub use tokens::{Sequences, TokenSet};

use cut::Room;
use draw::Draw;
use row::Row;

/// Sampling parameters of a request. The default draws from the model's own distribution.
///
/// A literal ends in `..Sampling::default()`: minor versions add fields.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Biases added to the logits of these tokens. Each token occurs once.
    pub logit_bias: Vec<(u32, f32)>,
    /// Tokens that are never chosen.
    pub banned: TokenSet,
    /// Banned sequences: the last token of a sequence is not chosen where prompt and reply end in
    /// the tokens before it, as with transformers' `bad_words_ids`. Empty sequences are ignored.
    pub banned_sequences: Sequences,
    /// End tokens, which are not chosen before the reply has `min_tokens` tokens.
    pub ends: TokenSet,
    /// Minimum number of tokens of the reply.
    pub min_tokens: usize,
    /// Repetition penalty for tokens that occurred in the prompt or the reply: a positive logit is
    /// divided by it, a negative one multiplied (Keskar et al., arXiv:1909.05858; as in
    /// transformers). 1 turns it off.
    pub repetition_penalty: f32,
    /// Frequency penalty, subtracted from a token's logit once for each occurrence in the reply
    /// (not the prompt), as in OpenAI's interface.
    pub frequency_penalty: f32,
    /// Presence penalty, subtracted once from the logit of a token that occurred in the reply (not
    /// the prompt), as in OpenAI's interface.
    pub presence_penalty: f32,
    /// Weight of the noise; 0 takes the likeliest token.
    pub temperature: f32,
    /// Number of likeliest tokens to choose among; 0 means all.
    pub top_k: u32,
    /// Probability mass of the likeliest tokens to choose among; 1 means all.
    pub top_p: f32,
    /// Minimum probability of a token, as a fraction of the likeliest token's probability (Nguyen
    /// et al., arXiv:2407.01082); 0 means all.
    pub min_p: f32,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            logit_bias: Vec::new(),
            banned: TokenSet::default(),
            banned_sequences: Sequences::default(),
            ends: TokenSet::default(),
            min_tokens: 0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
        }
    }
}

/// Buffers reused between calls. Their contents do not affect the result.
#[derive(Debug, Default)]
pub struct Scratch {
    adjusted: Vec<f32>,
    maxima: Vec<f32>,
    room: Room,
}

/// Samples the token at position `index` of the reply. Returns `None` if no token may be chosen.
///
/// `history` holds the prompt and the reply before it. `allowed` is the grammar's token mask for
/// this position; without one, all tokens are allowed. The result depends only on the arguments
/// before `scratch`.
pub fn sample(
    logits: &[f32],
    history: &History,
    sampling: &Sampling,
    allowed: Option<Allowed<'_>>,
    noise: Noise,
    index: usize,
    scratch: &mut Scratch,
) -> Option<u32> {
    let Scratch { adjusted, maxima, room } = scratch;
    let logits = adjust::adjusted(logits, history, sampling, allowed, index, adjusted);
    let row = Row::new(logits, maxima)?;
    let mut draw = Draw::new(noise.at(index), sampling.temperature);
    draw.among(&row, cut::cut(&row, sampling, room));
    draw.choice()
}

#[cfg(test)]
mod tests;
