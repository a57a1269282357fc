//! Tensor names, row order and dtypes of GGUF files.

#[cfg(feature = "candle")]
use candle_core::quantized::GgmlDType;
#[cfg(feature = "candle")]
use nsbridge_checkpoint::Dtype;

/// Returns the GGUF name (`MODEL_TENSORS` in llama.cpp's `gguf-py`) of a tensor named as in
/// transformers.
pub(crate) fn name(tensor: &str) -> Option<String> {
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

/// Returns the row in a GGUF file of architecture `llama` for a query or key row of transformers.
/// ggml rotates neighboring dimensions of a head, so the two halves of a head are interleaved.
pub(crate) fn interleaved(row: usize, head_dim: usize) -> usize {
    let (head, dimension) = (row / head_dim, row % head_dim);
    let (half, pair) = (dimension / (head_dim / 2), dimension % (head_dim / 2));
    head * head_dim + 2 * pair + half
}

/// Returns the transformers row stored at a row of such a file: the inverse of [`interleaved`].
pub(crate) fn parted(row: usize, head_dim: usize) -> usize {
    let (head, dimension) = (row / head_dim, row % head_dim);
    head * head_dim + dimension % 2 * (head_dim / 2) + dimension / 2
}

/// Returns candle's name of a dtype of blocks that it has kernels for.
#[cfg(feature = "candle")]
pub(crate) fn ggml(dtype: Dtype) -> Option<GgmlDType> {
    Some(match dtype {
        Dtype::Q8_0 => GgmlDType::Q8_0,
        Dtype::Q4_0 => GgmlDType::Q4_0,
        Dtype::Q4_1 => GgmlDType::Q4_1,
        Dtype::Q5_0 => GgmlDType::Q5_0,
        Dtype::Q5_1 => GgmlDType::Q5_1,
        Dtype::Q2_K => GgmlDType::Q2K,
        Dtype::Q3_K => GgmlDType::Q3K,
        Dtype::Q4_K => GgmlDType::Q4K,
        Dtype::Q5_K => GgmlDType::Q5K,
        Dtype::Q6_K => GgmlDType::Q6K,
        _ => return None,
    })
}
