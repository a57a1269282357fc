//! Tests of every family against candle's own models, written independently from the same papers.
//!
//! candle-transformers assumes a `rope_theta` of 10,000 if its reader does not find one, and does
//! not know `rope_parameters`. So its models are configured here in code and never from a file.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{Activation, VarBuilder};
use candle_transformers::models::{llama, mistral, qwen2, qwen3};
use nsbridge_llama::Setup;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::network;
use crate::tiny::write_drawn;

/// Maximum difference of a logit, fifty times the observed one. Logits of such small weights are
/// about 0.1.
const TOLERANCE: f32 = 1e-5;

/// Range of uniform weights with a standard deviation of 0.02, the initial one in transformers.
const REACH: f32 = 0.0346;

/// Number of prompt tokens, after each of which candle's logits are compared.
const PROMPT: usize = 24;

/// Number of tokens that candle chooses itself and runs one by one on its cache.
const DECODED: usize = 6;

struct Case {
    name: &'static str,
    config: Value,
}

fn shape(architecture: &str, more: &Value) -> Value {
    let mut config = json!({
        "architectures": [architecture], "hidden_act": "silu", "hidden_size": 48,
        "intermediate_size": 80, "vocab_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0, "max_position_embeddings": 64, "tie_word_embeddings": false
    });
    let fields = more.as_object().unwrap().clone();
    config.as_object_mut().unwrap().extend(fields);
    config
}

fn cases() -> Vec<Case> {
    let case = |name, architecture, more: &Value| Case { name, config: shape(architecture, more) };
    let (llama, mistral) = ("LlamaForCausalLM", "MistralForCausalLM");
    let (qwen2, qwen3) = ("Qwen2ForCausalLM", "Qwen3ForCausalLM");
    let tied = json!({ "tie_word_embeddings": true });
    let whole = json!({ "sliding_window": null });
    let scaled = json!({ "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32
    } });
    let wide = json!({ "head_dim": 20, "attention_bias": false });
    let wide_tied = json!({ "head_dim": 20, "attention_bias": true, "tie_word_embeddings": true });
    vec![
        case("llama", llama, &json!({})),
        case("llama, tied", llama, &tied),
        case("llama 3.1, scaled", llama, &scaled),
        case("mistral", mistral, &whole),
        case(
            "mistral, wide heads, tied",
            mistral,
            &json!({
                "sliding_window": null, "head_dim": 20, "tie_word_embeddings": true
            }),
        ),
        case("mistral, beyond its window", mistral, &json!({ "sliding_window": 7 })),
        case("qwen2", qwen2, &json!({})),
        case("qwen2, tied", qwen2, &tied),
        case("qwen3", qwen3, &wide),
        case("qwen3, biased, tied", qwen3, &wide_tied),
    ]
}

impl Case {
    fn number(&self, field: &str) -> f64 {
        self.config[field].as_f64().unwrap()
    }

    fn size(&self, field: &str) -> usize {
        self.config[field].as_u64().unwrap() as usize
    }

    fn is(&self, field: &str) -> bool {
        self.config[field].as_bool().unwrap_or_default()
    }

    fn window(&self) -> Option<usize> {
        self.config["sliding_window"].as_u64().map(|window| window as usize)
    }

    fn write(&self) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        write_drawn(dir.path(), &self.config, 11, REACH);
        dir
    }

    /// Returns token ids without a pattern.
    fn prompt(&self) -> Vec<u32> {
        let size = self.size("vocab_size") as u32;
        (0..PROMPT as u32).map(|at| (at * at * 31 + at * 7 + 3) % size).collect()
    }
}

/// candle's model of a case.
enum Oracle {
    Llama(Box<llama::Llama>, llama::Config, llama::Cache),
    Mistral(mistral::Model),
    Qwen2(qwen2::ModelForCausalLM),
    Qwen3(qwen3::ModelForCausalLM),
}

impl Oracle {
    fn open(case: &Case) -> Result<Self> {
        let dir = case.write();
        let mut tensors =
            candle_core::safetensors::load(dir.path().join("model.safetensors"), &Device::Cpu)?;
        if case.is("tie_word_embeddings") {
            // candle's Mistral always requires an output matrix of its own.
            let output = tensors["model.embed_tokens.weight"].clone();
            tensors.insert("lm_head.weight".to_owned(), output);
        }
        let weights = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
        match case.config["architectures"][0].as_str().unwrap() {
            "LlamaForCausalLM" => {
                let config = llama_config(case);
                let cache = llama::Cache::new(true, DType::F32, &config, &Device::Cpu)?;
                Ok(Self::Llama(Box::new(llama::Llama::load(weights, &config)?), config, cache))
            }
            "MistralForCausalLM" => {
                Ok(Self::Mistral(mistral::Model::new(&mistral_config(case), weights)?))
            }
            "Qwen2ForCausalLM" => {
                Ok(Self::Qwen2(qwen2::ModelForCausalLM::new(&qwen2_config(case), weights)?))
            }
            _ => Ok(Self::Qwen3(qwen3::ModelForCausalLM::new(&qwen3_config(case), weights)?)),
        }
    }

    /// Runs a prompt from an empty cache, then `decoded` greedy tokens. Returns each chosen token
    /// with the logits it was chosen from.
    fn run(&mut self, prompt: &[u32], decoded: usize) -> Result<Vec<(u32, Vec<f32>)>> {
        match self {
            Self::Llama(_, config, cache) => {
                *cache = llama::Cache::new(true, DType::F32, config, &Device::Cpu)?;
            }
            Self::Mistral(model) => model.clear_kv_cache(),
            Self::Qwen2(model) => model.clear_kv_cache(),
            Self::Qwen3(model) => model.clear_kv_cache(),
        }
        let (mut all, mut tokens, mut at) = (Vec::new(), prompt.to_vec(), 0);
        for _ in 0..=decoded {
            let input = Tensor::new(tokens.as_slice(), &Device::Cpu)?.unsqueeze(0)?;
            let logits = match self {
                Self::Llama(model, _, cache) => model.forward(&input, at, cache)?,
                Self::Mistral(model) => model.forward(&input, at)?,
                Self::Qwen2(model) => model.forward(&input, at)?,
                Self::Qwen3(model) => model.forward(&input, at)?,
            };
            let logits = logits.flatten_all()?.to_vec1::<f32>()?;
            at += tokens.len();
            tokens = vec![likeliest(&logits)];
            all.push((tokens[0], logits));
        }
        Ok(all)
    }

    /// Returns tokens and the logits after each of them.
    ///
    /// candle only returns logits after the last token, so each prefix of the prompt is run
    /// separately.
    fn logits(&mut self, case: &Case) -> Result<(Vec<u32>, Vec<Vec<f32>>)> {
        let mut tokens = case.prompt();
        let mut all = Vec::new();
        for length in 1..PROMPT {
            all.extend(self.run(&tokens[..length], 0)?.into_iter().map(|(_, logits)| logits));
        }
        // candle ignores windows when it runs single tokens.
        let decoded = if case.window().is_some() { 0 } else { DECODED };
        for (token, logits) in self.run(&case.prompt(), decoded)? {
            all.push(logits);
            tokens.push(token);
        }
        tokens.pop();
        Ok((tokens, all))
    }
}

fn llama_config(case: &Case) -> llama::Config {
    let scaling = case.config.get("rope_scaling").map(|fields| llama::Llama3RopeConfig {
        factor: fields["factor"].as_f64().unwrap() as f32,
        low_freq_factor: fields["low_freq_factor"].as_f64().unwrap() as f32,
        high_freq_factor: fields["high_freq_factor"].as_f64().unwrap() as f32,
        original_max_position_embeddings: fields["original_max_position_embeddings"]
            .as_u64()
            .unwrap() as usize,
        rope_type: llama::Llama3RopeType::Llama3,
    });
    llama::Config {
        hidden_size: case.size("hidden_size"),
        intermediate_size: case.size("intermediate_size"),
        vocab_size: case.size("vocab_size"),
        num_hidden_layers: case.size("num_hidden_layers"),
        num_attention_heads: case.size("num_attention_heads"),
        num_key_value_heads: case.size("num_key_value_heads"),
        use_flash_attn: false,
        rms_norm_eps: case.number("rms_norm_eps"),
        rope_theta: case.number("rope_theta") as f32,
        bos_token_id: None,
        eos_token_id: None,
        rope_scaling: scaling,
        max_position_embeddings: case.size("max_position_embeddings"),
        tie_word_embeddings: case.is("tie_word_embeddings"),
    }
}

fn mistral_config(case: &Case) -> mistral::Config {
    mistral::Config {
        vocab_size: case.size("vocab_size"),
        hidden_size: case.size("hidden_size"),
        intermediate_size: case.size("intermediate_size"),
        num_hidden_layers: case.size("num_hidden_layers"),
        num_attention_heads: case.size("num_attention_heads"),
        head_dim: case.config["head_dim"].as_u64().map(|width| width as usize),
        num_key_value_heads: case.size("num_key_value_heads"),
        hidden_act: Activation::Silu,
        max_position_embeddings: case.size("max_position_embeddings"),
        rms_norm_eps: case.number("rms_norm_eps"),
        rope_theta: case.number("rope_theta"),
        // candle counts the positions before a token, transformers includes the token.
        sliding_window: case.window().map(|window| window - 1),
        use_flash_attn: false,
    }
}

fn qwen2_config(case: &Case) -> qwen2::Config {
    qwen2::Config {
        vocab_size: case.size("vocab_size"),
        hidden_size: case.size("hidden_size"),
        intermediate_size: case.size("intermediate_size"),
        num_hidden_layers: case.size("num_hidden_layers"),
        num_attention_heads: case.size("num_attention_heads"),
        num_key_value_heads: case.size("num_key_value_heads"),
        max_position_embeddings: case.size("max_position_embeddings"),
        // candle applies the window even if it is switched off.
        sliding_window: case.size("max_position_embeddings"),
        max_window_layers: 0,
        tie_word_embeddings: case.is("tie_word_embeddings"),
        rope_theta: case.number("rope_theta"),
        rms_norm_eps: case.number("rms_norm_eps"),
        use_sliding_window: false,
        hidden_act: Activation::Silu,
    }
}

fn qwen3_config(case: &Case) -> qwen3::Config {
    qwen3::Config {
        vocab_size: case.size("vocab_size"),
        hidden_size: case.size("hidden_size"),
        intermediate_size: case.size("intermediate_size"),
        num_hidden_layers: case.size("num_hidden_layers"),
        num_attention_heads: case.size("num_attention_heads"),
        head_dim: case.size("head_dim"),
        attention_bias: case.is("attention_bias"),
        num_key_value_heads: case.size("num_key_value_heads"),
        max_position_embeddings: case.size("max_position_embeddings"),
        sliding_window: None,
        max_window_layers: 0,
        tie_word_embeddings: case.is("tie_word_embeddings"),
        rope_theta: case.number("rope_theta"),
        rms_norm_eps: case.number("rms_norm_eps"),
        use_sliding_window: false,
        hidden_act: Activation::Silu,
    }
}

fn likeliest(logits: &[f32]) -> u32 {
    let all = 0..logits.len();
    all.max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap() as u32
}

/// Returns the largest difference from the oracle's logits, and how often the likeliest token
/// differs.
fn difference(case: &Case, (tokens, right): &(Vec<u32>, Vec<Vec<f32>>)) -> (f32, usize) {
    let found =
        network::logits(&mut network::open(case.write().path(), &Setup::default()), tokens, PROMPT);
    assert_eq!(found.len(), right.len());
    let (mut worst, mut other) = (0f32, 0);
    for (found, right) in found.iter().zip(right) {
        assert_eq!(found.len(), right.len());
        worst = found.iter().zip(right).map(|(a, b)| (a - b).abs()).fold(worst, f32::max);
        other += usize::from(likeliest(found) != likeliest(right));
    }
    (worst, other)
}

#[test]
fn the_logits_of_every_family_are_those_of_candle() {
    for case in cases() {
        let right = Oracle::open(&case).unwrap().logits(&case).unwrap();
        let (worst, other) = difference(&case, &right);
        assert!(worst <= TOLERANCE, "{}: {worst} is above {TOLERANCE}", case.name);
        assert_eq!(other, 0, "{}: another token is the likeliest", case.name);
    }
}

/// Sensitivity of the tolerance: 10,000 is the value of a reader that misses `rope_theta`.
#[test]
fn a_wrong_theta_a_wrong_epsilon_and_a_wrong_window_are_seen() {
    let mut windows = 0;
    for mut case in cases() {
        let right = Oracle::open(&case).unwrap().logits(&case).unwrap();
        let original = case.config.clone();
        let mut check = |field: &str, wrong: Value| {
            case.config = original.clone();
            case.config[field] = wrong;
            let (worst, _) = difference(&case, &right);
            assert!(worst > 5.0 * TOLERANCE, "{}, {field}: {worst} is too little", case.name);
        };
        check("rope_theta", json!(10_000.0));
        check("rms_norm_eps", json!(1e-6));
        if original.get("rope_scaling").is_some() {
            check("rope_scaling", Value::Null);
        }
        if let Some(window) = original["sliding_window"].as_u64() {
            check("sliding_window", json!(window + 1));
            check("sliding_window", Value::Null);
            windows += 1;
        }
    }
    assert_eq!(windows, 1);
}
