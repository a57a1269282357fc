//! Answers from passages that are similar to a question.

use std::fmt;

use nsbridge_protocol::{ChatMessage, ModelName, Summary, TextInput, TextPiece};

use super::error::Result;
use super::flow::Flow;

/// Text that was retrieved, with its cosine similarity to the question.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct Passage {
    /// Text of the passage.
    pub text: String,
    /// Cosine of the angle between its vector and that of the question.
    pub score: f64,
}

impl Passage {
    /// Creates a passage with its similarity to the question.
    pub fn new(text: impl Into<String>, score: f64) -> Self {
        Self { text: text.into(), score }
    }
}

impl fmt::Debug for Passage {
    /// Omits the text, and the score, because it tells about the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passage").field("bytes", &self.text.len()).finish_non_exhaustive()
    }
}

/// Models of an answer from passages, and the number of the passages.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Retrieval {
    /// Model that makes the vectors.
    pub embedder: ModelName,
    /// Model that writes the answer.
    pub writer: ModelName,
    /// Number of passages for an answer.
    pub count: usize,
}

impl Retrieval {
    /// Creates a retrieval of four passages.
    pub fn new(embedder: ModelName, writer: ModelName) -> Self {
        Self { embedder, writer, count: 4 }
    }

    /// Sets the number of passages for an answer.
    #[must_use]
    pub fn count(self, count: usize) -> Self {
        Self { count, ..self }
    }
}

/// Returns the `count` passages that are most similar to a question, the best first.
///
/// # Errors
///
/// Returns an error of [`Flow::embed`].
pub async fn retrieve(
    flow: &Flow,
    question: &str,
    passages: &[impl AsRef<str>],
    embedder: ModelName,
    count: usize,
) -> Result<Vec<Passage>> {
    let texts = std::iter::once(question).chain(passages.iter().map(AsRef::as_ref));
    let vectors = flow.embed(embedder, texts).await?;
    let (asked, others) = vectors.split_at(1);
    let scored = passages.iter().zip(others).map(|(text, vector)| {
        let score = cosine(asked.first().map_or(&[], Vec::as_slice), vector);
        Passage { text: text.as_ref().to_owned(), score }
    });
    let mut found: Vec<Passage> = scored.collect();
    found.sort_by(|a, b| b.score.total_cmp(&a.score));
    found.truncate(count);
    Ok(found)
}

/// Retrieves passages and lets a model answer a question from them. `prompt` makes the writer's
/// input, as [`cited`] does.
///
/// ```no_run
/// use nsbridge_client::TextInput;
/// use nsbridge_client::combine::{Flow, Result, Retrieval, answer, cited};
///
/// async fn ask(flow: &Flow, models: &Retrieval, passages: &[String]) -> Result<String> {
///     let prompt = |question: &str, found: &[_]| TextInput {
///         max_tokens: Some(200),
///         ..cited(question, found)
///     };
///     let (pieces, _) = answer(flow, "Where was the bear?", passages, models, prompt).await?;
///     Ok(pieces.into_iter().map(|piece| piece.text).collect())
/// }
/// ```
///
/// # Errors
///
/// Returns an error of [`retrieve`] or of the writer's request.
pub async fn answer(
    flow: &Flow,
    question: &str,
    passages: &[impl AsRef<str>],
    models: &Retrieval,
    prompt: impl FnOnce(&str, &[Passage]) -> TextInput,
) -> Result<(Vec<TextPiece>, Summary)> {
    let Retrieval { embedder, writer, count } = models.clone();
    let found = retrieve(flow, question, passages, embedder, count).await?;
    Ok(flow.text(writer, prompt(question, &found)).await?.collect().await?)
}

/// Returns a message of the user with numbered passages and a question.
///
/// ```
/// use nsbridge_client::combine::{Passage, cited};
///
/// let found = [Passage::new("A bear went to the sea.", 0.9)];
/// let input = cited("Where was the bear?", &found);
/// assert_eq!(
///     input.messages[0].content,
///     "Sources:\n[1] A bear went to the sea.\n\nQuestion: Where was the bear?"
/// );
/// ```
pub fn cited(question: &str, found: &[Passage]) -> TextInput {
    let numbered = found.iter().enumerate();
    let sources: Vec<String> =
        numbered.map(|(index, passage)| format!("[{}] {}", index + 1, passage.text)).collect();
    let message = format!("Sources:\n{}\n\nQuestion: {question}", sources.join("\n"));
    TextInput::chat([ChatMessage::new("user", message)])
}

/// Returns the cosine of the angle between two vectors; 0 if one has no length.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let product = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
    };
    let length = (product(a, a) * product(b, b)).sqrt();
    if length > 0.0 { product(a, b) / length } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::cosine;

    #[test]
    fn the_cosine_does_not_depend_on_the_lengths() {
        assert!((cosine(&[1.0, 0.0], &[3.0, 4.0]) - 0.6).abs() < 1e-12);
        assert!((cosine(&[-2.0, 0.0], &[3.0, 4.0]) + 0.6).abs() < 1e-12);
        assert_eq!(cosine(&[0.0, 0.0], &[3.0, 4.0]), 0.0);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 4.0]), 0.0);
    }
}
