//! Parameters of a request: fills in defaults and refuses invalid values.

use std::sync::Arc;

use nsbridge_handler::{Error, Result, TextInput};

use crate::config::Advice;
use crate::detokenize::Stops;
use crate::limits::{
    ECHO_PIECE_BYTES, PROMPT_PIECE_BYTES, REPLY_BYTES, ROLE_BYTES, STOP_BYTES, TOKEN_TEXT_BYTES,
    TOP_LOGPROB_BYTES, TOP_LOGPROBS,
};
use crate::options::Options;
use crate::sample::{Sampling, TokenSet};

/// Generation parameters that all replies to one prompt share.
#[derive(Debug)]
pub(crate) struct RequestParameters {
    pub(crate) sampling: Sampling,
    /// Maximum number of tokens to generate, before the limit of the model's context.
    pub(crate) max_tokens: usize,
    pub(crate) stops: Arc<Stops>,
    /// Number of top log-probabilities beside the chosen token's; `None` if none are requested.
    pub(crate) logprobs: Option<usize>,
    /// True if the reply begins with the text of the prompt.
    pub(crate) echo: bool,
    /// Number of top log-probabilities beside that of each token of the prompt; `None` if none are
    /// requested.
    pub(crate) prompt_logprobs: Option<usize>,
    /// True if special tokens have texts in the reply.
    pub(crate) special_texts: bool,
    /// True if each token that has a log-probability has its text too.
    pub(crate) token_texts: bool,
}

/// Facts about the model's tokens that a request is checked against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vocabulary<'a> {
    pub(crate) size: usize,
    /// End tokens of the model.
    pub(crate) eos: &'a [u32],
}

impl Vocabulary<'_> {
    /// Returns the end tokens that are in the vocabulary, since a file may name any id.
    fn known_eos(self) -> impl Iterator<Item = u32> {
        self.eos.iter().copied().filter(move |token| (*token as usize) < self.size)
    }
}

impl RequestParameters {
    /// Combines the parameters: the request's own values, else the worker's options, else the
    /// defaults of the model's authors.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid field.
    pub(crate) fn new(
        input: &TextInput,
        options: &Options,
        advice: &Advice,
        vocabulary: Vocabulary<'_>,
    ) -> Result<Self> {
        refuse_long_lists(input, vocabulary)?;
        refuse_impossible_sequences(&input.bad_token_sequences)?;
        // This must come before token sets are built, which allocate a bit for each id up to the
        // largest.
        refuse_unknown_tokens(input, vocabulary)?;
        let sampling = sampling(input, options, advice, vocabulary);
        refuse_nonsense(&sampling)?;
        refuse_impossible_tokens(&sampling, input, vocabulary)?;
        refuse_impossible_lengths(input)?;
        refuse_several_prompts(input)?;
        let tokens = |limit: Option<u32>| limit.map_or(usize::MAX, |limit| limit as usize);
        Ok(Self {
            sampling,
            max_tokens: tokens(input.max_tokens).min(tokens(options.max_tokens)),
            stops: Arc::new(Stops::new(&input.stop)?),
            logprobs: logprobs(input)?,
            echo: input.echo,
            prompt_logprobs: prompt_logprobs(input)?,
            special_texts: input.skip_special_tokens == Some(false),
            token_texts: token_texts(input)?,
        })
    }

    /// Creates the parameters of a prompt without a reply.
    pub(crate) fn nothing() -> Self {
        Self {
            sampling: Sampling::default(),
            max_tokens: 0,
            stops: Arc::new(Stops::none()),
            logprobs: None,
            echo: false,
            prompt_logprobs: None,
            special_texts: false,
            token_texts: false,
        }
    }

    /// Returns the bytes that a token of the prompt adds to the reply, its text left out; an
    /// estimate from above. 0 if the reply has no pieces of the prompt.
    pub(crate) fn prompt_piece_bytes(&self) -> usize {
        let text = if self.token_texts { TOKEN_TEXT_BYTES } else { 0 };
        match self.prompt_logprobs {
            Some(top) => PROMPT_PIECE_BYTES + text + top * (TOP_LOGPROB_BYTES + text),
            None if self.echo => ECHO_PIECE_BYTES + text,
            None => 0,
        }
    }

    /// Refuses a prompt of `tokens` tokens whose pieces do not fit into a reply.
    ///
    /// # Errors
    ///
    /// Returns an error with both numbers.
    pub(crate) fn refuse_large_prompt(&self, tokens: usize) -> Result<()> {
        let (most, each) = (REPLY_BYTES / tokens.max(1), self.prompt_piece_bytes());
        if each <= most {
            return Ok(());
        }
        let text = if self.token_texts { TOKEN_TEXT_BYTES } else { 0 };
        Err(Error::bad_input(match most.checked_sub(PROMPT_PIECE_BYTES + text) {
            Some(room) => format!(
                "`prompt_logprobs` are {}, and {} are the most for a prompt of {tokens} tokens",
                self.prompt_logprobs.unwrap_or_default(),
                room / (TOP_LOGPROB_BYTES + text)
            ),
            None => format!(
                "the prompt has {tokens} tokens, and {} are the most with `echo` or \
                 `prompt_logprobs`",
                REPLY_BYTES / each.min(PROMPT_PIECE_BYTES + text)
            ),
        }))
    }

    /// Returns the sampling cost that the parameters add, in tokens of a plain reply: one pass over
    /// the logits, or over the history, for each kind.
    pub(crate) fn weight(&self) -> usize {
        let plain = Sampling::default();
        let Sampling { logit_bias, banned, banned_sequences, .. } = &self.sampling;
        let listed = !logit_bias.is_empty() || !banned.is_empty() || !banned_sequences.is_empty();
        let penalties = self.sampling.repetition_penalty != plain.repetition_penalty
            || self.sampling.frequency_penalty != plain.frequency_penalty
            || self.sampling.presence_penalty != plain.presence_penalty;
        usize::from(listed) + usize::from(penalties) + usize::from(self.logprobs.is_some())
    }

    /// Returns true if this token ends the reply.
    pub(crate) fn ends(&self, token: u32) -> bool {
        self.sampling.ends.contains(token)
    }
}

fn sampling(
    input: &TextInput,
    options: &Options,
    advice: &Advice,
    vocabulary: Vocabulary<'_>,
) -> Sampling {
    let plain = Sampling::default();
    // With `ignore_eos`, the model's end tokens end nothing, so `min_tokens` does not ban them.
    let eos = vocabulary.known_eos().filter(|_| !input.ignore_eos);
    Sampling {
        logit_bias: input.logit_bias.iter().map(|(&token, &bias)| (token, bias)).collect(),
        banned: input.bad_token_ids.as_slice().into(),
        banned_sequences: input.bad_token_sequences.clone().into(),
        ends: eos.chain(input.stop_token_ids.iter().copied()).collect(),
        min_tokens: input.min_tokens.map_or(plain.min_tokens, |least| least as usize),
        repetition_penalty: input
            .repetition_penalty
            .or(options.repetition_penalty)
            .or(advice.repetition_penalty)
            .unwrap_or(plain.repetition_penalty),
        frequency_penalty: input.frequency_penalty.unwrap_or(plain.frequency_penalty),
        presence_penalty: input.presence_penalty.unwrap_or(plain.presence_penalty),
        temperature: input
            .temperature
            .or(options.temperature)
            .or(advice.temperature)
            .unwrap_or(plain.temperature),
        top_k: input.top_k.or(options.top_k).or(advice.top_k).unwrap_or(plain.top_k),
        top_p: input.top_p.or(options.top_p).or(advice.top_p).unwrap_or(plain.top_p),
        min_p: input.min_p.or(options.min_p).or(advice.min_p).unwrap_or(plain.min_p),
    }
}

fn refuse_nonsense(sampling: &Sampling) -> Result<()> {
    let Sampling { temperature, top_p, min_p, repetition_penalty, .. } = *sampling;
    let Sampling { frequency_penalty, presence_penalty, .. } = *sampling;
    let refuse = |rule: &str| Err(Error::bad_input(rule));
    if !(temperature.is_finite() && temperature >= 0.0) {
        return refuse("`temperature` must be a number from 0 on");
    }
    if !(top_p > 0.0 && top_p <= 1.0) {
        return refuse("`top_p` must be above 0 and at most 1");
    }
    if !(0.0..=1.0).contains(&min_p) {
        return refuse("`min_p` must be from 0 to 1");
    }
    if !(repetition_penalty.is_finite() && repetition_penalty > 0.0) {
        return refuse("`repetition_penalty` must be a number above 0");
    }
    if !(-2.0..=2.0).contains(&frequency_penalty) {
        return refuse("`frequency_penalty` must be from -2 to 2");
    }
    if !(-2.0..=2.0).contains(&presence_penalty) {
        return refuse("`presence_penalty` must be from -2 to 2");
    }
    if !sampling.logit_bias.iter().all(|(_, bias)| (-100.0..=100.0).contains(bias)) {
        return refuse("`logit_bias` must be from -100 to 100");
    }
    Ok(())
}

/// Refuses lists beyond their limits before any work on them.
fn refuse_long_lists(input: &TextInput, vocabulary: Vocabulary<'_>) -> Result<()> {
    for (field, length) in [
        ("logit_bias", input.logit_bias.len()),
        ("bad_token_ids", input.bad_token_ids.len()),
        ("stop_token_ids", input.stop_token_ids.len()),
    ] {
        if length > vocabulary.size {
            let most = vocabulary.size;
            return Err(Error::bad_input(format!(
                "`{field}` has {length} tokens, and this model has {most}"
            )));
        }
    }
    let most = TextInput::MOST_STOPS;
    let fits = |text: &String| (1..=STOP_BYTES).contains(&text.len());
    if input.stop.len() > most || !input.stop.iter().all(fits) {
        return Err(Error::bad_input(format!(
            "`stop` must be at most {most} texts, of 1 to {STOP_BYTES} bytes each"
        )));
    }
    let most = TextInput::MOST_MESSAGES;
    if input.messages.len() > most {
        return Err(Error::bad_input(format!("`messages` must be at most {most}")));
    }
    if input.messages.iter().any(|message| message.role.len() > ROLE_BYTES) {
        return Err(Error::bad_input(format!(
            "`role` in `messages` must have at most {ROLE_BYTES} bytes"
        )));
    }
    Ok(())
}

/// Refuses token ids that the model lacks.
fn refuse_unknown_tokens(input: &TextInput, vocabulary: Vocabulary<'_>) -> Result<()> {
    let known = |token: &u32| (*token as usize) < vocabulary.size;
    for (field, all_known) in [
        ("prompt_token_ids", input.prompt_token_ids.iter().all(known)),
        ("logit_bias", input.logit_bias.keys().all(known)),
        ("bad_token_ids", input.bad_token_ids.iter().all(known)),
        ("bad_token_sequences", input.bad_token_sequences.iter().flatten().all(known)),
        ("stop_token_ids", input.stop_token_ids.iter().all(known)),
    ] {
        if !all_known {
            let last = vocabulary.size - 1;
            return Err(Error::bad_input(format!(
                "`{field}` must name tokens of this model, from 0 to {last}"
            )));
        }
    }
    Ok(())
}

/// Refuses bans that may leave no token to choose.
fn refuse_impossible_tokens(
    sampling: &Sampling,
    input: &TextInput,
    vocabulary: Vocabulary<'_>,
) -> Result<()> {
    // Tokens that end the reply do not count as left, since `min_tokens` can ban them.
    let mut out: TokenSet = sampling.banned.clone();
    out.extend(input.stop_token_ids.iter().copied());
    out.extend(vocabulary.known_eos());
    // In the worst case, one step bans the last token of every sequence.
    let last = |sequence: &Vec<u32>| sequence.last().copied();
    out.extend(input.bad_token_sequences.iter().filter_map(last));
    if out.len() < vocabulary.size {
        return Ok(());
    }
    if !input.bad_token_sequences.is_empty() {
        return Err(Error::bad_input("`bad_token_sequences` may leave no token to choose"));
    }
    if !input.bad_token_ids.is_empty() {
        return Err(Error::bad_input("`bad_token_ids` leave no token to choose"));
    }
    Ok(())
}

fn refuse_impossible_sequences(sequences: &[Vec<u32>]) -> Result<()> {
    let (most, longest) = (TextInput::MOST_SEQUENCES, TextInput::MOST_SEQUENCE_TOKENS);
    let possible = |sequence: &Vec<u32>| (1..=longest).contains(&sequence.len());
    if sequences.len() > most || !sequences.iter().all(possible) {
        return Err(Error::bad_input(format!(
            "`bad_token_sequences` must be at most {most}, of 1 to {longest} tokens each"
        )));
    }
    Ok(())
}

fn refuse_impossible_lengths(input: &TextInput) -> Result<()> {
    if input.max_tokens == Some(0) && !has_prompt_pieces(input) {
        return Err(Error::bad_input(
            "`max_tokens` must be at least 1, or 0 with `echo` or `prompt_logprobs`",
        ));
    }
    if input.max_tokens.is_some_and(|most| input.min_tokens.is_some_and(|least| least > most)) {
        return Err(Error::bad_input("`min_tokens` must be at most `max_tokens`"));
    }
    Ok(())
}

/// Returns true if the reply has pieces of the prompt.
fn has_prompt_pieces(input: &TextInput) -> bool {
    input.echo || input.prompt_logprobs.is_some()
}

/// Refuses pieces of the prompt beside several replies, since they belong to all of them.
fn refuse_several_prompts(input: &TextInput) -> Result<()> {
    if has_prompt_pieces(input) && input.n.is_some_and(|n| n > 1) {
        return Err(Error::bad_input("`n` must be 1 with `echo` or `prompt_logprobs`"));
    }
    Ok(())
}

/// Returns the number of top log-probabilities of each token of the prompt. An echoed prompt has
/// those of the reply, unless it has a number of its own.
fn prompt_logprobs(input: &TextInput) -> Result<Option<usize>> {
    match input.prompt_logprobs {
        Some(top) if top > TOP_LOGPROBS => {
            Err(Error::bad_input(format!("`prompt_logprobs` must be at most {TOP_LOGPROBS}")))
        }
        Some(top) => Ok(Some(top as usize)),
        None if input.echo => logprobs(input),
        None => Ok(None),
    }
}

fn token_texts(input: &TextInput) -> Result<bool> {
    if input.return_token_texts && !input.logprobs && !has_prompt_pieces(input) {
        return Err(Error::bad_input(
            "`return_token_texts` needs `logprobs`, `prompt_logprobs` or `echo`",
        ));
    }
    Ok(input.return_token_texts)
}

fn logprobs(input: &TextInput) -> Result<Option<usize>> {
    match (input.logprobs, input.top_logprobs) {
        (false, Some(_)) => Err(Error::bad_input("`top_logprobs` needs `logprobs` to be true")),
        (true, Some(top)) if top > TOP_LOGPROBS => {
            Err(Error::bad_input(format!("`top_logprobs` must be at most {TOP_LOGPROBS}")))
        }
        (false, None) => Ok(None),
        (true, top) => Ok(Some(top.unwrap_or(0) as usize)),
    }
}

#[cfg(test)]
mod tests;
