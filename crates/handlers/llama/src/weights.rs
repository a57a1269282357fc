//! Tensors of a model, cut for the ranks.

mod gguf;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use nsbridge_checkpoint::{Checkpoint, GgufValue, Order, TensorInfo, Weight};
use nsbridge_handler::Model;

use crate::formats::{coarsest_format, format_of_tensor};
use crate::{Format, LoadError};

#[cfg(feature = "candle")]
pub(crate) use self::gguf::ggml;
pub(crate) use self::gguf::{interleaved, name as gguf_name, parted};

/// Part of a tensor that belongs to one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    Rows(Range<usize>),
    Columns(Range<usize>),
}

/// Tensors of a model, in their stored dtype.
#[derive(Debug)]
pub struct Weights {
    tensors: nsbridge_checkpoint::Weights,
    given_up: AtomicBool,
}

impl Weights {
    /// Finds the model's tensors and starts to load them.
    ///
    /// # Errors
    ///
    /// Returns an error if a file is missing or malformed, or if a dtype is not supported.
    pub fn read(model: &Model) -> Result<Self, LoadError> {
        Self::for_ranks(model, 1)
    }

    /// Finds the model's tensors and starts to load them for several ranks. Each byte is read once
    /// for all of them.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Weights::read`].
    pub fn for_ranks(model: &Model, ranks: usize) -> Result<Self, LoadError> {
        Self::load(&Self::find(model)?, ranks)
    }

    /// Finds the model's tensors and checks their dtypes.
    pub(crate) fn find(model: &Model) -> Result<Checkpoint, LoadError> {
        let checkpoint = Checkpoint::open(model).map_err(LoadError::read)?;
        for tensor in checkpoint.tensors() {
            format_of_tensor(&tensor.name, tensor.dtype)?;
        }
        Ok(checkpoint)
    }

    /// Starts to load the tensors for several ranks.
    pub(crate) fn load(checkpoint: &Checkpoint, ranks: usize) -> Result<Self, LoadError> {
        let tensors = checkpoint.load(&Order::everything().for_ranks(ranks));
        Ok(Self { tensors: tensors.map_err(LoadError::read)?, given_up: AtomicBool::new(false) })
    }

    /// Returns the BLAKE3 digest of each weights file. Without a manifest the files are read to
    /// compute it.
    pub(crate) fn digests(&self) -> Result<Vec<[u8; 32]>, LoadError> {
        let checkpoint = self.tensors.checkpoint();
        let digests = checkpoint.files().map(|path| checkpoint.model().digest(path));
        digests.collect::<Result<_, _>>().map_err(LoadError::read)
    }

    /// Finds the tensor with this name in transformers.
    fn find_tensor(&self, name: &str) -> Result<&TensorInfo, LoadError> {
        let checkpoint = self.tensors.checkpoint();
        let is_gguf = !checkpoint.metadata().is_empty();
        let theirs = if is_gguf { gguf::name(name) } else { None };
        let name = theirs.as_deref().unwrap_or(name);
        // A model without an output matrix was saved without the prefix.
        let bare = || checkpoint.find(name.strip_prefix("model.")?);
        let found = checkpoint.find(name).or_else(bare);
        found.ok_or_else(|| LoadError::Missing(format!("there is no tensor {name}")))
    }

    /// Returns the storage format of a tensor.
    pub(crate) fn format(&self, name: &str) -> Result<Format, LoadError> {
        let info = self.find_tensor(name)?;
        format_of_tensor(&info.name, info.dtype)
    }

    /// Returns true if the rows of queries and keys are [`interleaved`].
    pub(crate) fn are_interleaved(&self) -> bool {
        let architecture = self.tensors.checkpoint().metadata().get("general.architecture");
        architecture == Some(&GgufValue::Text("llama".to_owned()))
    }

    /// Returns the [coarsest](coarsest_format) format of the tensors.
    pub(crate) fn coarsest(&self) -> Format {
        coarsest_format(self.tensors.checkpoint().tensors())
    }

    /// Makes all further `take` calls fail, because another rank could not be loaded.
    pub(crate) fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// Returns one part of a tensor, which must have this name and shape.
    ///
    /// # Errors
    ///
    /// Returns an error that names the tensor.
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
