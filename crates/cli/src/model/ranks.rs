//! Which tensor-parallel degrees a model allows, and what each rank then holds.
//!
//! As Megatron-LM cuts it (Shoeybi et al., arXiv:1909.08053): query, key, value, gate and up
//! projections by rows, output and down projections by columns, embedding and head by the vocabulary.

use nsbridge_handler::TensorInfo;
use serde::Deserialize;

const DEGREES: [u64; 5] = [1, 2, 4, 8, 16];

/// What `config.json` tells of a network of the Llama family.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Shape {
    num_hidden_layers: u64,
    num_attention_heads: u64,
    num_key_value_heads: Option<u64>,
    head_dim: Option<u64>,
    hidden_size: u64,
    intermediate_size: u64,
}

/// A degree, and what it needs or why it cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Degree {
    pub(super) ranks: u64,
    pub(super) outcome: Result<Need, String>,
}

/// Bytes on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) weights: u64,
    pub(super) cache: u64,
}

/// Each degree for a model of these tensors, with a cache for `context` tokens in 16 bits.
pub(super) fn degrees(shape: &Shape, tensors: &[TensorInfo], context: u64) -> Vec<Degree> {
    let one = |ranks| Degree { ranks, outcome: need(shape, tensors, context, ranks) };
    DEGREES.into_iter().map(one).collect()
}

fn need(shape: &Shape, tensors: &[TensorInfo], context: u64, ranks: u64) -> Result<Need, String> {
    let heads = shape.num_attention_heads;
    let kv_heads = shape.num_key_value_heads.unwrap_or(heads);
    let whole = |what: &str, size: u64| {
        let fits = size > 0 && size.is_multiple_of(ranks);
        if fits { Ok(()) } else { Err(format!("{size} {what} are no multiple of {ranks}")) }
    };
    whole("attention heads", heads)?;
    whole("columns of the feed-forward layer", shape.intermediate_size)?;
    // With fewer heads than ranks, several ranks hold the same one.
    if kv_heads == 0 || !(kv_heads.is_multiple_of(ranks) || ranks.is_multiple_of(kv_heads)) {
        return Err(format!("{kv_heads} key-value heads and {ranks} ranks do not divide"));
    }
    let kv_shares = ranks.min(kv_heads);
    let weights =
        tensors.iter().map(|tensor| tensor.bytes().div_ceil(cut(tensor, ranks, kv_shares)));
    let head_dim = shape.head_dim.unwrap_or(shape.hidden_size / heads);
    let cache = 2 * shape.num_hidden_layers * (kv_heads / kv_shares) * head_dim * 2 * context;
    Ok(Need { weights: weights.sum(), cache })
}

/// Into how many parts a tensor is cut; 1 is a copy for each rank.
fn cut(tensor: &TensorInfo, ranks: u64, kv_shares: u64) -> u64 {
    let part = tensor.name.trim_end_matches(".weight").trim_end_matches(".bias");
    let is_bias = tensor.name.ends_with(".bias");
    match part.rsplit('.').next().unwrap_or(part) {
        "k_proj" | "v_proj" | "attn_k" | "attn_v" => kv_shares,
        "q_proj" | "gate_proj" | "up_proj" | "embed_tokens" | "lm_head" | "attn_q" | "ffn_gate"
        | "ffn_up" | "token_embd" | "output" => ranks,
        // The bias of a row-parallel layer is added once, on one rank.
        "o_proj" | "down_proj" | "attn_output" | "ffn_down" if !is_bias => ranks,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use nsbridge_handler::Model;

    use super::{Shape, degrees};

    /// Llama 3 70B as its `config.json` has it.
    fn large() -> Shape {
        serde_json::from_value(serde_json::json!({
            "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
            "hidden_size": 8192, "intermediate_size": 28672,
        }))
        .unwrap()
    }

    #[test]
    fn heads_say_which_degrees_are_possible_and_keys_are_held_twice_beyond_them() {
        let all = degrees(&large(), &[], 4096);
        let cache = |index: usize| all[index].outcome.as_ref().unwrap().cache;
        // 2 x 80 layers x 8 heads x 128 x 2 bytes x 4096 tokens.
        assert_eq!(cache(0), 1_342_177_280);
        assert_eq!([cache(1), cache(3), cache(4)], [cache(0) / 2, cache(0) / 8, cache(0) / 8]);
        let odd = Shape { num_attention_heads: 12, num_key_value_heads: Some(4), ..large() };
        let why = degrees(&odd, &[], 1)[3].outcome.clone().unwrap_err();
        assert_eq!(why, "12 attention heads are no multiple of 8");
    }

    #[test]
    fn the_ranks_of_the_bundled_model_hold_its_weights_between_them() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/models/tale-7m");
        let model = Model::in_dir(dir);
        let shape: Shape = serde_json::from_slice(&model.read("config.json").unwrap()).unwrap();
        let checkpoint = model.checkpoint().unwrap();
        let all = degrees(&shape, checkpoint.tensors(), 1);
        let weights = |index: usize| all[index].outcome.as_ref().unwrap().weights;
        let size: u64 = checkpoint.tensors().iter().map(|tensor| tensor.bytes()).sum();
        let norms = checkpoint.tensors().iter().filter(|tensor| tensor.name.contains("norm"));
        let norms: u64 = norms.map(|tensor| tensor.bytes()).sum();
        assert_eq!(weights(0), size);
        assert_eq!(weights(1), (size - norms) / 2 + norms);
    }
}
