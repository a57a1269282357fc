//! The next token: one pure function of logits, history, parameters and counter-keyed noise.
//!
//! `argmax(logit + temperature * gumbel)` over the candidates draws from the softmax at that
//! temperature (Gumbel-max; Maddison et al., arXiv:1411.0030), and at temperature 0 it is greedy
//! decoding. The noise is a hash of where it is used, so a reply that is taken over in its middle,
//! or whose tokens were drafted by another model, goes on with the very noise it would have had.
//! Logarithms are those of crate `libm` and exponentials our own: std's differ between machines.
//!
//! # Order
//!
//! 1. the grammar's [`Allowed`], [`logit_bias`](Sampling::logit_bias), [`banned`](Sampling::banned),
//!    [`banned_sequences`](Sampling::banned_sequences), [`min_tokens`](Sampling::min_tokens);
//! 2. repetition penalty, then frequency and presence penalty;
//! 3. temperature;
//! 4. top-k, then top-p, then min-p, each of what the one before it left.
//!
//! This is the order of transformers' `generate`, and its rules hold at the edges: the token that
//! reaches `top_p` is kept, and so is one that lies on the threshold of `min_p`. Only ties differ:
//! transformers keeps every token that equals the k-th, and cuts equals at the edge of the nucleus
//! in the order of its sort; here the smaller id is the likelier of two equals, so that `top_k` is
//! never more than k tokens and the same everywhere. A logit that is not a number is passed over,
//! and a token whose logit is negative infinity is never chosen.

mod adjust;
mod allowed;
mod cut;
mod draw;
mod history;
mod logprobs;
mod noise;
mod row;
mod tokens;
mod weight;

pub use allowed::Allowed;
pub use history::History;
pub use logprobs::{Logprobs, logprobs};
pub use noise::Noise;
pub use tokens::{Sequences, TokenSet};

use cut::Room;
use draw::Draw;
use row::Row;

/// How to choose among the tokens; the default draws from the model's own distribution.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Added to the logits of these tokens, each named once.
    pub logit_bias: Vec<(u32, f32)>,
    /// Tokens that are never chosen.
    pub banned: TokenSet,
    /// Sequences whose last token is not chosen where prompt and reply end in those before it, as
    /// transformers' `bad_words_ids`; an empty one is none.
    pub banned_sequences: Sequences,
    /// Tokens that are not chosen before the reply has `min_tokens`: those that would end it.
    pub ends: TokenSet,
    /// How many tokens the reply has at least.
    pub min_tokens: usize,
    /// What the logits of tokens that occurred in the prompt or the reply are divided by, or
    /// multiplied if negative (Keskar et al., arXiv:1909.05858; as in transformers); 1 is none.
    pub repetition_penalty: f32,
    /// Subtracted from a token's logit for each time it occurred in the reply, the prompt aside,
    /// as in OpenAI's interface.
    pub frequency_penalty: f32,
    /// Subtracted once from the logits of tokens that occurred in the reply, the prompt aside, as
    /// in OpenAI's interface.
    pub presence_penalty: f32,
    /// Weight of the noise; 0 takes the likeliest token.
    pub temperature: f32,
    /// Choose among this many likeliest tokens; 0 means all.
    pub top_k: u32,
    /// Choose among the likeliest tokens that together hold this probability; 1 means all.
    pub top_p: f32,
    /// Choose among tokens at least this probable, as a share of the likeliest token's
    /// probability (Nguyen et al., arXiv:2407.01082); 0 means all.
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

/// Room for the work, kept from call to call; what is in it changes no choice.
#[derive(Debug, Default)]
pub struct Scratch {
    adjusted: Vec<f32>,
    maxima: Vec<f32>,
    room: Room,
}

/// Chooses the reply's token number `index`; none if no token may be chosen.
///
/// `history` holds what comes before it, and `allowed` the tokens that a grammar allows after that;
/// all of them without one. The result depends on nothing but the arguments before
/// `scratch`.
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
