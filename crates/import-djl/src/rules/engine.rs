//! Options of the engine that the Llama handler has too.

use nsbridge_import::Fate;
use toml::Value;

use super::super::context::Import;
use super::super::kind::Kind;
use super::super::settings::Setting;
use super::{Apply, Rule, flag, number};

pub(super) const RULES: &[Rule] = &[
    Rule {
        names: &[
            "option.max_rolling_batch_size",
            "option.max_num_seqs",
            "option.max_num_sequences",
            "option.max_batch_size",
        ],
        apply: Apply::By(batch),
    },
    Rule {
        names: &["option.max_rolling_batch_prefill_tokens", "option.max_num_batched_tokens"],
        apply: Apply::Count("max_num_batched_tokens", 1, 1 << 24),
    },
    Rule {
        names: &["option.n_positions", "option.max_model_len", "option.max_seq_len"],
        apply: Apply::Count("n_positions", 2, 1 << 24),
    },
    Rule {
        names: &[
            "option.speculative_length",
            "option.spec_length",
            "option.num_speculative_tokens",
        ],
        apply: Apply::Count("speculative_length", 0, 16),
    },
    Rule {
        names: &["option.speculative_ngram", "option.ngram_prompt_lookup_max"],
        apply: Apply::Count("speculative_ngram", 2, 64),
    },
    Rule {
        names: &["option.draft_model_tp_size", "option.speculative_draft_tensor_parallel_size"],
        apply: Apply::By(draft_degree),
    },
    Rule {
        names: &["option.tensor_parallel_degree", "option.tensor_parallel_size"],
        apply: Apply::By(degree),
    },
    Rule {
        names: &["option.model_loading_timeout"],
        apply: Apply::Seconds("model_loading_timeout"),
    },
    Rule { names: &["option.predict_timeout"], apply: Apply::Seconds("predict_timeout") },
    Rule {
        names: &[
            "option.enable_prefix_caching",
            "option.enable_kv_cache_reuse",
            "option.enable_block_reuse",
        ],
        apply: Apply::Flag("enable_prefix_caching"),
    },
    Rule { names: &["option.task"], apply: Apply::By(task) },
    Rule { names: &["option.normalize"], apply: Apply::By(normalize) },
    Rule { names: &["option.pooling"], apply: Apply::By(pooling) },
    Rule { names: &["option.dtype", "option.data_type"], apply: Apply::By(dtype) },
    Rule { names: &["option.quantize", "option.quantization"], apply: Apply::By(quantize) },
    Rule { names: &["option.kv_cache_dtype"], apply: Apply::By(cache_dtype) },
    Rule { names: &["load_on_devices"], apply: Apply::By(devices) },
    Rule { names: &["batch_size", "max_dynamic_batch_size"], apply: Apply::By(batch_size) },
    Rule {
        names: &["max_batch_delay"],
        apply: Apply::NotNeeded("a request joins the running batch at its next step"),
    },
    Rule {
        names: &["retry_threshold"],
        apply: Apply::NotNeeded(
            "a worker whose engine fails leaves at once, and its requests move to another worker",
        ),
    },
    Rule { names: WORKERS, apply: Apply::By(copies) },
];

const WORKERS: &[&str] = &[
    "minWorkers",
    "maxWorkers",
    "gpu.minWorkers",
    "gpu.maxWorkers",
    "cpu.minWorkers",
    "cpu.maxWorkers",
];

/// Maximum number of requests that run at once.
const LARGEST_BATCH: u64 = 16_384;

fn batch(import: &mut Import<'_>, setting: &Setting) -> Fate {
    match number(setting, 1, LARGEST_BATCH) {
        Ok(size) => {
            // Engines of DJLServing take the memory that is left.
            let cache =
                "kv_cache_mb = 4096   # default: what this many replies of n_positions tokens need";
            import.draft.hint("handler", cache);
            import.carry("handler", "max_rolling_batch_size", Value::Integer(size), setting)
        }
        Err(fate) => fate,
    }
}

/// Degrees of tensor parallelism of the Llama handler.
const DEGREES: [&str; 4] = ["1", "2", "4", "8"];

fn degree(import: &mut Import<'_>, setting: &Setting) -> Fate {
    if setting.value() == "max" {
        let why = "`max` stands for all GPUs of the machine: set [handler] tensor_parallel_degree to 1, 2, 4 or 8";
        import.draft.hint(
            "handler",
            "tensor_parallel_degree = 1   # `max` in DJLServing: the number of GPUs",
        );
        return Fate::NotCarried(why.to_owned());
    }
    ranks(import, "tensor_parallel_degree", setting)
}

fn draft_degree(import: &mut Import<'_>, setting: &Setting) -> Fate {
    ranks(import, "draft_model_tp_size", setting)
}

fn ranks(import: &mut Import<'_>, field: &str, setting: &Setting) -> Fate {
    match DEGREES.iter().find(|degree| **degree == setting.value()).map(|degree| degree.parse()) {
        Some(Ok(ranks)) => import.carry("handler", field, Value::Integer(ranks), setting),
        _ => Fate::NotCarried("the Llama handler has 1, 2, 4 or 8 ranks".to_owned()),
    }
}

fn task(import: &mut Import<'_>, setting: &Setting) -> Fate {
    match import.kind {
        Kind::Embeddings => {
            import.carry("handler", "task", Value::String("embed".to_owned()), setting)
        }
        _ => Fate::NotNeeded("text is the default of the Llama handler".to_owned()),
    }
}

fn normalize(import: &mut Import<'_>, setting: &Setting) -> Fate {
    match (&import.kind, flag(setting)) {
        (Kind::Embeddings, Ok(normalize)) => {
            import.carry("handler", "normalize", Value::Boolean(normalize), setting)
        }
        (Kind::Embeddings, Err(fate)) => fate,
        _ => Fate::NotNeeded("it is for embeddings".to_owned()),
    }
}

fn pooling(import: &mut Import<'_>, setting: &Setting) -> Fate {
    match (&import.kind, setting.value()) {
        (Kind::Embeddings, pooling @ ("last" | "mean")) => {
            import.carry("handler", "pooling", Value::String(pooling.to_owned()), setting)
        }
        (Kind::Embeddings, _) => {
            Fate::NotCarried("the Llama handler has `last` and `mean`".to_owned())
        }
        _ => Fate::NotNeeded("it is for embeddings".to_owned()),
    }
}

fn dtype(import: &mut Import<'_>, setting: &Setting) -> Fate {
    if setting.value() == "auto" {
        return Fate::NotNeeded("the weights keep the format of the checkpoint".to_owned());
    }
    import.draft.hint("handler", EIGHT_BITS);
    Fate::NotCarried(
        "the weights keep the format of the checkpoint; `nsbridge model quantize` writes others"
            .to_owned(),
    )
}

/// Hint for a model whose weights another engine would have made smaller.
const EIGHT_BITS: &str =
    "quantize = \"q8_0\"   # eight bits a weight, when the model is loaded on a CPU";

fn quantize(import: &mut Import<'_>, setting: &Setting) -> Fate {
    match setting.value().to_lowercase().as_str() {
        "" | "none" | "auto" => {
            Fate::NotNeeded("the weights keep the format of the checkpoint".to_owned())
        }
        "q8_0" => import.carry("handler", "quantize", Value::String("q8_0".to_owned()), setting),
        other => {
            import.draft.hint("handler", EIGHT_BITS);
            let plain = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
            let format = if other.chars().all(plain) { other } else { "such format" };
            Fate::NotCarried(format!(
                "the Llama handler has no {format}; q8_0 is offered, and is not equal"
            ))
        }
    }
}

fn cache_dtype(import: &mut Import<'_>, setting: &Setting) -> Fate {
    let format = match setting.value() {
        "auto" => {
            return Fate::NotNeeded("the default is f32 on a CPU, and bf16 on a GPU".to_owned());
        }
        "bf16" | "bfloat16" => "bf16",
        "f32" | "fp32" | "float32" => "f32",
        _ => return Fate::NotCarried("the KV cache is f32 or bf16".to_owned()),
    };
    import.carry("handler", "kv_cache_dtype", Value::String(format.to_owned()), setting)
}

fn devices(import: &mut Import<'_>, setting: &Setting) -> Fate {
    let value = setting.value();
    let number = value.strip_prefix("gpu").unwrap_or(value);
    if value == "*" {
        return Fate::NotNeeded("a worker is one copy of the model".to_owned());
    }
    if value == "cpu" {
        return import.carry("handler", "device", Value::String("cpu".to_owned()), setting);
    }
    if number.is_empty() || number.len() > 3 || !number.bytes().all(|digit| digit.is_ascii_digit())
    {
        return Fate::NotCarried(
            "a worker is one copy of the model: start one for each device, with its [handler] device".to_owned(),
        );
    }
    import.carry("handler", "device", Value::String(format!("cuda:{number}")), setting)
}

fn batch_size(import: &mut Import<'_>, setting: &Setting) -> Fate {
    if import.kind == Kind::Embeddings {
        return match number(setting, 1, LARGEST_BATCH) {
            Ok(size) => {
                import.carry("handler", "max_rolling_batch_size", Value::Integer(size), setting)
            }
            Err(fate) => fate,
        };
    }
    Fate::NotNeeded("requests are batched token by token, up to max_rolling_batch_size".to_owned())
}

fn copies(_: &mut Import<'_>, setting: &Setting) -> Fate {
    if setting.value() == "1" {
        return Fate::NotNeeded("a worker is one copy of the model".to_owned());
    }
    Fate::NotCarried(
        "a worker is one copy of the model: start as many workers as you need copies".to_owned(),
    )
}
