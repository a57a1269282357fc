//! Mutants of GPU kernels and of the launches of a step, which tests on the emulator must detect.

use super::{Judge, Mutant};

const fn kernel(module: &'static str, file: &'static str, name: &'static str) -> Judge {
    Judge::Test { package: "nsbridge-gpu", file, module, name }
}

const fn network(name: &'static str) -> Judge {
    let file = "crates/handlers/llama/tests/it/gpu.rs";
    Judge::Test { package: "nsbridge-llama", file, module: "gpu::", name }
}

const PRODUCTS: Judge = kernel(
    "matrix::",
    "crates/gpu/tests/it/matrix.rs",
    "products_have_the_bits_of_the_cpu_whatever_the_number_of_rows",
);
const NORMS: Judge = kernel(
    "rows::",
    "crates/gpu/tests/it/rows.rs",
    "norms_have_the_bits_of_the_cpu_after_the_sums_of_the_ranks",
);
const ATTENTION: Judge = kernel(
    "attention::",
    "crates/gpu/tests/it/attention.rs",
    "attention_has_the_bits_of_the_cpu_in_whole_and_in_pieces",
);

/// Mutants of GPU kernels and of the launches of a step.
pub(super) const MUTANTS: &[Mutant] = &[
    // The split of a sum depends on the batch.
    Mutant {
        name: "gpu-split-by-batch",
        file: "crates/gpu/src/matrix.rs",
        edits: &[(
            "            segments: segments as u32,\n            stride:",
            "            segments: if most > 8 { 1 } else { segments as u32 },\n            stride:",
        )],
        judge: PRODUCTS,
    },
    // Threads read a stage whose copies have not all arrived.
    Mutant {
        name: "gpu-stage-read-early",
        file: "crates/gpu/kernels/matrix.cu",
        edits: &[("wait_for_copies<STAGES - 2>();", "wait_for_copies<STAGES - 1>();")],
        judge: PRODUCTS,
    },
    // Threads overwrite a stage that others still read.
    Mutant {
        name: "gpu-stage-written-early",
        file: "crates/gpu/kernels/matrix.cu",
        edits: &[(
            "        barrier();\n        copy(stage + STAGES - 1);",
            "        copy(stage + STAGES - 1);",
        )],
        judge: PRODUCTS,
    },
    // A multiplication and an addition are rounded once where the CPU rounds twice.
    Mutant {
        name: "gpu-fused-rotation",
        file: "crates/gpu/kernels/rows.cu",
        edits: &[(
            "head[half + i] = fused(second, cos, first * sin);",
            "head[half + i] = fused(first, sin, second * cos);",
        )],
        judge: network("every_family_has_the_bits_of_the_cpu_on_any_number_of_ranks"),
    },
    // They are rounded twice where the CPU rounds once.
    Mutant {
        name: "gpu-unfused-merge",
        file: "crates/gpu/kernels/attention.cu",
        edits: &[(
            "total = fused(total, before, sum * now);",
            "total = total * before + sum * now;",
        )],
        judge: ATTENTION,
    },
    // Keys and values go to the slot beside theirs.
    Mutant {
        name: "gpu-wrong-slot",
        file: "crates/gpu/kernels/rows.cu",
        edits: &[("in_page = position % PAGE;", "in_page = (position + 1) % PAGE;")],
        judge: ATTENTION,
    },
    // Threads read what others have not written yet.
    Mutant {
        name: "gpu-missing-barrier",
        file: "crates/gpu/kernels/rows.cu",
        edits: &[("    barrier();\n    const float *numbers", "    const float *numbers")],
        judge: NORMS,
    },
    // A rank overwrites partial sums that another may still read.
    Mutant {
        name: "gpu-sums-of-one-turn",
        file: "crates/handlers/llama/src/network/gpu.rs",
        edits: &[
            ("            turn ^= 1;\n", ""),
            ("            turn ^= usize::from(summed.is_some());\n", ""),
        ],
        judge: network("every_family_has_the_bits_of_the_cpu_on_any_number_of_ranks"),
    },
    // Recorded launches go on with buffers that were replaced.
    Mutant {
        name: "gpu-stale-graph",
        file: "crates/handlers/llama/src/network/gpu/graphs.rs",
        edits: &[("fn clear(&mut self) {\n        self.graphs.clear();", "fn clear(&mut self) {")],
        judge: network("recorded_launches_use_the_buffers_of_their_step"),
    },
    // Of equal scores, the larger token wins.
    Mutant {
        name: "gpu-tie-by-the-larger-token",
        file: "crates/gpu/kernels/sample.cu",
        edits: &[("b.token < a.token) ? b : a", "b.token > a.token) ? b : a")],
        judge: Judge::Test {
            package: "nsbridge-llama",
            file: "crates/handlers/llama/src/sample/tests/device.rs",
            module: "sample::tests::device::",
            name: "of_equal_scores_the_choice_is_that_of_the_cpu",
        },
    },
];
