//! Text that a judge reads while it is written.

use std::cmp::Ordering;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::stream::{BoxStream, try_unfold};
use futures_util::{Stream, StreamExt};
use nsbridge_protocol::{JudgeInput, JudgeLabel, ModelName, TextInput, TextPiece};

use super::error::{CutOff, Error, Result};
use super::flow::Flow;
use crate::reply::{Event, Reply};

/// Judge of a text, and the highest scores that pass.
///
/// ```
/// use nsbridge_client::combine::Gate;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let gate = Gate::new("judge".parse()?, [("violence", 0.5), ("hate", 0.2)]).every(200);
/// assert_eq!((gate.limits.len(), gate.every), (2, 200));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Gate {
    /// Model that judges.
    pub judge: ModelName,
    /// Highest scores that pass, by label.
    pub limits: Vec<(String, f64)>,
    /// Labels that the judge scores; its own categories if empty.
    pub labels: Vec<JudgeLabel>,
    /// Number of characters after which the text is judged again.
    pub every: usize,
}

impl Gate {
    /// Creates a gate that judges a text by the judge's own categories, each 400 characters.
    pub fn new<L: Into<String>>(
        judge: ModelName,
        limits: impl IntoIterator<Item = (L, f64)>,
    ) -> Self {
        let limits = limits.into_iter().map(|(label, limit)| (label.into(), limit)).collect();
        Self { judge, limits, labels: Vec::new(), every: 400 }
    }

    /// Sets the labels that the judge scores.
    #[must_use]
    pub fn labels(self, labels: Vec<JudgeLabel>) -> Self {
        Self { labels, ..self }
    }

    /// Sets the number of characters after which the text is judged again.
    #[must_use]
    pub fn every(self, every: usize) -> Self {
        Self { every, ..self }
    }

    /// Judges a text; `passed` is the part of it that passed before.
    async fn check(&self, flow: &Flow, text: String, passed: &str) -> Result<()> {
        let input = JudgeInput { labels: self.labels.clone(), ..JudgeInput::text(text) };
        let scores = flow.judge(self.judge.clone(), input).await?.0;
        for (label, limit) in &self.limits {
            let label = label.clone();
            let Some(score) = scores.get(&label).copied() else {
                return Err(Error::NoScore { label });
            };
            // A limit that is no number lets nothing pass.
            if score.partial_cmp(limit).is_none_or(Ordering::is_gt) {
                let (limit, text) = (*limit, passed.to_owned());
                return Err(Error::CutOff(CutOff { label, score, limit, text }));
            }
        }
        Ok(())
    }
}

/// Judges a prompt, lets a model continue it, and returns the text in parts that the judge let pass.
///
/// The judge reads the prompt first, then the text so far after each [`Gate::every`] characters and
/// at its end. A score above its limit cancels the writer and ends the stream with
/// [`Error::CutOff`]. `options` is the writer's input; its prompt is replaced.
pub fn judged(
    flow: &Flow,
    prompt: impl Into<String>,
    gate: Gate,
    writer: ModelName,
    options: TextInput,
) -> Judged<'_> {
    let input = TextInput { prompt: Some(prompt.into()), ..options };
    let work = Work { flow, gate, writer, state: State::Begin(Box::new(input)) };
    let parts = try_unfold(work, async |mut work| Ok(work.next().await?.map(|part| (part, work))));
    Judged(parts.boxed())
}

/// Parts of a text that passed a judge. Dropping it cancels the writer.
pub struct Judged<'a>(BoxStream<'a, Result<String>>);

impl Judged<'_> {
    /// Returns the next part; `None` after the last one, or after an error.
    ///
    /// Cancel safe.
    pub async fn next(&mut self) -> Option<Result<String>> {
        self.0.next().await
    }
}

impl Stream for Judged<'_> {
    type Item = Result<String>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(context)
    }
}

impl fmt::Debug for Judged<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Judged").finish_non_exhaustive()
    }
}

struct Work<'a> {
    flow: &'a Flow,
    gate: Gate,
    writer: ModelName,
    state: State,
}

enum State {
    /// Input of the writer, whose prompt is not judged yet.
    Begin(Box<TextInput>),
    /// Reply of the writer, and the text that passed.
    Writing(Box<Reply<TextPiece>>, String),
    End,
}

impl Work<'_> {
    /// Returns the next part; `None` at the end.
    async fn next(&mut self) -> Result<Option<String>> {
        let (mut reply, mut passed) = match std::mem::replace(&mut self.state, State::End) {
            State::Begin(input) => {
                let prompt = input.prompt.clone().unwrap_or_default();
                self.gate.check(self.flow, prompt, "").await?;
                let reply = self.flow.text(self.writer.clone(), *input).await?;
                (Box::new(reply), String::new())
            }
            State::Writing(reply, passed) => (reply, passed),
            State::End => return Ok(None),
        };
        let (part, more) = read(&mut reply, self.gate.every).await?;
        if !part.is_empty() {
            self.gate.check(self.flow, format!("{passed}{part}"), &passed).await?;
        }
        if more {
            passed += &part;
            self.state = State::Writing(reply, passed);
        }
        Ok(Some(part).filter(|part| !part.is_empty()))
    }
}

/// Reads at least `every` characters, or up to the end. Returns true if the end was not reached.
async fn read(reply: &mut Reply<TextPiece>, every: usize) -> Result<(String, bool)> {
    let (mut part, mut characters) = (String::new(), 0);
    while let Some(event) = reply.next().await {
        match event? {
            Event::Piece(piece) => {
                part += &piece.text;
                characters += piece.text.chars().count();
                if characters >= every.max(1) {
                    return Ok((part, true));
                }
            }
            Event::Restarted { kept } => return Err(Error::Restarted { kept }),
            Event::Done(_) => break,
            _ => {}
        }
    }
    Ok((part, false))
}
