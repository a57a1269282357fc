//! Pieces of a request's prompt, which come before those of its reply.

use hyper::StatusCode;
use nsbridge_handler::{Error, Result, TextInput, TextPiece, TokenLogprob};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::answer::{refusal, unanswered};
use crate::chunk::Token;
use crate::reply::add_texts;
use crate::server::Server;
use crate::texts::{Open, Texts};

/// Maximum bytes of the pieces of a reply, as in the protocol.
const REPLY_BYTES: usize = 8 << 20;

/// Minimum bytes of a token with its log-probability, as JSON.
const SCORE_BYTES: usize = 32;

/// Score of a token at its position of the prompt.
#[derive(Deserialize)]
struct Score {
    logprob: f32,
    rank: Option<u32>,
}

/// Returns the pieces of the prompt: its text, the log-probabilities of its tokens, or both.
///
/// # Errors
///
/// Returns the server's refusal, or an error if it does not tell the log-probabilities.
pub(crate) async fn prompt_pieces(
    server: &Server,
    texts: &Texts,
    input: &TextInput,
    tokens: &[u32],
    scope: &str,
) -> Result<Vec<TextPiece>> {
    let parts = match (input.echo, &input.prompt) {
        (false, _) => vec![String::new(); tokens.len()],
        (true, Some(text)) => texts.divide(&mut Open::default(), tokens, text).await?,
        (true, None) => {
            let text = texts.decode(tokens).await?;
            texts.divide(&mut Open::default(), tokens, &text).await?
        }
    };
    let top = input.prompt_logprobs.or_else(|| {
        let echoed = input.echo && input.logprobs;
        echoed.then(|| input.top_logprobs.unwrap_or(0))
    });
    let mut scores = match top {
        Some(top) => {
            refuse_large(tokens.len(), top as usize)?;
            scores(server, input, tokens, top, scope).await?
        }
        None => Vec::new(),
    }
    .into_iter();
    let mut pieces = Vec::with_capacity(tokens.len());
    for (&id, text) in tokens.iter().zip(parts) {
        let (mut token, rank) = match scores.next() {
            Some(entries) => scored(id, &entries, top.unwrap_or(0) as usize)?,
            None => (Token { id: Some(id), ..Token::default() }, None),
        };
        if input.return_token_texts {
            add_texts(&mut token, texts).await?;
        }
        let Token { logprob, text: token_text, top: top_logprobs, .. } = token;
        let of_prompt = TextPiece { prompt: true, rank, ..TextPiece::new(id, text) };
        pieces.push(TextPiece { logprob, token_text, top_logprobs, ..of_prompt });
    }
    Ok(pieces)
}

/// Refuses a prompt whose scores do not fit into a reply: each attempt would let the server score it.
fn refuse_large(tokens: usize, top: usize) -> Result<()> {
    let most = REPLY_BYTES / SCORE_BYTES / (top + 1);
    if tokens <= most {
        return Ok(());
    }
    Err(Error::bad_input(format!(
        "the prompt has {tokens} tokens, and {most} are the most with the log-probabilities of {top} likely \
         tokens at each"
    )))
}

/// Returns the scores of each token of the prompt, by token id. The first one has none.
async fn scores(
    server: &Server,
    input: &TextInput,
    tokens: &[u32],
    top: u32,
    scope: &str,
) -> Result<Vec<Map<String, Value>>> {
    let path = "/v1/completions";
    let request = json!({
        "model": server.model_of(input), "prompt": tokens, "max_tokens": 1, "temperature": 0,
        "prompt_logprobs": top, "cache_salt": scope
    });
    let answer = server.http.wait(path, &request).await.map_err(unanswered)?;
    if answer.status != StatusCode::OK {
        return Err(refusal(&answer, &server.http, &server.model).await);
    }
    let mut answer: Value = answer.json().ok_or_else(no_scores)?;
    let scores = answer.pointer_mut("/choices/0/prompt_logprobs").map(Value::take);
    let scores: Option<Vec<Option<Map<String, Value>>>> =
        scores.and_then(|scores| serde_json::from_value(scores).ok());
    let scores = scores.filter(|scores| scores.len() == tokens.len()).ok_or_else(no_scores)?;
    Ok(scores.into_iter().map(Option::unwrap_or_default).collect())
}

/// Returns a token with its log-probability and its rank, and the most likely tokens at its position.
fn scored(id: u32, entries: &Map<String, Value>, top: usize) -> Result<(Token, Option<u32>)> {
    if entries.is_empty() {
        return Ok((Token { id: Some(id), ..Token::default() }, None));
    }
    let each = |(token, score): (&String, &Value)| {
        Some((token.parse().ok()?, Score::deserialize(score).ok()?))
    };
    let mut all: Vec<(u32, Score)> =
        entries.iter().map(each).collect::<Option<_>>().ok_or_else(no_scores)?;
    let own = all.iter().find(|(token, _)| *token == id).ok_or_else(no_scores)?;
    let (logprob, rank) = (Some(own.1.logprob), own.1.rank);
    all.sort_by(|(a, x), (b, y)| y.logprob.total_cmp(&x.logprob).then(a.cmp(b)));
    let top = all.iter().take(top).map(|(token, score)| TokenLogprob::new(*token, score.logprob));
    Ok((Token { id: Some(id), logprob, text: None, top: top.collect() }, rank))
}

fn no_scores() -> Error {
    Error::retry("the server does not tell the log-probabilities of the prompt's tokens")
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::{refuse_large, scored};

    #[test]
    fn scores_that_fit_into_no_reply_are_refused_with_the_numbers() {
        for (tokens, top, refused) in
            [(262_144, 0, false), (262_145, 0, true), (12_483, 20, false), (12_484, 20, true)]
        {
            let why = refuse_large(tokens, top).err().map(|error| error.to_string());
            assert_eq!(why.is_some(), refused, "{tokens} {top}");
            assert!(why.is_none_or(|why| why.contains(&tokens.to_string())));
        }
    }

    fn entries() -> Map<String, Value> {
        let entries = json!({ "7": { "logprob": -3.0, "rank": 9, "decoded_token": "a" },
                              "5": { "logprob": -0.5, "rank": 1 }, "6": { "logprob": -1.5, "rank": 2 } });
        entries.as_object().unwrap().clone()
    }

    #[test]
    fn a_token_of_the_prompt_has_its_score_and_the_most_likely_ones() {
        let (token, rank) = scored(7, &entries(), 2).unwrap();
        assert_eq!((token.logprob, rank), (Some(-3.0), Some(9)));
        let top: Vec<u32> = token.top.iter().map(|top| top.token).collect();
        assert_eq!(top, [5, 6]);
        assert_eq!(scored(7, &entries(), 0).unwrap().0.top.len(), 0);
    }

    #[test]
    fn the_first_token_has_no_score_and_a_score_of_another_token_is_none() {
        assert_eq!(scored(7, &Map::new(), 2).unwrap().0.logprob, None);
        assert!(scored(8, &entries(), 2).is_err());
    }
}
