//! Selection of the drafter by the configuration.

use nsbridge_checkpoint::Checkpoint;
use nsbridge_handler::{Model as Files, Models};

use super::device::DeviceChoice;
use super::placement::Footprint;
use crate::config::Config;
use crate::error::LoadError;
use crate::formats::coarsest_format;
use crate::network::{Backend, Model, Setup};
use crate::options::Options;
use crate::speculation::{
    DraftModel, Drafter, Lengths, MAX_DRAFT_TOKENS, NgramProposer, Speculation,
};
use crate::tokenizer::ChatTokenizer;
use crate::weights::Weights;
use nsbridge_kernels::Format;

/// Default name of the draft model.
const DRAFT: &str = "draft";

/// Default maximum number of tokens of a draft. With the reply's own token they are eight rows, and
/// the kernels process rows in groups of four.
const DEFAULT_DRAFT_TOKENS: usize = 7;

/// Drafter that the configuration selects.
pub(super) enum Drafting {
    Nothing,
    /// Draft model in these files.
    Model(Files),
    /// N-gram proposer (prompt lookup) with n-grams of up to this many tokens.
    Ngram(usize),
    With(Box<dyn Drafter>),
}

/// Drafter that was checked against the target.
pub(super) enum Read {
    Drafter(Option<Box<dyn Drafter>>),
    Model(Box<Draft>),
}

/// Draft model before its weights are loaded.
pub(super) struct Draft {
    config: Config,
    checkpoint: Checkpoint,
    context: usize,
    setup: Setup,
}

impl Drafting {
    /// Selects the drafter.
    ///
    /// # Errors
    ///
    /// Returns an error if the options contradict each other or name a missing model.
    pub(super) fn new(options: &Options, models: &Models) -> Result<Self, LoadError> {
        let length = length(options);
        if length > MAX_DRAFT_TOKENS {
            return Err(LoadError::unsupported(
                "the option speculative_length",
                length.to_string(),
                format!("0 to {MAX_DRAFT_TOKENS}"),
            ));
        }
        let named = options.speculative_draft_model.as_deref();
        match (named, options.speculative_ngram) {
            (Some(_), Some(_)) => Err(LoadError::Worker(
                "give one of the options speculative_draft_model and speculative_ngram".to_owned(),
            )),
            (None, Some(short @ (0 | 1))) => Err(LoadError::unsupported(
                "the option speculative_ngram",
                short.to_string(),
                "2 or more, or no such option,",
            )),
            (Some(name), None) => {
                let files = models.require(name).map_err(LoadError::read)?;
                Ok(if length == 0 { Self::Nothing } else { Self::Model(files.clone()) })
            }
            _ if length == 0 => Ok(Self::Nothing),
            (None, Some(longest)) => Ok(Self::Ngram(longest)),
            (None, None) => Ok(models.get(DRAFT).cloned().map_or(Self::Nothing, Self::Model)),
        }
    }

    /// Reads everything except the weights.
    ///
    /// # Errors
    ///
    /// Returns an error if the draft is not a supported model or its vocabulary differs from the
    /// target's.
    pub(super) fn read(
        self,
        target: &Config,
        text: &ChatTokenizer,
        (context, setup): (usize, &Setup),
        choice: &DeviceChoice,
    ) -> Result<Read, LoadError> {
        let files = match self {
            Self::Nothing => return Ok(Read::Drafter(None)),
            Self::Ngram(longest) => {
                return Ok(Read::Drafter(Some(Box::new(NgramProposer::new(longest)))));
            }
            Self::With(drafter) => return Ok(Read::Drafter(Some(drafter))),
            Self::Model(files) => files,
        };
        let config = Config::read(&files)?;
        refuse_other_vocabulary(
            &config,
            &ChatTokenizer::read(&files, config.vocab_size, true)?,
            target,
            text,
        )?;
        let checkpoint = Weights::find(&files)?;
        let context = context.min(config.context);
        let device = choice.open_for_draft(&setup.device, setup.ranks, checkpoint.tensors())?;
        // A GPU stores the format of the checkpoint.
        let rounded = matches!(device, Backend::Cpu).then(|| format(&config)).flatten();
        let format = rounded.or(setup.format);
        let setup = Setup { device, format, ..setup.clone() };
        let coarsest = format.unwrap_or_else(|| coarsest_format(checkpoint.tensors()));
        config.check_degree("draft_model_tp_size", setup.ranks, coarsest)?;
        Ok(Read::Model(Box::new(Draft { config, checkpoint, context, setup })))
    }
}

/// Returns the maximum number of tokens of a draft.
fn length(options: &Options) -> usize {
    options.speculative_length.unwrap_or(DEFAULT_DRAFT_TOKENS)
}

/// Returns the format of eight bits a weight where the shape allows it. Its rounding seldom changes
/// a drafted token, and never a token of the reply.
fn format(config: &Config) -> Option<Format> {
    let columns = [config.hidden_size, config.intermediate_size, config.heads * config.head_dim];
    columns
        .iter()
        .all(|columns| columns.is_multiple_of(Format::Q8_0.unit()))
        .then_some(Format::Q8_0)
}

/// Refuses a draft with another vocabulary, since equal token ids must mean equal text.
fn refuse_other_vocabulary(
    draft: &Config,
    draft_text: &ChatTokenizer,
    target: &Config,
    target_text: &ChatTokenizer,
) -> Result<(), LoadError> {
    let unsupported = |found: String, supported: String| {
        Err(LoadError::unsupported("the draft's vocabulary", found, supported))
    };
    let size = target.vocab_size;
    if draft.vocab_size != size {
        let found = format!("{} tokens", draft.vocab_size);
        return unsupported(found, format!("that of the target, {size} tokens,"));
    }
    let differs = |token: &u32| draft_text.bytes(*token) != target_text.bytes(*token);
    match (0..size as u32).find(differs) {
        Some(token) => {
            unsupported(format!("another from token {token} on"), "that of the target".to_owned())
        }
        None => Ok(()),
    }
}

impl Read {
    /// Returns the memory of a draft model.
    pub(super) fn footprint(&self) -> Option<Footprint> {
        match self {
            Self::Drafter(_) => None,
            Self::Model(draft) => {
                Some(Footprint::new(&draft.config, &draft.checkpoint, &draft.setup))
            }
        }
    }

    /// Sets the number of KV-cache blocks of a draft model, if that is fewer.
    pub(super) fn limit_blocks(&mut self, blocks: usize) {
        if let Self::Model(draft) = self {
            draft.setup.blocks = draft.setup.blocks.min(blocks);
        }
    }

    /// Loads the drafter. `step` is the maximum number of tokens of a step; `caching` enables the
    /// prefix cache of the draft.
    ///
    /// # Errors
    ///
    /// Returns an error if the weights cannot be loaded.
    pub(super) fn speculation(
        self,
        options: &Options,
        step: usize,
        caching: bool,
    ) -> Result<Option<Speculation>, LoadError> {
        let drafter = match self {
            Self::Drafter(drafter) => drafter,
            Self::Model(draft) => {
                let Draft { config, checkpoint, context, setup } = *draft;
                let weights = Weights::load(&checkpoint, setup.ranks)?;
                let model = Model::new(&config, context, &weights, &setup)?;
                let drafter: Box<dyn Drafter> = Box::new(DraftModel::new(model, step, caching));
                Some(drafter)
            }
        };
        let adaptive = options.speculative_adaptive.unwrap_or(true);
        let lengths = Lengths { most: length(options), adaptive };
        Ok(drafter.map(|drafter| Speculation::new(drafter, lengths)))
    }
}
