//! `nsbridge model inspect`: prints the contents of a model and the memory it needs.

mod gguf;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Result, bail};
use nsbridge_checkpoint::{Checkpoint, Metadata, TensorInfo};
use nsbridge_handler::quote;
use nsbridge_llama::{
    ChatFormats, Config, Format, KvFormat, Mix, Need, coarsest_format, mean_width, parameters,
};
use nsbridge_store::Opened;
use serde_json::{Value, json};

use crate::progress::{Display, Shown, size};
use crate::terminal::print;

/// Degrees of tensor parallelism that the engine supports.
const DEGREES: [usize; 4] = [1, 2, 4, 8];

const CONFIG: &str = "config.json";

/// Facts about a model, to be printed.
struct Inspected<'a> {
    opened: &'a Opened,
    /// Header of the weights; `None` if there is only a `config.json`.
    checkpoint: Option<Checkpoint>,
    /// Network configuration, or the reason why it is invalid.
    config: Result<Config, String>,
    /// Format of the matrices, as text.
    kept: String,
    format: Format,
    /// Mean number of bytes of a weight.
    width: f64,
    tokens: u64,
}

/// Prints the facts about a model, or returns them as JSON.
pub(super) fn run(
    opened: &Opened,
    tokens: u64,
    dtype: Option<Mix>,
    tensors: bool,
    as_json: bool,
) -> Result<Option<Value>> {
    let shown = Shown::of_unknown("reading the headers", Display::unless(as_json));
    let inspected = Inspected::new(opened, tokens, dtype)?;
    drop(shown);
    if as_json {
        return Ok(Some(inspected.to_json(tensors)));
    }
    print(&inspected.to_text(tensors)?)?;
    Ok(None)
}

impl<'a> Inspected<'a> {
    fn new(opened: &'a Opened, tokens: u64, dtype: Option<Mix>) -> Result<Self> {
        let refused = |error| quote(nsbridge_base::chain(&error));
        let config = Config::read(&opened.model).map_err(refused);
        let checkpoint = match (Checkpoint::open(&opened.model), &config) {
            (Ok(checkpoint), _) => Some(checkpoint),
            (Err(error), _) if opened.manifest.is_some() || has_weights(opened) => bail!("{error}"),
            (Err(_), Ok(_)) => None,
            // A config.json alone would suffice, so its own error is reported and not the missing
            // weights.
            (Err(_), Err(why)) if opened.model.files().any(|path| path == CONFIG) => bail!("{why}"),
            (Err(error), Err(_)) => bail!("{error}"),
        };
        let ((format, width), kept) = match (dtype, &config, &checkpoint) {
            (Some(mix), Ok(config), _) => (mix.kept(config), format!("in {mix}")),
            (_, _, Some(checkpoint)) => {
                let tensors = checkpoint.tensors();
                let kept = (coarsest_format(tensors), mean_width(tensors));
                (kept, "as stored".to_owned())
            }
            (_, Ok(config), None) => (Mix::Bf16.kept(config), format!("in {}", Mix::Bf16)),
            (_, Err(why), None) => bail!("{why}"),
        };
        Ok(Self { opened, checkpoint, config, kept, format, width, tokens })
    }

    fn tensors(&self) -> &[TensorInfo] {
        self.checkpoint.as_ref().map_or(&[], Checkpoint::tensors)
    }

    /// Returns the metadata if the weights are GGUF.
    fn metadata(&self) -> Option<&Metadata> {
        let metadata = self.checkpoint.as_ref()?.metadata();
        (!metadata.is_empty()).then_some(metadata)
    }

    fn parameters(&self) -> u64 {
        match (&self.checkpoint, &self.config) {
            (None, Ok(config)) => parameters(config),
            _ => elements(self.tensors()),
        }
    }

    /// Returns the formats of calls and of reasoning that the chat template shows, by their names in a
    /// gateway's configuration.
    fn chat_formats(&self) -> (Option<&'static str>, Option<&'static str>) {
        let found = ChatFormats::read(&self.opened.model).unwrap_or_default();
        (found.calls.map(|it| it.name()), found.reasoning.map(|it| it.name()))
    }

    /// Returns the memory that each rank needs, or why a degree is not possible. `None` without a
    /// valid config.
    fn degrees(&self) -> Option<Vec<(usize, Result<Need, String>)>> {
        let config = self.config.as_ref().ok()?;
        let need = |ranks| config.need(ranks, self.format, self.width, KvFormat::Bf16);
        Some(DEGREES.map(|ranks| (ranks, need(ranks))).into())
    }

    /// Returns the bytes of a rank's KV cache for all tokens. It saturates, since a config may
    /// claim huge dimensions.
    fn cache(&self, need: &Need) -> u64 {
        need.position.saturating_mul(self.tokens)
    }

    fn to_json(&self, tensors: bool) -> Value {
        let dtypes: BTreeMap<_, _> = by_dtype(self.tensors())
            .into_iter()
            .map(|(dtype, (tensors, parameters, bytes))| {
                (dtype, json!({ "tensors": tensors, "parameters": parameters, "bytes": bytes }))
            })
            .collect();
        let degrees = self.degrees().map(|degrees| {
            let one = |(ranks, outcome): &(usize, Result<Need, String>)| match outcome {
                Ok(need) => json!({
                    "degree": ranks, "legal": true, "weights_per_rank": need.weights,
                    "kv_per_rank": self.cache(need),
                }),
                Err(why) => json!({ "degree": ranks, "legal": false, "why": why }),
            };
            degrees.iter().map(one).collect::<Vec<_>>()
        });
        let model = &self.opened.model;
        let mut all = json!({
            "place": model.place(),
            "revision": model.revision(),
            "parameters": self.parameters(),
            "bytes": sum(self.tensors(), TensorInfo::bytes),
            "dtypes": dtypes,
            "context": self.tokens,
            "tensor_parallel_degrees": degrees,
        });
        if let Err(why) = &self.config {
            all["config_refused"] = json!(why);
        }
        let (calls, reasoning) = self.chat_formats();
        all["chat_formats"] = json!({ "tools": calls, "reasoning": reasoning });
        if let Some(metadata) = self.metadata() {
            all["gguf"] = gguf::to_json(metadata);
        }
        if tensors {
            let one = |tensor: &TensorInfo| {
                let dtype = tensor.dtype.to_string();
                json!({ "name": tensor.name, "dtype": dtype, "shape": tensor.shape })
            };
            all["tensors"] = self.tensors().iter().map(one).collect();
        }
        all
    }

    fn to_text(&self, tensors: bool) -> Result<String> {
        let mut text = String::new();
        let model = &self.opened.model;
        let revision = model.revision().map_or(String::new(), |name| format!(", revision {name}"));
        writeln!(text, "{}{revision}", model.place())?;
        if let Some(manifest) = &self.opened.manifest {
            let files = manifest.files.len();
            writeln!(text, "{files} files, {}, verified by their manifest", size(manifest.size()))?;
        }
        text.push_str(&self.metadata().map_or_else(String::new, gguf::to_text));
        let (calls, reasoning) = self.chat_formats();
        for (field, format) in [("tools", calls), ("reasoning", reasoning)] {
            if let Some(format) = format {
                writeln!(text, "its chat template shows {field} = \"{format}\" for the gateway")?;
            }
        }
        let parameters = people(self.parameters());
        match self.tensors().len() {
            0 => writeln!(text, "{parameters} parameters, by its config; there are no weights")?,
            count => writeln!(text, "{parameters} parameters in {count} tensors")?,
        }
        for (dtype, (count, elements, bytes)) in by_dtype(self.tensors()) {
            let elements = people(elements);
            writeln!(text, "  {dtype:5} {count:5} tensors  {elements:>8}  {}", size(bytes))?;
        }
        if tensors {
            for tensor in self.tensors() {
                let (shape, name) =
                    (quote(format_args!("{:?}", tensor.shape)), quote(&tensor.name));
                writeln!(text, "  {:5} {shape}  {name}", tensor.dtype)?;
            }
        }
        let Some(degrees) = self.degrees() else {
            let why = self.config.as_ref().err().map_or("", String::as_str);
            writeln!(text, "no word on ranks: {why}")?;
            return Ok(text);
        };
        let (tokens, kept) = (self.tokens, &self.kept);
        writeln!(
            text,
            "memory of each rank: weights {kept}, and keys and values of {tokens} tokens in 16 bits:"
        )?;
        for (ranks, outcome) in degrees {
            match outcome {
                Ok(need) => {
                    let (weights, cache) = (need.weights, self.cache(&need));
                    let all = size(weights.saturating_add(cache));
                    let (weights, cache) = (size(weights), size(cache));
                    writeln!(text, "  degree {ranks}  {weights:>10} + {cache:>10} = {all:>10}")?;
                }
                Err(why) => writeln!(text, "  degree {ranks}  not possible: it {why}")?,
            }
        }
        Ok(text)
    }
}

/// Returns true if the model has a file that could hold tensors.
fn has_weights(opened: &Opened) -> bool {
    let ends = |path: &str| path.ends_with(".safetensors") || path.ends_with(".gguf");
    opened.model.files().any(ends)
}

fn sum(tensors: &[TensorInfo], of: impl Fn(&TensorInfo) -> u64) -> u64 {
    tensors.iter().map(of).fold(0, u64::saturating_add)
}

fn elements(tensors: &[TensorInfo]) -> u64 {
    sum(tensors, TensorInfo::elements)
}

/// Sums up tensors, elements and bytes of each type.
fn by_dtype(tensors: &[TensorInfo]) -> BTreeMap<String, (u64, u64, u64)> {
    let mut all = BTreeMap::<String, (u64, u64, u64)>::new();
    for tensor in tensors {
        let sum = all.entry(tensor.dtype.to_string()).or_default();
        let (elements, bytes) = (tensor.elements(), tensor.bytes());
        *sum = (sum.0 + 1, sum.1.saturating_add(elements), sum.2.saturating_add(bytes));
    }
    all
}

/// Formats a count for people.
fn people(count: u64) -> String {
    match count {
        0..1_000_000 => count.to_string(),
        1_000_000..1_000_000_000 => format!("{:.2} M", count as f64 / 1e6),
        _ => format!("{:.2} B", count as f64 / 1e9),
    }
}
