//! Buffers of a rank's steps. They stay in place until a larger step comes, so that recorded launches
//! can use them.

use std::sync::Arc;

use nsbridge_gpu::Result;
use nsbridge_gpu::attention::{Attention, Heads};
use nsbridge_gpu::device::{Buffer, Device};
use nsbridge_gpu::matrix::TILE;
use nsbridge_gpu::rows::{Activations, Form};

use super::load::{GpuLayer, GpuMatrix};
use super::plan::Places;

/// Bytes for partial results of attention.
const PARTIAL_BYTES: usize = 64 << 20;

/// Widths of the buffers, and the forms in which they are needed.
#[derive(Clone, Debug)]
pub(super) struct Widths {
    pub(super) hidden: usize,
    /// Distance of the rows of the residual stream: hidden numbers in whole tiles.
    pub(super) stride: usize,
    pub(super) qkv: usize,
    pub(super) attended: usize,
    /// Columns of `down`, and distance of the rows of its f32 input.
    pub(super) wide: usize,
    pub(super) wide_stride: usize,
    normed_forms: Vec<Form>,
    attended_forms: Vec<Form>,
    wide_forms: Vec<Form>,
}

impl Widths {
    /// Finds the widths for these layers. `output` is `None` if a step ends with the last norm.
    pub(super) fn new(
        layers: &[GpuLayer],
        output: Option<&GpuMatrix>,
        hidden: usize,
        heads: Heads,
    ) -> Self {
        let mut widths = Self {
            hidden,
            stride: hidden.next_multiple_of(TILE),
            qkv: 0,
            attended: heads.queries * heads.dim,
            wide: 0,
            wide_stride: 0,
            normed_forms: vec![output.map_or(Form::Floats, GpuMatrix::form)],
            attended_forms: Vec::new(),
            wide_forms: Vec::new(),
        };
        for layer in layers {
            let (mut first, mut end) = (0, 0);
            for matrix in &layer.qkv {
                end = first + matrix.matrix.padded();
                first += matrix.matrix.shape().rows;
                widths.normed_forms.push(matrix.form());
            }
            widths.qkv = widths.qkv.max(end);
            widths.normed_forms.push(layer.gate_up.form());
            widths.attended_forms.push(layer.output.matrix.form());
            widths.wide_forms.push(layer.down.matrix.form());
            widths.wide = layer.down.matrix.matrix.shape().columns;
            widths.wide_stride = layer.gate_up.matrix.padded() / 2;
        }
        widths
    }
}

/// Partial sums that the other ranks read.
#[derive(Debug)]
pub(super) struct Sums {
    /// Two buffers in turns: a rank writes one while others may still read the other.
    pub(super) turns: [Buffer; 2],
}

/// Buffers for steps of up to `rows` rows.
#[derive(Debug)]
pub(super) struct Buffers {
    pub(super) rows: usize,
    pub(super) stream: Buffer,
    pub(super) normed: Activations,
    pub(super) qkv: Buffer,
    pub(super) attended: Buffer,
    pub(super) attended_forms: Activations,
    pub(super) wide: Buffer,
    pub(super) wide_forms: Activations,
    pub(super) sums: Arc<Sums>,
}

impl Buffers {
    pub(super) fn new(device: &Arc<dyn Device>, widths: &Widths, rows: usize) -> Result<Self> {
        let floats = |width: usize| Buffer::zeroed(device, 4 * rows * width);
        let forms = |columns, forms: &[Form]| Activations::new(device, rows, columns, forms);
        let sums = [floats(widths.stride)?, floats(widths.stride)?];
        Ok(Self {
            rows,
            stream: floats(widths.stride)?,
            normed: forms(widths.hidden, &widths.normed_forms)?,
            qkv: floats(widths.qkv)?,
            attended: floats(widths.attended)?,
            attended_forms: forms(widths.attended, &widths.attended_forms)?,
            wide: floats(widths.wide_stride)?,
            wide_forms: forms(widths.wide, &widths.wide_forms)?,
            sums: Arc::new(Sums { turns: sums }),
        })
    }
}

/// Buffer of the plan of a step.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) places: Places,
    pub(super) plan: Buffer,
}

impl Ends {
    pub(super) fn new(device: &Arc<dyn Device>, places: Places) -> Result<Self> {
        Ok(Self { places, plan: Buffer::zeroed(device, 4 * places.len())? })
    }
}

/// Allocates room for partial results of attention.
pub(super) fn attention(device: &Arc<dyn Device>, heads: Heads) -> Result<Attention> {
    let each = heads.queries * (heads.dim + 2) * 4;
    Attention::new(device, heads, (PARTIAL_BYTES / each).clamp(64, 4096))
}
