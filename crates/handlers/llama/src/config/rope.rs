//! Rotary positions: how fast each pair of dimensions turns.

mod frequencies;
mod parameters;

pub(super) use self::parameters::Parameters;

/// Rotary position embedding (Su et al., arXiv:2104.09864).
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// The base of the frequencies.
    pub theta: f64,
    /// How the frequencies were changed for longer contexts.
    pub scaling: RopeScaling,
}

/// How rotary frequencies are scaled, as `rope_type` in transformers.
///
/// `dynamic` is read as [`None`](Self::None): transformers changes the frequencies only beyond
/// `max_position_embeddings`, which is where this engine's context ends. It could not go further
/// that way, because there the frequencies follow the longest position of the run, so that keys
/// already in a cache would have been turned by others and a token would depend on more than
/// the prompt. `longrope` has the same fault at `original_max_position_embeddings`, inside of
/// the context, and is refused.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// `default` and `dynamic`: not at all.
    None,
    /// `linear`: all divided by the factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// `llama3`: the low ones divided, the high ones kept, smoothly between.
    Llama3 {
        /// What the low frequencies are divided by.
        factor: f64,
        /// Below this many turns per original context a frequency is low.
        low_freq_factor: f64,
        /// Above this many turns per original context a frequency is high.
        high_freq_factor: f64,
        /// The context before the scaling.
        original_context: f64,
    },
    /// `yarn` (Peng et al., arXiv:2309.00071): the same by a ramp over the dimensions.
    Yarn {
        /// What the low frequencies are divided by.
        factor: f64,
        /// From this many turns per original context on a frequency is kept.
        beta_fast: f64,
        /// Up to this many turns per original context it is divided.
        beta_slow: f64,
        /// The context before the scaling.
        original_context: f64,
        /// Whether the ramp begins and ends at whole dimensions.
        truncate: bool,
        /// What cosines and sines are multiplied by.
        attention_factor: f64,
    },
    /// Each frequency divided by its own factor, as `rope_freqs` in GGUF files.
    Factors {
        /// `head_dim / 2` of them.
        factors: Vec<f32>,
    },
}
