//! Number of prompt tokens that may run beside replies, from measured times of steps.

use std::time::Duration;

/// Least number of prompt tokens of a step, so that prompts get on however slow the replies are.
const MIN_PROMPT_TOKENS: usize = 32;

/// Weight of a new measurement in the running means.
const NEW_WEIGHT: f64 = 0.25;

/// Largest measurement as a multiple of the running mean. Beyond it, the machine did something else.
const MAX_RISE: f64 = 4.0;

/// Time of a step as a sum: that of its replies, and that of each prompt token.
#[derive(Debug)]
pub(super) struct StepBudget {
    /// Bound of the time of a step, in seconds.
    bound: f64,
    /// Mean time of a step of replies alone, in seconds.
    replies: Option<f64>,
    /// Mean time of a prompt token, in seconds.
    prompt_token: Option<f64>,
}

impl StepBudget {
    /// Starts without measurements.
    pub(super) fn new(bound: Duration) -> Self {
        Self { bound: bound.as_secs_f64(), replies: None, prompt_token: None }
    }

    /// Takes the time of a step with tokens of replies and of prompts.
    pub(super) fn learn(&mut self, replies: usize, prompts: usize, took: Duration) {
        let took = took.as_secs_f64();
        if prompts == 0 {
            mix(&mut self.replies, took);
            return;
        }
        let of_replies = self.replies.filter(|_| replies > 0).unwrap_or(0.0);
        mix(&mut self.prompt_token, (took - of_replies).max(0.0) / prompts as f64);
    }

    /// Returns the maximum number of prompt tokens of a step with replies.
    pub(super) fn prompt_tokens(&self) -> usize {
        let Some(token) = self.prompt_token else { return usize::MAX };
        let left = self.bound - self.replies.unwrap_or(0.0);
        // A quotient that is no number, or too large, is converted to the nearest one.
        ((left / token) as usize).max(MIN_PROMPT_TOKENS)
    }
}

/// Mixes a new measurement into a mean.
fn mix(mean: &mut Option<f64>, new: f64) {
    *mean = Some(match *mean {
        Some(old) => old + NEW_WEIGHT * (new.min(MAX_RISE * old) - old),
        None => new,
    });
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{MIN_PROMPT_TOKENS, StepBudget};

    const BOUND: Duration = Duration::from_millis(250);

    /// Time of a step on a machine that takes 50 ms for replies and 4 ms for a prompt token.
    fn took(replies: usize, prompts: usize) -> Duration {
        Duration::from_millis(if replies > 0 { 50 } else { 0 } + 4 * prompts as u64)
    }

    #[test]
    fn prompts_fill_the_bound_that_replies_leave() {
        let mut budget = StepBudget::new(BOUND);
        assert_eq!(budget.prompt_tokens(), usize::MAX);
        budget.learn(0, 256, took(0, 256));
        assert_eq!(budget.prompt_tokens(), 62);
        for _ in 0..20 {
            budget.learn(8, 0, took(8, 0));
            let prompts = budget.prompt_tokens();
            assert!(took(8, prompts) <= BOUND + took(0, 12), "{prompts}");
            budget.learn(8, prompts, took(8, prompts));
        }
        assert!((48..=52).contains(&budget.prompt_tokens()), "{}", budget.prompt_tokens());
    }

    #[test]
    fn prompts_get_on_beside_replies_that_take_longer_than_the_bound() {
        let mut budget = StepBudget::new(BOUND);
        budget.learn(0, 256, took(0, 256));
        budget.learn(64, 0, Duration::from_secs(2));
        assert_eq!(budget.prompt_tokens(), MIN_PROMPT_TOKENS);
    }

    #[test]
    fn a_step_that_was_held_up_counts_little() {
        let mut budget = StepBudget::new(BOUND);
        budget.learn(0, 256, took(0, 256));
        budget.learn(0, 256, Duration::from_secs(100));
        assert!(budget.prompt_tokens() >= MIN_PROMPT_TOKENS);
        for _ in 0..20 {
            budget.learn(0, 256, took(0, 256));
        }
        assert!((58..=62).contains(&budget.prompt_tokens()), "{}", budget.prompt_tokens());
    }
}
