//! Sampling of tokens, and the likeliest tokens of a row.
//!
//! The tokens are those of the CPU's `sample` (`nsbridge-llama`). Only ids and short lists leave the
//! device, and the logits stay as they are. The CPU must sample a row ([`Choice::Elsewhere`]) if
//!
//! - `top_k` is above 512 and below the size of the vocabulary, or more than 2048 candidates for the
//!   k likeliest tokens are left: at random, a `top_k` of 400 leaves 780 of them, and one of 505
//!   leaves 2200;
//! - `top_p` without `top_k` ends among more than 2048 tokens whose logits, divided by the
//!   temperature, differ by less than 1/64: many equal logits, or a temperature near infinity.

#![expect(unsafe_code, reason = "kernels are launched with addresses")]

use std::sync::Arc;

use crate::args::{self, Args, LikeliestArgs, LikeliestRow, NoiseArgs, SampleArgs, SampleRow};
use crate::device::{Buffer, Device, Plain};
use crate::error::Result;

/// Tokens of a row that a block of threads samples from.
const CHUNK: usize = 4096;

/// Steps of logits whose masses are added up for top-p.
const STEPS: usize = 46 * 64 + 1;

/// Largest number of likeliest tokens of a row.
pub const MOST_LIKELIEST: usize = 256;

const THREADS: u32 = 256;
const CUT_THREADS: u32 = 512;
const CHOOSE_THREADS: u32 = 32;

/// Offset of no words.
const NOWHERE: u32 = u32::MAX;
/// Count of a token to which no penalty applies.
const UNPENALIZED: u32 = u32::MAX;
const NO_TOKEN: u32 = u32::MAX;
const NOT_HERE: u32 = u32::MAX - 1;

/// Change of a token's logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Token.
    pub token: u32,
    /// Number that is added to the logit; -0.0 changes nothing.
    pub bias: f32,
    /// Number of occurrences in the reply, if penalties apply to the token.
    pub count: Option<u32>,
}

/// Token to sample.
#[derive(Clone, Copy, Debug)]
pub struct Draw<'a> {
    /// Row of logits.
    pub row: u32,
    /// State of the noise, to which each token adds its own.
    pub noise: u64,
    /// Weight of the noise; 0 takes the likeliest token.
    pub temperature: f32,
    /// Number of likeliest tokens to choose among; 0 means all.
    pub top_k: u32,
    /// Probability mass of the likeliest tokens to choose among; 1 means all.
    pub top_p: f32,
    /// Distance of the least logit that is kept from the largest; negative infinity keeps all.
    pub least: f64,
    /// Repetition, frequency and presence penalty.
    pub penalties: [f32; 3],
    /// Tokens that may be chosen: token `t` is bit `t % 32` of word `t / 32`. None are allowed beyond
    /// the words.
    pub mask: Option<&'a [u32]>,
    /// Tokens to which a change or the repetition penalty applies. Those that have no change are in
    /// the prompt.
    pub marks: Option<&'a [u32]>,
    /// Changes in the order of their tokens, one for each token, all of which are marked.
    pub changes: &'a [Change],
}

/// Tokens to sample at once.
#[derive(Debug)]
pub struct Batch {
    vocab: usize,
    rows: Vec<SampleRow>,
    words: Vec<u32>,
    changes: Vec<args::Change>,
    is_drawn: bool,
    is_cut: bool,
    has_nucleus: bool,
}

impl Batch {
    /// Creates a batch without tokens, for rows of `vocab` logits.
    pub fn new(vocab: usize) -> Self {
        Self {
            vocab,
            rows: Vec::new(),
            words: Vec::new(),
            changes: Vec::new(),
            is_drawn: false,
            is_cut: false,
            has_nucleus: false,
        }
    }

    /// Returns the number of logits of a row.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Returns the number of tokens to sample.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns true if there is no token to sample.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds a token.
    pub fn push(&mut self, draw: &Draw<'_>) {
        let is_few = draw.top_k > 0 && (draw.top_k as usize) < self.vocab;
        let is_drawn = draw.temperature != 0.0;
        self.is_drawn |= is_drawn;
        self.is_cut |= is_drawn && (is_few || draw.top_p < 1.0);
        self.has_nucleus |= is_drawn && !is_few && draw.top_p < 1.0;
        let [repetition, frequency, presence] = draw.penalties;
        let (mask, marks) = (self.put(draw.mask), self.put(draw.marks));
        self.rows.push(SampleRow {
            noise: draw.noise,
            min_p: draw.least,
            temperature: draw.temperature,
            per_temperature: 1.0 / draw.temperature,
            top_p: draw.top_p,
            top_k: draw.top_k,
            repetition,
            frequency,
            presence,
            row: draw.row,
            mask,
            marks,
            first_change: self.changes.len() as u32,
            changes: draw.changes.len() as u32,
        });
        self.changes.extend(draw.changes.iter().map(|change| args::Change {
            token: change.token,
            bias: change.bias,
            count: change.count.unwrap_or(UNPENALIZED),
        }));
    }

    /// Adds words for the whole vocabulary, and returns their offset.
    fn put(&mut self, words: Option<&[u32]>) -> u32 {
        let Some(words) = words else { return NOWHERE };
        let at = self.words.len();
        let all = self.vocab.div_ceil(u32::BITS as usize);
        self.words.extend(&words[..words.len().min(all)]);
        self.words.resize(at + all, 0);
        at as u32
    }
}

/// Outcome of sampling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// Token and its logit before all changes.
    Token(u32, f32),
    /// No token may be chosen.
    None,
    /// The CPU must sample the row.
    Elsewhere,
}

/// Likeliest tokens of raw logits.
#[derive(Clone, Debug, PartialEq)]
pub struct Likeliest {
    /// Largest logit, or negative infinity if there is no number.
    pub max: f32,
    /// Sum of the weights `exp(logit - max)`, if there is a largest logit.
    pub total: f64,
    /// Likeliest tokens with their logits, the likeliest first, equals by id. It is missing if the
    /// CPU must find them.
    pub top: Option<Vec<(u32, f32)>>,
}

/// Buffers for sampling.
#[derive(Debug)]
pub struct Sampler {
    device: Arc<dyn Device>,
    vocab: usize,
    most: usize,
    rows: Buffer,
    words: Buffer,
    changes: Buffer,
    ranks: Buffer,
    scores: Buffer,
    tokens: Buffer,
    masses: Buffer,
    lasts: Buffer,
    choices: Buffer,
}

impl Sampler {
    /// Allocates buffers for at most `most` tokens at once, from rows of `vocab` logits.
    ///
    /// # Errors
    ///
    /// Returns an error if memory is short.
    pub fn new(device: &Arc<dyn Device>, vocab: usize, most: usize) -> Result<Self> {
        let parts = most * vocab.div_ceil(CHUNK);
        let zeroed = |bytes| Buffer::zeroed(device, bytes);
        Ok(Self {
            device: device.clone(),
            vocab,
            most,
            rows: zeroed(most * size_of::<SampleRow>())?,
            words: zeroed(0)?,
            changes: zeroed(0)?,
            ranks: zeroed(8 * parts)?,
            scores: zeroed(8 * parts)?,
            tokens: zeroed(4 * parts)?,
            masses: zeroed(8 * most * STEPS)?,
            lasts: zeroed(8 * most)?,
            choices: zeroed(most * size_of::<args::Choice>())?,
        })
    }

    /// Returns the number of tokens that there is room for.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Enqueues the sampling of a batch. Rows of logits are `stride` numbers apart.
    ///
    /// # Errors
    ///
    /// Returns an error if the device fails.
    ///
    /// # Panics
    ///
    /// Panics if the batch has more tokens than there is room for, or another vocabulary, or a row
    /// that is not in the buffer.
    pub fn sample(&mut self, (logits, stride): (&Buffer, usize), batch: &Batch) -> Result<()> {
        let (count, vocab) = (batch.len(), self.vocab);
        assert!(count <= self.most && batch.vocab == vocab && vocab <= stride, "rows that fit");
        let rows = batch.rows.iter().map(|row| row.row as usize + 1).max().unwrap_or_default();
        if count == 0 {
            return Ok(());
        }
        self.rows.write(0, &batch.rows)?;
        put(&mut self.words, &batch.words)?;
        put(&mut self.changes, &batch.changes)?;
        let chunks = vocab.div_ceil(CHUNK);
        let args = SampleArgs {
            logits: place_rows(logits, (rows, stride), vocab),
            rows: self.rows.place(0, 0),
            words: self.words.place(0, 0),
            changes: self.changes.place(0, 0),
            ranks: self.ranks.place(0, 0),
            scores: self.scores.place(0, 0),
            tokens: self.tokens.place(0, 0),
            masses: self.masses.place(0, 0),
            lasts: self.lasts.place(0, 0),
            choices: self.choices.place(0, 0),
            vocab: vocab as u32,
            stride: stride as u32,
            chunks: chunks as u32,
            count: count as u32,
        };
        let count = count as u32;
        let of_chunks = [chunks as u32, count];
        let all = [
            ("sample_rank", chunks > 0, of_chunks, THREADS),
            ("sample_masses", batch.has_nucleus, of_chunks, THREADS),
            ("sample_cut", batch.is_cut, [count, 1], CUT_THREADS),
            ("sample_draw", batch.is_drawn, of_chunks, THREADS),
            ("sample_choose", true, [count.div_ceil(CHOOSE_THREADS), 1], CHOOSE_THREADS),
        ];
        for (kernel, _, blocks, threads) in all.into_iter().filter(|(_, needed, ..)| *needed) {
            // SAFETY: the buffers have room for as many rows, and the logits have these rows. Words
            // and changes are within the buffers, since `push` put them there.
            unsafe { self.device.launch(&args.launch(kernel, blocks, threads)) }?;
        }
        Ok(())
    }

    /// Waits, and returns what was chosen for the first `count` tokens of the last batch.
    ///
    /// # Errors
    ///
    /// Returns an error if the device fails.
    ///
    /// # Panics
    ///
    /// Panics if there is no room for as many tokens.
    pub fn choices(&self, count: usize) -> Result<Vec<Choice>> {
        let mut choices = vec![args::Choice::default(); count];
        self.choices.read(0, &mut choices)?;
        let choice = |choice: args::Choice| match choice.token {
            NO_TOKEN => Choice::None,
            NOT_HERE => Choice::Elsewhere,
            token => Choice::Token(token, choice.logit),
        };
        Ok(choices.into_iter().map(choice).collect())
    }

    /// Finds the likeliest tokens of raw logits: for each pair, of a row, so many. Waits for them.
    ///
    /// # Errors
    ///
    /// Returns an error if the device fails or memory is short.
    ///
    /// # Panics
    ///
    /// Panics if a row is not in the buffer, or if more than [`MOST_LIKELIEST`] tokens are wanted.
    pub fn likeliest(
        &self,
        (logits, stride): (&Buffer, usize),
        wanted: &[(u32, u32)],
    ) -> Result<Vec<Likeliest>> {
        let most = wanted.iter().map(|(_, top)| *top as usize).max().unwrap_or_default();
        assert!(most <= MOST_LIKELIEST && self.vocab <= stride, "rows that fit");
        let rows = wanted.iter().map(|(row, _)| *row as usize + 1).max().unwrap_or_default();
        if rows == 0 {
            return Ok(Vec::new());
        }
        let of: Vec<LikeliestRow> =
            wanted.iter().map(|&(row, top)| LikeliestRow { row, top }).collect();
        let count = wanted.len();
        let of = Buffer::of(&self.device, &of)?;
        let zeroed = |bytes| Buffer::zeroed(&self.device, bytes);
        let (maxima, totals) = (zeroed(4 * count)?, zeroed(8 * count)?);
        let top = zeroed(size_of::<args::Choice>() * most * count)?;
        let args = LikeliestArgs {
            logits: place_rows(logits, (rows, stride), self.vocab),
            rows: of.place(0, 0),
            maxima: maxima.place(0, 0),
            totals: totals.place(0, 0),
            top: top.place(0, 0),
            vocab: self.vocab as u32,
            stride: stride as u32,
            most: most as u32,
            reserved: 0,
        };
        // SAFETY: the logits have the rows, and the other buffers a place for each.
        unsafe {
            self.device.launch(&args.launch("sample_likeliest", [count as u32, 1], CUT_THREADS))?;
        }
        let (mut max, mut total) = (vec![0.0f32; count], vec![0.0f64; count]);
        let mut tokens = vec![args::Choice::default(); most * count];
        maxima.read(0, &mut max)?;
        totals.read(0, &mut total)?;
        top.read(0, &mut tokens)?;
        let list = |at: usize, wanted: usize, max: f32| {
            // Nothing is written for a row without numbers.
            let wanted = if max >= f32::MIN { wanted } else { 0 };
            let all = tokens[at * most..][..wanted].iter();
            let found = all.take_while(|choice| choice.token != NO_TOKEN);
            let pair = |choice: &args::Choice| {
                (choice.token != NOT_HERE).then_some((choice.token, choice.logit))
            };
            found.map(pair).collect::<Option<Vec<_>>>()
        };
        let each = wanted.iter().zip(max).zip(total).enumerate();
        Ok(each
            .map(|(at, ((&(_, wanted), max), total))| Likeliest {
                max,
                total,
                top: list(at, wanted as usize, max),
            })
            .collect())
    }
}

/// Replaces random bits by the bits of the noise that sampling makes of them, as f64: for tests.
///
/// # Errors
///
/// Returns an error if the device fails.
pub fn noise(numbers: &Buffer) -> Result<()> {
    let count = numbers.bytes() / 8;
    let args = NoiseArgs { numbers: numbers.place(0, 8 * count), count: count as u64 };
    let blocks = [count.div_ceil(THREADS as usize) as u32, 1];
    // SAFETY: the buffer has the numbers.
    unsafe { numbers.device().launch(&args.launch("sample_noise", blocks, THREADS)) }
}

/// Returns the address of rows of logits.
///
/// # Panics
///
/// Panics if the last of them is not within the buffer.
fn place_rows(logits: &Buffer, (rows, stride): (usize, usize), vocab: usize) -> args::Address {
    logits.place(0, 4 * (rows.saturating_sub(1) * stride + vocab))
}

/// Writes numbers into a buffer, which grows if it is too small.
fn put<T: Plain>(buffer: &mut Buffer, numbers: &[T]) -> Result<()> {
    let bytes = size_of_val(numbers);
    if buffer.bytes() < bytes {
        *buffer = Buffer::zeroed(buffer.device(), bytes.next_power_of_two())?;
    }
    buffer.write(0, numbers)
}
