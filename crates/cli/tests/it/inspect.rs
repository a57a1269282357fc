//! `nsbridge model inspect` with invalid and hostile models.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::place::nsbridge;

/// Runs the command and returns its exit code, stdout and stderr.
fn inspect(folder: &Path, more: &[&str]) -> (Option<i32>, String, String) {
    let output = nsbridge(&["model", "inspect"]).arg(folder).args(more).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Creates a valid `config.json` and overrides these fields.
fn config(fields: &Value) -> Vec<u8> {
    let mut config = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
        "vocab_size": 32, "num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    });
    for (field, value) in fields.as_object().unwrap() {
        config[field] = value.clone();
    }
    config.to_string().into_bytes()
}

/// Creates a safetensors file with one number.
fn safetensors(name: &str, shape: &[usize]) -> Vec<u8> {
    let header = json!({ name: { "dtype": "F32", "shape": shape, "data_offsets": [0, 4] } });
    let header = header.to_string().into_bytes();
    [&(header.len() as u64).to_le_bytes()[..], &header, &[0; 4]].concat()
}

fn folder(files: &[(&str, Vec<u8>)]) -> TempDir {
    let folder = TempDir::new().unwrap();
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

#[test]
fn a_gguf_file_does_not_speak_for_the_safetensors_that_are_read() {
    let weights = || ("model.safetensors", safetensors("w", &[1]));
    let files = [weights(), ("model.gguf", b"GGUF".to_vec())];
    let (ended, out, err) = inspect(folder(&files).path(), &[]);
    assert_eq!(ended, Some(0), "{out}{err}");
    assert!(out.contains("has no config.json") && out.contains(".safetensors"), "{out}");
}

#[test]
fn a_config_that_is_refused_is_told_with_its_reason() {
    let gelu = || ("config.json", config(&json!({ "hidden_act": "gelu" })));
    let check = |files: &[(&str, Vec<u8>)], code: i32, parts: &[&str]| {
        let (ended, out, err) = inspect(folder(files).path(), &[]);
        assert_eq!(ended, Some(code), "{out}{err}");
        let said = if code == 0 { out } else { err };
        for part in parts {
            assert!(said.contains(part), "`{part}` is missing in: {said}");
        }
    };
    let weights = || ("model.safetensors", safetensors("w", &[1]));
    let broken = || ("config.json", b"{}".to_vec());
    check(&[gelu()], 1, &["hidden_act in config.json is gelu", "only silu"]);
    check(&[broken()], 1, &["could not understand", "config.json: missing field `"]);
    check(&[gelu(), weights()], 0, &["1 parameters", "hidden_act in config.json is gelu"]);
    check(&[broken(), weights()], 0, &["no word on ranks", "config.json: missing field `"]);
    check(&[("notes.txt", Vec::new())], 1, &["has no weights"]);
    let (_, out, _) = inspect(folder(&[gelu(), weights()]).path(), &["--json"]);
    let told: Value = serde_json::from_str(&out).unwrap();
    assert!(told["tensor_parallel_degrees"].is_null());
    assert!(told["config_refused"].as_str().unwrap().contains("hidden_act"), "{told}");
}

#[test]
fn what_a_models_files_say_is_printed_escaped_and_not_without_end() {
    let check = |files: &[(&str, Vec<u8>)], parts: &[&str]| {
        let (_, out, err) = inspect(folder(files).path(), &["--tensors"]);
        let said = out + &err;
        let control = |c: char| c.is_control() && c != '\n';
        assert!(!said.contains(control) && !said.contains('\u{202e}'), "{said:?}");
        assert!(said.lines().all(|line| line.len() < 1500), "{said}");
        for part in parts {
            assert!(said.contains(part), "`{part}` is missing in: {said}");
        }
    };
    let tensor = |name: &str, shape: &[usize]| ("model.safetensors", safetensors(name, shape));
    check(&[tensor("\u{1b}]0;mine\u{7}\u{9b}w\u{202e}", &[1])], &[r"\u{1b}]0;mine\u{7}\u{9b}w"]);
    check(&[tensor(&"w".repeat(100_000), &[1])], &["www", "…"]);
    check(&[tensor("w", &[1; 100_000])], &["[1, 1, 1", "…"]);
    let act = || ("config.json", config(&json!({ "hidden_act": "\u{1b}[2Jgelu" })));
    check(&[act()], &[r"hidden_act in config.json is \u{1b}[2Jgelu"]);
    check(&[act(), tensor("w", &[1])], &["no word on ranks", r"\u{1b}[2Jgelu"]);
}

#[test]
fn a_config_of_absurd_numbers_needs_all_memory_there_is() {
    let most = 1 << 24;
    let absurd = config(&json!({
        "num_attention_heads": most, "num_key_value_heads": most, "head_dim": most,
        "num_hidden_layers": 4096,
    }));
    let folder = folder(&[("config.json", absurd)]);
    let (code, out, err) = inspect(folder.path(), &[]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("=  16.00 EiB"), "{out}");
    let (code, out, err) = inspect(folder.path(), &["--json"]);
    assert_eq!(code, Some(0), "{err}");
    let told: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(told["tensor_parallel_degrees"][0]["kv_per_rank"], u64::MAX, "{told}");
}

#[test]
fn the_formats_of_a_chat_template_are_told_as_a_gateway_names_them() {
    let template = "{% for m in messages %}{% for call in m.tool_calls %}<tool_call>{{ call.function | tojson }}\
                    </tool_call>{% endfor %}{% endfor %}<think>";
    let tokenizer_config = json!({ "chat_template": template }).to_string().into_bytes();
    let files = [
        ("config.json", config(&json!({}))),
        ("tokenizer.json", b"{}".to_vec()),
        ("tokenizer_config.json", tokenizer_config),
    ];
    let folder = folder(&files);
    let (code, out, err) = inspect(folder.path(), &[]);
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(
        out.contains("tools = \"hermes\"") && out.contains("reasoning = \"think_begun\""),
        "{out}"
    );
    let (_, out, _) = inspect(folder.path(), &["--json"]);
    let told: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(told["chat_formats"], json!({ "tools": "hermes", "reasoning": "think_begun" }));
}
