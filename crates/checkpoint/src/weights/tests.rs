//! Parts of tensors, and the sharing of tensors between ranks.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::{fs, thread};

use nsbridge_handler::{Buffer, Model};
use proptest::prelude::*;

use super::{Weight, Weights};
use crate::checkpoint::Checkpoint;
use crate::dtype::Dtype;
use crate::fixtures::{Memory, Reads, entry, safetensors};
use crate::order::Order;
use crate::tensor::TensorInfo;

/// Tensor whose bytes count up from 0.
fn numbered(dtype: Dtype, shape: &[usize]) -> Weight {
    let len = dtype.bytes_of_shape(shape).unwrap();
    let (filling, mut segments) = Buffer::filled_by(len as usize, dtype.align(), &[]).unwrap();
    segments[0].iter_mut().zip(0..).for_each(|(byte, i): (_, usize)| *byte = i as u8);
    drop(segments);
    let (name, shape) = ("w".to_owned(), shape.to_vec());
    let info = TensorInfo { name, dtype, shape, file: 0, range: 0..len };
    Weight::whole(&info, Arc::new(filling.finish().unwrap()))
}

/// Checks a cut: the resulting shape, and the byte ranges of its runs.
#[track_caller]
fn check(
    (dtype, shape): (Dtype, &[usize]),
    (dim, range): (usize, Range<usize>),
    cut_shape: &[usize],
    runs: &[(u8, u8)],
) {
    let weight = numbered(dtype, shape).slice(dim, range).unwrap();
    assert_eq!((weight.shape(), weight.dtype()), (cut_shape, dtype));
    let runs: Vec<Vec<u8>> = runs.iter().map(|&(from, to)| (from..to).collect()).collect();
    assert_eq!(weight.runs().collect::<Vec<_>>(), runs);
    assert_eq!(*weight.contiguous(), runs.concat());
    if dtype.block() == (1, 1) {
        assert_eq!(weight.into_vec::<u8>().unwrap(), runs.concat());
    }
}

#[test]
fn a_slice_is_what_its_indices_say() {
    let (f32, u8) = (Dtype::F32, Dtype::U8);
    check((u8, &[7]), (0, 2..5), &[3], &[(2, 5)]);
    check((u8, &[7]), (0, 0..7), &[7], &[(0, 7)]);
    check((f32, &[4, 3]), (0, 1..3), &[2, 3], &[(12, 36)]);
    check((f32, &[3, 4]), (1, 1..3), &[3, 2], &[(4, 12), (20, 28), (36, 44)]);
    check((u8, &[3, 4]), (1, 0..4), &[3, 4], &[(0, 4), (4, 8), (8, 12)]);
    check((u8, &[1, 8]), (1, 2..6), &[1, 4], &[(2, 6)]);
    check((u8, &[2, 3, 4]), (0, 1..2), &[1, 3, 4], &[(12, 24)]);
    check((u8, &[2, 3, 4]), (1, 1..3), &[2, 2, 4], &[(4, 12), (16, 24)]);
    check((u8, &[2, 2, 2, 3]), (1, 1..2), &[2, 1, 2, 3], &[(6, 12), (18, 24)]);
}

#[test]
fn rows_are_cut_again_by_rows_and_by_columns() {
    let rows = || numbered(Dtype::U8, &[5, 4]).slice(0, 1..4).unwrap();
    assert_eq!(*rows().slice(0, 1..2).unwrap().contiguous(), [8, 9, 10, 11]);
    assert_eq!(rows().slice(1, 1..3).unwrap().into_vec::<u8>().unwrap(), [5, 6, 9, 10, 13, 14]);
    assert!(rows().slice(0, 3..4).is_err(), "the tensor has it, the part does not");
}

#[test]
fn a_slice_of_nothing_is_empty_and_costs_nothing() {
    let u8 = Dtype::U8;
    check((u8, &[7]), (0, 7..7), &[0], &[(0, 0)]);
    check((u8, &[3, 4]), (1, 4..4), &[3, 0], &[(0, 0)]);
    check((u8, &[0, 8]), (1, 3..8), &[0, 5], &[(0, 0)]);
    check((u8, &[1 << 60, 4, 0]), (1, 0..2), &[1 << 60, 2, 0], &[(0, 0)]);
    let none_of_one = numbered(u8, &[1, 4]).slice(0, 0..0).unwrap().slice(1, 0..4).unwrap();
    assert_eq!(none_of_one.into_vec::<u8>().unwrap(), Vec::<u8>::new());
    let twice = numbered(u8, &[0, 8]).slice(1, 3..8).unwrap().slice(0, 0..0).unwrap();
    assert_eq!(*twice.contiguous(), *b"");
}

#[test]
fn blocks_are_cut_between_and_never_through() {
    let q8 = Dtype::Q8_0;
    check((q8, &[2, 96]), (1, 32..96), &[2, 64], &[(34, 102), (136, 204)]);
    check((q8, &[3, 32]), (0, 1..3), &[2, 32], &[(34, 102)]);
    check((q8, &[96]), (0, 64..96), &[32], &[(68, 102)]);
    check((q8, &[2, 2, 32]), (1, 1..2), &[2, 1, 32], &[(34, 68), (102, 136)]);
    let refused = |dim, range| numbered(q8, &[2, 96]).slice(dim, range).unwrap_err().to_string();
    for range in [16..64, 0..48, 32..33, 1..1] {
        assert_eq!(
            refused(1, range.clone()),
            format!("the tensor w has blocks that {range:?} would cut")
        );
    }
    assert!(numbered(q8, &[96]).shard(0, 0, 2).is_err(), "48 are no whole blocks");
}

#[test]
fn a_part_that_a_tensor_does_not_have_is_refused_by_its_name() {
    #[track_caller]
    fn check(shape: &[usize], (dim, range): (usize, Range<usize>), reason: &str) {
        let refused = numbered(Dtype::U8, shape).slice(dim, range).unwrap_err().to_string();
        assert!(refused.contains("the tensor w ") && refused.contains(reason), "{refused}");
    }
    check(&[4], (0, 0..5), "no 0..5 in dimension 0");
    check(&[4], (0, usize::MAX - 1..usize::MAX), "in dimension 0");
    #[expect(clippy::reversed_empty_ranges, reason = "what is to be refused")]
    check(&[4], (0, 3..2), "no 3..2 in dimension 0");
    check(&[4], (1, 0..1), "in dimension 1");
    check(&[], (0, 0..1), "in dimension 0");
    check(&[2, 2, 2], (2, 0..1), "first or second dimension");
    let columns = numbered(Dtype::U8, &[2, 4]).slice(1, 0..2).unwrap();
    assert!(columns.slice(0, 0..1).is_err(), "a cut of columns is cut no further");
}

#[test]
fn ranks_share_evenly_or_not_at_all() {
    let shard = |dim, rank, of| numbered(Dtype::U8, &[4, 6]).shard(dim, rank, of);
    assert_eq!(*shard(0, 3, 4).unwrap().contiguous(), *(18..24).collect::<Vec<u8>>());
    assert_eq!(*shard(1, 1, 3).unwrap().contiguous(), [2, 3, 8, 9, 14, 15, 20, 21]);
    assert_eq!(*shard(0, 0, 1).unwrap().contiguous(), *(0..24).collect::<Vec<u8>>());
    let refused = [(0, 0, 3), (1, 0, 4), (0, 4, 4), (0, 0, 5), (0, 0, 0), (2, 0, 2)];
    for (dim, rank, of) in refused {
        let said = shard(dim, rank, of).unwrap_err().to_string();
        assert!(said.contains(&format!("{of} ranks cannot share (rank {rank})")), "{said}");
    }
}

#[test]
fn numbers_are_of_their_size_and_a_whole_tensor_of_one_owner_is_not_copied() {
    let numbers = |weight: &Weight| weight.contiguous().as_ptr() as usize;
    let alone = numbered(Dtype::F32, &[2, 3]);
    let place = numbers(&alone);
    assert!(alone.clone().into_vec::<u16>().is_err() && alone.clone().into_vec::<f64>().is_err());
    let copied = alone.clone().into_vec::<f32>().unwrap();
    assert_ne!(copied.as_ptr() as usize, place, "somebody else holds it");
    let moved = alone.into_vec::<u32>().unwrap();
    assert_eq!(moved.as_ptr() as usize, place, "nothing was copied");
    assert_eq!(moved[1], u32::from_le_bytes([4, 5, 6, 7]));
    let part = numbered(Dtype::U16, &[2, 2]).slice(1, 1..2).unwrap().into_vec::<u16>().unwrap();
    assert_eq!(part, [0x0302, 0x0706]);
    assert!(numbered(Dtype::Q8_0, &[32]).into_vec::<u8>().is_err());
}

proptest! {
    #[test]
    fn a_slice_of_any_matrix_is_the_naive_one(
        (rows, columns) in (1usize..12, 1usize..12),
        size in prop::sample::select(vec![Dtype::U8, Dtype::F16, Dtype::F32, Dtype::F64]),
        dim in 0usize..2,
        (a, b) in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
    ) {
        let width = size.block().1;
        let len = [rows, columns][dim];
        let (a, b) = (a.index(len + 1), b.index(len + 1));
        let range = a.min(b)..a.max(b);
        let taken = |row: usize, column: usize| range.contains(&[row, column][dim]);
        let cells = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        let naive: Vec<u8> = cells
            .filter(|&(row, column)| taken(row, column))
            .map(|(row, column)| (row * columns + column) * width)
            .flat_map(|at| (at..at + width).map(|at| at as u8))
            .collect();
        let weight = numbered(size, &[rows, columns]).slice(dim, range.clone()).unwrap();
        prop_assert_eq!(weight.contiguous().to_vec(), naive);
    }
}

/// Model of three tensors of 4 bytes each, with the counters of its reads.
fn model() -> (Model, Arc<Reads>) {
    let entries = ["a", "b", "c"]
        .iter()
        .zip([0, 4, 8])
        .map(|(name, at)| entry(name, "U8", "[2,2]", &format!("[{at},{}]", at + 4)));
    let header = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
    let memory = Memory::new(&[("model.safetensors", safetensors(&header, 12))]);
    let reads = memory.reads.clone();
    (memory.model(), reads)
}

fn load(order: &Order) -> (Weights, Arc<Reads>) {
    let (model, reads) = model();
    (Checkpoint::open(&model).unwrap().load(order).unwrap(), reads)
}

#[track_caller]
fn whole(weights: &Weights, name: &str, bytes: [u8; 4]) {
    assert_eq!(*weights.tensor(name).unwrap().contiguous(), bytes, "{name}");
}

/// Returns the number of streams started and of bytes loaded.
fn asked(reads: &Reads) -> (usize, usize) {
    (reads.streams.load(Ordering::Relaxed), reads.bytes.load(Ordering::Relaxed))
}

#[test]
fn tensors_come_in_any_order_each_once() {
    let (weights, reads) = load(&Order::everything());
    whole(&weights, "c", [8, 9, 10, 11]);
    whole(&weights, "a", [0, 1, 2, 3]);
    whole(&weights, "b", [4, 5, 6, 7]);
    assert_eq!(asked(&reads), (1, 12));
    assert_eq!(*weights.slice("b", 0, 1..2).unwrap().contiguous(), [6, 7], "again, and apart");
    assert_eq!(asked(&reads), (2, 16));
}

#[test]
fn a_name_that_is_ordered_twice_is_still_itself() {
    let (weights, reads) = load(&Order::of(["b", "a", "b", "c"]));
    whole(&weights, "b", [4, 5, 6, 7]);
    whole(&weights, "c", [8, 9, 10, 11]);
    whole(&weights, "a", [0, 1, 2, 3]);
    assert_eq!(asked(&reads), (1, 12));
}

#[test]
fn what_was_not_ordered_comes_all_the_same() {
    let (weights, reads) = load(&Order::of(["c"]));
    whole(&weights, "a", [0, 1, 2, 3]);
    whole(&weights, "c", [8, 9, 10, 11]);
    assert_eq!(asked(&reads), (2, 8));
    let unknown = weights.tensor("d").unwrap_err().to_string();
    assert_eq!(unknown, "the model in memory has no tensor d");
    let order = Order::of(["a", "d"]);
    let unknown = weights.checkpoint().load(&order).unwrap_err().to_string();
    assert_eq!(unknown, "the model in memory has no tensor d");
}

#[test]
fn ranks_that_run_apart_share_what_was_brought_once() {
    let (weights, reads) = load(&Order::everything().for_ranks(4));
    assert_eq!(weights.ranks(), 4);
    thread::scope(|scope| {
        for rank in 0..4 {
            let weights = weights.clone();
            scope.spawn(move || {
                // The ranks start at different tensors.
                let mut names = [("a", 0), ("b", 4), ("c", 8)];
                names.rotate_left(rank % 3);
                for (name, first) in names {
                    let first = first + 2 * (rank as u8 % 2);
                    let rows = weights.slice(name, 0, rank % 2..rank % 2 + 1).unwrap();
                    assert_eq!(*rows.contiguous(), [first, first + 1]);
                }
            });
        }
    });
    assert_eq!(asked(&reads), (1, 12));
    // All ranks have read. A further read loads the tensor again.
    whole(&weights, "a", [0, 1, 2, 3]);
    assert_eq!(asked(&reads), (2, 16));
}

#[test]
fn what_somebody_still_holds_is_not_brought_again() {
    let (weights, reads) = load(&Order::everything());
    let held = weights.tensor("a").unwrap();
    let again = weights.tensor("a").unwrap();
    assert_eq!(held.contiguous().as_ptr(), again.contiguous().as_ptr());
    assert_eq!(asked(&reads), (1, 4));
    drop((held, again));
    whole(&weights, "a", [0, 1, 2, 3]);
    assert_eq!(asked(&reads), (2, 8));
}

#[test]
fn a_rank_after_one_that_failed_asks_for_itself() {
    let (weights, reads) = load(&Order::everything().for_ranks(2));
    reads.fails.store(true, Ordering::Relaxed);
    assert_eq!(weights.tensor("a").unwrap_err().to_string(), "the line is cut");
    whole(&weights, "a", [0, 1, 2, 3]);
}

#[test]
fn the_last_reader_gets_the_memory_itself() {
    let (weights, _) = load(&Order::everything().for_ranks(2));
    let first = weights.tensor("a").unwrap();
    let place = first.contiguous().as_ptr() as usize;
    drop(first);
    let last = weights.tensor("a").unwrap().into_vec::<u8>().unwrap();
    assert_eq!((last.as_ptr() as usize, &last[..]), (place, &[0, 1, 2, 3][..]));
}

#[test]
fn a_folder_is_read_and_a_file_that_shrank_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.safetensors");
    let header = format!("{{{}}}", entry("a", "F32", "[2]", "[0,8]"));
    fs::write(&file, safetensors(&header, 8)).unwrap();
    let checkpoint = Checkpoint::open(&Model::in_dir(dir.path())).unwrap();
    let weights = checkpoint.load(&Order::everything()).unwrap();
    assert_eq!(*weights.tensor("a").unwrap().contiguous(), *(0..8).collect::<Vec<u8>>());
    fs::write(&file, safetensors(&header, 7)).unwrap();
    let refused = weights.tensor("a").unwrap_err().to_string();
    assert!(
        refused.contains("could not read") && refused.contains("model.safetensors"),
        "{refused}"
    );
}
