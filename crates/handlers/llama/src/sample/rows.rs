//! Rows of logits, in the memory of the CPU or on a device that sampled from them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use nsbridge_gpu::sample::{Batch, Choice, Likeliest, MOST_LIKELIEST};

use super::device::{Wanted, describe, logprobs_of, token};
use super::{Logprobs, Scratch, logprobs, sample};

/// Tokens that a device samples within a step.
#[derive(Debug)]
pub(crate) struct Draws {
    batch: Batch,
    keys: Vec<Key>,
    /// Rows whose likeliest tokens are wanted, and how many of them.
    tops: Vec<(u32, u32)>,
}

/// Row of logits, and state of the noise with which it is sampled. The same row may be sampled for
/// several replies.
type Key = (u32, u64);

impl Draws {
    /// Creates a list without tokens.
    pub(crate) fn new(vocab: usize) -> Self {
        Self { batch: Batch::new(vocab), keys: Vec::new(), tops: Vec::new() }
    }

    /// Adds a token to sample from a row of the step, unless only the CPU can sample it. With
    /// `logprobs`, the log-probabilities of so many tokens are wanted too.
    pub(crate) fn add(&mut self, wanted: Wanted<'_>, row: u32, logprobs: Option<usize>) {
        if !describe(wanted, row, &mut self.batch) {
            return;
        }
        self.keys.push(key(wanted, row));
        let top = logprobs.filter(|top| *top <= MOST_LIKELIEST);
        // Replies that begin share a row and its parameters.
        if let Some(top) = top.filter(|_| self.tops.last().is_none_or(|(last, _)| *last != row)) {
            self.tops.push((row, top as u32));
        }
    }

    pub(crate) fn batch(&self) -> &Batch {
        &self.batch
    }

    pub(crate) fn tops(&self) -> &[(u32, u32)] {
        &self.tops
    }

    /// Returns what the device chose and found, in the order of the lists.
    pub(crate) fn chosen(&self, choices: &[Choice], found: Vec<Likeliest>) -> Chosen {
        Chosen {
            choices: self.keys.iter().copied().zip(choices.iter().copied()).collect(),
            likeliest: self.tops.iter().map(|(row, _)| *row).zip(found).collect(),
        }
    }
}

fn key(Wanted { noise, index, .. }: Wanted<'_>, row: u32) -> Key {
    (row, noise.at(index).state())
}

/// Outcomes of sampling on a device.
#[derive(Debug, Default)]
pub(crate) struct Chosen {
    choices: HashMap<Key, Choice>,
    likeliest: HashMap<u32, Likeliest>,
}

/// Holder of rows of logits on a device.
pub(crate) trait Holder {
    /// Copies a row. A row that cannot be copied has no numbers.
    fn copy(&self, row: u32) -> Vec<f32>;
}

/// Row of logits.
#[derive(Clone, Copy)]
pub(crate) enum Row<'a> {
    /// Numbers in the memory of the CPU.
    Here(&'a [f32]),
    /// Row of a device.
    There {
        /// Holder of the row.
        holder: &'a dyn Holder,
        /// Number of the row.
        row: u32,
        /// Tokens that were sampled from all rows.
        chosen: &'a Chosen,
    },
}

impl fmt::Debug for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Row").finish_non_exhaustive()
    }
}

impl<'a> Row<'a> {
    /// Samples a token, as [`sample`] does from the numbers.
    pub(crate) fn sample(&self, wanted: Wanted<'_>, scratch: &mut Scratch) -> Option<u32> {
        let Wanted { history, sampling, allowed, noise, index } = wanted;
        match self {
            Self::Here(logits) => sample(logits, history, sampling, allowed, noise, index, scratch),
            Self::There { holder, row, chosen } => {
                let choice = chosen.choices.get(&key(wanted, *row)).copied();
                let copy = || Ok::<_, std::convert::Infallible>(holder.copy(*row));
                let Ok(token) = token(choice.unwrap_or(Choice::Elsewhere), wanted, scratch, copy);
                token
            }
        }
    }

    /// Returns the log-probabilities of a token that was sampled from the row, and of the likeliest
    /// ones, as [`logprobs`] does from the numbers.
    pub(crate) fn logprobs(
        &self,
        (token, wanted): (u32, Wanted<'_>),
        top: usize,
        scratch: &mut Scratch,
    ) -> Option<Logprobs> {
        let Self::There { row, chosen, .. } = self else {
            return logprobs(&self.numbers(), token, top, scratch);
        };
        let choice = chosen.choices.get(&key(wanted, *row));
        match (choice, chosen.likeliest.get(row)) {
            (Some(Choice::Token(own, logit)), Some(found)) if *own == token => {
                let copy = || Ok::<_, std::convert::Infallible>(self.numbers().into_owned());
                let Ok(told) = logprobs_of(found, (token, *logit), top, scratch, copy);
                told
            }
            _ => logprobs(&self.numbers(), token, top, scratch),
        }
    }

    /// Returns the numbers, copied if the row is on a device.
    pub(crate) fn numbers(&self) -> Cow<'a, [f32]> {
        match self {
            Self::Here(numbers) => Cow::Borrowed(numbers),
            Self::There { holder, row, .. } => Cow::Owned(holder.copy(*row)),
        }
    }
}
