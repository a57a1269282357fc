//! Requests that share a deadline, a trace and a seed.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::TryStreamExt;
use nsbridge_protocol::topology::MAX_TIME_TO_FINISH;
use nsbridge_protocol::{
    Embedding, EmbeddingInput, EmbeddingPiece, EmbeddingText, EncodingFormat, JudgeInput,
    JudgeScores, ModelName, Priority, ReplayKey, Tenant, TextInput, TextPiece, TraceParent,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::error::{Error, Result};
use super::in_order::in_order;
use super::requests::Requests;
use crate::client::{Client, begin_trace, draw_seed};
use crate::reply::Reply;
use crate::request::Request;

/// Maximum time limit of a flow: longer ones are shortened, because clocks cannot add them.
const MAX_TIME_LIMIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Steps of one task.
///
/// All requests end by one deadline and belong to one trace. The seed of a step is derived from the
/// flow's seed and the number of the step ([`step_seed`]); steps are numbered from 0, in the order in
/// which the methods are called. An item of [`map`](Self::map) is a flow of its own, so the order in
/// which items run changes no seed.
///
/// Dropping a flow cancels its requests that still run, also those of its items. A reply that the
/// caller holds then ends with [`Error::Closed`](crate::error::Error::Closed).
///
/// ```no_run
/// use std::time::Duration;
///
/// use nsbridge_client::combine::{Flow, Result};
/// use nsbridge_client::{Client, JudgeInput};
///
/// async fn spam_scores(client: &Client, texts: Vec<String>) -> Result<Vec<f64>> {
///     let tenant = "acme".parse().expect("a plain word is a tenant");
///     let flow = Flow::new(client, tenant)?.timeout(Duration::from_secs(60));
///     let step = async |flow: Flow, text: String| {
///         let judge = "judge".parse().expect("a plain word is a model");
///         Ok(flow.judge(judge, JudgeInput::text(text)).await?.0["spam"])
///     };
///     flow.map(texts, 8, step).await
/// }
/// ```
pub struct Flow {
    client: Client,
    tenant: Tenant,
    priority: Priority,
    seed: u64,
    trace: TraceParent,
    deadline: Instant,
    /// Number of the next step.
    next: AtomicU64,
    requests: Arc<Requests>,
}

impl Flow {
    /// Creates a flow of interactive requests with a time limit of five minutes from now, a random
    /// seed and a new trace.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system provides no randomness.
    pub fn new(client: &Client, tenant: Tenant) -> crate::error::Result<Self> {
        Ok(Self {
            client: client.clone(),
            tenant,
            priority: Priority::Interactive,
            seed: draw_seed()?,
            trace: begin_trace()?,
            deadline: Instant::now() + Duration::from_secs(300),
            next: AtomicU64::new(0),
            requests: Arc::default(),
        })
    }

    /// Sets the time limit, from now to the end of the last reply. A request has at most 25 minutes of
    /// it.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.deadline = Instant::now() + timeout.min(MAX_TIME_LIMIT);
        self
    }

    /// Sets the seed from which the seeds of all steps are derived.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the caller's span, the parent of the workers' spans.
    #[must_use]
    pub fn trace(mut self, trace: TraceParent) -> Self {
        self.trace = trace;
        self
    }

    /// Sets the priority class of all requests.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Returns the number of steps so far.
    pub fn steps(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Returns the time until the deadline.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Deadline`](crate::error::Error::Deadline) if the deadline has passed.
    pub fn left(&self) -> crate::error::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let late = crate::error::Error::Deadline { pieces: 0, hint: None };
        if left.is_zero() { Err(late) } else { Ok(left) }
    }

    /// Submits a request for any model.
    ///
    /// # Errors
    ///
    /// Returns an error of [`Client::submit`], [`Error::Deadline`](crate::error::Error::Deadline) if the
    /// flow's deadline has passed, or [`Error::Closed`](crate::error::Error::Closed) if a flow above this
    /// one was dropped.
    pub fn submit<O: DeserializeOwned + ReplayKey>(
        &self,
        model: ModelName,
        input: impl Serialize,
    ) -> impl Future<Output = crate::error::Result<Reply<O>>> {
        // The number of the step is taken by the call, not by the first poll.
        let seed = step_seed(self.seed, self.next.fetch_add(1, Ordering::Relaxed));
        async move {
            self.requests.check()?;
            let request = Request::new(model, self.tenant.clone())
                .input(input)
                .seed(seed)
                .priority(self.priority)
                .timeout(self.left()?.min(MAX_TIME_TO_FINISH))
                .trace(self.trace);
            let reply = self.client.submit(request).await?;
            self.requests.add(&reply.running())?;
            Ok(reply)
        }
    }

    /// Submits a request for a model of text.
    ///
    /// # Errors
    ///
    /// Returns an error of [`submit`](Self::submit).
    pub fn text(
        &self,
        model: ModelName,
        input: TextInput,
    ) -> impl Future<Output = crate::error::Result<Reply<TextPiece>>> {
        self.submit(model, input)
    }

    /// Returns the scores of a text.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoJudgment`] if the reply is not one piece, or an error of the request.
    pub fn judge(
        &self,
        model: ModelName,
        input: JudgeInput,
    ) -> impl Future<Output = Result<JudgeScores>> {
        let reply = self.submit(model, input);
        async {
            let (scores, _) = reply.await?.collect().await?;
            let [scores]: [JudgeScores; 1] = scores.try_into().map_err(|_| Error::NoJudgment)?;
            Ok(scores)
        }
    }

    /// Returns the vectors of texts, in the order of the texts.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoEmbedding`] if the reply does not have one vector for each text, or an
    /// error of the request.
    pub fn embed<T: Into<EmbeddingText>>(
        &self,
        model: ModelName,
        texts: impl IntoIterator<Item = T>,
    ) -> impl Future<Output = Result<Vec<Vec<f32>>>> {
        let encoding_format = Some(EncodingFormat::Float);
        let input = EmbeddingInput { encoding_format, ..EmbeddingInput::texts(texts) };
        let count = input.input.len();
        let reply = self.submit(model, input);
        async move {
            let (pieces, _) = reply.await?.collect().await?;
            vectors(pieces, count).ok_or(Error::NoEmbedding)
        }
    }

    /// Runs a step for each item, at most `concurrency` at once, and returns the results in the order
    /// of the items.
    ///
    /// Each item has a flow of its own with this flow's deadline and trace. It is dropped when its
    /// step drops it, at the latest at the step's end if the step does not return it. The first error
    /// cancels the other items.
    ///
    /// # Errors
    ///
    /// Returns the first error of a step.
    pub fn map<T, R, E, F>(
        &self,
        items: impl IntoIterator<Item = T>,
        concurrency: usize,
        mut step: impl FnMut(Self, T) -> F,
    ) -> impl Future<Output = Result<Vec<R>, E>>
    where
        F: Future<Output = Result<R, E>>,
    {
        let items: Vec<T> = items.into_iter().collect();
        let first = self.next.fetch_add(items.len() as u64, Ordering::Relaxed);
        let step = move |(number, item)| step(self.part(number), item);
        in_order((first..).zip(items), concurrency, step).try_collect()
    }

    /// Returns the flow of the item with this number.
    fn part(&self, number: u64) -> Self {
        Self {
            client: self.client.clone(),
            tenant: self.tenant.clone(),
            priority: self.priority,
            seed: step_seed(self.seed, number),
            trace: self.trace,
            deadline: self.deadline,
            next: AtomicU64::new(0),
            requests: Arc::new(Requests::below(&self.requests)),
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.requests.cancel();
    }
}

impl fmt::Debug for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flow").field("steps", &self.steps()).finish_non_exhaustive()
    }
}

/// Returns the seed of a step: the upper 53 bits of the first eight bytes of SHA-256 of a label, the
/// flow's seed and the number of the step, each number as eight bytes, the most significant first.
///
/// The Python client has the same rule.
///
/// ```
/// assert_eq!(nsbridge_client::combine::step_seed(7, 0), 273105626606372);
/// ```
pub fn step_seed(seed: u64, number: u64) -> u64 {
    let mut hash = Sha256::new();
    hash.update(b"nsbridge flow\0");
    hash.update(seed.to_be_bytes());
    hash.update(number.to_be_bytes());
    let first = hash.finalize().iter().take(8).fold(0, |bits, byte| bits << 8 | u64::from(*byte));
    first >> 11
}

/// Returns the vectors of these pieces in the order of the texts; `None` unless each text has one.
fn vectors(mut pieces: Vec<EmbeddingPiece>, count: usize) -> Option<Vec<Vec<f32>>> {
    pieces.sort_by_key(|piece| piece.index);
    let in_order = pieces.iter().zip(0..).all(|(piece, index)| piece.index == index);
    if !in_order || pieces.len() != count {
        return None;
    }
    let numbers = |piece: EmbeddingPiece| match piece.embedding {
        Embedding::Floats(numbers) => Some(numbers),
        _ => None,
    };
    pieces.into_iter().map(numbers).collect()
}

#[cfg(test)]
mod tests {
    use nsbridge_protocol::{Embedding, EmbeddingPiece};
    use serde::Deserialize;

    use super::{step_seed, vectors};

    /// Vector that the tests of the Python client read too.
    #[derive(Deserialize)]
    struct Vector {
        seed: u64,
        number: u64,
        step_seed: u64,
    }

    #[test]
    fn the_seeds_of_steps_are_those_of_the_vectors() {
        let vectors: Vec<Vector> =
            serde_json::from_str(include_str!("../../vectors/flow-v1.json")).unwrap();
        assert!(vectors.len() > 8);
        for Vector { seed, number, step_seed: expected } in vectors {
            assert_eq!(step_seed(seed, number), expected, "step {number} of {seed}");
        }
    }

    #[test]
    fn each_text_has_exactly_one_vector() {
        let floats = |index: u32| Embedding::Floats(vec![index as f32]);
        let piece = |index| EmbeddingPiece::new(index, floats(index));
        let read = |indices: &[u32]| vectors(indices.iter().copied().map(piece).collect(), 2);
        assert_eq!(read(&[1, 0]), Some(vec![vec![0.0], vec![1.0]]));
        for wrong in [&[0][..], &[0, 0], &[0, 2], &[0, 1, 2], &[]] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
        let text = EmbeddingPiece::new(0, Embedding::Base64(String::new()));
        assert_eq!(vectors(vec![text], 1), None);
    }
}
