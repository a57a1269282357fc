//! The headers of safetensors files.
//!
//! The format: <https://github.com/huggingface/safetensors#format>. The library's own reader of
//! headers checks that tensors neither overlap nor leave holes; sizes of files are checked here.

use safetensors::tensor::Metadata;

use super::{Dtype, FIRST_LOOK, LONGEST_HEADER, TensorInfo, broken};
use crate::{Model, Result};

const LENGTH: u64 = 8;

/// The tensors of these files.
pub(super) fn read(model: &Model, files: &[usize]) -> Result<Vec<TensorInfo>> {
    let size = |file: usize| model.source().files()[file].size;
    let looks: Vec<_> = files.iter().map(|&file| (file, 0..FIRST_LOOK.min(size(file)))).collect();
    let heads = model.source().read(&looks)?;
    let mut tensors = Vec::new();
    for (&file, head) in files.iter().zip(heads) {
        let header = whole_header(model, file, head)?;
        tensors.extend(parse(&header, file, size(file)).map_err(|what| broken(model, file, what))?);
    }
    Ok(tensors)
}

/// Reads on if the header is longer than the first look.
fn whole_header(model: &Model, file: usize, head: Vec<u8>) -> Result<Vec<u8>> {
    let size = model.source().files()[file].size;
    let end = header_end(&head, size).map_err(|what| broken(model, file, what))?;
    if end <= head.len() as u64 {
        return Ok(head);
    }
    let mut rest = model.source().read(&[(file, head.len() as u64..end)])?;
    Ok([head, rest.pop().unwrap_or_default()].concat())
}

/// Where the header ends, by the length that the file begins with.
fn header_end(head: &[u8], size: u64) -> Result<u64, String> {
    let length = head.first_chunk().ok_or("it is too short for a safetensors file")?;
    let length = u64::from_le_bytes(*length);
    if length > LONGEST_HEADER {
        return Err(format!("its header claims {length} bytes, the most is {LONGEST_HEADER}"));
    }
    let end = LENGTH + length;
    if end > size {
        return Err(format!("its header claims {length} bytes, the file has {size}"));
    }
    Ok(end)
}

/// The tensors that the beginning of a file of this size tells of.
///
/// # Errors
///
/// What is wrong with the header, for a sentence that names the file.
pub(super) fn parse(head: &[u8], file: usize, size: u64) -> Result<Vec<TensorInfo>, String> {
    let end = header_end(head, size)?;
    let json = head.get(LENGTH as usize..end as usize).ok_or("its header is cut short")?;
    let header: Metadata =
        serde_json::from_slice(json).map_err(|error| format!("its header is wrong: {error}"))?;
    let mut tensors = Vec::new();
    for (name, info) in header.tensors() {
        let dtype = Dtype::from_safetensors(info.dtype)
            .ok_or_else(|| format!("{name} has the dtype {:?}, which is not known", info.dtype))?;
        let (start, stop) = info.data_offsets;
        let range = (end + start as u64)..(end.saturating_add(stop as u64));
        if range.end > size {
            return Err(format!("{name} ends at byte {}, the file has {size}", range.end));
        }
        let elements = info.shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d as u64));
        let bytes = elements.and_then(|elements| dtype.bytes_of(elements));
        if bytes != Some(range.end - range.start) {
            return Err(format!("{name} has not as many bytes as its dtype and shape say"));
        }
        tensors.push(TensorInfo { name, dtype, shape: info.shape.clone(), file, range });
    }
    if tensors.iter().map(|tensor| tensor.range.end).max().unwrap_or(end) != size {
        return Err("it has bytes that belong to no tensor".to_owned());
    }
    Ok(tensors)
}
