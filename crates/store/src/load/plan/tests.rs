//! Plans by example, and random plans against a simple reference.

use nsbridge_handler::source::Extent;
use proptest::prelude::*;

use super::{Plan, Stretch};
use crate::contents::Cut;

const CHUNK: u64 = 10;

fn extent(file: usize, range: std::ops::Range<u64>) -> Extent {
    Extent::new(file, range, 1)
}

fn cut(size: u64, whole: bool) -> impl Fn(usize) -> Cut {
    move |_| Cut { size, chunk: CHUNK, whole }
}

#[test]
fn chunks_come_in_the_order_in_which_extents_are_wanted_and_each_once() {
    let extents = [extent(0, 23..38), extent(0, 2..12), extent(1, 0..3), extent(0, 12..23)];
    let plan = Plan::new(&extents, cut(40, true)).unwrap();
    let order: Vec<_> = plan.chunks.iter().map(|chunk| (chunk.file, chunk.number)).collect();
    assert_eq!(order, [(0, 2), (0, 3), (0, 0), (0, 1), (1, 0)]);
    let shared = &plan.chunks[0];
    let parts = [Stretch::Extent { extent: 3, part: 1 }, Stretch::Extent { extent: 0, part: 0 }];
    assert_eq!((&shared.range, &shared.stretches[..]), (&(20..30), &parts[..]));
    assert_eq!(plan.extents[0].cuts, [7]);
    assert_eq!(plan.extents[3].chunks, [3, 0]);
}

#[test]
fn a_chunk_without_a_digest_is_read_no_further_than_it_is_wanted() {
    let plan = Plan::new(&[extent(0, 3..5), extent(0, 7..8)], cut(40, false)).unwrap();
    assert_eq!(plan.chunks[0].range, 3..8);
    assert_eq!(plan.chunks[0].stretches[1], Stretch::Skip(2));
}

#[test]
fn extents_that_overlap_are_refused() {
    assert!(Plan::new(&[extent(0, 0..5), extent(0, 4..6)], cut(40, true)).is_err());
}

proptest! {
    #[test]
    fn every_byte_of_every_extent_is_read_once_and_lands_where_it_belongs(
        lengths in prop::collection::vec(0u64..25, 1..8),
        gaps in prop::collection::vec(0u64..8, 8),
        whole: bool,
        backwards: bool,
    ) {
        let mut at = 0;
        let mut extents = Vec::new();
        for (length, gap) in lengths.iter().zip(&gaps) {
            at += gap;
            extents.push(extent(0, at..at + length));
            at += length;
        }
        let size = at + 3;
        if backwards {
            extents.reverse();
        }
        let plan = Plan::new(&extents, cut(size, whole)).unwrap();
        let mut got: Vec<Vec<u64>> = extents.iter().map(|_| Vec::new()).collect();
        for (index, extent) in plan.extents.iter().enumerate() {
            let ends = extent.cuts.iter().map(|&cut| cut as u64).chain([extent.len]);
            let mut start = 0;
            for (part, (end, &chunk)) in ends.zip(&extent.chunks).enumerate() {
                let chunk = &plan.chunks[chunk];
                let mut place = chunk.range.start;
                for stretch in &chunk.stretches {
                    match *stretch {
                        Stretch::Skip(len) => place += len,
                        Stretch::Extent { extent, part: p } if (extent, p) == (index, part) => {
                            got[index].extend(place..place + end - start);
                            break;
                        }
                        Stretch::Extent { extent, part } => {
                            let other = &plan.extents[extent];
                            let cuts = &other.cuts;
                            let from = if part == 0 { 0 } else { cuts[part - 1] as u64 };
                            let to = cuts.get(part).map_or(other.len, |&cut| cut as u64);
                            place += to - from;
                        }
                    }
                }
                start = end;
            }
        }
        for (extent, got) in extents.iter().zip(got) {
            prop_assert_eq!(got, extent.range.clone().collect::<Vec<_>>());
        }
        for chunk in &plan.chunks {
            prop_assert!(!whole || chunk.range == (chunk.number * CHUNK..size.min((chunk.number + 1) * CHUNK)));
        }
    }
}
