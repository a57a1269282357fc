//! Formats that the tensors of a checkpoint have in memory.

use nsbridge_checkpoint::{Dtype, TensorInfo};
use nsbridge_kernels::Format;

use crate::error::LoadError;

/// Returns the format of weights of this dtype, in the file and by default in memory; `None` if the
/// kernels have none. Weights of eight-bit floats are [widened](crate::weights) to f32.
pub(crate) fn format_of(dtype: Dtype) -> Option<Format> {
    Some(match dtype {
        Dtype::F32 | Dtype::F8_E4M3 | Dtype::F8_E5M2 => Format::F32,
        Dtype::BF16 => Format::Bf16,
        Dtype::F16 => Format::F16,
        Dtype::Q8_0 => Format::Q8_0,
        Dtype::Q8_1 => Format::Q8_1,
        Dtype::Q4_0 => Format::Q4_0,
        Dtype::Q4_1 => Format::Q4_1,
        Dtype::Q5_0 => Format::Q5_0,
        Dtype::Q5_1 => Format::Q5_1,
        Dtype::IQ4_NL => Format::Iq4Nl,
        Dtype::MXFP4 => Format::Mxfp4,
        Dtype::Q2_K => Format::Q2K,
        Dtype::Q3_K => Format::Q3K,
        Dtype::Q4_K => Format::Q4K,
        Dtype::Q5_K => Format::Q5K,
        Dtype::Q6_K => Format::Q6K,
        Dtype::IQ4_XS => Format::Iq4Xs,
        _ => return None,
    })
}

/// Returns the bytes of a weight on a device: those of the file, or of f32 where candle has no
/// kernels for the blocks.
pub(crate) fn width_on_device(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F8_E4M3
        | Dtype::F8_E5M2
        | Dtype::Q8_1
        | Dtype::IQ4_NL
        | Dtype::IQ4_XS
        | Dtype::MXFP4 => 4.0,
        other => other.block().1 as f64 / other.block().0 as f64,
    }
}

/// Returns the bytes of a weight on a GPU that multiplies bf16 with this engine's kernels: eight-bit
/// floats of E4M3 stay as they are with a scale for each 128, others become bf16. `scaled` is the size
/// of blocks that share a scale in the checkpoint.
pub(crate) fn width_on_gpu(tensor: &TensorInfo, scaled: [usize; 2]) -> f64 {
    let kept = |columns: &usize| columns.is_multiple_of(128) && scaled[1].is_multiple_of(128);
    match tensor.dtype {
        Dtype::F8_E4M3 if tensor.shape.last().is_some_and(kept) => 1.0 + 4.0 / 128.0,
        Dtype::F8_E4M3 | Dtype::F8_E5M2 => 2.0,
        other => format_of(other).unwrap_or(Format::F32).width(),
    }
}

/// Returns the format of a tensor of this dtype.
///
/// # Errors
///
/// Returns an error that names the tensor if the kernels have no format for it.
pub(crate) fn format_of_tensor(name: &str, dtype: Dtype) -> Result<Format, LoadError> {
    format_of(dtype).ok_or_else(|| {
        let names = Format::ALL.map(|format| format.to_string()).join(", ");
        let supported = format!("one of {names}, F8_E4M3 and F8_E5M2");
        LoadError::unsupported(format!("the dtype of {name}"), dtype.to_string(), supported)
    })
}

/// Returns the matrix format with the longest blocks; among equal lengths, the one with the most
/// weights. Vectors do not count, since they are f32 beside any format.
///
/// ```
/// use nsbridge_checkpoint::Checkpoint;
/// use nsbridge_llama::{Format, coarsest_format, mean_width};
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/models/tale-1m");
/// let checkpoint = Checkpoint::open(&nsbridge_handler::Model::in_dir(folder))?;
/// assert_eq!(coarsest_format(checkpoint.tensors()), Format::Bf16);
/// assert!(mean_width(checkpoint.tensors()) < 2.1);
/// # Ok::<(), nsbridge_handler::Error>(())
/// ```
pub fn coarsest_format(tensors: &[TensorInfo]) -> Format {
    kept(stored(tensors)).0
}

/// Returns the average bytes of a weight of these tensors in memory, each stored in its default
/// format.
pub fn mean_width(tensors: &[TensorInfo]) -> f64 {
    kept(stored(tensors)).1
}

/// Returns both the coarsest format and the mean width, for tensors of these dtypes and shapes.
pub(crate) fn kept(tensors: impl Iterator<Item = (Dtype, Vec<usize>)>) -> (Format, f64) {
    let (mut bytes, mut all) = (0.0, 0.0);
    let mut matrices: Vec<(Format, f64)> = Vec::new();
    for (dtype, shape) in tensors {
        let format = format_of(dtype).unwrap_or(Format::F32);
        let elements: f64 = shape.iter().map(|n| *n as f64).product();
        (bytes, all) = (bytes + elements * format.width(), all + elements);
        match matrices.iter_mut().find(|(known, _)| *known == format) {
            _ if shape.len() < 2 => {}
            Some((_, count)) => *count += elements,
            None => matrices.push((format, elements)),
        }
    }
    let coarsest = matrices
        .into_iter()
        .max_by(|(a, of_a), (b, of_b)| a.unit().cmp(&b.unit()).then(of_a.total_cmp(of_b)));
    (coarsest.map_or(Format::F32, |(format, _)| format), if all > 0.0 { bytes / all } else { 0.0 })
}

fn stored(tensors: &[TensorInfo]) -> impl Iterator<Item = (Dtype, Vec<usize>)> {
    tensors.iter().map(|tensor| (tensor.dtype, tensor.shape.clone()))
}

#[cfg(test)]
mod tests {
    use nsbridge_checkpoint::Dtype;
    use nsbridge_kernels::Format;

    use super::{format_of, format_of_tensor};

    #[test]
    fn a_format_has_the_name_and_the_blocks_of_its_dtype() {
        let dtypes = [
            Dtype::F32,
            Dtype::BF16,
            Dtype::F16,
            Dtype::Q8_0,
            Dtype::Q8_1,
            Dtype::Q4_0,
            Dtype::Q4_1,
            Dtype::Q5_0,
            Dtype::Q5_1,
            Dtype::IQ4_NL,
            Dtype::MXFP4,
            Dtype::Q2_K,
            Dtype::Q3_K,
            Dtype::Q4_K,
            Dtype::Q5_K,
            Dtype::Q6_K,
            Dtype::IQ4_XS,
        ];
        assert_eq!(dtypes.map(|dtype| format_of(dtype).unwrap()), Format::ALL);
        for (dtype, format) in dtypes.into_iter().zip(Format::ALL) {
            assert_eq!(format.to_string(), dtype.to_string());
            assert_eq!(format.block_in_file(), dtype.block());
        }
    }

    #[test]
    fn a_tensor_that_the_kernels_cannot_read_is_named() {
        for dtype in [
            Dtype::I64,
            Dtype::Q8_K,
            Dtype::IQ1_S,
            Dtype::IQ1_M,
            Dtype::IQ2_XXS,
            Dtype::IQ2_XS,
            Dtype::IQ2_S,
            Dtype::IQ3_XXS,
            Dtype::IQ3_S,
            Dtype::TQ1_0,
            Dtype::TQ2_0,
        ] {
            let why = format_of_tensor("w", dtype).unwrap_err().to_string();
            assert!(
                why.contains(&format!("the dtype of w is {dtype}, and only one of F32")),
                "{why}"
            );
        }
    }
}
