//! SmolLM2-135M-Instruct, a real model in one GGUF file.

use std::process::Command;

use nsbridge_testkit::models::smollm2;

use crate::place::{Place, nsbridge, output};

const QUESTION: &str = "What is the capital of France?";
// With the template's own system message, the first two tokens of the reply are equally likely.
const SYSTEM: &str = "You are a helpful AI assistant.";
const GREEDY: [&str; 8] =
    ["--chat", "--system", SYSTEM, "--temperature", "0", "--max-tokens", "24", "--json"];

/// Runs a command with `--json` and returns its summary.
#[track_caller]
fn summary(mut command: Command) -> serde_json::Value {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(lines.lines().last().unwrap()).unwrap()
}

#[test]
fn smollm2_knows_the_capital_alone_through_rabbitmq_and_with_speculation() {
    let file = smollm2();
    let mut demo = nsbridge(&["demo", "--model", file.to_str().unwrap()]);
    demo.args(GREEDY).arg(QUESTION);
    let alone = summary(demo);
    assert!(alone["text"].as_str().unwrap().contains("Paris"), "{alone}");
    let place = Place::new();
    for more in ["", "[handler]\nspeculative_ngram = 4\n"] {
        place.configure_for(&file, more);
        let _worker = place.worker();
        let mut ask = place.ask(&GREEDY);
        ask.arg(QUESTION);
        let through = summary(ask);
        assert_eq!(through["text"], alone["text"], "{more}");
    }
}

#[test]
fn a_gguf_file_is_inspected_from_its_metadata() {
    let file = smollm2();
    let (done, text, why) = output(&["model", "inspect", file.to_str().unwrap()]);
    assert!(done.status.success(), "{why}");
    for part in [
        "GGUF: llama",
        "context of 8192 tokens",
        "gpt2 with the pre-tokenizer smollm, 49152 tokens",
        "eos 2 (<|im_end|>)",
        "chat template of",
        "Q4_1",
        "degree 1",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
