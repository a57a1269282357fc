//! Top-k, top-p and min-p: finds the least likely token that is kept, without sorting the
//! vocabulary.

use super::Sampling;
use super::row::{ANY, BLOCK, Row, rank, token};
use super::weight::{STEPS, Weights};

/// Buffers reused between calls.
#[derive(Debug, Default)]
pub(super) struct Room {
    order: Vec<f32>,
    masses: Vec<f64>,
    pub(super) ranked: Vec<u64>,
}

/// Returns the last [rank] that top-k, top-p and min-p, in this order, leave of a row.
///
/// Each of them keeps a prefix of the ranks, which is never empty.
pub(super) fn cut(row: &Row<'_>, sampling: &Sampling, room: &mut Room) -> u64 {
    let Sampling { temperature, top_k, top_p, min_p, .. } = *sampling;
    if temperature == 0.0 {
        // Every prefix contains the likeliest token.
        return rank(row.max(), u32::MAX);
    }
    let last = rank(min_p_floor(row.max(), temperature, min_p), u32::MAX);
    let weights = Weights::new(row.max(), temperature);
    let by_likelihood = match (top_k as usize, top_p < 1.0) {
        (1.., nucleus) if (top_k as usize) < row.len() => {
            likeliest(row, top_k as usize, room);
            if nucleus { nucleus_of_few(row, weights, top_p, room) } else { room.last() }
        }
        (_, true) => nucleus(row, weights, top_p, room),
        (_, false) => u64::MAX,
    };
    last.min(by_likelihood)
}

impl Room {
    /// Returns the last of the ranks, which is the least likely.
    fn last(&self) -> u64 {
        self.ranked.iter().copied().max().unwrap_or_default()
    }
}

/// Returns the smallest logit whose probability is at least `min_p` times that of the likeliest
/// token.
fn min_p_floor(max: f32, temperature: f32, min_p: f32) -> f32 {
    let floor = f64::from(max) + min_p_distance(temperature, min_p);
    let near = floor as f32;
    // Rounded up, so that comparisons in f32 have the same result as in f64.
    let floor = if f64::from(near) < floor { near.next_up() } else { near };
    floor.max(ANY)
}

/// Returns the distance from the largest logit that `min_p` allows, a negative number.
pub(super) fn min_p_distance(temperature: f32, min_p: f32) -> f64 {
    if min_p <= 0.0 {
        return f64::NEG_INFINITY;
    }
    f64::from(temperature) * libm::log(f64::from(min_p))
}

/// Finds the ranks of the k likeliest tokens, in any order.
pub(super) fn likeliest(row: &Row<'_>, k: usize, room: &mut Room) {
    let Room { order, ranked, .. } = room;
    let mut floor = ANY;
    if k < row.maxima().len() {
        // At least k blocks have a token at or above this logit, so the k likeliest tokens are at
        // or above it.
        order.clear();
        order.extend_from_slice(row.maxima());
        let (_, kth, _) = order.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
        floor = kth.max(ANY);
    }
    row.rank_between(floor, f32::INFINITY, ranked);
    if k < ranked.len() {
        ranked.select_nth_unstable(k);
        ranked.truncate(k);
    }
}

/// Returns the last of the ranks that together hold `top_p`, adding from the likeliest on.
fn nucleus_of_few(row: &Row<'_>, weights: Weights, top_p: f32, room: &mut Room) -> u64 {
    let ranked = &mut room.ranked;
    ranked.sort_unstable();
    let total: f64 = ranked.iter().map(|&rank| weight(row, weights, rank)).sum();
    last_held(row, weights, ranked, 0.0, f64::from(top_p) * total)
}

/// Returns the last of the row's ranks that together hold `top_p`.
///
/// The sum goes over steps of logits, with the tokens of a step in order of id. In the step where
/// the nucleus ends, it goes on from the likeliest token. This takes one pass and a sort of a few
/// tokens, whatever the size of the nucleus.
fn nucleus(row: &Row<'_>, weights: Weights, top_p: f32, room: &mut Room) -> u64 {
    let Room { masses, ranked, .. } = room;
    add_up(row, weights, masses);
    let enough = f64::from(top_p) * masses.iter().sum::<f64>();
    let (mut held, mut end) = (0.0, 0);
    for (step, &mass) in masses.iter().enumerate().filter(|(_, mass)| **mass > 0.0) {
        end = step;
        if held + mass >= enough {
            break;
        }
        held += mass;
    }
    let (low, high) = weights.around(end);
    row.rank_between(low, high, ranked);
    ranked.retain(|&rank| {
        let logit = row.logit(token(rank));
        weights.step(logit) == end && weights.of(logit) > 0.0
    });
    ranked.sort_unstable();
    last_held(row, weights, ranked, held, enough)
}

/// Computes the total weight of every step.
fn add_up(row: &Row<'_>, weights: Weights, masses: &mut Vec<f64>) {
    masses.clear();
    masses.resize(STEPS, 0.0);
    for (logits, &max) in row.logits().chunks(BLOCK).zip(row.maxima()) {
        if weights.of(max) == 0.0 {
            continue;
        }
        // Separate from the sums, so that the compiler can vectorize it.
        let mut of = [0.0; BLOCK];
        let mut steps = [0; BLOCK];
        for ((of, step), &logit) in of.iter_mut().zip(&mut steps).zip(logits) {
            (*of, *step) = (weights.of(logit), weights.step(logit) as u32);
        }
        for (of, step) in of.iter().zip(steps).take(logits.len()) {
            masses[step as usize] += f64::from(*of);
        }
    }
}

/// Returns the first of the sorted ranks at which `held` plus their weights reaches `enough`.
/// Returns the last rank with a weight if rounding prevents that.
fn last_held(row: &Row<'_>, weights: Weights, ranked: &[u64], mut held: f64, enough: f64) -> u64 {
    let mut last = ranked.first().copied().unwrap_or_default();
    for &rank in ranked {
        let weight = weight(row, weights, rank);
        if held >= enough || weight == 0.0 {
            break;
        }
        held += weight;
        last = rank;
    }
    last
}

fn weight(row: &Row<'_>, weights: Weights, rank: u64) -> f64 {
    f64::from(weights.of(row.logit(token(rank))))
}
