//! Replies that another attempt has begun: whether they continue, and after which text.

use nsbridge_handler::{FinishReason, ResponseFormat, Result, TextInput, TextPiece};

use crate::fields::replies;
use crate::reply::Rules;
use crate::stops::StopFilter;
use crate::texts::{Texts, is_cut};

/// Pieces of each reply that the client has, by reply.
pub(crate) type Known<'a> = Vec<Vec<&'a TextPiece>>;

/// Reply that continues.
#[derive(Debug)]
pub(crate) struct Begun {
    /// Tokens that the client has.
    pub(crate) tokens: Vec<u32>,
    /// State of the search for stop sequences after them.
    pub(crate) filter: StopFilter,
    /// Reason for the end, if these tokens are the whole reply.
    pub(crate) ended: Option<FinishReason>,
}

/// Returns the pieces of each reply if the replies may continue after them. `None` if they must start
/// over.
///
/// A server can only go on after the tokens in a new prompt. A grammar would begin anew there, and
/// penalties for the tokens of a reply would miss those in the prompt. Pieces of the prompt are not among
/// the known ones.
pub(crate) fn continuation<'a>(
    input: &TextInput,
    tells_tokens: bool,
    pieces: &'a [TextPiece],
) -> Option<Known<'a>> {
    let format = input.response_format.as_ref();
    let penalty = |value: Option<f32>| value.is_some_and(|value| value != 0.0);
    let starts_over = !tells_tokens
        || format.is_some_and(|format| !matches!(format, ResponseFormat::Text {}))
        || penalty(input.frequency_penalty)
        || penalty(input.presence_penalty);
    let mut known: Known<'_> = vec![Vec::new(); replies(input)];
    for piece in pieces.iter().filter(|piece| !piece.prompt) {
        known.get_mut(piece.index as usize)?.push(piece);
    }
    let some = !pieces.is_empty() && !starts_over;
    some.then_some(known)
}

/// Takes over the pieces of one reply. `None` if they are not what this server would have made.
pub(crate) async fn begun(
    input: &TextInput,
    rules: &Rules,
    texts: &Texts,
    pieces: &[&TextPiece],
) -> Result<Option<Begun>> {
    let tokens: Vec<u32> = pieces.iter().map(|piece| piece.token).collect();
    let said: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
    let mut filter = StopFilter::new(rules.stops.clone());
    let of = |filter, ended| Some(Begun { tokens: tokens.clone(), filter, ended });
    if let Some(reason) = pieces.last().and_then(|last| last.finish_reason) {
        return Ok(of(filter, Some(reason)));
    }
    let Some(&last) = tokens.last() else {
        return Ok(of(filter, None));
    };
    if pieces.iter().any(|piece| piece.token == 0 && piece.text.is_empty()) {
        // The token's id may be one that the server has not told.
        return Ok(None);
    }
    if is_end(input, rules, last, pieces) {
        return Ok(of(filter, Some(FinishReason::Stop)));
    }
    let silent = pieces.last().is_some_and(|piece| piece.text.is_empty());
    if silent && texts.alone(last).await?.is_empty() {
        return Ok(None);
    }
    let whole = texts.decode(&tokens).await?;
    if is_cut(&whole) {
        // A server that begins in the middle of a character may send the text before it once more.
        return Ok(None);
    }
    let is_full = input.max_tokens.is_some_and(|most| tokens.len() >= most as usize);
    let (out, met) = filter.push(&whole, is_full);
    if out != said {
        return Ok(None);
    }
    let ended = match (met, is_full) {
        (true, _) => Some(FinishReason::StopText),
        (_, true) => Some(FinishReason::Length),
        _ => None,
    };
    Ok(of(filter, ended))
}

/// Returns true if the last token has ended the reply.
fn is_end(input: &TextInput, rules: &Rules, last: u32, pieces: &[&TextPiece]) -> bool {
    let silent = pieces.last().is_some_and(|piece| piece.text.is_empty());
    let of_model = !input.ignore_eos && silent && rules.end_tokens.lock().contains(&last);
    input.stop_token_ids.contains(&last) || of_model
}

#[cfg(test)]
mod tests;
