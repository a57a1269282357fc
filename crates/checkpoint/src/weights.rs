//! Loading of weights from storage into the memory of their readers.

#[cfg(feature = "candle")]
pub(crate) mod candle;
mod weight;

use std::collections::HashMap;
use std::fmt;
use std::mem;
use std::ops::Range;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

pub use weight::Weight;

use nsbridge_handler::source::{Extent, Stream};
use nsbridge_handler::{Buffer, Error, Result};

use crate::checkpoint::Checkpoint;
use crate::order::Order;
use crate::tensor::TensorInfo;

/// A load that runs: tensors come ahead of their readers, as far as memory allows.
///
/// Each byte is brought once, however many ranks read it. Clones share the load; each rank's thread
/// may have one.
///
/// ```
/// use nsbridge_checkpoint::{Checkpoint, Order};
/// use nsbridge_handler::{Model, Result};
///
/// fn load(model: &Model) -> Result<()> {
///     let weights = Checkpoint::open(model)?.load(&Order::everything().for_ranks(2))?;
///     for rank in 0..2 {
///         // Rank 0 has the first half of the rows, rank 1 the second.
///         let rows = weights.shard("model.layers.0.mlp.up_proj.weight", 0, rank)?;
///         let columns = weights.shard("model.layers.0.mlp.down_proj.weight", 1, rank)?;
///         println!("{:?} {:?}", rows.shape(), columns.shape());
///     }
///     Ok(())
/// }
/// ```
#[derive(Clone)]
pub struct Weights(Arc<Inner>);

struct Inner {
    checkpoint: Checkpoint,
    ranks: usize,
    stream: Box<dyn Stream>,
    /// Position in the stream and state, by tensor index.
    places: HashMap<usize, Place>,
}

struct Place {
    extent: usize,
    held: Mutex<Held>,
}

/// State of a tensor's bytes until every rank has read them.
#[derive(Default)]
struct Held {
    /// True once the extent was taken from the stream, which returns each extent only once.
    taken: bool,
    reads: usize,
    bytes: Option<Arc<Buffer>>,
    /// Bytes that readers still use, so that a further read can share them.
    given: Weak<Buffer>,
}

impl Checkpoint {
    /// Starts to load the tensors' bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if the order names a tensor that the model lacks.
    pub fn load(&self, order: &Order) -> Result<Weights> {
        Weights::start(self.clone(), order)
    }
}

impl Weights {
    fn start(checkpoint: Checkpoint, order: &Order) -> Result<Self> {
        let indices = match &order.names {
            None => (0..checkpoint.tensors().len()).collect(),
            Some(names) => {
                let index =
                    |name: &String| checkpoint.index(name).ok_or_else(|| checkpoint.has_no(name));
                names.iter().map(index).collect::<Result<Vec<_>>>()?
            }
        };
        let mut extents = Vec::new();
        let mut places = HashMap::new();
        for index in indices {
            // A name may occur twice in an order. The first occurrence counts.
            places.entry(index).or_insert_with(|| {
                extents.push(extent(&checkpoint.tensors()[index]));
                Place { extent: extents.len() - 1, held: Mutex::default() }
            });
        }
        let stream = checkpoint.model().source().stream(extents)?;
        Ok(Self(Arc::new(Inner { checkpoint, ranks: order.ranks, stream, places })))
    }

    /// Returns the directory of the tensors.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.0.checkpoint
    }

    /// Returns the number of ranks that read each tensor.
    pub fn ranks(&self) -> usize {
        self.0.ranks
    }

    /// Waits for a whole tensor.
    ///
    /// # Errors
    ///
    /// Returns an error that names the tensor or the file if the tensor cannot be loaded.
    pub fn tensor(&self, name: &str) -> Result<Weight> {
        let (info, bytes) = self.read(name)?;
        Ok(Weight::whole(info, bytes))
    }

    /// Waits for a tensor and returns the part with these indices in dimension `dim`.
    ///
    /// # Errors
    ///
    /// Returns an error that names the tensor if it has no such part, or if the range would cut a
    /// quantized block.
    pub fn slice(&self, name: &str, dim: usize, range: Range<usize>) -> Result<Weight> {
        let (info, bytes) = self.read(name)?;
        Weight::whole(info, bytes).slice(dim, range)
    }

    /// Waits for a tensor and returns this rank's shard, cut along dimension `dim`.
    ///
    /// # Errors
    ///
    /// Returns an error that names the tensor if it cannot be divided evenly among the ranks.
    pub fn shard(&self, name: &str, dim: usize, rank: usize) -> Result<Weight> {
        let (info, bytes) = self.read(name)?;
        Weight::whole(info, bytes).shard(dim, rank, self.0.ranks)
    }

    fn read(&self, name: &str) -> Result<(&TensorInfo, Arc<Buffer>)> {
        let Inner { checkpoint, ranks, stream, places } = &*self.0;
        let index = checkpoint.index(name).ok_or_else(|| checkpoint.has_no(name))?;
        let info = &checkpoint.tensors()[index];
        let Some(place) = places.get(&index) else { return Ok((info, self.alone(info)?)) };
        // Ranks that read the same tensor wait here until the first of them has loaded it.
        let mut held = place.held.lock();
        let bytes = match held.bytes.take().or_else(|| held.given.upgrade()) {
            Some(bytes) => bytes,
            None if !mem::replace(&mut held.taken, true) => Arc::new(stream.take(place.extent)?),
            None => self.alone(info)?,
        };
        held.reads += 1;
        held.given = Arc::downgrade(&bytes);
        if held.reads < *ranks {
            held.bytes = Some(bytes.clone());
        }
        Ok((info, bytes))
    }

    /// Loads a tensor that was not in the order, or that is read more often than there are ranks.
    fn alone(&self, info: &TensorInfo) -> Result<Arc<Buffer>> {
        let stream = self.0.checkpoint.model().source().stream(vec![extent(info)])?;
        stream.take(0).map(Arc::new)
    }
}

impl fmt::Debug for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Weights({:?}, {} ranks)", self.0.checkpoint, self.0.ranks)
    }
}

fn extent(info: &TensorInfo) -> Extent {
    Extent::new(info.file, info.range.clone(), info.dtype.align())
}

fn no_part(name: &str, what: impl fmt::Display) -> Error {
    Error::fatal(format!("the tensor {name} {what}"))
}

#[cfg(test)]
mod tests;
