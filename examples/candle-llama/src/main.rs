//! Worker for a researcher's own model: candle's Llama in a plain loop.
//!
//! ```sh
//! cargo run --release -p candle-llama -- --config examples/candle-llama/worker.toml
//! ```

use std::process::ExitCode;

use candle_core::{DType, Device, Tensor};
use candle_transformers::generation::LogitsProcessor;
use candle_transformers::models::llama::{Cache, Config, Llama, LlamaConfig, LlamaEosToks};
use nsbridge::checkpoint::{CandleWeights, Checkpoint, Order};
use nsbridge::{Error, Finish, Handler, Job, Models, Result, TextInput, TextPiece};
use serde::Deserialize;
use tokenizers::Tokenizer;

fn main() -> ExitCode {
    nsbridge::serve::<Storyteller>()
}

struct Storyteller {
    llama: Llama,
    config: Config,
    ends: Vec<u32>,
    tokenizer: Tokenizer,
    options: Options,
}

/// `[handler]` table of `worker.toml`.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    temperature: Option<f32>,
    max_tokens: Option<u32>,
}

impl Handler for Storyteller {
    type Options = Options;
    type Input = TextInput;
    type Output = TextPiece;

    fn load(options: Options, models: Models) -> Result<Self> {
        let model = models.require("target")?;
        let config = model.read("config.json")?;
        let config = serde_json::from_slice::<LlamaConfig>(&config)?.into_config(false);
        let ends = match config.eos_token_id.clone() {
            Some(LlamaEosToks::Single(end)) => vec![end],
            Some(LlamaEosToks::Multiple(ends)) => ends,
            None => Vec::new(),
        };
        let weights = CandleWeights::load(&Checkpoint::open(model)?, &Order::everything())?;
        let llama = Llama::load(weights.var_builder(DType::F32, &Device::Cpu), &config)?;
        let tokenizer = Tokenizer::from_bytes(model.read("tokenizer.json")?);
        let tokenizer = tokenizer.map_err(Error::fatal)?;
        Ok(Self { llama, config, ends, tokenizer, options })
    }

    fn handle(&self, input: TextInput, job: &mut Job<TextPiece>) -> Result<Finish> {
        let prompt = input.prompt.ok_or_else(|| Error::bad_input("this model wants a `prompt`"))?;
        let prompt = self.tokenizer.encode(prompt, true).map_err(Error::failed)?;
        let mut new = prompt.get_ids().to_vec();
        let room = self.config.max_position_embeddings.saturating_sub(new.len());
        if new.is_empty() || room == 0 {
            return Err(Error::bad_input(format!("`prompt` has {} tokens", new.len())));
        }
        let max_tokens = input.max_tokens.or(self.options.max_tokens).unwrap_or(200) as usize;
        let temperature = input.temperature.or(self.options.temperature).unwrap_or(0.8);

        let mut cache = Cache::new(true, DType::F32, &self.config, &Device::Cpu)?;
        let mut sampler = LogitsProcessor::new(job.info().seed, Some(temperature.into()), None);
        let mut text = self.tokenizer.decode_stream(true);
        let mut seen = 0;
        for _ in 0..room.min(max_tokens) {
            let tokens = Tensor::new(new.as_slice(), &Device::Cpu)?.unsqueeze(0)?;
            let logits = self.llama.forward(&tokens, seen, &mut cache)?.squeeze(0)?;
            seen += new.len();
            let token = sampler.sample(&logits)?;
            if self.ends.contains(&token) {
                return Ok(Finish::STOP);
            }
            let text = text.step(token).map_err(Error::failed)?.unwrap_or_default();
            job.emit(TextPiece::new(token, text))?;
            new = vec![token];
        }
        Ok(Finish::LENGTH)
    }
}

#[cfg(test)]
mod tests;
