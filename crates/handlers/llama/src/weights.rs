//! A model's tensors, as the network takes them.

mod gguf;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use nsbridge_checkpoint::{Checkpoint, Dtype, GgufValue, Order, TensorInfo, Weight};
use nsbridge_handler::Model;

use crate::LoadError;
use crate::matrix::Format;

pub(crate) use self::gguf::{ggml, interleaved, name as gguf_name, parted};

/// What of a tensor is one rank's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    Rows(Range<usize>),
    Columns(Range<usize>),
}

/// The tensors of a model, as they are stored.
#[derive(Debug)]
pub struct Weights {
    tensors: nsbridge_checkpoint::Weights,
    given_up: AtomicBool,
}

impl Weights {
    /// Finds the model's tensors and begins to bring them.
    ///
    /// # Errors
    ///
    /// A file that is missing or not what it should be, or a dtype that is not computed with.
    pub fn read(model: &Model) -> Result<Self, LoadError> {
        Self::for_ranks(model, 1)
    }

    /// The same, for a model of so many ranks: each byte is brought once for all of them.
    ///
    /// # Errors
    ///
    /// As [`Weights::read`].
    pub fn for_ranks(model: &Model, ranks: usize) -> Result<Self, LoadError> {
        Self::load(&Self::find(model)?, ranks)
    }

    /// Finds the model's tensors.
    pub(crate) fn find(model: &Model) -> Result<Checkpoint, LoadError> {
        let checkpoint = Checkpoint::open(model).map_err(LoadError::read)?;
        for tensor in checkpoint.tensors() {
            if Format::of(tensor.dtype) == Format::F32 && tensor.dtype != Dtype::F32 {
                let (field, found) = (format!("the dtype of {}", tensor.name), tensor.dtype);
                let supported = "one of F32, BF16, F16, Q8_0, Q4_K, Q5_K and Q6_K";
                return Err(LoadError::unsupported(field, found.to_string(), supported));
            }
        }
        Ok(checkpoint)
    }

    /// Begins to bring them to so many ranks.
    pub(crate) fn load(checkpoint: &Checkpoint, ranks: usize) -> Result<Self, LoadError> {
        let tensors = checkpoint.load(&Order::everything().for_ranks(ranks));
        Ok(Self { tensors: tensors.map_err(LoadError::read)?, given_up: AtomicBool::new(false) })
    }

    /// BLAKE3 of each file of weights, which without a manifest are read for it.
    pub(crate) fn digests(&self) -> Result<Vec<[u8; 32]>, LoadError> {
        let checkpoint = self.tensors.checkpoint();
        let digests = checkpoint.files().map(|path| checkpoint.model().digest(path));
        digests.collect::<Result<_, _>>().map_err(LoadError::read)
    }

    /// The tensor that transformers calls so.
    fn find_tensor(&self, name: &str) -> Result<&TensorInfo, LoadError> {
        let checkpoint = self.tensors.checkpoint();
        let is_gguf = !checkpoint.metadata().is_empty();
        let theirs = if is_gguf { gguf::name(name) } else { None };
        let name = theirs.as_deref().unwrap_or(name);
        let found = checkpoint.find(name);
        found.ok_or_else(|| LoadError::Missing(format!("there is no tensor {name}")))
    }

    /// How it is stored.
    pub(crate) fn format(&self, name: &str) -> Result<Format, LoadError> {
        self.find_tensor(name).map(|info| Format::of(info.dtype))
    }

    /// Whether rows of queries and keys are [`interleaved`].
    pub(crate) fn are_interleaved(&self) -> bool {
        let architecture = self.tensors.checkpoint().metadata().get("general.architecture");
        architecture == Some(&GgufValue::Text("llama".to_owned()))
    }

    /// Their [coarsest](Format::coarsest) format.
    pub(crate) fn coarsest(&self) -> Format {
        Format::coarsest(self.tensors.checkpoint().tensors())
    }

    /// Has whoever takes a part from now on refused: another rank could not use its own.
    pub(crate) fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// A part of the tensor with this name, which must have this shape.
    ///
    /// # Errors
    ///
    /// A sentence that names the tensor.
    pub(crate) fn take(&self, name: &str, shape: &[usize], cut: &Cut) -> Result<Weight, LoadError> {
        if self.given_up.load(Ordering::Relaxed) {
            return Err(LoadError::Read("another rank could not be loaded".to_owned()));
        }
        let info = self.find_tensor(name)?;
        let name = &info.name;
        if info.shape != shape {
            let (found, expected) = (format!("{:?}", info.shape), format!("{shape:?}"));
            return Err(LoadError::unsupported(format!("the shape of {name}"), found, expected));
        }
        let (dim, own) = match cut {
            Cut::Rows(own) => (0, own),
            Cut::Columns(own) => (1, own),
        };
        let weight = if *own == (0..shape[dim]) {
            self.tensors.tensor(name)
        } else {
            self.tensors.slice(name, dim, own.clone())
        };
        weight.map_err(LoadError::read)
    }
}
