//! Formats that the tensors of a checkpoint have in memory.

use nsbridge_checkpoint::{Dtype, TensorInfo};
use nsbridge_kernels::Format;
use nsbridge_kernels::matrix::Source;

use crate::LoadError;

/// Returns the format of weights of this dtype, in the file and by default in memory; `None` if the
/// kernels have none.
pub(crate) fn format_of(dtype: Dtype) -> Option<Format> {
    Some(match dtype {
        Dtype::F32 => Format::F32,
        Dtype::BF16 => Format::Bf16,
        Dtype::F16 => Format::F16,
        Dtype::Q8_0 => Format::Q8_0,
        Dtype::Q4_K => Format::Q4K,
        Dtype::Q5_K => Format::Q5K,
        Dtype::Q6_K => Format::Q6K,
        _ => return None,
    })
}

/// Returns the format of a tensor of this dtype.
///
/// # Errors
///
/// Returns an error that names the tensor if the kernels have no format for it.
pub(crate) fn format_of_tensor(name: &str, dtype: Dtype) -> Result<Format, LoadError> {
    format_of(dtype).ok_or_else(|| {
        let supported = "one of F32, BF16, F16, Q8_0, Q4_K, Q5_K and Q6_K";
        LoadError::unsupported(format!("the dtype of {name}"), dtype.to_string(), supported)
    })
}

/// Returns a tensor's bytes as rows that the kernels read.
pub(crate) fn source<'a>(
    name: &'a str,
    dtype: Dtype,
    bytes: &'a [u8],
) -> Result<Source<'a>, LoadError> {
    Ok(Source { name, format: format_of_tensor(name, dtype)?, bytes })
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

    use super::source;

    #[test]
    fn a_format_has_the_name_and_the_blocks_of_its_dtype() {
        let dtypes = [
            Dtype::F32,
            Dtype::BF16,
            Dtype::F16,
            Dtype::Q8_0,
            Dtype::Q4_K,
            Dtype::Q5_K,
            Dtype::Q6_K,
        ];
        for dtype in dtypes {
            let format = source("w", dtype, &[]).unwrap().format;
            assert_eq!(format.to_string(), dtype.to_string());
            assert_eq!(format.block_in_file(), dtype.block());
        }
    }

    #[test]
    fn a_tensor_that_the_kernels_cannot_read_is_named() {
        let why = source("w", Dtype::I64, &[]).unwrap_err().to_string();
        assert!(why.contains("the dtype of w is I64"), "{why}");
    }
}
