//! `AsyncHandler` that makes embeddings: one vector for each text of a request.
//!
//! Each text is a request of its own in the engine. So texts are run in chunks, in steps with those
//! of other requests, and are charged to their account like prompts. A vector is pooled from the
//! hidden states after the last norm, and the output matrix is neither needed nor loaded.

mod modules;
mod vector;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use futures_channel::oneshot;
use nsbridge_handler::{
    AsyncHandler, AsyncJob, EmbeddingInput, EmbeddingPiece, EmbeddingText, Error, Fingerprint,
    Finish, Health, Measure, Models, Result, Usage,
};

use self::modules::Modules;
use self::vector::Form;
use crate::engine::{EngineRequest, Pending, Pool, PromptRows, SequenceGroup};
use crate::error::LoadError;
use crate::handler::{Llama, unless_stopped};
use crate::limits::{BYTES_PER_BYTE, IN_PLACE};
use crate::options::{Options, Task};
use crate::panics::caught_call;
use crate::reply::Reply;
use crate::request::RequestParameters;
use crate::tokenizer::ChatTokenizer;

/// Model of the Llama family that answers [`EmbeddingInput`]s, one vector a piece.
///
/// Its options have `task = "embed"`. The models are those made for embeddings with causal
/// attention, such as Qwen3-Embedding and E5-Mistral.
#[derive(Debug)]
pub struct Embedder {
    llama: Llama,
    modules: Modules,
}

/// Vector that the engine makes.
struct Making {
    index: usize,
    pending: Pending,
    vector: oneshot::Receiver<Vec<f32>>,
}

impl AsyncHandler for Embedder {
    type Options = Options;
    type Input = EmbeddingInput;
    type Output = EmbeddingPiece;

    async fn load(options: Options, models: Models) -> Result<Self> {
        if options.task != Some(Task::Embed) {
            let why = "the option task must be embed for a handler that makes embeddings";
            return Err(LoadError::Worker(why.to_owned()).fatal());
        }
        let modules = Modules::read(models.require("target")?, &options);
        let modules = modules.map_err(LoadError::fatal)?;
        let decides = format!("{modules:?}");
        Ok(Self { llama: Llama::load_embedder(options, &models, &decides)?, modules })
    }

    async fn handle(
        &self,
        input: EmbeddingInput,
        job: &mut AsyncJob<EmbeddingPiece>,
    ) -> Result<Finish> {
        caught_call(self.answer(input, job)).await
    }

    fn tasks(&self) -> usize {
        self.llama.tasks()
    }

    async fn warm_up(&self) -> Result<()> {
        self.llama.warm_up().await
    }

    fn health(&self) -> Health {
        self.llama.health()
    }

    fn forget(&self) {
        self.llama.forget();
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        AsyncHandler::fingerprint(&self.llama)
    }

    fn measures(&self) -> Vec<Measure> {
        self.llama.measures()
    }
}

impl Embedder {
    async fn answer(
        &self,
        input: EmbeddingInput,
        job: &mut AsyncJob<EmbeddingPiece>,
    ) -> Result<Finish> {
        let arrived = Instant::now();
        let form = Form::new(&input, self.llama.width(), self.modules.normalize)?;
        let (count, priority) = (input.input.len(), input.priority.unwrap_or(0));
        job.set_max_pieces(count);
        let done = job.accept_resume().len();
        // Held until the call ends.
        let (texts, _granted) = self.tokens(input.input, job).await?;
        let mut usage = Usage::new(texts.iter().map(|text| text.len() as u64).sum(), 0);
        let mut texts = texts.into_iter().enumerate().skip(done);
        let mut making = VecDeque::new();
        loop {
            while making.len() < self.llama.places() {
                let Some((index, tokens)) = texts.next() else { break };
                making.push_back(self.begin(index, tokens, (priority, arrived), job)?);
            }
            let Some(Making { index, pending, vector }) = making.pop_front() else { break };
            usage.cached_tokens += pending.finish().await?.usage.cached_tokens;
            let vector = vector.await.map_err(Error::retry)?;
            let embedding = form.encode(vector);
            job.emit(EmbeddingPiece::new(index as u32, embedding)).await?;
        }
        Ok(Finish::STOP.with_usage(usage))
    }

    /// Returns the tokens of each text, with the part of the memory budget that they take.
    async fn tokens(
        &self,
        texts: Vec<EmbeddingText>,
        job: &AsyncJob<EmbeddingPiece>,
    ) -> Result<(Vec<Vec<u32>>, Option<crate::budget::Grant>)> {
        let Llama { text, context, workers, budget, .. } = &self.llama;
        let bytes: usize = texts.iter().map(bytes_of).sum();
        let (text, vocabulary, context) = (text.clone(), self.llama.vocabulary().size, *context);
        let tokenize = move || {
            let each = |(index, one)| tokens_of(&text, one, index, (vocabulary, context));
            texts.into_iter().enumerate().map(each).collect::<Result<Vec<_>>>()
        };
        if bytes <= IN_PLACE {
            return Ok((tokenize()?, None));
        }
        let account = job.info().account.clone();
        let prepared = async {
            let memory = (bytes as u64).saturating_mul(BYTES_PER_BYTE);
            let granted = budget.take(account.clone(), memory).await?;
            Ok((workers.run(account.clone(), bytes as u64, tokenize).await?, Some(granted)))
        };
        unless_stopped(job, prepared).await
    }

    /// Starts to make the vector of a text.
    fn begin(
        &self,
        index: usize,
        tokens: Vec<u32>,
        (priority, arrived): (i32, Instant),
        job: &AsyncJob<EmbeddingPiece>,
    ) -> Result<Making> {
        let Llama { text, context, engine, .. } = &self.llama;
        let size = self.llama.vocabulary().size;
        let (pool, vector) = Pool::new(self.modules.pooling, tokens.len());
        let parameters = Arc::new(RequestParameters::nothing());
        let reply = Reply::new(text.clone(), size, *context, tokens, parameters, 0)?;
        let mut group = SequenceGroup::new(vec![reply], 1);
        group.read_prompt_by(PromptRows::Pool(pool));
        let (scope, account) = (job.info().scope.clone(), job.info().account.clone());
        let request = EngineRequest { group, scope, account, priority, arrived };
        let pending = engine.begin(request, Box::new(job.emitter()))?;
        Ok(Making { index, pending, vector })
    }
}

/// Returns the number of bytes of a text. A token id counts as one.
fn bytes_of(text: &EmbeddingText) -> usize {
    match text {
        EmbeddingText::Text(text) => text.len(),
        EmbeddingText::Tokens(tokens) => tokens.len(),
    }
}

/// Returns the tokens of a text, at least one.
fn tokens_of(
    tokenizer: &ChatTokenizer,
    text: EmbeddingText,
    index: usize,
    (vocabulary, context): (usize, usize),
) -> Result<Vec<u32>> {
    let refuse = |why: String| Err(Error::bad_input(format!("text {index} of `input` {why}")));
    let tokens = match text {
        EmbeddingText::Text(text) => tokenizer.text(&text, context)?,
        EmbeddingText::Tokens(tokens) => tokens,
    };
    if tokens.iter().any(|token| *token as usize >= vocabulary) {
        return refuse(format!("must name tokens of this model, from 0 to {}", vocabulary - 1));
    }
    match tokens.len() {
        0 => refuse("has no token".to_owned()),
        count if count > context => refuse(format!(
            "has {count} tokens, and this model's context has {context}: no text is cut"
        )),
        _ => Ok(tokens),
    }
}
