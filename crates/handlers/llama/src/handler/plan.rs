//! Plan of a load: what the files and the options say, before a weight is read.

use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;

use nsbridge_checkpoint::{Checkpoint, Dtype};
use nsbridge_handler::TextInput;
use nsbridge_kernels::Format;
use nsbridge_kernels::attention::PAGE;

use super::device::DeviceChoice;
use super::drafting::{Drafting, Read};
use super::placement::{self, Footprint};
use super::{places, step_tokens, vocabulary};
use crate::capacity::Memory;
use crate::config::Config;
use crate::error::LoadError;
use crate::formats::coarsest_format;
use crate::kv::KvFormat;
use crate::network::{Arithmetic, Backend, Model, NativeSpeed, Setup};
use crate::options::{Options, Quantize, Task};
use crate::parity::Required;
use crate::request::RequestParameters;
use crate::schedule::Limits;
use crate::timeout::{milliseconds, seconds};
use crate::tokenizer::ChatTokenizer;
use crate::weights::{Weights, has_other_output};

/// Maximum number of requests that run concurrently. A step of more rows is no faster per row.
const MAX_PLACES: usize = 4096;

/// Default bound of the time of a step with running replies: four tokens a second are read as they come.
const MAX_STEP: Duration = Duration::from_millis(250);

/// Model that can be loaded: its options are checked, and it has its place in memory.
pub(super) struct LoadPlan<'a> {
    pub(super) config: Config,
    pub(super) context: usize,
    pub(super) text: ChatTokenizer,
    pub(super) limits: Limits,
    /// Time limit of a request.
    pub(super) predict_timeout: Option<Duration>,
    /// Bound of the time of a step.
    pub(super) max_step: Duration,
    /// Replies that the loaded model must give.
    pub(super) required: Option<Required<'a>>,
    pub(super) drafting: Read,
    checkpoint: Checkpoint,
    setup: Setup,
    /// True if the options select the native arithmetic.
    wants_native: bool,
}

impl<'a> LoadPlan<'a> {
    /// Reads everything except the weights.
    ///
    /// # Errors
    ///
    /// Returns an error if the files or the options are not supported, or if the model has no room.
    pub(super) fn new(
        options: &'a Options,
        files: &nsbridge_handler::Model,
        drafting: Drafting,
    ) -> Result<Self, LoadError> {
        let predict_timeout = seconds("predict_timeout", options.predict_timeout)?;
        let max_step = milliseconds("max_step_ms", options.max_step_ms)?.unwrap_or(MAX_STEP);
        let required = Required::new(options)?;
        let mut config = Config::read(files)?;
        let embeds = options.task == Some(Task::Embed);
        // The memory for an output matrix is not needed.
        config.tied |= embeds;
        let context = context(options, &config)?;
        if options.max_tokens == Some(0) {
            return Err(LoadError::unsupported("the option max_tokens", "0", "1 or more"));
        }
        RequestParameters::new(&TextInput::default(), options, &config.advice, vocabulary(&config))
            .map_err(|error| LoadError::Worker(format!("in the worker's options, {error}")))?;
        let special = options.special_tokens_in_messages.unwrap_or(false);
        let text = ChatTokenizer::read(files, config.vocab_size, special)?;
        if let Some(end) = text.end().filter(|end| !config.eos.contains(end)) {
            // A fine-tune often changes the end of a turn in the tokenizer's configuration alone.
            tracing::info!(token = end, "the eos_token of tokenizer_config.json ends replies too");
            config.eos.push(end);
        }
        if let Some(missing) = text.without_row(config.vocab_size) {
            tracing::warn!("in {}, {missing}", files.place());
        }
        let limits = limits(options)?;
        let ranks = options.tensor_parallel_degree.unwrap_or(1);
        let ranks_of_draft = options.draft_model_tp_size.unwrap_or(1);
        let checkpoint = Weights::find(files)?;
        if config.tied && !embeds && has_other_output(&checkpoint)? {
            tracing::warn!(
                "in {}, the output matrix differs from the embedding and is not used, since \
                 config.json says tie_word_embeddings: set it to false if the model was trained so",
                files.place()
            );
        }
        let choice = DeviceChoice::new(options);
        let device = choice.open(ranks, checkpoint.tensors())?;
        let kv = options.kv_cache_dtype.unwrap_or(match device.is_exact() {
            true => KvFormat::F32,
            false => KvFormat::Bf16,
        });
        let format = options.quantize.map(|Quantize::Q8_0| Format::Q8_0);
        let coarsest = format.unwrap_or_else(|| coarsest_format(checkpoint.tensors()));
        config.check_degree("tensor_parallel_degree", ranks, coarsest)?;
        let mut setup = Setup {
            device,
            threads: options.threads,
            arithmetic: choice.of_cpu(),
            bf16_order: None,
            tier: None,
            ranks,
            patience: seconds("tensor_parallel_timeout", options.tensor_parallel_timeout)?
                .unwrap_or(Setup::default().patience),
            format,
            kv,
            hidden: embeds,
            blocks: blocks(&config, options, context, (ranks, kv))?,
        };
        let of_draft = Setup { ranks: ranks_of_draft, ..setup.clone() };
        let mut drafting = drafting.read(&config, &text, (context, &of_draft), &choice)?;
        if options.kv_cache_mb.is_none() {
            let target = Footprint::new(&config, &checkpoint, &setup);
            let one = context.div_ceil(PAGE);
            let useful = setup.blocks;
            setup.blocks = placement::blocks(&setup, &target, drafting.footprint().as_ref(), one);
            drafting.limit_blocks(setup.blocks);
            if setup.blocks < useful {
                tracing::info!(
                    tokens = setup.blocks * PAGE,
                    "the KV cache has the memory for {} of {} requests of {context} tokens: beyond it, the \
                     latest ones wait",
                    setup.blocks / one,
                    places(options)
                );
            }
        }
        let target = Footprint::new(&config, &checkpoint, &setup);
        let given = options.kv_cache_mb.is_some();
        placement::check(&target, drafting.footprint().as_ref(), &setup.device, given)?;
        Ok(Self {
            config,
            context,
            text,
            limits,
            predict_timeout,
            max_step,
            required,
            drafting,
            checkpoint,
            setup,
            wants_native: options.arithmetic == Some(Arithmetic::Native),
        })
    }

    /// Reads the weights; returns the model with the digests of its files.
    ///
    /// # Errors
    ///
    /// Returns an error if they cannot be read.
    pub(super) fn load(&self) -> Result<(Model, Vec<[u8; 32]>), LoadError> {
        let Self { config, checkpoint, setup, .. } = self;
        let weights = Weights::load(checkpoint, setup.ranks)?;
        // Without a manifest, the digests take as long as the load.
        let (model, digests) = thread::scope(|scope| {
            let digests = thread::Builder::new().name("digests".to_owned());
            let digests = digests.spawn_scoped(scope, || weights.digests());
            let model = Model::new(config, self.context, &weights, setup);
            let digests = match digests {
                Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                Err(_) => weights.digests(),
            };
            (model, digests)
        });
        self.tell_of_native();
        Ok((model?, digests?))
    }

    /// Logs what the native arithmetic would bring, or that the CPU has none.
    fn tell_of_native(&self) {
        let Setup { device, format, arithmetic, .. } = &self.setup;
        let in_bf16 = self.checkpoint.tensors().iter().any(|tensor| tensor.dtype == Dtype::BF16);
        if !matches!(device, Backend::Cpu) || format.is_some() || !in_bf16 {
            return;
        }
        match (NativeSpeed::measure(), arithmetic) {
            (Ok(None), _) if self.wants_native => tracing::warn!(
                "the option arithmetic is native, but this CPU has no products in bf16 \
                 (AMX-BF16 or AVX-512-BF16): it computes as with portable"
            ),
            (Ok(Some(speed)), Arithmetic::Portable) if speed.ratio > 1.0 => tracing::info!(
                tier = %speed.tier,
                times = (speed.ratio * 10.0).round() / 10.0,
                "with arithmetic = \"native\", products of prompts would be faster; replies would be \
                 other ones than those of other kinds of processors"
            ),
            (Ok(Some(speed)), Arithmetic::Native) if speed.ratio < 1.0 => tracing::warn!(
                tier = %speed.tier,
                times = (speed.ratio * 10.0).round() / 10.0,
                "the option arithmetic is native, but on this CPU portable would be faster"
            ),
            _ => {}
        }
    }
}

/// Returns the number of tokens of a sequence.
fn context(options: &Options, config: &Config) -> Result<usize, LoadError> {
    match options.n_positions {
        Some(n) if n < 2 || n > config.context => {
            let supported = format!("2 to {}, the model's own context,", config.context);
            Err(LoadError::unsupported("the option n_positions", n.to_string(), supported))
        }
        other => Ok(other.unwrap_or(config.context)),
    }
}

fn limits(options: &Options) -> Result<Limits, LoadError> {
    let (tokens, places) = (step_tokens(options), places(options));
    if tokens == 0 {
        let field = "the option max_num_batched_tokens";
        return Err(LoadError::unsupported(field, "0".to_owned(), "1 or more"));
    }
    if places > MAX_PLACES {
        let (field, supported) =
            ("the option max_rolling_batch_size", format!("at most {MAX_PLACES}"));
        return Err(LoadError::unsupported(field, places.to_string(), supported));
    }
    Ok(Limits { tokens, prompts: tokens, places })
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
