//! Handler of vectors: passes the texts of each request to the server.

use std::sync::Arc;
use std::time::SystemTime;

use nsbridge_handler::{
    AsyncHandler, AsyncJob, EmbeddingInput, EmbeddingPiece, EmbeddingText, Error, Fingerprint,
    Finish, Health, Measure, Models, Result, Usage,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::unanswered;
use crate::options::{Flavor, Options};
use crate::request::Request;
use crate::server::{Purpose, Server};
use crate::stream::open;
use crate::upstream::{Upstream, scope};
use crate::vector::Form;

/// Path of vectors.
const PATH: &str = "/v1/embeddings";

/// Maximum number of texts that are sent to the server at once.
const MOST_TEXTS: usize = 32;

/// Handler in front of a server of OpenAI's API that makes vectors.
#[derive(Debug)]
pub struct OpenAiEmbedder {
    upstream: Upstream,
    /// Number of dimensions of a vector.
    width: usize,
}

/// Vectors of some texts.
#[derive(Deserialize)]
struct Vectors {
    data: Vec<Vector>,
    usage: Option<VectorUsage>,
}

#[derive(Deserialize)]
struct Vector {
    index: usize,
    embedding: Vec<f32>,
}

#[derive(Deserialize)]
struct VectorUsage {
    prompt_tokens: u64,
}

impl AsyncHandler for OpenAiEmbedder {
    type Options = Options;
    type Input = EmbeddingInput;
    type Output = EmbeddingPiece;

    async fn load(options: Options, models: Models) -> Result<Self> {
        let upstream = Upstream::load(options, &models, Purpose::Embeddings).await?;
        let server = upstream.server.clone();
        let width = upstream.background.spawn(async move { width(&server).await });
        let width = width.result().await?;
        Ok(Self { upstream, width })
    }

    async fn handle(
        &self,
        input: EmbeddingInput,
        job: &mut AsyncJob<EmbeddingPiece>,
    ) -> Result<Finish> {
        let answered = self.answer(input, job).await;
        self.upstream.result(answered).await
    }

    fn tasks(&self) -> usize {
        self.upstream.slots
    }

    fn health(&self) -> Health {
        self.upstream.health()
    }

    fn measures(&self) -> Vec<Measure> {
        self.upstream.measures()
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        Some(self.upstream.fingerprint())
    }
}

impl OpenAiEmbedder {
    async fn answer(
        &self,
        input: EmbeddingInput,
        job: &mut AsyncJob<EmbeddingPiece>,
    ) -> Result<Finish> {
        let form = Form::new(&input, self.width)?;
        job.set_max_pieces(input.input.len());
        let known = job.accept_resume().len();
        let (scope, deadline) = (scope(job), job.info().deadline);
        let (mut place, mut tokens) = (0, 0);
        for texts in parts(&input.input) {
            // The vectors that the client has are made once more: only the server counts their tokens.
            let request = request(&self.upstream.server, texts, &scope);
            let made = vectors(self.upstream.server.clone(), request, texts.len(), deadline);
            let (vectors, counted) = self.upstream.unless_stopped(job, made).await?;
            tokens += counted;
            for vector in vectors {
                if vector.len() != self.width {
                    return Err(Error::fatal(
                        "the server's vectors have another length than at the load",
                    ));
                }
                if place >= known {
                    job.emit(EmbeddingPiece::new(place as u32, form.encode(vector))).await?;
                }
                place += 1;
            }
        }
        Ok(Finish::STOP.with_usage(Usage::new(tokens, 0)))
    }
}

/// Divides texts into those of one request each: they are all texts, or all token ids.
fn parts(texts: &[EmbeddingText]) -> impl Iterator<Item = &[EmbeddingText]> {
    let is_text = |text: &EmbeddingText| matches!(text, EmbeddingText::Text(_));
    texts.chunk_by(move |a, b| is_text(a) == is_text(b)).flat_map(|texts| texts.chunks(MOST_TEXTS))
}

fn request(server: &Server, texts: &[EmbeddingText], scope: &str) -> Request {
    let mut body = json!({ "model": server.model, "input": texts, "encoding_format": "float" });
    if server.flavor == Flavor::Vllm {
        body["cache_salt"] = scope.into();
    }
    Request { path: PATH, body }
}

/// Returns the vectors of texts in their order, and the number of tokens of all texts.
async fn vectors(
    server: Arc<Server>,
    request: Request,
    count: usize,
    deadline: SystemTime,
) -> Result<(Vec<Vec<f32>>, u64)> {
    let strange = || unanswered(server.http.strange(PATH, "no vector for each text"));
    let response = open(&server, &request, deadline).await?;
    let answer = server.http.read(PATH, response).await.map_err(unanswered)?;
    let Vectors { mut data, usage } = answer.json().ok_or_else(strange)?;
    data.sort_by_key(|vector| vector.index);
    if !data.iter().map(|vector| vector.index).eq(0..count) {
        return Err(strange());
    }
    let vectors = data.into_iter().map(|vector| vector.embedding).collect();
    Ok((vectors, usage.map_or(0, |usage| usage.prompt_tokens)))
}

/// Returns the number of dimensions of the server's vectors.
async fn width(server: &Server) -> Result<usize> {
    let body: Value = json!({ "model": server.model, "input": ["a"], "encoding_format": "float" });
    let answer = server.http.post(PATH, &body).await.map_err(Error::fatal)?;
    let vectors: Option<Vectors> = answer.json();
    let width = vectors.and_then(|vectors| Some(vectors.data.first()?.embedding.len()));
    let none = || {
        Error::fatal(format!(
            "the server at {} makes no vectors (status {}): start it with a model of embeddings, or leave \
             out [handler] task",
            server.http.root(),
            answer.status.as_u16()
        ))
    };
    width.filter(|width| *width > 0).ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use nsbridge_handler::{EmbeddingInput, EmbeddingText};

    use super::parts;

    #[test]
    fn a_request_to_the_server_has_texts_or_token_ids_and_not_too_many() {
        let mut texts = vec![EmbeddingText::from("a"); 40];
        texts.push(vec![5].into());
        texts.push("b".into());
        let input = EmbeddingInput::texts(texts);
        let sizes: Vec<usize> = parts(&input.input).map(<[_]>::len).collect();
        assert_eq!(sizes, [32, 8, 1, 1]);
        assert_eq!(parts(&input.input).collect::<Vec<_>>().concat(), input.input);
    }
}
