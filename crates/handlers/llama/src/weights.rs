//! A model's tensors, from its safetensors files.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::LoadError;
use crate::config::read_json;

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// The tensors of a model, in f32.
///
/// candle 0.11 has no bf16 matmul on the CPU, so bf16 and f16 are widened here, which is exact.
#[derive(Debug)]
pub struct Weights {
    tensors: HashMap<String, Tensor>,
    digest: [u8; 32],
}

#[derive(Deserialize)]
struct Index {
    weight_map: HashMap<String, String>,
}

impl Weights {
    /// Reads `model.safetensors`, or the shards that `model.safetensors.index.json` names.
    ///
    /// # Errors
    ///
    /// A file that is missing or no safetensors, or a dtype other than f32, bf16 and f16.
    pub fn read(dir: &Path) -> Result<Self, LoadError> {
        let mut weights = Self { tensors: HashMap::new(), digest: [0; 32] };
        let mut digest = Sha256::new();
        for file in files(dir)? {
            let path = dir.join(file);
            let bytes = std::fs::read(&path).map_err(LoadError::read(&path))?;
            digest.update(&bytes);
            weights.add(&bytes, &path)?;
        }
        weights.digest = digest.finalize().into();
        Ok(weights)
    }

    /// SHA-256 of the files' bytes.
    pub(crate) fn digest(&self) -> &[u8] {
        &self.digest
    }

    /// Takes out the tensor with this name, which must have this shape.
    ///
    /// # Errors
    ///
    /// A sentence that names the tensor.
    pub fn take(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError> {
        let tensor = self.tensors.remove(name);
        let tensor =
            tensor.ok_or_else(|| LoadError::Missing(format!("there is no tensor {name}")))?;
        if tensor.dims() == shape {
            return Ok(tensor);
        }
        let (found, expected) = (format!("{:?}", tensor.dims()), format!("{shape:?}"));
        Err(LoadError::unsupported(format!("the shape of {name}"), found, expected))
    }

    fn add(&mut self, bytes: &[u8], path: &Path) -> Result<(), LoadError> {
        let tensors = candle_core::safetensors::load_buffer(bytes, &Device::Cpu)
            .map_err(LoadError::parse(path))?;
        for (name, tensor) in tensors {
            match tensor.dtype() {
                DType::F32 | DType::BF16 | DType::F16 => {}
                other => {
                    let field = format!("the dtype of {name}");
                    return Err(LoadError::unsupported(field, other.as_str(), "f32, bf16 or f16"));
                }
            }
            let tensor = tensor.to_dtype(DType::F32).map_err(LoadError::parse(path))?;
            self.tensors.insert(name, tensor);
        }
        Ok(())
    }
}

fn files(dir: &Path) -> Result<BTreeSet<String>, LoadError> {
    if dir.join(SINGLE).is_file() {
        return Ok(BTreeSet::from([SINGLE.to_owned()]));
    }
    if dir.join(INDEX).is_file() {
        let index: Index = read_json(&dir.join(INDEX))?;
        return Ok(index.weight_map.into_values().collect());
    }
    Err(LoadError::Missing(format!("{} has no {SINGLE} and no {INDEX}", dir.display())))
}
