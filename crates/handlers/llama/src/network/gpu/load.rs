//! Packs a checkpoint's tensors into matrices on a GPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use nsbridge_gpu::device::{Buffer, Device};
use nsbridge_gpu::matrix::{Layout, Matrix, Shape, TILE};
use nsbridge_gpu::rows::Form;
use nsbridge_kernels::matrix::{SEGMENTS, Source};

use crate::error::LoadError;
use crate::network::arithmetic::Arithmetic;
use crate::network::load::{Pack, Packing};
use crate::network::part::{Layer, Packed};
use crate::weights::Floats8;
use nsbridge_kernels::Format;

/// Matrix on a GPU, and its format in the file.
#[derive(Debug)]
pub(super) struct GpuMatrix {
    pub(super) matrix: Matrix,
    format: String,
}

impl Packed for GpuMatrix {
    fn format(&self) -> String {
        self.format.clone()
    }

    fn bytes(&self) -> usize {
        self.matrix.bytes()
    }
}

impl GpuMatrix {
    /// Returns the form of activations that the products need.
    pub(super) fn form(&self) -> Form {
        self.matrix.layout().form()
    }
}

/// Packer of matrices on one device.
pub(super) struct GpuPack {
    pub(super) device: Arc<dyn Device>,
    pub(super) arithmetic: Arithmetic,
}

impl Pack for GpuPack {
    type Matrix = GpuMatrix;

    const GATE_ROWS: usize = TILE / 2;

    fn pack(
        &mut self,
        packing: Packing,
        sources: &[Source<'_>],
        place: &(impl Fn(usize) -> Option<(usize, usize)> + Sync),
        bias: Option<&dyn Fn(usize) -> f32>,
    ) -> Result<GpuMatrix, LoadError> {
        let (layout, segments) = self.layout(&packing)?;
        let Packing { columns, .. } = packing;
        let format = packing.format.in_memory();
        let mut refused = None;
        let row = |row: usize, out: &mut [u8]| {
            let Some((source, from)) = place(row) else { return };
            if !sources[source].write_row(from, columns, format, out) {
                refused.get_or_insert((source, from));
            }
        };
        let matrix = self.packed((layout, segments), &packing, row, bias)?;
        if let Some((source, row)) = refused {
            let name = sources[source].name;
            let found = "a weight that is too large or no number, or of another format".to_owned();
            let supported = format!("finite ones that {format} can hold");
            return Err(LoadError::unsupported(format!("row {row} of {name}"), found, supported));
        }
        let by = if layout == Layout::Brains { " by bf16" } else { "" };
        Ok(GpuMatrix { matrix, format: format!("{format:?}{by}") })
    }

    fn pack_floats8(
        &mut self,
        packing: Packing,
        sources: &[Floats8],
        place: &(impl Fn(usize) -> Option<(usize, usize)> + Sync),
        bias: Option<&dyn Fn(usize) -> f32>,
    ) -> Result<Option<GpuMatrix>, LoadError> {
        let Packing { columns, all_columns, ranks, .. } = packing;
        let unit = Layout::Floats8.unit();
        let segments = segments_of(unit, all_columns).filter(|all| all.is_multiple_of(ranks));
        let groups = sources.iter().map(|source| source.groups(columns, unit));
        let groups: Option<Vec<_>> = groups.collect();
        let (Arithmetic::Native, Some(segments), Some(groups)) =
            (self.arithmetic, segments, groups)
        else {
            return Ok(None);
        };
        let mut refused = Ok(());
        let row = |row: usize, out: &mut [u8]| {
            let Some((source, from)) = place(row) else { return };
            if let Err(error) = groups[source].write_row(from, out) {
                refused = Err(error);
            }
        };
        let matrix = self.packed((Layout::Floats8, segments / ranks), &packing, row, bias)?;
        refused?;
        Ok(Some(GpuMatrix { matrix, format: "F8_E4M3 by bf16".to_owned() }))
    }

    fn of_floats8(&self) -> Format {
        match self.arithmetic {
            Arithmetic::Native => Format::Bf16,
            Arithmetic::Portable => Format::F32,
        }
    }
}

/// Returns the largest number of equal segments that are of whole blocks of `unit` columns.
fn segments_of(unit: usize, columns: usize) -> Option<usize> {
    let fits = |segments: &usize| columns.is_multiple_of(segments * unit);
    [SEGMENTS, 4, 2, 1].into_iter().find(fits)
}

impl GpuPack {
    /// Packs rows in this layout and number of segments, and sets the bias.
    fn packed(
        &self,
        (layout, segments): (Layout, usize),
        packing: &Packing,
        row: impl FnMut(usize, &mut [u8]),
        bias: Option<&dyn Fn(usize) -> f32>,
    ) -> Result<Matrix, LoadError> {
        let shape = Shape { rows: packing.rows, columns: packing.columns, segments };
        let mut matrix =
            Matrix::pack(&self.device, layout, shape, row).map_err(|error| failed(&error))?;
        if let Some(bias) = bias {
            let bias: Vec<f32> = (0..matrix.padded()).map(bias).collect();
            matrix.set_bias(&bias).map_err(|error| failed(&error))?;
        }
        Ok(matrix)
    }

    /// Returns the layout of a matrix, and its number of segments on this rank.
    fn layout(&self, packing: &Packing) -> Result<(Layout, usize), LoadError> {
        let Packing { format, columns, all_columns, ranks, .. } = *packing;
        let unit = format.unit();
        if format.block_in_file().0 > 1 && !columns.is_multiple_of(unit) {
            let field = format!("the number of columns of a matrix in {format}");
            let supported = format!("a multiple of {unit}");
            return Err(LoadError::unsupported(field, columns.to_string(), supported));
        }
        let layout = match (format.in_memory(), self.arithmetic) {
            (Format::Q8_0, _) => Layout::Q8_0,
            (Format::Q4K, _) => Layout::Q4K,
            (Format::Q6K, _) => Layout::Q6K,
            (Format::F32, _) => Layout::F32,
            (Format::F16, _) => Layout::F16,
            (Format::Bf16, Arithmetic::Portable) => Layout::Bf16,
            (Format::Bf16, Arithmetic::Native) => {
                let segments = segments_of(Layout::Brains.unit(), all_columns);
                return match segments.filter(|segments| segments.is_multiple_of(ranks)) {
                    Some(segments) => Ok((Layout::Brains, segments / ranks)),
                    // Too few columns for tensor cores.
                    None => Ok((Layout::Bf16, packing.segments())),
                };
            }
            (other, _) => {
                let supported = "Q8_0, Q4_K, Q6_K, F32, BF16 or F16".to_owned();
                let field = format!("the format of a matrix of {columns} columns on a GPU");
                return Err(LoadError::unsupported(field, other.to_string(), supported));
            }
        };
        Ok((layout, packing.segments()))
    }
}

/// Layer on a GPU.
#[derive(Debug)]
pub(super) struct GpuLayer {
    pub(super) attention_norm: Buffer,
    pub(super) qkv: Vec<GpuMatrix>,
    pub(super) head_norms: Option<[Buffer; 2]>,
    pub(super) output: GpuPartial,
    /// Index of the layer's attention window among those of the model.
    pub(super) window: usize,
    pub(super) feed_forward_norm: Buffer,
    pub(super) gate_up: GpuMatrix,
    pub(super) down: GpuPartial,
}

/// Matrix of which a rank has columns.
#[derive(Debug)]
pub(super) struct GpuPartial {
    pub(super) matrix: GpuMatrix,
    pub(super) bias: Option<Buffer>,
}

impl GpuLayer {
    /// Copies the vectors of a layer to the device. `windows` are the windows of all layers.
    pub(super) fn new(
        layer: Layer<GpuMatrix>,
        windows: &[Option<usize>],
        device: &Arc<dyn Device>,
    ) -> Result<Self, LoadError> {
        let there = |numbers: &[f32]| Buffer::of(device, numbers).map_err(|error| failed(&error));
        let window = windows.iter().position(|window| *window == layer.window).unwrap_or_default();
        let head_norms = layer
            .head_norms
            .map(|(queries, keys)| Ok::<_, LoadError>([there(&queries)?, there(&keys)?]));
        let partial = |partial: crate::network::part::Partial<GpuMatrix>| {
            let bias = partial.bias.map(|bias| there(&bias)).transpose()?;
            Ok::<_, LoadError>(GpuPartial { matrix: partial.matrix, bias })
        };
        Ok(Self {
            attention_norm: there(&layer.attention_norm)?,
            qkv: layer.qkv,
            head_norms: head_norms.transpose()?,
            output: partial(layer.output)?,
            window,
            feed_forward_norm: there(&layer.feed_forward_norm)?,
            gate_up: layer.gate_up,
            down: partial(layer.down)?,
        })
    }
}

/// Number of threads of a rank that read and convert layers: one does not read as fast as a disk or a
/// store delivers.
const LOADERS: usize = 8;

/// Loads the layers of one of `ranks` ranks on several threads, and returns them in order.
pub(super) fn in_parallel<T: Send>(
    layers: usize,
    ranks: usize,
    load: &(impl Fn(usize) -> Result<T, LoadError> + Sync),
) -> Result<Vec<T>, LoadError> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = (cores / ranks).clamp(1, LOADERS).min(layers.max(1));
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let run = || {
        let mut own = Vec::new();
        while !failed.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= layers {
                break;
            }
            let layer = load(index).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
            own.push((index, layer));
        }
        Ok::<_, LoadError>(own)
    };
    let loaded = thread::scope(|scope| {
        let spawn = |_| {
            let thread = thread::Builder::new().name("loader".to_owned());
            thread.spawn_scoped(scope, run)
        };
        // The caller is one of the threads. Without more threads, it loads all layers.
        let others: Vec<_> = (1..threads).map_while(|index| spawn(index).ok()).collect();
        let own = run();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<_, _>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        let others: Vec<_> = others.into_iter().map(join).collect();
        [own].into_iter().chain(others).collect::<Result<Vec<_>, _>>()
    })?;
    let mut loaded: Vec<_> = loaded.into_iter().flatten().collect();
    loaded.sort_unstable_by_key(|(index, _)| *index);
    Ok(loaded.into_iter().map(|(_, layer)| layer).collect())
}

/// Returns the error of a device while a model is loaded.
pub(super) fn failed(error: &nsbridge_gpu::Error) -> LoadError {
    LoadError::Worker(format!("a tensor could not be put on its device: {error}"))
}
