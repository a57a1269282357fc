//! Flags of earlier versions of vLLM.

use nsbridge_import::Fate;

/// Flags without an effect that a worker lacks, with the reason.
const NOT_NEEDED: &[(&[&str], &str)] = &[
    (&["--disable-log-requests", "--no-disable-log-requests"], "no request is logged"),
    (
        &["--disable-frontend-multiprocessing"],
        "gateway, worker and engine are processes of their own",
    ),
    (
        &["--enable-reasoning"],
        "the gateway finds reasoning by the `reasoning` of the model's table",
    ),
];

/// Flags that vLLM dropped, with what to do.
const NOT_CARRIED: &[(&[&str], &str)] = &[
    (&["--task"], "[handler] task = \"embed\" or \"judge\" is its successor; text needs none"),
    (&["--device"], "vLLM serves on the device that it is built for"),
    (
        &["--guided-decoding-backend"],
        "[handler.options] structured_outputs_config = { backend = \"..\" } is its successor",
    ),
    (
        &["--worker-use-ray", "--engine-use-ray"],
        "[handler.options] distributed_executor_backend = \"ray\" is its successor",
    ),
    (
        &["--speculative-model", "--num-speculative-tokens", "--ngram-prompt-lookup-max"],
        "[handler.options] speculative_config = { model = \"..\", .. } is its successor",
    ),
    (
        &["--rope-scaling", "--rope-theta"],
        "[handler.options] hf_overrides = { rope_parameters = { .. } } is its successor",
    ),
    (
        &["--max-seq-len-to-capture", "--max-context-len-to-capture"],
        "[handler.options] max_cudagraph_capture_size is its successor",
    ),
    (&["--override-pooler-config"], "[handler.options] pooler_config = { .. } is its successor"),
    (
        &["--disable-mm-preprocessor-cache"],
        "[handler.options] mm_processor_cache_gb = 0 is its successor",
    ),
    (
        &[
            "--prompt-adapters",
            "--enable-prompt-adapter",
            "--max-prompt-adapters",
            "--max-prompt-adapter-token",
        ],
        "there are no prompt adapters",
    ),
    (
        &[
            "--num-scheduler-steps",
            "--multi-step-stream-outputs",
            "--num-lookahead-slots",
            "--use-v2-block-manager",
            "--disable-async-output-proc",
            "--preemption-mode",
            "--scheduler-delay-factor",
            "--swap-space",
            "--tokenizer-pool-size",
            "--lora-extra-vocab-size",
        ],
        "its scheduler or tokenizer works without it",
    ),
];

/// Returns the fate of a flag that vLLM no longer has; `None` for another flag.
pub(super) fn fate(flag: &str) -> Option<Fate> {
    let find = |table: &[(&[&str], &'static str)]| {
        table.iter().find(|(flags, _)| flags.contains(&flag)).map(|(_, why)| *why)
    };
    let not_needed = find(NOT_NEEDED).map(|why| Fate::NotNeeded(why.to_owned()));
    let no_longer = |why| Fate::NotCarried(format!("vLLM has it no longer: {why}"));
    not_needed.or_else(|| find(NOT_CARRIED).map(no_longer))
}
