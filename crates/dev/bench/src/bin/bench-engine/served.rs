//! Our engine as a worker runs it: requests in, pieces out.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use nsbridge_handler::{AsyncHandler, Model, Models};
use nsbridge_llama::{Arithmetic, Llama, Options};
use serde_json::{Value, json};

use crate::timed::timed;

/// Maximum number of concurrent requests.
const PLACES: usize = 64;

/// Context of a request in tokens: a shared prefix of a thousand, and some more.
const CONTEXT: usize = 1200;

/// Handler, with the number of prompts so far; the number makes each prompt unique.
pub(crate) struct Served {
    llama: Llama,
    asked: usize,
}

impl Served {
    /// Loads the handler on first use.
    pub(crate) fn ready<'a>(
        served: &'a mut Option<Self>,
        dir: &Path,
        threads: usize,
        arithmetic: Arithmetic,
    ) -> Result<&'a mut Self> {
        if served.is_none() {
            spell(dir)?;
            let options = Options {
                threads: Some(threads),
                arithmetic: Some(arithmetic),
                max_rolling_batch_size: Some(PLACES),
                n_positions: Some(CONTEXT),
                kv_cache_mb: Some(800),
                ..Options::default()
            };
            let models: Models = [("target".to_owned(), Model::in_dir(dir))].into_iter().collect();
            let llama = futures_executor::block_on(Llama::load(options, models));
            let llama = llama.map_err(|error| anyhow!("{error}"))?;
            *served = Some(Self { llama, asked: 0 });
        }
        served.as_mut().context("it is loaded")
    }

    /// Runs concurrent requests. Returns the mean time to first token, the mean time between
    /// tokens, and the total time, in seconds.
    pub(crate) fn streams(
        &mut self,
        streams: usize,
        prompt: usize,
        tokens: usize,
    ) -> Result<Vec<f64>> {
        let prompts = (0..streams).map(|_| self.text(prompt)).collect::<Vec<_>>();
        let times = self.run(&prompts, tokens)?;
        let mean = |of: &dyn Fn(&(f64, f64)) -> f64| {
            times.iter().map(of).sum::<f64>() / times.len().max(1) as f64
        };
        let gaps = tokens.saturating_sub(1).max(1) as f64;
        let last = times.iter().map(|(_, last)| *last).fold(0.0, f64::max);
        Ok(vec![mean(&|(first, _)| *first), mean(&|(first, last)| (last - first) / gaps), last])
    }

    /// Returns the time to first token of a prompt, and of a second prompt with the same prefix, in
    /// seconds.
    pub(crate) fn prefix(&mut self, tokens: usize) -> Result<Vec<f64>> {
        let begin = self.text(tokens);
        let mut times = Vec::new();
        for _ in 0..2 {
            let prompt = format!("{begin}{}", self.text(24));
            times.extend(self.run(&[prompt], 1)?.into_iter().map(|(first, _)| first));
        }
        Ok(times)
    }

    /// Returns a new text of `tokens` tokens; each byte is a token.
    fn text(&mut self, tokens: usize) -> String {
        self.asked += 1;
        let letter = |i: usize| char::from(b'a' + ((i * 7 + i * self.asked / 3) % 26) as u8);
        let unlike = format!("{:08}", self.asked);
        unlike.chars().chain((0..).map(letter)).take(tokens).collect()
    }

    /// Returns the arrival of the first and the last token of each reply, in seconds.
    fn run(&self, prompts: &[String], tokens: usize) -> Result<Vec<(f64, f64)>> {
        let request = |prompt: &String| {
            let input = json!({
                "prompt": prompt, "max_tokens": tokens, "temperature": 0.0, "ignore_eos": true
            });
            (input, 7)
        };
        let replies = timed(&self.llama, &prompts.iter().map(request).collect::<Vec<_>>())?;
        Ok(replies.into_iter().map(|reply| (reply.first, reply.last)).collect())
    }
}

/// Writes a tokenizer for the random model, with a token for each byte.
fn spell(dir: &Path) -> Result<()> {
    let path = dir.join("tokenizer.json");
    if path.exists() {
        return Ok(());
    }
    let mut others = '\u{100}'..;
    let mut spelt = |byte: u8| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte).to_string(),
        _ => others.next().map(String::from).unwrap_or_default(),
    };
    let vocabulary: serde_json::Map<String, Value> =
        (0..=u8::MAX).map(|byte| (spelt(byte), json!(byte))).collect();
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [], "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": { "type": "BPE", "vocab": vocabulary, "merges": [], "ignore_merges": false,
                   "byte_fallback": false, "fuse_unk": false, "dropout": null, "unk_token": null,
                   "continuing_subword_prefix": null, "end_of_word_suffix": null }
    });
    std::fs::write(path, tokenizer.to_string())?;
    Ok(())
}
