//! Directory of a model's tensors: name, type, shape and location of each.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use nsbridge_handler::{Error, Model, Result, quote};
use serde::Deserialize;

use crate::gguf::{self, Metadata};
use crate::tensor::TensorInfo;
use crate::{order, safetensors, split};

const INDEX: &str = "model.safetensors.index.json";

/// The file that transformers writes where a model needs no shards.
const WHOLE: &str = "model.safetensors";

/// The tensors of a model, with none of their bytes.
///
/// Read from the first of these that the model has: `model.safetensors.index.json` with the shards
/// that it names, `model.safetensors`, all other `.safetensors` files together, one `.gguf` file
/// or all parts of one split file.
/// [`left_out`](Self::left_out) names the files of weights that are not read. Headers are checked against the sizes of the
/// files: extents lie within them, are as long as dtype and shape say, and do not overlap.
#[derive(Clone)]
pub struct Checkpoint(Arc<Inner>);

struct Inner {
    model: Model,
    tensors: Vec<TensorInfo>,
    names: HashMap<String, usize>,
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Index {
    weight_map: HashMap<String, String>,
}

impl Checkpoint {
    /// Reads the directory of a model's tensors.
    ///
    /// # Errors
    ///
    /// A sentence that names the file, if there is no such file or it is not what it should be.
    pub fn open(model: &Model) -> Result<Self> {
        let (tensors, metadata) = match model.read_optional(INDEX)? {
            Some(index) => (sharded(model, &index)?, Metadata::default()),
            None => match (with_suffix(model, ".safetensors"), with_suffix(model, ".gguf")) {
                (shards, _) if !shards.is_empty() => {
                    let whole = model.index(WHOLE).map(|file| vec![file]);
                    (safetensors::read(model, &whole.unwrap_or(shards))?, Metadata::default())
                }
                (_, files) => gguf_model(model, &files)?,
            },
        };
        let checkpoint = Self::new(model.clone(), tensors, metadata)?;
        let left_out: Vec<&str> = checkpoint.left_out().collect();
        if !left_out.is_empty() {
            let read: Vec<&str> = checkpoint.files().collect();
            let (read, left_out) = (quote(read.join(", ")), quote(left_out.join(", ")));
            tracing::info!(model = model.place(), read, left_out, "other weights are not read");
        }
        Ok(checkpoint)
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

    /// The `.safetensors` and `.gguf` files of the model's top folder that are not read, ascending by
    /// path: the model's index or `model.safetensors` is read instead.
    pub fn left_out(&self) -> impl Iterator<Item = &str> {
        let read: BTreeSet<&str> = self.files().collect();
        let is_of_weights = |path: &&str| {
            let of_weights = path.ends_with(".safetensors") || path.ends_with(".gguf");
            of_weights && !path.contains('/')
        };
        self.0.model.files().filter(is_of_weights).filter(move |path| !read.contains(path))
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

/// Reads the tensors and the metadata of a GGUF model: a single file, or all parts of one split.
fn gguf_model(model: &Model, files: &[usize]) -> Result<(Vec<TensorInfo>, Metadata)> {
    if let Some(parts) = split::parts_of_one(model, files)? {
        return split::read(model, &parts);
    }
    let &[file] = files else { return Err(no_weights(model, files.len())) };
    let (tensors, metadata) = gguf::read(model, file)?;
    split::refuse_lone(model, file, &metadata)?;
    Ok((tensors, metadata))
}

fn no_weights(model: &Model, ggufs: usize) -> Error {
    let place = model.place();
    Error::fatal(match ggufs {
        0 => {
            let other = model.files().find_map(other_weights).unwrap_or_default();
            format!("the model in {place} has no weights: no .safetensors and no .gguf file{other}")
        }
        n => format!("the model in {place} has {n} .gguf files, and nothing says which to take"),
    })
}

/// Returns what a file has instead of weights that are read, and what to do.
fn other_weights(path: &str) -> Option<&'static str> {
    let ends = |suffixes: &[&str]| suffixes.iter().any(|suffix| path.ends_with(suffix));
    if path == "adapter_config.json" {
        Some(", only a LoRA adapter: merge it into its base model, and save that")
    } else if ends(&[".bin", ".pt", ".pth"]) {
        Some(
            ", only PyTorch's own format: load it with transformers and write it with \
             save_pretrained, which writes .safetensors files",
        )
    } else if path.contains(".gguf.part") || path.contains(".gguf-split-") {
        Some(", only parts of one: join them in their order, as by `cat PARTS > model.gguf`")
    } else if ends(&[".GGUF"]) {
        Some(" by its lower-case name: rename the .GGUF file")
    } else {
        None
    }
}

fn twice(model: &Model, tensor: &TensorInfo, other: &TensorInfo) -> Error {
    let path = |tensor: &TensorInfo| &model.source().files()[tensor.file].path;
    let (a, b, name) = (path(other), path(tensor), quote(&tensor.name));
    let place = model.folder_place();
    Error::fatal(match a == b {
        true => format!("{a} in {place} has two tensors {name}"),
        false => format!("{a} and {b} in {place} both have a tensor {name}"),
    })
}

#[cfg(test)]
mod tests;
