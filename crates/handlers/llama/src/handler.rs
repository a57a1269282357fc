//! The handler: one plain loop from a request to its tokens.

use std::sync::{Mutex, MutexGuard, PoisonError};

use nsbridge_handler::{
    Error, Finish, FinishReason, Handler, Job, Models, Result, Slots, TextInput, TextPiece, Usage,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::detokenise::TextStream;
use crate::request::Asked;
use crate::text::Text;
use crate::{Chunk, Config, Engine, LoadError, Model, Noise, Sampling, Table, Weights, sample};

/// Rises whenever the same request could get other tokens from the same files.
const ARITHMETIC_VERSION: u32 = 2;

/// Prompt tokens that are run before the request is looked at again.
const PREFILL_CHUNK: usize = 64;

/// Requests answered at once, if the options do not say.
const SLOTS: usize = 2;

/// The files whose bytes decide the text, beside the weights.
const FILES: [&str; 5] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
];

/// The `[handler]` table of a worker with a Llama model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// For requests that do not say; the model's `generation_config.json` is asked next, then 1.
    pub temperature: Option<f32>,
    /// For requests that do not say; 1 (all tokens) if the model does not say either.
    pub top_p: Option<f32>,
    /// For requests that do not say; 0 (all tokens) if the model does not say either.
    pub top_k: Option<u32>,
    /// For requests that do not say; 1 (no penalty) if the model does not say either.
    pub repetition_penalty: Option<f32>,
    /// The most tokens a reply may have, whatever the request asks.
    pub max_tokens: Option<u32>,
    /// The most tokens of prompt and reply together; the model's own context if absent.
    pub n_positions: Option<usize>,
    /// Requests answered at once, each on a thread of its own; 2 if absent.
    #[serde(skip_serializing)]
    pub max_rolling_batch_size: Option<usize>,
}

/// A Llama model that answers [`TextInput`]s, one token a piece.
///
/// The token that ends a reply is a piece too, with the text that was held back until then.
#[derive(Debug)]
pub struct Llama {
    config: Config,
    model: Mutex<Model>,
    context: usize,
    vocab_size: usize,
    text: Text,
    options: Options,
    fingerprint: [u8; 16],
}

impl Handler for Llama {
    type Options = Options;
    type Input = TextInput;
    type Output = TextPiece;

    async fn load(options: Options, models: Models) -> Result<Self> {
        Self::read(options, models.get("target")?).map_err(LoadError::fatal)
    }

    async fn handle(&self, input: TextInput, job: &mut Job<TextPiece>) -> Result<Finish> {
        let resumed: Vec<u32> = job.resumed().iter().map(|piece| piece.token).collect();
        let asked = Asked::new(&input, &self.options, &self.config.advice)?;
        let prompt = self.text.prompt(&input, job.info().submitted_at)?;
        let mut reply = Reply::new(self, prompt, asked, job.info().seed)?;
        job.at_most(reply.room - reply.prompt);
        if let Some(finish) = reply.take_resumed(&resumed)? {
            return Ok(finish);
        }
        let mut table = Table::default();
        let done = self.answer(&mut reply, &mut table, job).await;
        self.model().cache().release(table);
        done
    }

    fn slots(&self) -> Slots {
        Slots::Threads(self.options.max_rolling_batch_size.unwrap_or(SLOTS))
    }

    async fn warm_up(&self) -> Result<()> {
        let mut table = Table::default();
        let done = self.forward(&[0], &mut table);
        self.model().cache().release(table);
        done.map(drop)
    }

    fn fingerprint(&self) -> Option<[u8; 16]> {
        Some(self.fingerprint)
    }
}

impl Llama {
    fn read(options: Options, files: &nsbridge_handler::Model) -> Result<Self, LoadError> {
        let config = Config::read(files)?;
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
        Asked::new(&TextInput::default(), &options, &config.advice)
            .map_err(|error| LoadError::Missing(format!("in the worker's options, {error}")))?;
        let weights = Weights::read(files)?;
        let text = Text::read(files)?;
        let slots = options.max_rolling_batch_size.unwrap_or(SLOTS);
        let engine = Engine { blocks: slots * context.div_ceil(32), ..Engine::default() };
        let model = Model::new(&config, context, &weights, &engine)?;
        let fingerprint = fingerprint(files, &weights, &model.arithmetic(), &options)?;
        let vocab_size = model.vocab_size();
        let model = Mutex::new(model);
        Ok(Self { text, config, model, context, vocab_size, options, fingerprint })
    }

    fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a reply, token by token.
    async fn answer(
        &self,
        reply: &mut Reply<'_>,
        table: &mut Table,
        job: &mut Job<TextPiece>,
    ) -> Result<Finish> {
        let mut logits = Vec::new();
        for tokens in reply.tokens.chunks(PREFILL_CHUNK) {
            job.check()?;
            logits = self.forward(tokens, table)?;
        }
        loop {
            let token = reply.next(&logits)?;
            let (piece, finish) = reply.take(token);
            job.emit(piece).await?;
            if let Some(finish) = finish {
                return Ok(finish);
            }
            logits = self.forward(&[token], table)?;
        }
    }

    /// The logits after the last of these tokens.
    fn forward(&self, tokens: &[u32], table: &mut Table) -> Result<Vec<f32>> {
        let mut model = self.model();
        if !model.cache().reserve(table, tokens.len()) {
            return Err(Error::retry("all of the cache is in use"));
        }
        let logits = model.forward(&mut [Chunk { table, tokens, logits: 1 }])?;
        Ok(logits.rows().next().unwrap_or_default().to_vec())
    }
}

/// One reply while it grows.
struct Reply<'a> {
    llama: &'a Llama,
    /// Prompt and reply.
    tokens: Vec<u32>,
    /// How many of them are the prompt.
    prompt: usize,
    /// How many there may be.
    room: usize,
    sampling: Sampling,
    noise: Noise,
    text: TextStream,
}

impl<'a> Reply<'a> {
    fn new(llama: &'a Llama, prompt: Vec<u32>, asked: Asked, seed: u64) -> Result<Self> {
        let context = llama.context;
        if prompt.len() >= context {
            return Err(Error::bad_input(format!(
                "the prompt has {} tokens, which leaves no room in this model's context of {context}",
                prompt.len()
            )));
        }
        Ok(Self {
            llama,
            prompt: prompt.len(),
            room: prompt.len().saturating_add(asked.max_tokens).min(context),
            sampling: asked.sampling,
            noise: Noise::new(seed, &prompt),
            text: TextStream::new(asked.stops),
            tokens: prompt,
        })
    }

    /// Takes over what an earlier attempt made; the finish, if that was all.
    fn take_resumed(&mut self, resumed: &[u32]) -> Result<Option<Finish>> {
        let mut finish = None;
        for &token in resumed {
            if finish.is_some() || token as usize >= self.llama.vocab_size {
                return Err(Error::bad_input("the resumed pieces are not of this model's making"));
            }
            finish = self.take(token).1;
        }
        Ok(finish)
    }

    fn next(&self, logits: &[f32]) -> Result<u32> {
        let index = self.tokens.len() - self.prompt;
        sample(logits, &self.tokens, &self.sampling, self.noise, index)
            .ok_or_else(|| Error::retry("the model's logits are not numbers"))
    }

    /// Adds a token; gives its piece and, if it is the last one, the finish.
    fn take(&mut self, token: u32) -> (TextPiece, Option<Finish>) {
        self.tokens.push(token);
        let ended = self.llama.config.eos.contains(&token);
        let full = self.tokens.len() == self.room;
        let bytes = if ended { &[] } else { self.llama.text.bytes(token) };
        let (text, met) = self.text.push(bytes, ended || full);
        let reason = match (met, ended, full) {
            (true, ..) => Some(FinishReason::StopText),
            (_, true, _) => Some(FinishReason::Stop),
            (_, _, true) => Some(FinishReason::Length),
            _ => None,
        };
        let finish = reason.map(|reason| Finish::because(reason).with_usage(self.usage()));
        (TextPiece { token, text, logprob: None }, finish)
    }

    fn usage(&self) -> Usage {
        let (input, all) = (self.prompt as u64, self.tokens.len() as u64);
        Usage { input_tokens: input, output_tokens: all - input, cached_tokens: 0 }
    }
}

/// What the tokens depend on beside the request.
fn fingerprint(
    files: &nsbridge_handler::Model,
    weights: &Weights,
    arithmetic: &str,
    options: &Options,
) -> Result<[u8; 16], LoadError> {
    let mut digest = Sha256::new();
    let mut add = |part: &[u8]| {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    };
    add(&ARITHMETIC_VERSION.to_be_bytes());
    add(arithmetic.as_bytes());
    for name in FILES {
        add(&files.find(name).map_err(LoadError::read)?.unwrap_or_default());
    }
    weights.digests().iter().for_each(|digest| add(digest));
    add(&serde_json::to_vec(options).map_err(LoadError::parse(files.place()))?);
    let digest: [u8; 32] = digest.finalize().into();
    let mut fingerprint = [0; 16];
    fingerprint.copy_from_slice(&digest[..16]);
    Ok(fingerprint)
}
