//! Tensors of a model, cut for the ranks.

mod floats8;
mod gguf;
mod output;
mod stored;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use nsbridge_checkpoint::{Checkpoint, Dtype, GgufValue, Order, TensorInfo, Weight};
use nsbridge_handler::Model;

use crate::config;
use crate::error::LoadError;
use crate::formats::{coarsest_format, format_of_tensor};
use nsbridge_kernels::Format;

pub(crate) use self::floats8::Floats8;
#[cfg(feature = "candle")]
pub(crate) use self::gguf::ggml;
pub(crate) use self::gguf::{interleaved, parted};
pub(crate) use self::output::has_other_output;
pub(crate) use self::stored::Stored;

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
    /// Rows and columns that share a scale, in tensors of eight-bit floats with a matrix of scales.
    scaled: [usize; 2],
    given_up: AtomicBool,
}

/// Name of the output matrix.
const LM_HEAD: &str = "lm_head.weight";

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
        for TensorInfo { name, dtype, .. } in checkpoint.tensors() {
            if name.ends_with(".qweight") || name.ends_with(".qzeros") {
                let what = format!("the tensor {name} is one of AWQ or GPTQ");
                return Err(LoadError::quantized(what));
            }
            format_of_tensor(name, *dtype)?;
        }
        Ok(checkpoint)
    }

    /// Starts to load the tensors for several ranks.
    pub(crate) fn load(checkpoint: &Checkpoint, ranks: usize) -> Result<Self, LoadError> {
        let is_of_eight = |tensor: &TensorInfo| floats8::is_one(tensor.dtype);
        let scaled = if checkpoint.tensors().iter().any(is_of_eight) {
            config::scaled_together(checkpoint.model())?
        } else {
            config::SCALED_TOGETHER
        };
        let tensors = checkpoint.load(&Order::everything().for_ranks(ranks));
        let tensors = tensors.map_err(LoadError::read)?;
        Ok(Self { tensors, scaled, given_up: AtomicBool::new(false) })
    }

    /// Returns the BLAKE3 digest of each weights file. Without a manifest the files are read to
    /// compute it.
    pub(crate) fn digests(&self) -> Result<Vec<[u8; 32]>, LoadError> {
        let checkpoint = self.tensors.checkpoint();
        let digests = checkpoint.files().map(|path| checkpoint.model().digest(path));
        digests.collect::<Result<_, _>>().map_err(LoadError::read)
    }

    /// Returns the directory of the tensors.
    pub(crate) fn checkpoint(&self) -> &Checkpoint {
        self.tensors.checkpoint()
    }

    /// Finds the tensor with this name in transformers.
    fn find_tensor(&self, name: &str) -> Result<&TensorInfo, LoadError> {
        let checkpoint = self.tensors.checkpoint();
        let is_gguf = !checkpoint.metadata().is_empty();
        let theirs = if is_gguf { config::gguf_name(name) } else { None };
        let name = theirs.as_deref().unwrap_or(name);
        // A model without an output matrix was saved without the prefix.
        let bare = || checkpoint.find(name.strip_prefix("model.")?);
        let found = checkpoint.find(name).or_else(bare);
        found.ok_or_else(|| {
            let hint = match name {
                LM_HEAD => {
                    ": if the output matrix is the embedding, say tie_word_embeddings in config.json"
                }
                _ => "",
            };
            LoadError::Missing(format!("there is no tensor {name}{hint}"))
        })
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

    /// Returns one part of a tensor, which must have this name and shape, as the kernels read it.
    ///
    /// # Errors
    ///
    /// Returns an error that names the tensor.
    pub(crate) fn take(&self, name: &str, shape: &[usize], cut: &Cut) -> Result<Stored, LoadError> {
        if self.is_floats8(name)? {
            return self.take_floats8(name, shape, cut)?.widened();
        }
        Ok(Stored::new(&self.find_tensor(name)?.name, self.part(name, shape, cut)?))
    }

    /// Returns true for a tensor of eight-bit floats.
    pub(crate) fn is_floats8(&self, name: &str) -> Result<bool, LoadError> {
        Ok(floats8::is_one(self.find_tensor(name)?.dtype))
    }

    /// Returns one part of a tensor of eight-bit floats, and its scales.
    ///
    /// # Errors
    ///
    /// Returns an error that names the tensor.
    pub(crate) fn take_floats8(
        &self,
        name: &str,
        shape: &[usize],
        cut: &Cut,
    ) -> Result<Floats8, LoadError> {
        let (weight, scales) = (self.part(name, shape, cut)?, self.scales(name, shape, cut)?);
        Ok(Floats8::new(&self.find_tensor(name)?.name, weight, scales))
    }

    /// Returns the scales of a tensor of eight-bit floats, for one part of it.
    fn scales(&self, name: &str, shape: &[usize], cut: &Cut) -> Result<floats8::Scales, LoadError> {
        let names = [format!("{name}_scale_inv"), format!("{name}_scale")];
        let Some(found) = names.iter().find_map(|name| self.find_tensor(name).ok()) else {
            let [a, b] = names;
            return Err(LoadError::Missing(format!("{name} has no scale, neither {a} nor {b}")));
        };
        let TensorInfo { name, shape: of_scales, dtype, .. } = found;
        let layout = floats8::Layout::new(name, of_scales, (shape, self.scaled))?;
        if !matches!(dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16) {
            let field = format!("the dtype of {name}");
            return Err(LoadError::unsupported(field, dtype.to_string(), "F32, BF16 or F16"));
        }
        let all = of_scales.first().map_or(0..1, |rows| 0..*rows);
        let weight = self.part(name, of_scales, &Cut::Rows(all))?;
        let stored = Stored::new(name, weight);
        let mut scales = vec![0.0; of_scales.iter().product()];
        stored.source(&stored.bytes()).read(0, &mut scales);
        Ok(floats8::Scales::new(scales, layout, cut))
    }

    /// Returns the bytes of one part of a tensor.
    fn part(&self, name: &str, shape: &[usize], cut: &Cut) -> Result<Weight, LoadError> {
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
        let weight = if shape.get(dim).is_none_or(|size| *own == (0..*size)) {
            self.tensors.tensor(name)
        } else {
            self.tensors.slice(name, dim, own.clone())
        };
        weight.map_err(LoadError::read)
    }
}
