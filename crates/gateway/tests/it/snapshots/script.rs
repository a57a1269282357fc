//! Models whose replies the prompt spells out.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nsbridge_handler::{
    Embedding, EmbeddingInput, EmbeddingPiece, EmbeddingText, EncodingFormat, Error, Fingerprint,
    Finish, FinishReason, Handler, Job, Models, Result, TextInput, TextPiece, TokenLogprob, Usage,
};

/// Pause between two looks at a gate.
const GATE_POLL: Duration = Duration::from_millis(2);

/// Model that says its prompt. The pieces are separated by `|`, and these are no text: `<gate>` waits
/// until the test opens the gate of the prompt, `<wait>` waits for the end of the run, `<filter>`,
/// `<bad>` and `<fail>` end the reply.
#[derive(Debug)]
pub(crate) struct Script;

impl Handler for Script {
    type Options = ();
    type Input = TextInput;
    type Output = TextPiece;

    fn load((): (), _models: Models) -> Result<Self> {
        Ok(Self)
    }

    fn handle(&self, input: TextInput, job: &mut Job<TextPiece>) -> Result<Finish> {
        let prompt = prompt(&input);
        let characters = prompt.chars().count() as u64;
        let mut pieces = if input.echo { echoed(&input, &prompt) } else { Vec::new() };
        let most = input.max_tokens.unwrap_or(u32::MAX) as usize;
        let mut finish = FinishReason::Stop;
        let mut said = 0;
        let mut output = 0;
        let mut resumed = job.accept_resume().len();
        for (index, text) in prompt.split('|').enumerate() {
            match text {
                "<gate>" => {
                    output += emit(job, &mut pieces, &mut resumed)?;
                    while !is_open(&prompt) {
                        job.check()?;
                        std::thread::sleep(GATE_POLL);
                    }
                    continue;
                }
                "<wait>" => {
                    emit(job, &mut pieces, &mut resumed)?;
                    loop {
                        job.check()?;
                        std::thread::sleep(GATE_POLL);
                    }
                }
                "<bad>" => return Err(Error::bad_input("the script says so")),
                "<fail>" => return Err(Error::failed("the script fails")),
                "<filter>" => {
                    finish = FinishReason::ContentFilter;
                    break;
                }
                _ if said == most => {
                    finish = FinishReason::Length;
                    break;
                }
                _ if input.stop.iter().any(|stop| stop == text) => break,
                _ => {}
            }
            said += 1;
            pieces.push(piece(&input, index as u32, text));
        }
        let replies = input.n.unwrap_or(1);
        if replies > 1 {
            pieces = interleaved(&pieces, replies, finish);
        }
        output += emit(job, &mut pieces, &mut resumed)?;
        let usage = Usage::new(characters, output).with_cached(characters.min(1));
        Ok(Finish::because(finish).with_usage(usage))
    }

    fn threads(&self) -> usize {
        8
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        Some(Fingerprint(*b"script of a test"))
    }
}

/// Emits the pieces that the client does not have, and returns the number of those of the reply.
fn emit(job: &mut Job<TextPiece>, pieces: &mut Vec<TextPiece>, resumed: &mut usize) -> Result<u64> {
    let of_reply = pieces.iter().filter(|piece| !piece.prompt).count() as u64;
    for piece in pieces.drain(..) {
        if *resumed > 0 {
            *resumed -= 1;
        } else {
            job.emit(piece)?;
        }
    }
    Ok(of_reply)
}

fn prompt(input: &TextInput) -> String {
    match (&input.prompt, input.messages.last()) {
        (Some(prompt), _) => prompt.clone(),
        (None, Some(message)) => message.content.to_string(),
        (None, None) => {
            input.prompt_token_ids.iter().filter_map(|id| char::from_u32(*id)).collect()
        }
    }
}

/// Returns the pieces of the prompt, one for each character.
fn echoed(input: &TextInput, prompt: &str) -> Vec<TextPiece> {
    let piece = |(index, character): (usize, char)| {
        let logprob = (input.logprobs && index > 0).then_some(-0.25);
        let text = character.to_string();
        let token_text = input.return_token_texts.then(|| text.as_bytes().into());
        let piece = TextPiece::new(character as u32, text);
        TextPiece { prompt: true, logprob, token_text, ..piece }
    };
    prompt.chars().enumerate().map(piece).collect()
}

fn piece(input: &TextInput, index: u32, text: &str) -> TextPiece {
    let token_text = |text: &str| input.return_token_texts.then(|| text.as_bytes().into());
    let mut piece = TextPiece::new(100 + index, text);
    if input.logprobs {
        piece.logprob = Some(-0.5);
        piece.token_text = token_text(text);
        piece.top_logprobs = (0..input.top_logprobs.unwrap_or_default())
            .map(|rank| {
                let mut top = TokenLogprob::new(100 + index + rank, -0.5 - f32::from(rank as u16));
                top.text = token_text(&format!("{text}{rank}"));
                top
            })
            .collect();
    }
    piece
}

/// Returns the pieces of this number of replies, each of which has one piece less than the one before.
fn interleaved(pieces: &[TextPiece], replies: u32, finish: FinishReason) -> Vec<TextPiece> {
    let mut all = Vec::new();
    for (at, piece) in pieces.iter().enumerate() {
        for index in 0..replies {
            let length = pieces.len().saturating_sub(index as usize).max(1);
            if at < length {
                let finish_reason = (at + 1 == length).then_some(finish);
                all.push(TextPiece { index, finish_reason, ..piece.clone() });
            }
        }
    }
    all
}

/// Prompts whose gates are open.
static OPEN: Mutex<Option<HashSet<String>>> = Mutex::new(None);

/// Lets the runs of a prompt pass its gates. Each test has its own prompts.
pub(crate) fn open_gate(prompt: &str) {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.get_or_insert_default().insert(prompt.to_owned());
}

fn is_open(prompt: &str) -> bool {
    let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.as_ref().is_some_and(|open| open.contains(prompt))
}

/// Model whose vector of a text has its length and its number of words.
#[derive(Debug)]
pub(crate) struct Vectors;

impl Handler for Vectors {
    type Options = ();
    type Input = EmbeddingInput;
    type Output = EmbeddingPiece;

    fn load((): (), _models: Models) -> Result<Self> {
        Ok(Self)
    }

    fn handle(&self, input: EmbeddingInput, job: &mut Job<EmbeddingPiece>) -> Result<Finish> {
        let mut tokens = 0;
        for (index, text) in input.input.iter().enumerate() {
            let (length, words) = match text {
                EmbeddingText::Text(text) => (text.chars().count(), text.split(' ').count()),
                EmbeddingText::Tokens(ids) => (ids.len(), 1),
            };
            tokens += length as u64;
            let vector = if input.encoding_format == Some(EncodingFormat::Base64) {
                Embedding::Base64("AAAAPwAAgL8=".to_owned())
            } else {
                Embedding::Floats(vec![f32::from(length as u16), f32::from(words as u16)])
            };
            job.emit(EmbeddingPiece::new(index as u32, vector))?;
        }
        Ok(Finish::STOP.with_usage(Usage::new(tokens, 0)))
    }
}
