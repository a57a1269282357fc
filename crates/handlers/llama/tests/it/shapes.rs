//! Small models of each family, and steps of all kinds.

use std::fs::File;
use std::path::Path;

use nsbridge_llama::{BlockTable, Chunk, Mix, Model, quantize};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::tiny::write_drawn;

/// Returns each family of models, with the fields that its configuration has.
pub(crate) fn families() -> [(&'static str, Value); 6] {
    let llama3 = json!({ "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32
    }, "attention_bias": true, "mlp_bias": true });
    [
        ("Llama", json!({})),
        ("Llama", llama3),
        ("Llama", json!({ "tie_word_embeddings": true, "num_key_value_heads": 8 })),
        ("Mistral", json!({ "sliding_window": 7 })),
        ("Qwen2", json!({ "num_key_value_heads": 1 })),
        ("Qwen3", json!({})),
    ]
}

/// Returns the configuration of a family of models, with these fields besides the usual ones.
pub(crate) fn shape(family: &str, more: &Value) -> Value {
    let mut config = json!({
        "architectures": [format!("{family}ForCausalLM")], "hidden_act": "silu", "hidden_size": 256,
        "intermediate_size": 512, "vocab_size": 70, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0, "max_position_embeddings": 200, "tie_word_embeddings": false
    });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config
}

/// Writes a model with random weights.
pub(crate) fn drawn(config: &Value) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_drawn(dir.path(), config, 7, 0.1);
    dir
}

/// Writes a model as a GGUF file.
pub(crate) fn quantized(dir: &Path, mix: Mix) -> TempDir {
    let to = tempfile::tempdir().unwrap();
    let model = nsbridge_handler::Model::in_dir(dir);
    let file = File::create(to.path().join("model.gguf")).unwrap();
    quantize(&model, mix, &file, |_| {}).unwrap();
    to
}

/// Returns the logits of two sequences of different lengths, run in chunks. The second one is
/// truncated, and the first one continues twice from the middle of a block.
pub(crate) fn logits(model: &mut Model) -> Vec<f32> {
    let token = |at: usize, of: usize| ((at * at * 7 + 3 * at + of) % 70) as u32;
    let mut tables = vec![BlockTable::default(), BlockTable::default()];
    let mut all = Vec::new();
    let steps: [&[(usize, usize)]; 5] = [
        &[(0, 40), (0, 33)],
        &[(40, 1), (33, 20)],
        &[(41, 1), (21, 1)],
        &[(42, 3), (22, 2), (41, 4)],
        &[(45, 1), (24, 1), (45, 1)],
    ];
    for (number, places) in steps.into_iter().enumerate() {
        if places.len() > tables.len() {
            let twin = model.cache().fork(&tables[0]);
            tables.push(twin);
        }
        let run = |of: usize, (from, count): (usize, usize)| -> Vec<u32> {
            (from..from + count).map(|at| token(at, of * 40 + number)).collect()
        };
        let tokens: Vec<_> = places.iter().enumerate().map(|(of, place)| run(of, *place)).collect();
        let mut chunks = Vec::new();
        for ((table, tokens), (from, _)) in tables.iter_mut().zip(&tokens).zip(places) {
            model.cache().truncate(table, *from);
            assert!(table.len() == *from && model.cache().reserve(table, tokens.len()));
            chunks.push(Chunk { table, tokens, logits: tokens.len().min(3) });
        }
        all.extend(model.forward(&mut chunks).unwrap().rows().flatten());
    }
    for table in tables {
        model.cache().release(table);
    }
    all
}
