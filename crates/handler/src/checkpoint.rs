//! Directory of a model's tensors: name, type, shape and location of each.

mod dtype;
mod gguf;
mod order;
mod safetensors;
mod split;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::Deserialize;

pub use dtype::Dtype;
pub use gguf::{GgufValue, Metadata};
pub use order::Order;

use crate::{Error, Model, Result, Weights, quote};

/// Maximum length of a header in bytes. A longer header is refused unread.
const LONGEST_HEADER: u64 = 100 << 20;

/// Number of bytes of a file to read before the length of its header is known.
const FIRST_LOOK: u64 = 256 << 10;

const INDEX: &str = "model.safetensors.index.json";

/// Directory of a model's tensors, without their bytes.
///
/// Read from `model.safetensors.index.json` and the shards it names, from all `.safetensors` files
/// in the top folder, or from a `.gguf` file. Headers are checked against the file sizes: extents
/// lie within their file, have the length that dtype and shape imply, and do not overlap.
#[derive(Clone)]
pub struct Checkpoint(Arc<Inner>);

struct Inner {
    model: Model,
    tensors: Vec<TensorInfo>,
    names: HashMap<String, usize>,
    metadata: Metadata,
}

/// Type, shape and location of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name.
    pub name: String,
    /// Type of the elements.
    pub dtype: Dtype,
    /// Dimensions, slowest first.
    pub shape: Vec<usize>,
    pub(crate) file: usize,
    pub(crate) range: Range<u64>,
}

impl TensorInfo {
    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().map(|&n| n as u64).product()
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: HashMap<String, String>,
}

impl Checkpoint {
    pub(crate) fn open(model: Model) -> Result<Self> {
        let (tensors, metadata) = match model.find(INDEX)? {
            Some(index) => (sharded(&model, &index)?, Metadata::default()),
            None => match (with_suffix(&model, ".safetensors"), with_suffix(&model, ".gguf")) {
                (shards, _) if !shards.is_empty() => {
                    (safetensors::read(&model, &shards)?, Metadata::default())
                }
                (_, files) => gguf_alone(&model, &files)?,
            },
        };
        Self::new(model, tensors, metadata)
    }

    fn new(model: Model, mut tensors: Vec<TensorInfo>, metadata: Metadata) -> Result<Self> {
        tensors.sort_by(|a, b| order::as_built(&a.name, &b.name));
        let mut names = HashMap::with_capacity(tensors.len());
        for (index, tensor) in tensors.iter().enumerate() {
            if let Some(other) = names.insert(tensor.name.clone(), index) {
                return Err(twice(&model, tensor, &tensors[other]));
            }
        }
        Ok(Self(Arc::new(Inner { model, tensors, names, metadata })))
    }

    /// Returns the tensors in order of name, with numbers compared by value: layer 2 before layer
    /// 10.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.0.tensors
    }

    /// Returns the tensor with this name.
    pub fn find(&self, name: &str) -> Option<&TensorInfo> {
        self.index(name).map(|index| &self.0.tensors[index])
    }

    /// Returns the metadata of a GGUF file; empty for safetensors.
    pub fn metadata(&self) -> &Metadata {
        &self.0.metadata
    }

    /// Returns the model from which the directory was read.
    pub fn model(&self) -> &Model {
        &self.0.model
    }

    /// Returns the files that hold the tensors, in ascending order of path.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        let files: BTreeSet<usize> = self.0.tensors.iter().map(|tensor| tensor.file).collect();
        files.into_iter().map(|file| self.0.model.source().files()[file].path.as_str())
    }

    /// Starts to load the tensors' bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if the order names a tensor that the model lacks.
    pub fn load(&self, order: &Order) -> Result<Weights> {
        Weights::start(self.clone(), order)
    }

    pub(crate) fn index(&self, name: &str) -> Option<usize> {
        self.0.names.get(name).copied()
    }

    pub(crate) fn has_no(&self, name: &str) -> Error {
        Error::fatal(format!("the model in {} has no tensor {name}", self.0.model.place()))
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Checkpoint({}, {} tensors)", self.0.model.place(), self.0.tensors.len())
    }
}

/// Returns the tensors that the index names, each in the shard that it names.
fn sharded(model: &Model, index: &[u8]) -> Result<Vec<TensorInfo>> {
    let place = model.place();
    let index: Index = serde_json::from_slice(index)
        .map_err(|error| format!("{INDEX} in {place} is not an index: {}", quote(error)))
        .map_err(Error::fatal)?;
    let mut shards: Vec<&str> = index.weight_map.values().map(String::as_str).collect();
    shards.sort_unstable();
    shards.dedup();
    let shard = |path: &&str| {
        model.index(path).ok_or_else(|| {
            let path = quote(path);
            Error::fatal(format!("{INDEX} in {place} names {path}, which is not there"))
        })
    };
    let files: Vec<usize> = shards.iter().map(shard).collect::<Result<_>>()?;
    let mut tensors = safetensors::read(model, &files)?;
    let paths = model.source().files();
    tensors.retain(|tensor| index.weight_map.get(&tensor.name) == Some(&paths[tensor.file].path));
    let there: HashSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    let missing = index.weight_map.iter().filter(|(name, _)| !there.contains(name.as_str())).min();
    match missing {
        None => Ok(tensors),
        Some((name, path)) => {
            let name = quote(name);
            Err(Error::fatal(format!("{path} in {place} lacks {name}, which {INDEX} names")))
        }
    }
}

/// Returns the files in the model's top folder with this suffix.
fn with_suffix(model: &Model, suffix: &str) -> Vec<usize> {
    let files = model.source().files().iter().enumerate();
    let files = files.filter(|(_, file)| file.path.ends_with(suffix) && !file.path.contains('/'));
    files.map(|(index, _)| index).collect()
}

/// Reads the tensors and the metadata of a GGUF model, which must be a single file.
fn gguf_alone(model: &Model, files: &[usize]) -> Result<(Vec<TensorInfo>, Metadata)> {
    split::refuse_named(model, files)?;
    let &[file] = files else { return Err(no_weights(model, files.len())) };
    let (tensors, metadata) = gguf::read(model, file)?;
    split::refuse_told(model, file, &metadata)?;
    Ok((tensors, metadata))
}

fn no_weights(model: &Model, ggufs: usize) -> Error {
    let place = model.place();
    Error::fatal(match ggufs {
        0 => format!("the model in {place} has no weights: no .safetensors and no .gguf file"),
        n => format!("the model in {place} has {n} .gguf files, and nothing says which to take"),
    })
}

fn twice(model: &Model, tensor: &TensorInfo, other: &TensorInfo) -> Error {
    let path = |tensor: &TensorInfo| &model.source().files()[tensor.file].path;
    let (a, b, name, place) = (path(other), path(tensor), quote(&tensor.name), model.place());
    Error::fatal(match a == b {
        true => format!("{a} in {place} has two tensors {name}"),
        false => format!("{a} and {b} in {place} both have a tensor {name}"),
    })
}

/// Returns the error for an invalid header.
fn broken(model: &Model, file: usize, what: impl fmt::Display) -> Error {
    let path = &model.source().files()[file].path;
    Error::fatal(format!("{path} in {} cannot be used: {}", model.place(), quote(what)))
}

#[cfg(test)]
mod tests;
