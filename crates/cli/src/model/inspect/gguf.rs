//! Description of a GGUF file's metadata.

use std::fmt::Write as _;

use nsbridge_checkpoint::{GgufValue, Metadata};
use nsbridge_handler::quote;
use serde_json::{Value, json};

/// Returns all metadata; an array is represented by its length.
pub(super) fn to_json(metadata: &Metadata) -> Value {
    metadata.iter().map(|(name, value)| (name.clone(), json_of(value))).collect()
}

fn json_of(value: &GgufValue) -> Value {
    match value {
        GgufValue::Unsigned(number) => json!(number),
        GgufValue::Signed(number) => json!(number),
        GgufValue::Float(number) => json!(number),
        GgufValue::Bool(flag) => json!(flag),
        GgufValue::Text(text) => json!(text),
        GgufValue::Array(values) => json!({ "array_of": values.len() }),
        _ => Value::Null,
    }
}

/// Returns lines about the model's origin and its tokenizer; no line for safetensors.
pub(super) fn to_text(metadata: &Metadata) -> String {
    let mut lines = String::new();
    let text = |name: &str| match metadata.get(name)? {
        GgufValue::Text(text) => Some(quote(text)),
        _ => None,
    };
    let Some(architecture) = text("general.architecture") else { return lines };
    let origin = ["general.name", "general.license"].into_iter().filter_map(text);
    let origin: Vec<_> = std::iter::once(architecture.clone()).chain(origin).collect();
    // Writing to a `String` cannot fail.
    let _ = writeln!(lines, "GGUF: {}", origin.join(", "));
    if let Some(context) = metadata.get(&format!("{architecture}.context_length")) {
        let _ = writeln!(lines, "context of {} tokens", json_of(context));
    }
    if let Some(model) = text("tokenizer.ggml.model") {
        let pre = text("tokenizer.ggml.pre").map(|pre| format!(" with the pre-tokenizer {pre}"));
        let tokens = match metadata.get("tokenizer.ggml.tokens") {
            Some(GgufValue::Array(tokens)) => tokens.as_slice(),
            _ => &[],
        };
        let _ = write!(lines, "tokenizer: {model}{}", pre.unwrap_or_default());
        let _ = write!(lines, ", {} tokens", tokens.len());
        for name in ["bos", "eos", "eot", "eom"] {
            let id = match metadata.get(&format!("tokenizer.ggml.{name}_token_id")) {
                Some(GgufValue::Unsigned(id)) => *id,
                _ => continue,
            };
            let token = usize::try_from(id).ok().and_then(|id| tokens.get(id));
            let token = match token {
                Some(GgufValue::Text(token)) => quote(token),
                _ => "not in the vocabulary".to_owned(),
            };
            let _ = write!(lines, ", {name} {id} ({token})");
        }
        let _ = writeln!(lines);
    }
    let template = ["tokenizer.chat_template", "tokenizer.chat_template.default"];
    match template.into_iter().find_map(|name| metadata.get(name)) {
        Some(GgufValue::Text(template)) => {
            let _ = writeln!(lines, "chat template of {} bytes", template.len());
        }
        _ => {
            let _ = writeln!(lines, "no chat template");
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use nsbridge_checkpoint::{GgufValue, Metadata};
    use serde_json::json;

    use super::{to_json, to_text};

    fn metadata() -> Metadata {
        let text = |text: &str| GgufValue::Text(text.to_owned());
        let tokens = ["<s>", "a", "\u{1b}[2J"].map(text);
        [
            ("general.architecture", text("llama")),
            ("general.name", text("Tale")),
            ("llama.context_length", GgufValue::Unsigned(512)),
            ("tokenizer.ggml.model", text("gpt2")),
            ("tokenizer.ggml.pre", text("smollm")),
            ("tokenizer.ggml.tokens", GgufValue::Array(tokens.into())),
            ("tokenizer.ggml.bos_token_id", GgufValue::Unsigned(0)),
            ("tokenizer.ggml.eos_token_id", GgufValue::Unsigned(2)),
            ("tokenizer.ggml.eot_token_id", GgufValue::Unsigned(3)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    #[test]
    fn origin_tokenizer_and_template_are_described() {
        let expected = "GGUF: llama, Tale\n\
                        context of 512 tokens\n\
                        tokenizer: gpt2 with the pre-tokenizer smollm, 3 tokens, bos 0 (<s>), \
                        eos 2 (\\u{1b}[2J), eot 3 (not in the vocabulary)\n\
                        no chat template\n";
        assert_eq!(to_text(&metadata()), expected);
        assert_eq!(to_text(&Metadata::default()), "");
    }

    #[test]
    fn json_has_all_metadata_and_the_lengths_of_arrays() {
        let all = to_json(&metadata());
        assert_eq!(all["tokenizer.ggml.tokens"], json!({ "array_of": 3 }));
        assert_eq!(all["llama.context_length"], json!(512));
    }
}
