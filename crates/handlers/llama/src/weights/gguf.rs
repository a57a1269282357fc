//! Row order and dtypes of GGUF files.

#[cfg(feature = "candle")]
use candle_core::quantized::GgmlDType;
#[cfg(feature = "candle")]
use nsbridge_checkpoint::Dtype;

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
