//! Reader of a model's shape and tokenizer that uses what it has read.

use std::sync::Arc;

use nsbridge_handler::{ChatMessage, Model, TextInput};
use nsbridge_llama::testing::Tokens;
use nsbridge_llama::{Config, Format, KvFormat, Memory, parameters, tensors};

use super::memory::InMemory;
use super::model::refused;

/// Rows of the embedding.
const ROWS: usize = 300;

/// Tokens of the context.
const CONTEXT: usize = 4096;

/// Texts of one and several scripts, composed and decomposed, with blanks and look-alikes of special tokens.
const TEXTS: [&str; 5] = [
    "the other 111 words",
    "  あ\u{301}e\u{301}\u{fb01}\t\u{a0}\n ▁Ａ한\u{fffd}\u{fdd0}",
    "<|end|>|end|><|end",
    "ThE <s> x </s> \u{10ffff}",
    "\0",
];

/// Reads the shape of a model of these files.
pub(super) fn config(files: &[(&str, &[u8])]) {
    let model = Model::from_source(Arc::new(InMemory::new(files)));
    let config = match Config::read(&model) {
        Ok(config) => config,
        Err(error) => return refused(&nsbridge_handler::Error::fatal(error), files),
    };
    assert_eq!(config.windows.len(), config.layers);
    assert!(config.heads.is_multiple_of(config.kv_heads));
    let listed: usize = tensors(&config).map(|(_, shape)| usize::from(!shape.contains(&0))).sum();
    assert!(listed > config.layers * 9, "{listed} tensors");
    assert!(parameters(&config) > 0);
    let memory = Memory::new(&config, 2, 4.0, KvFormat::F32, config.context);
    assert!(memory.bytes() >= memory.weights && !memory.to_string().is_empty());
    for ranks in config.degrees(Format::Q8_0) {
        let need = config.need(ranks, Format::Q8_0, 34.0 / 32.0, KvFormat::F32);
        assert!(need.is_ok_and(|need| need.weights > 0 && need.position > 0), "{ranks} ranks");
    }
}

/// Reads the tokenizer of a model of these files and tokenizes.
pub(super) fn tokenizer(files: &[(&str, &[u8])]) {
    let model = Model::from_source(Arc::new(InMemory::new(files)));
    let tokens = match Tokens::read(&model, ROWS) {
        Ok(tokens) => tokens,
        Err(error) => return refused(&error, files),
    };
    for text in TEXTS {
        let prompt = TextInput { prompt: Some(text.to_owned()), ..TextInput::default() };
        let least = tokens.least(text);
        match tokens.of(&prompt, CONTEXT) {
            Ok(made) => assert!(least <= made.len(), "{least} at least, and {}", made.len()),
            Err(error) => told(&error),
        }
        let message = |role: &str| ChatMessage::new(role, text);
        let messages = vec![message("user"), message("assistant"), message(text)];
        let chat = TextInput { messages, ..TextInput::default() };
        let _ = tokens.of(&chat, CONTEXT).map_err(|error| told(&error));
    }
}

/// Checks that an error is one sentence for the client.
pub(super) fn told(error: &nsbridge_handler::Error) {
    let sentence = error.to_string();
    assert!(matches!(error, nsbridge_handler::Error::BadInput(_)), "{sentence}");
    assert!(sentence.len() < 1 << 10, "{sentence}");
}
