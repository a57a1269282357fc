//! Draft length: the number of draft tokens that maximizes throughput.
//!
//! A draft token after `j` others is accepted if all of them are, with a probability of `a^(j+1)`
//! at an acceptance rate of `a`. It costs a row of the model's step and a round of the drafter. The
//! chosen lengths maximize the expected tokens per second of all replies together, including
//! prompts in the same step. A length of zero is possible, so speculation pauses where rows are
//! expensive: with many concurrent replies, or with drafts that are mostly wrong.

use super::Costs;

/// Acceptance rate that is assumed before any observation.
pub(super) const GUESS: f64 = 0.7;

/// Weight of the prior acceptance rate, as a number of observed tokens.
const BELIEF: f64 = 5.0;

/// Decay of observations per observed token.
const AFTER_TOKEN: f64 = 0.98;

/// Decay of observations per step without a draft, for the reply's own record and for that of all
/// replies. The latter decays slowly, because otherwise many replies without drafts would soon make
/// it forget that drafts are wrong.
pub(super) const AFTER_REST: f64 = 0.985;
pub(super) const AFTER_REST_OF_ONE: f64 = 0.999;

/// Factor by which new lengths must be better than those of the last step.
const HYSTERESIS: f64 = 1.03;

/// Observed acceptance of the drafts of one reply or of all, with exponential decay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct AcceptanceStats {
    judged: f64,
    right: f64,
    /// Planned draft length of the last step.
    pub(crate) length: usize,
    drafted: u64,
    accepted: u64,
}

impl AcceptanceStats {
    /// Records a step in which `accepted` of `drafted` tokens were accepted.
    pub(super) fn learn(&mut self, drafted: usize, accepted: usize) {
        self.drafted += drafted as u64;
        self.accepted += accepted as u64;
        // Tokens after a wrong one were not verified, so they do not count.
        let wrong = usize::from(accepted < drafted);
        for right in std::iter::repeat_n(1.0, accepted).chain(std::iter::repeat_n(0.0, wrong)) {
            self.judged = self.judged * AFTER_TOKEN + 1.0;
            self.right = self.right * AFTER_TOKEN + right;
        }
    }

    /// Ages the observations in a step without a draft, so that drafting is tried again at some
    /// time. They are multiplied by `left`.
    pub(super) fn rest(&mut self, left: f64) {
        self.judged *= left;
        self.right *= left;
    }

    /// Returns the probability that a token is right if those before it are. `belief` is the prior.
    pub(super) fn acceptance(&self, belief: f64) -> f64 {
        (self.right + BELIEF * belief) / (self.judged + BELIEF)
    }

    /// Returns the number of drafted tokens of all steps.
    pub(crate) fn drafted(&self) -> u64 {
        self.drafted
    }

    /// Returns the number of accepted tokens of all steps.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted
    }
}

/// Reply that could have a draft, as the choice of lengths sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct DraftBudget {
    pub(super) acceptance: f64,
    /// Maximum length of its draft.
    pub(super) most: usize,
    /// Planned draft length of the last step.
    pub(super) now: usize,
    /// Number of tokens that the drafter must run before its first guess.
    pub(super) behind: usize,
}

/// Step that the drafts will be part of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step<'a> {
    /// Number of rows without the drafts.
    pub(super) rows: usize,
    /// Maximum number of rows to add.
    pub(super) room: usize,
    pub(super) costs: &'a Costs,
}

/// Maximum number of tokens a drafter has to catch up on that are charged to this step. Catching up
/// on more, such as a prompt, pays off over many steps.
const BEHIND: usize = 8;

/// Returns the length of each draft. `round` is the cost of a drafter step by its rows: one row for
/// each draft that grows and, for a first token, all rows that the drafter has to catch up on.
pub(super) fn choose(
    budgets: &[DraftBudget],
    step: Step<'_>,
    round: &dyn Fn(usize) -> f64,
) -> Vec<usize> {
    let mut gains: Vec<(f64, usize)> = Vec::new();
    for (index, budget) in budgets.iter().enumerate() {
        let right =
            std::iter::successors(Some(budget.acceptance), |gain| Some(gain * budget.acceptance));
        gains.extend(right.take(budget.most).map(|gain| (gain, index)));
    }
    // The gains of a reply decrease, so each comes after those that it depends on.
    gains.sort_by(|a, b| b.0.total_cmp(&a.0));
    gains.truncate(step.room);
    let mut drafts = Drafts::new(budgets, step, round);
    let none = drafts.rate();
    let (mut best, mut count) = (none, 0);
    for (taken, &(gain, index)) in (1..).zip(&gains) {
        drafts.add(index, gain);
        let rate = drafts.rate();
        if rate > best {
            (best, count) = (rate, taken);
        }
    }
    let mut as_before = Drafts::new(budgets, step, round);
    for &(gain, index) in &gains {
        if as_before.lengths[index] < budgets[index].now {
            as_before.add(index, gain);
        }
    }
    let before = as_before.rate();
    if before >= none && before * HYSTERESIS >= best {
        return as_before.lengths;
    }
    let mut lengths = vec![0; budgets.len()];
    gains[..count].iter().for_each(|(_, index)| lengths[*index] += 1);
    lengths
}

/// Drafts that grow by one token at a time.
struct Drafts<'a> {
    budgets: &'a [DraftBudget],
    step: Step<'a>,
    round: &'a dyn Fn(usize) -> f64,
    lengths: Vec<usize>,
    /// Rows of the drafter's steps, from the first step on.
    rounds: Vec<usize>,
    drafted: usize,
    /// Expected number of accepted tokens.
    gain: f64,
    /// Cost of the drafter's steps.
    cost: f64,
}

impl<'a> Drafts<'a> {
    fn new(budgets: &'a [DraftBudget], step: Step<'a>, round: &'a dyn Fn(usize) -> f64) -> Self {
        let (lengths, rounds) = (vec![0; budgets.len()], Vec::new());
        Self { budgets, step, round, lengths, rounds, drafted: 0, gain: 0.0, cost: 0.0 }
    }

    fn add(&mut self, index: usize, gain: f64) {
        let place = self.lengths[index];
        self.lengths[index] += 1;
        if place == self.rounds.len() {
            self.rounds.push(0);
        }
        let rows = if place == 0 { self.budgets[index].behind.clamp(1, BEHIND) } else { 1 };
        let (before, with) = (self.rounds[place], self.rounds[place] + rows);
        self.cost += (self.round)(with) - if before > 0 { (self.round)(before) } else { 0.0 };
        self.rounds[place] = with;
        self.drafted += 1;
        self.gain += gain;
    }

    /// Returns the expected tokens per second, including prompt tokens.
    fn rate(&self) -> f64 {
        let Step { rows, costs, .. } = self.step;
        (rows as f64 + self.gain) / (costs.of(rows + self.drafted) + self.cost)
    }
}

#[cfg(test)]
mod tests;
