//! Handlers that say the words of their prompt, and record the prompts that reach them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nsbridge_handler::{
    AsyncHandler, AsyncJob, Finish, FinishReason, Handler, Job, Models, Result, TextInput,
    TextPiece, testing,
};
use nsbridge_judged::{JudgeOptions, Judged, JudgedOptions, RulesOptions, Selection};

/// Handler that blocks its thread.
#[derive(Debug)]
pub(crate) struct Words {
    calls: AtomicUsize,
}

/// Handler that awaits.
#[derive(Debug)]
pub(crate) struct AsyncWords;

/// Returns the pieces of a reply. With several replies, each drops another number of first words.
pub(crate) fn said(input: &TextInput) -> Vec<TextPiece> {
    let prompt = input.prompt.clone().unwrap_or_default();
    let words: Vec<&str> = prompt.split_inclusive(' ').collect();
    let replies = input.n.unwrap_or(1);
    let mut pieces = Vec::new();
    for place in 0..words.len() {
        for index in 0..replies {
            let Some(word) = words.get(place + index as usize) else { continue };
            let last = replies > 1 && place + index as usize + 1 == words.len();
            let finish_reason = last.then_some(FinishReason::Length);
            let token = (place + index as usize) as u32;
            pieces.push(TextPiece { index, finish_reason, ..TextPiece::new(token, *word) });
        }
    }
    pieces
}

impl Words {
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

impl Handler for Words {
    type Options = ();
    type Input = TextInput;
    type Output = TextPiece;

    fn load((): (), _models: Models) -> Result<Self> {
        Ok(Self { calls: AtomicUsize::new(0) })
    }

    fn handle(&self, input: TextInput, job: &mut Job<TextPiece>) -> Result<Finish> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let known = job.accept_resume().len();
        let pieces = said(&input);
        job.set_max_pieces(pieces.len());
        job.set_input_tokens(5);
        for piece in pieces.into_iter().skip(known) {
            job.emit(piece)?;
        }
        Ok(Finish::LENGTH)
    }

    fn threads(&self) -> usize {
        4
    }
}

impl AsyncHandler for AsyncWords {
    type Options = ();
    type Input = TextInput;
    type Output = TextPiece;

    async fn load((): (), _models: Models) -> Result<Self> {
        Ok(Self)
    }

    async fn handle(&self, input: TextInput, job: &mut AsyncJob<TextPiece>) -> Result<Finish> {
        let known = job.accept_resume().len();
        job.set_input_tokens(5);
        for piece in said(&input).into_iter().skip(known) {
            job.emit(piece).await?;
        }
        Ok(Finish::LENGTH)
    }

    fn tasks(&self) -> usize {
        8
    }
}

/// Returns the options of a judge by rules for both phases.
pub(crate) fn options(before: bool, after: bool) -> JudgedOptions<(), RulesOptions> {
    let [before, after] = [before, after].map(Selection::All);
    let judge = JudgeOptions { before, after, ..JudgeOptions::default() };
    JudgedOptions { judge: Some(judge), own: () }
}

pub(crate) fn words(before: bool, after: bool) -> Arc<Judged<Words>> {
    testing::load(options(before, after), Models::default()).unwrap()
}

pub(crate) fn async_words(before: bool, after: bool) -> Arc<Judged<AsyncWords>> {
    testing::load(options(before, after), Models::default()).unwrap()
}
