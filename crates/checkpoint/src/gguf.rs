//! Parser for the head of a GGUF file: metadata and tensor directory.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, versions 2 and 3.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use nsbridge_handler::{Model, Result};

use crate::dtype::Dtype;
use crate::header::{FIRST_LOOK, LONGEST_HEADER, broken, other_content};
use crate::tensor::TensorInfo;

/// Maximum number of dimensions of a tensor in ggml.
const MOST_DIMENSIONS: u32 = 4;

const DEFAULT_ALIGNMENT: u64 = 32;

/// Maximum nesting depth of arrays.
const DEEPEST: usize = 4;

/// Maximum number of metadata values. A vocabulary has some hundred thousand tokens, and a value
/// takes more space in memory than in the file.
const MOST_VALUES: u32 = 4 << 20;

/// Metadata of a GGUF file, by name.
pub type Metadata = BTreeMap<String, GgufValue>;

/// Value in GGUF metadata.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum GgufValue {
    /// Unsigned integer of any width.
    Unsigned(u64),
    /// Signed integer of any width.
    Signed(i64),
    /// Floating-point number of any width.
    Float(f64),
    /// Boolean.
    Bool(bool),
    /// String.
    Text(String),
    /// String that is not UTF-8.
    Bytes(Vec<u8>),
    /// Array of values of one type.
    Array(Vec<Self>),
}

/// Reason why a head cannot be parsed.
enum Trouble {
    /// The head continues beyond these bytes.
    Short,
    /// The head is invalid, for this reason.
    Wrong(String),
}

impl From<String> for Trouble {
    fn from(what: String) -> Self {
        Self::Wrong(what)
    }
}

impl From<&str> for Trouble {
    fn from(what: &str) -> Self {
        Self::Wrong(what.to_owned())
    }
}

/// Reads the tensors and the metadata of a file.
pub(crate) fn read(model: &Model, file: usize) -> Result<(Vec<TensorInfo>, Metadata)> {
    let size = model.source().files()[file].size;
    let mut head = Vec::new();
    let mut look = FIRST_LOOK;
    // The vocabulary can make the head several megabytes long, and no field tells the length in
    // advance.
    let most = size.min(LONGEST_HEADER);
    while (head.len() as u64) < most {
        let more = model.source().read(&[(file, head.len() as u64..look.min(most))])?;
        head.extend(more.into_iter().flatten());
        match parse(&head, file, size) {
            Ok(parsed) => return Ok(parsed),
            Err(Trouble::Short) => look *= 4,
            Err(Trouble::Wrong(what)) => return Err(broken(model, file, what)),
        }
    }
    Err(broken(model, file, "its head has no end: fetch the file again if its download was cut"))
}

fn parse(head: &[u8], file: usize, size: u64) -> Result<(Vec<TensorInfo>, Metadata), Trouble> {
    let mut cursor = Cursor { rest: head, values: MOST_VALUES };
    if cursor.take(4)? != b"GGUF" {
        return Err(other_content(head).unwrap_or("it does not begin with GGUF").into());
    }
    let version = cursor.u32()?;
    if matches!(version.swap_bytes(), 2 | 3) {
        return Err("it is big-endian: convert it with llama.cpp's gguf_convert_endian.py".into());
    }
    if !matches!(version, 2 | 3) {
        return Err(format!("GGUF version {version} is not known").into());
    }
    let (tensors, values) = (cursor.u64()?, cursor.u64()?);
    let mut metadata = Metadata::new();
    for _ in 0..values {
        let name = cursor.text()?;
        let kind = cursor.u32()?;
        let value = cursor.value(kind, DEEPEST)?;
        match metadata.entry(name) {
            Entry::Vacant(place) => place.insert(value),
            Entry::Occupied(first) => return Err(format!("it says {} twice", first.key()).into()),
        };
    }
    let alignment = match metadata.get("general.alignment") {
        None => DEFAULT_ALIGNMENT,
        Some(GgufValue::Unsigned(n)) if n.is_power_of_two() && *n <= 1 << 20 => *n,
        Some(_) => return Err("general.alignment is no power of two".into()),
    };
    let mut claimed = Vec::new();
    for _ in 0..tensors {
        claimed.push(cursor.tensor()?);
    }
    let data = ((head.len() - cursor.rest.len()) as u64).next_multiple_of(alignment);
    let mut tensors = claimed
        .into_iter()
        .map(|claim| claim.place(file, data, size, alignment))
        .collect::<Result<Vec<_>, _>>()?;
    tensors.sort_by_key(|tensor| (tensor.range.start, tensor.range.end));
    let overlap = tensors.windows(2).find(|pair| pair[0].range.end > pair[1].range.start);
    if let Some([a, b]) = overlap {
        return Err(format!("{} and {} overlap", a.name, b.name).into());
    }
    Ok((tensors, metadata))
}

/// Entry of the tensor directory, before it is checked.
struct Claim {
    name: String,
    shape: Vec<usize>,
    dtype: Dtype,
    offset: u64,
}

impl Claim {
    fn place(
        self,
        file: usize,
        data: u64,
        size: u64,
        alignment: u64,
    ) -> Result<TensorInfo, Trouble> {
        let Self { name, shape, dtype, offset } = self;
        let bytes = dtype
            .bytes_of_shape(&shape)
            .ok_or_else(|| format!("{name} has the shape {shape:?}, which {dtype} cannot have"))?;
        if !offset.is_multiple_of(alignment) {
            return Err(format!("{name} is not aligned").into());
        }
        let start = data.checked_add(offset);
        let end = start.and_then(|start| start.checked_add(bytes)).filter(|&end| end <= size);
        let (Some(start), Some(end)) = (start, end) else {
            let what = format!(
                "{name} ends behind the file's {size} bytes: fetch the file again if its download was cut"
            );
            return Err(what.into());
        };
        Ok(TensorInfo { name, dtype, shape, file, range: start..end })
    }
}

struct Cursor<'a> {
    rest: &'a [u8],
    /// Number of values that may still be read.
    values: u32,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Trouble> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Trouble::Short)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Trouble> {
        self.take(N)?.try_into().map_err(|_| Trouble::Short)
    }

    fn u32(&mut self) -> Result<u32, Trouble> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Trouble> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads a name.
    fn text(&mut self) -> Result<String, Trouble> {
        Ok(String::from_utf8_lossy(self.bytes()?).into_owned())
    }

    fn bytes(&mut self) -> Result<&'a [u8], Trouble> {
        let len = self.u64()?;
        if len > LONGEST_HEADER {
            return Err(format!("a text of {len} bytes").into());
        }
        self.take(usize::try_from(len).map_err(|_| "a text of too many bytes")?)
    }

    /// Reads a string value. A tokenizer must know that a token is not UTF-8.
    fn string(&mut self) -> Result<GgufValue, Trouble> {
        let text = String::from_utf8(self.bytes()?.to_vec());
        Ok(text.map_or_else(|error| GgufValue::Bytes(error.into_bytes()), GgufValue::Text))
    }

    fn value(&mut self, kind: u32, depth: usize) -> Result<GgufValue, Trouble> {
        self.values = self.values.checked_sub(1).ok_or("it has too many values")?;
        Ok(match kind {
            0 => GgufValue::Unsigned(u8::from_le_bytes(self.array()?).into()),
            1 => GgufValue::Signed(i8::from_le_bytes(self.array()?).into()),
            2 => GgufValue::Unsigned(u16::from_le_bytes(self.array()?).into()),
            3 => GgufValue::Signed(i16::from_le_bytes(self.array()?).into()),
            4 => GgufValue::Unsigned(self.u32()?.into()),
            5 => GgufValue::Signed(i32::from_le_bytes(self.array()?).into()),
            6 => GgufValue::Float(f32::from_le_bytes(self.array()?).into()),
            7 => GgufValue::Bool(self.array::<1>()? != [0]),
            8 => self.string()?,
            9 => self.values(depth)?,
            10 => GgufValue::Unsigned(self.u64()?),
            11 => GgufValue::Signed(i64::from_le_bytes(self.array()?)),
            12 => GgufValue::Float(f64::from_le_bytes(self.array()?)),
            other => return Err(format!("a value of the unknown type {other}").into()),
        })
    }

    fn values(&mut self, depth: usize) -> Result<GgufValue, Trouble> {
        let depth = depth.checked_sub(1).ok_or("arrays within arrays without end")?;
        let (kind, count) = (self.u32()?, self.u64()?);
        // Each value takes at least one byte, so a count that is too large reaches the end of the
        // head.
        let mut values = Vec::new();
        for _ in 0..count {
            values.push(self.value(kind, depth)?);
        }
        Ok(GgufValue::Array(values))
    }

    fn tensor(&mut self) -> Result<Claim, Trouble> {
        let name = self.text()?;
        let dimensions = self.u32()?;
        if dimensions > MOST_DIMENSIONS {
            return Err(format!("{name} claims {dimensions} dimensions").into());
        }
        // GGUF stores the fastest dimension first.
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            let n = self.u64()?;
            shape.insert(0, usize::try_from(n).map_err(|_| format!("{name} claims {n} rows"))?);
        }
        let number = self.u32()?;
        let dtype = Dtype::from_ggml(number)
            .ok_or_else(|| format!("{name} has ggml's type {number}, which is not known"))?;
        Ok(Claim { name, shape, dtype, offset: self.u64()? })
    }
}

#[cfg(test)]
mod tests;
