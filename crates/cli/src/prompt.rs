//! The arguments that say what a text model is asked.

use anyhow::{Context, Result, ensure};
use nsbridge_protocol::{ChatMessage, TextInput};

#[derive(Debug, clap::Args)]
pub(crate) struct Sampling {
    /// What the reply's randomness grows from; the same seed gives the same text.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// The most tokens to make.
    #[arg(long, value_name = "N")]
    max_tokens: Option<u32>,
    /// 0 takes the likeliest token each time.
    #[arg(long, value_name = "T")]
    temperature: Option<f32>,
    /// Sample among the likeliest tokens that together hold this probability.
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Put the prompt into the model's chat template instead of going on from it.
    #[arg(long)]
    pub(crate) chat: bool,
}

impl Sampling {
    pub(crate) fn input(&self, prompt: String) -> TextInput {
        let (prompt, messages) = if self.chat {
            (None, vec![ChatMessage { role: "user".into(), content: prompt }])
        } else {
            (Some(prompt), Vec::new())
        };
        TextInput {
            prompt,
            messages,
            max_tokens: self.max_tokens,
            temperature: self.temperature,
            top_p: self.top_p,
            ..TextInput::default()
        }
    }
}

/// The prompt, or standard input for `-`.
pub(crate) fn read(prompt: String) -> Result<String> {
    if prompt != "-" {
        return Ok(prompt);
    }
    let text = std::io::read_to_string(std::io::stdin()).context("reading standard input")?;
    ensure!(!text.is_empty(), "standard input is empty: give a prompt");
    Ok(text)
}
