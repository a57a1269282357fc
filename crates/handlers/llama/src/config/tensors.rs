//! Tensors that a checkpoint must contain.

use super::Config;

/// Returns the name and shape of every tensor, in the order of the network, with transformers'
/// names.
///
/// A matrix is `[outputs, inputs]`. An output matrix tied to the embedding is not listed.
pub fn tensors(config: &Config) -> impl Iterator<Item = (String, Vec<usize>)> + use<'_> {
    let embedding = vec![config.vocab_size, config.hidden_size];
    let first = ("model.embed_tokens.weight".to_owned(), embedding.clone());
    let norm = ("model.norm.weight".to_owned(), vec![config.hidden_size]);
    let output = (!config.tied).then(|| ("lm_head.weight".to_owned(), embedding));
    let layers = (0..config.layers).flat_map(|index| layer(config, index));
    std::iter::once(first).chain(layers).chain([norm]).chain(output)
}

fn layer(config: &Config, index: usize) -> impl Iterator<Item = (String, Vec<usize>)> {
    let (hidden, wide, head) = (config.hidden_size, config.intermediate_size, config.head_dim);
    let (queries, keys) = (config.heads * head, config.kv_heads * head);
    let norm = |part, width, present: bool| {
        present.then(|| (format!("{part}.weight"), vec![width])).into_iter().collect()
    };
    let linear = |part, rows, columns, bias: bool| {
        let weight = (format!("{part}.weight"), vec![rows, columns]);
        let bias = bias.then(|| (format!("{part}.bias"), vec![rows]));
        [weight].into_iter().chain(bias).collect::<Vec<_>>()
    };
    let parts: [Vec<_>; 11] = [
        norm("input_layernorm", hidden, true),
        linear("self_attn.q_proj", queries, hidden, config.qkv_bias),
        linear("self_attn.k_proj", keys, hidden, config.qkv_bias),
        linear("self_attn.v_proj", keys, hidden, config.qkv_bias),
        norm("self_attn.q_norm", head, config.qk_norm),
        norm("self_attn.k_norm", head, config.qk_norm),
        linear("self_attn.o_proj", hidden, queries, config.output_bias),
        norm("post_attention_layernorm", hidden, true),
        linear("mlp.gate_proj", wide, hidden, config.mlp_bias),
        linear("mlp.up_proj", wide, hidden, config.mlp_bias),
        linear("mlp.down_proj", hidden, wide, config.mlp_bias),
    ];
    let named = move |(part, shape)| (format!("model.layers.{index}.{part}"), shape);
    parts.into_iter().flatten().map(named)
}

/// Returns the GGUF name (`MODEL_TENSORS` in llama.cpp's `gguf-py`) of a tensor named as in
/// transformers.
pub(crate) fn gguf_name(tensor: &str) -> Option<String> {
    let (path, kind) = tensor.rsplit_once('.')?;
    let Some(layer) = path.strip_prefix("model.layers.") else {
        let path = match path {
            "model.embed_tokens" => "token_embd",
            "model.norm" => "output_norm",
            "lm_head" => "output",
            _ => return None,
        };
        return Some(format!("{path}.{kind}"));
    };
    let (index, part) = layer.split_once('.')?;
    let part = match part {
        "input_layernorm" => "attn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "post_attention_layernorm" => "ffn_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        _ => return None,
    };
    Some(format!("blk.{index}.{part}.{kind}"))
}
