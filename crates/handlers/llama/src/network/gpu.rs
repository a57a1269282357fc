//! Rank on a GPU, with this engine's kernels.
//!
//! The network is that of [`shard`](super::shard). With the exact arithmetic, so are its bits.

mod buffers;
mod devices;
mod graphs;
mod load;
mod plan;
mod results;

use std::fmt;
use std::sync::Arc;

use nsbridge_gpu::attention::{Attention, AttentionPlan, Heads, KvCache, Place};
use nsbridge_gpu::device::{Buffer, Device};
use nsbridge_gpu::matrix::Destination;
use nsbridge_gpu::ranks::{Flags, Meeting};
use nsbridge_gpu::rows::{Activations, Count, Form, Norm, Sums as OfRanks};
use nsbridge_gpu::sample::Sampler;
use nsbridge_kernels::collectives::{RankHandle, RankLost};

use self::buffers::{Buffers, Ends, Sums, Widths};
pub use self::devices::GpuDevices;
pub(crate) use self::devices::GpuRoom;
use self::graphs::{Graphs, Launches};
use self::load::{GpuLayer, GpuMatrix, GpuPack, GpuPartial, failed, in_parallel};
use self::plan::{GpuPlan, Places};
use super::Setup;
use super::load::{Loader, norm};
use super::part::{Packed as _, Part, Tokens};
use super::plan::Step;
use super::rank::{Rank, Rows};
use crate::config::Config;
use crate::error::LoadError;
use crate::kv::KvFormat;
use crate::rope::RopeTable;
use crate::sample::Chosen;
use crate::weights::Weights;

/// State that a rank shows to the others at a rendezvous.
#[derive(Debug, Default)]
pub(in crate::network) struct Shown {
    sums: Option<Arc<Sums>>,
    flags: Option<Arc<Flags>>,
    out: Option<Arc<Buffer>>,
}

/// Part of a model that one rank holds on its GPU.
pub(super) struct GpuShard {
    device: Arc<dyn Device>,
    embedding: GpuMatrix,
    tokens: Tokens,
    layers: Vec<GpuLayer>,
    norm: Buffer,
    /// `None` if the output is tied to the embedding.
    output: Option<GpuMatrix>,
    /// True if a step ends with the last norm.
    hidden: bool,
    /// Cosines and sines, `[context, dim / 2]`.
    angles: [Buffer; 2],
    eps: f32,
    heads: Heads,
    /// Attention windows of the layers, each once.
    windows: Vec<Option<usize>>,
    cache: KvCache,
    attention: Attention,
    widths: Widths,
    part: Part,
    handle: RankHandle<Shown>,
    buffers: Buffers,
    ends: Ends,
    graphs: Graphs,
    /// Partial sums and flags of all ranks; empty with one rank.
    sums: Vec<Arc<Sums>>,
    flags: Vec<Arc<Flags>>,
    /// Results of rank 0, to which all ranks write their logits.
    out: Arc<Buffer>,
    out_rows: usize,
    /// Number of the next step, which wraps around.
    number: u32,
    /// Plan of the last step, as the device reads it.
    words: Vec<u32>,
    logits: Vec<f32>,
    sampler: Option<Sampler>,
    /// Tokens that the last step sampled, if it did.
    chosen: Option<Chosen>,
    formats: String,
}

/// Reason for which a step fails.
enum Failed {
    Device(nsbridge_gpu::Error),
    Lost(RankLost),
}

type Result<T, E = Failed> = std::result::Result<T, E>;

impl From<nsbridge_gpu::Error> for Failed {
    fn from(error: nsbridge_gpu::Error) -> Self {
        Self::Device(error)
    }
}

impl From<RankLost> for Failed {
    fn from(lost: RankLost) -> Self {
        Self::Lost(lost)
    }
}

impl GpuShard {
    /// Loads this rank's part to its device.
    pub(super) fn load(
        config: &Config,
        rope: &RopeTable,
        context: usize,
        weights: &Weights,
        setup: &Setup,
        (part, on, handle): (Part, &GpuDevices, RankHandle<Shown>),
    ) -> Result<Self, LoadError> {
        let device = on.device(part.rank).clone();
        let arithmetic = on.arithmetic();
        let loader = || {
            let pack = GpuPack { device: device.clone(), arithmetic };
            Loader::new(config, weights, part, setup.format, pack)
        };
        let embedding = loader().embedding()?;
        let output = loader().output()?;
        let mut windows = config.windows.clone();
        windows.sort_unstable();
        windows.dedup();
        let loaded = in_parallel(config.layers, part.of, &|index| {
            let layer = loader().layer(index)?;
            let is_exact = layer.matrices().all(|own| own.matrix.layout().is_exact());
            let formats = layer.formats();
            Ok((GpuLayer::new(layer, &windows, &device)?, is_exact, formats))
        })?;
        let ends = [Some(&embedding), output.as_ref()];
        let is_exact = ends.into_iter().flatten().all(|own| own.matrix.layout().is_exact())
            && loaded.iter().all(|(_, is_exact, _)| *is_exact);
        let (mut layers, mut names) = (Vec::new(), Vec::new());
        for (layer, _, formats) in loaded {
            layers.push(layer);
            names.push(formats);
        }
        let kv_heads = part.kv_heads(config).len();
        let heads = Heads { queries: config.heads / part.of, keys: kv_heads, dim: config.head_dim };
        let brains = setup.kv == KvFormat::Bf16;
        let cache = KvCache::new(&device, heads, (config.layers, setup.blocks), brains);
        let rows: Vec<_> = (0..context).map(|position| rope.at(position)).collect();
        let cos: Vec<f32> = rows.iter().flat_map(|(cos, _)| *cos).copied().collect();
        let sin: Vec<f32> = rows.iter().flat_map(|(_, sin)| *sin).copied().collect();
        let there = |numbers: &[f32]| Buffer::of(&device, numbers).map_err(|error| failed(&error));
        let output_there = (!setup.hidden).then(|| output.as_ref().unwrap_or(&embedding));
        let widths = Widths::new(&layers, output_there, config.hidden_size, heads);
        let kv = setup.kv;
        let mut formats = format!("{} {} kv {kv:?}", embedding.format(), names.join(" "));
        if !is_exact {
            let output = output.as_ref().unwrap_or(&embedding).format();
            formats = format!("bf16 on {}: {formats}, output {output}", device.kind());
        }
        Ok(Self {
            tokens: part.tokens(config.vocab_size),
            norm: there(&norm(weights, "model.norm.weight", config.hidden_size)?)?,
            angles: [there(&cos)?, there(&sin)?],
            cache: cache.map_err(|error| failed(&error))?,
            attention: buffers::attention(&device, heads).map_err(|error| failed(&error))?,
            buffers: Buffers::new(&device, &widths, 0).map_err(|error| failed(&error))?,
            ends: Ends::new(&device, Places::default()).map_err(|error| failed(&error))?,
            out: Arc::new(Buffer::zeroed(&device, 0).map_err(|error| failed(&error))?),
            out_rows: 0,
            hidden: setup.hidden,
            eps: config.rms_norm_eps,
            graphs: Graphs::new(on.recorded()),
            sums: Vec::new(),
            flags: Vec::new(),
            number: 0,
            words: Vec::new(),
            logits: Vec::new(),
            sampler: None,
            chosen: None,
            device,
            embedding,
            layers,
            output,
            heads,
            windows,
            widths,
            part,
            handle,
            formats,
        })
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        if self.part.of == 1 {
            self.handle.arrive();
        }
        self.handle.check()?;
        for (from, to) in &step.copies {
            self.cache.copy(*from, *to)?;
        }
        let room = (self.device.processors() as usize, self.attention.partials());
        let plan = GpuPlan::new(step, self.heads, &self.windows, room);
        self.grow(&plan)?;
        plan.write(&self.ends.places, self.number, &mut self.words);
        self.number = self.number.wrapping_add(1);
        self.ends.plan.write(0, &self.words)?;
        let GpuPlan { rows, wanted, rows_at_once, .. } = plan;
        let launches = Launches { rows, wanted, rows_at_once };
        let mut graphs = std::mem::take(&mut self.graphs);
        let done = match launches.bucket().filter(|own| own.rows <= self.buffers.rows) {
            Some(launches) => graphs.run(launches, &self.device, &mut || self.launch(launches)),
            None => self.launch(launches),
        };
        self.graphs = graphs;
        done?;
        self.take_results(step, wanted)
    }

    /// Makes room for a step. All ranks run the same steps, so they grow together.
    fn grow(&mut self, plan: &GpuPlan) -> Result<()> {
        if plan.rows > self.buffers.rows {
            let rows = plan.rows.max(64).next_power_of_two();
            self.graphs.clear();
            self.buffers = Buffers::new(&self.device, &self.widths, rows)?;
            if self.part.of > 1 {
                let flags = match self.flags.get(self.part.rank) {
                    Some(flags) => flags.clone(),
                    None => Arc::new(Flags::new(&self.device)?),
                };
                let sums = Some(self.buffers.sums.clone());
                let mut shown = Shown { sums, flags: Some(flags), out: None };
                (self.sums, self.flags) = self.handle.exchange(&mut shown, |all, _| {
                    let sums = all.iter().filter_map(|shown| shown.sums.clone());
                    (sums.collect(), all.iter().filter_map(|shown| shown.flags.clone()).collect())
                })?;
            }
        }
        let places = plan.places(self.ends.places);
        if places != self.ends.places {
            self.graphs.clear();
            self.ends = Ends::new(&self.device, places)?;
        }
        if plan.wanted > self.out_rows {
            self.out_rows = plan.wanted.next_power_of_two();
            self.graphs.clear();
            let is_first = self.part.rank == 0 && !self.hidden;
            let rows = if is_first { self.out_rows } else { 0 };
            self.out = Arc::new(Buffer::zeroed(&self.device, 4 * rows * self.row())?);
            if self.part.of > 1 {
                let mut shown = Shown { out: Some(self.out.clone()), ..Shown::default() };
                let first = self.handle.exchange(&mut shown, |all, _| {
                    all.first().and_then(|shown| shown.out.clone())
                })?;
                self.out = first.unwrap_or_else(|| self.out.clone());
            }
        }
        Ok(())
    }

    /// Enqueues the kernels of a step whose plan is on the device.
    fn launch(&self, launches: Launches) -> nsbridge_gpu::Result<()> {
        let (mut turn, mut number) = (0, 0);
        let (rows, several) = (launches.rows, self.part.of > 1);
        let stride = self.widths.stride;
        let to = if several { &self.buffers.sums.turns[turn] } else { &self.buffers.stream };
        let tokens = (self.count(self.ends.places.tokens()), self.tokens.first);
        self.embedding.matrix.embed(tokens, (self.count(Places::ROWS), rows), (to, stride))?;
        self.meet(&mut number)?;
        // With one rank, the embeddings are the stream already.
        let mut summed = several.then_some((None, true));
        for (index, layer) in self.layers.iter().enumerate() {
            self.normalize(&layer.attention_norm, summed, turn, None, rows)?;
            turn ^= usize::from(summed.is_some());
            self.attend(index, launches)?;
            self.multiply(&layer.output, &self.buffers.attended_forms, turn, rows)?;
            self.meet(&mut number)?;
            let bias = layer.output.bias.as_ref();
            self.normalize(&layer.feed_forward_norm, Some((bias, false)), turn, None, rows)?;
            turn ^= 1;
            self.feed_forward(layer, rows)?;
            self.multiply(&layer.down, &self.buffers.wide_forms, turn, rows)?;
            self.meet(&mut number)?;
            summed = Some((layer.down.bias.as_ref(), false));
        }
        if launches.wanted == 0 {
            return Ok(());
        }
        let picked = Some(self.count(self.ends.places.wanted()));
        self.normalize(&self.norm, summed, turn, picked, launches.wanted)?;
        if let Some(output) = self.output() {
            let first = self.part.rank * self.tokens.each;
            let to = Destination::Floats { out: &self.out, stride: self.row(), first };
            let rows = (self.count(Places::WANTED), launches.wanted);
            output.matrix.multiply(&self.buffers.normed, rows, false, to)?;
            self.meet(&mut number)?;
        }
        Ok(())
    }

    /// Returns the output matrix, unless a step ends with the last norm.
    fn output(&self) -> Option<&GpuMatrix> {
        (!self.hidden).then(|| self.output.as_ref().unwrap_or(&self.embedding))
    }

    /// Refers to the integers of the plan from an index on.
    fn count(&self, at: usize) -> Count<'_> {
        Count::new(&self.ends.plan, at)
    }

    /// Adds the sums of all ranks to the residual stream and computes the norms, of the picked rows
    /// or of all.
    fn normalize(
        &self,
        weight: &Buffer,
        summed: Option<(Option<&Buffer>, bool)>,
        turn: usize,
        picked: Option<Count<'_>>,
        rows: usize,
    ) -> nsbridge_gpu::Result<()> {
        let own = [&self.buffers.sums.turns[turn]];
        let of_ranks: Vec<_> = self.sums.iter().map(|sums| &sums.turns[turn]).collect();
        let partials = if self.part.of == 1 { &own[..] } else { &of_ranks[..] };
        let norm = Norm {
            stream: &self.buffers.stream,
            stride: self.widths.stride,
            weight,
            eps: self.eps,
            sums: summed.map(|(bias, replaces)| OfRanks { partials, bias, replaces }),
            picked,
        };
        let count = if picked.is_some() { Places::WANTED } else { Places::ROWS };
        let rows = (self.count(count), rows);
        norm.write(self.buffers.rows, rows, &self.buffers.normed)
    }

    /// Computes the attention of the normalized rows.
    fn attend(&self, index: usize, launches: Launches) -> nsbridge_gpu::Result<()> {
        let Buffers { normed, qkv, attended, attended_forms, .. } = &self.buffers;
        let (layer, places, stride) = (&self.layers[index], &self.ends.places, self.widths.qkv);
        let rows = (self.count(Places::ROWS), launches.rows);
        let mut first = 0;
        for matrix in &layer.qkv {
            let to = Destination::Floats { out: qkv, stride, first };
            matrix.matrix.multiply(normed, rows, false, to)?;
            first += matrix.matrix.shape().rows;
        }
        let positions = self.count(places.positions());
        let place = Place {
            x: qkv,
            stride,
            positions,
            pages: self.count(places.pages()),
            angles: self.angles.each_ref(),
            norms: layer.head_norms.as_ref().map(|norms| norms.each_ref()),
            eps: self.eps,
        };
        let cache = (&self.cache, index);
        place.write(rows, cache)?;
        let attention = AttentionPlan {
            counts: self.count(Places::counts(layer.window)),
            items: self.count(places.items(layer.window)),
            merges: self.count(places.merges(layer.window)),
            tables: self.count(places.tables()),
            positions,
            rows_at_once: launches.rows_at_once,
            most_merges: launches.rows,
            window: self.windows[layer.window],
        };
        self.attention.attend((qkv, stride), launches.rows, &attention, cache, attended)?;
        attended_forms.form((attended, self.widths.attended), rows)
    }

    /// Computes the input of the layer's last matrix from the normalized rows.
    fn feed_forward(&self, layer: &GpuLayer, most: usize) -> nsbridge_gpu::Result<()> {
        let Buffers { normed, wide, wide_forms, .. } = &self.buffers;
        let rows = (self.count(Places::ROWS), most);
        if layer.down.matrix.form() == Form::Brains {
            let to = Destination::Brains(wide_forms);
            return layer.gate_up.matrix.multiply(normed, rows, true, to);
        }
        let stride = self.widths.wide_stride;
        let to = Destination::Floats { out: wide, stride, first: 0 };
        layer.gate_up.matrix.multiply(normed, rows, true, to)?;
        wide_forms.form((wide, stride), rows)
    }

    /// Computes this rank's partial sums.
    fn multiply(
        &self,
        partial: &GpuPartial,
        x: &Activations,
        turn: usize,
        most: usize,
    ) -> nsbridge_gpu::Result<()> {
        let out = &self.buffers.sums.turns[turn];
        let to = Destination::Floats { out, stride: self.widths.stride, first: 0 };
        partial.matrix.matrix.multiply(x, (self.count(Places::ROWS), most), false, to)
    }

    /// Enqueues a rendezvous, after which the partial sums of all ranks can be read.
    fn meet(&self, number: &mut u32) -> nsbridge_gpu::Result<()> {
        if self.part.of == 1 {
            return Ok(());
        }
        // The embeddings, two for each layer, and the logits.
        let in_step = 2 + 2 * self.layers.len() as u32;
        let meeting = Meeting {
            flags: &self.flags,
            rank: self.part.rank,
            step: self.count(Places::STEP),
            number: [*number, in_step],
            limit: self.handle.patience(),
        };
        *number += 1;
        meeting.meet()
    }
}

impl Rank for GpuShard {
    fn run(&mut self, step: &Step) -> Result<(), RankLost> {
        match self.step(step) {
            Ok(()) => Ok(()),
            Err(Failed::Lost(lost)) => Err(lost),
            Err(Failed::Device(error)) => {
                Err(self.handle.report_lost(&format!("failed on its device: {error}")))
            }
        }
    }

    fn chosen(&self) -> Option<&Chosen> {
        self.chosen.as_ref()
    }

    fn copy(&self, row: u32) -> Vec<f32> {
        let mut numbers = vec![0.0; self.row()];
        let copied = self.out.read(4 * row as usize * numbers.len(), &mut numbers);
        // The next step returns the error.
        copied.map_or_else(|_| Vec::new(), |()| numbers)
    }

    fn logits(&self, step: &Step) -> Rows<'_> {
        let stride = self.row();
        Rows { numbers: &self.logits[..step.wanted.len() * stride], stride }
    }

    fn arithmetic(&self) -> String {
        self.formats.clone()
    }
}

impl fmt::Debug for GpuShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuShard").field("part", &self.part).finish_non_exhaustive()
    }
}
