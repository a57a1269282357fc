//! Judgments of texts by the workers of a model with the task `judge`. They are no replies: nothing of
//! them is stored or joined.

use axum::http::StatusCode;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use nsbridge_client::{JudgeInput, JudgeScores, ModelName, Request, Usage};
use nsbridge_gateway_access::Caller;
use nsbridge_gateway_replies::{Observer as _, Outcome, RequestContext};

use crate::error::{ApiError, Result};
use crate::state::App;

/// Maximum number of bytes of all judgments of a request.
pub(crate) const MOST_BYTES: usize = 16 << 20;

/// Maximum number of judgments of a request that run at the same time, so that a request does not
/// fill the queue alone.
const MAX_CONCURRENT_JUDGMENTS: usize = 32;

/// Request for judgments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) context: &'a RequestContext,
    /// Operation of the metrics.
    pub(crate) kind: &'static str,
    pub(crate) model: &'a ModelName,
}

impl Asked<'_> {
    /// Asks for all judgments. Returns their scores, in the same order, and the tokens of all of them
    /// as the workers counted them. `at` names the field of a judgment that is refused.
    ///
    /// # Errors
    ///
    /// Returns the error of the first judgment that fails; the others are canceled.
    pub(crate) async fn judge(
        &self,
        app: &App,
        inputs: Vec<JudgeInput>,
        at: impl Fn(usize) -> String,
    ) -> Result<(Vec<JudgeScores>, Usage)> {
        let most: u64 = inputs.iter().map(|input| bytes(input) as u64 / 4 + 1).sum();
        self.context.take(inputs.iter().map(bytes).sum())?;
        let reservation = self.caller.limiter.reserve(most)?;
        app.metrics.reserved(most);
        let judgments = inputs.into_iter().enumerate().map(|(index, input)| {
            let at = at(index);
            async move {
                let judged = self.one(app, input).await;
                judged.map_err(|error| match error.status() {
                    StatusCode::BAD_REQUEST => error.about(&at),
                    _ => error,
                })
            }
        });
        let judgments: Vec<_> = judgments.collect();
        let judged: Vec<_> =
            stream::iter(judgments).buffered(MAX_CONCURRENT_JUDGMENTS).try_collect().await?;
        let (mut all, mut usage) = (Vec::with_capacity(judged.len()), Usage::default());
        for (scores, of_one) in judged {
            all.push(scores);
            usage.input_tokens += of_one.input_tokens;
            usage.output_tokens += of_one.output_tokens;
            usage.cached_tokens += of_one.cached_tokens;
        }
        // A classifier without a tokenizer counts no tokens.
        let counted = usage.input_tokens + usage.output_tokens;
        let tokens = if counted > 0 { counted } else { most };
        reservation.settle(tokens);
        app.metrics.settled(tokens);
        Ok((all, usage))
    }

    async fn one(&self, app: &App, input: JudgeInput) -> Result<(JudgeScores, Usage)> {
        let meter = app.metrics.begin(self.kind, self.model);
        let mut request = Request::new(self.model.clone(), self.caller.tenant.clone());
        request.trace = self.context.trace;
        let request = request.input(input).timeout(app.settings.timeout);
        let request = request.priority(self.caller.priority);
        let replied = async {
            let reply = app.client.submit::<JudgeScores>(request).await?;
            app.whole(reply, self.model, self.context.patience).await
        };
        let judged = match replied.await {
            Ok((pieces, summary)) => only(pieces).map(|scores| (scores, summary.usage)),
            Err(error) => Err(error),
        };
        meter.end(judged.as_ref().map_or(Outcome::Failed, |(_, usage)| Outcome::Done(*usage)));
        judged
    }
}

/// Returns the only piece of a reply, if all its scores are from 0 to 1.
fn only(pieces: Vec<JudgeScores>) -> Result<JudgeScores> {
    let odd = || {
        let message =
            "the model is no judge: its reply must have one piece, with scores from 0 to 1";
        ApiError::internal(message).coded("bad_reply")
    };
    let [scores] = <[JudgeScores; 1]>::try_from(pieces).map_err(|_| odd())?;
    let is_score = |score: &f64| (0.0..=1.0).contains(score);
    if scores.0.values().all(is_score) { Ok(scores) } else { Err(odd()) }
}

/// Returns the number of bytes of a judgment's texts.
fn bytes(input: &JudgeInput) -> usize {
    let labels = input.labels.iter();
    let labels = labels.map(|it| it.label.len() + it.description.as_ref().map_or(0, String::len));
    input.text.len() + input.question.as_ref().map_or(0, String::len) + labels.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::only;
    use nsbridge_client::JudgeScores;

    fn scores(score: f64) -> JudgeScores {
        [("a", 0.5), ("b", score)].into_iter().collect()
    }

    #[test]
    fn a_reply_of_another_shape_is_no_judgment() {
        for good in [0.0, 1.0] {
            assert_eq!(only(vec![scores(good)]).unwrap(), scores(good));
        }
        for odd in [-0.01, 1.01, f64::NAN] {
            assert_eq!(only(vec![scores(odd)]).unwrap_err().code(), "bad_reply", "{odd}");
        }
        assert!(only(vec![]).is_err() && only(vec![scores(0.0), scores(0.0)]).is_err());
    }
}
