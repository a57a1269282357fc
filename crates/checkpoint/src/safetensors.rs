//! Parser for the headers of safetensors files.
//!
//! Format: <https://github.com/huggingface/safetensors#format>. The library's own header parser
//! keeps tensors in a map, so the second tensor of a name would replace the first without an error.

use std::collections::HashMap;
use std::fmt;

use nsbridge_handler::{Model, Result};
use safetensors::tensor::TensorInfo as Entry;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use crate::dtype::Dtype;
use crate::header::{FIRST_LOOK, LONGEST_HEADER, broken, other_content};
use crate::tensor::TensorInfo;

const LENGTH_BYTES: u64 = 8;

/// Key of the metadata, the only entry of the header that is not a tensor.
const METADATA: &str = "__metadata__";

/// Reads the tensors of these files.
pub(crate) fn read(model: &Model, files: &[usize]) -> Result<Vec<TensorInfo>> {
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

/// Returns the whole header. Reads the rest if the header is longer than the first read.
fn whole_header(model: &Model, file: usize, head: Vec<u8>) -> Result<Vec<u8>> {
    let size = model.source().files()[file].size;
    let end = header_end(&head, size).map_err(|what| broken(model, file, what))?;
    if end <= head.len() as u64 {
        return Ok(head);
    }
    let mut rest = model.source().read(&[(file, head.len() as u64..end)])?;
    Ok([head, rest.pop().unwrap_or_default()].concat())
}

/// Returns the end of the header as a file offset, from the length field at the start of the file.
fn header_end(head: &[u8], size: u64) -> Result<u64, String> {
    if let Some(what) = other_content(head) {
        return Err(what.to_owned());
    }
    let length = head.first_chunk().ok_or("it is too short for a safetensors file")?;
    let length = u64::from_le_bytes(*length);
    if length > LONGEST_HEADER {
        return Err(format!("its header claims {length} bytes, the most is {LONGEST_HEADER}"));
    }
    let end = LENGTH_BYTES + length;
    if end > size {
        return Err(format!(
            "its header claims {length} bytes, the file has {size}: fetch the file again if its \
                            download was cut"
        ));
    }
    Ok(end)
}

/// Parses the tensors from the beginning of a file of this size.
///
/// # Errors
///
/// Returns a description of what is wrong with the header; the caller adds the file name.
fn parse(head: &[u8], file: usize, size: u64) -> Result<Vec<TensorInfo>, String> {
    let end = header_end(head, size)?;
    let json = head.get(LENGTH_BYTES as usize..end as usize).ok_or("its header is cut short")?;
    let Header(mut entries) =
        serde_json::from_slice(json).map_err(|error| format!("its header is wrong: {error}"))?;
    entries.sort_by_key(|(_, entry)| entry.data_offsets);
    // Each tensor must begin where the one before ends.
    let mut at = 0;
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, Entry { dtype, shape, data_offsets: (start, stop) }) in entries {
        let dtype = Dtype::from_safetensors(dtype)
            .ok_or_else(|| format!("{name} has the dtype {dtype:?}, which is not known"))?;
        let (start, stop) = (start as u64, stop as u64);
        if start != at {
            return Err(format!("{name} begins at byte {start} of the data, not at {at}"));
        }
        let Some(bytes) = stop.checked_sub(start) else {
            return Err(format!("{name} ends before it begins"));
        };
        if stop > size - end {
            return Err(format!("{name} ends at byte {stop} of the data's {}", size - end));
        }
        if dtype.bytes_of_shape(&shape) != Some(bytes) {
            return Err(format!("{name} has not as many bytes as its dtype and shape say"));
        }
        tensors.push(TensorInfo { name, dtype, shape, file, range: end + start..end + stop });
        at = stop;
    }
    if at != size - end {
        return Err("it has bytes that belong to no tensor".to_owned());
    }
    Ok(tensors)
}

/// Tensors in the order of the header.
struct Header(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Entries)
    }
}

struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with tensors by their names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA {
                let _: HashMap<String, String> = map.next_value()?;
            } else {
                entries.push((name, map.next_value()?));
            }
        }
        Ok(Header(entries))
    }
}
