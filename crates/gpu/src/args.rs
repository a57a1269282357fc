//! Arguments of the kernels: the structs of `kernels/args.h`.

#![expect(unsafe_code, reason = "structs are passed as bytes")]

use crate::device::{Launch, Plain};

/// Largest number of ranks of a model.
pub(crate) const RANKS: usize = 8;

/// Most shared memory for the stages of products with many rows, in bytes.
pub(crate) const STAGES_BYTES: usize = 98 << 10;

/// Address on the device, or 0 for none.
pub(crate) type Address = u64;

/// Arguments of a kernel.
///
/// # Safety
///
/// The struct is that of the kernel, and has no padding.
pub(crate) unsafe trait Args: Copy {
    /// Returns the launch of a kernel with these arguments.
    fn launch(&self, kernel: &'static str, blocks: [u32; 2], threads: u32) -> Launch<'_> {
        let (start, bytes) = (std::ptr::from_ref(self).cast::<u8>(), size_of::<Self>());
        // SAFETY: the struct has no padding, and is that long.
        let args = unsafe { std::slice::from_raw_parts(start, bytes) };
        Launch { kernel, blocks, threads, shared: 0, args }
    }
}

macro_rules! args {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default)]
            #[repr(C)]
            pub(crate) struct $name {
                $(pub(crate) $field: $type,)*
            }

            // Without padding, the fields have all the bytes.
            const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$type>())*);

            // SAFETY: the fields are those of the header, in this order, without padding.
            unsafe impl Args for $name {}

            // SAFETY: as above; numbers may have any bits.
            unsafe impl Plain for $name {}
        )*
    };
}

args! {
    Forms {
        floats: Address,
        brains: Address,
        values32: Address,
        scales32: Address,
        values256: Address,
        scales256: Address,
        sums256: Address,
        columns: u32,
        stride: u32,
    }
    Weights {
        values: Address,
        heads: Address,
        rows: u32,
        columns: u32,
        format: u32,
        reserved: u32,
    }
    EmbedArgs {
        weights: Weights,
        rows: Address,
        tokens: Address,
        out: Address,
        first_token: u32,
        stride: u32,
    }
    NormArgs {
        stream: Address,
        rows: Address,
        picked: Address,
        partials: [Address; RANKS],
        bias: Address,
        weight: Address,
        out: Forms,
        ranks: u32,
        stride: u32,
        replaces: u32,
        eps: f32,
    }
    FormArgs {
        x: Address,
        rows: Address,
        out: Forms,
        stride: u32,
        reserved: u32,
    }
    ProductArgs {
        weights: Weights,
        x: Address,
        scales: Address,
        sums: Address,
        rows: Address,
        bias: Address,
        out: Address,
        brains: Address,
        segments: u32,
        stride: u32,
        x_stride: u32,
        reserved: u32,
    }
    Cache {
        keys: Address,
        values: Address,
        heads: u32,
        dim: u32,
    }
    PlaceArgs {
        x: Address,
        rows: Address,
        positions: Address,
        pages: Address,
        cos: Address,
        sin: Address,
        query_norm: Address,
        key_norm: Address,
        cache: Cache,
        queries: u32,
        stride: u32,
        eps: f32,
        reserved: u32,
    }
    AttendArgs {
        queries: Address,
        counts: Address,
        items: Address,
        positions: Address,
        tables: Address,
        cache: Cache,
        out: Address,
        heads: Address,
        mixes: Address,
        group: u32,
        stride: u32,
        window: u32,
        scale: f32,
    }
    MergeArgs {
        counts: Address,
        merges: Address,
        heads: Address,
        mixes: Address,
        out: Address,
        queries: u32,
        dim: u32,
    }
    PackArgs {
        source: Address,
        values: Address,
        heads: Address,
        rows: u32,
        columns: u32,
        row_bytes: u32,
        reserved: u32,
    }
    MeetArgs {
        flags: [Address; RANKS],
        step: Address,
        lost: Address,
        limit_nanoseconds: u64,
        rank: u32,
        ranks: u32,
        number: u32,
        in_step: u32,
    }
    CopyArgs {
        keys: Address,
        values: Address,
        layer_bytes: u64,
        page_bytes: u32,
        from: u32,
        to: u32,
        reserved: u32,
    }
    Change {
        token: u32,
        bias: f32,
        count: u32,
    }
    SampleRow {
        noise: u64,
        min_p: f64,
        temperature: f32,
        per_temperature: f32,
        top_p: f32,
        top_k: u32,
        repetition: f32,
        frequency: f32,
        presence: f32,
        row: u32,
        mask: u32,
        marks: u32,
        first_change: u32,
        changes: u32,
    }
    Choice {
        token: u32,
        logit: f32,
    }
    SampleArgs {
        logits: Address,
        rows: Address,
        words: Address,
        changes: Address,
        ranks: Address,
        scores: Address,
        tokens: Address,
        masses: Address,
        lasts: Address,
        choices: Address,
        vocab: u32,
        stride: u32,
        chunks: u32,
        count: u32,
    }
    LikeliestRow {
        row: u32,
        top: u32,
    }
    LikeliestArgs {
        logits: Address,
        rows: Address,
        maxima: Address,
        totals: Address,
        top: Address,
        vocab: u32,
        stride: u32,
        most: u32,
        reserved: u32,
    }
    NoiseArgs {
        numbers: Address,
        count: u64,
    }
}
