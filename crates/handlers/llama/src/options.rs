//! What the operator decides.

use serde::{Deserialize, Serialize};

use crate::KvFormat;

/// The `[handler]` table of a worker with a Llama model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// For requests that do not say; the model's `generation_config.json` is asked next, then 1.
    pub temperature: Option<f32>,
    /// For requests that do not say; 1 (all tokens) if the model does not say either.
    pub top_p: Option<f32>,
    /// For requests that do not say; 0 (all tokens) if the model does not say either.
    pub top_k: Option<u32>,
    /// For requests that do not say; 0 (all tokens) if the model does not say either.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f32>,
    /// For requests that do not say; 1 (no penalty) if the model does not say either.
    pub repetition_penalty: Option<f32>,
    /// The most tokens a reply may have, whatever the request asks.
    pub max_tokens: Option<u32>,
    /// Whether a special token's text in a message, such as `<|eot_id|>`, is that token; if not or
    /// absent it is text, and only the chat template writes special tokens. A `prompt` may have them
    /// in any case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub special_tokens_in_messages: Option<bool>,
    /// The most tokens of prompt and reply together; the model's own context if absent.
    pub n_positions: Option<usize>,
    /// What computes: `cpu`; `cuda` for GPUs, one for each rank; or `cuda:N` for that one, with all
    /// ranks on it. `cpu` if absent.
    #[serde(skip_serializing)]
    pub device: Option<String>,
    /// How matrices are kept in memory, on a CPU; as the checkpoint has them if absent.
    pub quantize: Option<Quantize>,
    /// How keys and values are kept; f32 if absent, or bf16 on a GPU.
    pub kv_cache_dtype: Option<KvFormat>,
    /// Threads that compute, whatever their number the same tokens; all cores if absent, or one for
    /// a model so small that others would only get in its way.
    #[serde(skip_serializing)]
    pub threads: Option<usize>,
    /// Ranks that each compute a part of every matrix, with keys and values of their own: 1, 2, 4 or
    /// 8, as far as the model's shape allows. The tokens are the same; 1 if absent.
    #[serde(skip_serializing)]
    pub tensor_parallel_degree: Option<usize>,
    /// Seconds that a rank waits for the others before the worker gives its requests back and
    /// leaves; 60 if absent. Where rank 0, or the only rank, does not go on and nobody waits for it,
    /// twice as long; while other ranks compute too, each on a device of its own, ten times. A GPU's
    /// first steps can take seconds.
    #[serde(skip_serializing)]
    pub tensor_parallel_timeout: Option<f64>,
    /// The same degree for the model that drafts; 1 if absent.
    #[serde(skip_serializing)]
    pub draft_model_tp_size: Option<usize>,
    /// Requests answered at once, by steps that run a token of each; 8 if absent.
    #[serde(skip_serializing)]
    pub max_rolling_batch_size: Option<usize>,
    /// Requests that wait in the worker for a place among those; none if absent. Only of requests
    /// that are in a worker can it choose the one whose tenant has had least.
    #[serde(skip_serializing)]
    pub job_queue_size: Option<usize>,
    /// The most tokens of a step: one of each reply that goes on, and then prompts; 256 if absent.
    /// With fewer, replies go on more evenly while a prompt is run; with more, prompts are faster.
    #[serde(skip_serializing)]
    pub max_num_batched_tokens: Option<usize>,
    /// Memory for keys and values of all requests on all ranks, in MiB; if absent, what
    /// `max_rolling_batch_size` requests with one reply each can need at most. With less, who came
    /// last waits where there is too little. With more, more is remembered of prompts, and more
    /// replies of a request run at once. Where there are more ranks than heads of keys, several ranks
    /// have the same ones, and the same memory holds fewer tokens.
    #[serde(skip_serializing)]
    pub kv_cache_mb: Option<usize>,
    /// Whether keys and values are kept for prompts that begin alike; they are if absent.
    #[serde(skip_serializing)]
    pub enable_prefix_caching: Option<bool>,
    /// The model of the configuration that drafts what replies go on with; `draft` if absent, and if
    /// there is none so called, nothing is drafted.
    #[serde(skip_serializing)]
    pub speculative_draft_model: Option<String>,
    /// Drafts without a model: what followed the last time that the text ended in the same tokens, up
    /// to so many of them.
    #[serde(skip_serializing)]
    pub speculative_ngram: Option<usize>,
    /// The most tokens of a draft; 7 if absent, and 0 drafts nothing.
    #[serde(skip_serializing)]
    pub speculative_length: Option<usize>,
    /// Whether drafts are as long as pays, by what was measured, or always as long as they can be;
    /// the former if absent.
    #[serde(skip_serializing)]
    pub speculative_adaptive: Option<bool>,
    /// Seconds that loading may take, after which the worker leaves; no limit if absent.
    #[serde(skip_serializing)]
    pub model_loading_timeout: Option<f64>,
    /// Seconds that a request may be in the engine, after which it is refused; no limit if absent.
    #[serde(skip_serializing)]
    pub predict_timeout: Option<f64>,
    /// A reference, as `nsbridge parity` writes it, that the logits must be equal to before the
    /// worker takes requests: a file of the model, in a folder below it, or an absolute path.
    #[serde(skip_serializing)]
    pub parity_reference: Option<String>,
    /// The largest difference of a logit that is taken for equal; 1e-3 if absent.
    #[serde(skip_serializing)]
    pub parity_tolerance: Option<f32>,
}

/// What matrices are quantised to when they are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Quantize {
    /// Eight bits a weight in blocks of 32, as GGUF's Q8_0.
    #[serde(rename = "q8_0")]
    Q8_0,
}
