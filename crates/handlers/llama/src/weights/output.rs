//! Output matrix beside the embedding to which the configuration ties it.

use nsbridge_checkpoint::{Checkpoint, Order};

use super::LM_HEAD;
use crate::error::LoadError;

/// Returns true if the model has an output matrix, and its bytes are not those of the embedding.
///
/// # Errors
///
/// Returns an error if one of the two cannot be read.
pub(crate) fn has_other_output(checkpoint: &Checkpoint) -> Result<bool, LoadError> {
    let names = match checkpoint.metadata().is_empty() {
        true => [LM_HEAD, "model.embed_tokens.weight"],
        false => ["output.weight", "token_embd.weight"],
    };
    let [Some(output), Some(embedding)] = names.map(|name| checkpoint.find(name)) else {
        return Ok(false);
    };
    if (output.dtype, &output.shape) != (embedding.dtype, &embedding.shape) {
        return Ok(true);
    }
    let weights = checkpoint.load(&Order::of(names)).map_err(LoadError::read)?;
    let [output, embedding] = names.map(|name| weights.tensor(name).map_err(LoadError::read));
    Ok(output?.contiguous() != embedding?.contiguous())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::fs::File;
    use std::path::Path;

    use candle_core::quantized::gguf_file::{self, Value};
    use candle_core::quantized::{GgmlDType, QTensor};
    use candle_core::{Device, Tensor};
    use nsbridge_handler::Model;

    use super::{Checkpoint, has_other_output};

    fn write_safetensors(dir: &Path, tensors: &[(&str, Tensor)]) {
        let named = |(name, tensor): &(&str, Tensor)| ((*name).to_owned(), tensor.clone());
        let tensors: HashMap<String, Tensor> = tensors.iter().map(named).collect();
        candle_core::safetensors::save(&tensors, dir.join("model.safetensors")).unwrap();
    }

    fn write_gguf(dir: &Path, tensors: &[(&str, Tensor)]) {
        let stored = |tensor: &Tensor| QTensor::quantize(tensor, GgmlDType::F32).unwrap();
        let kept: Vec<QTensor> = tensors.iter().map(|(_, tensor)| stored(tensor)).collect();
        let names = tensors.iter().map(|(name, _)| *name);
        let tensors: Vec<(&str, &QTensor)> = names.zip(&kept).collect();
        let architecture = Value::String("llama".to_owned());
        let mut file = File::create(dir.join("model.gguf")).unwrap();
        gguf_file::write(&mut file, &[("general.architecture", &architecture)], &tensors).unwrap();
    }

    #[test]
    fn an_output_matrix_is_another_one_if_its_bytes_differ() {
        let embedding = [[0.0_f32, 1.0], [2.0, 3.0]];
        let tensor = |values: [[f32; 2]; 2]| Tensor::new(&values, &Device::Cpu).unwrap();
        for (output, differs) in
            [(None, false), (Some(embedding), false), (Some([[0.0, 1.0], [2.0, 4.0]]), true)]
        {
            for [output_name, embedding_name] in [
                ["lm_head.weight", "model.embed_tokens.weight"],
                ["output.weight", "token_embd.weight"],
            ] {
                let dir = tempfile::tempdir().unwrap();
                let mut tensors = vec![(embedding_name, tensor(embedding))];
                tensors.extend(output.map(|output| (output_name, tensor(output))));
                match output_name {
                    "output.weight" => write_gguf(dir.path(), &tensors),
                    _ => write_safetensors(dir.path(), &tensors),
                }
                let checkpoint = Checkpoint::open(&Model::in_dir(dir.path())).unwrap();
                let found = has_other_output(&checkpoint).unwrap();
                assert_eq!(found, differs, "{output_name}: {output:?}");
            }
        }
    }
}
