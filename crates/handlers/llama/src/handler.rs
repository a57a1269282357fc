//! `AsyncHandler` implementation: prepares requests, passes them to the engine, returns their
//! tokens, and computes the fingerprint.

mod device;
mod drafting;
mod embedding;
mod placement;
mod plan;
mod preparation;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use nsbridge_handler::{
    AsyncHandler, AsyncJob, Error, Fingerprint, Finish, Health, Measure, Models, Result, TextInput,
    TextPiece,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use self::drafting::Drafting;
use self::plan::LoadPlan;
use self::preparation::Preparation;
use crate::budget::Budget;
use crate::config::Config;
use crate::engine::{Engine, EngineRequest, Policy};
use crate::error::LoadError;
use crate::grammar::{self, Grammars};
use crate::limits::{HELD_BYTES, PREPARATION_TIMEOUT, REPLIES, THREADS};
use crate::metadata;
use crate::options::Options;
use crate::panics::caught_call;
use crate::request::{RequestParameters, Vocabulary};
use crate::speculation::Drafter;
use crate::timeout::{seconds, within};
use crate::tokenizer::ChatTokenizer;
use crate::workers::Workers;

/// Version of the arithmetic; increased when the same request could get other tokens from the same
/// files.
const ARITHMETIC_VERSION: u32 = 4;

/// Files that decide the text of a reply, in addition to the weights.
const FILES: [&str; 7] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
];

/// Llama model that answers [`TextInput`]s, one token a piece.
///
/// The token that ends a reply is a piece too, with the text that was held back until then.
#[derive(Debug)]
pub struct Llama {
    config: Config,
    pub(crate) engine: Engine,
    pub(crate) context: usize,
    pub(crate) text: Arc<ChatTokenizer>,
    grammars: Arc<Grammars>,
    pub(crate) workers: Workers,
    pub(crate) budget: Budget,
    options: Options,
    fingerprint: [u8; 16],
}

impl AsyncHandler for Llama {
    type Options = Options;
    type Input = TextInput;
    type Output = TextPiece;

    async fn load(options: Options, models: Models) -> Result<Self> {
        let drafting = Drafting::new(&options, &models).map_err(LoadError::fatal)?;
        Self::load_generating(options, &models, drafting)
    }

    async fn handle(&self, input: TextInput, job: &mut AsyncJob<TextPiece>) -> Result<Finish> {
        caught_call(self.answer(input, job)).await
    }

    fn tasks(&self) -> usize {
        places(&self.options) + self.options.job_queue_size.unwrap_or(0)
    }

    async fn warm_up(&self) -> Result<()> {
        self.engine.warm_up().await
    }

    fn health(&self) -> Health {
        let failure = self.engine.failure().or_else(|| self.workers.stuck(PREPARATION_TIMEOUT));
        failure.map_or(Health::Ok, Health::Failed)
    }

    fn forget(&self) {
        self.engine.forget();
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        Some(Fingerprint(self.fingerprint))
    }

    fn measures(&self) -> Vec<Measure> {
        self.engine.counted().measures()
    }
}

impl Llama {
    /// Loads the model with a custom drafter that the configuration does not know.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`AsyncHandler::load`].
    pub fn load_with(
        options: Options,
        models: &Models,
        drafter: impl Drafter + 'static,
    ) -> Result<Self> {
        Self::load_generating(options, models, Drafting::With(Box::new(drafter)))
    }

    fn load_generating(options: Options, models: &Models, drafting: Drafting) -> Result<Self> {
        embedding::check_generating(&options).map_err(LoadError::fatal)?;
        Self::load_drafting(options, models, drafting, String::new())
    }

    /// Loads the model for embeddings, whose vectors depend on `decides` too.
    pub(crate) fn load_embedder(options: Options, models: &Models, decides: &str) -> Result<Self> {
        embedding::check_embedding(&options).map_err(LoadError::fatal)?;
        Self::load_drafting(options, models, Drafting::Nothing, decides.to_owned())
    }

    fn load_drafting(
        options: Options,
        models: &Models,
        drafting: Drafting,
        decides: String,
    ) -> Result<Self> {
        let files = models.require("target")?.clone();
        let limit = seconds("model_loading_timeout", options.model_loading_timeout);
        let limit = limit.map_err(LoadError::fatal)?;
        let read = move || Self::read(options, &files, drafting, &decides);
        within(limit, read).map_err(LoadError::fatal)
    }

    fn read(
        options: Options,
        files: &nsbridge_handler::Model,
        drafting: Drafting,
        decides: &str,
    ) -> Result<Self, LoadError> {
        let plan = LoadPlan::new(&options, files, drafting)?;
        let (mut model, digests) = plan.load()?;
        let LoadPlan { config, context, text, limits, required, drafting, .. } = plan;
        if let Some(required) = required {
            required.check(&mut model, files)?;
        }
        let decides = [model.arithmetic(), decides];
        let fingerprint = fingerprint(files, &digests, decides, &options)?;
        let caching = options.enable_prefix_caching.unwrap_or(true);
        let policy =
            Policy { limit: plan.predict_timeout, caching, limits, max_step: plan.max_step };
        let speculation = drafting.speculation(&options, limits.tokens, caching)?;
        let engine = Engine::start(model, policy, speculation).map_err(LoadError::read)?;
        let text = Arc::new(text);
        let (words, size) = (text.clone(), config.vocab_size);
        let grammars = Arc::new(Grammars::new(move || words.spelling(size)));
        let workers =
            Workers::start(THREADS).map_err(|error| LoadError::Read(error.to_string()))?;
        let budget = Budget::new(HELD_BYTES);
        Ok(Self { text, grammars, workers, budget, config, engine, context, options, fingerprint })
    }

    async fn answer(&self, input: TextInput, job: &mut AsyncJob<TextPiece>) -> Result<Finish> {
        let arrived = Instant::now();
        let replies = replies(&input)?;
        let parameters =
            RequestParameters::new(&input, &self.options, &self.config.advice, self.vocabulary())?;
        ChatTokenizer::refuse_long(&input, self.context)?;
        let (scope, account) = (job.info().scope.clone(), job.info().account.clone());
        let (priority, rule) = (input.priority.unwrap_or(0), input.response_format.is_some());
        let preparation = Preparation {
            text: self.text.clone(),
            grammars: self.grammars.clone(),
            vocab_size: self.config.vocab_size,
            context: self.context,
            step_tokens: step_tokens(&self.options),
            parameters: Arc::new(parameters),
            seed: job.info().seed,
            submitted_at: job.info().submitted_at,
            replies,
            input,
            resumed: job.accept_resume().to_vec(),
        };
        // Held until the call ends. A request of a few bytes takes no part of the budget.
        let (mut granted, short) = (None, !rule && preparation.is_short());
        let (group, finish) = if short {
            preparation.prepare()?
        } else {
            let (memory, cost) = (preparation.memory(), preparation.cost());
            let prepared = async {
                granted = Some(self.budget.take(account.clone(), memory).await?);
                self.workers.run(account.clone(), cost, move || preparation.prepare()).await
            };
            unless_stopped(job, prepared).await?
        };
        job.set_max_pieces(group.longest());
        job.set_input_tokens(group.prompt_tokens());
        if let Some(finish) = finish {
            return Ok(finish);
        }
        let request = EngineRequest { group, scope, account, priority, arrived };
        let finish = self.engine.begin(request, Box::new(job.emitter()))?.finish().await;
        drop(granted);
        finish
    }

    pub(crate) fn vocabulary(&self) -> Vocabulary<'_> {
        vocabulary(&self.config)
    }

    /// Returns the number of dimensions of a hidden state.
    pub(crate) fn width(&self) -> usize {
        self.config.hidden_size
    }

    /// Returns the number of requests that run concurrently.
    pub(crate) fn places(&self) -> usize {
        places(&self.options)
    }
}

/// Awaits the work, or ends with the reason once the call must stop.
pub(crate) async fn unless_stopped<T, O: Serialize + DeserializeOwned>(
    job: &AsyncJob<O>,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let (mut work, mut stopped) = (pin!(work), pin!(job.stopped()));
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(done),
        Poll::Pending => stopped.as_mut().poll(context).map(|stop| Err(stop.into())),
    })
    .await
}

/// Returns the number of replies that the input requests.
fn replies(input: &TextInput) -> Result<u64> {
    match input.n.unwrap_or(1) {
        n @ 1..=REPLIES => Ok(n.into()),
        _ => Err(Error::bad_input(format!("`n` must be from 1 to {REPLIES}"))),
    }
}

fn places(options: &Options) -> usize {
    options.max_rolling_batch_size.unwrap_or(device::places(options)).max(1)
}

fn step_tokens(options: &Options) -> usize {
    options.max_num_batched_tokens.unwrap_or(device::step_tokens(options))
}

fn vocabulary(config: &Config) -> Vocabulary<'_> {
    Vocabulary { size: config.vocab_size, eos: &config.eos }
}

/// Computes the worker's fingerprint: a digest of all inputs of the tokens other than the request.
fn fingerprint(
    files: &nsbridge_handler::Model,
    digests: &[[u8; 32]],
    [arithmetic, embedding]: [&str; 2],
    options: &Options,
) -> Result<[u8; 16], LoadError> {
    let mut digest = Sha256::new();
    let mut add = |part: &[u8]| {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    };
    add(&ARITHMETIC_VERSION.to_be_bytes());
    add(&metadata::VERSION.to_be_bytes());
    add(arithmetic.as_bytes());
    if !embedding.is_empty() {
        add(embedding.as_bytes());
    }
    add(grammar::VERSION.as_bytes());
    for name in FILES {
        add(&files.read_optional(name).map_err(LoadError::read)?.unwrap_or_default());
    }
    digests.iter().for_each(|digest| add(digest));
    add(&serde_json::to_vec(options).map_err(LoadError::parse(files.place()))?);
    let digest: [u8; 32] = digest.finalize().into();
    let mut fingerprint = [0; 16];
    fingerprint.copy_from_slice(&digest[..16]);
    Ok(fingerprint)
}
