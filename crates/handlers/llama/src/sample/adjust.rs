//! Logits processors that change single logits: biases, bans and penalties.

use super::history::History;
use super::{Allowed, Sampling};

/// Returns the logits with grammar mask, biases, bans and penalties applied, copied only if there
/// are any.
///
/// Ids beyond the logits are ignored. Penalties cost one step for each *distinct* token of the
/// history; biases and bans cost at most one for each token of the vocabulary, whatever their lists
/// contain.
pub(super) fn adjusted<'a>(
    logits: &'a [f32],
    history: &History,
    sampling: &Sampling,
    allowed: Option<Allowed<'_>>,
    index: usize,
    room: &'a mut Vec<f32>,
) -> &'a [f32] {
    let penalties = Penalties::of(sampling);
    let mut banned = banned(history, sampling, index).peekable();
    let biased = !sampling.logit_bias.is_empty() || banned.peek().is_some();
    match allowed {
        // The changes below leave negative infinity as it is.
        Some(allowed) => allowed.copy(logits, room),
        None if !biased && penalties.is_none() => return logits,
        None => {
            room.clear();
            room.extend_from_slice(logits);
        }
    }
    let mut each = |token: u32, change: &dyn Fn(f32) -> f32| {
        if let Some(logit) = room.get_mut(token as usize) {
            *logit = change(*logit);
        }
    };
    for &(token, bias) in &sampling.logit_bias {
        each(token, &|logit| logit + bias);
    }
    for token in banned {
        each(token, &|_| f32::NEG_INFINITY);
    }
    if let Some(penalties) = penalties {
        // Values for the reply's tokens come from the logits before the prompt's penalty is applied
        // to them.
        let on = |(token, count)| {
            let logit = room.get(token as usize)?;
            Some((token as usize, penalties.on(*logit, count)))
        };
        let of_reply: Vec<(usize, f32)> = history.in_reply().filter_map(on).collect();
        for &token in history.in_prompt() {
            if let Some(logit) = room.get_mut(token as usize) {
                *logit = penalties.on(*logit, 0);
            }
        }
        for (token, logit) in of_reply {
            room[token] = logit;
        }
    }
    room
}

/// Iterates over the banned tokens, some of them more than once.
pub(super) fn banned(
    history: &History,
    sampling: &Sampling,
    index: usize,
) -> impl Iterator<Item = u32> {
    let ends = (index < sampling.min_tokens).then_some(&sampling.ends);
    let mut completed = Vec::new();
    sampling.banned_sequences.completed(history.backwards(), |token| completed.push(token));
    sampling.banned.iter().chain(ends.into_iter().flat_map(|ends| ends.iter())).chain(completed)
}

/// Penalties on tokens that occurred before.
pub(super) struct Penalties {
    pub(super) repetition: f32,
    pub(super) frequency: f32,
    pub(super) presence: f32,
}

impl Penalties {
    /// Returns `None` if the penalties would change nothing.
    pub(super) fn of(sampling: &Sampling) -> Option<Self> {
        let Sampling { repetition_penalty, frequency_penalty, presence_penalty, .. } = *sampling;
        let none = repetition_penalty == 1.0 && frequency_penalty == 0.0 && presence_penalty == 0.0;
        (!none).then_some(Self {
            repetition: repetition_penalty,
            frequency: frequency_penalty,
            presence: presence_penalty,
        })
    }

    fn on(&self, logit: f32, in_reply: u32) -> f32 {
        let repeated = if logit > 0.0 { logit / self.repetition } else { logit * self.repetition };
        let present = if in_reply > 0 { self.presence } else { 0.0 };
        repeated - self.frequency * in_reply as f32 - present
    }
}
