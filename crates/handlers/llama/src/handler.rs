//! `AsyncHandler` implementation: prepares requests, passes them to the engine, returns their
//! tokens, and computes the fingerprint.

mod device;
mod drafting;
mod embedding;

mod placement;
mod preparation;

use std::future::{Future, poll_fn};
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::thread;
use std::time::Instant;

use nsbridge_handler::{
    AsyncHandler, AsyncJob, Error, Fingerprint, Finish, Health, Measure, Models, Result, TextInput,
    TextPiece,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use self::device::DeviceChoice;
use self::drafting::Drafting;
use self::placement::Footprint;
use self::preparation::Preparation;
use crate::budget::Budget;
use crate::capacity::Memory;
use crate::config::Config;
use crate::engine::{Engine, EngineRequest, Policy};
use crate::error::LoadError;
use crate::formats::coarsest_format;
use crate::grammar::{self, Grammars};
use crate::kv::KvFormat;
use crate::limits::{HELD_BYTES, PREPARATION_TIMEOUT, REPLIES, THREADS};
use crate::metadata;
use crate::network::{Model, Setup};
use crate::options::{Options, Quantize, Task};
use crate::panics::caught_call;
use crate::parity::Required;
use crate::request::{Asked, Vocabulary};
use crate::schedule::Limits;
use crate::speculation::Drafter;
use crate::timeout::{seconds, within};
use crate::tokenizer::ChatTokenizer;
use crate::weights::Weights;
use crate::workers::Workers;
use nsbridge_kernels::Format;
use nsbridge_kernels::attention::PAGE;

/// Version of the arithmetic; increased when the same request could get other tokens from the same
/// files.
const ARITHMETIC_VERSION: u32 = 3;

/// Files that decide the text of a reply, in addition to the weights.
const FILES: [&str; 5] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
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
        embedding::hold_generating(&options).map_err(LoadError::fatal)?;
        Self::load_drafting(options, models, drafting, String::new())
    }

    /// Loads the model for embeddings, whose vectors depend on `decides` too.
    pub(crate) fn load_embedder(options: Options, models: &Models, decides: &str) -> Result<Self> {
        embedding::hold_embedding(&options).map_err(LoadError::fatal)?;
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
        let predict_timeout = seconds("predict_timeout", options.predict_timeout)?;
        let required = Required::new(&options)?;
        let mut config = Config::read(files)?;
        let embeds = options.task == Some(Task::Embed);
        // The memory for an output matrix is not needed.
        config.tied |= embeds;
        let context = match options.n_positions {
            Some(n) if n < 2 || n > config.context => {
                let supported = format!("2 to {}, the model's own context,", config.context);
                return Err(LoadError::unsupported(
                    "the option n_positions",
                    n.to_string(),
                    supported,
                ));
            }
            other => other.unwrap_or(config.context),
        };
        if options.max_tokens == Some(0) {
            return Err(LoadError::unsupported("the option max_tokens", "0", "1 or more"));
        }
        Asked::new(&TextInput::default(), &options, &config.advice, vocabulary(&config))
            .map_err(|error| LoadError::Worker(format!("in the worker's options, {error}")))?;
        let special = options.special_tokens_in_messages.unwrap_or(false);
        let text = ChatTokenizer::read(files, config.vocab_size, special)?;
        if let Some(missing) = text.without_row(config.vocab_size) {
            tracing::warn!("in {}, {missing}", files.place());
        }
        let limits = limits(&options)?;
        let ranks = options.tensor_parallel_degree.unwrap_or(1);
        let ranks_of_draft = options.draft_model_tp_size.unwrap_or(1);
        let checkpoint = Weights::find(files)?;
        let choice = DeviceChoice::new(&options);
        let device = choice.open(ranks, checkpoint.tensors())?;
        let kv = options.kv_cache_dtype.unwrap_or(match device.is_exact() {
            true => KvFormat::F32,
            false => KvFormat::Bf16,
        });
        let format = options.quantize.map(|Quantize::Q8_0| Format::Q8_0);
        let coarsest = format.unwrap_or_else(|| coarsest_format(checkpoint.tensors()));
        config.hold_degree("tensor_parallel_degree", ranks, coarsest)?;
        let mut setup = Setup {
            device,
            threads: options.threads,
            tier: None,
            ranks,
            patience: seconds("tensor_parallel_timeout", options.tensor_parallel_timeout)?
                .unwrap_or(Setup::default().patience),
            format,
            kv,
            hidden: embeds,
            blocks: blocks(&config, &options, context, (ranks, kv))?,
        };
        let of_draft = Setup { ranks: ranks_of_draft, ..setup.clone() };
        let mut drafting = drafting.read(&config, &text, (context, &of_draft), &choice)?;
        if options.kv_cache_mb.is_none() {
            let target = Footprint::new(&config, &checkpoint, &setup);
            let one = context.div_ceil(PAGE);
            setup.blocks = placement::blocks(&setup, &target, drafting.footprint().as_ref(), one);
            drafting.limit_blocks(setup.blocks);
        }
        let target = Footprint::new(&config, &checkpoint, &setup);
        let given = options.kv_cache_mb.is_some();
        placement::hold(&target, drafting.footprint().as_ref(), &setup.device, given)?;
        let weights = Weights::load(&checkpoint, setup.ranks)?;
        // Without a manifest, the digests take as long as the load.
        let (model, digests) = thread::scope(|scope| {
            let digests = thread::Builder::new().name("digests".to_owned());
            let digests = digests.spawn_scoped(scope, || weights.digests());
            let model = Model::new(&config, context, &weights, &setup);
            let digests = match digests {
                Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                Err(_) => weights.digests(),
            };
            (model, digests)
        });
        let (mut model, digests) = (model?, digests?);
        if let Some(required) = required {
            required.hold(&mut model, files)?;
        }
        let decides = [model.arithmetic(), decides];
        let fingerprint = fingerprint(files, &digests, decides, &options)?;
        let caching = options.enable_prefix_caching.unwrap_or(true);
        let policy = Policy { limit: predict_timeout, caching, limits };
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
        let asked = Asked::new(&input, &self.options, &self.config.advice, self.vocabulary())?;
        ChatTokenizer::refuse_long(&input, self.context)?;
        let (scope, account) = (job.info().scope.clone(), job.info().account.clone());
        let (priority, rule) = (input.priority.unwrap_or(0), input.response_format.is_some());
        let preparation = Preparation {
            text: self.text.clone(),
            grammars: self.grammars.clone(),
            vocab_size: self.config.vocab_size,
            context: self.context,
            step_tokens: step_tokens(&self.options),
            asked: Arc::new(asked),
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

fn limits(options: &Options) -> Result<Limits, LoadError> {
    let (tokens, places) = (step_tokens(options), places(options));
    if tokens == 0 {
        let field = "the option max_num_batched_tokens";
        return Err(LoadError::unsupported(field, "0".to_owned(), "1 or more"));
    }
    Ok(Limits { tokens, places })
}

/// Returns the number of KV-cache blocks: as the options give it, or enough for the maximum number
/// of concurrent requests. More blocks help requests with several replies and prompts with a common
/// prefix.
fn blocks(
    config: &Config,
    options: &Options,
    context: usize,
    (ranks, kv): (usize, KvFormat),
) -> Result<usize, LoadError> {
    let one = context.div_ceil(PAGE);
    let Some(mebibytes) = options.kv_cache_mb else {
        return Ok(places(options).saturating_mul(one));
    };
    let block = Memory::new(config, ranks, 0.0, kv, PAGE).bytes().max(1);
    let given = (mebibytes as u64).saturating_mul(1 << 20) / block;
    let blocks = usize::try_from(given).unwrap_or(usize::MAX);
    if blocks < one {
        let needed = block.saturating_mul(one as u64).div_ceil(1 << 20);
        let supported = format!("{needed} or more, what one request of {context} tokens can need,");
        let (field, found) = ("the option kv_cache_mb", mebibytes.to_string());
        return Err(LoadError::unsupported(field, found, supported));
    }
    Ok(blocks)
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
