//! Rotary position embedding: frequency of each pair of dimensions.

mod frequencies;
mod parameters;

pub(super) use self::parameters::Parameters;
pub(crate) use self::parameters::usual_attention_factor;

/// Rotary position embedding (Su et al., arXiv:2104.09864).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// Scaling of the frequencies for longer contexts.
    pub scaling: RopeScaling,
}

/// Scaling of rotary frequencies, as `rope_type` in transformers.
///
/// `dynamic` is read as [`None`](Self::None): transformers changes the frequencies only beyond
/// `max_position_embeddings`, where this engine's context ends. It cannot be supported beyond that,
/// because there the frequencies depend on the longest position of the run. Keys already in the
/// cache would have been rotated by other frequencies, and a token would depend on more than the
/// prompt. `longrope` has the same problem at `original_max_position_embeddings`, inside the
/// context, and is refused.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// `default` and `dynamic`: no scaling.
    None,
    /// `linear`: all frequencies divided by the factor.
    Linear {
        /// Divisor of all frequencies.
        factor: f64,
    },
    /// `llama3`: low frequencies divided, high ones kept, with a smooth transition.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Turns per original context below which a frequency is low.
        low_freq_factor: f64,
        /// Turns per original context above which a frequency is high.
        high_freq_factor: f64,
        /// Context length before the scaling.
        original_context: f64,
    },
    /// `yarn` (Peng et al., arXiv:2309.00071): low frequencies divided, high ones kept, with a
    /// linear ramp over the dimensions between.
    Yarn {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Turns per original context from which a frequency is kept.
        beta_fast: f64,
        /// Turns per original context up to which a frequency is divided.
        beta_slow: f64,
        /// Context length before the scaling.
        original_context: f64,
        /// True if the ramp begins and ends at whole dimensions.
        truncate: bool,
        /// Factor applied to cosines and sines.
        attention_factor: f64,
    },
    /// Each frequency divided by its own factor, as `rope_freqs` in GGUF files.
    Factors {
        /// `head_dim / 2` divisors.
        factors: Vec<f32>,
    },
}
