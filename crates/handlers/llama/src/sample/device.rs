//! Sampling on a device, with the tokens of [`sample`].
//!
//! A [`Batch`] describes the tokens: [`describe`] adds one, and [`token`] takes what the device chose.
//! The raw logits are copied from the device for rows that it cannot sample: those that `describe`
//! refuses, and those of [`Choice::Elsewhere`].

use std::collections::HashSet;

use nsbridge_gpu::sample::{Batch, Change, Choice, Draw, Likeliest};

use super::adjust::{Penalties, banned};
use super::cut::min_p_distance;
use super::{Allowed, History, Logprobs, Noise, Sampling, Scratch, logprobs, sample};

/// Arguments of [`sample`] but for the logits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) history: &'a History,
    pub(crate) sampling: &'a Sampling,
    pub(crate) allowed: Option<Allowed<'a>>,
    pub(crate) noise: Noise,
    pub(crate) index: usize,
}

/// Number of tokens in a word.
const WORD: usize = u32::BITS as usize;

/// Adds a token to a batch. Returns false, and adds nothing, if parameters are not numbers in their
/// range or a token has two biases: the CPU must sample then.
pub(crate) fn describe(wanted: Wanted<'_>, row: u32, batch: &mut Batch) -> bool {
    let Wanted { history, sampling, noise, index, .. } = wanted;
    let Sampling { temperature, top_k, top_p, min_p, .. } = *sampling;
    let penalties = Penalties::of(sampling);
    // A token that is masked stays so whatever is added to its logit, but not with such factors.
    let fits = |penalties: &Penalties| {
        let Penalties { repetition, frequency, presence } = *penalties;
        let are_finite = repetition.is_finite() && frequency.is_finite() && presence.is_finite();
        are_finite && repetition > 0.0
    };
    let mut seen = HashSet::new();
    let is_once = sampling.logit_bias.iter().all(|(token, _)| seen.insert(*token));
    let is_fit = (0.0..=f32::MAX).contains(&temperature) && penalties.as_ref().is_none_or(fits);
    if !is_fit || !is_once {
        return false;
    }
    let mask = mask(wanted, batch.vocab());
    let (marks, changes) = changes(history, sampling, penalties.as_ref(), batch.vocab());
    batch.push(&Draw {
        row,
        noise: noise.at(index).state(),
        temperature,
        top_k,
        top_p,
        least: min_p_distance(temperature, min_p),
        penalties: penalties.map_or([1.0, 0.0, 0.0], |penalties| {
            [penalties.repetition, penalties.frequency, penalties.presence]
        }),
        mask: mask.as_deref(),
        marks: marks.as_deref(),
        changes: &changes,
    });
    true
}

/// Returns the tokens that may be chosen, if not all.
fn mask(wanted: Wanted<'_>, vocab: usize) -> Option<Vec<u32>> {
    let Wanted { history, sampling, allowed, index, .. } = wanted;
    let mut banned = banned(history, sampling, index).peekable();
    if allowed.is_none() && banned.peek().is_none() {
        return None;
    }
    let mut mask = allowed
        .map_or_else(|| vec![u32::MAX; vocab.div_ceil(WORD)], |allowed| allowed.words().to_vec());
    for token in banned {
        if let Some(word) = mask.get_mut(token as usize / WORD) {
            *word &= !(1 << (token as usize % WORD));
        }
    }
    Some(mask)
}

/// Returns the tokens whose logits change, if there are any, and the changes of all but those that
/// are only in the prompt.
fn changes(
    history: &History,
    sampling: &Sampling,
    penalties: Option<&Penalties>,
    vocab: usize,
) -> (Option<Vec<u32>>, Vec<Change>) {
    let bias = |&(token, bias): &(u32, f32)| Change { token, bias, count: None };
    let mut changes: Vec<Change> = sampling.logit_bias.iter().map(bias).collect();
    let is_prompt_penalized = penalties.is_some_and(|penalties| penalties.repetition != 1.0);
    let prompt = if is_prompt_penalized { history.in_prompt() } else { &[] };
    for change in &mut changes {
        change.count = prompt.binary_search(&change.token).is_ok().then_some(0);
    }
    if penalties.is_some() {
        let penalty = |(token, count)| Change { token, bias: -0.0, count: Some(count) };
        changes.extend(history.in_reply().map(penalty));
    }
    changes.retain(|change| (change.token as usize) < vocab);
    // The bias of a token comes before its penalty: the sort is stable. It is fast, since the
    // penalties are in order.
    changes.sort_by_key(|change| change.token);
    changes.dedup_by(|second, first| {
        let is_same = first.token == second.token;
        if is_same {
            first.count = second.count;
        }
        is_same
    });
    if changes.is_empty() && prompt.is_empty() {
        return (None, changes);
    }
    let mut marks = if prompt.is_empty() { Vec::new() } else { history.prompt_words().to_vec() };
    marks.resize(vocab.div_ceil(WORD), 0);
    for token in changes.iter().map(|change| change.token) {
        if let Some(word) = marks.get_mut(token as usize / WORD) {
            *word |= 1 << (token as usize % WORD);
        }
    }
    (Some(marks), changes)
}

/// Returns the chosen token. `logits` copies the raw row from the device.
///
/// # Errors
///
/// Returns the error of the copy.
pub(crate) fn token<E>(
    choice: Choice,
    wanted: Wanted<'_>,
    scratch: &mut Scratch,
    logits: impl FnOnce() -> Result<Vec<f32>, E>,
) -> Result<Option<u32>, E> {
    let Wanted { history, sampling, allowed, noise, index } = wanted;
    Ok(match choice {
        Choice::Token(token, _) => Some(token),
        Choice::None => None,
        Choice::Elsewhere => sample(&logits()?, history, sampling, allowed, noise, index, scratch),
    })
}

/// Returns the log-probabilities of a chosen token, given its raw logit, and of the likeliest ones.
/// `logits` copies the raw row from the device.
///
/// # Errors
///
/// Returns the error of the copy.
pub(crate) fn logprobs_of<E>(
    likeliest: &Likeliest,
    (chosen, logit): (u32, f32),
    top: usize,
    scratch: &mut Scratch,
    logits: impl FnOnce() -> Result<Vec<f32>, E>,
) -> Result<Option<Logprobs>, E> {
    let Likeliest { max, total, top: Some(found) } = likeliest else {
        return Ok(logprobs(&logits()?, chosen, top, scratch));
    };
    if *max < f32::MIN {
        return Ok(None);
    }
    Ok(Logprobs::new((*max, *total), logit, found.iter().copied().take(top)))
}
