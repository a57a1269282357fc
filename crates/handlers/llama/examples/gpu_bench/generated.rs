//! Models whose weights are generated when they are read, so that a model of any size needs no disk.

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use nsbridge_checkpoint::Dtype;
use nsbridge_handler::source::{Extent, FileEntry, Source, Stream, check_range};
use nsbridge_handler::{Buffer, Error, Model, Result};
use nsbridge_llama::testing::gguf_name;
use nsbridge_llama::{Config, tensors};
use serde_json::{Map, Value, json};

/// Bytes of the pattern that the tensors of a type repeat, rounded up to whole blocks.
const PATTERN: usize = 8 << 20;

/// Alignment of tensors in GGUF files.
const ALIGNED: usize = 32;

/// `config.json` and a file of weights.
#[derive(Debug)]
struct Generated {
    files: [FileEntry; 2],
    bytes: Arc<Bytes>,
}

#[derive(Debug)]
struct Bytes {
    config: Vec<u8>,
    /// Head of the file of weights.
    head: Vec<u8>,
    /// Tensors in ascending order of their range in the file.
    tensors: Vec<(Range<u64>, Dtype)>,
    patterns: HashMap<Dtype, Vec<u8>>,
}

/// Shape of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) hidden: usize,
    pub(crate) wide: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) vocabulary: usize,
}

impl Shape {
    /// Returns the shape of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let (vocabulary, kv_heads) = (128_256, 8);
        Some(match name {
            "tiny" => {
                Self { hidden: 256, wide: 512, layers: 2, heads: 4, kv_heads: 2, vocabulary: 512 }
            }
            "llama-8b" => {
                Self { hidden: 4096, wide: 14336, layers: 32, heads: 32, kv_heads, vocabulary }
            }
            "llama-70b" => {
                Self { hidden: 8192, wide: 28672, layers: 80, heads: 64, kv_heads, vocabulary }
            }
            _ => return None,
        })
    }

    fn config(self) -> Value {
        json!({
            "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
            "hidden_size": self.hidden, "intermediate_size": self.wide,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "vocab_size": self.vocabulary,
            "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "max_position_embeddings": 16384,
            "tie_word_embeddings": false
        })
    }
}

/// Returns a model with matrices of this type: floats in safetensors, blocks in GGUF. The matrices of
/// tokens are bf16 where the others are eight-bit floats.
pub(crate) fn model(shape: Shape, dtype: Dtype) -> Result<Model> {
    let config = shape.config().to_string().into_bytes();
    // The list of tensors is that of the engine, which reads the configuration from a model.
    let none = Bytes::new(config.clone(), Vec::new(), Vec::new());
    let read = Config::read(&Generated::model("none", none)).map_err(Error::fatal)?;
    let (path, head, tensors) = match dtype {
        Dtype::BF16 | Dtype::F8_E4M3 => safetensors(&read, dtype)?,
        _ => gguf(&read, dtype)?,
    };
    Ok(Generated::model(path, Bytes::new(config, head, tensors)))
}

type File = (&'static str, Vec<u8>, Vec<(Range<u64>, Dtype)>);

fn safetensors(config: &Config, dtype: Dtype) -> Result<File> {
    let (mut header, mut placed, mut end) = (Map::new(), Vec::new(), 0);
    let mut place = |name: String, shape: Vec<usize>, dtype: Dtype| {
        let start = end;
        end += (dtype.block().1 * shape.iter().product::<usize>()) as u64;
        let place = json!([start, end]);
        let name_of_dtype = dtype.to_string();
        header
            .insert(name, json!({ "dtype": name_of_dtype, "shape": shape, "data_offsets": place }));
        placed.push((start..end, dtype));
    };
    for (name, shape) in tensors(config) {
        if dtype == Dtype::BF16 || !name.ends_with("_proj.weight") {
            place(name, shape, Dtype::BF16);
        } else {
            place(format!("{name}_scale"), Vec::new(), Dtype::F32);
            place(name, shape, dtype);
        }
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let head = [&(header.len() as u64).to_le_bytes(), &header[..]].concat();
    let tensors = after(&head, placed);
    Ok(("model.safetensors", head, tensors))
}

fn gguf(config: &Config, dtype: Dtype) -> Result<File> {
    let text = |out: &mut Vec<u8>, text: &str| {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    };
    let all: Vec<_> = tensors(config).collect();
    let mut head = b"GGUF".to_vec();
    head.extend(3u32.to_le_bytes());
    head.extend((all.len() as u64).to_le_bytes());
    head.extend(1u64.to_le_bytes());
    text(&mut head, "general.architecture");
    head.extend(8u32.to_le_bytes());
    text(&mut head, "llama");
    let (mut placed, mut end) = (Vec::new(), 0);
    for (name, shape) in all {
        let own = if shape.len() > 1 { dtype } else { Dtype::F32 };
        let bytes = own.bytes_of(shape.iter().product::<usize>() as u64);
        let number = own.ggml_type().zip(gguf_name(&name)).zip(bytes);
        let ((number, name), bytes) = number
            .ok_or_else(|| Error::bad_input(format!("{name} has no place in a file of {own}")))?;
        text(&mut head, &name);
        head.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|size| head.extend((*size as u64).to_le_bytes()));
        head.extend(number.to_le_bytes());
        head.extend(u64::to_le_bytes(end));
        placed.push((end..end + bytes, own));
        end = (end + bytes).next_multiple_of(ALIGNED as u64);
    }
    head.resize(head.len().next_multiple_of(ALIGNED), 0);
    let tensors = after(&head, placed);
    Ok(("model.gguf", head, tensors))
}

/// Moves the ranges of tensors behind the head of their file.
fn after(head: &[u8], tensors: Vec<(Range<u64>, Dtype)>) -> Vec<(Range<u64>, Dtype)> {
    let first = head.len() as u64;
    let moved =
        |(range, dtype): (Range<u64>, Dtype)| (first + range.start..first + range.end, dtype);
    tensors.into_iter().map(moved).collect()
}

impl Bytes {
    fn new(config: Vec<u8>, head: Vec<u8>, tensors: Vec<(Range<u64>, Dtype)>) -> Self {
        let patterns = tensors.iter().map(|(_, dtype)| (*dtype, Vec::new()));
        let mut patterns: HashMap<_, _> = patterns.collect();
        patterns.iter_mut().for_each(|(dtype, bytes)| *bytes = pattern(*dtype));
        Self { config, head, tensors, patterns }
    }

    fn size(&self) -> u64 {
        self.tensors.last().map_or(self.head.len() as u64, |(range, _)| range.end)
    }

    /// Writes the bytes of a file from `at` on.
    fn fill(&self, file: usize, at: u64, out: &mut [u8]) {
        if file == 0 {
            out.copy_from_slice(&self.config[at as usize..][..out.len()]);
            return;
        }
        let end = at + out.len() as u64;
        if let Some(head) = self.head.get(at as usize..) {
            let len = head.len().min(out.len());
            out[..len].copy_from_slice(&head[..len]);
        }
        let first = self.tensors.partition_point(|(range, _)| range.end <= at);
        let wanted = self.tensors[first..].iter().take_while(|(range, _)| range.start < end);
        for (range, dtype) in wanted {
            let pattern = &self.patterns[dtype];
            let (from, to) = (range.start.max(at), range.end.min(end));
            let mut within = (from - range.start) as usize % pattern.len();
            let mut rest = &mut out[(from - at) as usize..(to - at) as usize];
            while !rest.is_empty() {
                let (now, later) = rest.split_at_mut(rest.len().min(pattern.len() - within));
                now.copy_from_slice(&pattern[within..][..now.len()]);
                (rest, within) = (later, 0);
            }
        }
    }
}

/// Returns blocks of a type with random bits, but with scales that keep the weights small.
fn pattern(dtype: Dtype) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = || {
        // xorshift (Marsaglia 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let (_, block) = dtype.block();
    let mut bytes = vec![0; PATTERN.next_multiple_of(8 * block)];
    bytes.as_chunks_mut::<8>().0.iter_mut().for_each(|bytes| *bytes = random());
    // Offsets of the two bytes that have the exponent, the upper byte's bits that stay random, and
    // the upper byte's other bits.
    let (exponents, random, fixed): (&[usize], u8, u8) = match dtype {
        // Magnitudes from 2^-7 to 2^-5.
        Dtype::BF16 => (&[1], 0x80, 0x3C),
        // Magnitudes from 2^-6 to 2^-5.
        Dtype::F8_E4M3 => (&[0], 0x87, 0x08),
        // From 1 to 2: a norm's weights.
        Dtype::F32 => (&[3], 0, 0x3F),
        // Scales in f16, of 2^-12 for eight bits, 2^-14 for others.
        Dtype::Q8_0 => (&[1], 0, 0x0C),
        Dtype::Q6_K => (&[209], 0, 0x04),
        Dtype::Q4_K => (&[1, 3], 0, 0x04),
        _ => (&[], 0, 0),
    };
    for block in bytes.chunks_exact_mut(block) {
        for at in exponents {
            block[*at] = block[*at] & random | fixed;
        }
        match dtype {
            Dtype::F32 => block[2] |= 0x80,
            // Numbers from -127 on: llama.cpp writes no -128, and the engine refuses it.
            Dtype::Q8_0 => {
                block[2..].iter_mut().filter(|own| **own == 0x80).for_each(|own| *own += 1);
            }
            _ => {}
        }
    }
    bytes
}

impl Generated {
    fn model(path: &str, bytes: Bytes) -> Model {
        let config = FileEntry::new("config.json", bytes.config.len() as u64);
        let files = [config, FileEntry::new(path, bytes.size())];
        Model::from_source(Arc::new(Self { files, bytes: Arc::new(bytes) }))
    }
}

impl Source for Generated {
    fn place(&self) -> String {
        "memory".to_owned()
    }

    fn revision(&self) -> Option<&str> {
        None
    }

    fn files(&self) -> &[FileEntry] {
        &self.files
    }

    fn digest(&self, _: usize) -> Result<[u8; 32]> {
        Err(Error::fatal("generated weights have no digest"))
    }

    fn read(&self, wanted: &[(usize, Range<u64>)]) -> Result<Vec<Vec<u8>>> {
        let read = |(file, range): &(usize, Range<u64>)| {
            check_range(&self.files[*file], range)?;
            let mut bytes = vec![0; (range.end - range.start) as usize];
            self.bytes.fill(*file, range.start, &mut bytes);
            Ok(bytes)
        };
        wanted.iter().map(read).collect()
    }

    fn stream(&self, extents: Vec<Extent>) -> Result<Box<dyn Stream>> {
        for extent in &extents {
            check_range(&self.files[extent.file], &extent.range)?;
        }
        Ok(Box::new(Reads { bytes: self.bytes.clone(), extents }))
    }

    fn dir(&self) -> Result<PathBuf> {
        Err(Error::fatal("generated weights are in no folder"))
    }
}

#[derive(Debug)]
struct Reads {
    bytes: Arc<Bytes>,
    extents: Vec<Extent>,
}

impl Stream for Reads {
    fn take(&self, extent: usize) -> Result<Buffer> {
        let Extent { file, range, align, .. } = &self.extents[extent];
        let len = (range.end - range.start) as usize;
        let (filling, segments) = Buffer::filled_by(len, *align, &[])?;
        for mut segment in segments {
            segment.populate(0..len);
            self.bytes.fill(*file, range.start, &mut segment);
        }
        filling.finish().map_err(|_| Error::fatal("a part of the model is still being read"))
    }
}
