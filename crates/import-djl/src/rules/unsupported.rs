//! Options that the Llama handler does not have.

use super::{Apply, Rule};

const COMPILED: &str =
    "it is for the compiler of TensorRT-LLM or Neuron, and nsbridge compiles no model";
const QUANTIZER: &str = "it is for a quantizer that nsbridge does not have: see option.quantize";
const KERNELS: &str = "it selects kernels of another engine";
const OFF: &str = "it is off";
const LORA: &str = "the Llama handler has no LoRA adapters: merge an adapter into its model, and serve that as a \
                    model of its own";
const CACHE: &str =
    "the Llama handler counts the KV cache in MiB: set [handler] kv_cache_mb, or leave the default";
const CACHE_ELSEWHERE: &str =
    "prompts are cached in the worker's memory alone ([handler] enable_prefix_caching)";
const MULTIMODAL: &str = "the Llama handler reads text alone";

pub(super) const RULES: &[Rule] = &[
    Rule {
        names: &[
            "option.cpuArenaAllocator",
            "option.customOpLibrary",
            "option.disablePerSessionThreads",
            "option.executionMode",
            "option.extraFiles",
            "option.hasParameter",
            "option.interOpNumThreads",
            "option.intraOpNumThreads",
            "option.mapLocation",
            "option.memoryPatternOptimization",
            "option.model_format",
            "option.optLevel",
            "option.ortDevice",
            "option.skops_trusted_types",
            "option.trust_insecure_model_files",
        ],
        apply: Apply::NotNeeded("it is for another engine of DJLServing"),
    },
    Rule {
        names: &["option.rolling_batch"],
        apply: Apply::NotNeeded(
            "requests always share the steps of the engine; a text does not depend on others",
        ),
    },
    Rule {
        names: &["option.async_mode", "option.enable_streaming", "option.waiting_steps"],
        apply: Apply::NotNeeded("each reply is a stream, and requests run concurrently"),
    },
    Rule {
        names: &["option.mpi_mode"],
        apply: Apply::NotNeeded("the ranks of [handler] tensor_parallel_degree are in one process"),
    },
    Rule {
        names: &["option.parallel_loading"],
        apply: Apply::NotNeeded("each worker loads its model by itself"),
    },
    Rule {
        names: &["option.low_cpu_mem_usage", "option.load_split_model", "option.load_by_shard"],
        apply: Apply::NotNeeded("the weights are read in parts, each rank its own"),
    },
    Rule {
        names: &["option.trust_remote_code"],
        apply: Apply::Unless(&["false", ""], OFF, "the Llama handler runs no code of a checkpoint"),
    },
    Rule {
        names: &[
            "option.pipeline_parallel_degree",
            "option.pipeline_parallel_size",
            "option.data_parallel_size",
            "option.context_parallel_size",
        ],
        apply: Apply::Unless(
            &["1"],
            "it is 1",
            "a model is divided by [handler] tensor_parallel_degree alone",
        ),
    },
    Rule {
        names: &[
            "option.enable_expert_parallel",
            "option.moe_expert_parallel_size",
            "option.moe_tensor_parallel_size",
        ],
        apply: Apply::Unless(&["false", "1"], OFF, "the Llama handler has no mixtures of experts"),
    },
    Rule {
        names: &["option.device_map", "option.device_id", "option.device"],
        apply: Apply::Unless(
            &["auto"],
            "the device is that of [handler] device",
            "a layer is not placed by hand: [handler] device, and one rank for each device",
        ),
    },
    Rule {
        names: &["option.load_format"],
        apply: Apply::Unless(
            &["auto", "safetensors"],
            "weights are safetensors or GGUF",
            "weights must be safetensors or GGUF: convert them",
        ),
    },
    Rule { names: &["option.enable_lora"], apply: Apply::Unless(&["false"], OFF, LORA) },
    Rule {
        names: &[
            "option.max_loras",
            "option.max_lora_rank",
            "option.max_cpu_loras",
            "option.lora_extra_vocab_size",
            "option.lora_dtype",
            "option.long_lora_scaling_factors",
            "option.fully_sharded_loras",
        ],
        apply: Apply::By(|import, _| match import.settings.is_true("option.enable_lora") {
            true => super::Fate::NotCarried("it goes with option.enable_lora".to_owned()),
            false => super::Fate::NotNeeded("option.enable_lora is not true".to_owned()),
        }),
    },
    Rule {
        names: &[
            "option.gpu_memory_utilization",
            "option.kv_cache_free_gpu_mem_fraction",
            "option.free_gpu_memory_fraction",
            "option.swap_space",
            "option.host_cache_size",
        ],
        apply: Apply::NotCarried(CACHE),
    },
    Rule {
        names: &["option.cpu_offload_gb", "option.cpu_offload_gb_per_gpu"],
        apply: Apply::NotCarried("all weights of a rank are on its device"),
    },
    Rule {
        names: &[
            "option.kv_transfer_config",
            "option.lmcache_auto_config",
            "option.lmcache_config_file",
        ],
        apply: Apply::NotCarried(CACHE_ELSEWHERE),
    },
    Rule {
        names: &[
            "option.limit_mm_per_prompt",
            "option.image_placeholder_token",
            "option.mm_processor_kwargs",
        ],
        apply: Apply::NotCarried(MULTIMODAL),
    },
    Rule {
        names: &[
            "option.max_input_len",
            "option.max_output_len",
            "option.max_tokens",
            "option.max_new_tokens",
            "option.max_num_tokens",
        ],
        apply: Apply::NotCarried(
            "the Llama handler limits prompt and reply together by [handler] n_positions, a reply by max_tokens, and \
             a step by max_num_batched_tokens: set what you mean",
        ),
    },
    Rule {
        names: &["option.max_output_size"],
        apply: Apply::NotCarried(
            "a reply has at most 8 MiB; a lower limit in tokens is [handler] max_tokens",
        ),
    },
    Rule {
        names: &["option.enable_chunked_prefill"],
        apply: Apply::NotNeeded(
            "long prompts are always computed in parts, by [handler] max_num_batched_tokens",
        ),
    },
    Rule {
        names: &["option.record_acceptance_rate"],
        apply: Apply::NotNeeded("a worker's /metrics counts drafted and accepted tokens"),
    },
    Rule {
        names: &["option.chat_template", "option.chat_template_content_format"],
        apply: Apply::NotCarried(
            "the chat template is the model's own: put it into its folder as chat_template.jinja, and push it so",
        ),
    },
    Rule {
        names: &["option.enable_auto_tool_choice", "option.tool_call_parser"],
        apply: Apply::NotCarried(
            "the gateway reads calls of tools: set `tools` in its table of the model (docs/gateway.md)",
        ),
    },
    Rule {
        names: &["option.enable_reasoning", "option.reasoning_parser"],
        apply: Apply::NotCarried(
            "the gateway reads reasoning: set `reasoning` in its table of the model (docs/gateway.md)",
        ),
    },
    Rule {
        names: &["option.tokenizer", "option.tokenizer_mode", "option.tokenizer_revision"],
        apply: Apply::Unless(
            &["auto"],
            "the tokenizer is the model's own",
            "the tokenizer is the model's tokenizer.json: put it there",
        ),
    },
    Rule {
        names: &["option.seed"],
        apply: Apply::NotNeeded("each request has a seed, and its text follows from it"),
    },
    Rule {
        names: &["option.guided_decoding_backend"],
        apply: Apply::NotNeeded("formats of replies are held by grammars in the worker"),
    },
    Rule {
        names: &["option.decoding_strategy"],
        apply: Apply::Unless(
            &["sample"],
            "a reply is sampled",
            "callers set the temperature (0 is greedy); there is no contrastive search",
        ),
    },
    Rule {
        names: &[
            "option.enforce_eager",
            "option.enable_cuda_graph",
            "option.enable_trt_overlap",
            "option.disable_flash_attn",
            "option.paged_attention",
            "option.use_custom_all_reduce",
            "option.disable_custom_all_reduce",
            "option.batch_scheduler_policy",
            "option.multi_block_mode",
            "option.tokens_per_block",
            "option.block_size",
            "option.max_sparsity",
            "option.max_splits",
            "option.triangular_masking",
            "option.return_tuple",
            "option.use_fused_mlp",
            "option.use_fp8_context_fmha",
            "option.backend",
            "option.attn_backend",
        ],
        apply: Apply::NotNeeded(KERNELS),
    },
    Rule {
        names: &[
            "option.baichuan_model_version",
            "option.chatglm_model_version",
            "option.checkpoint",
            "option.compiled_graph_path",
            "option.context_length_estimate",
            "option.draft_model_compiled_path",
            "option.enable_mixed_precision_accumulation",
            "option.enable_saturate_infinity",
            "option.gpt_model_version",
            "option.group_query_attention",
            "option.logits_dtype",
            "option.neuron_optimize_level",
            "option.num_checkpoint_workers",
            "option.num_engine_workers",
            "option.rotary_base",
            "option.rotary_dim",
            "option.rotary_scaling_factor",
            "option.rotary_scaling_type",
            "option.save_mp_checkpoint_path",
            "option.training_mp_size",
            "option.trtllm_checkpoint_path",
            "option.unroll",
        ],
        apply: Apply::NotNeeded(COMPILED),
    },
    Rule {
        names: &["option.load_in_8bit", "option.load_in_4bit"],
        apply: Apply::Unless(&["false"], OFF, QUANTIZER),
    },
    Rule {
        names: &[
            "option.awq_block_size",
            "option.awq_calib_size",
            "option.awq_format",
            "option.awq_ignore_layers",
            "option.awq_mm_version",
            "option.awq_weight_bit_width",
            "option.awq_zero_point",
            "option.calib_batch_size",
            "option.calib_size",
            "option.fp8_ignore",
            "option.fp8_scheme",
            "option.multi_query_mode",
            "option.q_format",
            "option.smoothquant_alpha",
            "option.smoothquant_per_channel",
            "option.smoothquant_per_token",
        ],
        apply: Apply::NotCarried(QUANTIZER),
    },
];
