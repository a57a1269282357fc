//! Norms, embeddings of positions, and copies of pages.

use nsbridge_gpu::attention::{Heads, KvCache, Place};
use nsbridge_gpu::device::Buffer;
use nsbridge_gpu::rows::{Activations, Form, Norm, Sums};
use nsbridge_kernels::Tier;
use nsbridge_kernels::rowwise::{Norm as CpuNorm, Rotate};

use crate::{ORDERS, assert_bits, count, counts, device, numbers, read};

#[test]
fn norms_have_the_bits_of_the_cpu_after_the_sums_of_the_ranks() {
    for (rows, width, ranks) in [(3, 64, 1), (2, 300, 0), (1, 8208, 2), (2, 512, 8), (2, 96, 4)] {
        let stride = width + 16;
        let (stream, weight, bias) =
            (numbers(1, rows * stride), numbers(2, width), numbers(3, width));
        let partials: Vec<Vec<f32>> =
            (0..ranks).map(|rank| numbers(10 + rank as u64, rows * stride)).collect();
        let tree = |at: usize| {
            let mut sums: Vec<f32> = partials.iter().map(|own| own[at]).collect();
            while sums.len() > 1 {
                sums = sums.chunks(2).map(|pair| pair[0] + pair[1]).collect();
            }
            sums.first().copied()
        };
        let mut expected_stream = stream.clone();
        let mut expected = Vec::new();
        for row in 0..rows {
            for (i, bias) in bias.iter().enumerate() {
                let at = row * stride + i;
                if let Some(sum) = tree(at) {
                    expected_stream[at] = stream[at] + (sum + bias);
                }
            }
            let mut out = vec![0.0; width];
            let x = &expected_stream[row * stride..][..width];
            Tier::best().run(CpuNorm { x, weight: &weight, eps: 1e-5, out: &mut out });
            expected.extend(out);
        }
        for order in ORDERS {
            let device = device(order);
            let there = Buffer::of(&device, &stream).unwrap();
            let partials: Vec<_> =
                partials.iter().map(|own| Buffer::of(&device, own).unwrap()).collect();
            let partials: Vec<_> = partials.iter().collect();
            let out = Activations::new(&device, rows, width, &[Form::Floats]).unwrap();
            let bias = Buffer::of(&device, &bias).unwrap();
            let norm = Norm {
                stream: &there,
                stride,
                weight: &Buffer::of(&device, &weight).unwrap(),
                eps: 1e-5,
                sums: Some(Sums { partials: &partials, bias: Some(&bias), replaces: false }),
                picked: None,
            };
            let n = counts(&device, &[rows as u32]);
            norm.write(rows, (count(&n), rows), &out).unwrap();
            let what = format!("{rows} x {width}, {ranks} ranks, order {order}");
            assert_bits(&read(&there, rows * stride), &expected_stream, &what);
            assert_bits(&read(out.floats().unwrap(), rows * width), &expected, &what);
        }
    }
}

#[test]
fn picked_rows_are_normalized_in_their_order() {
    let (rows, width) = (5, 64);
    let (stream, weight) = (numbers(1, rows * width), numbers(2, width));
    let device = device(0);
    let out = Activations::new(&device, rows, width, &[Form::Floats]).unwrap();
    let picked = counts(&device, &[2, 4, 1]);
    let norm = Norm {
        stream: &Buffer::of(&device, &stream).unwrap(),
        stride: width,
        weight: &Buffer::of(&device, &weight).unwrap(),
        eps: 1e-6,
        sums: None,
        picked: Some(count(&picked)),
    };
    norm.write(rows, (count(&picked), 3), &out).unwrap();
    let of = |row: usize| {
        let mut out = vec![0.0; width];
        let x = &stream[row * width..][..width];
        Tier::best().run(CpuNorm { x, weight: &weight, eps: 1e-6, out: &mut out });
        out
    };
    // The count is the first of the picked numbers: two rows.
    let expected: Vec<f32> = [2, 4].into_iter().flat_map(of).chain(vec![0.0; width]).collect();
    assert_bits(&read(out.floats().unwrap(), 3 * width), &expected, "picked rows");
}

#[test]
fn heads_are_turned_and_written_as_on_the_cpu() {
    let heads = Heads { queries: 6, keys: 2, dim: 40 };
    let (pages, layers, rows) = (3, 2, 3);
    let (positions, pages_of) = ([5u32, 33, 64], [2u32, 0, 1]);
    let width = (heads.queries + 2 * heads.keys) * heads.dim;
    let stride = width + 8;
    let x = numbers(1, rows * stride);
    let angles = [numbers(2, 65 * 20), numbers(3, 65 * 20)];
    let norms = [numbers(4, 40), numbers(5, 40)];
    for with_norms in [false, true] {
        for order in ORDERS {
            for brains in [false, true] {
                let device = device(order);
                let cache = KvCache::new(&device, heads, (layers, pages), brains).unwrap();
                let there = Buffer::of(&device, &x).unwrap();
                let of = |x: &Vec<f32>| Buffer::of(&device, x).unwrap();
                let (angles_there, norms_there) =
                    (angles.each_ref().map(of), norms.each_ref().map(of));
                let positions_there = counts(&device, &positions);
                let pages_there = counts(&device, &pages_of);
                let place = Place {
                    x: &there,
                    stride,
                    positions: count(&positions_there),
                    pages: count(&pages_there),
                    angles: angles_there.each_ref(),
                    norms: with_norms.then(|| norms_there.each_ref()),
                    eps: 1e-5,
                };
                let n = counts(&device, &[rows as u32]);
                place.write((count(&n), rows), (&cache, 1)).unwrap();
                let turned = read(&there, rows * stride);
                for (row, position) in positions.iter().enumerate() {
                    for head in 0..heads.queries {
                        let from = row * stride + head * 40;
                        let mut own = x[from..][..40].to_vec();
                        if with_norms {
                            let (x, weight) = (own.clone(), &norms[0]);
                            Tier::best().run(CpuNorm { x: &x, weight, eps: 1e-5, out: &mut own });
                        }
                        let at = *position as usize * 20;
                        let (cos, sin) = (&angles[0][at..][..20], &angles[1][at..][..20]);
                        Tier::best().run(Rotate { head: &mut own, cos, sin });
                        assert_bits(&turned[from..][..40], &own, "a query");
                    }
                }
            }
        }
    }
}
