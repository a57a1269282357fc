//! The handler: one plain loop from a request to its tokens.

use nsbridge_handler::{
    Error, Finish, FinishReason, Handler, Job, Models, Result, Slots, TextInput, TextPiece,
    TokenLogprob, Usage,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::detokenise::TextStream;
use crate::request::{Asked, Vocabulary};
use crate::text::Text;
use crate::{
    Config, History, KvCache, LoadError, Model, Noise, Scratch, Weights, logprobs, sample,
};

/// Rises whenever the same request could get other tokens from the same files.
const ARITHMETIC_VERSION: u32 = 2;

/// Prompt tokens that are run before the request is looked at again.
const PREFILL_CHUNK: usize = 64;

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
    model: Model,
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
        let vocabulary = vocabulary(&self.config);
        let asked = Asked::new(&input, &self.options, &self.config.advice, vocabulary)?;
        let prompt = self.text.prompt(&input, job.info().submitted_at)?;
        let mut reply = Reply::new(self, prompt, asked, job.info().seed)?;
        job.at_most(reply.room - reply.prompt);
        if let Some(finish) = reply.take_resumed(&resumed)? {
            return Ok(finish);
        }
        let mut cache = self.model.cache();
        let mut logits = self.prefill(&reply, &mut cache, job)?;
        loop {
            let token = reply.next(&logits)?;
            let (mut piece, finish) = reply.take(token);
            reply.tell_logprobs(&logits, &mut piece);
            job.emit(piece).await?;
            if let Some(finish) = finish {
                return Ok(finish);
            }
            logits = self.model.forward(&[token], &mut cache)?;
        }
    }

    fn slots(&self) -> Slots {
        Slots::Threads(self.options.max_rolling_batch_size.unwrap_or(2))
    }

    async fn warm_up(&self) -> Result<()> {
        self.model.forward(&[0], &mut self.model.cache())?;
        Ok(())
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
        Asked::new(&TextInput::default(), &options, &config.advice, vocabulary(&config))
            .map_err(|error| LoadError::Missing(format!("in the worker's options, {error}")))?;
        let weights = Weights::read(files)?;
        let fingerprint = fingerprint(files, &weights, &options)?;
        let text = Text::read(files)?;
        let model = Model::new(&config, context, &weights)?;
        Ok(Self { text, config, model, options, fingerprint })
    }

    /// Runs the prompt and then the resumed tokens; gives the logits of the next one.
    fn prefill(
        &self,
        reply: &Reply<'_>,
        cache: &mut KvCache,
        job: &Job<TextPiece>,
    ) -> Result<Vec<f32>> {
        let mut logits = Vec::new();
        for tokens in prefill_chunks(&reply.tokens, reply.prompt) {
            job.check()?;
            logits = self.model.forward(tokens, cache)?;
        }
        Ok(logits)
    }
}

fn vocabulary(config: &Config) -> Vocabulary<'_> {
    Vocabulary { size: config.vocab_size, eos: &config.eos }
}

/// Cuts the prompt, and the resumed tokens behind it, into what is run at once.
///
/// Resumed tokens are run one at a time, as they were made: a product of many rows rounds
/// otherwise than one of a single row, and the reply must go on as if nothing had happened.
fn prefill_chunks(tokens: &[u32], prompt: usize) -> impl Iterator<Item = &[u32]> {
    let (prompt, resumed) = tokens.split_at(prompt);
    prompt.chunks(PREFILL_CHUNK).chain(resumed.chunks(1))
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
    asked: Asked,
    history: History,
    noise: Noise,
    scratch: Scratch,
    text: TextStream,
}

impl<'a> Reply<'a> {
    fn new(llama: &'a Llama, prompt: Vec<u32>, asked: Asked, seed: u64) -> Result<Self> {
        let context = llama.model.context();
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
            history: History::new(&prompt),
            noise: Noise::new(seed, &prompt),
            scratch: Scratch::default(),
            text: TextStream::new(asked.stops.clone()),
            asked,
            tokens: prompt,
        })
    }

    /// Takes over what an earlier attempt made; the finish, if that was all.
    fn take_resumed(&mut self, resumed: &[u32]) -> Result<Option<Finish>> {
        let mut finish = None;
        for &token in resumed {
            if finish.is_some() || token as usize >= self.llama.model.vocab_size() {
                return Err(Error::bad_input("the resumed pieces are not of this model's making"));
            }
            finish = self.take(token).1;
        }
        Ok(finish)
    }

    fn next(&mut self, logits: &[f32]) -> Result<u32> {
        let index = self.tokens.len() - self.prompt;
        let sampling = &self.asked.sampling;
        sample(logits, &self.history, sampling, self.noise, index, &mut self.scratch)
            .ok_or_else(|| Error::retry("the model's logits leave no token to choose"))
    }

    /// Adds the log-probabilities that were asked for.
    fn tell_logprobs(&mut self, logits: &[f32], piece: &mut TextPiece) {
        let Some(top) = self.asked.logprobs else { return };
        let Some(told) = logprobs(logits, piece.token, top, &mut self.scratch) else { return };
        let each = |(token, logprob)| TokenLogprob { token, logprob };
        piece.logprob = Some(told.chosen);
        piece.top_logprobs = told.top.into_iter().map(each).collect();
    }

    /// Adds a token; gives its piece and, if it is the last one, the finish.
    fn take(&mut self, token: u32) -> (TextPiece, Option<Finish>) {
        self.tokens.push(token);
        self.history.push(token);
        let ended = self.asked.ends(token);
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
        (TextPiece { token, text, ..TextPiece::default() }, finish)
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
    options: &Options,
) -> Result<[u8; 16], LoadError> {
    let mut digest = Sha256::new();
    let mut add = |part: &[u8]| {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    };
    add(&ARITHMETIC_VERSION.to_be_bytes());
    add(arithmetic().as_bytes());
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

/// The kind of machine: candle's products round as the widest vectors of the CPU have it.
fn arithmetic() -> String {
    use std::env::consts::{ARCH, OS};
    #[cfg(target_arch = "x86_64")]
    let vectors = (is_x86_feature_detected!("avx512f"), is_x86_feature_detected!("fma"));
    #[cfg(not(target_arch = "x86_64"))]
    let vectors = ();
    format!("candle 0.11 {ARCH} {OS} {vectors:?}")
}

#[cfg(test)]
mod tests {
    use super::{PREFILL_CHUNK, prefill_chunks};

    #[test]
    fn a_prompt_is_run_in_chunks_and_resumed_tokens_as_they_were_made() {
        let tokens = vec![0; PREFILL_CHUNK + 5 + 3];
        let sizes: Vec<usize> =
            prefill_chunks(&tokens, PREFILL_CHUNK + 5).map(<[u32]>::len).collect();
        assert_eq!(sizes, [PREFILL_CHUNK, 5, 1, 1, 1]);
    }
}
