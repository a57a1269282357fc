//! Options that the operator sets.

use serde::{Deserialize, Serialize};

use crate::kv::KvFormat;
use crate::network::Arithmetic;

/// Handler options: the `[handler]` table of a worker with a Llama model.
///
/// A literal ends in `..Options::default()`: minor versions add fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Task of the worker: `generate` answers text, `embed` makes vectors of texts. `generate` if
    /// absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
    /// Pooling of the hidden states for the task `embed`; if absent, that of the model's
    /// `1_Pooling/config.json`, or else `last`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pooling: Option<Pooling>,
    /// True if the vectors of the task `embed` are scaled to length 1; if absent, what the model's
    /// `modules.json` says, or else true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub normalize: Option<bool>,
    /// Default temperature of requests; if absent, the value in `generation_config.json`, or else
    /// 1.
    pub temperature: Option<f32>,
    /// Default top-p of requests; if absent, the model's value, or else 1 (all tokens).
    pub top_p: Option<f32>,
    /// Default top-k of requests; if absent, the model's value, or else 0 (all tokens).
    pub top_k: Option<u32>,
    /// Default min-p of requests; if absent, the model's value, or else 0 (all tokens).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f32>,
    /// Default repetition penalty of requests; if absent, the model's value, or else 1 (no
    /// penalty).
    pub repetition_penalty: Option<f32>,
    /// Maximum number of tokens of a reply; a request cannot raise it.
    pub max_tokens: Option<u32>,
    /// True if the text of a special token in a message, such as `<|eot_id|>`, is parsed as that
    /// token. If false or absent, it is plain text, and only the chat template writes special
    /// tokens. A `prompt` may contain special tokens in any case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub special_tokens_in_messages: Option<bool>,
    /// Maximum number of tokens of prompt and reply together; the model's own context if absent.
    pub n_positions: Option<usize>,
    /// Device that computes: `cpu`; `cuda` for one GPU per rank; or `cuda:N` for that GPU, with all
    /// ranks on it. `cpu` if absent.
    #[serde(skip_serializing)]
    pub device: Option<String>,
    /// Arithmetic of matrices in bf16: `portable` for the same tokens on every CPU and GPU, or
    /// `native` for the processor's products in bf16, with tokens that are those of a kind of
    /// processor. A CPU without such instructions computes as with `portable`. Matrices in other
    /// formats are portable in both. If absent, `portable` on a CPU and `native` on a GPU.
    #[serde(skip_serializing)]
    pub arithmetic: Option<Arithmetic>,
    /// Format of the matrices in memory on a CPU; that of the checkpoint if absent.
    pub quantize: Option<Quantize>,
    /// Format of the KV cache; if absent, f32 on a CPU and with `portable` on a GPU, else bf16.
    pub kv_cache_dtype: Option<KvFormat>,
    /// Number of compute threads. It does not change the tokens. If absent, all cores, or one for a
    /// model so small that more threads would slow it down.
    #[serde(skip_serializing)]
    pub threads: Option<usize>,
    /// Tensor-parallel ranks, each with a shard of every matrix and a KV cache of its own: 1, 2, 4
    /// or 8, as far as the model's shape allows. The tokens are the same for each. 1 if absent.
    #[serde(skip_serializing)]
    pub tensor_parallel_degree: Option<usize>,
    /// Seconds that a rank waits for the others before the worker requeues its requests and exits;
    /// 60 if absent. The limit is twice as long if rank 0, or the only rank, makes no progress and
    /// no rank waits for it. It is ten times as long while other ranks compute too, each on a
    /// device of its own. The first steps of a GPU can take seconds.
    #[serde(skip_serializing)]
    pub tensor_parallel_timeout: Option<f64>,
    /// Tensor-parallel ranks of the draft model; 1 if absent.
    #[serde(skip_serializing)]
    pub draft_model_tp_size: Option<usize>,
    /// Maximum number of requests in a batch, of each of which a step runs a token; at most 4,096. If
    /// absent, 8 on a CPU and 64 on a GPU.
    #[serde(skip_serializing)]
    pub max_rolling_batch_size: Option<usize>,
    /// Maximum number of requests that wait in the worker for a place in the batch; none if absent.
    /// Fairness between tenants only applies to requests that are in the worker.
    #[serde(skip_serializing)]
    pub job_queue_size: Option<usize>,
    /// Maximum number of tokens of a step: one of each running reply, then chunks of prompts. If
    /// absent, 256 on a CPU and 2,048 on a GPU. A lower value makes the pace of replies more even while a prompt runs; a higher
    /// one makes prompts faster.
    #[serde(skip_serializing)]
    pub max_num_batched_tokens: Option<usize>,
    /// Bound of the time of a step with running replies, in milliseconds: so long a token of a reply may
    /// take while prompts of other requests are computed. As many prompt tokens run in such a step as
    /// measured times allow, but at least 32. 250 if absent.
    #[serde(skip_serializing)]
    pub max_step_ms: Option<u64>,
    /// Size of the KV cache of all ranks together, in MiB. If absent, enough for
    /// `max_rolling_batch_size` requests with one reply each at full length, as far as the memory goes:
    /// half of what a machine has left beside the weights, or what a GPU has. With less, the
    /// requests that came last wait when memory is short. With more, the prefix cache keeps more
    /// and more replies of a request run at once. With more ranks than key-value heads, several
    /// ranks hold copies of a head, and the same memory holds fewer tokens.
    #[serde(skip_serializing)]
    pub kv_cache_mb: Option<usize>,
    /// True if the KV cache of prompts is kept for later requests with the same prefix; true if
    /// absent.
    #[serde(skip_serializing)]
    pub enable_prefix_caching: Option<bool>,
    /// Name of the configured model that drafts; `draft` if absent. If no model is called `draft`,
    /// nothing is drafted.
    #[serde(skip_serializing)]
    pub speculative_draft_model: Option<String>,
    /// Maximum n-gram length of the n-gram proposer (prompt lookup), which drafts without a model
    /// the tokens that followed the last occurrence of the text's last tokens.
    #[serde(skip_serializing)]
    pub speculative_ngram: Option<usize>,
    /// Maximum number of tokens of a draft; 7 if absent, and 0 turns drafting off.
    #[serde(skip_serializing)]
    pub speculative_length: Option<usize>,
    /// True if draft lengths adapt to the measured costs and acceptance; if false, drafts always
    /// have the maximum length. True if absent.
    #[serde(skip_serializing)]
    pub speculative_adaptive: Option<bool>,
    /// Time limit of loading in seconds, after which the worker exits; no limit if absent.
    #[serde(skip_serializing)]
    pub model_loading_timeout: Option<f64>,
    /// Time limit of a request in the engine in seconds, after which it is refused; no limit if
    /// absent.
    #[serde(skip_serializing)]
    pub predict_timeout: Option<f64>,
    /// Reference logits, as `nsbridge parity` writes them, that the model must reproduce before the
    /// worker takes requests: a file of the model, in a folder below it, or an absolute path.
    #[serde(skip_serializing)]
    pub parity_reference: Option<String>,
    /// Maximum difference of a logit from the reference; 1e-3 if absent.
    #[serde(skip_serializing)]
    pub parity_tolerance: Option<f32>,
}

/// Task of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Task {
    /// Text, by [`Llama`](crate::Llama).
    Generate,
    /// Vectors, by [`Embedder`](crate::Embedder).
    Embed,
}

/// Pooling of the final hidden states of a text into one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Pooling {
    /// Hidden state of the last token.
    Last,
    /// Mean of the hidden states of all tokens.
    Mean,
}

/// Format to which matrices are quantized when they are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Quantize {
    /// Eight bits a weight in blocks of 32, as in GGUF's Q8_0.
    #[serde(rename = "q8_0")]
    Q8_0,
}
