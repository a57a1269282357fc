//! `quantization_config` of `config.json`: how the weights of safetensors are stored.

use nsbridge_handler::Model;
use serde::Deserialize;
use serde_json::Value;

use super::super::{FILE, find_json, refused};
use crate::error::LoadError;

/// Rows and columns of a block of weights with one scale, where the file names no others.
pub(crate) const SCALED_TOGETHER: [usize; 2] = [128, 128];

const FIELD: &str = "quantization_config";

/// Accepts eight-bit floats.
///
/// # Errors
///
/// Returns an error that names the method if it is another one.
pub(super) fn check(quantization: &Value) -> Result<(), LoadError> {
    let text = |field: &str| quantization.get(field).and_then(Value::as_str);
    match (text("quant_method"), text("format")) {
        (Some("fp8" | "fbgemm_fp8"), _) | (Some("compressed-tensors"), Some("float-quantized")) => {
            Ok(())
        }
        (Some(method), Some(format)) => Err(other(&format!("{method} in the format {format}"))),
        (Some(method), None) => Err(other(method)),
        (None, _) => Err(other("absent")),
    }
}

fn other(method: &str) -> LoadError {
    LoadError::quantized(format!("quant_method of {FIELD} in {FILE} is {method}, not fp8"))
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct File {
    quantization_config: Quantization,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Quantization {
    weight_block_size: Option<Vec<usize>>,
}

/// Returns the rows and columns of a block of eight-bit floats with one scale.
///
/// # Errors
///
/// Returns an error if `config.json` cannot be read, or names a size that is none.
pub(crate) fn scaled_together(model: &Model) -> Result<[usize; 2], LoadError> {
    let file: File = find_json(model, FILE)?.unwrap_or_default();
    match file.quantization_config.weight_block_size.as_deref() {
        None => Ok(SCALED_TOGETHER),
        Some(&[rows, columns]) if rows > 0 && columns > 0 => Ok([rows, columns]),
        Some(other) => {
            let field = format!("weight_block_size of {FIELD}");
            refused(&field, format!("{other:?}"), "two numbers above 0")
        }
    }
}
