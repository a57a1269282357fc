//! Seeds of vocabularies in GGUF files, and edits of their metadata.

use super::{in_gguf, long, number, value};

/// Maximum length of a text that an edit makes longer, in bytes.
const MAX_EDITED: usize = 4096;

/// Value of the metadata.
#[derive(Clone)]
enum Value {
    Text(Vec<u8>),
    Texts(Vec<Vec<u8>>),
    Integers(Vec<i32>),
    Floats(Vec<f32>),
    Number(u32),
    Flag(bool),
}

type Metadata = Vec<(&'static str, Value)>;

/// Good files, and scripts of [edits](edited).
pub(in crate::fuzz) fn vocabulary() -> Vec<Vec<u8>> {
    let files = [bytes(), pieces()].map(|metadata| file(&metadata));
    let script =
        |first: u8| (0..60).map(|at: u8| at.wrapping_mul(37).wrapping_add(first)).collect();
    files.into_iter().chain([0, 1].map(script)).collect()
}

/// Returns the file that a script makes of a good one. The first byte chooses the file, and each six
/// bytes behind it edit a value. A mutation of a file seldom reaches what lies behind its encoding; any
/// script does.
pub(in crate::fuzz) fn edited(script: &[u8]) -> Vec<u8> {
    let (first, edits) = script.split_first().unwrap_or((&0, &[]));
    let mut metadata = if first & 1 == 0 { bytes() } else { pieces() };
    for edit in edits.chunks_exact(6) {
        let [what, key, at, a, b, c] = [0, 1, 2, 3, 4, 5].map(|index| usize::from(edit[index]));
        if metadata.is_empty() {
            break;
        }
        let key = key % metadata.len();
        match what % 8 {
            0 => drop(metadata.remove(key)),
            1 => metadata[key].1 = metadata[a % metadata.len()].1.clone(),
            2 => metadata[key].1 = Value::Number((a | b << 8 | c << 24) as u32),
            3 => metadata[key].1 = Value::Flag(a & 1 == 1),
            _ => change(&mut metadata[key].1, what, at, [a, b, c]),
        }
    }
    file(&metadata)
}

/// Changes a value without another type.
fn change(value: &mut Value, what: usize, at: usize, [a, b, c]: [usize; 3]) {
    match value {
        Value::Text(text) => spell(text, what, a, b as u8),
        Value::Texts(texts) if texts.is_empty() => texts.push(vec![a as u8]),
        Value::Texts(texts) => {
            let (at, other) = (at % texts.len(), a % texts.len());
            match what % 5 {
                0 => drop(texts.remove(at)),
                1 => texts[at] = texts[other].clone(),
                2 if texts[at].len() + texts[other].len() <= MAX_EDITED => {
                    texts[at] = [&texts[at][..], &texts[other]].concat();
                }
                3 => texts.swap(at, other),
                _ => spell(&mut texts[at], what, b, c as u8),
            }
        }
        Value::Integers(numbers) if !numbers.is_empty() => {
            let at = at % numbers.len();
            match what % 2 {
                0 => drop(numbers.remove(at)),
                _ => numbers[at] = a as i32 % 9 - 1,
            }
        }
        Value::Floats(numbers) if !numbers.is_empty() => {
            let at = at % numbers.len();
            match what % 2 {
                0 => drop(numbers.remove(at)),
                _ => numbers[at] = f32::from_bits((a | b << 15 | c << 24) as u32),
            }
        }
        Value::Integers(numbers) => numbers.push(a as i32),
        Value::Floats(numbers) => numbers.push(a as f32),
        Value::Number(number) => *number = (a | b << 8) as u32,
        Value::Flag(flag) => *flag = !*flag,
    }
}

/// Changes a byte of a text, or repeats the text.
fn spell(text: &mut Vec<u8>, what: usize, at: usize, byte: u8) {
    match (what % 3, text.len()) {
        (0, 1..MAX_EDITED) => *text = text.repeat(at % 20),
        (1, length @ 1..) => text[at % length] = byte,
        (_, length) => text.insert(at % (length + 1), byte),
    }
}

/// Writes a file without tensors.
fn file(metadata: &Metadata) -> Vec<u8> {
    let written = |(key, content): &(&str, Value)| match content {
        Value::Text(text) => [value(key, 8), string(text)].concat(),
        Value::Texts(texts) => {
            array(key, 8, texts.len(), texts.iter().flat_map(|text| string(text)).collect())
        }
        Value::Integers(numbers) => {
            array(key, 5, numbers.len(), numbers.iter().flat_map(|n| n.to_le_bytes()).collect())
        }
        Value::Floats(numbers) => {
            array(key, 6, numbers.len(), numbers.iter().flat_map(|n| n.to_le_bytes()).collect())
        }
        Value::Number(n) => [value(key, 4), number(*n)].concat(),
        Value::Flag(flag) => [value(key, 7), vec![u8::from(*flag)]].concat(),
    };
    in_gguf(3, &metadata.iter().map(written).collect::<Vec<_>>(), &[], 32, 0)
}

fn array(key: &str, kind: u32, count: usize, content: Vec<u8>) -> Vec<u8> {
    [value(key, 9), number(kind), long(count as u64), content].concat()
}

fn string(bytes: &[u8]) -> Vec<u8> {
    [&long(bytes.len() as u64), bytes].concat()
}

fn texts(texts: &[&str]) -> Value {
    Value::Texts(texts.iter().map(|text| text.as_bytes().to_vec()).collect())
}

fn text(text: &str) -> Value {
    Value::Text(text.as_bytes().to_vec())
}

const TEMPLATE: &str =
    "{{ bos_token }}{% for message in messages %}{{ message.content }}<|end|>{% endfor %}";

/// Vocabulary of bytes. The rules of its splits take no regular expression of their own, so each run is
/// short.
fn bytes() -> Metadata {
    let tokens =
        ["<s>", "<|end|>", "t", "h", "e", "th", "the", "Ġ", "Ġthe", "1", "ã", "<think>", "[PAD12]"];
    vec![
        ("tokenizer.ggml.model", text("gpt2")),
        ("tokenizer.ggml.pre", text("smollm")),
        ("tokenizer.ggml.tokens", texts(&tokens)),
        ("tokenizer.ggml.token_type", Value::Integers(vec![3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4, 5])),
        ("tokenizer.ggml.merges", texts(&["t h", "th e", "Ġ the"])),
        ("tokenizer.ggml.bos_token_id", Value::Number(0)),
        ("tokenizer.ggml.eos_token_id", Value::Number(1)),
        ("tokenizer.ggml.add_bos_token", Value::Flag(true)),
        ("tokenizer.chat_template", text(TEMPLATE)),
    ]
}

/// Vocabulary of SentencePiece.
fn pieces() -> Metadata {
    let tokens = [
        "<unk>", "<s>", "</s>", "<0x0A>", "▁", "t", "h", "e", "th", "the", "▁the", "あ", "<|end|>",
    ];
    let scores = vec![0.0, 0.0, 0.0, 0.0, -9.0, -8.0, -7.0, -6.0, -1.0, -2.0, -3.0, -10.0, 0.0];
    vec![
        ("tokenizer.ggml.model", text("llama")),
        ("tokenizer.ggml.tokens", texts(&tokens)),
        ("tokenizer.ggml.token_type", Value::Integers(vec![2, 3, 3, 6, 1, 1, 1, 1, 1, 1, 1, 1, 3])),
        ("tokenizer.ggml.scores", Value::Floats(scores)),
        ("tokenizer.ggml.bos_token_id", Value::Number(1)),
        ("tokenizer.ggml.eos_token_id", Value::Number(2)),
        ("tokenizer.ggml.unknown_token_id", Value::Number(0)),
        ("tokenizer.ggml.add_space_prefix", Value::Flag(true)),
        ("tokenizer.ggml.add_eos_token", Value::Flag(false)),
        ("tokenizer.chat_template", text(TEMPLATE)),
    ]
}
