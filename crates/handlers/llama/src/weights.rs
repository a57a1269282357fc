//! A model's tensors, as the network takes them.

use nsbridge_handler::{Checkpoint, Dtype, Model, Order, Weight};

use crate::LoadError;

/// The tensors of a model, as they are stored.
#[derive(Debug)]
pub struct Weights {
    tensors: nsbridge_handler::Weights,
    digests: Vec<[u8; 32]>,
}

impl Weights {
    /// Finds the model's tensors and begins to bring them.
    ///
    /// # Errors
    ///
    /// A file that is missing or not what it should be, or a dtype other than f32, bf16 and f16.
    pub fn read(model: &Model) -> Result<Self, LoadError> {
        Self::load(model, &Self::find(model)?)
    }

    /// Finds the model's tensors.
    pub(crate) fn find(model: &Model) -> Result<Checkpoint, LoadError> {
        let checkpoint = model.checkpoint().map_err(LoadError::read)?;
        for tensor in checkpoint.tensors() {
            if !matches!(tensor.dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16) {
                let (field, found) = (format!("the dtype of {}", tensor.name), tensor.dtype);
                return Err(LoadError::unsupported(field, found.to_string(), "F32, BF16 or F16"));
            }
        }
        Ok(checkpoint)
    }

    /// Begins to bring them.
    pub(crate) fn load(model: &Model, checkpoint: &Checkpoint) -> Result<Self, LoadError> {
        let tensors = checkpoint.load(&Order::everything());
        let digests: Result<_, _> = checkpoint.files().map(|path| model.digest(path)).collect();
        Ok(Self {
            tensors: tensors.map_err(LoadError::read)?,
            digests: digests.map_err(LoadError::read)?,
        })
    }

    /// BLAKE3 of each file of weights.
    pub(crate) fn digests(&self) -> &[[u8; 32]] {
        &self.digests
    }

    /// The tensor with this name, which must have this shape.
    ///
    /// # Errors
    ///
    /// A sentence that names the tensor.
    pub fn take(&self, name: &str, shape: &[usize]) -> Result<Weight, LoadError> {
        let Some(info) = self.tensors.checkpoint().find(name) else {
            return Err(LoadError::Missing(format!("there is no tensor {name}")));
        };
        if info.shape != shape {
            let (found, expected) = (format!("{:?}", info.shape), format!("{shape:?}"));
            return Err(LoadError::unsupported(format!("the shape of {name}"), found, expected));
        }
        self.tensors.tensor(name).map_err(LoadError::read)
    }
}
