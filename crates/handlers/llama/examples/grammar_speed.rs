//! Benchmark of grammar-constrained decoding, for a bundled model's vocabulary and a large one.
//!
//! `cargo run --release -p nsbridge-llama --example grammar_speed` prints milliseconds to build the
//! trie of the tokens (once for each worker) and to compile a grammar (for each request), and
//! microseconds for each token to compute its mask and to advance. Tokens are drawn uniformly from
//! the allowed ones.
#![expect(clippy::print_stdout, reason = "what it is for")]
#![expect(clippy::unwrap_used, reason = "a measurement that cannot be made has failed")]

use std::path::Path;
use std::time::Instant;

use nsbridge_handler::ResponseFormat;
use nsbridge_llama::{Grammars, Rule, TokenSet};
use serde_json::{Value, json};

const REPLIES: usize = 40;
const TOKENS: usize = 150;

fn main() {
    let own = bundled();
    for (name, words) in [("bundled pair", own.clone()), ("synthetic", large(own, 128_256))] {
        println!("{name}, {} tokens", words.len());
        let size = words.len() as u32;
        let grammars = Grammars::new(move || words.clone());
        let start = Instant::now();
        let any = json!({ "type": "regex", "regex": "a" });
        grammars.compile(&rule(&any)).unwrap();
        println!("trie {:.0} ms", start.elapsed().as_secs_f64() * 1e3);
        println!(
            "{:12} {:>10} {:>8} {:>8} {:>8} {:>8}",
            "", "compile ms", "med us", "mean us", "p99 us", "max us"
        );
        for (name, format) in formats() {
            measure(&grammars, size, name, &rule(&format));
        }
    }
}

fn rule(format: &Value) -> Rule {
    let format: ResponseFormat = serde_json::from_value(format.clone()).unwrap();
    Rule::of(&format).unwrap().unwrap()
}

fn formats() -> [(&'static str, Value); 4] {
    let person = json!({
        "type": "object", "additionalProperties": false, "required": ["name", "age", "tags"],
        "properties": {
            "name": { "type": "string", "maxLength": 60 },
            "age": { "type": "integer", "minimum": 0, "maximum": 150 },
            "kind": { "enum": ["customer", "employee", "visitor"] },
            "tags": { "type": "array", "items": { "type": "string", "maxLength": 20 }, "maxItems": 8 },
            "address": {
                "type": "object", "additionalProperties": false, "required": ["city"],
                "properties": { "city": { "type": "string" }, "zip": { "type": "string", "pattern": "^[0-9]{5}$" } }
            }
        }
    });
    let schema = json!({ "name": "person", "schema": person });
    [
        ("json_object", json!({ "type": "json_object" })),
        ("json_schema", json!({ "type": "json_schema", "json_schema": schema })),
        ("regex, date", json!({ "type": "regex", "regex": r"(\d{4}-\d\d-\d\d, ){20}" })),
        ("regex, words", json!({ "type": "regex", "regex": r"([A-Z][a-z]{1,12} ){3,40}\." })),
    ]
}

fn measure(grammars: &Grammars, size: u32, name: &str, rule: &Rule) {
    let mut state = 1u64;
    let mut below = |end: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % end
    };
    let (mut compile, mut times) = (f64::MAX, Vec::new());
    for _ in 0..REPLIES {
        let start = Instant::now();
        let mut grammar = grammars.compile(rule).unwrap();
        compile = compile.min(start.elapsed().as_secs_f64() * 1e3);
        for _ in 0..TOKENS {
            let start = Instant::now();
            let allowed = grammar.allowed(&TokenSet::default()).unwrap();
            let said = start.elapsed();
            let tokens: Vec<u32> = (0..size).filter(|&token| allowed.has(token)).collect();
            let token = tokens[below(tokens.len())];
            let start = Instant::now();
            let over = grammar.take(token).unwrap();
            times.push((said + start.elapsed()).as_secs_f64() * 1e6);
            if over {
                break;
            }
        }
    }
    times.sort_by(f64::total_cmp);
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!(
        "{name:12} {compile:10.2} {:8.0} {mean:8.0} {:8.0} {:8.0}",
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

/// Returns the spellings of the bundled pair, whose models share a byte-level tokenizer.
fn bundled() -> Vec<Vec<u8>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = file.join("../../../examples/models/tale-7m/tokenizer.json");
    let json: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let mut others = '\u{100}'..;
    let spelt = |byte: u8| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        _ => others.next().unwrap(),
    };
    let spelt: Vec<char> = (0..=u8::MAX).map(spelt).collect();
    let byte = |c: char| spelt.iter().position(|&spelt| spelt == c).map(|byte| byte as u8);
    let vocabulary = json["model"]["vocab"].as_object().unwrap();
    let mut words = vec![Vec::new(); vocabulary.len()];
    for (token, id) in vocabulary {
        let id = id.as_u64().unwrap() as usize;
        words[id] = token.chars().map(byte).collect::<Option<_>>().unwrap_or_default();
    }
    words
}

/// Extends a vocabulary to `size` tokens: pairs of other tokens, with or without a space before
/// each.
fn large(mut words: Vec<Vec<u8>>, size: usize) -> Vec<Vec<u8>> {
    let own = words.len();
    let mut state = 7u64;
    while words.len() < size {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (first, second) = ((state >> 33) as usize % own, (state >> 45) as usize % own);
        let blank: &[u8] = if state >> 40 & 1 == 1 { b" " } else { b"" };
        let word = [blank, &words[first], &words[second]].concat();
        if word.len() < 24 {
            words.push(word);
        }
    }
    words
}
