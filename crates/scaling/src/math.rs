//! Functions whose results have equal bits on every machine.
//!
//! The standard library leaves the last bits of `ln`, `exp` and `cos` to the platform. A seeded trace would then differ
//! between machines, because a comparison of such a number can turn out either way. Here they are made of the basic
//! operations and the square root, which IEEE 754 fixes.

use std::f64::consts::{LN_2, SQRT_2, TAU};

/// Terms of the series of `ln`. The first one that is left out is below 2^-60.
const LN_TERMS: u32 = 12;

/// Terms of the series of `exp`.
const EXP_TERMS: u32 = 16;

/// Terms of the series of the cosine.
const COS_TERMS: u32 = 16;

/// Largest magnitude of an exponent: `exp` of it is a normal number.
const MAX_EXPONENT: f64 = 700.0;

/// Natural logarithm of a positive normal number; a number without meaning for others.
pub(crate) fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1023;
    let mut mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if mantissa > SQRT_2 {
        mantissa /= 2.0;
        exponent += 1;
    }
    // ln m = 2 artanh((m - 1) / (m + 1)).
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let sum = (0..LN_TERMS).rev().fold(0.0, |sum, k| sum * square + 1.0 / f64::from(2 * k + 1));
    2.0 * s * sum + exponent as f64 * LN_2
}

/// Exponential function; arguments beyond ±700 count as ±700.
pub(crate) fn exp(x: f64) -> f64 {
    let x = x.clamp(-MAX_EXPONENT, MAX_EXPONENT);
    let doublings = (x / LN_2).round();
    let rest = x - doublings * LN_2;
    let sum = (1..EXP_TERMS).rev().fold(1.0, |sum, k| 1.0 + sum * rest / f64::from(k));
    sum * f64::from_bits(((doublings as i64 + 1023) as u64) << 52)
}

/// Cosine of an angle in turns.
pub(crate) fn cos_turns(turns: f64) -> f64 {
    let angle = (turns - turns.round()) * TAU;
    let square = angle * angle;
    (1..COS_TERMS).rev().fold(1.0, |sum, k| {
        let factors = f64::from(2 * k - 1) * f64::from(2 * k);
        1.0 - sum * square / factors
    })
}

#[cfg(test)]
mod tests {
    //! Comparison with the platform's functions.

    use super::{cos_turns, exp, ln};

    #[test]
    fn the_functions_are_those_of_the_platform_but_for_the_last_bits() {
        let close = |own: f64, theirs: f64| (own - theirs).abs() <= 1e-13 * theirs.abs().max(1.0);
        for step in 1..4000 {
            let x = f64::from(step) * 0.35 - 700.0;
            assert!(close(exp(x) / x.exp(), 1.0), "exp({x})");
            let y = f64::from(step).powi(5) * 1e-9;
            assert!(close(ln(y), y.ln()), "ln({y})");
            let turns = f64::from(step) * 0.013 - 20.0;
            let theirs = (turns * std::f64::consts::TAU).cos();
            assert!((cos_turns(turns) - theirs).abs() < 1e-12, "cos({turns})");
        }
    }

    #[test]
    fn arguments_out_of_range_have_finite_results() {
        for x in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -1.0, 1e308, 5e-324] {
            assert!(ln(x).is_finite(), "ln({x})");
        }
        assert!(exp(f64::INFINITY).is_finite() && exp(f64::NEG_INFINITY) > 0.0);
    }
}
