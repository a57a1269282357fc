//! Handler of the tests: says words that depend on the seed, at the pace that the prompt asks for.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nsbridge_handler::{
    Error, Fingerprint, Finish, Handler, Job, Models, Result, TextInput, TextPiece, Usage,
};

/// Number of large pieces that a prompt with the word `large` gets, and the size of each.
const LARGE_PIECES: (usize, usize) = (200, 32 << 10);

/// Handler of prompts such as `20 a text of the test`: the first word is the time of a piece in ms.
/// Each character of a prompt is a token. The reply to a prompt with the word `refused` is cut off, and one
/// with the word `fails` fails after its pieces.
#[derive(Debug)]
pub(crate) struct Words;

impl Handler for Words {
    type Options = ();
    type Input = TextInput;
    type Output = TextPiece;

    fn load((): (), _models: Models) -> Result<Self> {
        Ok(Self)
    }

    fn handle(&self, input: TextInput, job: &mut Job<TextPiece>) -> Result<Finish> {
        let prompt = text(&input);
        let pace = prompt.split(' ').next().and_then(|word| word.parse().ok());
        let resumed = job.accept_resume().len();
        let _run = Run::start(&prompt, resumed);
        if input.echo {
            for character in prompt.chars().skip(resumed) {
                let token_text = input.return_token_texts.then(|| character.to_string());
                let token_text = token_text.map(|text| text.as_bytes().into());
                let piece = TextPiece::new(character as u32, character);
                job.emit(TextPiece { prompt: true, token_text, ..piece })?;
            }
            return Ok(Finish::LENGTH);
        }
        let pace = Duration::from_millis(pace.ok_or_else(|| Error::bad_input("no pace"))?);
        let pieces = input.max_tokens.unwrap_or(16) as usize;
        let large = prompt.contains("large");
        for index in resumed..pieces {
            if large && index < LARGE_PIECES.0 {
                job.emit(TextPiece::new(0, "x".repeat(LARGE_PIECES.1)))?;
                continue;
            }
            std::thread::sleep(pace);
            job.emit(TextPiece::new(index as u32, word(job.info().seed, index)))?;
        }
        if prompt.contains("fails") {
            return Err(Error::bad_input("no end"));
        }
        let (input_tokens, output_tokens) = (prompt.chars().count() as u64, pieces as u64);
        let usage = Usage::new(input_tokens, output_tokens);
        let finish =
            if prompt.contains("refused") { Finish::CONTENT_FILTER } else { Finish::LENGTH };
        Ok(finish.with_usage(usage))
    }

    fn threads(&self) -> usize {
        8
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        Some(Fingerprint(*b"words of a test."))
    }
}

fn text(input: &TextInput) -> String {
    match (&input.prompt, input.messages.last()) {
        (Some(prompt), _) => prompt.clone(),
        (None, Some(message)) => message.content.to_string(),
        (None, None) => {
            input.prompt_token_ids.iter().filter_map(|id| char::from_u32(*id)).collect()
        }
    }
}

/// Returns the word at `index`.
fn word(seed: u64, index: usize) -> String {
    format!("{:x} ", seed.wrapping_mul(6_364_136_223_846_793_005).rotate_left(index as u32 + 7))
}

/// Returns the text of a whole reply.
pub(crate) fn said(seed: u64, pieces: usize) -> String {
    (0..pieces).map(|index| word(seed, index)).collect()
}

/// Run of a prompt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ran {
    /// Number of pieces of an earlier attempt that it continued from.
    pub(crate) resumed: usize,
    pub(crate) ended: bool,
}

/// Runs of this process by their prompt, in the order of their start.
static RUNS: Mutex<Option<HashMap<String, Vec<Ran>>>> = Mutex::new(None);

/// Returns the runs of a prompt. Each test has its own prompts.
pub(crate) fn runs(prompt: &str) -> Vec<Ran> {
    let runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
    runs.as_ref().and_then(|runs| runs.get(prompt).cloned()).unwrap_or_default()
}

/// Guard that records a run's start, and its end on drop.
struct Run {
    prompt: String,
    index: usize,
}

impl Run {
    fn start(prompt: &str, resumed: usize) -> Self {
        let mut runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
        let runs = runs.get_or_insert_default().entry(prompt.to_owned()).or_default();
        runs.push(Ran { resumed, ended: false });
        Self { prompt: prompt.to_owned(), index: runs.len() - 1 }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let mut runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
        let runs = runs.get_or_insert_default().entry(self.prompt.clone()).or_default();
        runs[self.index].ended = true;
    }
}
