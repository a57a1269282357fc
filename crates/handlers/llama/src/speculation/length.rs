//! How many tokens to draft: as many as pay.
//!
//! A token that is drafted behind `j` others is taken if all of them are, with a probability of
//! `a^(j+1)` at an acceptance of `a`; it costs a row of the model's step and a round of the drafter.
//! The lengths are those with the most expected tokens a second, of all replies together and with
//! the prompts that are part of the step. None is among them, so that speculation rests where the
//! rows are dear: with many replies at once, or with drafts that are mostly wrong.

use super::Costs;

/// What acceptance is taken for before anything was seen.
pub(super) const GUESS: f64 = 0.7;

/// For how many tokens the belief in others' acceptance counts.
const BELIEF: f64 = 5.0;

/// What is left of an observation after another.
const AFTER_TOKEN: f64 = 0.98;

/// And after a step without a draft, for the reply itself; all replies together forget slowly, or many
/// that rest would soon have forgotten that drafts are wrong.
pub(super) const AFTER_REST: f64 = 0.985;
pub(super) const AFTER_REST_OF_ONE: f64 = 0.999;

/// By how much other lengths must be better than those of the last step.
const HYSTERESIS: f64 = 1.03;

/// What was seen of a reply's drafts, later ones more than earlier.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Outlook {
    judged: f64,
    right: f64,
    /// How many tokens were to be drafted in the last step.
    pub(crate) length: usize,
    drafted: u64,
    accepted: u64,
}

impl Outlook {
    /// So many tokens were drafted, and so many accepted.
    pub(super) fn learn(&mut self, drafted: usize, accepted: usize) {
        self.drafted += drafted as u64;
        self.accepted += accepted as u64;
        // Behind a wrong one none was judged.
        let wrong = usize::from(accepted < drafted);
        for right in std::iter::repeat_n(1.0, accepted).chain(std::iter::repeat_n(0.0, wrong)) {
            self.judged = self.judged * AFTER_TOKEN + 1.0;
            self.right = self.right * AFTER_TOKEN + right;
        }
    }

    /// A step without a draft: what was seen gets old, so that some day it is tried again.
    pub(super) fn rest(&mut self, left: f64) {
        self.judged *= left;
        self.right *= left;
    }

    /// How likely a token is right if those before it are; `belief` is the answer without evidence.
    pub(super) fn acceptance(&self, belief: f64) -> f64 {
        (self.right + BELIEF * belief) / (self.judged + BELIEF)
    }

    /// Tokens that were drafted, of all steps.
    pub(crate) fn drafted(&self) -> u64 {
        self.drafted
    }

    /// Tokens that were accepted, of all steps.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted
    }
}

/// What is known of a reply that could have a draft.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub(super) acceptance: f64,
    /// The longest draft it can have.
    pub(super) most: usize,
    /// How long its draft was to be in the last step.
    pub(super) now: usize,
    /// How many tokens the drafter must run for its first guess.
    pub(super) behind: usize,
}

/// The step that the drafts are to be part of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step<'a> {
    /// Rows without the drafts.
    pub(super) rows: usize,
    /// How many more it may have.
    pub(super) room: usize,
    pub(super) costs: &'a Costs,
}

/// What a drafter is behind by counts up to so many tokens, as if it paid at once: more of it, as of
/// a prompt, pays over many steps.
const BEHIND: usize = 8;

/// How long each draft is to be. `round` is what the drafter's steps cost, by their rows: a row for
/// each reply whose draft grows, and for its first token all that the drafter is behind by.
pub(super) fn choose(wishes: &[Wish], step: Step<'_>, round: &dyn Fn(usize) -> f64) -> Vec<usize> {
    let mut gains: Vec<(f64, usize)> = Vec::new();
    for (index, wish) in wishes.iter().enumerate() {
        let right =
            std::iter::successors(Some(wish.acceptance), |gain| Some(gain * wish.acceptance));
        gains.extend(right.take(wish.most).map(|gain| (gain, index)));
    }
    // A reply's own gains fall, so that each comes after those that it needs.
    gains.sort_by(|a, b| b.0.total_cmp(&a.0));
    gains.truncate(step.room);
    let mut drafts = Drafts::new(wishes, step, round);
    let none = drafts.rate();
    let (mut best, mut count) = (none, 0);
    for (taken, &(gain, index)) in (1..).zip(&gains) {
        drafts.add(index, gain);
        let rate = drafts.rate();
        if rate > best {
            (best, count) = (rate, taken);
        }
    }
    let mut as_before = Drafts::new(wishes, step, round);
    for &(gain, index) in &gains {
        if as_before.lengths[index] < wishes[index].now {
            as_before.add(index, gain);
        }
    }
    let before = as_before.rate();
    if before >= none && before * HYSTERESIS >= best {
        return as_before.lengths;
    }
    let mut lengths = vec![0; wishes.len()];
    gains[..count].iter().for_each(|(_, index)| lengths[*index] += 1);
    lengths
}

/// Drafts that grow by a token at a time.
struct Drafts<'a> {
    wishes: &'a [Wish],
    step: Step<'a>,
    round: &'a dyn Fn(usize) -> f64,
    lengths: Vec<usize>,
    /// The rows of the drafter's first step, its second, and so on.
    rounds: Vec<usize>,
    drafted: usize,
    /// The tokens that are expected to be right.
    gain: f64,
    /// What the drafter costs.
    cost: f64,
}

impl<'a> Drafts<'a> {
    fn new(wishes: &'a [Wish], step: Step<'a>, round: &'a dyn Fn(usize) -> f64) -> Self {
        let (lengths, rounds) = (vec![0; wishes.len()], Vec::new());
        Self { wishes, step, round, lengths, rounds, drafted: 0, gain: 0.0, cost: 0.0 }
    }

    fn add(&mut self, index: usize, gain: f64) {
        let place = self.lengths[index];
        self.lengths[index] += 1;
        if place == self.rounds.len() {
            self.rounds.push(0);
        }
        let rows = if place == 0 { self.wishes[index].behind.clamp(1, BEHIND) } else { 1 };
        let (before, with) = (self.rounds[place], self.rounds[place] + rows);
        self.cost += (self.round)(with) - if before > 0 { (self.round)(before) } else { 0.0 };
        self.rounds[place] = with;
        self.drafted += 1;
        self.gain += gain;
    }

    /// Tokens a second that are expected, those of prompts with the others.
    fn rate(&self) -> f64 {
        let Step { rows, costs, .. } = self.step;
        (rows as f64 + self.gain) / (costs.of(rows + self.drafted) + self.cost)
    }
}

#[cfg(test)]
mod tests;
