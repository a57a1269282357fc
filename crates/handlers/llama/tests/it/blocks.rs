//! Tests of formats that only files can have, written by this crate's own rounding.

use std::fs::{self, File};
use std::path::Path;

use nsbridge_handler::Model;
use nsbridge_llama::testing::write_in;
use nsbridge_llama::{Format, Setup};
use serde_json::json;
use tempfile::TempDir;

use crate::bundled::bundled;
use crate::network::{self, logits};
use crate::tiny::write_drawn;

fn written(from: &Path, format: Format) -> TempDir {
    let to = tempfile::tempdir().unwrap();
    fs::copy(from.join("config.json"), to.path().join("config.json")).unwrap();
    let file = File::create(to.path().join("model.gguf")).unwrap();
    write_in(&Model::in_dir(from), format, &file).unwrap();
    to
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// The model has 7 million weights, each of which matters more than one of a large model. The bounds
/// are a little below what rounding to nearest gives.
#[test]
fn the_bundled_model_in_each_format_gives_nearly_its_logits() {
    let tokens: Vec<u32> = (0..24).map(|i| (7 * i * i + 3 * i + 5) % 4096).collect();
    let run = |dir: &Path| logits(&mut network::open(dir, &Setup::default()), &tokens, 16);
    let right = run(&bundled("tale-7m"));
    for (format, bound) in [
        (Format::Q8_0, 0.9999),
        (Format::Q8_1, 0.9999),
        (Format::Q4_0, 0.999),
        (Format::Q4_1, 0.999),
        (Format::Q5_0, 0.9997),
        (Format::Q5_1, 0.9997),
        (Format::Iq4Nl, 0.999),
        (Format::Mxfp4, 0.995),
        (Format::Q2K, 0.9),
        (Format::Q3K, 0.99),
        (Format::Iq4Xs, 0.999),
    ] {
        let found = run(written(&bundled("tale-7m"), format).path());
        let cosines = right.iter().zip(&found).map(|(right, found)| cosine(right, found));
        let mean = cosines.sum::<f64>() / right.len() as f64;
        println!("{format}: {mean:.5}");
        assert!(mean > bound, "{format}: {mean}");
    }
}

/// Shape with enough heads and columns for eight ranks in blocks of 256.
#[test]
fn any_number_of_ranks_and_threads_gives_the_bits_of_one_in_every_format() {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 256,
        "intermediate_size": 2048, "vocab_size": 70, "num_hidden_layers": 1,
        "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 64, "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0, "max_position_embeddings": 200, "tie_word_embeddings": false,
        "eos_token_id": 3
    });
    let dir = tempfile::tempdir().unwrap();
    write_drawn(dir.path(), &config, 5, 0.1);
    let tokens: Vec<u32> = (0..13).map(|i| (i * i * 7 + 3 * i) % 70).collect();
    let mut all = Vec::new();
    for format in [
        Format::Q4_0,
        Format::Q4_1,
        Format::Q5_0,
        Format::Q5_1,
        Format::Iq4Nl,
        Format::Mxfp4,
        Format::Q2K,
        Format::Q3K,
        Format::Iq4Xs,
    ] {
        let gguf = written(dir.path(), format);
        let run = |ranks: usize, threads: usize| {
            let setup = Setup { ranks, threads: Some(threads), ..Setup::default() };
            logits(&mut network::open(gguf.path(), &setup), &tokens, 5)
        };
        let right = run(1, 1);
        for (ranks, threads) in [(1, 3), (2, 2), (8, 8)] {
            assert_eq!(run(ranks, threads), right, "{format} on {ranks} ranks, {threads} threads");
        }
        all.push(right.iter().flatten().fold(0u64, |mixed, logit| {
            (mixed ^ u64::from(logit.to_bits())).wrapping_mul(0x100_0000_01b3).rotate_left(29)
        }));
    }
    // A change to these requires a higher `ARITHMETIC_VERSION`, or stems from a change in rounding.
    assert_eq!(
        all,
        [
            0x56e7_b798_9e06_f187,
            0x832d_83fe_23e3_e4ee,
            0xd944_9282_3cb1_4f52,
            0xdfad_bca0_8579_f359,
            0x6131_7027_853f_32b7,
            0x7525_475a_fb51_3138,
            0x4b58_90d1_23a6_6b8b,
            0x6c6a_c982_b9b9_55ee,
            0x8033_4822_46a9_6472,
        ],
        "{all:#x?}"
    );
}
