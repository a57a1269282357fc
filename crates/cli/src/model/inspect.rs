//! `nsbridge model inspect`: what is in a model.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Result, anyhow};
use nsbridge::store::Opened;
use nsbridge_handler::{Checkpoint, Model};
use serde_json::{Value, json};

use super::bar::size;
use super::ranks::{Degree, Shape, degrees};

/// Tokens of context for which the memory of keys and values is told.
const CONTEXT: u64 = 4096;

/// Prints what is in a model, or gives it as JSON.
pub(super) fn run(opened: &Opened, tensors: bool, as_json: bool) -> Result<Option<Value>> {
    let model = &opened.model;
    let checkpoint = model.checkpoint().map_err(|error| anyhow!("{error}"))?;
    let shape = shape(model)?;
    let degrees = shape.as_ref().map(|shape| degrees(shape, checkpoint.tensors(), CONTEXT));
    if as_json {
        return Ok(Some(to_json(opened, &checkpoint, degrees.as_deref(), tensors)));
    }
    print(&to_text(opened, &checkpoint, degrees.as_deref(), tensors)?);
    Ok(None)
}

/// The shape of the network, where `config.json` tells it.
fn shape(model: &Model) -> Result<Option<Shape>> {
    let config = model.find("config.json").map_err(|error| anyhow!("{error}"))?;
    Ok(config.and_then(|config| serde_json::from_slice(&config).ok()))
}

/// Tensors, elements and bytes of each type.
fn by_dtype(checkpoint: &Checkpoint) -> BTreeMap<String, (u64, u64, u64)> {
    let mut all = BTreeMap::<String, (u64, u64, u64)>::new();
    for tensor in checkpoint.tensors() {
        let sum = all.entry(tensor.dtype.to_string()).or_default();
        *sum = (sum.0 + 1, sum.1 + tensor.elements(), sum.2 + tensor.bytes());
    }
    all
}

fn to_json(
    opened: &Opened,
    checkpoint: &Checkpoint,
    degrees: Option<&[Degree]>,
    tensors: bool,
) -> Value {
    let dtypes: BTreeMap<_, _> = by_dtype(checkpoint)
        .into_iter()
        .map(|(dtype, (tensors, parameters, bytes))| {
            (dtype, json!({ "tensors": tensors, "parameters": parameters, "bytes": bytes }))
        })
        .collect();
    let degrees = degrees.map(|degrees| {
        let one = |degree: &Degree| match &degree.outcome {
            Ok(need) => json!({
                "degree": degree.ranks, "legal": true,
                "weights_per_rank": need.weights, "kv_per_rank": need.cache,
            }),
            Err(why) => json!({ "degree": degree.ranks, "legal": false, "why": why }),
        };
        degrees.iter().map(one).collect::<Vec<_>>()
    });
    let mut all = json!({
        "place": opened.model.place(),
        "revision": opened.model.revision(),
        "parameters": checkpoint.tensors().iter().map(|tensor| tensor.elements()).sum::<u64>(),
        "bytes": checkpoint.tensors().iter().map(|tensor| tensor.bytes()).sum::<u64>(),
        "dtypes": dtypes,
        "context": CONTEXT,
        "tensor_parallel_degrees": degrees,
    });
    if tensors {
        let one = |tensor: &nsbridge_handler::TensorInfo| json!({ "name": tensor.name, "dtype": tensor.dtype.to_string(), "shape": tensor.shape });
        all["tensors"] = checkpoint.tensors().iter().map(one).collect();
    }
    all
}

fn to_text(
    opened: &Opened,
    checkpoint: &Checkpoint,
    degrees: Option<&[Degree]>,
    tensors: bool,
) -> Result<String> {
    let mut text = String::new();
    let revision =
        opened.model.revision().map_or(String::new(), |name| format!(", revision {name}"));
    writeln!(text, "{}{revision}", opened.model.place())?;
    if let Some(manifest) = &opened.manifest {
        let files = manifest.files.len();
        writeln!(text, "{files} files, {}, verified by their manifest", size(manifest.size()))?;
    }
    let parameters: u64 = checkpoint.tensors().iter().map(|tensor| tensor.elements()).sum();
    writeln!(text, "{} parameters in {} tensors", people(parameters), checkpoint.tensors().len())?;
    for (dtype, (count, elements, bytes)) in by_dtype(checkpoint) {
        writeln!(text, "  {dtype:5} {count:5} tensors  {:>8}  {}", people(elements), size(bytes))?;
    }
    if tensors {
        for tensor in checkpoint.tensors() {
            writeln!(text, "  {:5} {:?}  {}", tensor.dtype, tensor.shape, tensor.name)?;
        }
    }
    let Some(degrees) = degrees else {
        writeln!(text, "config.json does not tell the network's shape: no word on ranks")?;
        return Ok(text);
    };
    writeln!(
        text,
        "memory for each rank, and for keys and values of {CONTEXT} tokens in 16 bits:"
    )?;
    for Degree { ranks, outcome } in degrees {
        match outcome {
            Ok(need) => {
                let (weights, cache) = (size(need.weights), size(need.cache));
                writeln!(text, "  degree {ranks:2}  {weights:>12} + {cache}")?;
            }
            Err(why) => writeln!(text, "  degree {ranks:2}  not possible: {why}")?,
        }
    }
    Ok(text)
}

/// A count as a person says it.
fn people(count: u64) -> String {
    match count {
        0..1_000_000 => count.to_string(),
        1_000_000..1_000_000_000 => format!("{:.2} M", count as f64 / 1e6),
        _ => format!("{:.2} B", count as f64 / 1e9),
    }
}

#[expect(clippy::print_stdout, reason = "this is the command's result")]
fn print(text: &str) {
    print!("{text}");
}
