//! The next token: one pure function of logits, history, parameters and counter-keyed noise.
//!
//! `argmax(logit + temperature * gumbel)` over the candidates draws from the softmax at that
//! temperature (Gumbel-max; Maddison et al., arXiv:1411.0030), and at temperature 0 it is greedy
//! decoding. The noise is a hash of where it is used, so a reply that is taken over in its middle
//! goes on with the very noise it would have had. Logarithms and exponentials are those of crate
//! `libm`, since std's differ between machines.

/// How to choose among the tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Weight of the noise; 0 takes the likeliest token.
    pub temperature: f32,
    /// Choose among this many likeliest tokens; 0 means all.
    pub top_k: u32,
    /// Choose among the likeliest tokens that together hold this probability; 1 means all.
    pub top_p: f32,
    /// What logits of tokens that occurred before are divided by, or multiplied if negative
    /// (Keskar et al., arXiv:1909.05858).
    pub repetition_penalty: f32,
}

/// The noise of one reply.
#[derive(Clone, Copy, Debug)]
pub struct Noise {
    key: u64,
}

impl Noise {
    /// The noise that grows from a request's seed.
    ///
    /// The prompt is part of it, so that requests which share a seed do not share noise.
    pub fn new(seed: u64, prompt: &[u32]) -> Self {
        let start = mix(seed.wrapping_add(GOLDEN));
        Self { key: prompt.iter().fold(start, |key, &token| mix(key ^ mix(u64::from(token) + 1))) }
    }

    /// 64 bits for each token id, for the reply's token number `index`.
    fn at(self, index: usize) -> impl Fn(u32) -> u64 {
        let state = mix(self.key ^ mix(index as u64 + 1));
        move |token| mix(state.wrapping_add((u64::from(token) + 1).wrapping_mul(GOLDEN)))
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014, with the constants of
/// Stafford's variant 13).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A standard Gumbel variate from 52 of the bits; finite.
fn gumbel(bits: u64) -> f64 {
    let uniform = ((bits >> 12) as f64 + 0.5) * 2f64.powi(-52);
    -libm::log(-libm::log(uniform))
}

/// What [`gumbel`] cannot exceed, without a logarithm: `-ln(-ln u) <= -ln(1 - u)`.
fn gumbel_bound(bits: u64) -> f64 {
    f64::from(bits.leading_ones() + 1) * std::f64::consts::LN_2 + 1e-9
}

/// Chooses the reply's token number `index`; none if no logit is a number.
///
/// `history` holds the tokens of the prompt and of the reply so far. The order is that of
/// transformers: penalty, temperature, top-k, top-p. Of equals the smallest id counts first.
pub fn sample(
    logits: &[f32],
    history: &[u32],
    sampling: &Sampling,
    noise: Noise,
    index: usize,
) -> Option<u32> {
    let logits = penalised(logits, history, sampling.repetition_penalty);
    let temperature = f64::from(sampling.temperature);
    let bits = noise.at(index);
    let mut best: Option<(f64, u32)> = None;
    for token in candidates(&logits, sampling) {
        let logit = f64::from(logits[token as usize]);
        let bits = bits(token);
        if best.is_some_and(|(score, _)| logit + temperature * gumbel_bound(bits) < score) {
            continue;
        }
        let score = logit + temperature * gumbel(bits);
        let better = match best {
            None => !score.is_nan(),
            Some((top, id)) => score > top || (score == top && token < id),
        };
        if better {
            best = Some((score, token));
        }
    }
    best.map(|(_, token)| token)
}

fn penalised(logits: &[f32], history: &[u32], penalty: f32) -> Vec<f32> {
    let mut out = logits.to_vec();
    if penalty != 1.0 {
        for &token in history {
            // From the raw logit, so that a token that occurred twice is not punished twice.
            if let Some(&logit) = logits.get(token as usize) {
                out[token as usize] = if logit > 0.0 { logit / penalty } else { logit * penalty };
            }
        }
    }
    out
}

/// The tokens left by top-k and top-p.
fn candidates(logits: &[f32], sampling: &Sampling) -> Vec<u32> {
    let mut tokens: Vec<u32> = (0..logits.len() as u32).collect();
    let top_k = match sampling.top_k {
        0 => tokens.len(),
        k => tokens.len().min(k as usize),
    };
    let nucleus = sampling.top_p < 1.0 && sampling.temperature > 0.0;
    if top_k == tokens.len() && !nucleus {
        return tokens;
    }
    let logit = |token: u32| logits[token as usize];
    let likelier = |a: &u32, b: &u32| logit(*b).total_cmp(&logit(*a)).then(a.cmp(b));
    if top_k < tokens.len() {
        tokens.select_nth_unstable_by(top_k, likelier);
        tokens.truncate(top_k);
    }
    tokens.sort_unstable_by(likelier);
    if nucleus {
        tokens.truncate(nucleus_len(&tokens, logit, sampling));
    }
    tokens
}

/// How many of the tokens, likeliest first, it takes to hold the probability `top_p`.
fn nucleus_len(tokens: &[u32], logit: impl Fn(u32) -> f32, sampling: &Sampling) -> usize {
    let Some(&first) = tokens.first() else { return 0 };
    let weight = |token: u32| {
        let below = f64::from(logit(token)) - f64::from(logit(first));
        libm::exp(below / f64::from(sampling.temperature))
    };
    let weights: Vec<f64> = tokens.iter().map(|&token| weight(token)).collect();
    let enough = f64::from(sampling.top_p) * weights.iter().sum::<f64>();
    let mut held = 0.0;
    let short = weights.iter().take_while(|weight| {
        held += **weight;
        held < enough
    });
    (short.count() + 1).min(tokens.len())
}

#[cfg(test)]
mod tests;
